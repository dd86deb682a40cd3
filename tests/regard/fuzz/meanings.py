"""The list of formulas: how to draw a pattern, which pairs it allows (see docs/conventions.md), and how to build it.

Fuzzer, contract grid and hypothesis laws take patterns from here; a pattern of regard that is missing fails
tests/regard/contracts/test_enrolled.py.

The masks are NumPy written from the table of the contract; nothing here asks a pattern of regard what it means.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from regard import patterns as p
from regard.patterns.bands import Diagonals
from regard.patterns.fixed import Summary
from regard.patterns.position_sets import KeySet, QuerySet
from regard.patterns.strided import Lattice

from .counting import distinct
from .found import formulas


@dataclass(frozen=True)
class Places:
    """Index arrays that broadcast to (batch, heads, q_len, k_len): i and j are positions, row counts queries."""

    batch: int
    heads: int
    q_len: int
    k_len: int
    start: tuple[int, ...]  # the position of the first query, of every batch row or of each

    @property
    def i(self) -> np.ndarray:
        starts = np.array(self.start, np.int64).reshape(-1, 1, 1, 1)
        return np.arange(self.q_len).reshape(-1, 1) + starts

    @property
    def j(self) -> np.ndarray:
        return np.arange(self.k_len).reshape(1, 1, 1, -1)

    def by_row(self, numbers: tuple[int, ...]) -> np.ndarray:
        """One number for each batch row, (batch, 1, 1, 1); given ones are repeated in turn."""
        by_row = [numbers[b % len(numbers)] for b in range(self.batch)]
        return np.array(by_row, np.int64).reshape(-1, 1, 1, 1)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.q_len, self.k_len


@dataclass(frozen=True)
class Node:
    """A pattern: a leaf with its numbers, or `and`, `or`, `not`, `per_head` of parts."""

    kind: str
    args: tuple[Any, ...] = ()
    parts: tuple[Node, ...] = ()

    def __str__(self) -> str:
        inside = ", ".join([*map(repr, self.args), *map(str, self.parts)])
        return f"{self.kind}({inside})" if inside else self.kind

    def leaves(self) -> set[str]:
        if not self.parts:
            return {self.kind}
        return set().union(*(part.leaves() for part in self.parts))


FULL = Node("full")
COMBINED = {"and": operator.and_, "or": operator.or_}


@dataclass(frozen=True)
class Leaf:
    """`draw` numbers, given a generator and the longer of both lengths; `mask` and `build` a pattern of them."""

    draw: Callable[[random.Random, int], tuple[Any, ...]]
    mask: Callable[..., np.ndarray]
    build: Callable[..., p.Pattern]
    readable: bool = True  # it has a text
    sure: bool = True  # where it lets every query look at every key, its structure says so


def _size(r: random.Random, n: int) -> int:
    """1 to 9, at times as long as the text."""
    return r.choice((r.randint(1, 4), r.randint(1, 9), r.randint(1, n + 2)))


def _end(r: random.Random, n: int) -> int | None:
    return None if r.random() < 0.25 else r.randint(-4, r.choice((6, n + 2)))


def _runs(r: random.Random, n: int) -> tuple[tuple[int, int], ...]:
    starts = [r.randint(0, n) for _ in range(r.randint(0, 3))]
    return tuple((start, start + r.randint(1, max(1, n // 3))) for start in starts)


def _block(r: random.Random, n: int) -> tuple[int, int]:
    stride = _size(r, n)
    return stride, r.randint(1, stride)


def _within(x: np.ndarray, runs: tuple[tuple[int, int], ...]) -> np.ndarray:
    return reduce(np.logical_or, [(x >= a) & (x < b) for a, b in runs], np.zeros(x.shape, bool))


def _draw_blocks(r: random.Random, n: int, past: bool) -> tuple[int, int, int, bool]:
    return r.randint(1, 3), r.choice((1, 2, 3, 8)), r.choice((0, 7, -9, 2**40)), past


def _random_blocks(at: Places, count: int, block: int, seed: int, past: bool) -> np.ndarray:
    block_of_query = at.i // block
    block_of_key = at.j // block
    allowed = np.zeros(np.broadcast_shapes(block_of_query.shape, block_of_key.shape), bool)
    for q_block in np.unique(block_of_query).tolist():
        choices = q_block + 1 if past else -(-at.k_len // block)
        for k_block in distinct(count, seed, q_block, choices):
            allowed |= (block_of_query == q_block) & (block_of_key == k_block)
    return allowed


def _documents(r: random.Random, n: int) -> tuple[int, ...]:
    ids: list[int] = []
    while len(ids) < max(n, 1):
        ids += [r.randint(-1, 3)] * r.choice((1, 2, 5, 11))
    return tuple(ids[: max(n, 1) + r.choice((0, 0, 7))])


def _same_document(at: Places, *rows: tuple[int, ...]) -> np.ndarray:
    batch = at.batch if len(rows) > 1 else len(at.start)
    masks = []
    for b in range(batch):
        ids = np.array(rows[b % len(rows)])
        q_pos = at.i[b % len(at.i)]
        has_id = (q_pos >= 0) & (q_pos < len(ids))
        id_of_query = ids[np.where(has_id, q_pos, 0)]
        masks.append((id_of_query == ids[at.j[0]]) & has_id)
    return np.stack(masks)


def _of_rows(
    build: Callable[[torch.Tensor], p.Pattern], *rows: tuple[int, ...], at: Places
) -> p.Pattern:
    """The pattern of one row for the whole batch, or of a row for each batch row, in turn."""
    if len(rows) == 1:
        return build(torch.tensor(rows[0]))
    return build(torch.tensor([rows[b % len(rows)] for b in range(at.batch)]))


_ids = partial(_of_rows, p.SameDocument)
_live = partial(_of_rows, p.KeyMask)


def _holes(r: random.Random, n: int) -> tuple[bool, ...]:
    share = r.choice((0.1, 0.5, 0.9, 1.0))
    return tuple(r.random() < share for _ in range(n + 9))


def _key_mask(at: Places, *rows: tuple[bool, ...]) -> np.ndarray:
    batch = at.batch if len(rows) > 1 else 1
    live = np.array([rows[b % len(rows)][: at.k_len] for b in range(batch)], bool)
    return live[:, None, None, :]


def _noise(at: Places, seed: int, density: float, batch: bool, heads: bool) -> np.ndarray:
    shape = at.batch if batch else 1, at.heads if heads else 1, at.q_len, at.k_len
    return np.random.default_rng(seed).random(shape) < density


def _explicit(seed: int, density: float, batch: bool, heads: bool, *, at: Places) -> p.Pattern:
    mask = torch.from_numpy(_noise(at, seed, density, batch, heads))
    return p.Explicit(mask if batch or heads else mask[0, 0])


def _span_mask(at: Places, start: Any, stop: Any) -> np.ndarray:
    low = at.by_row(start) if isinstance(start, tuple) else start
    high = at.by_row(stop) if isinstance(stop, tuple) else stop
    return (at.j >= low) & (True if stop is None else at.j < high)


def _span(start: Any, stop: Any, *, at: Places) -> p.Pattern:
    return p.KeySpan(_end_of_rows(start, at), _end_of_rows(stop, at))


def _end_of_rows(end: Any, at: Places) -> Any:
    return torch.from_numpy(at.by_row(end).ravel()) if isinstance(end, tuple) else end


def _draw_spans(r: random.Random, n: int) -> tuple[Any, Any]:
    """Ends of which at least one differs by row."""
    starts_by_row = r.random() < 0.7
    starts = tuple(r.randint(-2, n // 2) for _ in range(3)) if starts_by_row else r.randint(0, 3)
    stops_by_row = r.random() < 0.7 or not starts_by_row
    stops = tuple(r.randint(0, n + 2) for _ in range(3)) if stops_by_row else None
    return starts, stops


def listed_mask(listed: np.ndarray, at: Places, block: int, rows: int) -> np.ndarray:
    """Which pairs lists of blocks of keys (batch or 1, lists, row blocks, n) allow, (batch, heads, q_len, k_len)."""
    mask = np.zeros(at.shape, bool)
    for b, h, i in np.ndindex(at.shape[:3]):
        of_head = h * listed.shape[1] // at.heads
        for k_block in listed[b % len(listed), of_head, i // rows]:
            if k_block >= 0:
                mask[b, h, i, k_block * block : (k_block + 1) * block] = True
    return mask


def _listed(
    at: Places, seed: int, block: int, rows: int, n: int, by_row: bool, by_head: bool
) -> np.ndarray:
    sizes = at.batch if by_row else 1, at.heads if by_head else 1, -(-at.q_len // rows), n
    return np.random.default_rng(seed).integers(-1, -(-at.k_len // block), sizes)


def _draw_lists(r: random.Random, blocks: bool) -> tuple[Any, ...]:
    sizes = (r.choice((1, 2, 3, 16, 17)), r.choice((1, 2, 3, 8, 40))) if blocks else (1, 1)
    return (r.randint(0, 999), *sizes, r.randint(1, 4), r.random() < 0.4, r.random() < 0.4)


def _of_lists(build: Callable[..., p.Pattern], blocks: bool) -> Leaf:
    return Leaf(
        lambda r, n: _draw_lists(r, blocks),
        lambda at, *numbers: listed_mask(_listed(at, *numbers), at, *numbers[1:3]),
        lambda *numbers, at: build(torch.from_numpy(_listed(at, *numbers)), *numbers[1:3]),
        readable=False,
    )


def _trees(at: Places, seed: int, by_row: bool) -> np.ndarray:
    sizes = at.batch if by_row else 1, at.q_len
    return np.random.default_rng(seed).integers(-1, np.arange(at.q_len), sizes)


def _tree_mask(at: Places, *numbers: Any) -> np.ndarray:
    """Keys before the first query and, by following parents up, those of each row's ancestors and its own."""
    mask = (at.j < at.i[..., :1, :]) & np.ones(at.shape, bool)
    trees = _trees(at, *numbers)
    for b, row in np.ndindex(at.batch, at.q_len):
        start = at.start[b % len(at.start)]
        node = row
        while node >= 0:
            if 0 <= start + node < at.k_len:
                mask[b, :, row, start + node] = True
            node = trees[b % len(trees), node]
    return mask


