"""The links that rules find among the words of a text."""

import pytest

from regard_lab.seeing.relations import ALL, BACK, FORWARD, PIECES, piece_links, relations_in, split_words, turned


def pairs(name, text):
    """The links of a relation as words."""
    words = split_words(text)
    return [(words[query], *(words[key] for key in sorted(keys))) for query, keys in relations_in(words)[name]]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("previous word", "a new list", [("new", "a"), ("list", "new")]),
        ("next word", "a new list", [("a", "new"), ("new", "list")]),
        ("same word earlier", "Lists of lists hold lists; it is it", [("lists", "Lists"), ("lists", "Lists", "lists")]),
        ("same word later", "Lists of lists", [("Lists", "lists")]),
        ("after the same word", "the line ends; a line begins", [("line", "ends")]),
        ("last punctuation", "One, two three. Four", [("two", ","), ("three", ","), ("Four", ".")]),
        ("start of the sentence", "One two. Three four", [("two", "One"), ("four", "Three")]),
        ("closing to opening bracket", "f(a [b]) c)", [("])", "(", "[")]),
        ("closing to opening quote", 'the "x y" or "z', [('"', '"')]),
        ("noun to article", "the sorted list of a name", [("list", "the"), ("name", "a")]),
        ("noun to modifier", "the very old lists of names", [("lists", "very", "old")]),
        ("modifier to noun", "the old file list.", [("old", "list"), ("file", "list")]),
        ("object to verb", "Return the old list. It can Return a list. Close the file.",
         [("list", "Return"), ("file", "Close")]),
        ("verb to subject", "If the name of the old file is new, the mode must", [("is", "name"), ("must", "mode")]),
        ("subject to verb", "The value returns.", [("value", "returns")]),
    ],
)  # fmt: skip
def test_each_relation_is_found(name, text, expected):
    assert pairs(name, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "the value returned by it",  # *returned* is not a noun
        "the file opens the",  # nothing says where the phrase ends
        "the one two three four five of",  # too long
        "the of names",  # no noun
    ],
)
def test_a_phrase_that_is_not_clear_is_left_out(text):
    assert pairs("noun to article", text) == []
    assert pairs("noun to modifier", text) == []


def test_the_noun_after_a_preposition_is_no_subject():
    assert pairs("verb to subject", "The name of the file is") == [("is", "name")]
    assert pairs("verb to subject", "Look at the file is") == []


def test_markers_of_a_model_are_no_words():
    words = ("<begin>", "Return", "the", "list", "<end>")
    found = relations_in(words)
    assert not any({0, 4} & ({query} | keys) for links in found.values() for query, keys in links)
    assert found["object to verb"] == [(3, frozenset({1}))]


def test_every_relation_that_looks_back_does_and_its_turned_form_looks_ahead():
    text = 'A "b". Return the old list (a copy of the old list). The list is the new old list of names.'
    found = relations_in(split_words(text))
    assert sorted([*found, PIECES]) == sorted(ALL)
    for name in BACK:
        if name != PIECES:
            assert found[name], name
            assert all(max(keys) < query for query, keys in found[name])
    for back, forward in FORWARD.items():
        assert found[forward] == turned(found[back])
        assert all(min(keys) > query for query, keys in found[forward])


def test_a_word_of_one_piece_has_no_link_to_its_first_piece():
    assert piece_links([("a", range(1)), ("bc", range(1, 3)), ("d", range(3, 4))]) == [(2, frozenset({1}))]
