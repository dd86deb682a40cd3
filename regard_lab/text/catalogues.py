"""Message catalogues of gettext (`.po`, and compiled `.mo`): the messages of a program with their translations."""

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
from regard_lab.text.tables import Fault, TextRow

CATALOGUES = (".mo", ".po")
MAGIC = 0x950412DE  # of a catalogue, in the byte order of the machine that made it


def read_catalogue(content: bytes) -> list[tuple[str, str]]:
    """Source and translation of each entry of a compiled catalogue; of plurals the first form, contexts cut off.

    The header is seven numbers; then follow two tables, of sources and of translations, each with length and place.

    Raises:
        UnicodeDecodeError: a catalogue that is not UTF-8.

    Source: the GNU gettext manual, section The Format of GNU MO Files.
    """
    order = "<" if content[:4] == struct.pack("<I", MAGIC) else ">"
    _, _, count, sources, targets = struct.unpack(f"{order}5I", content[:20])
    tables = [struct.unpack_from(f"{order}{2 * count}I", content, start) for start in (sources, targets)]
    entries = []
    for entry in range(count):
        source, target = (
            content[table[2 * entry + 1] :][: table[2 * entry]].split(b"\0")[0].decode() for table in tables
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
        raise DataError(f"{path} is no compiled catalogue of gettext; a .po is compiled by: msgfmt FILE.po -o FILE.mo")
    try:
        entries = read_catalogue(content)
    except struct.error:
        raise DataError(f"{path} is damaged: its tables lead outside the file; copy or compile it again") from None
    except UnicodeDecodeError:
        plain = plain_path(path)
        way = f"{unpacking(path)}msgunfmt {plain} | msgconv -t UTF-8 | msgfmt - -o {plain.with_suffix('.utf8.mo')}"
        raise DataError(f"{path} is not in UTF-8; convert it by: {way}") from None
    for number, sides in enumerate(entries, start=1):
        yield TextRow(number, (str(path), str(path)), sides)


FUZZY, UNTRANSLATED, OBSOLETE = "fuzzy (a guess that nobody has confirmed)", "without translation", "obsolete"
LINE_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # to polib; to gettext they are characters like others
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
        yield TextRow(entry.linenum, (file, file), sides) if reason is None else Fault(reason, file, entry.linenum)


def _messages(polib: ModuleType, path: Path, content: bytes) -> list[Any]:
    encoding = polib.detect_encoding(content)  # that of its header
    try:
        text = LINE_ENDS.sub(" ", content.decode(encoding))
    except (UnicodeError, LookupError):
        raise DataError(f"{path} is not in {encoding}, as its header says, or as gettext assumes without one") from None
    lines = enumerate(map(str.strip, text.split("\n")), start=1)
    bad = next((number for number, line in lines if line and not PO_LINE.fullmatch(line)), None)
    try:
        messages = polib.pofile(text + "\n")
    except OSError as error:
        bad = bad or re.sub(r".*line (\d+).*", r"\1", str(error), flags=re.DOTALL)
    if bad is not None:
        raise DataError(f"{path}, line {bad} does not read as a .po; msgfmt says more: {compiling(path)}")
    return messages
