"""Random patterns for the laws, small enough for a dozen positions."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from pattern_strategies import completed

from regard import patterns as p

HEADS = 4
LONGEST = 24

few, places = st.integers(1, 5), st.integers(0, 9)
DISTANCES = {  # they compare positions by their distance only
    "sliding_window": st.builds(p.SlidingWindow, st.integers(1, 9)),
    "causal_window": st.builds(p.CausalWindow, st.integers(1, 6)),
    "dilated_window": st.builds(p.DilatedWindow, st.integers(2, 6), few),
    "strided": st.builds(p.Strided, st.integers(2, 6), st.booleans()),
    "diagonals": st.builds(p.Diagonals, st.integers(-2, 6), st.integers(-2, 6)),
    "causal": st.just(p.Causal()),
}
BY_LENGTH = {"random_blocks": st.builds(p.RandomBlocks, st.integers(1, 2), st.integers(1, 3), st.integers(0, 9))}
PLACED = completed(  # they depend on positions, but not on how many keys there are
    {
        **DISTANCES,
        "global_tokens": st.builds(p.GlobalTokens, st.sets(places, min_size=1, max_size=3)),
        "fixed": st.builds(p.Fixed, st.integers(2, 6), st.integers(1, 2), st.booleans()),
        "prefix": st.builds(p.Prefix, st.integers(0, 6)),
        "key_span": st.builds(p.KeySpan, places, st.none() | places),
        "random_blocks": st.builds(
            p.RandomBlocks, st.integers(1, 2), st.integers(1, 3), st.integers(0, 9), st.just(True)
        ),
        "same_document": st.builds(
            lambda ids: p.SameDocument(torch.tensor(ids * 40)), st.lists(st.integers(0, 2), min_size=2, max_size=9)
        ),
    },
    lambda kind: kind.no_text is None and kind.by_length is False,
)
DRAWN = {*PLACED, *BY_LENGTH, "per_head"}
distances, placed = st.one_of(*DISTANCES.values()), st.one_of(*PLACED.values())
random_blocks = BY_LENGTH["random_blocks"]


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
