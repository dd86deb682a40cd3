"""Texts that are available on every machine: docstrings and code of Python's standard library, in 27 symbols."""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch

SYMBOLS = 27  # a to z, and one symbol for everything else
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of the training text and of the held-out text: every tenth module is held out."""
    return _divided(lambda path: " ".join(_documentation(path)))


@cache
def code_texts() -> tuple[torch.Tensor, torch.Tensor]:
    """The same of the code of these modules, without docstrings and comments."""
    return _divided(_code)


def _divided(read: Callable[[Path], str]) -> tuple[torch.Tensor, torch.Tensor]:
    parts: tuple[list[str], list[str]] = ([], [])
    for number, path in enumerate(_modules()):
        parts[number % 10 == 0].append(read(path))
    first, held_out = (ids(" ".join(part)) for part in parts)
    return first, held_out


def _modules() -> list[Path]:
    library = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in library.rglob("*.py") if not _SKIPPED & set(path.relative_to(library).parts))


def _documentation(path: Path) -> Iterator[str]:
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _code(path: Path) -> str:
    tree = _parsed(path)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _parsed(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(path.read_text(encoding="utf-8", errors="replace"))


def ids(text: str) -> torch.Tensor:
    """Letters as 1 to 26, ignoring case, and 0 for everything else.

    >>> ids("A, b").tolist()
    [1, 0, 2]
    """
    plain = re.sub(r"[^a-z]+", " ", text.lower())
    return torch.tensor([ord(letter) - 96 if letter != " " else 0 for letter in plain])
