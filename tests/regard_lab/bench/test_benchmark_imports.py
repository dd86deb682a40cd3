"""Benchmarks run rarely; what they import from this project exists."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("regard", "regard_lab", "benchmarks")
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_name_that_a_benchmark_imports_exists(path):
    absent = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.partition(".")[0] not in PACKAGES:
            continue
        module = import_module(node.module)
        for alias in node.names:
            is_module = hasattr(module, "__path__") and find_spec(f"{node.module}.{alias.name}")
            if not hasattr(module, alias.name) and not is_module:
                absent.append(f"{node.module}.{alias.name}")
    assert absent == []
