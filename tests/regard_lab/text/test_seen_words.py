"""The words of a training text, and which words of a sentence are not among them."""

import json

import pytest

from regard.errors import ArgumentError, CheckpointError
from regard_lab.text import SeenWords, Tokeniser

SEEN = SeenWords.of(["The animal didn't cross the street.", "It was well-known in Köln; room 12 was empty!"])


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
        ("The animal didn’t cross Ko\u0308ln", ()),  # apostrophes and accents however they are written
        ("known well", ()),  # the parts of a word with a hyphen
        ("anim didn cross12", ("anim", "didn", "cross12")),  # no parts of words
        ("room 13", ("13",)),
    ],
)
def test_a_word_is_unknown_exactly_if_the_text_did_not_have_it(text, unknown):
    assert SEEN.unknown(text) == unknown


def test_words_are_split_as_the_tokeniser_splits_them():
    text = "It's 3,5 o'clock: naïve 동물은 re-read (all) of\u00a0it…"
    tokeniser = Tokeniser.train([text], 300)
    words = {word for word, _ in tokeniser.words(tokeniser.encode(text)) if any(map(str.isalnum, word))}
    assert SeenWords.of([text]).words == words


def test_words_are_read_back_from_their_json():
    for words in (SEEN, SeenWords.of([]), SeenWords.of(["a b b c"], most=1)):
        assert SeenWords.from_json(words.to_json()) == words


def test_only_the_most_frequent_words_are_stored_and_the_rest_is_counted():
    seen = SeenWords.of(["a b b", "c c c", "b d"], most=2)
    assert (seen.words, seen.distinct, seen.complete) == ({"b", "c"}, 4, False)
    assert SEEN.complete


def test_a_damaged_list_is_refused_by_a_sentence():
    whole = json.loads(SEEN.to_json())
    wrong = [
        "[]", "{", "null", json.dumps({**whole, "format": "2"}), json.dumps({**whole, "words": "ab"}),
        json.dumps({**whole, "words": [1]}), json.dumps({**whole, "distinct": 3}),
        json.dumps({**whole, "distinct": True, "words": []}),
    ]  # fmt: skip
    for text in wrong:
        with pytest.raises(CheckpointError, match="the list of training words is damaged"):
            SeenWords.from_json(text)


def test_mistakes_are_sentences():
    with pytest.raises(ArgumentError, match="lines is one string"):
        SeenWords.of("a b")
    with pytest.raises(ArgumentError, match="a line is 3"):
        SeenWords.of([3])
    with pytest.raises(ArgumentError, match="text is None"):
        SEEN.unknown(None)
