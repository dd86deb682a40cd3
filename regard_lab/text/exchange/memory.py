"""Translation memories (`.tmx`) to complete: units that lack a language get a translation into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import ArgumentError, DataError
from regard_lab.text.exchange.document import (
    EMPTY,
    HAS_TRANSLATION,
    UNREADABLE,
    Document,
    Splice,
    WritingOptions,
    spliced,
)
from regard_lab.text.exchange.markup import (
    CodedText,
    Coding,
    Element,
    Markup,
    coded_text,
    opening_tag,
    quoted,
)
from regard_lab.text.memories import is_language, language_code

CODES_OF_MEMORIES = Coding(
    paired=frozenset(("hi", "g", "mrk", "pc")),
    halves={"bpt": "ept", "bx": "ex", "sc": "ec"},
    matching=(("i", "i"), ("rid", "rid"), ("id", "id"), ("id", "startRef")),
)
NO_SOURCE = "without the source language {!r}"
ANY_LANGUAGE = "*all*"


@dataclass
class _PlannedVariant:
    unit: Element
    variant: Element  # of the source
    target: Element | None  # an empty one of the language of translations
    coded: CodedText


class MemoryDocument(Document):
    """A translation memory; see `Document`. If a unit has several varieties of the source, the first is translated.

    Args:
        source: the language to translate from; None for that of the header.

    Raises:
        DataError: no translation memory, or a damaged one.
        ArgumentError: no language to translate to, or none to translate from.
    """

    def __init__(
        self, path: Path, content: bytes, options: WritingOptions, source: str | None = None
    ) -> None:
        super().__init__(path)
        self._options = options
        self._markup = Markup.read(path, content)
        root = self._markup.root
        if root.name != "tmx":
            raise DataError(
                f"{path} begins with <{root.name}>; a translation memory begins with <tmx><header>"
            )
        if options.language is None:
            raise ArgumentError(
                f"{path} is completed in one language; give it by --to, such as --to de"
            )
        header = (root.of("header") or [root])[0]
        source = source or header.attributes.get("srclang", ANY_LANGUAGE)
        self._planned: list[_PlannedVariant] = []
        for unit in root.all_of("tu"):
            reason = self._plan(unit, unit.attributes.get("srclang", source))
            if reason is not None:
                self.left_out[reason] += 1

    def _plan(self, unit: Element, source: str) -> str | None:
        """Plan the translation of a unit, or return why it has none."""
        if source.lower() == ANY_LANGUAGE:
            raise ArgumentError(
                f"{self.path}, line {unit.line}: units may have any source language; name it by --from, such as --from "
                f"en"
            )
        variants = unit.of("tuv")
        sources = [variant for variant in variants if _is_variety(variant, source)]
        if not sources:
            return NO_SOURCE.format(source)
        variant = sources[0]
        segments = variant.of("seg")
        if not segments or not self._markup.inside(segments[0]).strip():
            return EMPTY
        target = None
        for other in variants:
            if other is not variant and _is_variety(other, self._options.language or ""):
                if any(self._markup.inside(segment).strip() for segment in other.of("seg")):
                    return HAS_TRANSLATION
                target = other
        coded = coded_text(self._markup, segments[0], CODES_OF_MEMORIES)
        if coded is None:
            return UNREADABLE
        self.messages.append((len(self.texts),))
        self.texts.append(coded.text)
        self._planned.append(_PlannedVariant(unit, variant, target, coded))
        return None

    def written(self, translations: Sequence[str | None]) -> bytes:
        splices = []
        for planned, translation in zip(self._planned, translations, strict=True):
            if translation is not None:
                splices.append(self._splice(planned, planned.coded.written(translation)))
        return self._markup.encoded(spliced(self._markup.text, splices))

    def _splice(self, planned: _PlannedVariant, content: str) -> Splice:
        text = self._markup.text
        variant = planned.variant
        segment = variant.of("seg")[0]
        written = f"<{segment.tag}>{content}</{segment.tag}>"
        if planned.target is not None:
            return self._filled(planned.target, written)
        name = "lang" if "lang" in variant.attributes else "xml:lang"
        language = quoted(self._options.language or "")
        # The spaces of the source, so that lines and their indentation are the same.
        last = planned.unit.of("tuv")[-1]
        before_variant = self._markup.space_before(variant)
        before_segment = text[variant.inner_start : segment.start]
        inner_space = before_segment if not before_segment.strip() else ""
        after_segment = text[segment.stop : variant.inner_stop]
        outer_space = after_segment if not after_segment.strip() else ""
        added = (
            f"{before_variant}<{variant.tag} {name}={language}>{inner_space}{written}"
            f"{outer_space}</{variant.tag}>"
        )
        return Splice(last.stop, last.stop, added)

    def _filled(self, target: Element, written: str) -> Splice:
        """What writes a segment into an empty variant, which may have an empty segment or none."""
        for empty in target.of("seg"):
            return Splice(empty.start, empty.stop, written)
        if not target.is_empty_tag:
            return Splice(target.inner_stop, target.inner_stop, written)
        start_tag = opening_tag(self._markup.text[target.start : target.stop])
        return Splice(target.start, target.stop, f"{start_tag}{written}</{target.tag}>")


def _is_variety(variant: Element, language: str) -> bool:
    """Whether a variant is in a language or in a variety of it: "en-GB" is "en"."""
    attributes = variant.attributes
    code = language_code(attributes.get("xml:lang", attributes.get("lang", "")))
    return is_language(code, language_code(language))
