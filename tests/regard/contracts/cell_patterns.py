"""Every pattern with a NumPy formula of its own, as docs and papers write it; no formula uses the pattern."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from cells import Places
from fuzz.meanings import LEAVES

from regard import patterns as p


@dataclass(frozen=True)
class Row:
    """A pattern, its formula, and the properties by which a backend refuses it."""

    build: Callable[[Places], p.Pattern | str | None]
    formula: Callable[[Places], np.ndarray]
    structured: bool = True  # it tells more than pair by pair
    by_row: bool = False  # batch rows differ
    open_ended: bool = False  # a band of diagonals without an end on one side
    sure: bool = True  # where it lets every query see every key, its structure says so


def noise(*place: np.ndarray) -> np.ndarray:
    """Booleans without structure, three of four True, the same for the same place."""
    mixed = sum((n + 1) * factor for n, factor in zip(place, (7919, 104729, 1299709, 15485863), strict=False))
    return (mixed * 2654435761 >> 7) % 4 != 1


def _explicit(batch: bool, heads: bool) -> Row:
    def formula(at: Places) -> np.ndarray:
        return noise(at.row, at.j, at.b if batch else 0 * at.b[:1], at.h if heads else 0 * at.h[:, :1])

    def build(at: Places) -> p.Pattern:
        found = formula(at)
        return p.Explicit(torch.from_numpy(found if batch or heads else found[0, 0]))

    return Row(build, formula, structured=False, by_row=batch)


def _scramble(x: np.ndarray) -> np.ndarray:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def _draw(seed: int, own: int, step: int, choices: int) -> int:
    """SplitMix64 of seed, query block and step, its upper half as a share of the choices."""
    state = _scramble(np.array([(seed + (own + 1) * 0x9E3779B97F4A7C15) % 2**64], np.uint64))
    state = _scramble(state + np.uint64((step + 1) * 0xC2B2AE3D27D4EB4F % 2**64))
    return (int(state[0]) >> 32) * choices >> 32


def drawn(count: int, seed: int, own: int, choices: int) -> set[int]:
    """Floyd's sampling of `count` numbers below `choices`."""
    if choices <= count:
        return set(range(choices))
    found: set[int] = set()
    for step in range(count):
        top = choices - count + step
        number = _draw(seed, own, step, top + 1)
        found.add(top if number in found else number)
    return found


def random_blocks(at: Places, count: int, block: int, seed: int, past: bool = False) -> np.ndarray:
    own, keys, blocks = at.i // block, at.j // block, -(-at.j.size // block)
    allowed = np.zeros(np.broadcast_shapes(own.shape, keys.shape), bool)
    for one in np.unique(own).tolist():
        for chosen in drawn(count, seed, one, one + 1 if past else blocks):
            allowed |= (own == one) & (keys == chosen)
    return allowed


