"""Lines of text in, translations out: a tokeniser, an engine that searches, and placeholders that are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from regard.arguments import a_list, count_of, whole
from regard.errors import ArgumentError, CheckpointError
from regard_lab.text.source_placeholders import SourcePlaceholders
from regard_lab.text.tokenisers import Tokeniser
from regard_lab.text.vocabularies import END, SPECIALS

TOKENISER_FILE = "tokeniser.json"
EXPORT_FILE = "export.json"  # what was exported, its positions, and the hash of each file
ENGINES = ("ctranslate2", "onnx")


class Engine(Protocol):
    """What searches: CTranslate2 or onnxruntime, with the model of a folder."""

    most_positions: int | None  # ids of a text at most; None for no limit

    def search(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        banned: Sequence[int],
        *,
        beam: int,
        most_ids: int,
    ) -> list[list[int]]:
        """The best target ids of each source, which begin with its prefix; END is left out.

        Args:
            sources: ids that end with END.
            prefixes: the ids that each target begins with.
            banned: ids that are not written after the prefixes.
            beam: hypotheses that are kept; 1 for greedy search.
            most_ids: of a target, its prefix included.
        """
        ...


@dataclass
class _Row:
    """A line that is being translated; `prefix` has the ids of its translation that no longer change."""

    index: int
    source: list[int]  # ends with END
    placeholders: SourcePlaceholders
    most_ids: int
    prefix: list[int] = field(default_factory=list)
    is_done: bool = False

    def banned(self, reserved: range) -> tuple[int, ...]:
        """The ids that may not come after the prefix."""
        once = self.placeholders.once
        allowed = once.allowed(self.prefix)
        return (*once.banned, *(i for i in reserved if i not in allowed))

    def advance(self, ids: Sequence[int], reserved: range) -> None:
        """Keep what a search wrote, up to its first new placeholder: after that one, other ids are allowed."""
        start = len(self.prefix)
        missing = len(set(self.placeholders.once.ids).difference(self.prefix))
        # Placeholders that are missing need places before the limit.
        ids = list(ids[: max(start, self.most_ids - missing)])
        for place, identifier in enumerate(ids[start:], start=start):
            if identifier in reserved:
                self.prefix = ids[: place + 1]
                self.is_done = len(self.prefix) >= self.most_ids
                return

        # The text would end here; a placeholder that is missing is added.
        self.prefix = ids
        allowed = self.placeholders.once.allowed(ids)
        if allowed:
            self.prefix.append(allowed[0])
        self.is_done = not allowed or len(self.prefix) >= self.most_ids


class FolderTranslator:
    """Translates lines; placeholders such as {0} and %s stay as they are if the tokeniser has ids for them.

    Args:
        tokeniser: the tokeniser of the folder.
        engine: what searches.
    """

    def __init__(self, tokeniser: Tokeniser, engine: Engine) -> None:
        self.tokeniser = tokeniser
        self.engine = engine
        self._reserved = range(len(SPECIALS), tokeniser.vocabulary.first_ordinary)

    def translate(self, lines: Sequence[str], beam: int = 1) -> list[str]:
        """The translation of each line, in order.

        If the tokeniser has ids for placeholders, a translation has each placeholder of its source once. After each of
        them a new search continues the text and may write those that are left. Where the text would end, the missing
        ones are added. A line of placeholders without words stays as it is, and an empty line stays empty.

        Args:
            lines: texts without line ends.
            beam: hypotheses that are kept; 1 takes the most likely id each time.

        Raises:
            ArgumentError: something else than texts, or a text that is longer than the model's positions.
        """
        lines = a_list("lines", lines, str, "a list of strings, one for each source")
        beam = whole("beam", beam, 1)
        texts = [""] * len(lines)
        rows = []
        for index, line in enumerate(lines):
            row = self._row(index, line)
            if row is None:
                continue
            if row.is_done:
                texts[index] = self._text(row)
            else:
                rows.append(row)

        for row in self._searched(rows, beam):
            texts[row.index] = self._text(row)
        return texts

    def _row(self, index: int, line: str) -> _Row | None:
        """A line before its search, or complete if it needs none; None for a line without ids."""
        source = self.tokeniser.encode(line)
        if not source:
            return None
        most_positions = self.engine.most_positions
        if most_positions is not None and len(source) >= most_positions:
            raise ArgumentError(
                f"the text {line[:40]!r}... has {count_of(len(source), 'ids', ',')}, and the model has positions for "
                f"{most_positions:,}, the end included; divide it"
            )
        most_ids = 2 * (len(source) + 1) + 16
        if most_positions is not None:
            most_ids = min(most_ids, most_positions)
        placeholders = SourcePlaceholders.of(self.tokeniser, line)
        row = _Row(index, [*source, END], placeholders, most_ids)
        has_words = any(map(str.isalnum, self.tokeniser.reads(line)))
        if placeholders.originals and not has_words:
            row.prefix = source
            row.is_done = True
        return row

    def _searched(self, rows: list[_Row], beam: int) -> list[_Row]:
        """The rows when their texts are complete."""
        alive = rows
        while alive:
            groups: dict[tuple[int, ...], list[_Row]] = {}
            for row in alive:
                groups.setdefault(row.banned(self._reserved), []).append(row)
            for banned, group in groups.items():
                written = self.engine.search(
                    [row.source for row in group],
                    [row.prefix for row in group],
                    banned,
                    beam=beam,
                    most_ids=max(row.most_ids for row in group),
                )
                for row, ids in zip(group, written, strict=True):
                    row.advance(ids, self._reserved)
            alive = [row for row in alive if not row.is_done]
        return rows

    def _text(self, row: _Row) -> str:
        return self.tokeniser.decode(row.prefix, row.placeholders.originals)


def load(folder: str | Path, threads: int = 1) -> FolderTranslator:
    """The translator of an exported folder.

    Args:
        folder: the folder that `regard export` wrote.
        threads: how many compute a translation.

    Raises:
        ArgumentError: no such folder.
        CheckpointError: a file of it was changed or is missing.
    """
    folder = Path(folder)
    threads = whole("threads", threads, 1)
    record = _checked_record(folder)
    tokeniser = Tokeniser.from_json((folder / TOKENISER_FILE).read_text(encoding="utf-8"))
    most_positions = record["most_positions"]
    if record["to"] == "onnx":
        from regard_lab.conversion.standalone.onnx_engine import OnnxEngine

        return FolderTranslator(tokeniser, OnnxEngine(folder, most_positions, threads))
    from regard_lab.conversion.standalone.ctranslate2_engine import CTranslate2Engine

    return FolderTranslator(
        tokeniser, CTranslate2Engine(folder, tokeniser, most_positions, threads)
    )


def _checked_record(folder: Path) -> dict[str, Any]:
    """What `regard export` recorded about a folder, whose files have the hashes that it names."""
    path = folder / EXPORT_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        hashes = dict(record["files"])
        most_positions = record["most_positions"]
        is_record = record["to"] in ENGINES and isinstance(most_positions, int | None)
    except FileNotFoundError:
        raise ArgumentError(
            f"{folder} has no {EXPORT_FILE}; name a folder that regard export wrote"
        ) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; copy the folder again") from None
    if not is_record or not {TOKENISER_FILE} <= hashes.keys():
        raise CheckpointError(f"{path} is not one of regard export; copy the folder again")
    for name, expected in hashes.items():
        file = folder / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise CheckpointError(
                f"{file} is missing, or does not match its SHA-256 in {EXPORT_FILE}; copy the folder again"
            )
    return record
