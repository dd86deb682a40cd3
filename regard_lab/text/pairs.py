"""Sentence pairs: read from tables and parallel files, cleaned, and split by a hash of the source."""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

from regard.arguments import a_list, a_path, count_of, of_kind
from regard.errors import ArgumentError, DataError, NotFoundError
from regard.reprs import brief
from regard_lab.text import tables
from regard_lab.text.catalogues import CATALOGUES, catalogue_rows, po_rows
from regard_lab.text.cleaning import LONE_SURROGATES, normalise, tidy, tidy_target
from regard_lab.text.exchange.xliff import XLIFF
from regard_lab.text.exchange.xliff_rows import xliff_rows
from regard_lab.text.lines import PathLike, check_there, numbered_lines
from regard_lab.text.memories import (
    DEFAULT_OPTIONS,
    MEMORY,
    MemoryCounts,
    MemoryOptions,
    memory_languages,
    memory_rows,
)
from regard_lab.text.plurals import PluralCounts
from regard_lab.text.tables import (
    SOURCE_AND_TARGET,
    Columns,
    LineFault,
    PairTable,
    TextRow,
    table_of,
)

BROKEN_JSON = "broken JSON"
WRONG_KEYS = "without source and target strings"
NOT_UNICODE = "not valid Unicode"
NUL = "with a NUL character"
EMPTY_SIDE = "empty side"
TOO_LONG = "too long"
DUPLICATE = "duplicate"
JOINED = "with a byte order mark inside"  # of files that were joined without a line end

LETTERS_PER_WORD = 40  # limits the characters of a side, since one "word" may be a megabyte

FORMATS = (
    'a .tsv (source TAB target), a .csv with a header (source,target), a .jsonl (objects with "source" and "target"), '
    "a .po or .mo (a catalogue of gettext), a .tmx (a translation memory), a .xlf or .xliff, or two parallel plain "
    "files; each also packed as .gz"
)


@dataclass(frozen=True)
class Pair:
    """A source sentence and its translation.

    >>> Pair("It was tired.", "Es war müde.").target
    'Es war müde.'
    """

    source: str
    target: str


class Counts(Protocol):
    """Counts something while rows are read."""

    def remark(self) -> str | None:
        """A phrase about what was counted; None if there is nothing to say."""


@dataclass(frozen=True)
class FileRows:
    """The rows of files; `header` is a phrase about the first line, or about languages.

    When all rows are read, `quotes` says which rows of a `.tsv` look quoted, and `counts` what else the format has.
    """

    rows: Iterator[TextRow | LineFault]
    header: str | None = None
    quotes: Counts | None = None
    counts: Counts | None = None


def rows(
    paths: tuple[PathLike, ...],
    columns: Columns = SOURCE_AND_TARGET,
    memory: MemoryOptions = DEFAULT_OPTIONS,
) -> FileRows:
    """The rows of a table or of two parallel files, by the suffixes of the paths; `columns` may name two of a table."""
    if len(paths) not in (1, 2):
        raise ArgumentError(f"{len(paths)} paths were given; give {FORMATS}")
    suffixes_of_one_file = (*tables.DELIMITERS, ".jsonl", *CATALOGUES, MEMORY, *XLIFF)
    holding_both_sides = [
        path for path in paths if table_of(Path(path)).suffix in suffixes_of_one_file
    ]
    if len(paths) == 2:
        if holding_both_sides:
            raise NotFoundError(
                f"two paths are read as parallel plain files, but {holding_both_sides[0]} is a table; give it alone"
            )
        return FileRows(_parallel_rows(*paths))
    if not holding_both_sides:
        check_there(paths[0])
        raise NotFoundError(
            f"{paths[0]} has an unknown suffix; give {FORMATS}; or name the columns of a table of tabs without header "
            f"by their numbers, as in {paths[0]}:1,2"
        )

    table = table_of(Path(paths[0]))
    if table.suffix in CATALOGUES:
        plurals = PluralCounts()
        read = catalogue_rows if table.suffix == ".mo" else po_rows
        return FileRows(read(table.path, plurals), counts=plurals)
    if table.suffix == MEMORY:
        source, target = memory_languages(table)
        left_out = MemoryCounts()
        units = memory_rows(table, (source, target), left_out, memory)
        return FileRows(units, f"{source!r} to {target!r}", counts=left_out)
    if table.suffix in XLIFF:
        left_out = MemoryCounts()
        return FileRows(xliff_rows(table.path, left_out, memory), counts=left_out)
    if table.suffix == ".jsonl":
        return FileRows(_json_rows(table, columns))

    first = tables.first_line(table.path)
    header = tables.find_header(table, first, columns)
    quotes = None
    if table.suffix == ".tsv":
        quotes = tables.Quotes(table, columns, header is not None)
    return FileRows(
        tables.table_rows(table, header, quotes),
        tables.on_first_line(table, first, header, columns),
        quotes,
    )


