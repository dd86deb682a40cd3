"""The words of a training text, which words of a sentence are not among them, and scripts without spaces."""

import json

import pytest

from regard.errors import CheckpointError
from regard_lab.text import Tokeniser
from regard_lab.text.seen_words import (
    SeenWords,
    UnknownWords,
    remark_on_scripts,
    split_unspaced,
)
from regard_lab.training.recipes import LanguageModelTraining, TranslationTraining

SEEN = SeenWords.of(
    ["The animal didn't cross the street.", "It was well-known in Köln; room 12 was empty!"]
)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("The animal didn't cross the street.", ()),
        ("", ()),
        ("?!  \t …", ()),  # punctuation is no word
        ("The zebra didn't see the other zebra.", ("zebra", "see", "other")),  # each once, in order
        ("Animal", ()),  # the first word of a sentence, with the other capital
        ("street. Empty room! cross", ()),
        ('"Animal? "Street', ()),
        ("the Animal", ("Animal",)),  # elsewhere capitals count
        ("ANIMAL", ("ANIMAL",)),
        # apostrophes and accents however they are written
        ("The animal didn’t cross Ko\u0308ln", ()),
        ("known well", ()),  # the parts of a word with a hyphen
        ("anim didn cross12", ("anim", "didn", "cross12")),  # no parts of words
        ("room 13", ("13",)),
    ],
)
def test_a_word_is_unknown_exactly_if_the_text_did_not_have_it(text, unknown):
    assert SEEN.unknown(text) == unknown


SYMBOLS = SeenWords.of(["The bird sang for 5 $ and 🎉 👍🏽 ❤️ in 🇩🇪."])


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("The bird sang 🎉🎉, $5.", ()),
        ("The 🚀 bird 🚀 sang ≠ 5", ("🚀", "≠")),  # each once, in order
        ("🚀zebra", ("🚀", "zebra")),
        ("👍 👍🏽 ❤", ()),  # with and without a tone, as text and as picture
        ("👍🏿", ("👍🏿",)),  # another tone
        ("🎉👩\u200d🚀 🇫🇷🇩🇪", ("👩\u200d🚀", "🇫🇷")),  # signs of several characters are named whole
        ("bird \ue000 \ufffd", ("\ue000", "\ufffd")),
        ("bird?! – …", ()),  # punctuation is no symbol
    ],
)
def test_a_symbol_is_unknown_exactly_if_the_text_did_not_have_it(text, unknown):
    assert SYMBOLS.unknown(text) == unknown
    assert SeenWords.from_json(SYMBOLS.to_json()) == SYMBOLS
    assert SYMBOLS.joined(SeenWords.of([text])).unknown(text) == ()
    assert SYMBOLS.counts("🚀 bird 🚀") == (2, 3)


def test_words_of_which_no_symbols_are_stored_name_none_and_a_damaged_list_of_them_is_refused():
    old = SeenWords(SYMBOLS.words, SYMBOLS.distinct)
    assert old.unknown("The 🚀 bird") == ()
    assert old.counts("The 🚀 bird") == (0, 2)
    assert SeenWords.from_json(old.to_json()) == old
    assert SYMBOLS.joined(old).symbols is None
    content = json.loads(SYMBOLS.to_json())
    for symbols in ("🎉", ["🎉🎉"], [7]):
        with pytest.raises(CheckpointError, match="its symbols are no list of characters"):
            SeenWords.from_json(json.dumps({**content, "symbols": symbols}))


def test_a_remark_says_whether_words_or_symbols_are_unknown():
    assert remark("the 🚀 bird") == f"{NOT}: 🚀; the label of such symbols is a guess"
    assert (
        remark("the zebra 🚀")
        == f"{NOT}: zebra, 🚀; the label of such words and symbols is a guess"
    )
    assert remark("≠ 🚀 ≠ 🚀").endswith(
        ": ≠, 🚀; the label is a guess: 4 of 4 words and symbols are unknown"
    )
    whole = UnknownWords(SeenWords.of(["the bird"]), "label").remark_on_whole
    assert whole("🚀").startswith(f"{NOT}: 🚀")
    assert whole("the 🚀") is None
    assert whole("") is None


