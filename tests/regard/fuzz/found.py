"""Formulas that stand beside the tests of what they are formulas of, found by name."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


def module_of(path: Path) -> Any:
    """A file as a module, wherever the tests are run from."""
    spec = spec_from_file_location(f"found_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def formulas(folder: str) -> dict[str, dict[str, Any]]:
    """The FORMULA of each file test_NAME.py of a folder of tests that has one, by NAME."""
    by_name = {}
    for path in sorted((TESTS / folder).glob("test_*.py")):
        if re.search(r"^FORMULA\b", path.read_text("utf-8"), re.MULTILINE):
            by_name[path.stem.removeprefix("test_")] = module_of(path).FORMULA
    return by_name
