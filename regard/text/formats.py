"""The formats that hold translation pairs, each turned into rows: two raw sides, or the fault of a line."""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from regard.errors import ArgumentError, DataError
from regard.text.characters import LONE_SURROGATES
from regard.text.lines import PathLike, numbered_lines

EMPTY_LINE = "empty line"
NOT_UTF8 = "not valid UTF-8"
NOT_TWO_COLUMNS = "not exactly two columns"
BROKEN_JSON = "broken JSON"
WRONG_KEYS = "without source and target strings"
NOT_UNICODE = "not valid Unicode"

FORMATS = 'a .tsv (source TAB target), a .jsonl (objects with "source" and "target"), or two parallel plain files'


class Row(NamedTuple):
    """The two sides as they stand in the file, or in the two files."""

    number: int  # of the line, from 1
    files: tuple[str, str]
    sides: tuple[str, str]


class Fault(NamedTuple):
    """Why a line gives no pair."""

    reason: str
    file: str
    number: int


def rows(paths: tuple[PathLike, ...]) -> Iterator[Row | Fault]:
    """The rows of whichever format the paths name.

    Raises:
        ArgumentError: neither one path nor two.
        DataError: a format that the names do not tell, or one of the files cannot be read.
    """
    tables = [path for path in paths if Path(path).suffix.lower() in PARSERS]
    if len(paths) not in (1, 2):
        raise ArgumentError(f"{len(paths)} paths were given; pairs are read from {FORMATS}")
    if len(paths) == 2 and tables:
        raise DataError(f"two paths are read as parallel plain files, but {tables[0]} is a table; read it alone")
    if len(paths) == 2:
        return _parallel_rows(*paths)
    if not tables and Path(paths[0]).is_dir():
        raise DataError(f"{paths[0]} is a folder; name a file inside it")
    if not tables:
        raise DataError(f"{paths[0]} has a name that tells no format; pairs are read from {FORMATS}")
    return _table_rows(paths[0])


def _table_rows(path: PathLike) -> Iterator[Row | Fault]:
    file, parse = str(path), PARSERS[Path(path).suffix.lower()]
    for number, text in numbered_lines(path):
        if text is None:
            yield Fault(NOT_UTF8, file, number)
        elif not text.strip():
            yield Fault(EMPTY_LINE, file, number)
        else:
            found = parse(text)
            yield Fault(found, file, number) if isinstance(found, str) else Row(number, (file, file), found)


def _columns(text: str) -> tuple[str, str] | str:
    source, tab, target = text.partition("\t")
    return (source, target) if tab and "\t" not in target else NOT_TWO_COLUMNS


def _json_object(text: str) -> tuple[str, str] | str:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: brackets nested without end
        return BROKEN_JSON
    source, target = (record.get("source"), record.get("target")) if isinstance(record, dict) else (None, None)
    if not isinstance(source, str) or not isinstance(target, str):
        return WRONG_KEYS
    if LONE_SURROGATES.search(source + target):  # escapes such as \ud800 can spell them
        return NOT_UNICODE
    return source, target


PARSERS = {".tsv": _columns, ".jsonl": _json_object}


def _parallel_rows(source: PathLike, target: PathLike) -> Iterator[Row | Fault]:
    files = (str(source), str(target))
    ended = (0, "")  # stands for the lines that the shorter file lacks
    source_lines = target_lines = 0
    for (i, left), (j, right) in zip_longest(numbered_lines(source), numbered_lines(target), fillvalue=ended):
        source_lines, target_lines = max(source_lines, i), max(target_lines, j)
        if i != j:
            continue  # only the lengths still matter
        if left is None or right is None:
            yield Fault(NOT_UTF8, files[left is not None], i)
        elif not left.strip() and not right.strip():
            yield Fault(EMPTY_LINE, files[0], i)
        else:
            yield Row(i, files, (left, right))
    if source_lines != target_lines:
        raise DataError(
            f"{source} has {source_lines} lines but {target} has {target_lines}; line i of one must translate "
            f"line i of the other, so the numbers must be equal"
        )
