"""Tables of two columns: CSV and TSV whose header names them, or whose path does, as in `pairs.csv:english,german`.

A column without a name is never guessed: a file whose first line may be a header or a pair is refused. Likewise the
path of a `.jsonl` may name two keys of its objects.
"""

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from regard.arguments import count_of
from regard.errors import DataError, NotFoundError
from regard_lab.text.lines import is_packed, numbered_lines, plain_path, suffix_of

DELIMITERS = {".csv": ",;\t", ".tsv": "\t"}
NAMED = re.compile(
    r"(?P<path>.+\.(?:csv|tsv|jsonl|tmx)(?:\.gz)?):(?P<left>[^,:/\\]+),(?P<right>[^,:/\\]+)",
    re.IGNORECASE | re.DOTALL,
)
NUMBERED = re.compile(
    r"(?P<path>.+(?<!\.jsonl)(?<!\.jsonl\.gz)(?<!\.tmx)(?<!\.tmx\.gz)):(?P<left>[1-9]\d?),(?P<right>[1-9]\d?)",
    re.IGNORECASE | re.DOTALL,
)
ONE_WORD = re.compile(r"[^\W\d][\w-]+")  # as names of columns are, and few sentences
# Names of columns that a header may have; codes that are common words, such as "it" or "no", are left out.
LANGUAGES = frozenset(
    (
        "en",
        "de",
        "fr",
        "es",
        "pt",
        "nl",
        "ru",
        "zh",
        "ja",
        "ko",
        "ar",
        "pl",
        "sv",
        "cs",
        "uk",
        "tr",
        "vi",
        "th",
        "english",
        "german",
        "french",
        "spanish",
        "italian",
        "portuguese",
        "dutch",
        "russian",
        "chinese",
        "japanese",
        "korean",
        "arabic",
        "hindi",
        "polish",
        "swedish",
        "czech",
        "ukrainian",
        "turkish",
        "vietnamese",
        "thai",
    )
)

EMPTY_LINE = "empty line"
NOT_UTF8 = "not valid UTF-8"
NOT_TWO_COLUMNS = "not exactly two columns"
WRONG_COLUMNS = "not as many columns as the header"
HALF_QUOTED = "with an odd number of quotes, one at the edge of a column"


class TextRow(NamedTuple):
    """The two sides of a line as they are in the file or files."""

    number: int  # line number, from 1
    files: tuple[str, str]
    sides: tuple[str, str]


class Fault(NamedTuple):
    """The reason why a line gives no pair."""

    reason: str
    file: str
    number: int


class Columns(NamedTuple):
    """What two columns hold, and the names by which a header may call each."""

    left: tuple[str, ...]
    right: tuple[str, ...]


SOURCE_AND_TARGET = Columns(("source", "src"), ("target", "tgt", "translation"))
LABEL_AND_TEXT = Columns(("label", "class", "category"), ("text", "sentence"))


class PairTable(NamedTuple):
    """A table as its path names it: the file, and the two columns, if it gives their names, or their numbers from 1.

    A table whose columns have numbers has no header; with any suffix but `.csv` its columns are separated by tabs.
    """

    path: Path
    names: tuple[str, str] | None
    numbers: tuple[int, int] | None = None

    @property
    def suffix(self) -> str:
        suffix = suffix_of(self.path)
        return ".tsv" if self.numbers is not None and suffix not in DELIMITERS else suffix


def table_of(path: Path) -> PairTable:
    """The table that a path names; the path of a file that exists is never taken apart.

    >>> table_of(Path("pairs.csv:english,german"))
    PairTable(path=PosixPath('pairs.csv'), names=('english', 'german'), numbers=None)
    >>> table_of(Path("deu.txt:2,1"))
    PairTable(path=PosixPath('deu.txt'), names=None, numbers=(2, 1))
    """
    numbered = None if os.path.lexists(path) else NUMBERED.fullmatch(str(path))
    if numbered is not None:
        return PairTable(
            Path(numbered["path"]), None, (int(numbered["left"]), int(numbered["right"]))
        )
    found = None if os.path.lexists(path) else NAMED.fullmatch(str(path))
    return (
        PairTable(path, None)
        if found is None
        else PairTable(Path(found["path"]), (found["left"], found["right"]))
    )


