"""Random patterns for the laws: every registered pattern, drawn as its formula is, and joined with `& | ~`."""

import random

import torch
from fuzz.meanings import LEAVES, TENSORS, Places, build, plain_leaf
from hypothesis import strategies as st

from regard.patterns import KeySpan, Pattern, PerHead, SameDocument, Where

HEADS = 2
ROWS = 2  # of the batch
POSITIONS = 9  # that the drawn numbers are for
LOCAL = (  # shifted with query and key together they stay what they are
    "full",
    "causal",
    "sliding_window",
    "causal_window",
    "diagonals",
    "dilated_window",
    "lattice",
    "strided",
    "same_block",
    "summary",
    "fixed",
)


def _drawn(name: str) -> st.SearchStrategy[Pattern]:
    at = Places(1, 1, POSITIONS, POSITIONS, (0,))

    def draw(seed: int) -> Pattern:
        return build(plain_leaf(random.Random(seed), name, POSITIONS), at)

    return st.builds(draw, st.integers(0, 9999))


def _is_readable(name: str, kind: type[Pattern]) -> bool:
    return name in LEAVES and name not in TENSORS and kind.no_text is None


KINDS = Pattern.registry.of_package("regard")
READABLE = {name: _drawn(name) for name, kind in KINDS.items() if _is_readable(name, kind)}
local = st.one_of(*(READABLE[name] for name in LOCAL))
readable = st.one_of(*READABLE.values())
documents = st.builds(
    lambda ids: SameDocument(torch.tensor(ids)),
    st.lists(st.integers(0, 2), min_size=9, max_size=12),
)
rules = st.sampled_from([Where(lambda i, j: (3 * i + j) % 4 != 1), Where(lambda i, j: j % 3 == 0)])
ends = st.lists(st.integers(-3, 9), min_size=ROWS, max_size=ROWS).map(torch.tensor)
spans = st.builds(KeySpan, ends, ends)
packed = st.lists(st.integers(0, 2), min_size=ROWS * 9, max_size=ROWS * 9).map(
    lambda ids: SameDocument(torch.tensor(ids).view(ROWS, -1))
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
anything = joined(
    st.one_of(readable, documents, rules, spans, packed, by_head(st.one_of(readable, spans, rules)))
)
lengths = st.integers(0, 9)
starts = st.none() | st.integers(-6, 14)


def pairs(
    pattern: Pattern, q_len: int, k_len: int, q_start: int | torch.Tensor | None
) -> torch.Tensor:
    """The truth by asking `allows` alone, four axes."""
    start = k_len - q_len if q_start is None else q_start
    if isinstance(start, torch.Tensor):
        start = start.view(-1, 1, 1, 1)
    allowed = pattern.allows(torch.arange(q_len)[:, None] + start, torch.arange(k_len))
    return allowed.expand(torch.broadcast_shapes(allowed.shape, (1, 1, q_len, k_len)))
