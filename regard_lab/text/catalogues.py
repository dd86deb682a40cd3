"""Message catalogues of gettext in their compiled form (`.mo`): the messages of a program with their translations."""

import struct
from collections.abc import Iterator
from pathlib import Path

from regard.errors import DataError
from regard_lab.text.lines import open_bytes
from regard_lab.text.tables import TextRow

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
        way = f"msgunfmt {path} | msgconv -t UTF-8 | msgfmt - -o {path.with_suffix('.utf8.mo')}"
        raise DataError(f"{path} is not in UTF-8; convert it by: {way}") from None
    for number, sides in enumerate(entries, start=1):
        yield TextRow(number, (str(path), str(path)), sides)