def _json_rows(table: PairTable, columns: Columns) -> Iterator[TextRow | LineFault]:
    file = str(table.path)
    wanted = tables.wanted_columns(table, columns)
    wrong_keys = f"without strings {wanted.left[0]!r} and {wanted.right[0]!r}"
    if wanted == SOURCE_AND_TARGET:
        wrong_keys = WRONG_KEYS
    for number, line in numbered_lines(table.path):
        if line is None:
            yield LineFault(tables.NOT_UTF8, file, number)
            continue
        if not line.strip():
            yield LineFault(tables.EMPTY_LINE, file, number)
            continue
        try:
            sides = tables.two_strings(json.loads(line), wanted)
        except (ValueError, RecursionError):  # RecursionError: nested too deeply
            yield LineFault(BROKEN_JSON, file, number)
            continue
        if sides is None:
            yield LineFault(wrong_keys, file, number)
        elif LONE_SURROGATES.search("".join(sides)):  # written as escapes such as \ud800
            yield LineFault(NOT_UNICODE, file, number)
        else:
            yield TextRow(number, (file, file), sides)


def _parallel_rows(source: PathLike, target: PathLike) -> Iterator[TextRow | LineFault]:
    files = (str(source), str(target))
    source_lines = 0
    target_lines = 0
    ended = (0, "")  # in place of lines that are missing in the shorter file
    lines_of_both = zip_longest(numbered_lines(source), numbered_lines(target), fillvalue=ended)
    for (source_number, left), (target_number, right) in lines_of_both:
        source_lines = max(source_lines, source_number)
        target_lines = max(target_lines, target_number)
        if source_number != target_number:
            continue  # one file has ended: only count lines
        if left is None:
            yield LineFault(tables.NOT_UTF8, files[0], source_number)
        elif right is None:
            yield LineFault(tables.NOT_UTF8, files[1], source_number)
        elif not left.strip() and not right.strip():
            yield LineFault(tables.EMPTY_LINE, files[0], source_number)
        else:
            yield TextRow(source_number, files, (left, right))
    if source_lines != target_lines:
        raise DataError(
            f"{source} has {count_of(source_lines, 'lines')} but {target} has {target_lines}; line i of one must "
            f"translate line i of the other, so give files with equally many lines"
        )


