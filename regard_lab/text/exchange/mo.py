"""Compiled catalogues of gettext (`.mo`) whose translations are replaced."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from regard.errors import DataError
from regard_lab.text.catalogues import MAGIC, read_compiled
from regard_lab.text.exchange.document import EMPTY, HAS_TRANSLATION, Document, WritingOptions
from regard_lab.text.exchange.plural_messages import PluralPlan
from regard_lab.text.plurals import NO_FORMULA, PluralForms

HEADER_BYTES = 28


class MoDocument(Document):
    """A compiled catalogue; see `Document`. It has no flags, so translations count as confirmed.

    Raises:
        DataError: no compiled catalogue, a damaged one, or one in another encoding than UTF-8.
    """

    def __init__(self, path: Path, content: bytes, options: WritingOptions) -> None:
        super().__init__(path)
        self._order = "<" if content[:4] == struct.pack("<I", MAGIC) else ">"
        header, self._entries = read_compiled(path, content)
        self._header = header
        forms = PluralForms.of_header(header)
        self._planned: dict[int, PluralPlan] = {}
        for number, (source, translation) in enumerate(self._entries):
            _, _, message = source.rpartition("\4")
            singular, has_plural, plural = message.partition("\0")
            if translation.strip("\0") and not options.again:
                self.left_out[HAS_TRANSLATION] += 1
            elif not singular.strip():
                self.left_out[EMPTY] += 1
            elif has_plural and forms is None:
                self.left_out[NO_FORMULA] += 1
            else:
                plan = PluralPlan.of(singular, plural if has_plural else None, forms, self.texts)
                self._planned[number] = plan
                self.messages.append(plan.places)
        self.remarks.append("a .mo has no flags, so its translations count as confirmed")

    def written(self, translations: Sequence[str | None]) -> bytes:
        entries = list(self._entries)
        for number, plan in self._planned.items():
            forms = plan.forms(translations)
            if forms is not None:
                entries[number] = (entries[number][0], "\0".join(forms))
        if self._header:
            entries.append(("", self._header))
        return compiled(entries, self._order)


def compiled(entries: Sequence[tuple[str, str]], order: str = "<") -> bytes:
    """A compiled catalogue without a hash table; sources are sorted by their bytes, as gettext searches them.

    Source: the GNU gettext manual, section The Format of GNU MO Files.
    """
    pairs = sorted((source.encode(), translation.encode()) for source, translation in entries)
    sources_at = HEADER_BYTES
    translations_at = sources_at + 8 * len(pairs)
    place = translations_at + 8 * len(pairs)
    tables = []
    texts = []
    for side in (0, 1):
        for pair in pairs:
            tables.append(struct.pack(f"{order}2I", len(pair[side]), place))
            texts.append(pair[side] + b"\0")
            place += len(texts[-1])
    numbers = (MAGIC, 0, len(pairs), sources_at, translations_at, 0, place)
    head = struct.pack(f"{order}7I", *numbers)
    content = head + b"".join(tables) + b"".join(texts)
    if len(content) >= 2**32:
        raise DataError("a compiled catalogue has at most 4 GiB; divide it")
    return content