NOT = "not in the training of this model"


def remark(text):
    return UnknownWords(SeenWords.of(["the bird"]), "label").remark(text)


def test_words_are_split_as_the_tokeniser_splits_them():
    text = "It's 3,5 o'clock: naïve 동물은 re-read (all) of\u00a0it…"
    tokeniser = Tokeniser.train([text], 300)
    words = set()
    for word, _ in tokeniser.words(tokeniser.encode(text)):
        if any(map(str.isalnum, word)):
            words.add(word)
    assert SeenWords.of([text]).words == words


def test_a_mark_stays_with_its_letter_in_a_script_without_spaces():
    assert list(split_unspaced("ก็กา")) == ["ก็", "ก", "า"]
    assert SeenWords.of(["ก็กา"]).words == {"ก็", "ก", "า"}


def test_only_the_most_frequent_words_are_stored_the_rest_is_counted_and_all_is_read_back_from_json():
    seen = SeenWords.of(["a b b", "c c c", "b d"], most=2)
    assert (seen.words, seen.distinct, seen.complete) == ({"b", "c"}, 4, False)
    assert SEEN.complete
    for words in (SEEN, SeenWords.of([]), seen):
        assert SeenWords.from_json(words.to_json()) == words


def test_a_damaged_list_is_refused_by_a_sentence():
    whole = json.loads(SEEN.to_json())
    wrong = [
        "[]",
        "{",
        "null",
        json.dumps({**whole, "format": "2"}),
        json.dumps({**whole, "words": "ab"}),
        json.dumps({**whole, "words": [1]}),
        json.dumps({**whole, "distinct": 3}),
        json.dumps({**whole, "distinct": True, "words": []}),
    ]
    for text in wrong:
        with pytest.raises(CheckpointError, match="the list of training words is damaged"):
            SeenWords.from_json(text)


CHINESE = "这只动物没有过马路，因为它太累了。"
THAI = "สัตว์ไม่ได้ข้ามถนน"
KOREAN = "동물은 길을 건너지 않았다."
ENGLISH = "The animal didn't cross the street."


@pytest.mark.parametrize("text", [CHINESE, THAI, "動物は道を渡らなかった。", "សត្វ"])
def test_text_without_spaces_is_noticed(text):
    remark = remark_on_scripts([ENGLISH] * 3 + [text], "bpe")
    assert remark.startswith("25% of the lines have no spaces between words")
    assert "--tokeniser character" in remark
    assert text[:4] in remark


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([ENGLISH, KOREAN], "bpe"),
        ([CHINESE], "character"),
        ([CHINESE], "byte"),
        ([ENGLISH] * 30 + [CHINESE], "bpe"),
        ([], "bpe"),
        (["他 is a Chinese letter", "..."], "bpe"),
    ],
)
def test_other_text_is_not_remarked_on(lines, kind):
    assert remark_on_scripts(lines, kind) is None


def test_an_unknown_word_of_chinese_is_a_letter_and_not_a_sentence():
    seen = SeenWords.of([CHINESE, ENGLISH])
    assert seen.unknown("这只狗过马路。 The dog") == ("狗", "dog")


def test_trainings_say_it(tmp_path):
    (tmp_path / "t.txt").write_text(f"{CHINESE}\n" * 60)
    rows = [f"{ENGLISH} {n}\t{CHINESE}{n}" for n in range(60)]
    (tmp_path / "p.tsv").write_text("\n".join(rows))
    for recipe, name, more in (
        (LanguageModelTraining, "t.txt", {"block": 16}),
        (TranslationTraining, "p.tsv", {}),
    ):
        for kind in ("bpe", "character"):
            told = []
            config = recipe.Config(
                data=(str(tmp_path / name),), tokeniser=kind, dim=16, heads=2, layers=1, **more
            )
            recipe(config, tell=told.append).prepare()
            assert any("no spaces between words" in line for line in told) == (kind == "bpe")