def wanted_columns(table: PairTable, kinds: Columns) -> Columns:
    """The names that the path gives, or else the usual ones, in lower case."""
    return (
        kinds
        if table.names is None
        else Columns(*((name.strip().lower(),) for name in table.names))
    )


def two_strings(record: object, wanted: Columns) -> tuple[str, str] | None:
    """The two strings of a JSON object by its keys, or by those of the object that it holds under "translation".

    >>> two_strings({"id": 7, "translation": {"en": "cat", "de": "Katze"}}, Columns(("en",), ("de",)))
    ('cat', 'Katze')
    """
    nested = record.get("translation") if isinstance(record, dict) else None
    for holder in (record, nested):
        if isinstance(holder, dict):
            named = {key.strip().lower(): value for key, value in holder.items()}
            found = [
                [named[key] for key in keys if isinstance(named.get(key), str)] for keys in wanted
            ]
            if all(found):
                return found[0][0], found[1][0]
    return None


def name_the_keys(table: PairTable, kinds: Columns) -> str | None:
    """A phrase about the keys of the first object, if it lacks the wanted ones but has two strings or more."""
    try:
        record = json.loads(first_line(table.path))
    except (ValueError, RecursionError):
        return None
    nested = record.get("translation") if isinstance(record, dict) else None
    held = nested if isinstance(nested, dict) else record
    names = (
        [key for key, value in held.items() if isinstance(value, str)]
        if isinstance(held, dict)
        else []
    )
    if len(names) < 2 or two_strings(record, wanted_columns(table, kinds)) is not None:
        return None
    return f"the strings of its first object are {_quoted(names)}; {_way_out(table, names, kinds)}"


class TableHeader(NamedTuple):
    """A header line: the delimiter of the table, its number of columns, and the places of the two that are read."""

    delimiter: str
    count: int
    left: int
    right: int


class Quotes:
    """Counts the rows of a `.tsv` that look quoted, as csv and pandas write them; in a `.tsv` a quote is a letter."""

    def __init__(self, table: PairTable, columns: Columns, header: bool) -> None:
        self._table, self._columns, self._header = table, columns, header
        self._rows = self._whole = self._certain = self._first = 0

    def has_half(self, number: int, cells: Sequence[str]) -> bool:
        """Whether a cell may be half of a quoted field that holds a line end; the row is counted."""
        half = any(_is_half(cell) for cell in cells)
        inside = [cell[1:-1] for cell in cells if len(cell) > 1 and cell[0] == cell[-1] == '"']
        whole = bool(inside) and all('"' not in text.replace('""', "") for text in inside)
        certain = half or (whole and any('""' in text for text in inside))
        self._rows, self._whole, self._certain = (
            self._rows + 1,
            self._whole + whole,
            self._certain + certain,
        )
        self._first = self._first or (number if whole or half else 0)
        return half

    def remark(self) -> str | None:
        """A phrase about the rows that look quoted, with the way to read them so; None if none does.

        A few rows that are quotations from the first letter to the last are no sign of a quoted file.
        """
        count = max(self._certain, self._whole if 2 * self._whole > self._rows else 0)
        if not count:
            return None
        return (
            f"{count:,} of {count_of(self._rows, 'rows', ',')} look quoted, as csv and pandas write rows (see line "
            f"{self._first}), and quotes in a .tsv are read as letters; if they belong to the format, "
            f"{_read_quoted(self._table, self._columns, self._header)}"
        )


def _is_half(cell: str) -> bool:
    r"""Whether a cell begins or ends with a quote, and its quotes do not pair off.

    >>> [_is_half(cell) for cell in ('"Zeile 0', 'break"', 'She said "no"', '"No," she said.', "no")]
    [True, True, False, False, False]
    """
    cell = cell.strip()
    return cell.count('"') % 2 == 1 and (cell.startswith('"') or cell.endswith('"'))


def _read_quoted(table: PairTable, kinds: Columns, header: bool) -> str:
    named = plain_path(table.path).with_suffix(".csv.gz" if is_packed(table.path) else ".csv")
    way = f"rename it to {named.name}, whose quotes are read"
    return (
        way
        if header
        else f"{way}, with the header {kinds.left[0]} TAB {kinds.right[0]} as its first line"
    )


