"""Files of messages: their texts are translated, and the translations written into a copy of the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from regard.arguments import count_of
from regard.errors import ArgumentError, OccupiedError
from regard.storage.files import replace_file
from regard_lab.decoding.translator import Translator
from regard_lab.text.exchange import Document
from regard_lab.text.lines import PathLike, is_packed, suffix_of
from regard_lab.text.placeholders import CODES, differences

TEXTS_AT_ONCE = 64
LINE_BREAKS = re.compile(r"([^\S\n]*\n\s*)")
EDGES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
SUFFIXES_OF_OUTPUT = {".pot": ".po", ".xlf": ".xliff"}  # of one format

UNPROTECTED = "with inline codes, and this model was trained without --protect"
PLACEHOLDERS = "the translation did not have each placeholder once"
ENDLESS = "the translation reached the limit of its length"
WITHOUT_WORDS = "the translation was empty"


@dataclass
class DocumentReport:
    """How many messages of a file were translated, and how many stayed as they were, for each reason."""

    source: str
    out: str
    translated: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    waiting: int = 0  # that were not reached before an interruption

    def lines(self) -> list[str]:
        """Sentences about it.

        >>> DocumentReport("a.po", "b.po", 7, Counter({"without text": 2})).lines()
        ['b.po has a.po with 7 new translations', '  2 messages stay as they were: without text']
        """
        translations = count_of(self.translated, "new translations", ",")
        lines = [f"{self.out} has {self.source} with {translations}"]
        for reason, count in self.left_out.most_common():
            verb = "stays as it was" if count == 1 else "stay as they were"
            lines.append(f"  {count_of(count, 'messages', ',')} {verb}: {reason}")
        return lines


def without_codes(text: str) -> str:
    """A text of a file without the characters that stand for its inline codes."""
    return "".join(character for character in text if ord(character) not in CODES)


def check_output(source: PathLike, out: PathLike) -> None:
    """Refuse an output that is not a new file of the same format.

    Raises:
        ArgumentError: the same file, or another suffix.
        OccupiedError: it is there already.
    """
    source = Path(source)
    out = Path(out)
    if out.exists() and source.exists() and out.samefile(source):
        raise ArgumentError(
            f"--out {out} is the file that is read, and would be lost if anything failed; name another file"
        )
    if is_packed(out):
        raise ArgumentError(
            f"--out {out} would be packed, and files are written plain; leave out the .gz"
        )
    suffixes = [SUFFIXES_OF_OUTPUT.get(suffix, suffix) for suffix in map(suffix_of, (source, out))]
    if suffixes[0] != suffixes[1]:
        raise ArgumentError(
            f"--out {out} has another suffix than {source}, and the format stays the same; name it {suffixes[0]}"
        )
    if out.exists():
        raise OccupiedError(f"{out} is there already; name another file, or remove it")
    if not out.absolute().parent.is_dir():
        raise ArgumentError(f"--out {out} cannot be written: its folder does not exist; make it")


def translate_document(
    translator: Translator,
    document: Document,
    out: PathLike,
    *,
    progress: Callable[[int], None] | None = None,
    **search: Any,
) -> DocumentReport:
    """Translate the texts of a file line by line, and write a copy of it with the translations.

    Spaces around lines stay as they are. A text whose translation lacks a placeholder of its source, or has no end, is
    left as it was; so is one with inline codes if the model does not protect them. After an interruption the copy has
    what was done, and `waiting` counts the rest.

    Args:
        translator: the model with its tokeniser.
        document: a file, as `open_document` returns it.
        out: the copy, a new file of the same format.
        progress: called with the number of texts done since the last call.
        search: as for `Translator.n_best`.

    Raises:
        ArgumentError, OccupiedError: as for `check_output`.
        DataError: the encoding of the file has no such letters.
        InterruptedDocument: a KeyboardInterrupt, with the report of what was written.
    """
    check_output(document.path, out)
    report = DocumentReport(str(document.path), str(out), left_out=Counter(document.left_out))
    results: list[TextResult] = []
    done: dict[str, str | None] = {}
    is_interrupted = False
    try:
        for first in range(0, len(document.texts), TEXTS_AT_ONCE):
            texts = document.texts[first : first + TEXTS_AT_ONCE]
            results += _translated_texts(translator, texts, done, search)
            if progress is not None:
                progress(len(texts))
    except KeyboardInterrupt:
        is_interrupted = True

    translations: list[str | None] = [None] * len(document.texts)
    for place, result in enumerate(results):
        translations[place] = result.translation
    for message in document.messages:
        of_message = [results[place] for place in message if place < len(results)]
        reasons = [result.reason for result in of_message if result.reason is not None]
        if reasons:
            report.left_out[reasons[0]] += 1
        elif len(of_message) < len(message):
            report.waiting += 1
        else:
            report.translated += 1
    if is_interrupted and not report.translated:
        raise InterruptedDocument(report)
    replace_file(Path(out), document.written(translations))
    if is_interrupted:
        raise InterruptedDocument(report)
    return report


class InterruptedDocument(KeyboardInterrupt):
    """The translation of a file was interrupted; `report` says what was written."""

    def __init__(self, report: DocumentReport) -> None:
        super().__init__(report.lines()[0])
        self.report = report


class TextResult(NamedTuple):
    """The translation of a text, or why it has none."""

    translation: str | None
    reason: str | None = None


def _translated_texts(
    translator: Translator, texts: list[str], done: dict[str, str | None], search: dict[str, Any]
) -> list[TextResult]:
    """Each text's translation, or why it has none; `done` has the lines so far, and gets more."""
    protects = translator.tokeniser.protects
    wanted: dict[str, None] = {}
    refused: list[bool] = []
    for text in texts:
        is_refused = not protects and any(ord(character) in CODES for character in text)
        refused.append(is_refused)
        if not is_refused:
            wanted |= {line: None for line in _lines_of(text) if line not in done}
    lines = list(wanted)
    for best in translator.n_best(lines, **search) if lines else []:
        translation = best[0]
        done[translation.source] = None
        if translation.finished:
            done[translation.source] = translation.text.strip()

    results = []
    for text, is_refused in zip(texts, refused, strict=True):
        if is_refused:
            results.append(TextResult(None, UNPROTECTED))
        else:
            results.append(_put_together(text, done))
    return results


def _lines_of(text: str) -> list[str]:
    """The lines of a text that are to be translated, without spaces around them."""
    lines = [line.strip() for line in LINE_BREAKS.split(text)]
    return [line for line in lines if line]


def _put_together(text: str, done: dict[str, str | None]) -> TextResult:
    """The translation of a text from those of its lines, or why there is none."""
    parts = []
    for line in LINE_BREAKS.split(text):
        edges = EDGES.fullmatch(line)
        assert edges is not None
        before, words, after = edges.groups()
        if not words:
            parts.append(line)
            continue
        translation = done[words]
        if translation is None:
            return TextResult(None, ENDLESS)
        if not translation:
            return TextResult(None, WITHOUT_WORDS)
        parts += [before, translation, after]
    translated = "".join(parts)
    if differences(text, translated):
        return TextResult(None, PLACEHOLDERS)
    return TextResult(translated)
