"""The links that rules find among words, and what heads look at along them."""

import pytest
import torch
from seeing.drawn_links import LENGTH, knowing, one_hot, varied_links

from regard.errors import ArgumentError
from regard_lab.seeing.looks import join, looks_of, random_labels
from regard_lab.seeing.relations import FORWARD, LABELS, relations_in, split_words, turned


def test_a_head_is_scored_by_the_links_that_it_hits():
    weights = torch.tensor(
        [[[1.0, 0, 0, 0], [0.7, 0.3, 0, 0], [0.3, 0.1, 0.6, 0], [0.1, 0.5, 0.2, 0.2]]]
    )[None]
    links = [(1, frozenset({0})), (2, frozenset({0})), (3, frozenset({0, 2}))]
    looks = looks_of(weights, links, causal=True)
    assert looks.hits.flatten().tolist() == [True, True, False]  # 2 looks most at itself, then at 0
    assert looks.mass.flatten().tolist() == pytest.approx([0.7, 0.3, 0.3])
    assert looks.chance.tolist() == pytest.approx([1.0, 1 / 2, 2 / 3])
    assert looks.at_offset(-1).tolist() == [1, 0, 1]
    assert looks.at_offset(-2).tolist() == [0, 1, 0]
    assert looks.at_offset(-3).tolist() == [0, 0, 1]
    assert looks.best_offset() == -1


def test_a_right_key_with_the_weight_of_a_wrong_one_is_no_hit():
    weights = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.3, 0.3, 0.4]])[None, None]
    looks = looks_of(weights, [(2, frozenset({0}))], causal=True)
    assert not looks.hits.item()


def test_keys_on_both_sides_are_for_maps_that_are_not_causal():
    links = [(1, frozenset({3}))]
    looks = looks_of(one_hot([3] * LENGTH)[None, None], links, causal=False)
    assert looks.hits.item()
    assert looks.chance.item() == pytest.approx(1 / (LENGTH - 1))
    with pytest.raises(ArgumentError, match=r"query 1 of 12 has the keys \[3\]; give earlier keys"):
        looks_of(one_hot([3] * LENGTH)[None, None], links, causal=True)


@pytest.mark.parametrize(
    "keys", [frozenset(), frozenset({4}), frozenset({LENGTH}), frozenset({-1})]
)
def test_a_key_that_cannot_be_looked_at_is_refused(keys):
    with pytest.raises(ArgumentError, match="give other keys of this text"):
        looks_of(torch.ones(1, 1, LENGTH, LENGTH), [(4, keys)], causal=False)


@pytest.mark.parametrize("causal", [True, False])
def test_with_random_labels_no_head_is_better_than_chance(causal):
    generator = torch.Generator().manual_seed(1)
    of_labels = []
    of_links = []
    for document in range(150):
        links = varied_links(document, causal)
        labels = random_labels(links, LENGTH, causal, generator)
        assert [query for query, _ in labels] == [query for query, _ in links]
        of_labels.append(looks_of(knowing(links), labels, document, causal=causal))
        of_links.append(looks_of(knowing(links), links, document, causal=causal))

    looks = join(of_labels)
    variance = (looks.chance * (1 - looks.chance)).sum()  # exact: labels are drawn one by one
    for head in (0, 1):
        over_chance = (looks.of_head((0, head)) - looks.chance).sum()
        assert abs(over_chance) < 4 * variance.sqrt()
    assert not looks.of_head((0, 2)).any()  # it looks at all keys alike, and a tie does not count

    # the true labels are found
    looks = join(of_links)
    assert (looks.of_head((0, 1)) - looks.chance).mean() > 0.5


def pairs(name, text):
    """The links of a relation as words."""
    words = split_words(text)
    related = []
    for query, keys in relations_in(words)[name]:
        related.append((words[query], *map(words.__getitem__, sorted(keys))))
    return related


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("previous word", "a new list", [("new", "a"), ("list", "new")]),
        ("next word", "a new list", [("a", "new"), ("new", "list")]),
        (
            "same word earlier",
            "Lists of lists hold lists; it is it",
            [("lists", "Lists"), ("lists", "Lists", "lists")],
        ),
        ("same word later", "Lists of lists", [("Lists", "lists")]),
        ("after the same word", "the line ends; a line begins", [("line", "ends")]),
        ("last punctuation", "One, two three. Four", [("two", ","), ("three", ","), ("Four", ".")]),
        ("start of the sentence", "One two. Three four", [("two", "One"), ("four", "Three")]),
        ("closing to opening bracket", "f(a [b]) c)", [("])", "(", "[")]),
        ("closing to opening quote", 'the "x y" or "z', [('"', '"')]),
        ("noun to article", "the sorted list of a name", [("list", "the"), ("name", "a")]),
        ("noun to modifier", "the very old lists of names", [("lists", "very", "old")]),
        ("modifier to noun", "the old file list.", [("old", "list"), ("file", "list")]),
        (
            "object to verb",
            "Return the old list. It can Return a list. Close the file.",
            [("list", "Return"), ("file", "Close")],
        ),
        (
            "verb to subject",
            "If the name of the old file is new, the mode must",
            [("is", "name"), ("must", "mode")],
        ),
        ("subject to verb", "The value returns.", [("value", "returns")]),
    ],
)
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


def test_every_relation_that_looks_back_does_and_its_turned_form_looks_ahead():
    text = 'A "b". Return the old list (a copy of the old list). The list is the new old list of names.'
    links = relations_in(split_words(text))
    assert list(links) == [*LABELS, *FORWARD.values()]
    for name in LABELS:
        assert links[name], name
        assert all(max(keys) < query for query, keys in links[name])
    for back, forward in FORWARD.items():
        assert links[forward] == turned(links[back])
        assert all(min(keys) > query for query, keys in links[forward])
