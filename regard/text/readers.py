"""Pairs from the files people have: what is dirty is dropped, counted and said, what is not text is refused."""

from collections.abc import Collection
from dataclasses import dataclass, field

from regard.errors import ArgumentError, DataError
from regard.kinds import a_path, of_kind
from regard.text.characters import tidy
from regard.text.formats import FORMATS, Fault, Row, rows
from regard.text.lines import PathLike, read_lines
from regard.text.pairs import Pair

__all__ = ["read_pairs", "PairFile", "read_lines"]

NUL = "with a NUL character"
EMPTY_SIDE = "empty side"
TOO_LONG = "too long"
DUPLICATE = "duplicate"

LETTERS_PER_WORD = 40  # characters count too: one "word" may be a megabyte


@dataclass(frozen=True)
class PairFile:
    """What was read: the pairs, and for every dropped line the reason.

    `dropped` counts lines by reason; `first_lines` names the first (file, line number) of each reason.
    """

    files: tuple[str, ...]
    pairs: list[Pair]
    dropped: dict[str, int] = field(default_factory=dict)
    first_lines: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """The number of pairs kept."""
        return len(self.pairs)

    @property
    def lines(self) -> int:
        """The number of lines seen, kept and dropped."""
        return self.kept + sum(self.dropped.values())

    def report(self) -> str:
        """One sentence: how many pairs were kept, how many lines dropped and why.

        >>> PairFile(("a.tsv",), [Pair("hi", "hallo")], {"duplicate": 2}, {"duplicate": ("a.tsv", 2)}).report()
        'a.tsv: kept 1 of 3 lines; dropped 2 (2 duplicate, first at a.tsv line 2)'
        """
        said = f"{' + '.join(self.files)}: kept {self.kept:,} of {self.lines:,} lines"
        return f"{said}; dropped {self.lines - self.kept:,} ({self.reasons()})" if self.dropped else said

    def reasons(self) -> str:
        """The reasons with their counts and first lines, the commonest first."""
        ordered = sorted(self.dropped, key=lambda reason: -self.dropped[reason])
        places = {reason: "{} line {}".format(*self.first_lines[reason]) for reason in ordered}
        return "; ".join(f"{self.dropped[reason]:,} {reason}, first at {places[reason]}" for reason in ordered)


def read_pairs(*paths: PathLike, max_words: int = 250) -> PairFile:
    """Translation pairs from one table or two parallel files.

    Formats, by suffix: `.tsv` (source TAB target; any other number of columns drops the line), `.jsonl`
    (objects with the strings "source" and "target", other keys ignored), or two plain files of any other
    suffix with as many lines. Each side becomes `tidy` text (NFC, runs of white space as one space).
    Dropped and counted: empty lines, an empty side, damaged UTF-8 or JSON, a NUL, a repeated pair, and a side
    with more than `max_words` words or 40 * `max_words` characters.

    Args:
        paths: one .tsv or .jsonl, or a source file and its target file.
        max_words: the longest side that is kept, in words between white space.

    Returns:
        The pairs in file order, and what was dropped; print its `report()`.

    Raises:
        ArgumentError: neither one path nor two, or max_words below 1.
        DataError: a file is missing, empty, binary, in another encoding or of an unknown format, parallel
            files differ in length, or no line gives a pair.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "few.tsv")
    ...     _ = path.write_text("A bird sang.\\tEin Vogel sang.\\nno tab here\\n", encoding="utf-8")
    ...     read = read_pairs(path)
    >>> read.pairs, read.dropped
    ([Pair(source='A bird sang.', target='Ein Vogel sang.')], {'not exactly two columns': 1})
    """
    paths = tuple(a_path("path", path) for path in paths)
    max_words = of_kind("max_words", max_words, int, "a whole number, 1 or more")
    if max_words < 1:
        raise ArgumentError(f"max_words is {max_words}; it must be at least 1, or every line would be dropped")
    kept: dict[Pair, None] = {}  # in order, and a repeated pair is found at once
    read = PairFile(tuple(str(path) for path in paths), [])
    for row in rows(paths):
        found = row if isinstance(row, Fault) else _pair_or_fault(row, max_words, kept)
        if isinstance(found, Pair):
            kept[found] = None
        else:
            read.dropped[found.reason] = read.dropped.get(found.reason, 0) + 1
            read.first_lines.setdefault(found.reason, (found.file, found.number))
    read.pairs.extend(kept)
    if not read.pairs:
        raise DataError(_why_useless(read))
    return read


def _pair_or_fault(row: Row, max_words: int, seen: Collection[Pair]) -> Pair | Fault:
    pair = Pair(*map(tidy, row.sides))
    for file, side in zip(row.files, (pair.source, pair.target), strict=True):
        if "\0" in side:
            return Fault(NUL, file, row.number)
        if not side:
            return Fault(EMPTY_SIDE, file, row.number)
        if side.count(" ") >= max_words or len(side) > LETTERS_PER_WORD * max_words:
            return Fault(TOO_LONG, file, row.number)
    return Fault(DUPLICATE, row.files[0], row.number) if pair in seen else pair


def _why_useless(read: PairFile) -> str:
    files = " + ".join(read.files)
    if not read.lines:
        return f"{files} is empty; pairs are read from {FORMATS}"
    return f"{files}: none of {read.lines:,} lines gives a pair ({read.reasons()}); pairs are read from {FORMATS}"
