"""Sentence pairs of message catalogues: what is read, and how they are split."""

import gettext
import gzip
import io
import itertools
import re
from itertools import pairwise

import pytest
from text.test_catalogues import catalogue

from benchmarks import program_messages as messages
from regard.errors import DataError
from regard_lab.text import Pair, read_pairs
from regard_lab.text.catalogues import catalogue_pairs, read_catalogue
from regard_lab.text.plurals import PluralForms

ENTRIES = {
    "": "Content-Type: text/plain; charset=UTF-8\n",
    "open %s": "%s öffnen",
    "menu\4Close it": "Schließen",
    "%d file\0%d files": "%d Datei\0%d Dateien",
}


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_catalogue_is_read_in_both_byte_orders_as_gettext_reads_it(order):
    content = catalogue(ENTRIES, order)
    header, entries = read_catalogue(content)
    assert {"": header} | dict(entries) == ENTRIES
    targets = {}
    for entry in entries:
        targets.update(catalogue_pairs(*entry, PluralForms()))
    peer = gettext.GNUTranslations(io.BytesIO(content))
    assert peer.gettext("open %s") == targets["open %s"]
    assert peer.pgettext("menu", "Close it") == targets["Close it"]
    assert peer.ngettext("%d file", "%d files", 1) == targets["%d file"]
    assert peer.ngettext("%d file", "%d files", 7) == targets["%d files"]


def test_a_catalogue_is_read_as_pairs_and_another_file_names_the_way_out(tmp_path):
    (tmp_path / "tool.mo").write_bytes(catalogue({**ENTRIES, "two\nlines": "zwei\nZeilen"}))
    pairs = {pair.source: pair.target for pair in read_pairs(tmp_path / "tool.mo").pairs}
    expected = {
        "open %s": "%s öffnen",
        "Close it": "Schließen",
        "%d file": "%d Datei",
        "%d files": "%d Dateien",
        "two lines": "zwei Zeilen",
    }
    assert pairs == expected
    (tmp_path / "text.mo").write_text("msgid x")
    with pytest.raises(DataError, match=r"is no compiled catalogue of gettext; .* msgfmt"):
        read_pairs(tmp_path / "text.mo")
    for cut in (8, 20, 30):
        (tmp_path / "cut.mo").write_bytes(catalogue(ENTRIES)[:cut])
        with pytest.raises(DataError, match="is damaged"):
            read_pairs(tmp_path / "cut.mo")
    (tmp_path / "old.mo").write_bytes(catalogue(ENTRIES).replace("ö".encode(), b"\xf6 "))
    with pytest.raises(DataError, match=r"is not in UTF-8; convert it by: msgunfmt"):
        read_pairs(tmp_path / "old.mo")


MESSAGES = """msgid ""
msgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"

msgctxt "menu"
msgid "open %s"
msgstr "öffne "
"%s"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#, fuzzy
msgid "guess"
msgstr "geraten"

msgid "none"
msgstr ""

#~ msgid "old"
#~ msgstr "alt"
"""


