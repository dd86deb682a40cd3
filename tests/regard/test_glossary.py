"""The words that the glossary of CONTRIBUTING.md replaces stay out of public docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.structure import PACKAGES, ROOT, modules, parsed

CODE = re.compile(r"^\s*(>>>|\.\.\. ).*$|``[^`]+``|`[^`]+`", re.MULTILINE)
ARGUMENT_NAMES = re.compile(r"^\s*\w+(, \w+)*: ", re.MULTILINE)


def glossary_rows() -> list[list[str]]:
    """The cells of each row of the glossary."""
    _, section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("\n## Glossary\n")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [re.split(r"(?<!\\)\|", line.strip("| ")) for line in lines[1:]]


def replaced_words() -> list[str]:
    """The words in backticks of the last column."""
    last_column = " ".join(row[-1] for row in glossary_rows())
    return re.findall(r"`([^`]+)`", last_column)


def docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a module and of its public classes, functions and methods, by name."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_"):
            yield from docstrings(child, f"{name}.{child.name}")


def prose(docstring: str) -> str:
    """A docstring without code and names of arguments, on one line."""
    text = ARGUMENT_NAMES.sub(" ", CODE.sub(" ", docstring))
    return " ".join(text.lower().split())


def words_in(docstring: str, words: list[str]) -> list[str]:
    """Which of these words a docstring contains as whole words."""
    text = prose(docstring)
    return [word for word in words if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_docstring_contains_a_word_that_the_glossary_replaces(package):
    words = replaced_words()
    faults = []
    for module, path in modules(package).items():
        for name, text in docstrings(parsed(path), module):
            replaced = words_in(text, words)
            if replaced:
                faults.append(f"{name}: {replaced}")
    assert not faults, "take the word of the glossary in CONTRIBUTING.md:\n" + "\n".join(faults)


def test_the_glossary_replaces_words_and_fits_a_page():
    assert {"asker", "lonely", "dearer", "by lot", "energy", "so-manieth"} <= set(replaced_words())
    assert all(len(row) == 4 for row in glossary_rows())
    assert len(glossary_rows()) <= 50


@pytest.mark.parametrize(
    ("docstring", "words"),
    [
        ("Lonely rows\nget zeros by\nlot.", ["lonely", "by lot"]),
        ("For colour-blind readers; `energy` and\n>>> dearer", []),
        ("Args:\n    energy: v, (heads, terms).", []),
        ("Args:\n    rows: of dearer ones.", ["dearer"]),
    ],
)
def test_words_are_found_whole_and_outside_of_code(docstring, words):
    assert words_in(docstring, ["lonely", "by lot", "blind", "energy", "dearer"]) == words