def find_header(table: PairTable, first: str, kinds: Columns) -> TableHeader | None:
    """The header in the first line of a table; None if the first line of a `.tsv` is a row like the others."""
    if table.numbers is not None:
        return _by_numbers(table, first, table.numbers)
    if table.suffix == ".csv" and not first.strip():
        raise DataError(
            f"{table.path} begins with an empty line; a .csv begins with a header: {_header(kinds)}"
        )
    wanted = wanted_columns(table, kinds)
    for delimiter in DELIMITERS[table.suffix]:
        names = [name.strip().lower() for name in _cells(table, first, delimiter)]
        places = [
            [place for place, name in enumerate(names) if name in options] for options in wanted
        ]
        if any(len(found) > 1 for found in places):
            raise DataError(
                f"{table.path}: {_quoted(names)} names a column twice; {_way_out(table, names, kinds)}"
            )
        if all(places):
            return TableHeader(delimiter, len(names), places[0][0], places[1][0])
    bare = {name.strip().strip('"').lower() for name in first.split("\t")}
    if table.suffix == ".tsv" and all(bare.intersection(options) for options in wanted):
        raise DataError(
            f"{table.path}: the header {first.strip()[:60]!r} is quoted, and quotes in a .tsv are read as letters; "
            f"{_read_quoted(table, kinds, True)}"
        )
    _refuse_unclear(table, first, kinds)
    return None


def _by_numbers(table: PairTable, first: str, numbers: tuple[int, int]) -> TableHeader:
    """The columns by their numbers, in a table whose first line is a row; the delimiter is that of the most columns."""
    rows = {delimiter: _cells(table, first, delimiter) for delimiter in DELIMITERS[table.suffix]}
    delimiter = max(rows, key=lambda one: len(rows[one]))
    count = len(rows[delimiter])
    if max(numbers) > count or numbers[0] == numbers[1]:
        raise NotFoundError(
            f"{table.path} has {count_of(count, 'columns')} in its first line, {_quoted(rows[delimiter])}, and columns "
            f"{numbers[0]} and {numbers[1]} were named; name two different ones of them"
        )
    return TableHeader(delimiter, count, numbers[0] - 1, numbers[1] - 1)


def _refuse_unclear(table: PairTable, first: str, kinds: Columns) -> None:
    """Raise unless the first line can only be a row of a `.tsv` without a header."""
    names = max(
        (_cells(table, first, delimiter) for delimiter in DELIMITERS[table.suffix]), key=len
    )
    if table.names is not None:
        there = {name.strip().lower() for name in names}
        missing = [name for name in table.names if name.strip().lower() not in there]
        raise NotFoundError(
            f"{table.path} has no column{'s' * (len(missing) > 1)} {_quoted(missing)}: its first line is "
            f"{_quoted(names)}; {_way_out(table, names, kinds)}"
        )
    if table.suffix == ".csv":
        raise NotFoundError(
            f"{table.path} begins with {_quoted(names)}; a .csv begins with a header. Put the line {_header(kinds)} "
            f"before it, or if it is the header, {_way_out(table, names, kinds)}"
        )
    if len(names) > 1 and all(name.strip().lower() in LANGUAGES for name in names):
        raise NotFoundError(
            f"{table.path}: the first line {_quoted(names)} may be a header or a row; remove it if it is a header, or "
            f"{_way_out(table, names, kinds)}"
        )


def on_first_line(
    table: PairTable, first: str, header: TableHeader | None, kinds: Columns
) -> str | None:
    r"""A phrase about a first line that is a header, or that may be one and was read as a row; None for any other.

    >>> on_first_line(PairTable(Path("a.tsv"), None), "source\ttarget", TableHeader("\t", 2, 0, 1), SOURCE_AND_TARGET)
    "the first line, 'source', 'target', is a header"
    """
    if header is not None and table.numbers is not None:
        return f"columns {table.numbers[0]} and {table.numbers[1]} of {header.count} are read, from the first line on"
    if header is not None:
        return f"the first line, {_quoted(_cells(table, first, header.delimiter))}, is a header"
    names = first.split("\t")
    if len(names) != 2 or not all(ONE_WORD.fullmatch(name.strip()) for name in names):
        return None
    return (
        f"the first line, {_quoted(names)}, was read as a row like the others; if it is a header, "
        f"{_way_out(table, names, kinds)}"
    )


