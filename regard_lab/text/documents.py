"""Readers of documents, of texts one a line, and of texts with labels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regard.arguments import absent, count_of
from regard.errors import DataError, NotFoundError
from regard_lab.text.lines import LONE_SURROGATES, PathLike, numbered_lines, suffix_of, tidy
from regard_lab.text.pairs import Pair, read_pairs
from regard_lab.text.tables import DELIMITERS, LABEL_AND_TEXT, table_of

MANY = 20  # documents
MOST_CLASSES = 1000
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
    read = read_pairs(path, max_words=LONGEST_TEXT, columns=LABEL_AND_TEXT)
    labelled = LabelledFile(
        tuple(Pair(tidy(pair.target), pair.source) for pair in read.pairs), read.report()
    )
    if not least <= len(labels := labelled.labels) <= MOST_CLASSES:
        raise DataError(
            f"{path} has {count_of(len(labels), 'labels', ',')}, such as {labels[0][:40]!r}; give {least} to "
            f"{MOST_CLASSES:,} labels, in the column before the text"
        )
    return labelled


def split_tail(documents: Sequence[str], share: float, most: int) -> tuple[list[str], list[str]]:
    r"""Split documents into a first and a held-out part: a share of the documents, or of the characters of each.

    Of 20 documents or more, the last ones are held out; of fewer, the end of each, at most `most` characters in all. A
    held-out end begins at the start of a line if there is one in its first half.

    >>> split_tail(["one\ntwo\nthree\n"], 0.5, 100)
    (['one\ntwo\n'], ['three\n'])
    """
    if len(documents) >= MANY:
        count = max(1, round(share * len(documents)))
        return list(documents[:-count]), list(documents[-count:])
    share = min(share, most / max(1, sum(map(len, documents))))
    heads = []
    tails = []
    for text in documents:
        cut = len(text) - round(share * len(text))
        line = text.find("\n", cut, cut + (len(text) - cut) // 2) + 1
        heads.append(text[: line or cut])
        tails.append(text[line or cut :])
    return [head for head in heads if head], [tail for tail in tails if tail]


def _read(paths: Sequence[PathLike], by_line: bool) -> TextFile:
    texts: list[str] = []
    faults: list[tuple[str, int]] = []
    for path in paths:
        is_table = suffix_of(path) == ".jsonl"
        kept: list[str] = []
        for number, line in numbered_lines(path):
            text = _text_of(line) if is_table and line is not None else line
            if text is None or "\0" in text:
                faults.append((str(path), number))
            else:
                kept.append(text)
        parts = kept if is_table or by_line else ["".join(f"{line}\n" for line in kept)]
        parts = [text for text in parts if text.strip()]
        if not parts:
            raise DataError(
                f'{path} has no text; give UTF-8 text, or a .jsonl of objects with a string "text"'
            )
        texts += parts
    return TextFile(
        tuple(map(str, paths)), tuple(texts), len(faults), faults[0] if faults else None
    )


def _text_of(line: str) -> str | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = content.get("text") if isinstance(content, dict) else None
    return text if isinstance(text, str) and not LONE_SURROGATES.search(text) else None