RULES: tuple[Callable[[Any, Any], Any], ...] = (
    lambda i, j: (3 * i + j) % 4 != 1,
    lambda i, j: (i + j) % 2 == 0,
    lambda i, j: i * i % 5 <= j % 4,
    lambda i, j: j % 3 == 0,  # of another shape than its arguments have together
)


def _ranges(runs: tuple[tuple[int, int], ...]) -> tuple[range, ...]:
    return tuple(range(*run) for run in runs)


LEAVES: dict[str, Leaf] = {
    "full": Leaf(lambda r, n: (), lambda at: at.j >= 0, p.Full),
    "causal": Leaf(lambda r, n: (), lambda at: at.j <= at.i, p.Causal),
    "sliding_window": Leaf(
        lambda r, n: (_size(r, n),), lambda at, w: np.abs(at.i - at.j) <= w // 2, p.SlidingWindow
    ),
    "causal_window": Leaf(
        lambda r, n: (_size(r, n),),
        lambda at, w: (at.i - at.j >= 0) & (at.i - at.j < w),
        p.CausalWindow,
    ),
    "dilated_window": Leaf(
        lambda r, n: (_size(r, n), r.randint(1, 5)),
        lambda at, w, d: ((at.i - at.j) % d == 0) & (np.abs(at.i - at.j) <= d * (w // 2)),
        p.DilatedWindow,
    ),
    "compressed": Leaf(
        lambda r, n: (r.randint(1, 7), r.randint(1, 4)),
        lambda at, w, s: at.j * s + w - 1 <= at.i,
        p.Compressed,
    ),
    "global_tokens": Leaf(
        lambda r, n: tuple(r.randint(0, n) for _ in range(r.randint(0, 4))),
        lambda at, *some: np.isin(at.i, some) | np.isin(at.j, some),
        lambda *some: p.GlobalTokens(some),
    ),
    "random_blocks": Leaf(partial(_draw_blocks, past=False), _random_blocks, p.RandomBlocks),
    "random_past": Leaf(partial(_draw_blocks, past=True), _random_blocks, p.RandomBlocks),
    "strided": Leaf(
        lambda r, n: (_size(r, n), r.random() < 0.6),
        lambda at, s, local: ((at.i - at.j) % s == 0) | ((np.abs(at.i - at.j) < s) & local),
        p.Strided,
    ),
    "fixed": Leaf(
        lambda r, n: (*_block(r, n), r.random() < 0.6),
        lambda at, s, c, local: (at.j % s >= s - c) | ((at.i // s == at.j // s) & local),
        lambda s, c, local: p.Fixed(s, summary=c, local=local),
    ),
    "prefix": Leaf(lambda r, n: (r.randint(0, n + 1),), lambda at, n: at.j < n, p.Prefix),
    "same_document": Leaf(lambda r, n: (_documents(r, n),), _same_document, _ids, readable=False),
    "documents_by_row": Leaf(
        lambda r, n: _alike([_documents(r, n + 7)[: n + 7] for _ in range(3)]),
        _same_document,
        _ids,
        readable=False,
    ),
    "key_span": Leaf(
        lambda r, n: (r.randint(-3, n), None if r.random() < 0.3 else r.randint(-1, n + 3)),
        _span_mask,
        p.KeySpan,
    ),
    "spans_by_row": Leaf(_draw_spans, _span_mask, _span, readable=False),
    "key_mask": Leaf(lambda r, n: (_holes(r, n),), _key_mask, _live, readable=False),
    "masks_by_row": Leaf(
        lambda r, n: tuple(_holes(r, n) for _ in range(3)), _key_mask, _live, readable=False
    ),
    "explicit": Leaf(
        lambda r, n: (
            r.randint(0, 999),
            r.choice((0.1, 0.5, 0.9)),
            r.random() < 0.4,
            r.random() < 0.4,
        ),
        _noise,
        _explicit,
        readable=False,
    ),
    "where": Leaf(
        lambda r, n: (r.randrange(len(RULES)),),
        lambda at, rule: RULES[rule](at.i, at.j),
        lambda rule: p.Where(RULES[rule]),
        readable=False,
    ),
    "diagonals": Leaf(
        lambda r, n: (_end(r, n), _end(r, n)),
        lambda at, back, ahead: (
            (True if back is None else at.j - at.i >= -back)
            & (True if ahead is None else at.j - at.i <= ahead)
            & (at.j + at.i == at.j + at.i)
        ),
        Diagonals,
    ),
    "lattice": Leaf(lambda r, n: (_size(r, n),), lambda at, s: (at.i - at.j) % s == 0, Lattice),
    "same_block": Leaf(
        lambda r, n: (_size(r, n), r.choice((0, 0, r.randint(-3, 9)))),
        lambda at, s, first: (at.i - first) // s == (at.j - first) // s,
        p.SameBlock,
    ),
    "blocks_by_row": Leaf(
        lambda r, n: (_size(r, n), tuple(r.randint(-3, 9) for _ in range(3))),
        lambda at, s, first: (at.i - at.by_row(first)) // s == (at.j - at.by_row(first)) // s,
        lambda s, first, *, at: p.SameBlock(s, torch.from_numpy(at.by_row(first).ravel())),
        readable=False,
    ),
    "summary": Leaf(_block, lambda at, s, c: at.j % s >= s - c, Summary),
    "key_set": Leaf(
        _runs, lambda at, *runs: _within(at.j, runs), lambda *runs: KeySet(_ranges(runs))
    ),
    "query_set": Leaf(
        _runs, lambda at, *runs: _within(at.i, runs), lambda *runs: QuerySet(_ranges(runs))
    ),
    "chosen_blocks": _of_lists(p.ChosenBlocks, True),
    "chosen_keys": _of_lists(lambda keys, block, rows: p.ChosenKeys(keys), False),
    "tree": Leaf(
        lambda r, n: (r.randint(0, 999), r.random() < 0.5),
        _tree_mask,
        lambda *numbers, at: p.Tree(torch.from_numpy(_trees(at, *numbers))),
        readable=False,
    ),
    **{name: Leaf(**formula) for name, formula in formulas("patterns").items()},
}
# Leaves that hold tensors, whose sizes are those of the call.
TENSORS = {
    "documents_by_row",
    "same_document",
    "spans_by_row",
    "blocks_by_row",
    "key_mask",
    "masks_by_row",
    "explicit",
    "chosen_blocks",
    "chosen_keys",
    "tree",
}


def _alike(rows: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    shortest = min(map(len, rows))
    return tuple(row[:shortest] for row in rows)


def drawn(r: random.Random, n: int, allowed: list[str], depth: int = 0) -> Node:
    """A random pattern of these leaves for texts of length n."""

    def draw_parts(count: int) -> tuple[Node, ...]:
        return tuple(drawn(r, n, allowed, depth + 1) for _ in range(count))

    turn = r.random() + 0.22 * depth
    if turn < 0.42:
        parts = draw_parts(2 if r.random() < 0.8 else 3)
        return Node(r.choice(("and", "and", "or")), (), parts)
    if turn < 0.50:
        return Node("not", (), draw_parts(1))
    if turn < 0.58:
        return Node("per_head", (), draw_parts(r.randint(1, 3)))
    return plain_leaf(r, r.choice(allowed), n)


def plain_leaf(r: random.Random, kind: str, n: int) -> Node:
    """A random pattern of this kind."""
    return Node(kind, LEAVES[kind].draw(r, n))


def mask_of(node: Node, at: Places) -> np.ndarray:
    """Which pairs a pattern allows, (batch, heads, q_len, k_len)."""
    if node.kind == "per_head":
        of_parts = [mask_of(part, at) for part in node.parts]
        return np.stack([of_parts[h % len(of_parts)][:, h] for h in range(at.heads)], axis=1)
    if node.kind in COMBINED:
        return reduce(COMBINED[node.kind], [mask_of(part, at) for part in node.parts])
    if node.kind == "not":
        return ~mask_of(node.parts[0], at)
    return np.broadcast_to(LEAVES[node.kind].mask(at, *node.args), at.shape)


def build(node: Node, at: Places) -> p.Pattern:
    """The same pattern as regard writes it."""
    parts = [build(part, at) for part in node.parts]
    if node.kind == "per_head":
        return p.PerHead([parts[h % len(parts)] for h in range(at.heads)])
    if node.kind in COMBINED:
        return reduce(COMBINED[node.kind], parts)
    if node.kind == "not":
        return ~parts[0]
    leaf = LEAVES[node.kind]
    return leaf.build(*node.args, at=at) if node.kind in TENSORS else leaf.build(*node.args)
