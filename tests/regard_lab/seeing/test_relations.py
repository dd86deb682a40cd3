"""The links that rules find among words, and how heads are scored by them."""

import math

import pytest
import torch

from regard.errors import ArgumentError
from regard_lab.seeing.relations import (
    ALL,
    BACK,
    FORWARD,
    PIECES,
    from_neighbours,
    join,
    looks_of,
    random_labels,
    relations_in,
    score_relation,
    share,
    split_words,
    turned,
)

LENGTH = 12


def one_hot(targets):
    """A head that gives all its weight to one key: (length, length)."""
    return torch.eye(LENGTH)[torch.tensor(targets)]


def varied_links(seed, causal=True):
    """A link from each query to one key at a distance that varies."""
    drawn = torch.Generator().manual_seed(seed)
    links = []
    for query in range(1, LENGTH):
        choices = [key for key in range(query if causal else LENGTH) if key != query]
        links.append(
            (query, frozenset({choices[int(torch.randint(len(choices), (), generator=drawn))]}))
        )
    return links


def knowing(links):
    """Head 0 looks at the word before, head 1 at the right key, head 2 at all keys alike: (1, 3, length, length)."""
    right = [0] * LENGTH
    for query, keys in links:
        right[query] = min(keys)
    previous = [max(0, place - 1) for place in range(LENGTH)]
    return torch.stack(
        [one_hot(previous), one_hot(right), torch.full((LENGTH, LENGTH), 1 / LENGTH)]
    )[None]


def looks(seeds, maps=knowing, causal=True):
    texts = [varied_links(seed, causal) for seed in seeds]
    return join(
        looks_of(maps(links), links, seed, causal=causal)
        for seed, links in zip(seeds, texts, strict=True)
    )


def test_a_head_is_scored_by_the_links_that_it_hits():
    weights = torch.tensor(
        [[[1.0, 0, 0, 0], [0.7, 0.3, 0, 0], [0.3, 0.1, 0.6, 0], [0.1, 0.5, 0.2, 0.2]]]
    )[None]
    found = looks_of(
        weights, [(1, frozenset({0})), (2, frozenset({0})), (3, frozenset({0, 2}))], causal=True
    )
    assert found.hits.flatten().tolist() == [True, True, False]  # 2 looks most at itself, then at 0
    torch.testing.assert_close(
        found.mass.flatten(), torch.tensor([0.7, 0.3, 0.3], dtype=torch.float64)
    )
    torch.testing.assert_close(found.chance, torch.tensor([1.0, 1 / 2, 2 / 3], dtype=torch.float64))
    assert [found.at_offset(offset).tolist() for offset in (-1, -2, -3)] == [
        [1, 0, 1],
        [0, 1, 0],
        [0, 0, 1],
    ]
    assert found.best_offset() == -1


def test_keys_on_both_sides_are_for_maps_that_are_not_causal():
    links = [(1, frozenset({3}))]
    found = looks_of(one_hot([3] * LENGTH)[None, None], links, causal=False)
    assert (found.hits.item(), found.chance.item()) == (True, pytest.approx(1 / (LENGTH - 1)))
    with pytest.raises(ArgumentError, match=r"query 1 of 12 has the keys \[3\]; give earlier keys"):
        looks_of(one_hot([3] * LENGTH)[None, None], links, causal=True)


@pytest.mark.parametrize(
    "keys", [frozenset(), frozenset({4}), frozenset({LENGTH}), frozenset({-1})]
)
def test_a_key_that_cannot_be_looked_at_is_refused(keys):
    with pytest.raises(ArgumentError, match="give other keys of this text"):
        looks_of(torch.ones(1, 1, LENGTH, LENGTH), [(4, keys)], causal=False)


def test_a_head_that_finds_the_right_key_is_beyond_every_baseline():
    valid = range(20)
    test = range(20, 40)
    scored = score_relation(
        looks(valid), looks(test), (looks(valid, ignorant), looks(test, ignorant))
    )
    assert (scored.head, scored.hits.mean, scored.mass) == ((0, 1), 1.0, 1.0)
    assert scored.baselines["fixed offset"] < 0.5
    assert scored.baselines["random choice"] == pytest.approx(
        sum(1 / n for n in range(1, LENGTH)) / (LENGTH - 1)
    )
    assert scored.beyond