def test_a_po_is_read_as_msgfmt_would_compile_it_and_says_what_it_left_out(tmp_path):
    path = tmp_path / "tool.po"
    path.write_text(MESSAGES, encoding="latin1")
    read = read_pairs(path)
    assert read.pairs == [
        Pair("open %s", "öffne %s"),
        Pair("%d file", "%d Datei"),
        Pair("%d files", "%d Dateien"),
    ]
    assert read.report() == (
        f"{path}: kept 3 of 6 messages; dropped 3 (1 fuzzy (a guess that nobody has confirmed), first at {path} line "
        f"15; 1 without translation, first at {path} line 18; 1 obsolete, first at {path} line 21); 1 of the messages "
        f"is a plural: msgid_plural with the form that most numbers from 2 to 100 have; the header has no "
        f"Plural-Forms, so the first of two forms is that of n = 1"
    )
    (tmp_path / "packed.po.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_pairs(tmp_path / "packed.po.gz").pairs == read.pairs
    for content, said in (
        (
            MESSAGES.replace('msgid "none"', "msgid none"),
            r"tool\.po, line 18 does not read as a \.po; .* msgfmt \S*tool\.po -o",
        ),
        (MESSAGES.replace("ISO-8859-1", "UTF-8"), "is not in UTF-8"),
        ('msgid "none"\nmsgstr ""\n', "none of 1 message gives a pair"),
        ("", "is empty"),
    ):
        path.write_text(content, encoding="latin1")
        with pytest.raises(DataError, match=said):
            read_pairs(path)


MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US"/><body>
<tu><tuv xml:lang="EN-us"><seg>Open &amp; <bpt i="1">&lt;b></bpt><hi>close</hi><ept i="1">&lt;/b></ept></seg></tuv>
<tuv xml:lang="de"><seg>Öffnen und
schließen</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>alone</seg></tuv></tu>
</body></tmx>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin1"])
@pytest.mark.parametrize("name", ["m.tmx", "m.tmx:en,de", "m.tmx.gz:en-US,DE"])
def test_a_translation_memory_is_read_in_two_languages_without_its_formatting(
    name, encoding, tmp_path
):
    content = MEMORY.replace("UTF-8", {"latin1": "ISO-8859-1"}.get(encoding, encoding)).encode(
        encoding
    )
    file = tmp_path / name.partition(":")[0]
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    read = read_pairs(tmp_path / name)
    assert read.pairs == [Pair("Open & close", "Öffnen und schließen")]
    assert re.search(
        r"kept 1 of 2 units; dropped 1 \(1 without 'en\S*' and 'de', first at .* line 7\); 'en",
        read.report(),
    )


BOMB = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">{}]>'.format(
    "".join(f'<!ENTITY {y} "{9 * f"&{x};"}">' for x, y in pairwise("abcdefgh"))
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            ('"tmx14.dtd"', '"tmx14.dtd" [<!ENTITY x SYSTEM "file:///etc/hostname">]'),
            "has the entity 'x'",
        ),
        (("alone", "&x;"), "has the entity 'x'"),
        (('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', BOMB), "has the entity 'a'"),
        (
            ("<tmx", "<xliff"),
            "begins with <xliff>; a translation memory begins with <tmx><header>; name an XLIFF .xlf",
        ),
        (("</body></tmx>", ""), r"does not read as XML \(no element found: line 9"),
        (
            ('srclang="en-US"', 'srclang="*all*"'),
            r"the source '\*all\*'; name source and target, as in .*m\.tmx:en-us,de",
        ),
        (("<tu><tuv", "<tuv"), "does not read as XML"),
        (("m.tmx", "m.tmx:de,fr"), r"no unit of .* has 'de' and 'fr'; it has \['de', 'en-us'\]"),
        (
            ('"UTF-8"', '"nope"'),
            r"does not read as XML \(unknown encoding: nope\); export it again in UTF-8",
        ),
        (
            ('"UTF-8"', '"shift_jis"'),
            r"does not read as XML \(multi-byte encodings are not supported\)",
        ),
        ((MEMORY, "open\töffnen\n"), "does not read as XML"),
        ((MEMORY, "\x1f\x8b"), "let its name end in .gz"),
    ],
)
def test_another_kind_of_memory_names_its_way_out_and_no_entity_is_expanded(
    changed, said, tmp_path
):
    content = MEMORY.replace(*changed)
    (tmp_path / "m.tmx").write_bytes(content.encode("latin1" if "\x8b" in content else "utf-8"))
    with pytest.raises(DataError, match=said):
        read_pairs(tmp_path / "m.tmx".replace(*changed))


def test_messages_are_long_or_short_and_lists_of_names_are_left_out(tmp_path):
    (tmp_path / "iso_639.mo").write_bytes(catalogue({"German": "Deutsch"}))
    lines = {
        "two\nlines": "zwei\nZeilen",
        "--all   show all": "--all   alles",
        "one line": "eine Zeile",
        "%d": "%d",
    }
    (tmp_path / "tool.mo").write_bytes(catalogue(lines))
    read = {(pair.source, pair.target, pair.short) for pair in messages.read_messages(tmp_path)}
    long = {("two lines", "zwei Zeilen", False), ("--all show all", "--all alles", False)}
    assert read == {("one line", "eine Zeile", True), *long}


def test_no_program_and_no_message_of_the_test_is_in_the_training():
    made = []
    for program, number in itertools.product(("tar", "sed", "git", "apt"), range(9)):
        made.append(messages.ProgramMessage(program, f"{program} says {number}", "x", number < 5))
    made += [
        messages.ProgramMessage("tar", "Out of Memory.", "x", True),
        messages.ProgramMessage("git", "out of memory", "x", True),
    ]
    parts = messages.split_by_program(made)
    programs = {}
    for part, chosen in parts.items():
        programs[part] = {message.program for message in chosen}
    assert programs == {
        "train": {"git"},
        "valid": {"apt"},
        "short": {"tar", "sed"},
        "long": {"tar", "sed"},
    }
    assert {len(parts["short"]), len(parts["long"])} == {10, 8}
    assert "Out of Memory." not in {message.source for message in parts["short"]}  # git says it too
