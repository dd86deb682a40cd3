"""Every option of a call, and for biases by distance the NumPy formula that the oracle adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cells import Places

from regard.bias import ALiBi, T5Relative

BUCKETS, FARTHEST = 8, 6


@dataclass(frozen=True)
class Option:
    """Keywords of a call, and whether its bias learns; `added` is a NumPy formula of its bias by distance."""

    make: Callable[[Places], dict[str, Any]]
    learns: bool = False
    added: Callable[[Places], np.ndarray] | None = None


def _bias(*axes: str, hidden: bool = False) -> Callable[[Places], dict[str, Any]]:
    def make(at: Places) -> dict[str, Any]:
        shape = [dict(zip("bhqk", at.shape, strict=True)).get(axis, 1) for axis in axes]
        bias = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).bfloat16().double()
        if hidden:
            bias = bias.masked_fill(bias > 0.8, -torch.inf)
        return {"bias": bias}

    return make


def _sink(*axes: str, without: int | None = None) -> Callable[[Places], dict[str, Any]]:
    """Logits of sinks with these axes; head `without` has none."""

    def make(at: Places) -> dict[str, Any]:
        shape = [dict(zip("bh", at.shape, strict=False)).get(axis, 1) for axis in axes]
        sink = torch.randn(shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64).bfloat16().double()
        if without is not None:
            sink[..., without] = -torch.inf
        return {"sink": sink}

    return make


def _slopes(at: Places) -> np.ndarray:
    """ALiBi's slopes for six heads: those for four heads, and between them two of those for eight."""
    slopes = {6: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3], 2: [2.0**-4, 2.0**-8]}[at.h.size]
    return -np.array(slopes)[at.h] * np.abs(at.i - at.j)


def _learned_numbers(heads: int) -> torch.Tensor:
    return torch.randn(BUCKETS, heads, generator=torch.Generator().manual_seed(3)).bfloat16().double()


def _t5(learns: bool, sides: bool) -> Callable[[Places], dict[str, Any]]:
    def make(at: Places) -> dict[str, Any]:
        bias = T5Relative(at.h.size, buckets=BUCKETS, max_distance=FARTHEST, bidirectional=sides).double()
        bias.weight.data.copy_(_learned_numbers(at.h.size))
        return {"bias": bias.requires_grad_(learns)}

    return make


def bucket(at: Places, sides: bool) -> np.ndarray:
    """T5's bucket of each distance: half of the buckets have one distance, the others grow logarithmically."""
    ahead = at.j - at.i
    count = BUCKETS // 2 if sides else BUCKETS
    far = np.abs(ahead) if sides else np.maximum(-ahead, 0)
    exact = count // 2
    steps = np.log(np.maximum(far, 1) / exact) / np.log(FARTHEST / exact) * (count - exact)
    coarse = np.minimum(exact + np.floor(steps + 1e-6).astype(int), count - 1)
    return np.where(far < exact, far, coarse) + (count * (ahead > 0) if sides else 0)


def _t5_added(sides: bool) -> Callable[[Places], np.ndarray]:
    return lambda at: _learned_numbers(at.h.size).numpy()[bucket(at, sides), at.h]


OPTIONS: dict[str, Option] = {
    "plain": Option(lambda at: {}),
    "bias": Option(_bias("b", "h", "q", "k")),
    "bias by head": Option(_bias("h", "1", "k")),
    "bias by key": Option(_bias("k")),
    "bias by row": Option(_bias("b", "1", "q", "1")),
    "bias that hides": Option(_bias("q", "k", hidden=True)),
    "learned bias": Option(_bias("b", "h", "q", "k"), learns=True),
    "learned bias by distance": Option(_bias("h", "q", "k"), learns=True),
    "learned bias by head": Option(_bias("1", "h", "1", "1"), learns=True),
    "learned bias that hides": Option(_bias("b", "1", "q", "k", hidden=True), learns=True),
    "alibi": Option(lambda at: {"bias": ALiBi()}, added=_slopes),
    "alibi and q_start": Option(lambda at: {"bias": ALiBi(), "q_start": 5}, added=_slopes),
    "alibi and q_start by row": Option(
        lambda at: {"bias": ALiBi(), "q_start": torch.tensor([4, -1])}, added=_slopes
    ),
    "t5": Option(_t5(learns=True, sides=True), learns=True, added=_t5_added(sides=True)),
    "t5, fixed": Option(_t5(learns=False, sides=False), added=_t5_added(sides=False)),
    "scale": Option(lambda at: {"scale": 1.75}),
    "scale below zero": Option(lambda at: {"scale": -0.5}),
    "scale zero": Option(lambda at: {"scale": 0}),
    "softcap": Option(lambda at: {"softcap": 1.5}),
    "q_start": Option(lambda at: {"q_start": 3}),
    "q_start far": Option(lambda at: {"q_start": 9}),
    "q_start below zero": Option(lambda at: {"q_start": -2}),
    "q_start by row": Option(lambda at: {"q_start": torch.tensor([4, -1])}),
    "dropout": Option(lambda at: {"dropout": 0.4, "dropout_seed": 5}),
    "dropout of everything": Option(lambda at: {"dropout": 1.0, "dropout_seed": 5}),
    "sink": Option(_sink("h")),
    "sink as a number": Option(lambda at: {"sink": 0.5}),
    "sink by row": Option(lambda at: {**_sink("b", "h", without=1)(at), **_bias("q", "k", hidden=True)(at)}),
    "everything": Option(
        lambda at: {
            **_sink("b", "1")(at),
            "scale": 0.9, "softcap": 3.0, "dropout": 0.25, "dropout_seed": -1, "q_start": torch.tensor([0, 5]),
            **_bias("h", "q", "k")(at),
        },
        learns=True,
    ),
    "everything by distance": Option(
        lambda at: {
            "scale": -0.4, "softcap": 2.0, "dropout": 0.25, "dropout_seed": 2, "q_start": 2, **_t5(True, True)(at)
        },
        learns=True,
        added=_t5_added(sides=True),
    ),
}  # fmt: skip
