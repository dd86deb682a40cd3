"""Catalogues of gettext (`.po`, compiled `.mo`): the messages of programs."""

import re
import shlex
import struct
from codecs import BOM_UTF8
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.errors import DataError
from regard.packages import needed
from regard_lab.text.lines import open_bytes, plain_path, unpacking
from regard_lab.text.plurals import UNTRANSLATED, PluralCounts, PluralForms, plural_sides
from regard_lab.text.tables import Fault, TextRow

CATALOGUES = (".mo", ".po")
MAGIC = 0x950412DE  # of a catalogue, in the byte order of the machine that made it


def read_catalogue(content: bytes) -> tuple[str, list[tuple[str, str]]]:
    """The header of a compiled catalogue, and source and translation of each entry as they are stored.

    A context stands before a source and ends with U+0004; NULs divide msgid from msgid_plural, and one plural form from
    the next. The file begins with seven numbers; then follow two tables, of sources and of translations, each with
    length and place.

    Source: the GNU gettext manual, section The Format of GNU MO Files.
    """
    order = "<" if content[:4] == struct.pack("<I", MAGIC) else ">"
    _, _, count, sources, targets = struct.unpack(f"{order}5I", content[:20])
    tables = [
        struct.unpack_from(f"{order}{2 * count}I", content, start) for start in (sources, targets)
    ]
    header = ""
    entries = []
    for entry in range(count):
        texts = []
        for table in tables:
            length, start = table[2 * entry : 2 * entry + 2]
            if start + length > len(content):
                raise struct.error("a text ends outside of the file")
            texts.append(content[start : start + length].decode())
        source, translation = texts
        if source:
            entries.append((source, translation))
        else:
            header = translation
    return header, entries


def catalogue_pairs(
    source: str, translation: str, forms: PluralForms | None
) -> list[tuple[str, str] | str]:
    r"""The pairs of an entry of a compiled catalogue, or why there is none.

    >>> catalogue_pairs("menu\4%d file\0%d files", "%d Datei\0%d Dateien", PluralForms())
    [('%d file', '%d Datei'), ('%d files', '%d Dateien')]
    """
    if not translation:
        return [UNTRANSLATED]
    sources = source.rpartition("\4")[2].split("\0", 1)
    if len(sources) == 1:
        return [(sources[0], translation)]
    return plural_sides((sources[0], sources[1]), dict(enumerate(translation.split("\0"))), forms)


def catalogue_rows(path: Path, counts: PluralCounts) -> Iterator[TextRow | Fault]:
    """The entries of a `.mo` file, numbered from 1; `counts` gets the plurals.

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
        header, entries = read_catalogue(content)
    except struct.error:
        raise DataError(
            f"{path} is damaged: its tables lead outside the file; copy or compile it again"
        ) from None
    except UnicodeDecodeError:
        plain = plain_path(path)
        way = f"{unpacking(path)}msgunfmt {plain} | msgconv -t UTF-8 | msgfmt - -o {plain.with_suffix('.utf8.mo')}"
        raise DataError(f"{path} is not in UTF-8; convert it by: {way}") from None
    forms = PluralForms.of_header(header)
    for number, entry in enumerate(entries, start=1):
        yield from _rows_of(path, number, catalogue_pairs(*entry, forms), forms, counts)


def _rows_of(
    path: Path,
    number: int,
    pairs: list[tuple[str, str] | str],
    forms: PluralForms | None,
    counts: PluralCounts,
) -> Iterator[TextRow | Fault]:
    """The rows of a message: a message with plural forms has two."""
    for place, sides in enumerate(pairs):
        if isinstance(sides, str):
            yield Fault(sides, str(path), number)
            continue
        counts.plurals += place == 1
        counts.assumed = forms is not None and forms.assumed
        yield TextRow(number, (str(path), str(path)), sides)


FUZZY = "fuzzy (a guess that nobody has confirmed)"
OBSOLETE = "obsolete"
# Line ends to polib; to gettext they are characters like others.
LINE_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# polib also takes strings without an end
PO_LINE = re.compile(r'''#.*|(?:msg[a-z_]+(?:\[\d{1,9}\])?\s*)?"(?:[^"\\]|\\.)*"''')


def compiling(path: Path) -> str:
    """The command line that compiles a `.po`.

    >>> compiling(Path("de.po"))
    'msgfmt de.po -o de.mo'
    """
    plain = plain_path(path)
    return unpacking(path) + shlex.join(["msgfmt", str(plain), "-o", str(plain.with_suffix(".mo"))])


def po_rows(path: Path, counts: PluralCounts) -> Iterator[TextRow | Fault]:
    """The messages of a `.po` file; those that msgfmt leaves out are faults, and `counts` gets the plurals.

    Raises:
        DataError: a file that polib cannot read, or in another encoding than it says.
        MissingPackageError: polib is not installed.
    """
    with open_bytes(path) as opened:
        content = opened.read().removeprefix(BOM_UTF8)
    with needed("polib", f"reading {path}", "files", otherwise=f"compile it by: {compiling(path)}"):
        polib = import_module("polib")
    messages = _messages(polib, path, content)
    header = "".join(f"{name}: {value}\n" for name, value in messages.metadata.items())
    forms = PluralForms.of_header(header)
    for message in messages:
        yield from _rows_of(path, message.linenum, _po_pairs(message, forms), forms, counts)


def _po_pairs(message: Any, forms: PluralForms | None) -> list[tuple[str, str] | str]:
    """The pairs of a message of a `.po`, or why there is none."""
    if message.obsolete:
        return [OBSOLETE]
    if message.fuzzy:
        return [FUZZY]
    if message.msgid_plural:
        return plural_sides((message.msgid, message.msgid_plural), message.msgstr_plural, forms)
    return [(message.msgid, message.msgstr) if message.msgstr else UNTRANSLATED]


def _messages(polib: ModuleType, path: Path, content: bytes) -> Any:
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
