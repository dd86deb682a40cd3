"""Random patterns for the laws, small enough for a dozen positions."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from regard import patterns as p

HEADS = 4
LONGEST = 24

few, places = st.integers(1, 5), st.integers(0, 9)
distances = st.one_of(  # they compare positions by their distance alone
    st.builds(p.SlidingWindow, st.integers(1, 9)),
    st.builds(p.CausalWindow, st.integers(1, 6)),
    st.builds(p.DilatedWindow, st.integers(2, 6), few),
    st.builds(p.Strided, st.integers(2, 6), st.booleans()),
    st.builds(p.Diagonals, st.integers(-2, 6), st.integers(-2, 6)),
    st.just(p.Causal()),
)
placed = st.one_of(  # they know where they stand, but not how many keys there are
    distances,
    st.builds(p.GlobalTokens, st.sets(places, min_size=1, max_size=3)),
    st.builds(p.Fixed, st.integers(2, 6), st.integers(1, 2), st.booleans()),
    st.builds(p.Prefix, st.integers(0, 6)),
    st.builds(p.KeySpan, places, st.none() | places),
    st.builds(p.RandomBlocks, st.integers(1, 2), st.integers(1, 3), st.integers(0, 9), st.just(True)),
    st.builds(lambda ids: p.SameDocument(torch.tensor(ids * 40)), st.lists(st.integers(0, 2), min_size=2, max_size=9)),
)
random_blocks = st.builds(p.RandomBlocks, st.integers(1, 2), st.integers(1, 3), st.integers(0, 9))


def joined(leaves: st.SearchStrategy[p.Pattern]) -> st.SearchStrategy[p.Pattern]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=4,
    )


def by_head(inner: st.SearchStrategy[p.Pattern]) -> st.SearchStrategy[p.Pattern]:
    return st.builds(p.PerHead, st.lists(inner, min_size=HEADS, max_size=HEADS))


of_distance = joined(distances)
without_length = st.one_of(joined(placed), joined(placed), by_head(joined(placed)))
anything = st.one_of(joined(st.one_of(placed, random_blocks)), by_head(joined(placed)))
alike = joined(st.one_of(placed, random_blocks))  # for all heads
kv_heads = st.sampled_from([4, 2, 1])
lengths = st.integers(1, LONGEST)
