"""Files of messages: translations are written into XLIFF, TMX and PO, and everything else stays byte for byte."""

import gettext
import re
from xml.etree import ElementTree

import pytest

from regard.errors import ArgumentError, DataError, NotFoundError, RegardError
from regard_lab.text.exchange import WritingOptions, is_document, open_document
from regard_lab.text.exchange.plural_formulas import FORMULAS, plural_formula
from regard_lab.text.plurals import PluralForms

XLIFF_1 = """<?xml version="1.0" encoding="UTF-8"?>
<!-- a comment -->
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:o="urn:other">
\t<file original='a&amp;b.txt' source-language="en" target-language="de" datatype="plaintext">
\t\t<header><note>keep</note></header>
\t\t<body>
\t\t\t<group id="g">
\t\t\t\t<trans-unit id="1" o:extra="1">
\t\t\t\t\t<source>Save &lt;now&gt;<![CDATA[ & later]]></source>
\t\t\t\t\t<note>a note</note>
\t\t\t\t</trans-unit>
\t\t\t\t<trans-unit id="2"><source>A <g id="1">red <g id="2">cat</g></g><x id="3"/>!</source><target/></trans-unit>
\t\t\t\t<trans-unit id="3" translate="no"><source>no</source></trans-unit>
\t\t\t\t<trans-unit id="4"><source>done</source><target>fertig</target></trans-unit>
\t\t\t\t<trans-unit id="5" approved="yes"><source>sure</source><target>sicher</target></trans-unit>
\t\t\t\t<trans-unit id="6"><source>One. Two.</source><seg-source><mrk mtype="seg" mid="1">One.</mrk>
\t\t\t\t <mrk mtype="seg" mid="2">Two.</mrk></seg-source></trans-unit>
\t\t\t\t<trans-unit id="7"><source>old <bpt id="1">[</bpt>x<ept id="1">]</ept></source>
\t\t\t\t\t<target xml:lang="de" state="needs-translation">old</target>
\t\t\t\t\t<alt-trans><source>other</source><target>andere</target></alt-trans></trans-unit>
\t\t\t\t<trans-unit id="8"><source> </source></trans-unit>
\t\t\t</group>
\t\t</body>
\t</file>
</xliff>
"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" xmlns:m="urn:oasis:names:tc:xliff:matches:2.0"
  version="2.1" srcLang="en" trgLang="de">
 <file id="f"><unit id="1"><originalData><data id="d1">&lt;br/></data></originalData>
  <m:matches><m:match ref="#1"><source>x</source><target>y</target></m:match></m:matches>
  <segment id="s1"><source>A <pc id="1">red <pc id="2">cat</pc></pc><ph id="3" dataRef="d1"/></source></segment>
  <ignorable><source> </source></ignorable>
  <segment id="s2" state="initial"><source><sc id="4"/>big<ec startRef="4"/> dog</source><target></target></segment>
  <segment id="s3" state="final"><source>sure</source><target>sicher</target></segment>
 </unit><unit id="2" translate="no"><segment><source>no</source></segment></unit></file>
</xliff>
"""
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
<header srclang="en" adminlang="en" segtype="sentence" datatype="plaintext" o-tmf="x" creationtool="y"
  creationtoolversion="1"/>
<body>
  <tu tuid="1"><prop type="x">keep</prop>
    <tuv xml:lang="en-US">
      <seg>A <bpt i="1">&lt;b&gt;</bpt>red<ept i="1">&lt;/b&gt;</ept> <hi>cat</hi><ph/></seg>
    </tuv>
    <tuv xml:lang="fr"><seg>chat</seg></tuv>
  </tu>
  <tu><tuv xml:lang="en"><seg>done</seg></tuv><tuv xml:lang="de-AT"><seg>fertig</seg></tuv></tu>
  <tu><tuv xml:lang="en"><seg>empty</seg></tuv><tuv xml:lang="de"><seg/></tuv></tu>
  <tu><tuv xml:lang="fr"><seg>sans</seg></tuv></tu>
</body>
</tmx>
"""
PO = r"""# head
msgid ""
msgstr ""
"Language: {language}\n"
"Content-Type: text/plain; charset={charset}\n"