@brief
@dataclass(frozen=True)
class PairFile:
    """Pairs read from files, and why other lines were dropped.

    `dropped` counts dropped lines by reason; `first_lines` has the first (file, line number) of each reason. `header`
    is a phrase about a first line that is a header, or may be one; `quoted` names the rows of a `.tsv` that look
    quoted, which are read as they are. `remark` is a phrase about plurals of a catalogue, or about codes and further
    translations of a translation memory.
    """

    files: tuple[str, ...]
    pairs: list[Pair]
    dropped: dict[str, int] = field(default_factory=dict)
    first_lines: dict[str, tuple[str, int]] = field(default_factory=dict)
    header: str | None = None
    quoted: str | None = None
    remark: str | None = None

    @property
    def kept(self) -> int:
        """Number of pairs kept."""
        return len(self.pairs)

    @property
    def lines(self) -> int:
        """Number of lines read, kept and dropped."""
        return self.kept + sum(self.dropped.values())

    @property
    def counted(self) -> str:
        """The number of lines, or of messages, in words."""
        suffix = table_of(Path(self.files[0])).suffix
        unit = "lines"
        if suffix in CATALOGUES:
            unit = "messages"
        elif suffix == MEMORY or suffix in XLIFF:
            unit = "units"
        return count_of(self.lines, unit, ",")

    def add(self, row: Pair | LineFault) -> None:
        """Keep one more pair, or count why a line has none."""
        if isinstance(row, Pair):
            self.pairs.append(row)
            return
        self.dropped[row.reason] = self.dropped.get(row.reason, 0) + 1
        self.first_lines.setdefault(row.reason, (row.file, row.number))

    def report(self, left_out: str = "dropped") -> str:
        """One sentence on how many pairs were kept, how many lines were dropped, or `left_out`, and why.

        >>> PairFile(("a.tsv",), [Pair("hi", "hallo")], {"duplicate": 2}, {"duplicate": ("a.tsv", 2)}).report()
        'a.tsv: kept 1 of 3 lines; dropped 2 (2 duplicate, first at a.tsv line 2)'
        """
        parts = [f"{' + '.join(self.files)}: kept {self.kept:,} of {self.counted}"]
        if self.dropped:
            parts.append(f"{left_out} {self.lines - self.kept:,} ({self.reasons()})")
        remarks = (self.header, self.quoted, self.remark)
        parts += [remark for remark in remarks if remark]
        return "; ".join(parts)

    def reasons(self) -> str:
        """The reasons with counts and first lines, the most frequent first."""
        unit = "message" if table_of(Path(self.files[0])).suffix == ".mo" else "line"
        phrases = []
        for reason in sorted(self.dropped, key=lambda reason: -self.dropped[reason]):
            file, number = self.first_lines[reason]
            phrases.append(f"{self.dropped[reason]:,} {reason}, first at {file} {unit} {number}")
        return "; ".join(phrases)


def read_pairs(
    *paths: PathLike,
    max_words: int = 250,
    columns: Columns = SOURCE_AND_TARGET,
    keep_placeholders: bool = False,
    keep_tags: bool = False,
    all_translations: bool = False,
) -> PairFile:
    """Read translation pairs from one table or two parallel files.

    Formats, by suffix: `.tsv` (source TAB target), `.csv`, `.jsonl` (objects with the strings "source" and "target"),
    `.mo` and `.po` (catalogues of gettext), `.tmx` (translation memories; the path may
    name two languages, as in "memory.tmx:en,de"), `.xlf` and `.xliff` (XLIFF 1.2 and 2), or two plain files of any
    other suffix with equally many lines; each also packed as `.gz`. The first line of a `.csv` is a header, that of a
    `.tsv` may be: "source" and "target" name the columns, or the path names two others, as in
    "pairs.csv:english,german". A table without a header has the numbers of two columns, from 1, as in "deu.txt:1,2".
    The path of a `.jsonl` names two keys likewise, of its objects or of the object that each holds under "translation".

    Sources are cleaned by `tidy`, targets by `tidy_target`. Lines are dropped, and counted, if they are
    empty, have an empty side, other than two columns, invalid UTF-8 or JSON, a NUL, a side of more than `max_words`
    words or 40 * `max_words` characters, or repeat a pair; and if they may join halves of two pairs: a column of a
    `.tsv` with an odd number of quotes and one at its edge, or a byte order mark inside a side; of a `.po` messages
    that are fuzzy, obsolete or without translation. Quotes of a `.tsv` are letters; the report names rows that look
    quoted, and how to read them so.

    Args:
        paths: one .tsv or .jsonl file, or a source file and its target file.
        max_words: the most words of a side, separated by white space.
        columns: how a header may name the two columns; `regard_lab.text.tables` has those of pairs and of labels.
        keep_placeholders: write the placeholders of a `.tmx` or of XLIFF (`<ph>`, `<x/>`, `<ut>`) as text.
        keep_tags: write their formatting (`<bpt>`, `<g>`, ...) as text too.
        all_translations: make a pair of each translation in a unit of a `.tmx`, instead of the first.

    Returns:
        The pairs in file order, and what was dropped; print its `report()`.

    Raises:
        ArgumentError: neither one path nor two, or max_words below 1.
        NotFoundError: a file that is missing.
        DataError: a file that is empty, binary, in another encoding or of an unknown format; a table whose columns are
            not certain; parallel files of different lengths; or no pair in any line.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "few.tsv")
    ...     _ = path.write_text("A bird sang.\\tEin Vogel sang.\\nno tab here\\n", encoding="utf-8")
    ...     read = read_pairs(path)
    >>> read.pairs, read.dropped
    ([Pair(source='A bird sang.', target='Ein Vogel sang.')], {'not exactly two columns': 1})
    """
    memory = MemoryOptions(keep_placeholders, keep_tags, all_translations)
    file_rows = _checked_rows(paths, max_words, columns, memory)
    read = PairFile(tuple(map(str, paths)), [], header=file_rows.header)
    seen: set[Pair] = set()
    for row in file_rows.rows:
        if isinstance(row, LineFault):
            read.add(row)
            continue
        pair = _pair_or_fault(row, max_words)
        if pair in seen:
            pair = LineFault(DUPLICATE, row.files[0], row.number)
        elif isinstance(pair, Pair):
            seen.add(pair)
        read.add(pair)
    read = _with_remarks(read, file_rows)
    if not read.pairs:
        raise _why_empty(read, columns)
    return read


