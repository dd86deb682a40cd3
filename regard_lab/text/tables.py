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
from pathlib import Path
from typing import Any, NamedTuple

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
USABLE_NAME = re.compile(r"[^,:/\\]{1,30}")  # of a column, behind the path
QUOTED_NAMES = 8  # in a message
QUOTED_CHARACTERS = 40  # of each
# Names of columns that a header may have; codes that are common words, such as "it" or "no", are left out.
_LANGUAGES = (
    "en de fr es pt nl ru zh ja ko ar pl sv cs uk tr vi th "
    "english german french spanish italian portuguese dutch russian chinese japanese "
    "korean arabic hindi polish swedish czech ukrainian turkish vietnamese thai"
)
LANGUAGES = frozenset(_LANGUAGES.split())

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


class LineFault(NamedTuple):
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
    if os.path.lexists(path):
        return PairTable(path, None)
    numbered = NUMBERED.fullmatch(str(path))
    if numbered is not None:
        numbers = (int(numbered["left"]), int(numbered["right"]))
        return PairTable(Path(numbered["path"]), None, numbers)
    named = NAMED.fullmatch(str(path))
    if named is not None:
        return PairTable(Path(named["path"]), (named["left"], named["right"]))
    return PairTable(path, None)


def wanted_columns(table: PairTable, kinds: Columns) -> Columns:
    """The names that the path gives, or else the usual ones, in lower case."""
    if table.names is None:
        return kinds
    left, right = table.names
    return Columns((folded(left),), (folded(right),))


def folded(name: str) -> str:
    """The name of a column as it is compared: without spaces around it, in lower case."""
    return name.strip().lower()


def two_strings(record: object, wanted: Columns) -> tuple[str, str] | None:
    """The two strings of a JSON object by its keys, or by those of the object that it holds under "translation".

    >>> two_strings({"id": 7, "translation": {"en": "cat", "de": "Katze"}}, Columns(("en",), ("de",)))
    ('cat', 'Katze')
    """
    if not isinstance(record, dict):
        return None
    for holder in (record, record.get("translation")):
        if not isinstance(holder, dict):
            continue
        by_name = {folded(key): value for key, value in holder.items()}
        left = _first_string(by_name, wanted.left)
        right = _first_string(by_name, wanted.right)
        if left is not None and right is not None:
            return left, right
    return None


def _first_string(by_name: dict[str, Any], names: Sequence[str]) -> str | None:
    for name in names:
        value = by_name.get(name)
        if isinstance(value, str):
            return value
    return None


def name_the_keys(table: PairTable, kinds: Columns) -> str | None:
    """A phrase about the keys of the first object, if it lacks the wanted ones but has two strings or more."""
    try:
        record = json.loads(first_line(table.path))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if two_strings(record, wanted_columns(table, kinds)) is not None:
        return None

    nested = record.get("translation")
    holder = nested if isinstance(nested, dict) else record
    names = [key for key, value in holder.items() if isinstance(value, str)]
    if len(names) < 2:
        return None
    return f"the strings of its first object are {_quoted(names)}; {_way_out(table, names, kinds)}"


class TableHeader(NamedTuple):
    """A header line: the delimiter of the table, its number of columns, and the places of the two that are read."""

    delimiter: str
    count: int
    left: int
    right: int


TWO_COLUMNS = TableHeader("\t", 2, 0, 1)  # of a `.tsv` without a header


class Quotes:
    """Counts the rows of a `.tsv` that look quoted, as csv and pandas write them; in a `.tsv` a quote is a letter."""

    def __init__(self, table: PairTable, columns: Columns, has_header: bool) -> None:
        self._table = table
        self._columns = columns
        self._has_header = has_header
        self._rows = 0
        self._quoted = 0  # rows with a cell that is quoted as a whole
        # Those that can only be of a quoted file: with half of a field, or quotes written twice.
        self._certain = 0
        self._first = 0  # the number of the first row that looks quoted

    def has_half(self, number: int, cells: Sequence[str]) -> bool:
        """Whether a cell may be half of a quoted field that holds a line end; the row is counted."""
        has_half = any(_is_half(cell) for cell in cells)
        inside = [cell[1:-1] for cell in cells if len(cell) > 1 and cell[0] == cell[-1] == '"']
        is_quoted = bool(inside) and all('"' not in text.replace('""', "") for text in inside)
        is_certain = has_half or (is_quoted and any('""' in text for text in inside))

        self._rows += 1
        self._quoted += is_quoted
        self._certain += is_certain
        if self._first == 0 and (is_quoted or has_half):
            self._first = number
        return has_half

    def remark(self) -> str | None:
        """A phrase about the rows that look quoted, with the way to read them so; None if none does.

        A few rows that are quotations from the first letter to the last are no sign of a quoted file.
        """
        count = self._certain
        if 2 * self._quoted > self._rows:
            count = max(count, self._quoted)
        if not count:
            return None
        return (
            f"{count:,} of {count_of(self._rows, 'rows', ',')} look quoted, as csv and pandas write rows (see line "
            f"{self._first}), and quotes in a .tsv are read as letters; if they belong to the format, "
            f"{_read_quoted(self._table, self._columns, self._has_header)}"
        )


