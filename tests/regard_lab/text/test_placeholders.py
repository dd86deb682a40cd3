"""Placeholders are found, aligned and compared; a tokeniser that protects them restores each exactly."""

import itertools
import random
import string

import pytest

from regard.errors import ArgumentError, CheckpointError
from regard_lab.text import Tokeniser
from regard_lab.text.placeholders import (
    KINDS,
    STAND_IN,
    align,
    code_pairs,
    differences,
    find_placeholders,
)

FOUND = [
    ("Copy {0} to {name!r:>10} or {}", ["{0}", "{name!r:>10}", "{}"]),
    (
        "%s, %-10.3f, %1$s, %(name)d, %ld%% of %zu",
        ["%s", "%-10.3f", "%1$s", "%(name)d", "%ld", "%%", "%zu"],
    ),
    (
        "<b>x</b> <br/> <0>y</0> <a href='u'>l</a>",
        ["<b>", "</b>", "<br/>", "<0>", "</0>", "<a href='u'>", "</a>"],
    ),
    ("$HOME ${VAR} $(X) costs $5", ["$HOME", "${VAR}", "$(X)", "5"]),
    ("see https://a.org/b?c=1&d, or me@b.org.", ["https://a.org/b?c=1&d", "me@b.org"]),
    (
        "&amp; &#39; 👩\u200d🚀🇩🇪 1\ufe0f\u20e3",
        ["&amp;", "&#39;", "👩\u200d🚀", "🇩🇪", "1\ufe0f\u20e3"],
    ),
    ("1,024 of 12:30", ["1,024", "12:30"]),
    ("%H:%M of {{count}} and {n, number}", ["%H", "%M", "{{count}}", "{n, number}"]),
]
NONE = [
    "50% discount, 5%ige, %-encoding",
    "<file> of <stdin>, a < b > c",
    "x86, 3D, utf8, v1",
    "{ free text } R&D; A&B",
]


@pytest.mark.parametrize(("text", "wanted"), FOUND)
def test_each_form_of_a_placeholder_is_found_whole(text, wanted):
    assert [placeholder.text for placeholder in find_placeholders(text)] == wanted


@pytest.mark.parametrize("text", NONE)
def test_words_that_look_similar_are_no_placeholders(text):
    others = [
        placeholder for placeholder in find_placeholders(text) if placeholder.kind != "number"
    ]
    assert others == []


def test_arguments_are_aligned_by_place_and_name_and_the_rest_by_text():
    source = find_placeholders("%s has %d of {name}, <b>12</b>")
    target = find_placeholders("{name:>3}: %2$d <b>12</b> %1$s, 13")
    assert align(source, target) == [2, 1, 3, 4, 5, 0, None]


def test_a_star_takes_an_argument_and_m_none():
    identities = [placeholder.identity[1] for placeholder in find_placeholders("%m %*d %s %%")]
    assert identities == ["%m", "%2$d", "%3$s", "%%"]


@pytest.mark.parametrize(
    ("source", "translation", "fault"),
    [
        ("%s of %d", "%d von %s", "takes another argument"),
        ("%s of %s", "%s von", "is missing"),
        ("{0}", "{0} {0}", "stands 2 times and not 1 time"),
        ("a", "%s", "is not in the source"),
        ("%s of %s", "%s von %2$s", "numbered"),
        ("<i><b>x</b></i>", "<i><b>x</i></b>", "not nested"),
    ],
)
def test_each_fault_of_a_translation_is_named(source, translation, fault):
    assert fault in "; ".join(differences(source, translation))


def test_a_translation_may_write_numbers_of_its_own_and_number_the_arguments():
    assert differences("two of %s, %d", "2: %2$d, %1$s") == []


def test_codes_of_files_are_tags_that_are_paired():
    placeholders = find_placeholders("\U000f0007a\U000f0008b\U000f4008\U000f4007\U000f8000")
    assert code_pairs(placeholders) == {2: 1, 3: 0}


@pytest.fixture(scope="module")
def tokeniser():
    sources = ["Copy it to the file", "the street, the animal"] * 2
    return Tokeniser.train(sources, 500, targets=["Kopiere sie in die Datei"] * 2, protect=True)


