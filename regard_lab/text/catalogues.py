"""Catalogues of gettext (`.po`, compiled `.mo`), the messages of programs, and translation memories (`.tmx`)."""

import re
import shlex
import struct
from codecs import BOM_UTF8
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.parsers.expat import ExpatError, ParserCreate

from regard.errors import DataError, NotFoundError
from regard.packages import needed
from regard_lab.text.lines import open_bytes, plain_path, refuse_packed, unpacking
from regard_lab.text.tables import Fault, PairTable, TextRow

CATALOGUES = (".mo", ".po")
MEMORY = ".tmx"
MAGIC = 0x950412DE  # of a catalogue, in the byte order of the machine that made it


def read_catalogue(content: bytes) -> list[tuple[str, str]]:
    """Source and translation of each entry of a compiled catalogue; of plurals the first form, contexts cut off.

    The header is seven numbers; then follow two tables, of sources and of translations, each with length and place.
    Source: the GNU gettext manual, section The Format of GNU MO Files.
    """
    order = "<" if content[:4] == struct.pack("<I", MAGIC) else ">"
    _, _, count, sources, targets = struct.unpack(f"{order}5I", content[:20])
    tables = [
        struct.unpack_from(f"{order}{2 * count}I", content, start) for start in (sources, targets)
    ]
    entries = []
    for entry in range(count):
        source, target = (
            content[table[2 * entry + 1] :][: table[2 * entry]].split(b"\0")[0].decode()
            for table in tables
        )
        if source and target:
            entries.append((source.rpartition("\4")[2], target))
    return entries


def catalogue_rows(path: Path) -> Iterator[TextRow]:
    """The entries of a `.mo` file, numbered from 1.

    Raises:
        DataError: another kind of file, or a damaged one.
    """
    with open_bytes(path) as file:
        content = file.read()
    if content[:4] not in (struct.pack("<I", MAGIC), struct.pack(">I", MAGIC)):
        raise DataError(
            f"{path} is no compiled catalogue of gettext; a .po is compiled by: msgfmt FILE.po -o FILE.mo"
        )
    try:
        entries = read_catalogue(content)
    except struct.error:
        raise DataError(
            f"{path} is damaged: its tables lead outside the file; copy or compile it again"
        ) from None
    except UnicodeDecodeError:
        plain = plain_path(path)
        way = f"{unpacking(path)}msgunfmt {plain} | msgconv -t UTF-8 | msgfmt - -o {plain.with_suffix('.utf8.mo')}"
        raise DataError(f"{path} is not in UTF-8; convert it by: {way}") from None
    for number, sides in enumerate(entries, start=1):
        yield TextRow(number, (str(path), str(path)), sides)


FUZZY = "fuzzy (a guess that nobody has confirmed)"
UNTRANSLATED = "without translation"
OBSOLETE = "obsolete"
LINE_ENDS = re.compile(
    "[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]"
)  # to polib; to gettext they are characters like others
# polib also takes strings without an end
PO_LINE = re.compile(r'''#.*|(?:msg[a-z_]+(?:\[\d+\])?\s*)?"(?:[^"\\]|\\.)*"''')


def compiling(path: Path) -> str:
    """The command line that compiles a `.po`.

    >>> compiling(Path("de.po"))
    'msgfmt de.po -o de.mo'
    """
    plain = plain_path(path)
    return unpacking(path) + shlex.join(["msgfmt", str(plain), "-o", str(plain.with_suffix(".mo"))])


def po_rows(path: Path) -> Iterator[TextRow | Fault]:
    """The messages of a `.po` file, of plurals the first form; those that msgfmt leaves out are faults.

    Raises:
        DataError: a file that polib cannot read, or in another encoding than it says.
        MissingPackageError: polib is not installed.
    """
    with open_bytes(path) as opened:
        content = opened.read().removeprefix(BOM_UTF8)
    with needed("polib", f"reading {path}", "files", otherwise=f"compile it by: {compiling(path)}"):
        polib = import_module("polib")
    file = str(path)
    for entry in _messages(polib, path, content):
        translation = entry.msgstr_plural.get(0, "") if entry.msgid_plural else entry.msgstr
        faults = {OBSOLETE: entry.obsolete, FUZZY: entry.fuzzy, UNTRANSLATED: not translation}
        reason = next((reason for reason, holds in faults.items() if holds), None)
        sides = (entry.msgid, translation)
        yield (
            TextRow(entry.linenum, (file, file), sides)
            if reason is None
            else Fault(reason, file, entry.linenum)
        )