LIVE = np.stack([np.arange(700) % 5 != 3, np.arange(700) ** 2 % 7 < 3])
_OFFSETS = np.array([1, -2]).reshape(2, 1, 1, 1)
DOCUMENTS = np.stack([np.arange(700) * 7 // 23 % 5, np.arange(700) ** 2 // 40 % 7])


def same_document(ids: np.ndarray) -> Callable[[Places], np.ndarray]:
    """ids (1 or batch, length); every pair with a position beyond the ids is masked."""

    def formula(at: Places) -> np.ndarray:
        rows = np.arange(len(ids)).reshape(-1, 1, 1, 1)
        known = (at.i >= 0) & (at.i < ids.shape[1])
        return (ids[rows, np.clip(at.i, 0, ids.shape[1] - 1)] == ids[rows, at.j]) & known

    return formula


def by_head(rows: list[Row]) -> Row:
    """The rows in turn, for however many heads there are."""

    def build(at: Places) -> p.Pattern:
        parts = [p.as_pattern(one.build(at)) for one in rows]
        return p.PerHead([parts[head % len(parts)] for head in range(at.h.size)])

    def formula(at: Places) -> np.ndarray:
        whole = [np.broadcast_to(one.formula(at), at.shape) for one in rows]
        return np.concatenate([whole[head % len(rows)][:, [head]] for head in range(at.h.size)], axis=1)

    return Row(build, formula, by_row=any(one.by_row for one in rows), structured=all(one.structured for one in rows))


def _causal(at: Places) -> np.ndarray:
    return at.j <= at.i


def _near(size: int) -> Callable[[Places], np.ndarray]:
    return lambda at: np.abs(at.i - at.j) <= size // 2


def _global(indices: list[int]) -> Callable[[Places], np.ndarray]:
    return lambda at: np.isin(at.i, indices) | np.isin(at.j, indices)


def _strided(stride: int) -> Callable[[Places], np.ndarray]:
    return lambda at: (np.abs(at.i - at.j) < stride) | ((at.i - at.j) % stride == 0)


def _fixed(stride: int, summary: int) -> Callable[[Places], np.ndarray]:
    return lambda at: (at.i // stride == at.j // stride) | (at.j % stride >= stride - summary)


def _dilated(size: int, dilation: int) -> Callable[[Places], np.ndarray]:
    return lambda at: ((at.i - at.j) % dilation == 0) & (np.abs(at.i - at.j) <= dilation * (size // 2))


STARTS, STOPS = np.array([2, 0]), np.array([6, 4])
ROWS = (-1, 1, 1, 1)


def _padded(at: Places) -> np.ndarray:
    return at.j >= STARTS.reshape(ROWS)


_live = p.KeyMask(torch.from_numpy(LIVE))
_document = torch.from_numpy(DOCUMENTS)
_padding = p.KeySpan(torch.from_numpy(STARTS))
_bigbird = p.SlidingWindow(2) | p.GlobalTokens([0]) | p.RandomBlocks(1, block=2, seed=5)

PATTERNS: dict[str, Row] = {
    "full": Row(lambda at: None, lambda at: at.j >= 0, open_ended=True),
    "causal": Row(lambda at: "causal", _causal, open_ended=True),
    "sliding window, even": Row(lambda at: p.SlidingWindow(4), _near(4)),
    "sliding window, odd": Row(lambda at: p.SlidingWindow(3), _near(3)),
    "causal window": Row(lambda at: p.CausalWindow(3), lambda at: _causal(at) & (at.i - at.j < 3)),
    "diagonals": Row(lambda at: p.Diagonals(5, -2), lambda at: (at.j - at.i >= -5) & (at.j - at.i <= -2)),
    "diagonals, one end": Row(lambda at: p.Diagonals(None, 2), lambda at: at.j - at.i <= 2, open_ended=True),
    "key span": Row(lambda at: p.KeySpan(2, 5), lambda at: (at.j >= 2) & (at.j < 5), open_ended=True),
    "key span by row": Row(
        lambda at: p.KeySpan(torch.from_numpy(STARTS), torch.from_numpy(STOPS)),
        lambda at: _padded(at) & (at.j < STOPS.reshape(ROWS)),
        by_row=True,
    ),
    "key span, one row empty": Row(
        lambda at: p.KeySpan(0, torch.tensor([0, 3])), lambda at: at.j < np.array([0, 3]).reshape(ROWS), by_row=True
    ),
    "prefix": Row(lambda at: p.Prefix(3), lambda at: at.j < 3, open_ended=True),
    "prefix or causal": Row(lambda at: p.Causal() | p.Prefix(4), lambda at: _causal(at) | (at.j < 4)),
    "global tokens": Row(lambda at: p.GlobalTokens([0, 3, 8]), _global([0, 3, 8])),
    "dilated window": Row(lambda at: p.DilatedWindow(4, 3), _dilated(4, 3)),
    "dilated window, causal": Row(
        lambda at: p.DilatedWindow(6, 2) & p.Causal(), lambda at: _dilated(6, 2)(at) & _causal(at)
    ),
    "strided": Row(lambda at: p.Strided(3), _strided(3), sure=False),
    "strided, far part": Row(lambda at: p.Strided(4, local=False), lambda at: (at.i - at.j) % 4 == 0),
    "strided, causal": Row(lambda at: "causal & strided(3)", lambda at: _causal(at) & _strided(3)(at)),
    "fixed": Row(lambda at: p.Fixed(4, summary=1), _fixed(4, 1)),
    "fixed, far part": Row(lambda at: p.Fixed(3, 2, local=False), lambda at: at.j % 3 >= 1),
    "fixed, causal": Row(lambda at: p.Causal() & p.Fixed(3), lambda at: _causal(at) & _fixed(3, 1)(at)),
    "random blocks": Row(
        lambda at: p.RandomBlocks(2, block=2, seed=7), lambda at: random_blocks(at, 2, 2, 7), sure=False
    ),
    "random blocks of the past": Row(
        lambda at: p.RandomBlocks(2, block=2, seed=-9, past=True), lambda at: random_blocks(at, 2, 2, -9, past=True)
    ),
    "random edges": Row(
        lambda at: p.RandomBlocks(3, block=1, seed=1), lambda at: random_blocks(at, 3, 1, 1), sure=False
    ),
    "same document": Row(lambda at: p.SameDocument(_document[0]), same_document(DOCUMENTS[:1])),
    "same document by row": Row(lambda at: p.SameDocument(_document), same_document(DOCUMENTS), by_row=True),
    "same block by row": Row(
        lambda at: p.SameBlock(4, torch.tensor([1, -2])),
        lambda at: (at.i - _OFFSETS) // 4 == (at.j - _OFFSETS) // 4,
        by_row=True,
    ),
    "key mask": Row(lambda at: p.KeyMask(torch.from_numpy(LIVE[0])), lambda at: LIVE[0][at.j]),
    "key mask by row": Row(lambda at: _live, lambda at: LIVE[np.arange(2)[:, None, None, None], at.j], by_row=True),
    "causal and key mask": Row(
        lambda at: p.Causal() & _live,
        lambda at: _causal(at) & LIVE[np.arange(2)[:, None, None, None], at.j],
        by_row=True,
    ),
    "explicit (q, k)": _explicit(False, False),
    "explicit (b, h, q, k)": _explicit(True, True),
    "explicit (1, h, q, k)": _explicit(False, True),
    "explicit (b, 1, q, k)": _explicit(True, False),
    "where": Row(
        lambda at: p.Where(lambda i, j: (3 * i + j) % 4 != 1), lambda at: (3 * at.i + at.j) % 4 != 1, structured=False
    ),
    "causal and span": Row(
        lambda at: p.Causal() & p.KeySpan(1, 6), lambda at: _causal(at) & (at.j >= 1) & (at.j < 6), open_ended=True
    ),
    "causal and padding": Row(lambda at: p.Causal() & _padding, lambda at: _causal(at) & _padded(at), by_row=True),
    "window or first keys": Row(
        lambda at: "causal & (causal_window(2) | key_span(0, 2))",
        lambda at: _causal(at) & ((at.i - at.j < 2) | (at.j < 2)),
    ),
    "future": Row(lambda at: ~p.Causal(), lambda at: at.j > at.i, open_ended=True),
    "not near": Row(lambda at: ~p.SlidingWindow(2), lambda at: np.abs(at.i - at.j) > 1),
    "not a span": Row(lambda at: ~p.KeySpan(2, 4), lambda at: (at.j < 2) | (at.j >= 4)),
    "nothing": Row(lambda at: p.Causal() & ~p.Causal(), lambda at: at.j < 0),
    "bigbird": Row(
        lambda at: _bigbird,
        lambda at: _near(2)(at) | _global([0])(at) | random_blocks(at, 1, 2, 5),
        sure=False,
    ),
    "bigbird, causal": Row(
        lambda at: p.Causal() & (p.CausalWindow(2) | p.GlobalTokens([1]) | p.RandomBlocks(1, 2, 3, past=True)),
        lambda at: _causal(at) & ((at.i - at.j < 2) | _global([1])(at) | random_blocks(at, 1, 2, 3, past=True)),
    ),
    "longformer, padded": Row(
        lambda at: (p.SlidingWindow(4) | p.GlobalTokens([0, 5])) & _padding,
        lambda at: (_near(4)(at) | _global([0, 5])(at)) & _padded(at),
        by_row=True,
    ),
    "texts of a packed batch": Row(
        lambda at: p.Causal() & p.SameDocument(_document) & ~p.GlobalTokens([4]),
        lambda at: _causal(at) & same_document(DOCUMENTS)(at) & ~_global([4])(at),
        by_row=True,
    ),
    "neither strided nor a span": Row(
        lambda at: ~(p.Strided(3, local=False) | p.KeySpan(1, 4)),
        lambda at: ~(((at.i - at.j) % 3 == 0) | ((at.j >= 1) & (at.j < 4))),
    ),
    "mixture": Row(
        lambda at: ~(p.Causal() & p.Where(lambda i, j: j % 3 == 0)) & (p.SlidingWindow(8) | p.KeySpan(4)),
        lambda at: ~(_causal(at) & (at.j % 3 == 0)) & ((np.abs(at.i - at.j) <= 4) | (at.j >= 4)),
        structured=False,
    ),
}


def _by_formula(name: str) -> Row:
    """A row of the fuzzer's list of formulas, with the numbers that it draws first."""
    leaf, args = LEAVES[name], LEAVES[name].draw(random.Random(name), 9)
    pattern = leaf.build(*args)
    band, kind = pattern.band(), type(pattern)
    answers = (
        kind.form is not p.Pattern.form or kind.segments is not p.Pattern.segments
    )  # else pairs are asked one by one
    return Row(
        lambda at: leaf.build(*args),
        lambda at: np.broadcast_to(leaf.mask(at, *args), at.shape),
        sure=leaf.sure and answers,
        open_ended=band is not None and None in (band.left, band.right),
    )


# A pattern with a formula there needs no row here.
PATTERNS |= {
    name: _by_formula(name)
    for name in p.Pattern.registry.of_package("regard")
    if name in LEAVES and not any(re.match(rf"{name.replace('_', ' ')}\b", key) for key in PATTERNS)
}
PATTERNS["per head"] = by_head(
    [PATTERNS[name] for name in ("causal", "full", "strided, causal", "bigbird", "nothing", "fixed, far part")]
)
PATTERNS["per head, padded"] = Row(
    lambda at: PATTERNS["per head"].build(at) & _padding,
    lambda at: PATTERNS["per head"].formula(at) & _padded(at),
    by_row=True,
)