def test_random_texts_with_placeholders_come_back_with_each_as_it_was(tokeniser):
    draw = random.Random(7)
    some = list(itertools.chain.from_iterable(texts[1] for texts in FOUND))
    for _ in range(300):
        words = [draw.choice([draw.choice(some), "the", "file,", "Żaba", "存檔"]) for _ in range(9)]
        text = " ".join(words)
        placeholders = tokeniser.placeholders(text)
        if None in tokeniser.placeholder_ids(placeholders):
            continue
        assert tokeniser.decode(tokeniser.encode(text), tokeniser.originals(text)) == text
        assert tokeniser.decode(tokeniser.encode(text)) == tokeniser.reads(text)
        target = tokeniser.encode_target(text, text)
        assert tokeniser.decode(target, tokeniser.originals(text)) == text


def test_the_same_placeholder_has_the_same_id_on_both_sides(tokeniser):
    source = "%s at {0} 12"
    target = "12: {0} bei %s, 13"
    by_text = {text: i for i, text in tokeniser.originals(source).items()}
    ids = tokeniser.encode_target(target, source)
    reserved = [i for i in ids if i < tokeniser.vocabulary.first_ordinary]
    assert reserved == [by_text["12"], by_text["{0}"], by_text["%s"]]
    assert tokeniser.decode(ids, tokeniser.originals(source)) == target


def test_more_placeholders_than_ids_are_spelled(tokeniser):
    text = " ".join(f"{{{number}}}" for number in range(23))
    assert len(tokeniser.originals(text)) == 16
    assert tokeniser.decode(tokeniser.encode(text), tokeniser.originals(text)) == text


def test_a_text_that_holds_the_stand_in_itself_loses_nothing(tokeniser):
    text = f"the{STAND_IN} {{0}} {STAND_IN}file"
    assert tokeniser.decode(tokeniser.encode(text), tokeniser.originals(text)) == text


def test_words_with_a_letter_that_the_vocabulary_lacks_are_placeholders(tokeniser):
    text = "the Żaba, the存檔file"
    assert [placeholder.text for placeholder in tokeniser.placeholders(text)] == ["Żaba", "存檔"]
    assert tokeniser.decode(tokeniser.encode(text)) == "the , thefile"
    assert tokeniser.decode(tokeniser.encode(text), tokeniser.originals(text)) == text


def test_punctuation_is_never_unknown(tokeniser):
    assert tokeniser.placeholders("the ‘file’ – 「it」") == []


def test_pieces_are_named_and_the_json_restores_them(tokeniser):
    assert tokeniser.pieces(range(3, 5)) == ["<end>", "<variable 1>"]
    again = Tokeniser.from_json(tokeniser.to_json())
    assert again == tokeniser
    assert tuple(again.vocabulary.reserved_ids) == KINDS
    wider = tokeniser.extended(["the zebra zebra"] * 3, 5)
    assert wider.encode("{0} the file") == tokeniser.encode("{0} the file")


def test_a_tokeniser_without_protection_is_written_as_before():
    plain = Tokeniser.train(["the file"] * 2, 300)
    assert "reserved" not in plain.to_json()
    assert (plain.protects, plain.originals("{0}"), plain.placeholders("{0}")) == (False, {}, [])


@pytest.mark.parametrize(
    "reserved", ['[["a", 0]]', "[3]", '[["a", 1], ["a", 2]]', '[["a b", 1]]', "{}"]
)
def test_damaged_reservations_are_refused(tokeniser, reserved):
    text = Tokeniser.train(["the file"] * 2, 300).to_json()
    damaged = text.replace('"merges"', f'"reserved":{reserved},"merges"')
    with pytest.raises(CheckpointError, match="reserves"):
        Tokeniser.from_json(damaged)


def test_what_is_no_placeholder_is_refused(tokeniser):
    with pytest.raises(ArgumentError, match="placeholders"):
        tokeniser.placeholder_ids(["{0}"])
    with pytest.raises(ArgumentError, match="an original"):
        tokeniser.decode([4], {4: 5})


def test_verbatim_and_protection_exclude_each_other():
    with pytest.raises(ArgumentError, match="exclude each other"):
        Tokeniser.train(["a"], 400, verbatim=True, protect=True)
    with pytest.raises(ArgumentError, match="60 for placeholders"):
        Tokeniser.train(["a"], 300, protect=True)


def test_finding_takes_no_time_that_grows_faster_than_the_text():
    hostile = ["<" * 20_000, "{" * 20_000, "%" * 20_000, "<a " * 7_000, "&a" * 9_000, "1," * 9_000]
    hostile += ["a@" * 9_000, "%(" * 9_000, string.ascii_letters * 400, "{{x" * 7_000]
    for text in hostile:
        find_placeholders(text, frozenset())