@dataclass(frozen=True)
class LineFile:
    """A pair for each line, or the fault why it has none; `read` counts them."""

    rows: list[Pair | LineFault]
    read: PairFile


def read_each(
    *paths: PathLike,
    max_words: int = 250,
    keep_placeholders: bool = False,
    keep_tags: bool = False,
    all_translations: bool = False,
) -> LineFile:
    """A pair for each line of one table or two parallel files, in order, or the fault why a line has none.

    Pairs are read as by `read_pairs`, but one that is repeated is repeated here. Raises as `read_pairs`, except where
    no line has a pair.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "few.tsv")
    ...     _ = path.write_text("A bird sang.\\tEin Vogel sang.\\nno tab here\\n", encoding="utf-8")
    ...     lines = read_each(path)
    >>> lines.rows[0], lines.rows[1].reason, lines.read.dropped
    (Pair(source='A bird sang.', target='Ein Vogel sang.'), 'not exactly two columns', {'not exactly two columns': 1})
    """
    memory = MemoryOptions(keep_placeholders, keep_tags, all_translations)
    file_rows = _checked_rows(paths, max_words, SOURCE_AND_TARGET, memory)
    read = PairFile(tuple(map(str, paths)), [], header=file_rows.header)
    pairs: list[Pair | LineFault] = []
    for row in file_rows.rows:
        pair = row if isinstance(row, LineFault) else _pair_or_fault(row, max_words)
        pairs.append(pair)
        read.add(pair)
    read = _with_remarks(read, file_rows)
    if not pairs:
        raise _why_empty(read, SOURCE_AND_TARGET)
    return LineFile(pairs, read)


def _with_remarks(read: PairFile, file_rows: FileRows) -> PairFile:
    """What was read, with the phrases that are known when all rows are read."""
    quotes = file_rows.quotes
    counts = file_rows.counts
    return replace(
        read,
        quoted=None if quotes is None else quotes.remark(),
        remark=None if counts is None else counts.remark(),
    )


def _checked_rows(
    paths: tuple[PathLike, ...], max_words: int, columns: Columns, memory: MemoryOptions
) -> FileRows:
    """The rows of paths, with all arguments checked."""
    paths = tuple(a_path("path", path) for path in paths)
    max_words = of_kind("max_words", max_words, int, "an integer, 1 or more")
    needs = "one of those in regard_lab.text.tables, such as SOURCE_AND_TARGET"
    of_kind("columns", columns, Columns, needs)
    if max_words < 1:
        raise ArgumentError(f"max_words is {max_words}; give at least 1")
    return rows(paths, columns, memory)