def _messages(polib: ModuleType, path: Path, content: bytes) -> list[Any]:
    encoding = polib.detect_encoding(content)  # that of its header
    try:
        text = LINE_ENDS.sub(" ", content.decode(encoding))
    except (UnicodeError, LookupError):
        raise DataError(
            f"{path} is not in {encoding}, as its header says, or as gettext assumes without one"
        ) from None
    lines = enumerate(map(str.strip, text.split("\n")), start=1)
    bad = next((number for number, line in lines if line and not PO_LINE.fullmatch(line)), None)
    try:
        messages = polib.pofile(text + "\n")
    except OSError as error:
        bad = bad or re.sub(r".*line (\d+).*", r"\1", str(error), flags=re.DOTALL)
    if bad is not None:
        raise DataError(
            f"{path}, line {bad} does not read as a .po; msgfmt says more: {compiling(path)}"
        )
    return messages


CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))  # hold formatting, not text


class Memory:
    """The units of a translation memory, each with its line and its texts by language; `source` is that of the header.

    Entities may grow without limit or name other files, so all are refused.

    Source: TMX 1.4b Specification (LISA/OSCAR 2005).
    """

    def __init__(self, path: Path) -> None:
        self.path, self.source, self._units = path, "", list[tuple[int, dict[str, str]]]()
        self._language, self._codes, self._text = (
            "",
            0,
            None,
        )  # of the open segment: language, open CODES, text
        self._parser = ParserCreate()
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._begin, self._end
        self._parser.CharacterDataHandler = self._add
        self._parser.EntityDeclHandler = self._parser.SkippedEntityHandler = self._refuse

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        with open_bytes(self.path) as file:
            refuse_packed(self.path, file.peek(4))
            chunk = b" "
            while chunk:
                chunk = file.read(1 << 16)
                try:
                    self._parser.Parse(chunk, not chunk)
                except DataError:
                    raise
                except (
                    ExpatError,
                    LookupError,
                    ValueError,
                ) as error:  # the last two: an encoding that is not read
                    way = "export it again in UTF-8, or give it the suffix of its format"
                    raise DataError(f"{self.path} does not read as XML ({error}); {way}") from None
                ready, self._units = self._units[: -1 if chunk else None], self._units[-1:]
                yield from ready

    def _refuse(self, name: str, *_: Any) -> None:
        raise DataError(
            f"{self.path} has the entity {name!r}; write its text instead, since no entity is expanded"
        )

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        if not self.source and name not in ("tmx", "header"):
            way = "; xliff2po and po2tmx of translate-toolkit convert it" if name == "xliff" else ""
            raise DataError(
                f"{self.path} begins with <{name}>; a translation memory begins with <tmx><header>{way}"
            )
        if name == "header":
            self.source = attributes.get("srclang", "*all*").lower()
        elif name == "tu":
            self._units.append((self._parser.CurrentLineNumber, {}))
        elif name == "tuv":
            self._language = attributes.get("xml:lang", attributes.get("lang", "")).lower()
        elif name == "seg":
            self._text = ""
        self._codes += name in CODES

    def _add(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text += text

    def _end(self, name: str) -> None:
        self._codes -= name in CODES
        if name == "seg" and self._text is not None and self._units:
            self._units[-1][1].setdefault(self._language, self._text)
            self._text = None


def memory_languages(table: PairTable) -> tuple[str, str]:
    """The languages of source and target: those of the path, or that of the header and the only other one.

    Raises:
        DataError: another kind of file, or a damaged one.
        NotFoundError: the path names no languages, and the first unit has others than the header's source and one more.
    """
    if table.names is not None:
        return table.names[0].strip().lower(), table.names[1].strip().lower()
    memory = Memory(table.path)
    languages = list(next(iter(memory), (0, {}))[1])
    others = [one for one in languages if not _is(one, memory.source)]
    if len(languages) == 2 and len(others) == 1:
        return memory.source, others[0]
    raise NotFoundError(
        f"the first unit of {table.path} has the languages {languages}, and the header names the source "
        f"{memory.source!r}; name source and target, as in {table.path}:{','.join([*languages, 'en', 'de'][:2])}"
    )


def memory_rows(table: PairTable, languages: tuple[str, str]) -> Iterator[TextRow | Fault]:
    """The units of a `.tmx` file in two languages; "en" is also read where a unit has "en-gb"."""
    file = str(table.path)
    seen = set[str]()
    read = False
    for number, unit in Memory(table.path):
        seen.update(unit)
        sides = [
            next((unit[one] for one in sorted(unit) if _is(one, wanted)), None)
            for wanted in languages
        ]
        if sides[0] is None or sides[1] is None:
            yield Fault(f"without {languages[0]!r} and {languages[1]!r}", file, number)
        else:
            read = True
            yield TextRow(number, (file, file), (sides[0], sides[1]))
    if seen and not read:
        raise NotFoundError(
            f"no unit of {file} has {languages[0]!r} and {languages[1]!r}; it has {sorted(seen)}"
        )


def _is(language: str, wanted: str) -> bool:
    """Whether a language is the wanted one, or a variety of it: "en-gb" is "en"."""
    return language == wanted or language.startswith(f"{wanted}-")
