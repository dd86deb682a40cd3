"""XLIFF 1.2 and 2 (`.xlf`, `.xliff`): units of a file to translate, with their translations and the states of these.

Sources: XLIFF Version 1.2 (OASIS 2008), sections 2.2 and 2.4; XLIFF Version 2.1 (OASIS 2018), sections 4.2 and 4.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import ArgumentError, DataError
from regard_lab.text.exchange.document import (
    CONFIRMED,
    EMPTY,
    HAS_TRANSLATION,
    NOT_TO_TRANSLATE,
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
    with_attributes,
)
from regard_lab.text.memories import language_code

XLIFF = (".xlf", ".xliff")
CODES_OF_1 = Coding(
    paired=frozenset(("g", "mrk")),
    halves={"bpt": "ept", "bx": "ex"},
    matching=(("rid", "rid"), ("id", "id")),
)
CODES_OF_2 = Coding(
    paired=frozenset(("pc", "mrk")),
    halves={"sc": "ec", "sm": "em"},
    matching=(("id", "startRef"),),
)
# States of translations that a person still has to make.
OPEN_STATES = ("new", "needs-translation", "initial")
FINAL_STATES = ("final", "signed-off", "reviewed")
MACHINE = {"state": "needs-review-translation", "state-qualifier": "mt-suggestion"}
TRUSTED = {"state": "translated", "state-qualifier": "mt-suggestion"}


@dataclass
class XliffUnit:
    """A source with its translation, if it has one; each of its `segments` is translated by itself."""

    element: Element  # whose attributes say whether it is translated: trans-unit, or segment
    source: Element
    target: Element | None
    whole: Element  # what the translation is made of: the source, or its division into segments
    segments: list[Element]


@dataclass
class _Part:
    """A segment to translate, with the place of its text among all texts of the document."""

    element: Element
    coded: CodedText
    number: int


@dataclass
class _PlannedUnit:
    unit: XliffUnit
    parts: list[_Part] = field(default_factory=list)


class XliffDocument(Document):
    """A file of XLIFF; see `Document`.

    A unit is translated if it has no translation, an empty one, or one whose state says that a person has not begun.

    Raises:
        DataError: no XLIFF of version 1 or 2, or a damaged file.
        ArgumentError: a language that is not that of the file, or none where version 2 needs one.
    """

    def __init__(self, path: Path, content: bytes, options: WritingOptions) -> None:
        super().__init__(path)
        self._options = options
        self._markup = Markup.read(path, content)
        root = self._markup.root
        self._is_version_1 = version_of(self._markup).startswith("1.")
        self._check_languages()

        self._planned: list[_PlannedUnit] = []
        for unit in units_of(root, self._is_version_1):
            reason = self._reason_against(unit)
            if reason is None:
                reason = self._plan(unit)
            if reason is not None:
                self.left_out[reason] += 1

    def _check_languages(self) -> None:
        """Find the elements that lack the language of translations, into which the language of --to is written.

        Raises:
            ArgumentError: the file names another language than --to, or neither names one and version 2 needs it.
        """
        root = self._markup.root
        name = "target-language" if self._is_version_1 else "trgLang"
        self._language_holders: list[tuple[Element, str]] = []
        for holder in root.of("file") if self._is_version_1 else [root]:
            language = holder.attributes.get(name)
            wanted = self._options.language
            if language and wanted and language_code(language) != language_code(wanted):
                raise ArgumentError(
                    f"{self.path}, line {holder.line} has the {name} {language!r}, and --to is {wanted!r}; leave --to "
                    f"out, or name another file"
                )
            if not language and wanted:
                self._language_holders.append((holder, name))
            elif not language and not self._is_version_1:
                raise ArgumentError(
                    f"{self.path} names no language of its translations (trgLang), which version 2 needs; give it by "
                    f"--to, such as --to de"
                )

    def _reason_against(self, unit: XliffUnit) -> str | None:
        """Why a unit is not translated; None if it is."""
        if unit.element.inherited("translate") == "no":
            return NOT_TO_TRANSLATE
        if not _has_text(self._markup, unit.source):
            return EMPTY
        if unit.target is None or not _has_text(self._markup, unit.target):
            return None
        holder = unit.target if self._is_version_1 else unit.element
        state = holder.attributes.get("state", "")
        if unit.element.attributes.get("approved") == "yes" or state in FINAL_STATES:
            return CONFIRMED
        if state in OPEN_STATES or self._options.again:
            return None
        return HAS_TRANSLATION

    def _plan(self, unit: XliffUnit) -> str | None:
        planned = _PlannedUnit(unit)
        coding = CODES_OF_1 if self._is_version_1 else CODES_OF_2
        for segment in unit.segments:
            coded = coded_text(self._markup, segment, coding)
            if coded is None:
                return UNREADABLE
            planned.parts.append(_Part(segment, coded, len(self.texts) + len(planned.parts)))
        self.texts += [part.coded.text for part in planned.parts]
        self._planned.append(planned)
        self.messages.append(tuple(part.number for part in planned.parts))
        return None

    def written(self, translations: Sequence[str | None]) -> bytes:
        splices = []
        is_any_written = False
        for planned in self._planned:
            parts = [(part, translations[part.number]) for part in planned.parts]
            if all(translation is not None for _, translation in parts):
                splices += self._splices(planned.unit, [(p, t) for p, t in parts if t is not None])
                is_any_written = True
        if is_any_written:
            for holder, name in self._language_holders:
                tag = with_attributes(self._markup, holder, {name: self._options.language or ""})
                splices.append(Splice(holder.start, holder.inner_start, tag))
        return self._markup.encoded(spliced(self._markup.text, splices))

    def _splices(self, unit: XliffUnit, parts: Sequence[tuple[_Part, str]]) -> list[Splice]:
        """What writes a translation: its element, and in version 2 the state of its segment."""
        text = self._markup.text
        inside = []
        for part, translation in parts:
            shift = unit.whole.inner_start
            start = part.element.inner_start - shift
            stop = part.element.inner_stop - shift
            inside.append(Splice(start, stop, part.coded.written(translation)))
        content = spliced(self._markup.inside(unit.whole), inside)

        state = TRUSTED if self._options.confirmed else MACHINE
        tag = _renamed(unit.source.tag, "target")
        if unit.target is not None:
            start_tag = text[unit.target.start : unit.target.inner_start]
            if self._is_version_1:
                start_tag = with_attributes(self._markup, unit.target, state)
            start_tag = opening_tag(start_tag)
            tag = unit.target.tag
            written = Splice(unit.target.start, unit.target.stop, f"{start_tag}{content}</{tag}>")
        else:
            attributes = ""
            if self._is_version_1:
                attributes = "".join(f' {name}="{value}"' for name, value in state.items())
            before = self._markup.space_before(unit.source)
            after = max(unit.source.stop, unit.whole.stop)
            written = Splice(after, after, f"{before}<{tag}{attributes}>{content}</{tag}>")
        if self._is_version_1:
            return [written]
        state_of_2 = "reviewed" if self._options.confirmed else "translated"
        tag_of_segment = with_attributes(self._markup, unit.element, {"state": state_of_2})
        return [Splice(unit.element.start, unit.element.inner_start, tag_of_segment), written]


def version_of(markup: Markup) -> str:
    """The version of XLIFF that a file says it has.

    Raises:
        DataError: no XLIFF of version 1 or 2.
    """
    root = markup.root
    version = root.attributes.get("version", "")
    if root.name == "xliff" and version[:2] in ("1.", "2."):
        return version
    found = f"<xliff version={version!r}>" if root.name == "xliff" else f"<{root.name}>"
    raise DataError(f"{markup.path} begins with {found}; XLIFF of version 1.2 or 2 is read")


def units_of(root: Element, is_version_1: bool) -> Iterator[XliffUnit]:
    """The units of XLIFF 1, or the segments of XLIFF 2."""
    for element in root.all_of("trans-unit" if is_version_1 else "segment"):
        sources = element.of("source")
        if not sources:
            continue
        target = (element.of("target") or [None])[0]
        whole = sources[0]
        segments = [whole]
        if is_version_1:
            for divided in element.of("seg-source"):
                marks = [
                    mark for mark in divided.all_of("mrk") if mark.attributes.get("mtype") == "seg"
                ]
                if marks:
                    whole = divided
                    segments = marks
        yield XliffUnit(element, sources[0], target, whole, segments)


def _has_text(markup: Markup, element: Element) -> bool:
    """Whether there is anything to translate: characters that are no spaces, or a code that may hold some."""
    return bool(element.children or markup.inside(element).strip())


def _renamed(tag: str, name: str) -> str:
    """Another name with the prefix of a tag.

    >>> _renamed("x:source", "target"), _renamed("source", "target")
    ('x:target', 'target')
    """
    prefix, colon, _ = tag.rpartition(":")
    return f"{prefix}{colon}{name}"