def _pair_or_fault(row: TextRow, max_words: int) -> Pair | LineFault:
    source, target = (side.lstrip("\ufeff") for side in row.sides)
    pair = Pair(tidy(source), tidy_target(target))
    for file, side in zip(row.files, (pair.source, pair.target), strict=True):
        if "\0" in side:
            return LineFault(NUL, file, row.number)
        if not side:
            return LineFault(EMPTY_SIDE, file, row.number)
        if "\ufeff" in side:
            return LineFault(JOINED, file, row.number)
        if side.count(" ") >= max_words or len(side) > LETTERS_PER_WORD * max_words:
            return LineFault(TOO_LONG, file, row.number)
    return pair


def _why_empty(read: PairFile, columns: Columns) -> DataError | NotFoundError:
    files = " + ".join(read.files)
    if not read.lines:
        return DataError(f"{files} is empty; give {FORMATS}")

    none = f"{files}: none of {read.counted} gives a pair"
    table = table_of(Path(read.files[0]))
    keys = tables.name_the_keys(table, columns) if table.suffix == ".jsonl" else None
    if keys:
        return NotFoundError(f"{none}: {keys}")
    way = read.quoted or f"give {FORMATS}"
    return DataError(f"{none} ({read.reasons()}); {way}")


@brief
@dataclass(frozen=True)
class Splits:
    """Training, validation and test pairs, each in their original order."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def split_by_hash(pairs: Iterable[Pair], valid: float = 0.05, test: float = 0.05) -> Splits:
    """Split pairs by the SHA-256 of each source, the same on every machine.

    The hash is read as a fraction in [0, 1): a source below `test` goes into the test part, below `test + valid` into
    the validation part, else into the training part. Pairs with the same source (after `normalise`) stay together. If a
    part of a small file would be empty, it takes the sources with the nearest fractions.

    Args:
        pairs: the pairs to split.
        valid: share of the sources for validation; 0 for none.
        test: share of the sources for the test; 0 for none.

    Raises:
        ArgumentError: a share below 0, or shares that leave no training pairs.
        DataError: fewer distinct sources than parts.

    >>> parts = split_by_hash([Pair(f"sentence {i}", "Satz") for i in range(100)])
    >>> len(parts.train), len(parts.valid), len(parts.test)
    (91, 2, 7)
    """
    needs = "a share of the sources, such as 0.05"
    valid = of_kind("valid", valid, (int, float), needs)
    test = of_kind("test", test, (int, float), needs)
    pairs = a_list("pairs", pairs, Pair, "pairs, as read_pairs gives them")
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ArgumentError(
            f"the shares are valid={valid} and test={test}; give shares of 0 or more whose sum is below 1"
        )

    fractions = [_fraction_of(pair.source) for pair in pairs]
    sources = sorted(set(fractions))
    has_valid = int(valid > 0)
    has_test = int(test > 0)
    parts = 1 + has_valid + has_test
    if len(sources) < parts:
        raise DataError(
            f"{count_of(len(pairs), 'pairs')} with {count_of(len(sources), 'distinct source sentences')} cannot be "
            f"split into {parts} parts, which need at least {parts}; add pairs, or give the validation pairs in a "
            f"separate file"
        )

    # Each part that is asked for has a source, and one is left for training.
    below_test = bisect_left(sources, test)
    below_valid = bisect_left(sources, test + valid)
    test_count = max(has_test, min(below_test, len(sources) - 1 - has_valid))
    valid_count = max(has_valid, min(below_valid - test_count, len(sources) - 1 - test_count))
    first_valid = sources[test_count]
    first_train = sources[test_count + valid_count]

    splits = Splits([], [], [])
    for pair, fraction in zip(pairs, fractions, strict=True):
        if fraction < first_valid:
            splits.test.append(pair)
        elif fraction < first_train:
            splits.valid.append(pair)
        else:
            splits.train.append(pair)
    return splits


def _fraction_of(source: str) -> float:
    """A number from 0 to 1 that depends on the source alone, the same on every machine."""
    digest = hashlib.sha256(normalise(source).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