def _is_half(cell: str) -> bool:
    r"""Whether a cell begins or ends with a quote, and its quotes do not pair off.

    >>> [_is_half(cell) for cell in ('"Zeile 0', 'break"', 'She said "no"', '"No," she said.', "no")]
    [True, True, False, False, False]
    """
    cell = cell.strip()
    return cell.count('"') % 2 == 1 and (cell.startswith('"') or cell.endswith('"'))


def _read_quoted(table: PairTable, kinds: Columns, has_header: bool) -> str:
    suffix = ".csv.gz" if is_packed(table.path) else ".csv"
    renamed = plain_path(table.path).with_suffix(suffix)
    way = f"rename it to {renamed.name}, whose quotes are read"
    if has_header:
        return way
    return f"{way}, with the header {kinds.left[0]} TAB {kinds.right[0]} as its first line"


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
        names = [folded(name) for name in _cells(table, first, delimiter)]
        left = [place for place, name in enumerate(names) if name in wanted.left]
        right = [place for place, name in enumerate(names) if name in wanted.right]
        if len(left) > 1 or len(right) > 1:
            raise DataError(
                f"{table.path}: {_quoted(names)} names a column twice; {_way_out(table, names, kinds)}"
            )
        if left and right:
            return TableHeader(delimiter, len(names), left[0], right[0])

    if table.suffix == ".tsv" and _is_quoted_header(first, wanted):
        raise DataError(
            f"{table.path}: the header {first.strip()[:60]!r} is quoted, and quotes in a .tsv are read as letters; "
            f"{_read_quoted(table, kinds, True)}"
        )
    _refuse_unclear(table, first, kinds)
    return None


def _is_quoted_header(first: str, wanted: Columns) -> bool:
    names = {name.strip().strip('"').lower() for name in first.split("\t")}
    return not names.isdisjoint(wanted.left) and not names.isdisjoint(wanted.right)


def _by_numbers(table: PairTable, first: str, numbers: tuple[int, int]) -> TableHeader:
    """The columns by their numbers, in a table whose first line is a row."""
    delimiter, cells = _most_cells(table, first)
    left, right = numbers
    if max(numbers) > len(cells) or left == right:
        raise NotFoundError(
            f"{table.path} has {count_of(len(cells), 'columns')} in its first line, {_quoted(cells)}, and columns "
            f"{left} and {right} were named; name two different ones of them"
        )
    return TableHeader(delimiter, len(cells), left - 1, right - 1)


def _most_cells(table: PairTable, first: str) -> tuple[str, list[str]]:
    """The delimiter that divides the first line into the most cells, and these cells."""
    cells_by_delimiter = {}
    for delimiter in DELIMITERS[table.suffix]:
        cells_by_delimiter[delimiter] = _cells(table, first, delimiter)
    return max(cells_by_delimiter.items(), key=lambda item: len(item[1]))


