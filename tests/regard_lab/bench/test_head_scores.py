"""How heads are scored by the links of a relation, beside baselines without content."""

import math

import pytest
import torch
from seeing.drawn_links import LENGTH, ignorant, knowing, one_hot, varied_links

from benchmarks.head_scores import ALL, BACK, from_neighbours, score_relation, share
from regard_lab.seeing.looks import join, looks_of
from regard_lab.seeing.relations import FORWARD, relations_in


def looks(seeds, maps=knowing):
    """What the heads of these maps look at in a document for each seed."""
    of_documents = []
    for seed in seeds:
        links = varied_links(seed)
        of_documents.append(looks_of(maps(links), links, seed, causal=True))
    return join(of_documents)


def test_the_relations_are_those_of_words_and_that_of_sub_words():
    of_words = relations_in([])
    assert sorted(ALL) == sorted([*of_words, "sub-word to first of its word"])
    assert set(ALL) - set(BACK) == set(FORWARD.values())
    assert len(ALL) == len(set(ALL))


def test_a_head_that_finds_the_right_key_is_beyond_every_baseline():
    valid = range(20)
    test = range(20, 40)
    untrained = (looks(valid, ignorant), looks(test, ignorant))
    score = score_relation(looks(valid), looks(test), untrained)
    assert (score.head, score.hits.mean, score.mass) == ((0, 1), 1.0, 1.0)
    assert score.baselines["fixed offset"] < 0.5
    chance = sum(1 / n for n in range(1, LENGTH)) / (LENGTH - 1)
    assert score.baselines["random choice"] == pytest.approx(chance)
    assert score.beyond


def test_a_head_at_a_fixed_distance_is_never_beyond_the_fixed_offset():
    """All links of a relation at one distance: the head is always right, and so is the offset."""
    links = [(query, frozenset({query - 1})) for query in range(1, LENGTH)]
    trained = []
    untrained = []
    for document in range(20):
        trained.append(looks_of(knowing([]), links, document, causal=True))
        untrained.append(looks_of(knowing([])[:, [2, 2, 2]], links, document, causal=True))

    right = join(trained)
    uniform = join(untrained)
    score = score_relation(right, right, (uniform, uniform))
    assert (score.head, score.hits.mean, score.offset) == ((0, 0), 1.0, -1)
    assert score.margins["fixed offset"].mean == 0
    assert score.margins["untrained"].mean > 0
    assert not score.beyond


def test_the_head_and_the_offset_are_chosen_by_validation_alone():
    """In the test texts another head and another distance would be better."""
    one_back = one_hot([max(0, place - 1) for place in range(LENGTH)])
    two_back = one_hot([max(0, place - 2) for place in range(LENGTH)])
    maps = torch.stack([one_back, two_back])[None]
    near = [(query, frozenset({query - 1})) for query in range(2, LENGTH)]
    far = [(query, frozenset({query - 2})) for query in range(2, LENGTH)]

    valid = looks_of(maps, near, causal=True)
    test = looks_of(maps, far, causal=True)
    score = score_relation(valid, test, (valid, test))
    assert (score.head, score.offset) == ((0, 0), -1)
    assert (score.hits.mean, score.baselines["fixed offset"]) == (0.0, 0.0)


def test_the_error_counts_documents_not_links():
    """A link that is repeated in its document adds no information; in a document of its own it does."""
    values = torch.tensor([1.0, 0.0, 1.0, 1.0])
    once = share(values, torch.arange(4))
    repeated = share(values.repeat(9), torch.arange(4).repeat(9))
    assert repeated.mean == pytest.approx(once.mean)
    assert repeated.error == pytest.approx(once.error)
    assert share(values.repeat(9), torch.arange(36)).error < once.error / 2
    assert once.error == pytest.approx(float(values.std()) / 2)
    assert share(values, torch.zeros(4)).error == math.inf


def test_a_neighbour_is_on_the_side_away_from_the_key_and_has_no_link_itself():
    links = [(3, frozenset({1})), (6, frozenset({8})), (9, frozenset({7})), (10, frozenset({7}))]
    expected = [(4, frozenset({1})), (5, frozenset({8})), (11, frozenset({7}))]
    assert from_neighbours(links, 12) == expected
    assert from_neighbours(links, 12, others=[11, 5]) == [(4, frozenset({1}))]
    assert from_neighbours([(2, frozenset({0}))], 3) == []
