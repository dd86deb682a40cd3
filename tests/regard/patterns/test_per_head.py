"""Patterns by head: each head sees what its own pattern lets it see, in everything that is asked of them."""

import pytest
import torch

from regard.errors import ArgumentError, ShapeError
from regard.patterns import (
    Causal,
    CausalWindow,
    Full,
    KeySpan,
    PerHead,
    Prefix,
    Strided,
    Where,
)
from regard.patterns.grid import Grid
from regard.patterns.visible import visible_keys


def test_a_part_that_differs_by_head_gives_each_head_its_own():
    """Head h sees what the h-th pattern lets head h see."""
    inner = PerHead([Prefix(2), KeySpan(1, 3), Full()])
    pattern = PerHead([inner, inner & Prefix(2), PerHead([Full(), Full(), KeySpan(3)])])
    of_heads = [Prefix(2), KeySpan(1, 3) & Prefix(2), KeySpan(3)]
    expected = torch.stack([of_head.dense(4, 5) for of_head in of_heads])[None]
    grid = Grid.whole(4, 5)
    allowed = pattern.allows(torch.arange(4)[:, None], torch.arange(5)[None])
    for dense in (pattern.dense(4, 5), allowed, pattern.evaluate(grid)):
        assert torch.equal(dense.expand_as(expected), expected)
    assert torch.equal(visible_keys(pattern, grid), expected.any(2))
    assert pattern.count(4, 5) == int(expected.sum())
    for head, of_head in enumerate(of_heads):
        assert pattern.for_head(head).canonical() == of_head.canonical()


@pytest.mark.parametrize(
    "join",
    [lambda pattern: ~pattern, lambda pattern: pattern & Strided(3)],
    ids=["not", "and"],
)
def test_hidden_keys_of_a_joined_pattern_are_those_of_each_head(join):
    pattern = join(PerHead([CausalWindow(2), Prefix(3)]))
    expected = pattern.dense(3, 9, q_start=2).any(2)
    assert not torch.equal(expected[:, 0], expected[:, 1])
    assert torch.equal(visible_keys(pattern, Grid.whole(3, 9, 2)), expected)


def test_where_every_head_has_queries_for_every_key_none_is_hidden():
    assert visible_keys(PerHead([Full(), Causal()]), Grid.whole(4, 4)) is None


def test_what_it_says_of_itself_follows_from_its_parts():
    assert PerHead([Prefix(1), KeySpan(2)]).query_free
    assert not PerHead([Prefix(1), Causal()]).query_free
    assert not PerHead([Prefix(1), KeySpan(2)]).compares_positions
    assert PerHead([Prefix(1), Causal()]).compares_positions
    assert not PerHead([Causal(), Where(lambda i, j: i == j)]).structured
    assert str(PerHead([CausalWindow(3), CausalWindow(5)]).reach(2)) == "8 back, 0 ahead"
    assert PerHead([CausalWindow(3), Prefix(1)]).key_range(5, 6, 9) == range(7)


def test_a_call_of_other_heads_or_batch_rows_is_refused():
    PerHead([Causal(), Full()]).check(1, 2, 3, 3)
    with pytest.raises(ShapeError, match="2 patterns but the call has 4 query heads"):
        PerHead([Causal(), Full()]).check(1, 4, 3, 3)
    with pytest.raises(ShapeError, match="KeySpan's stop holds 2 numbers"):
        PerHead([Causal(), KeySpan(0, torch.tensor([1, 2]))]).check(3, 2, 3, 3)


@pytest.mark.parametrize("patterns", [[], [Causal(), "full"], "full", Causal(), None])
def test_what_is_no_list_of_patterns_is_refused(patterns):
    with pytest.raises(ArgumentError, match="PerHead needs patterns, one for each query head"):
        PerHead(patterns)
