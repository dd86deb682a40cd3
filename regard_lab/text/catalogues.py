"""Catalogues of gettext (`.po`, compiled `.mo`): the messages of programs."""

import struct
from collections.abc import Iterator
from pathlib import Path

from regard.errors import DataError
from regard_lab.text.lines import open_bytes, plain_path, unpacking
from regard_lab.text.plurals import UNTRANSLATED, PluralCounts, PluralForms, plural_sides
from regard_lab.text.po_files import PoMessage, decoded_catalogue, po_messages
from regard_lab.text.tables import LineFault, TextRow

CATALOGUES = (".mo", ".po")
MAGIC = 0x950412DE  # of a catalogue, in the byte order of the machine that made it

FUZZY = "fuzzy (a guess that nobody has confirmed)"
OBSOLETE = "obsolete"

SourceAndTranslation = tuple[str, str]  # a source and its translation


def read_catalogue(content: bytes) -> tuple[str, list[SourceAndTranslation]]:
    """The header of a compiled catalogue, and source and translation of each entry as they are stored.

    A context stands before a source and ends with U+0004; NULs divide msgid from msgid_plural, and one plural form from
    the next. The file begins with seven numbers; then follow two tables, of sources and of translations, each with
    length and place.

    Source: the GNU gettext manual, section The Format of GNU MO Files.
    """
    order = "<" if content[:4] == struct.pack("<I", MAGIC) else ">"
    _, _, count, sources_at, translations_at = struct.unpack(f"{order}5I", content[:20])
    table = struct.Struct(f"{order}{2 * count}I")
    sources = table.unpack_from(content, sources_at)
    translations = table.unpack_from(content, translations_at)

    header = ""
    entries = []
    for number in range(0, 2 * count, 2):
        source = _stored_text(content, *sources[number : number + 2])
        translation = _stored_text(content, *translations[number : number + 2])
        if source:
            entries.append((source, translation))
        else:
            header = translation
    return header, entries


def _stored_text(content: bytes, length: int, start: int) -> str:
    if start + length > len(content):
        raise struct.error("a text ends outside of the file")
    return content[start : start + length].decode()


def catalogue_pairs(
    source: str, translation: str, forms: PluralForms | None
) -> list[SourceAndTranslation | str]:
    r"""The pairs of an entry of a compiled catalogue, or why there is none.

    >>> catalogue_pairs("menu\4%d file\0%d files", "%d Datei\0%d Dateien", PluralForms())
    [('%d file', '%d Datei'), ('%d files', '%d Dateien')]
    """
    if not translation:
        return [UNTRANSLATED]

    _, _, message = source.rpartition("\4")
    singular, has_plural, plural = message.partition("\0")
    if not has_plural:
        return [(singular, translation)]
    translations = dict(enumerate(translation.split("\0")))
    return plural_sides((singular, plural), translations, forms)


def catalogue_rows(path: Path, counts: PluralCounts) -> Iterator[TextRow | LineFault]:
    """The entries of a `.mo` file, numbered from 1; `counts` gets the plurals.

    Raises:
        DataError: another kind of file, or a damaged one.
    """
    with open_bytes(path) as file:
        content = file.read()
    header, entries = read_compiled(path, content)
    forms = PluralForms.of_header(header)
    for number, (source, translation) in enumerate(entries, start=1):
        pairs = catalogue_pairs(source, translation, forms)
        yield from _rows_of(path, number, pairs, forms, counts)


def read_compiled(path: Path, content: bytes) -> tuple[str, list[SourceAndTranslation]]:
    """The content of a file as `read_catalogue` returns it.

    Raises:
        DataError: another kind of file, or a damaged one.
    """
    if content[:4] not in (struct.pack("<I", MAGIC), struct.pack(">I", MAGIC)):
        raise DataError(
            f"{path} is no compiled catalogue of gettext; a .po is compiled by: msgfmt FILE.po -o FILE.mo"
        )
    try:
        return read_catalogue(content)
    except struct.error:
        raise DataError(
            f"{path} is damaged: its tables lead outside the file; copy or compile it again"
        ) from None
    except UnicodeDecodeError:
        plain = plain_path(path)
        converted = plain.with_suffix(".utf8.mo")
        way = f"{unpacking(path)}msgunfmt {plain} | msgconv -t UTF-8 | msgfmt - -o {converted}"
        raise DataError(f"{path} is not in UTF-8; convert it by: {way}") from None


def _rows_of(
    path: Path,
    number: int,
    pairs: list[SourceAndTranslation | str],
    forms: PluralForms | None,
    counts: PluralCounts,
) -> Iterator[TextRow | LineFault]:
    """The rows of a message: a message with plural forms has two, of one thing and of several."""
    file = str(path)
    for form, sides in enumerate(pairs):
        if isinstance(sides, str):
            yield LineFault(sides, file, number)
            continue
        counts.plurals += form == 1
        counts.assumed = forms is not None and forms.assumed
        yield TextRow(number, (file, file), sides)


def po_rows(path: Path, counts: PluralCounts) -> Iterator[TextRow | LineFault]:
    """The messages of a `.po` file; those that msgfmt leaves out are faults, and `counts` gets the plurals.

    Raises:
        DataError: no catalogue, or in another encoding than it says.
    """
    with open_bytes(path) as file:
        text, _ = decoded_catalogue(path, file.read())
    messages = po_messages(path, text)
    header = next((message for message in messages if message.is_header), None)
    forms = PluralForms.of_header("" if header is None else header.translation)
    for message in messages:
        if message is not header:
            yield from _rows_of(path, message.line, _po_pairs(message, forms), forms, counts)


def _po_pairs(message: PoMessage, forms: PluralForms | None) -> list[SourceAndTranslation | str]:
    """The pairs of a message of a `.po`, or why there is none."""
    if message.is_obsolete:
        return [OBSOLETE]
    if message.is_fuzzy:
        return [FUZZY]
    source = message.source or ""
    if message.plural is not None:
        return plural_sides((source, message.plural), message.forms, forms)
    if not message.translation:
        return [UNTRANSLATED]
    return [(source, message.translation)]
