"""Plural forms of message catalogues, and inline codes of translation memories."""

import gettext
import io
import struct

import pytest

from regard.errors import DataError
from regard_lab.text import Pair, read_pairs
from regard_lab.text.catalogues import MAGIC
from regard_lab.text.memories import Segment
from regard_lab.text.plurals import (
    NO_FORM,
    NO_FORMULA,
    OTHER_COUNT,
    UNTRANSLATED,
    PluralForms,
)


def catalogue(entries: dict[str, str], order: str = "<") -> bytes:
    """A compiled catalogue: seven numbers, two tables of lengths and places, and the texts, each closed by a zero."""
    pairs = sorted((source.encode(), target.encode()) for source, target in entries.items())
    place = 28 + 16 * len(pairs)
    tables: list[bytes] = []
    texts = b""
    for side in (0, 1):
        for pair in pairs:
            tables.append(struct.pack(f"{order}2I", len(pair[side]), place + len(texts)))
            texts += pair[side] + b"\0"
    numbers = (MAGIC, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return struct.pack(f"{order}7I", *numbers) + b"".join(tables) + texts


def header(forms: str | None) -> str:
    line = "" if forms is None else f"Plural-Forms: {forms}\n"
    return f"Content-Type: text/plain; charset=UTF-8\n{line}"


def write_po(path, forms, *messages):
    """A `.po` with messages of one thing and of several, each with its forms; None for no header."""
    lines = []
    if forms is not None:
        escaped = header(forms).replace("\n", "\\n")
        lines = ['msgid ""', f'msgstr "{escaped}"', ""]
    for source, plural, *translations in messages:
        lines += [f'msgid "{source}"', f'msgid_plural "{plural}"']
        lines += [f'msgstr[{form}] "{text}"' for form, text in enumerate(translations)] + [""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_mo(path, forms, *messages):
    """The same as a `.mo`."""
    entries = {"": header(forms)} if forms is not None else {}
    entries |= {f"{singular}\0{many}": "\0".join(forms) for singular, many, *forms in messages}
    path.write_bytes(catalogue(entries))
    return path


WRITERS = [("a.po", write_po), ("a.mo", write_mo)]
ARABIC = "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;"
SLOVENIAN = "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"
RUSSIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"


@pytest.mark.parametrize(
    ("forms", "form_of_one", "several"),
    [
        (ARABIC, 1, 4),
        (SLOVENIAN, 1, 0),
        (RUSSIAN, 0, 2),
        ("nplurals=2; plural=(n > 1);", 0, 1),
        ("nplurals=1; plural=0;", 0, 0),
    ],
)
@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_msgid_has_the_form_of_one_and_msgid_plural_the_form_of_most_numbers(
    tmp_path, name, write, forms, form_of_one, several
):
    count = int(forms[9])
    translations = [f"form {form}" for form in range(count)]
    path = write(tmp_path / name, forms, ("a byte", "%s bytes", *translations))
    read = read_pairs(path)
    assert read.pairs == [
        Pair("a byte", f"form {form_of_one}"),
        Pair("%s bytes", f"form {several}"),
    ]
    assert "; 1 of the messages is a plural: msgid_plural with the form that" in read.report()
    peer = gettext.GNUTranslations(
        io.BytesIO(
            write_mo(
                tmp_path / "peer.mo", forms, ("a byte", "%s bytes", *translations)
            ).read_bytes()
        )
    )
    assert peer.ngettext("a byte", "%s bytes", 1) == read.pairs[0].target
    assert peer.ngettext("a byte", "%s bytes", 95) == read.pairs[1].target


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_forms_that_are_empty_missing_or_of_another_number_are_counted(tmp_path, name, write):
    path = write(
        tmp_path / name,
        SLOVENIAN,
        ("one dog", "dogs", "psov", "pes", "psa", "psi"),
        ("one cat", "cats", "mačk", "", "mački", "mačke"),
        ("one hen", "hens", "", "kokoš", "kokoši", "kokoši"),
        ("one cow", "cows", "krav", "krava"),
        ("one fox", "foxes", "", "", "", ""),
    )
    read = read_pairs(path)
    wanted = {Pair("one dog", "pes"), Pair("dogs", "psov"), Pair("cats", "mačk")}
    assert set(read.pairs) == wanted | {Pair("one hen", "kokoš")}
    untranslated = {} if name == "a.mo" else {UNTRANSLATED: 1}
    empty = {UNTRANSLATED: 1}
    assert read.dropped == {NO_FORM: 2, OTHER_COUNT: 1} | (untranslated or empty)


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_without_a_formula_two_forms_are_read_as_gettext_does_and_the_report_says_so(
    tmp_path, name, write
):
    message = ("a byte", "%s bytes", "ein Byte", "%s Bytes")
    three = ("a file", "%s files", "x", "y", "z")
    for path in (
        write(tmp_path / name, None, message, three),
        write(tmp_path / name, "", message, three),
    ):
        read = read_pairs(path)
        assert read.pairs == [Pair("a byte", "ein Byte"), Pair("%s bytes", "%s Bytes")]
        assert read.dropped == {OTHER_COUNT: 1}
        said = "; the header has no Plural-Forms, so the first of two forms is that of n = 1"
        assert read.report().endswith(said)


HOSTILE = [
    "nplurals=2; plural=" + "n+" * 600 + "n;",  # long
    "nplurals=2; plural=" + "(" * 90 + "n" + ")" * 90 + ";",
    "nplurals=2; plural=" + "n?" * 240 + "n" + ":n" * 240 + ";",
    "nplurals=2; plural=" + "n*" * 490 + "n;",  # a huge number, which is no form
    "nplurals=2; plural=" + "9" * 900 + ";",
    "nplurals=" + "9" * 9000 + "; plural=n;",
    "nplurals=2; plural=1/(n-1);",
    "nplurals=2; plural=100%(n-50);",
    "nplurals=2; plural=n;",  # 2 and more are out of range
    "nplurals=2; plural=0-n;",
    "nplurals=0; plural=0;",
    "nplurals=2; plural=__import__('os');",
    "nplurals=2; plural=;",
    "nplurals=INTEGER; plural=EXPRESSION;",
    "plural=n != 1;",
]


@pytest.mark.parametrize("forms", HOSTILE)
@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_a_formula_that_gives_no_form_is_a_counted_fault(tmp_path, name, write, forms):
    messages = [("a byte", "%s bytes", "x", "y"), ("a bit", "%s bits", "x", "y")]
    path = write(tmp_path / name, forms, *messages)
    with pytest.raises(DataError, match=rf"none of 2 messages gives a pair \(2 {NO_FORMULA}"):
        read_pairs(path)


def test_a_formula_is_found_however_its_header_is_written():
    assert PluralForms.of_header("plural-forms :  NPLURALS = 2 ; PLURAL = n > 1 ;\r\n").one == 0
    assert PluralForms.of_header("X: 1\nPlural-Forms: nplurals=1; plural=0\n").count == 1


def test_a_compiled_text_outside_of_the_file_is_damage_and_untranslated_entries_are_counted(
    tmp_path,
):
    path = tmp_path / "a.mo"
    path.write_bytes(catalogue({"open": "öffnen", "none": ""}))
    assert read_pairs(path).dropped == {UNTRANSLATED: 1}
    path.write_bytes(catalogue({"open": "öffnen"})[:-3])
    with pytest.raises(DataError, match="tables lead outside the file"):
        read_pairs(path)


def test_a_huge_number_of_a_form_is_refused_or_counted_and_no_traceback(tmp_path):
    path = write_po(tmp_path / "a.po", SLOVENIAN, ("a", "b", "c"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("msgstr[0]", "msgstr[999999999]"), encoding="utf-8")
    with pytest.raises(DataError, match=OTHER_COUNT):
        read_pairs(path)
    path.write_text(text.replace("msgstr[0]", f"msgstr[{'9' * 5000}]"), encoding="utf-8")
    with pytest.raises(DataError, match=r"does not read as a \.po"):
        read_pairs(path)


# --- inline codes of translation memories


def memory(path, *units, source="en"):
    """A memory of units, each with the `<seg>` of English and German, or of named languages."""
    body = ""
    for unit in units:
        named = unit if isinstance(unit, list) else list(zip(("en", "de"), unit, strict=True))
        tuvs = [f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in named]
        body += f"<tu>{''.join(tuvs)}</tu>\n"
    content = f'<tmx version="1.4"><header srclang="{source}"/><body>{body}</body></tmx>'
    path.write_text(content, encoding="utf-8")
    return path


REPORTED = "Save now<ph>&lt;br/&gt;</ph>or <ph>{0}</ph> later."
CODED = [
    # (segment, its text, its text with placeholders)
    (REPORTED, "Save now or later.", "Save now<br/>or {0} later."),
    ('Save now<x id="7"/>or later', "Save now or later", 'Save now<x id="7"/>or later'),
    ('Save <x id="7" equiv-text="{name}"/>!', "Save !", "Save {name}!"),
    ("Save<ut>{\\cs6 }</ut>now", "Save now", "Save{\\cs6 }now"),
    # Formatting may begin inside of a word.
    ("<g id='1'>H</g>ello", "Hello", None),
    ("<hi>un</hi>known", "unknown", None),
    ("<bpt i='1'>&lt;b&gt;</bpt>un<ept i='1'>&lt;/b&gt;</ept>known", "unknown", None),
    ("un<it pos='begin'>&lt;i&gt;</it>known", "unknown", None),
    ("un<ph>&lt;b&gt;</ph>known<ph>&lt;/b&gt;</ph>s", "unknowns", "un<b>known</b>s"),
    # What the native code says counts: these begin a line or a cell.
    ("now<bpt i='1'>&lt;p&gt;</bpt>or", "now or", None),
    ("now<it pos='end'>&lt;/td&gt;</it>or", "now or", None),
    ("now<foo/>or", "now or", None),
    # No space where a text has none.
    ("now<ph/>.", "now.", "now<ph/>."),
    ("(<ph/>now", "(now", "(<ph/>now"),
    ("now.<ph x='2'/>Or", "now. Or", 'now.<ph x="2"/>Or'),
    ("now <ph/>or", "now or", "now <ph/>or"),
    ("保存<ph/>或", "保存或", "保存<ph/>或"),
    ("e<ph/>-mail", "e-mail", "e<ph/>-mail"),
    # Texts inside of codes are texts of their own; CDATA and character references are text.
    ('a<ph>&lt;img alt="<sub>a <hi>cat</hi></sub>"/&gt;</ph>b', "a b", 'a<img alt="a cat"/>b'),
    ("now<![CDATA[ & <b>]]>&#x21;", "now & <b>!", None),
]


@pytest.mark.parametrize(("segment", "text", "wanted"), CODED)
def test_codes_glue_no_words_split_none_and_placeholders_are_kept_on_demand(
    tmp_path, segment, text, wanted
):
    path = memory(tmp_path / "m.tmx", (segment, "Hallo"), ("next", "weiter"))
    assert read_pairs(path).pairs == [Pair(text, "Hallo"), Pair("next", "weiter")]
    assert read_pairs(path, keep_placeholders=True).pairs[0].source == (wanted or text)


def test_codes_texts_inside_of_them_and_further_translations_are_counted(tmp_path):
    path = memory(
        tmp_path / "m.tmx",
        (REPORTED, "<g id='1'>Jetzt</g>"),
        [("en", "a"), ("de", ""), ("de", "eins"), ("DE-at", "zwei"), ("de_CH", "drei")],
        ("a<ph>&lt;a title='<sub>x</sub>'&gt;</ph>", "c<bpt i='1'/>d<ept i='1'/>"),
    )
    read = read_pairs(path)
    assert read.pairs[1] == Pair("a", "eins")
    assert read.report().endswith(
        "; 6 codes left out, of which 2 are placeholders (--keep-placeholders writes them); 1 text inside of codes "
        "left out; 3 further translations left out"
    )
    report = read_pairs(path, keep_placeholders=True).report()
    assert report.endswith("; 3 codes left out; 3 further translations left out")
    assert read_pairs(memory(tmp_path / "n.tmx", ("a", "b"))).remark is None


def test_languages_are_found_by_either_hyphen_and_a_source_is_no_further_translation(tmp_path):
    path = memory(tmp_path / "m.tmx", [("en_US", "colour"), ("EN-gb", "color")])
    read = read_pairs(f"{path}:en-us,en_GB")
    assert (read.pairs, read.remark) == ([Pair("colour", "color")], None)
    path = memory(tmp_path / "n.tmx", [("en", "colour"), ("en-us", "color")])
    assert read_pairs(f"{path}:en,en-US").remark is None


def test_a_segment_may_come_in_any_pieces():
    segment = Segment(False)
    for character in "now":
        segment.add(character)
    segment.begin("ph", {})
    for character in "<br/>":
        segment.add(character)
    segment.end("ph")
    for character in ("", "o", "r"):
        segment.add(character)
    assert (segment.text, segment.codes) == ("now or", 1)


def test_all_translations_of_a_unit_are_pairs_on_demand(tmp_path):
    path = memory(
        tmp_path / "m.tmx",
        [("en", "a"), ("de", ""), ("de", "eins"), ("DE-at", "zwei"), ("de_CH", "drei")],
        ("next", "weiter"),
    )
    assert read_pairs(path).pairs == [Pair("a", "eins"), Pair("next", "weiter")]
    read = read_pairs(path, all_translations=True)
    wanted = [Pair("a", "eins"), Pair("a", "zwei"), Pair("a", "drei"), Pair("next", "weiter")]
    assert read.pairs == wanted
    assert read.report().endswith("; 3 further translations")


TAGGED = [
    ("<bpt i='1'>&lt;b&gt;</bpt>un<ept i='1'>&lt;/b&gt;</ept>known", "<b>un</b>known"),
    ("a <g id='1'>red</g> cat<ph>{0}</ph>", 'a <g id="1">red</g> cat'),
    ("<hi>a</hi> cat", "<hi>a</hi> cat"),
]


@pytest.mark.parametrize(("segment", "text"), TAGGED)
def test_tags_are_text_on_demand(tmp_path, segment, text):
    path = memory(tmp_path / "m.tmx", (segment, "Hallo"))
    assert read_pairs(path, keep_tags=True).pairs == [Pair(text, "Hallo")]
    read = read_pairs(path, keep_tags=True, keep_placeholders=True)
    assert (read.pairs[0].source, read.remark) == (
        text + "{0}" * ("{0}" in segment),
        None,
    )


def test_units_of_xliff_are_pairs_without_those_that_are_still_to_be_made(tmp_path):
    units = [
        "<source>a <g id='1'>cat</g><x id='2'/></source><target>eine <g id='1'>Katze</g></target>",
        "<source>a dog</source><target state='needs-translation'>a dog</target>",
        "<source>a hen</source>",
        "<source>a fox</source><target/>",
        "<source>a &lt;b> cow</source><target><![CDATA[eine <b> Kuh]]></target>",
    ]
    body = "".join(f"<trans-unit id='{n}'>{unit}</trans-unit>\n" for n, unit in enumerate(units))
    path = tmp_path / "m.xlf"
    path.write_text(f"<xliff version='1.2'><file><body>\n{body}</body></file></xliff>")
    read = read_pairs(path)
    assert read.pairs == [Pair("a cat", "eine Katze"), Pair("a <b> cow", "eine <b> Kuh")]
    assert sorted(read.dropped.values()) == [1, 2]
    assert "kept 2 of 5 units" in read.report()
    assert "3 codes left out, of which 1 is a placeholder" in read.report()
    assert read.first_lines[UNTRANSLATED] == (str(path), 4)
    source = read_pairs(path, keep_tags=True, keep_placeholders=True).pairs[0].source
    assert source == 'a <g id="1">cat</g><x id="2"/>'
    second = tmp_path / "m.xliff"
    second.write_text(
        "<xliff version='2.0' srcLang='en'><file id='f'><unit id='1'><segment state='final'><source>a</source>"
        "<target>b</target></segment><segment><source>c</source><target>d</target></segment></unit></file></xliff>"
    )
    assert read_pairs(second).pairs == [Pair("a", "b"), Pair("c", "d")]
