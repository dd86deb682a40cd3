"""The cells of the support matrix: patterns beside their own NumPy formulas, options, sizes, heads and dtypes.

No formula asks a pattern: `allowed` comes from positions alone, as docs and papers write it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard import patterns as p

BATCH = 2
HEADS = {"MHA": (6, 6), "GQA": (6, 3), "MQA": (6, 1)}
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
LENGTHS = ((7, 11), (11, 7), (1, 5))


@dataclass(frozen=True)
class Places:
    """Index arrays that broadcast to (batch, heads, q_len, k_len): i and j are positions, row counts queries."""

    b: np.ndarray
    h: np.ndarray
    row: np.ndarray
    i: np.ndarray
    j: np.ndarray

    @classmethod
    def of(cls, batch: int, heads: int, q_len: int, k_len: int, q_start: Any = None) -> Places:
        b, h = np.arange(batch)[:, None, None, None], np.arange(heads)[None, :, None, None]
        row, j = np.arange(q_len)[None, None, :, None], np.arange(k_len)[None, None, None, :]
        start = k_len - q_len if q_start is None else np.asarray(q_start).reshape(-1, 1, 1, 1)
        return cls(b, h, row, row + start, j)

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.b.shape, self.h.shape, self.row.shape, self.j.shape)


def noise(*place: np.ndarray) -> np.ndarray:
    """Booleans without structure, three of four True, the same for the same place."""
    mixed = sum((n + 1) * factor for n, factor in zip(place, (7919, 104729, 1299709, 15485863), strict=False))
    return (mixed * 2654435761 >> 7) % 4 != 1


def _explicit(batch: bool, heads: bool) -> Callable[[Places], p.Pattern]:
    def build(at: Places) -> p.Pattern:
        found = noise(at.row, at.j, at.b if batch else 0 * at.b[:1], at.h if heads else 0 * at.h[:, :1])
        return p.Explicit(torch.from_numpy(found if batch or heads else found[0, 0]))

    return build


STARTS, STOPS = np.array([2, 0]), np.array([6, 4])
ROWS = (-1, 1, 1, 1)

# name: (the pattern, its formula)
PATTERNS: dict[str, tuple[Callable[[Places], p.Pattern | str | None], Callable[[Places], np.ndarray]]] = {
    "full": (lambda at: None, lambda at: at.j >= 0),
    "causal": (lambda at: "causal", lambda at: at.j <= at.i),
    "sliding window, even": (lambda at: p.SlidingWindow(4), lambda at: np.abs(at.i - at.j) <= 2),
    "sliding window, odd": (lambda at: p.SlidingWindow(3), lambda at: np.abs(at.i - at.j) <= 1),
    "causal window": (lambda at: p.CausalWindow(3), lambda at: (at.i - at.j >= 0) & (at.i - at.j < 3)),
    "key span": (lambda at: p.KeySpan(2, 5), lambda at: (at.j >= 2) & (at.j < 5)),
    "key span by row": (
        lambda at: p.KeySpan(torch.from_numpy(STARTS), torch.from_numpy(STOPS)),
        lambda at: (at.j >= STARTS.reshape(ROWS)) & (at.j < STOPS.reshape(ROWS)),
    ),
    "key span, one row empty": (
        lambda at: p.KeySpan(0, torch.tensor([0, 3])),
        lambda at: at.j < np.array([0, 3]).reshape(ROWS),
    ),
    "explicit (q, k)": (_explicit(False, False), lambda at: noise(at.row, at.j, 0 * at.b[:1], 0 * at.h[:, :1])),
    "explicit (b, h, q, k)": (_explicit(True, True), lambda at: noise(at.row, at.j, at.b, at.h)),
    "explicit (1, h, q, k)": (_explicit(False, True), lambda at: noise(at.row, at.j, 0 * at.b[:1], at.h)),
    "explicit (b, 1, q, k)": (_explicit(True, False), lambda at: noise(at.row, at.j, at.b, 0 * at.h[:, :1])),
    "where": (
        lambda at: p.Where(lambda i, j: (3 * i + j) % 4 != 1),
        lambda at: (3 * at.i + at.j) % 4 != 1,
    ),
    "causal and span": (
        lambda at: p.Causal() & p.KeySpan(1, 6),
        lambda at: (at.j <= at.i) & (at.j >= 1) & (at.j < 6),
    ),
    "causal and padding": (
        lambda at: p.Causal() & p.KeySpan(torch.from_numpy(STARTS)),
        lambda at: (at.j <= at.i) & (at.j >= STARTS.reshape(ROWS)),
    ),
    "window or first keys": (
        lambda at: "causal & (causal_window(2) | key_span(0, 2))",
        lambda at: (at.j <= at.i) & ((at.i - at.j < 2) | (at.j < 2)),
    ),
    "future": (lambda at: ~p.Causal(), lambda at: at.j > at.i),
    "not near": (lambda at: ~p.SlidingWindow(2), lambda at: np.abs(at.i - at.j) > 1),
    "not a span": (lambda at: ~p.KeySpan(2, 4), lambda at: (at.j < 2) | (at.j >= 4)),
    "nothing": (lambda at: p.Causal() & ~p.Causal(), lambda at: at.j < 0),
    "mixture": (
        lambda at: ~(p.Causal() & p.Where(lambda i, j: j % 3 == 0)) & (p.SlidingWindow(8) | p.KeySpan(4)),
        lambda at: ~((at.j <= at.i) & (at.j % 3 == 0)) & ((np.abs(at.i - at.j) <= 4) | (at.j >= 4)),
    ),
}


@dataclass(frozen=True)
class Option:
    """Keywords of a call, whether its bias learns, and the words with which fused refuses it (None: it computes)."""

    make: Callable[[Places], dict[str, Any]]
    learns: bool = False
    fused_says: str | None = None


def _bias(*axes: str, hidden: bool = False) -> Callable[[Places], dict[str, Any]]:
    def make(at: Places) -> dict[str, Any]:
        shape = [dict(zip("bhqk", at.shape, strict=True)).get(axis, 1) for axis in axes]
        bias = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).bfloat16().double()
        if hidden:
            bias = bias.masked_fill(bias > 0.8, -torch.inf)
        return {"bias": bias}

    return make


GRADIENT, CAP, LAW = "give a bias no gradient", "have no softcap", "another law"
OPTIONS: dict[str, Option] = {
    "plain": Option(lambda at: {}),
    "bias": Option(_bias("b", "h", "q", "k")),
    "bias by head": Option(_bias("h", "1", "k")),
    "bias by key": Option(_bias("k")),
    "bias by row": Option(_bias("b", "1", "q", "1")),
    "bias that hides": Option(_bias("q", "k", hidden=True)),
    "learned bias": Option(_bias("b", "h", "q", "k"), learns=True, fused_says=GRADIENT),
    "learned bias by distance": Option(_bias("h", "q", "k"), learns=True, fused_says=GRADIENT),
    "learned bias by head": Option(_bias("1", "h", "1", "1"), learns=True, fused_says=GRADIENT),
    "scale": Option(lambda at: {"scale": 1.75}),
    "scale below zero": Option(lambda at: {"scale": -0.5}),
    "scale zero": Option(lambda at: {"scale": 0}),
    "softcap": Option(lambda at: {"softcap": 1.5}, fused_says=CAP),
    "q_start": Option(lambda at: {"q_start": 3}),
    "q_start far": Option(lambda at: {"q_start": 9}),
    "q_start below zero": Option(lambda at: {"q_start": -2}),
    "q_start by row": Option(lambda at: {"q_start": torch.tensor([4, -1])}),
    "dropout": Option(lambda at: {"dropout": 0.4, "dropout_seed": 5}, fused_says=LAW),
    "everything": Option(
        lambda at: {
            "scale": 0.9, "softcap": 3.0, "dropout": 0.25, "dropout_seed": -1, "q_start": torch.tensor([0, 5]),
            **_bias("h", "q", "k")(at),
        },
        learns=True,
        fused_says=CAP,
    ),
}  # fmt: skip
