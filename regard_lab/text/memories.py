"""Translation memories (`.tmx`): units with the text of a segment in several languages, without its inline codes."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError, ParserCreate

from regard.arguments import count_of, of_kind
from regard.errors import DataError, NotFoundError
from regard_lab.text.cleaning import UNSPACED
from regard_lab.text.lines import open_bytes, refuse_packed
from regard_lab.text.tables import LineFault, PairTable, TextRow

MEMORY = ".tmx"

# Elements inside of a segment; those of XLIFF (x, bx, ex, g, mrk; sc, ec, pc) are found in memories too.
PLACEHOLDERS = frozenset(("ph", "ut", "x"))  # stand for something: a line break, a name, an image
HALVES = frozenset(("bpt", "ept", "it", "bx", "ex", "sc", "ec"))  # begin or end formatting
PAIRED = frozenset(("hi", "g", "mrk", "pc"))  # format the text that they contain

# What the native code of an element says counts more than the name of the element.
FORMATS = re.compile(
    r"(?:</?(?:a|abbr|b|big|cf|code|del|em|font|i|ins|kbd|mark|s|small|span|strong|sub|sup|tt|u|var)\b[^<>]*>\s*)+",
    re.IGNORECASE,
)
BREAKS = re.compile(
    r"</?(?:br|dd|div|dl|dt|h[1-6]|hr|li|ol|p|tab|table|td|th|tr|ul)\b", re.IGNORECASE
)

ENDS = ".,;:!?…%"  # punctuation that has a space behind it, with closing brackets and quotes
BEGINS = "¿¡"

CHUNK_BYTES = 1 << 16  # of a memory that are parsed at once


@dataclass(frozen=True)
class MemoryOptions:
    """How units become pairs.

    Args:
        keep_placeholders: write codes that stand for something as text.
        keep_tags: write codes that format as text, such as <b>.
        all_translations: make a pair of each translation of a unit, instead of the first.
    """

    keep_placeholders: bool = False
    keep_tags: bool = False
    all_translations: bool = False

    def __post_init__(self) -> None:
        for option in fields(self):
            of_kind(option.name, getattr(self, option.name), bool, "True or False")


DEFAULT_OPTIONS = MemoryOptions()


def needs_space(before: str, after: str) -> bool:
    """Whether two letters that a code divides would be glued without a space.

    >>> [needs_space(*pair) for pair in ("wo", ".O", "w.", "(w", " w", "w ", "存或")]
    [True, True, False, False, False, False, False]
    """
    if not before or not after:
        return False
    if UNSPACED.match(before) and UNSPACED.match(after):
        return False

    kind_before = unicodedata.category(before)
    kind_after = unicodedata.category(after)
    ends = kind_before[0] in "LMN" or kind_before in ("Pe", "Pf") or before in ENDS
    begins = kind_after[0] in "LN" or kind_after in ("Ps", "Pi") or after in BEGINS
    return ends and begins


class Segment:
    """The text of a segment, as its elements and characters come: without codes, but for those that are kept.

    A code that stands for something, such as a line break, becomes a space where it alone divides two words. Formatting
    does not, since it may begin inside of a word. `codes` counts the codes that are left out, `placeholders` those of
    them that stand for something, and `inner` the texts inside of codes (`<sub>`), which are left out with them.
    """

    def __init__(self, keep_placeholders: bool, keep_tags: bool = False) -> None:
        self.text = ""
        self.codes = 0
        self.placeholders = 0
        self.inner = 0
        self._keeps_placeholders = keep_placeholders
        self._keeps_tags = keep_tags
        # The open code: its name, how it is written, its native code, the depth of open elements and the texts in it.
        self._name = ""
        self._tag = ""
        self._native = ""
        self._depth = 0
        self._inner = 0
        self._divides = False  # a code that stands for something came after the last character
        self._lengths: list[int] = []  # of the text, where each open element that is no code began

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if self._depth:
            self._depth += 1
            self._inner += name == "sub"
        elif name in PLACEHOLDERS or name in HALVES:
            self._depth = 1
            self._name = name
            self._native = ""
            self._inner = 0
            self._tag = _written(name, attributes)
        elif self._keeps_tags and name in PAIRED:
            self.add(_written(name, attributes).replace("/>", ">"))
            self._lengths.append(len(self.text))
        else:
            self.codes += 1
            self._lengths.append(len(self.text))

    def add(self, characters: str) -> None:
        """Characters come: text, or the native code of an element."""
        if self._depth:
            self._native += characters
        elif characters:
            if self._divides and needs_space(self.text[-1:], characters[0]):
                self.text += " "
            self._divides = False
            self.text += characters

    def end(self, name: str) -> None:
        """An element ends."""
        if not self._depth:
            is_empty = self._lengths.pop() == len(self.text)
            if self._keeps_tags and name in PAIRED:
                self.add(f"</{name}>")
            self._divides |= is_empty and name not in PAIRED
            return
        self._depth -= 1
        if not self._depth:
            self._end_code()

    def _end_code(self) -> None:
        is_placeholder = self._name in PLACEHOLDERS
        if self._keeps_placeholders if is_placeholder else self._keeps_tags:
            self.add(self._native.strip() or self._tag)
            return

        self.codes += 1
        self.inner += self._inner
        if FORMATS.fullmatch(self._native.strip()):
            return
        self.placeholders += is_placeholder
        self._divides |= is_placeholder or BREAKS.search(self._native) is not None


def _written(name: str, attributes: dict[str, str]) -> str:
    """How an empty placeholder is written: by the text that it names, else as a tag with its number."""
    text = attributes.get("equiv-text", "").strip()
    if text:
        return text
    for key in ("x", "id"):
        if key in attributes:
            return f'<{name} {key}="{attributes[key]}"/>'
    return f"<{name}/>"


@dataclass
class MemoryCounts:
    """Counts what is left out of the units that give a pair."""

    codes: int = 0
    placeholders: int = 0
    inner: int = 0
    further: int = 0  # translations of a language after the first in a unit
    is_further_read: bool = False

    def add(self, segments: tuple[Segment, Segment], further: int) -> None:
        """Count a unit by its two segments and the number of others in the same languages."""
        self.codes += sum(segment.codes for segment in segments)
        self.placeholders += sum(segment.placeholders for segment in segments)
        self.inner += sum(segment.inner for segment in segments)
        self.further += further

    def remark(self) -> str | None:
        """A phrase about them; None if nothing was left out.

        >>> MemoryCounts(codes=3, placeholders=2).remark()
        '3 codes left out, of which 2 are placeholders (--keep-placeholders writes them)'
        >>> MemoryCounts(further=1).remark()
        '1 further translation left out'
        """
        parts = []
        if self.codes:
            codes = f"{count_of(self.codes, 'codes', ',')} left out"
            if self.placeholders == 1:
                codes += ", of which 1 is a placeholder (--keep-placeholders writes it)"
            elif self.placeholders:
                are = f"{self.placeholders:,} are placeholders"
                codes += f", of which {are} (--keep-placeholders writes them)"
            parts.append(codes)
        if self.inner:
            parts.append(f"{count_of(self.inner, 'texts', ',')} inside of codes left out")
        if self.further:
            way = "" if self.is_further_read else " left out"
            parts.append(f"{count_of(self.further, 'further translations', ',')}{way}")
        return "; ".join(parts) or None


@dataclass
class Unit:
    """A unit of a memory: its line, and its segments by language."""

    number: int
    segments: dict[str, list[Segment]] = field(default_factory=dict)

    def of_language(self, wanted: str) -> list[Segment]:
        """The segments in a language or a variety of it, those with text first."""
        segments = []
        for language in sorted(self.segments):
            if is_language(language, wanted):
                segments += self.segments[language]
        return sorted(segments, key=lambda segment: not segment.text.strip())


class TranslationMemory:
    """The units of a translation memory; `source` is the language that the header names.

    Entities may grow without limit or name other files, so all are refused.

    Source: TMX 1.4b Specification (LISA/OSCAR 2005).
    """

    def __init__(self, path: Path, options: MemoryOptions = DEFAULT_OPTIONS) -> None:
        self.path = path
        self.source = ""
        self._options = options
        self._units: list[Unit] = []  # those that are not returned yet; the last one may be open
        self._language = ""
        self._segment: Segment | None = None  # the open one
        self._parser = ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add
        self._parser.EntityDeclHandler = self._refuse_entity
        self._parser.SkippedEntityHandler = self._refuse_entity

    def __iter__(self) -> Iterator[Unit]:
        with open_bytes(self.path) as file:
            refuse_packed(self.path, file.peek(4))
            while chunk := file.read(CHUNK_BYTES):
                self._parse(chunk)
                complete = self._units[:-1]
                self._units = self._units[-1:]
                yield from complete
            self._parse(b"", is_last=True)
            yield from self._units

    def _parse(self, chunk: bytes, is_last: bool = False) -> None:
        try:
            self._parser.Parse(chunk, is_last)
        except DataError:  # a refusal of the handlers
            raise
        # LookupError and ValueError: an encoding that is not read.
        except (ExpatError, LookupError, ValueError) as error:
            way = "export it again in UTF-8, or give it the suffix of its format"
            raise DataError(f"{self.path} does not read as XML ({error}); {way}") from None

    def _refuse_entity(self, name: str, *_: Any) -> None:
        raise DataError(
            f"{self.path} has the entity {name!r}; write its text instead, since no entity is expanded"
        )

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        if not self.source and name not in ("tmx", "header"):
            way = "; name an XLIFF .xlf or .xliff" if name == "xliff" else ""
            raise DataError(
                f"{self.path} begins with <{name}>; a translation memory begins with <tmx><header>{way}"
            )
        if self._segment is not None:
            self._segment.begin(name, attributes)
        elif name == "header":
            self.source = language_code(attributes.get("srclang", "*all*"))
        elif name == "tu":
            self._units.append(Unit(self._parser.CurrentLineNumber))
        elif name == "tuv":
            self._language = language_code(attributes.get("xml:lang", attributes.get("lang", "")))
        elif name == "seg":
            self._segment = Segment(self._options.keep_placeholders, self._options.keep_tags)

    def _add(self, characters: str) -> None:
        if self._segment is not None:
            self._segment.add(characters)

    def _end(self, name: str) -> None:
        if self._segment is None:
            return
        if name != "seg":
            self._segment.end(name)
            return
        if self._units:
            self._units[-1].segments.setdefault(self._language, []).append(self._segment)
        self._segment = None


def language_code(text: str) -> str:
    """The code of a language in lower case, with hyphens.

    >>> language_code(" en_GB")
    'en-gb'
    """
    return text.strip().lower().replace("_", "-")


def memory_languages(table: PairTable) -> tuple[str, str]:
    """The languages of source and target: those of the path, or that of the header and the only other one.

    Varieties of a language, such as de-at and de-ch, are one.

    Raises:
        DataError: another kind of file, or a damaged one.
        NotFoundError: the path names no languages, and the first unit has others than the header's source and one more.
    """
    if table.names is not None:
        return language_code(table.names[0]), language_code(table.names[1])
    memory = TranslationMemory(table.path)
    first = next(iter(memory), Unit(0))
    languages = list(first.segments)
    others = [language for language in languages if not is_language(language, memory.source)]
    if 0 < len(others) < len(languages):
        of_varieties = {language.partition("-")[0] for language in others}
        if len(others) == 1:
            return memory.source, others[0]
        if len(of_varieties) == 1:  # such as de, de-at and de-ch
            return memory.source, of_varieties.pop()

    example = ",".join([*languages, "en", "de"][:2])
    raise NotFoundError(
        f"the first unit of {table.path} has the languages {languages}, and the header names the source "
        f"{memory.source!r}; name source and target, as in {table.path}:{example}"
    )


def memory_rows(
    table: PairTable,
    languages: tuple[str, str],
    counts: MemoryCounts,
    options: MemoryOptions = DEFAULT_OPTIONS,
) -> Iterator[TextRow | LineFault]:
    """The units of a `.tmx` file in two languages; "en" is also read where a unit has "en-gb".

    Of several segments in a language the first with text is read, or of the target all with text; `counts` gets the
    others, and codes.
    """
    file = str(table.path)
    source_language, target_language = languages
    seen: set[str] = set()
    has_pair = False
    counts.is_further_read = options.all_translations
    for unit in TranslationMemory(table.path, options):
        seen.update(unit.segments)
        sources = unit.of_language(source_language)
        targets = unit.of_language(target_language)
        if not sources or not targets:
            yield LineFault(
                f"without {source_language!r} and {target_language!r}", file, unit.number
            )
            continue

        has_pair = True
        source = sources[0]
        target = targets[0]
        # One segment is in both lists where a language is a variety of the other.
        distinct = {id(segment) for segment in (*sources, *targets)}
        counts.add((source, target), len(distinct - {id(source), id(target)}))
        yield TextRow(unit.number, (file, file), (source.text, target.text))
        if options.all_translations:
            for further in targets[1:]:
                if further is not source and further.text.strip():
                    yield TextRow(unit.number, (file, file), (source.text, further.text))
    if seen and not has_pair:
        raise NotFoundError(
            f"no unit of {file} has {source_language!r} and {target_language!r}; it has {sorted(seen)}"
        )


def is_language(language: str, wanted: str) -> bool:
    """Whether a language is the wanted one, or a variety of it: "en-gb" is "en"."""
    return language == wanted or language.startswith(f"{wanted}-")
