"""Random patterns for the laws: every enrolled pattern, joined with `& | ~`; `allows` is the truth."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from pattern_strategies import completed

from regard.patterns import (
    Causal,
    CausalWindow,
    Diagonals,
    DilatedWindow,
    Fixed,
    Full,
    GlobalTokens,
    KeySet,
    KeySpan,
    Lattice,
    Pattern,
    PerHead,
    Prefix,
    QuerySet,
    RandomBlocks,
    SameBlock,
    SameDocument,
    SlidingWindow,
    Strided,
    Summary,
    Where,
)

HEADS, ROWS = 2, 2
small = st.integers(-3, 9)
few = st.integers(1, 6)
places = st.sets(st.integers(0, 9), max_size=4)
runs = st.lists(st.builds(lambda start, length: range(start, start + length), st.integers(0, 9), few), max_size=3)
blocks = st.integers(1, 6).flatmap(lambda stride: st.tuples(st.just(stride), st.integers(1, stride)))

LOCAL = {  # shifted with query and key together they stay what they are
    "full": st.just(Full()),
    "causal": st.just(Causal()),
    "sliding_window": st.builds(SlidingWindow, st.integers(1, 7)),
    "causal_window": st.builds(CausalWindow, st.integers(1, 7)),
    "diagonals": st.builds(Diagonals, st.none() | small, st.none() | small),
    "dilated_window": st.builds(DilatedWindow, st.integers(1, 7), few),
    "lattice": st.builds(Lattice, few),
    "strided": st.builds(Strided, few, st.booleans()),
    "same_block": st.builds(SameBlock, few),
    "summary": st.builds(lambda block: Summary(*block), blocks),
    "fixed": st.builds(lambda block, local: Fixed(*block, local=local), blocks, st.booleans()),
}
READABLE = completed(
    {
        **LOCAL,
        "global_tokens": st.builds(GlobalTokens, places),
        "key_set": st.builds(lambda runs: KeySet(tuple(runs)), runs),
        "query_set": st.builds(lambda runs: QuerySet(tuple(runs)), runs),
        "prefix": st.builds(Prefix, st.integers(0, 9)),
        "key_span": st.builds(KeySpan, small, st.none() | small),
        "random_blocks": st.builds(
            RandomBlocks, st.integers(1, 3), st.integers(1, 4), st.integers(0, 99), st.booleans()
        ),
    },
    lambda kind: kind.no_text is None,
)
local, readable = st.one_of(*LOCAL.values()), st.one_of(*READABLE.values())
documents = st.builds(lambda ids: SameDocument(torch.tensor(ids)), st.lists(st.integers(0, 2), min_size=9, max_size=12))
rules = st.sampled_from([Where(lambda i, j: (3 * i + j) % 4 != 1), Where(lambda i, j: j % 3 == 0)])
spans = st.builds(
    lambda starts, stops: KeySpan(torch.tensor(starts), torch.tensor(stops)),
    st.lists(small, min_size=ROWS, max_size=ROWS),
    st.lists(small, min_size=ROWS, max_size=ROWS),
)
packed = st.builds(
    lambda ids: SameDocument(torch.tensor(ids).view(ROWS, -1)),
    st.lists(st.integers(0, 2), min_size=ROWS * 9, max_size=ROWS * 9),
)


def joined(leaves: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=6,
    )


def by_head(inner: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    return st.builds(PerHead, st.lists(inner, min_size=HEADS, max_size=HEADS))


alike = joined(st.one_of(readable, documents))  # for all batch rows and heads, and structured
texts = joined(st.one_of(readable, by_head(readable)))
anything = joined(st.one_of(readable, documents, rules, spans, packed, by_head(st.one_of(readable, spans, rules))))
lengths = st.integers(0, 9)
starts = st.none() | st.integers(-6, 14)


def pairs(pattern: Pattern, q_len: int, k_len: int, q_start: int | torch.Tensor | None) -> torch.Tensor:
    """The truth by asking `allows` alone, four axes."""
    start = k_len - q_len if q_start is None else q_start
    rows = torch.arange(q_len)[:, None]
    rows = start.view(-1, 1, 1, 1) + rows if isinstance(start, torch.Tensor) else rows + start
    allowed = pattern.allows(rows, torch.arange(k_len))
    shape = torch.broadcast_shapes(allowed.shape, (1, 1, q_len, k_len))
    return allowed.expand(shape)
