"""Readers of documents, of texts one a line, and of texts with labels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regard.arguments import absent, count_of
from regard.errors import DataError, NotFoundError
from regard_lab.text.cleaning import LONE_SURROGATES, tidy
from regard_lab.text.lines import PathLike, numbered_lines, suffix_of
from regard_lab.text.pairs import Pair, read_pairs
from regard_lab.text.tables import DELIMITERS, LABEL_AND_TEXT, table_of

MANY_DOCUMENTS = 20
MOST_LABELS = 1000
LONGEST_TEXT = 1_000_000  # words of a text with a label


@dataclass(frozen=True)
class TextFile:
    """Texts read from files, with the number of dropped lines: invalid UTF-8, or JSON objects without a text."""

    files: tuple[str, ...]
    texts: tuple[str, ...]
    dropped: int = 0
    first_dropped: tuple[str, int] | None = None

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))

    def report(self) -> str:
        """One sentence on how much was read and how many lines were dropped.

        >>> TextFile(("a.txt",), ("A bird sang.",), 1, ("a.txt", 7)).report()
        'a.txt: 12 characters in 1 text; dropped 1 damaged line, first at a.txt line 7'
        """
        texts = count_of(len(self.texts), "texts", ",")
        summary = f"{' + '.join(self.files)}: {self.characters:,} characters in {texts}"
        if self.first_dropped is None:
            return summary
        file, line = self.first_dropped
        return f"{summary}; dropped {count_of(self.dropped, 'damaged lines', ',')}, first at {file} line {line}"


def read_documents(*paths: PathLike) -> TextFile:
    r"""Read documents: each file is one, or each line of a `.jsonl` file, by its string "text".

    Line ends become "\n" and a byte order mark is dropped. Lines that are not valid UTF-8 are dropped and counted.

    Raises:
        DataError: a file that is missing, empty, binary or in another encoding.
    """
    return _read(paths, by_line=False)


def read_texts(*paths: PathLike) -> TextFile:
    """Read distinct short texts: each line that is not empty, or each "text" of a `.jsonl` file, after `tidy`.

    Raises:
        DataError: as for `read_documents`.
    """
    read = _read(paths, by_line=True)
    return replace(read, texts=tuple(dict.fromkeys(map(tidy, read.texts))))


@dataclass(frozen=True)
class LabelledFile:
    """Texts (`Pair.source`) with their labels (`Pair.target`), and a report of what was read."""

    pairs: tuple[Pair, ...]
    report: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The distinct labels, sorted."""
        return tuple(sorted({pair.target for pair in self.pairs}))


def read_labelled(path: PathLike, least: int = 2) -> LabelledFile:
    """Read texts with labels from a `.tsv` file: label TAB text, one a line; or from a `.csv` with a header.

    A header names the columns label and text, or the path does, as in "reviews.csv:stars,review".

    Raises:
        DataError: a file that cannot be read, or that has fewer than `least` or more than 1000 labels.
    """
    if table_of(Path(path)).suffix not in DELIMITERS:
        if not Path(path).exists():
            raise NotFoundError(absent(path))
        raise NotFoundError(
            f"{path} has an unknown suffix; labels are read from a .tsv (label TAB text) or a .csv with a header "
            f"(label,text)"
        )

    # A pair that was read is a label and its text, in this order.
    read = read_pairs(path, max_words=LONGEST_TEXT, columns=LABEL_AND_TEXT)
    pairs = tuple(Pair(tidy(pair.target), pair.source) for pair in read.pairs)
    labelled = LabelledFile(pairs, read.report())

    labels = labelled.labels
    if not least <= len(labels) <= MOST_LABELS:
        raise DataError(
            f"{path} has {count_of(len(labels), 'labels', ',')}, such as {labels[0][:40]!r}; give {least} to "
            f"{MOST_LABELS:,} labels, in the column before the text"
        )
    return labelled


def split_tail(documents: Sequence[str], share: float, most: int) -> tuple[list[str], list[str]]:
    r"""Split documents into a first and a held-out part: a share of the documents, or of the characters of each.

    Of 20 documents or more, the last ones are held out; of fewer, the end of each, at most `most` characters in all. A
    held-out end begins at the start of a line if there is one in its first half.

    >>> split_tail(["one\ntwo\nthree\n"], 0.5, 100)
    (['one\ntwo\n'], ['three\n'])
    """
    if len(documents) >= MANY_DOCUMENTS:
        count = max(1, round(share * len(documents)))
        return list(documents[:-count]), list(documents[-count:])

    characters = sum(map(len, documents))
    share = min(share, most / max(1, characters))
    heads = []
    tails = []
    for text in documents:
        cut = len(text) - round(share * len(text))
        middle_of_tail = cut + (len(text) - cut) // 2
        line_end = text.find("\n", cut, middle_of_tail)
        if line_end >= 0:
            cut = line_end + 1
        heads.append(text[:cut])
        tails.append(text[cut:])
    return [head for head in heads if head], [tail for tail in tails if tail]


def _read(paths: Sequence[PathLike], by_line: bool) -> TextFile:
    texts: list[str] = []
    damaged: list[tuple[str, int]] = []
    for path in paths:
        is_table = suffix_of(path) == ".jsonl"
        parts: list[str] = []
        for number, line in numbered_lines(path):
            text = _text_of_record(line) if is_table else line
            if text is None or "\0" in text:
                damaged.append((str(path), number))
            else:
                parts.append(text)
        if not is_table and not by_line:
            parts = ["".join(f"{line}\n" for line in parts)]

        with_text = [text for text in parts if text.strip()]
        if not with_text:
            raise DataError(
                f'{path} has no text; give UTF-8 text, or a .jsonl of objects with a string "text"'
            )
        texts += with_text
    files = tuple(map(str, paths))
    first_dropped = damaged[0] if damaged else None
    return TextFile(files, tuple(texts), len(damaged), first_dropped)


def _text_of_record(line: str | None) -> str | None:
    """The string "text" of a JSON object; None for a line without one, or one that is not valid UTF-8."""
    if line is None:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return None
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or LONE_SURROGATES.search(text):
        return None
    return text