def table_rows(
    table: PairTable, header: TableHeader | None, quotes: Quotes | None
) -> Iterator[TextRow | Fault]:
    """The rows of a table, below its header if it has one. A quoted field of a `.csv` may hold line ends."""
    file = str(table.path)
    damaged = []
    lines = _lines(table.path, 1 if header is None or table.numbers is not None else 2, damaged)
    form = TableHeader("\t", 2, 0, 1) if header is None else header
    if table.suffix == ".tsv":
        rows = ((number, text.split("\t")) for number, text in lines)
    else:
        rows = _quoted_rows(table.path, lines, form.delimiter)
    for number, cells in rows:
        yield from (Fault(NOT_UTF8, file, at) for at in damaged)
        damaged.clear()
        if not any(cell.strip() for cell in cells):
            yield Fault(EMPTY_LINE, file, number)
        elif len(cells) != form.count:
            yield Fault(NOT_TWO_COLUMNS if header is None else WRONG_COLUMNS, file, number)
        elif quotes is not None and quotes.has_half(number, cells):
            yield Fault(HALF_QUOTED, file, number)
        else:
            yield TextRow(number, (file, file), (cells[form.left], cells[form.right]))
    yield from (Fault(NOT_UTF8, file, at) for at in damaged)


def first_line(path: Path) -> str:
    """The first line of a file; nothing for an empty one, or one that is not UTF-8."""
    return next((text or "" for _, text in numbered_lines(path)), "")


def _lines(path: Path, first: int, damaged: list[int]) -> Iterator[tuple[int, str]]:
    """The lines from the first that is read, with their numbers; those that are not UTF-8 are noted as damaged."""
    for number, text in numbered_lines(path):
        if text is None:
            damaged.append(number)
        elif number >= first:
            yield number, text


def _quoted_rows(
    path: Path, lines: Iterator[tuple[int, str]], delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV, each with the number of its first line."""
    read: list[int] = []  # the numbers of the lines of the row

    def texts() -> Iterator[str]:
        for number, text in lines:
            read.append(number)
            yield text.replace("\r", " ") + "\n"  # one inside a line is white space, as in a .tsv

    try:
        for row in csv.reader(texts(), delimiter=delimiter, strict=True):
            yield read[0], row
            read.clear()
    except csv.Error as error:
        raise DataError(
            f"{path}, line {read[0]}: the quotes do not close ({error}); a quote inside a quoted field is written twice"
        ) from None


def _cells(table: PairTable, line: str, delimiter: str) -> list[str]:
    if table.suffix == ".tsv":
        return line.split("\t")
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [""])
    except csv.Error:
        return [line]


def _quoted(names: Sequence[str]) -> str:
    shown = [repr(name.strip()[:40]) for name in names[:8]]
    return ", ".join(chain(shown, ["..."] if len(names) > 8 else []))


def _header(kinds: Columns) -> str:
    return f"{kinds.left[0]},{kinds.right[0]}"


def _way_out(table: PairTable, names: Sequence[str], kinds: Columns) -> str:
    """How to name the columns; those that the header leaves no doubt about are named."""
    usable = {
        name.strip().lower(): name.strip()
        for name in names
        if re.fullmatch(r"[^,:/\\]{1,30}", name.strip())
    }
    near = [get_close_matches(name.strip().lower(), usable, n=1) for name in table.names or ()]
    # Those most like the ones that were named.
    chosen = [usable[found[0]] for found in near if found]
    if len(set(chosen)) < 2:
        chosen = (
            list(usable.values())
            if len(usable) == 2
            else [usable[key] for key in usable if key in LANGUAGES]
        )
    noun = "key" if table.suffix == ".jsonl" else "column"
    if len(chosen) == 2:
        return f"name the {noun}s after the file, as in {table.path}:{','.join(chosen)}"
    return (
        f"name the {noun} of the {kinds.left[0]} and that of the {kinds.right[0]} after the file, as in "
        f"{table.path}:{kinds.left[0].upper()},{kinds.right[0].upper()}"
    )