def _refuse_unclear(table: PairTable, first: str, kinds: Columns) -> None:
    """Raise unless the first line can only be a row of a `.tsv` without a header."""
    _, names = _most_cells(table, first)
    if table.names is not None:
        columns = {folded(name) for name in names}
        missing = [name for name in table.names if folded(name) not in columns]
        raise NotFoundError(
            f"{table.path} has no column{'s' * (len(missing) > 1)} {_quoted(missing)}: its first line is "
            f"{_quoted(names)}; {_way_out(table, names, kinds)}"
        )
    if table.suffix == ".csv":
        raise NotFoundError(
            f"{table.path} begins with {_quoted(names)}; a .csv begins with a header. Put the line {_header(kinds)} "
            f"before it, or if it is the header, {_way_out(table, names, kinds)}"
        )
    if len(names) > 1 and all(folded(name) in LANGUAGES for name in names):
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
        left, right = table.numbers
        return f"columns {left} and {right} of {header.count} are read, from the first line on"
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
) -> Iterator[TextRow | LineFault]:
    """The rows of a table, below its header if it has one. A quoted field of a `.csv` may hold line ends."""
    file = str(table.path)
    has_header_line = header is not None and table.numbers is None
    columns = TWO_COLUMNS if header is None else header
    wrong_count = NOT_TWO_COLUMNS if header is None else WRONG_COLUMNS
    damaged: list[int] = []  # lines before the next row; a quoted row reads several lines at once
    lines = _lines(table.path, 2 if has_header_line else 1, damaged)
    if table.suffix == ".tsv":
        rows = ((number, text.split("\t")) for number, text in lines)
    else:
        rows = _quoted_rows(table.path, lines, columns.delimiter)

    for number, cells in rows:
        for damaged_number in damaged:
            yield LineFault(NOT_UTF8, file, damaged_number)
        damaged.clear()
        if not any(cell.strip() for cell in cells):
            yield LineFault(EMPTY_LINE, file, number)
        elif len(cells) != columns.count:
            yield LineFault(wrong_count, file, number)
        elif quotes is not None and quotes.has_half(number, cells):
            yield LineFault(HALF_QUOTED, file, number)
        else:
            yield TextRow(number, (file, file), (cells[columns.left], cells[columns.right]))
    for damaged_number in damaged:
        yield LineFault(NOT_UTF8, file, damaged_number)


def first_line(path: Path) -> str:
    """The first line of a file; nothing for an empty one, or one that is not UTF-8."""
    _, text = next(numbered_lines(path), (1, None))
    return text or ""


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
    numbers: list[int] = []  # of the lines of the row that is being read

    def texts() -> Iterator[str]:
        for number, text in lines:
            numbers.append(number)
            yield text.replace("\r", " ") + "\n"  # one inside a line is white space, as in a .tsv

    try:
        for row in csv.reader(texts(), delimiter=delimiter, strict=True):
            yield numbers[0], row
            numbers.clear()
    except csv.Error as error:
        raise DataError(
            f"{path}, line {numbers[0]}: the quotes do not close ({error}); a quote inside a quoted field is written "
            f"twice"
        ) from None


def _cells(table: PairTable, line: str, delimiter: str) -> list[str]:
    if table.suffix == ".tsv":
        return line.split("\t")
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [""])
    except csv.Error:
        return [line]


def _quoted(names: Sequence[str]) -> str:
    quoted = [repr(name.strip()[:QUOTED_CHARACTERS]) for name in names[:QUOTED_NAMES]]
    if len(names) > QUOTED_NAMES:
        quoted.append("...")
    return ", ".join(quoted)


def _header(kinds: Columns) -> str:
    return f"{kinds.left[0]},{kinds.right[0]}"


def _way_out(table: PairTable, names: Sequence[str], kinds: Columns) -> str:
    """How to name the columns; those that the header leaves no doubt about are named."""
    noun = "key" if table.suffix == ".jsonl" else "column"
    certain = _certain_names(table, names)
    if len(certain) == 2:
        return f"name the {noun}s after the file, as in {table.path}:{','.join(certain)}"
    left = kinds.left[0]
    right = kinds.right[0]
    return (
        f"name the {noun} of the {left} and that of the {right} after the file, as in "
        f"{table.path}:{left.upper()},{right.upper()}"
    )


def _certain_names(table: PairTable, names: Sequence[str]) -> list[str]:
    """The two names most like those of the path, or the only two, or those of languages."""
    usable = {}
    for name in names:
        if USABLE_NAME.fullmatch(name.strip()):
            usable[folded(name)] = name.strip()

    alike = []
    for name in table.names or ():
        for nearest in get_close_matches(folded(name), usable, n=1):
            alike.append(usable[nearest])
    if len(set(alike)) == 2:
        return alike
    if len(usable) == 2:
        return list(usable.values())
    return [usable[key] for key in usable if key in LANGUAGES]