def ignorant(links):
    return knowing(links)[:, [0, 2, 2]]


def test_a_head_at_a_fixed_distance_is_never_beyond_the_fixed_offset():
    """All links of a relation at one distance: the head is always right, and so is the offset."""
    links = [(query, frozenset({query - 1})) for query in range(1, LENGTH)]
    found = join(looks_of(knowing([]), links, document, causal=True) for document in range(20))
    nothing = join(
        looks_of(knowing([])[:, [2, 2, 2]], links, document, causal=True) for document in range(20)
    )
    scored = score_relation(found, found, (nothing, nothing))
    assert (scored.head, scored.hits.mean, scored.offset) == ((0, 0), 1.0, -1)
    assert scored.margins["fixed offset"].mean == 0
    assert scored.margins["untrained"].mean > 0
    assert not scored.beyond


def test_the_head_and_the_offset_are_chosen_by_validation_alone():
    """In the test texts another head and another distance would be better."""
    near = [(query, frozenset({query - 1})) for query in range(2, LENGTH)]
    far = [(query, frozenset({query - 2})) for query in range(2, LENGTH)]
    maps = torch.stack(
        [one_hot([max(0, place - back) for place in range(LENGTH)]) for back in (1, 2)]
    )[None]
    valid, test = (looks_of(maps, links, causal=True) for links in (near, far))
    scored = score_relation(valid, test, (valid, test))
    assert (scored.head, scored.offset) == ((0, 0), -1)
    assert (scored.hits.mean, scored.baselines["fixed offset"]) == (0.0, 0.0)


@pytest.mark.parametrize("causal", [True, False])
def test_with_random_labels_no_head_is_better_than_chance(causal):
    drawn = torch.Generator().manual_seed(1)
    parts = []
    for document in range(150):
        links = varied_links(document, causal)
        labels = random_labels(links, LENGTH, causal, drawn)
        assert [query for query, _ in labels] == [query for query, _ in links]
        parts.append(looks_of(knowing(links), labels, document, causal=causal))
    found = join(parts)
    for head in (0, 1):
        over = share(found.of_head((0, head)) - found.chance, found.groups)
        assert abs(over.mean) < 4 * over.error
    assert not found.of_head((0, 2)).any()  # it looks at all keys alike, and a tie does not count
    right = looks(range(150), causal=causal)
    # the true labels are found
    assert share(right.of_head((0, 1)) - right.chance, right.groups).mean > 0.5


def test_the_error_counts_documents_not_links():
    """A link that is repeated in its document adds no information; in a document of its own it does."""
    values = torch.tensor([1.0, 0.0, 1.0, 1.0])
    alone = share(values, torch.arange(4))
    repeated = share(values.repeat(9), torch.arange(4).repeat(9))
    assert (repeated.mean, repeated.error) == (
        pytest.approx(alone.mean),
        pytest.approx(alone.error),
    )
    assert share(values.repeat(9), torch.arange(36)).error < alone.error / 2
    assert alone.error == pytest.approx(float(values.std()) / 2)
    assert share(values, torch.zeros(4)).error == math.inf


def test_a_neighbour_is_on_the_side_away_from_the_key_and_has_no_link_itself():
    links = [(3, frozenset({1})), (6, frozenset({8})), (9, frozenset({7})), (10, frozenset({7}))]
    assert from_neighbours(links, 12) == [
        (4, frozenset({1})),
        (5, frozenset({8})),
        (11, frozenset({7})),
    ]
    assert from_neighbours(links, 12, others=[11, 5]) == [(4, frozenset({1}))]
    assert from_neighbours([(2, frozenset({0}))], 3) == []


def pairs(name, text):
    """The links of a relation as words."""
    words = split_words(text)
    return [
        (words[query], *(words[key] for key in sorted(keys)))
        for query, keys in relations_in(words)[name]
    ]


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
    found = relations_in(split_words(text))
    assert sorted([*found, PIECES]) == sorted(ALL)
    for name in BACK:
        if name != PIECES:
            assert found[name], name
            assert all(max(keys) < query for query, keys in found[name])
    for back, forward in FORWARD.items():
        assert found[forward] == turned(found[back])
        assert all(min(keys) > query for query, keys in found[forward])
