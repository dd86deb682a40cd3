"""No file holds the marks that git leaves where a merge was not finished; in text, nothing else would fail."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("regard", "regard_lab", "docs", "tests", "benchmarks")
TEXT = {".py", ".md", ".h", ".cpp", ".js", ".css", ".json", ".toml", ".txt", ".yml"}
MARKS = ("<" * 7 + " ", ">" * 7 + " ")  # the line between them also underlines titles


def unfinished(text: str) -> list[int]:
    """The numbers of the lines that begin with a mark."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(MARKS)]


def test_marks_are_found():
    assert unfinished("one\n<<<<<<< HEAD\ntwo\n=======\nthree\n>>>>>>> other\n") == [2, 6]


@pytest.mark.parametrize("place", [".", *FOLDERS])
def test_every_merge_is_finished(place):
    found = (ROOT / place).glob("*") if place == "." else (ROOT / place).rglob("*")
    files = [path for path in found if path.suffix in TEXT and path.is_file()]
    assert files
    marked = {str(path): lines for path in files if (lines := unfinished(path.read_text(encoding="utf-8")))}
    assert not marked