#. extracted
#: a.c:1
msgid "Save"
msgstr ""

#, c-format
#| msgid "%d old"
msgctxt "menu"
msgid "%d file of \"%s\"\n"
msgid_plural ""
"%d files of "
"\"%s\"\n"
msgstr[0] ""
msgstr[1] ""

msgid "done"
msgstr "x"

#, fuzzy, python-format
msgid "guess"
msgstr "y"

#~ msgid "obsolete"
#~ msgstr "z"
"""


def po(language, charset="UTF-8"):
    return PO.replace("{language}", language).replace("{charset}", charset)


KINDS = {
    "utf8.xlf": XLIFF_1.encode(),
    "utf16.xlf": ("\ufeff" + XLIFF_1.replace("UTF-8", "UTF-16")).encode("utf-16-le"),
    "latin.xliff": XLIFF_1.replace("UTF-8", "ISO-8859-1").encode("latin1"),
    "prefixed.xlf": re.sub(r"(</?)(?=[a-z])", r"\1p:", XLIFF_1)
    .replace("xmlns=", "xmlns:p=")
    .encode(),
    "marked.xliff": b"\xef\xbb\xbf" + XLIFF_1.replace("\n", "\r\n").encode(),
    "two.xliff": XLIFF_2.encode(),
    "utf8.tmx": TMX.encode(),
    "utf16.tmx": ("\ufeff" + TMX.replace("UTF-8", "utf-16")).encode("utf-16-be"),
    "utf8.po": po("de").encode(),
    "latin2.po": po("cs", "ISO-8859-2").encode("iso-8859-2"),
    "lines.po": po("ar").replace("\n", "\r\n").encode(),
    "template.pot": po("", "CHARSET").encode(),
}


def opened(tmp_path, name, content=None, **options):
    path = tmp_path / name
    path.write_bytes(KINDS[name] if content is None else content)
    if name.endswith(".tmx"):
        options.setdefault("language", "de")
    return open_document(path, WritingOptions(**options))


def shouted(text):
    """A translation: words in capitals with a letter that Latin-1 and Latin-2 have; codes and conversions stay."""
    return re.sub(r"(?<![%\w])[a-zA-Z]+", lambda word: f"Ü{word[0].upper()}", text)


def all_shouted(document):
    """The bytes of a file in which every text is translated."""
    return document.written([shouted(text) for text in document.texts])


@pytest.mark.parametrize("name", KINDS)
def test_a_file_without_new_translations_is_the_same_bytes(tmp_path, name):
    document = opened(tmp_path, name)
    assert document.texts
    nothing = document.written([None] * len(document.texts))
    assert nothing == KINDS[name]


def canonical(content, with_targets=False):
    """The canonical form of XML, without translations and what says how they came about."""
    root = ElementTree.fromstring(content)
    for parent in root.iter():
        for child in list(parent):
            local = child.tag.rpartition("}")[2]
            is_german = child.get("{http://www.w3.org/XML/1998/namespace}lang") == "de"
            if not with_targets and (local == "target" or (local == "tuv" and is_german)):
                parent.remove(child)
        if parent.tag.endswith("segment"):
            parent.attrib.pop("state", None)
    return ElementTree.canonicalize(ElementTree.tostring(root), strip_text=True)


@pytest.mark.parametrize("name", [name for name in KINDS if name[-3:] in ("xlf", "iff", "tmx")])
def test_everything_but_translations_stays_in_xml(tmp_path, name):
    document = opened(tmp_path, name)
    written = all_shouted(document)
    assert canonical(written) == canonical(KINDS[name])
    assert canonical(written, with_targets=True) != canonical(KINDS[name], with_targets=True)
    again = opened(tmp_path, name, written)
    assert again.texts == []
    assert again.written([]) == written


def elements(content, name):
    root = ElementTree.fromstring(content)
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == name]


def whole_text(element):
    return "".join(element.itertext())


def test_units_of_xliff_1_get_targets_with_states_and_nested_codes(tmp_path):
    document = opened(tmp_path, "utf8.xlf")
    written = all_shouted(document).decode()
    targets = [target for target in elements(written, "target") if "state" in target.attrib]
    assert [whole_text(target) for target in targets] == [
        "ÜSAVE <ÜNOW> & ÜLATER",
        "ÜA ÜRED ÜCAT!",
        "ÜONE.\n\t\t\t\t ÜTWO.",
        "ÜOLD [ÜX]",
    ]
    assert {target.get("state") for target in targets} == {"needs-review-translation"}
    assert '<g id="1">ÜRED <g id="2">ÜCAT</g></g><x id="3"/>' in written
    assert '<mrk mtype="seg" mid="2">ÜTWO.</mrk>' in written
    assert '<target xml:lang="de" state="needs-review-translation"' in written
    assert dict(document.left_out) == {
        'marked by translate="no"': 1,
        "with a translation (--again translates them too)": 1,
        "with a confirmed translation": 1,
        "without text": 1,
    }


def test_segments_of_xliff_2_get_a_state_and_keep_their_codes(tmp_path):
    document = opened(tmp_path, "two.xliff", confirmed=True)
    written = all_shouted(document).decode()
    assert '<segment id="s1" state="reviewed">' in written
    assert '<pc id="1">ÜRED <pc id="2">ÜCAT</pc></pc><ph id="3" dataRef="d1"/></target>' in written
    assert '<target><sc id="4"/>ÜBIG<ec startRef="4"/> ÜDOG</target>' in written
    assert "<m:matches>" in written


def test_units_of_a_memory_get_a_variant_with_the_spaces_of_the_source(tmp_path):
    document = opened(tmp_path, "utf8.tmx")
    written = all_shouted(document).decode()
    assert (
        '</tuv>\n    <tuv xml:lang="de">\n      <seg>ÜA <bpt i="1">&lt;b&gt;</bpt>ÜRED' in written
    )
    assert document.left_out.total() == 2


EMPTY_VARIANTS = [
    '<tuv xml:lang="de"><prop type="x">y</prop><seg/></tuv>',
    '<tuv xml:lang="de"><prop type="x">y</prop><seg> </seg></tuv>',
    '<tuv xml:lang="de"><prop type="x">y</prop></tuv>',
    '<tuv xml:lang="de-AT"/>',
    '<tuv xml:lang="de-AT" />',
]


@pytest.mark.parametrize("variant", EMPTY_VARIANTS)
def test_an_empty_variant_of_a_memory_is_filled_and_no_second_one_is_added(tmp_path, variant):
    text = TMX.replace('<tuv xml:lang="de"><seg/></tuv>', variant)
    document = opened(tmp_path, "utf8.tmx", text.encode())
    written = all_shouted(document)
    unit = elements(written, "tu")[2]
    assert [whole_text(segment) for segment in unit.iter("seg")] == ["empty", "ÜEMPTY"]
    assert len(unit.findall("tuv")) == 2
    assert len(unit.findall("tuv/prop")) == variant.count("<prop")
    assert opened(tmp_path, "utf8.tmx", written).texts == []


def test_again_translates_what_no_person_has_confirmed(tmp_path):
    for name, count in (("utf8.xlf", 6), ("two.xliff", 2), ("utf8.po", 5)):
        assert len(opened(tmp_path, name, again=True).texts) == count
    document = opened(tmp_path, "utf8.xlf", again=True)
    assert "sure" not in document.texts


def test_a_language_is_written_where_none_is_and_another_is_refused(tmp_path):
    without = XLIFF_1.replace(' target-language="de"', "").encode()
    document = opened(tmp_path, "utf8.xlf", without, language="pt-BR")
    written = all_shouted(document)
    assert elements(written, "file")[0].get("target-language") == "pt-BR"
    for name in ("utf8.xlf", "two.xliff", "utf8.po"):
        with pytest.raises(ArgumentError, match="--to is 'fr'"):
            opened(tmp_path, name, language="fr")
    with pytest.raises(ArgumentError, match="names no language"):
        opened(tmp_path, "two.xliff", XLIFF_2.replace(' trgLang="de"', "").encode())


@pytest.fixture
def polib():
    return pytest.importorskip("polib", reason="needs pip install polib")


PLURALS = {"de": 2, "fr": 2, "ru": 3, "ar": 6, "ja": 1, "sl": 4, "pl": 3, "pt_BR": 2}


@pytest.mark.parametrize(("language", "count"), PLURALS.items())
def test_a_catalogue_gets_the_plural_forms_of_its_language(polib, tmp_path, language, count):
    document = opened(tmp_path, "utf8.po", po(language).encode())
    written = document.written([f"<{text}>" for text in document.texts])
    catalogue = polib.pofile(written.decode())
    (entry,) = [entry for entry in catalogue if entry.msgid_plural]
    assert len(entry.msgstr_plural) == count
    assert entry.flags == ["fuzzy", "c-format"]
    assert entry.previous_msgid == "%d old"
    assert catalogue.metadata["Plural-Forms"] == plural_formula(language)
    for number in (0, 1, 2, 5, 21):
        form = gettext.c2py(
            FORMULAS[language.lower().replace("_", "-")].partition("plural=")[2][:-1]
        )(number)
        wanted = (
            entry.msgid
            if form == PluralForms.of_header(f"Plural-Forms: {plural_formula(language)}").one
            else None
        )
        assert entry.msgstr_plural[form] == f"<{wanted or entry.msgid_plural}>"


@pytest.mark.parametrize("name", ["utf8.po", "latin2.po", "lines.po", "template.pot"])
def test_everything_but_translations_flags_and_the_header_stays_in_a_catalogue(
    polib, tmp_path, name
):
    document = opened(tmp_path, name)
    encoding = "iso-8859-2" if name == "latin2.po" else "utf-8"
    written = all_shouted(document)
    before = KINDS[name].decode(encoding).splitlines(keepends=True)
    after = written.decode(encoding).splitlines(keepends=True)
    unchanged = [line for line in before if line in after]
    lost = [line.strip() for line in before if line not in after]
    assert [line for line in after if line in unchanged]
    assert all(re.match(r'msgstr|#, c-format|"Content-Type: .*CHARSET', line) for line in lost), (
        lost
    )
    entries = polib.pofile(written.decode(encoding))
    saved = entries.find("Save")
    assert (saved.msgstr, saved.flags, saved.comment) == ("ÜSAVE", ["fuzzy"], "extracted")
    assert (entries.find("done").msgstr, entries.find("guess").msgstr) == ("x", "y")
    assert [entry.msgid for entry in entries.obsolete_entries()] == ["obsolete"]
    if name == "template.pot":
        assert entries.metadata["Content-Type"].endswith("UTF-8")


def test_confirmed_translations_are_not_fuzzy(polib, tmp_path):
    document = opened(tmp_path, "utf8.po", again=True, confirmed=True)
    entries = polib.pofile(all_shouted(document).decode())
    assert [entry.flags for entry in entries if not entry.obsolete] == [
        [],
        ["c-format"],
        [],
        ["python-format"],
    ]


def test_a_letter_that_the_encoding_lacks_is_refused_in_a_catalogue_and_a_reference_in_xml(
    tmp_path,
):
    document = opened(tmp_path, "latin2.po")
    with pytest.raises(DataError, match="msgconv -t UTF-8"):
        document.written(["世"] * len(document.texts))
    document = opened(tmp_path, "latin.xliff")
    written = document.written([f"世{text}" for text in document.texts])
    assert b"&#19990;" in written
    assert whole_text(elements(written, "target")[0]).startswith("世")


def test_the_singular_of_a_form_that_other_numbers_share_names_the_number(tmp_path):
    russian = po("ru").replace("%d file of", "One file of")
    document = opened(tmp_path, "utf8.po", russian.encode())
    assert not any(text.startswith("One file") for text in document.texts)
    assert any(
        text.startswith("One file")
        for text in opened(
            tmp_path, "utf8.po", po("de").replace("%d file of", "One file of").encode()
        ).texts
    )


BOMB = '<!DOCTYPE xliff [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE xliff [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
PARAMETER = '<!DOCTYPE xliff [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]>'
START = '<xliff version="1.2">'
HOSTILE = {
    "bomb.xlf": f"{BOMB}{START}&b;</xliff>",
    "external.xlf": f"{EXTERNAL}{START}&a;</xliff>",
    "parameter.xliff": f"{PARAMETER}{START}</xliff>",
    "bomb.tmx": BOMB.replace("xliff", "tmx") + "<tmx>&b;</tmx>",
    "cut.xlf": XLIFF_1[:700],
    "cut.tmx": TMX[:300],
    "wrong_tag.xlf": XLIFF_1.replace("</group>", "</grop>"),
    "deep.xlf": START + "<group>" * 5_000 + "</group>" * 5_000 + "</xliff>",
    "version.xlf": '<xliff version="9"/>',
    "no_version.xlf": "<xliff/>",
    "html.xlf": "<html/>",
    "po.xlf": 'msgid "a"\nmsgstr ""\n',
    "empty.xlf": "",
    "empty.tmx": "",
    "zero.xlf": "\0" * 40,
    "encoding.xlf": '<?xml version="1.0" encoding="klingon"?><xliff version="1.2"/>',
    "latin.xlf": b'<?xml version="1.0"?><xliff version="1.2">\xe9</xliff>',
    "ascii.xlf": '<?xml version="1.0" encoding="us-ascii"?><xliff version="1.2">\u00e9</xliff>',
    "zip.xlf": b"PK\3\4....",
    "gzip.po": b"\x1f\x8b....",
    "latin.po": PO.replace("{charset}", "UTF-8").encode() + b'\nmsgid "\xe9"\nmsgstr ""\n',
    "charset.po": PO.replace("{charset}", "klingon"),
    "quote.po": 'msgid "a\nmsgstr ""\n',
    "word.po": "hello\n",
    "string.po": '"a"\n',
    "no_msgid.po": 'msgstr "a"\n',
    "no_msgstr.po": 'msgid "a"\n',
    "twice.po": 'msgid "a"\nmsgstr ""\nmsgstr ""\n',
    "plural.po": 'msgid_plural "a"\nmsgstr ""\n',
    "tmx.tmx": "<html/>",
    "any.tmx": TMX.replace('srclang="en"', 'srclang="*all*"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(tmp_path, name):
    content = HOSTILE[name]
    content = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(RegardError) as refusal:
        opened(tmp_path, name, content)
    assert len(str(refusal.value)) < 400
    assert str(tmp_path) in str(refusal.value)


def test_formulas_stay_within_their_forms():
    for language, formula in FORMULAS.items():
        forms = PluralForms.of_header(f"Plural-Forms: {formula}")
        assert forms is not None, language
        choose = gettext.c2py(formula.partition("plural=")[2].rstrip(";"))
        assert {choose(number) for number in range(300)} == set(range(forms.count)), language


def test_codes_beyond_the_characters_that_stand_for_them_leave_a_unit_as_it_is(tmp_path):
    text = XLIFF_1.replace("One. Two.</source>", "One\U000f0000</source>").replace(
        "Save", "S\U000f8000"
    )
    assert opened(tmp_path, "utf8.xlf", text.encode()).left_out.total() == 5


def test_only_files_of_messages_are_opened_and_a_source_is_for_memories(tmp_path):
    assert is_document("a.XLIFF")
    assert not is_document("a.tsv")
    with pytest.raises(ArgumentError, match="unknown suffix"):
        open_document(tmp_path / "a.txt")
    with pytest.raises(ArgumentError, match=r"compiled, .* by: msgunfmt \S*a\.mo -o \S*a\.po"):
        open_document(tmp_path / "a.mo")
    with pytest.raises(ArgumentError, match="--from en is for"):
        open_document(tmp_path / "a.po", source="en")
    with pytest.raises(NotFoundError):
        open_document(tmp_path / "a.po")
    (tmp_path / "u.tmx").write_bytes(KINDS["utf8.tmx"])
    with pytest.raises(ArgumentError, match="--to de"):
        open_document(tmp_path / "u.tmx")
    french = open_document(tmp_path / "u.tmx", WritingOptions(language="de"), source="fr")
    assert french.texts == ["chat", "sans"]


def test_the_flag_fuzzy_stands_before_an_earlier_source(tmp_path):
    text = po("de").replace("#, c-format\n", "")
    document = opened(tmp_path, "utf8.po", text.encode())
    written = all_shouted(document).decode()
    assert '\n#, fuzzy\n#| msgid "%d old"\nmsgctxt "menu"\n' in written
