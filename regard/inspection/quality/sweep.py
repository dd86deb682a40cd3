"""What is compared unless the user says what."""

from __future__ import annotations

import math

from regard.inspection.quality.call import Call
from regard.inspection.quality.candidates import Candidate
from regard.mechanisms import LSH, LinearTransformer, Linformer, Performer, RandomFeature
from regard.patterns import CausalWindow, Fixed, GlobalTokens, Pattern, RandomBlocks, SlidingWindow, Strided

BLOCK = 64  # of BigBird's paper, where a window is three of them and the first two are global


def sweep(call: Call) -> list[Candidate]:
    """Every family with some values of its parameter; those that do not apply are left out later, with a reason."""
    return [*_windows(call), *_big_birds(call), *_sparse(call), *_features(), *_hashed(call), *_learned(call)]


def _near(call: Call, size: int) -> Pattern:
    return CausalWindow(size) if call.causal else SlidingWindow(size)


def _windows(call: Call) -> list[Candidate]:
    name = "causal window" if call.causal else "sliding window"
    return [Candidate(f"{name} {size}", name, str(size), _near(call, size)) for size in (64, 128, 256, 512)]


def _big_birds(call: Call) -> list[Candidate]:
    near = _near(call, 3 * BLOCK) | GlobalTokens(range(2 * BLOCK))
    return [
        Candidate(
            f"BigBird, {count} random blocks", "BigBird", str(count),
            near | RandomBlocks(count, block=BLOCK, past=call.causal),
        )
        for count in (1, 3, 6)
    ]  # fmt: skip


def _sparse(call: Call) -> list[Candidate]:
    """Sparse Transformer's patterns, with strides around the square root of the length."""
    middle = 2 ** max(2, round(math.log2(max(1, call.k.shape[2])) / 2))
    strides = (middle // 2, middle, 2 * middle)
    strided = [Candidate(f"strided {stride}", "strided", str(stride), Strided(stride)) for stride in strides]
    fixed = [
        Candidate(f"fixed {stride}", "fixed", str(stride), Fixed(stride, summary=max(1, stride // 8)))
        for stride in strides
    ]
    return strided + fixed


def _features() -> list[Candidate]:
    performers = [
        Candidate(f"Performer, {count} features", "Performer", str(count), Performer(count))
        for count in (64, 128, 256, 512)
    ]
    waves = [
        Candidate(f"RandomFeature, {count} features", "RandomFeature", str(count), RandomFeature(count))
        for count in (64, 128, 256)
    ]
    return [Candidate("LinearTransformer", "LinearTransformer", "", LinearTransformer()), *performers, *waves]


def _hashed(call: Call) -> list[Candidate]:
    """Chunks of 64, and twice as many buckets as chunks, as in Reformer's paper."""
    buckets = 2 * max(1, call.k.shape[2] // BLOCK)
    return [
        Candidate(f"LSH, {rounds} round{'s' if rounds > 1 else ''}", "LSH", str(rounds), LSH(BLOCK, buckets, rounds))
        for rounds in (1, 2, 4, 8)
    ]


def _learned(call: Call) -> list[Candidate]:
    """It cannot be judged before it has learned, and the report says so."""
    return [Candidate("Linformer", "Linformer", "", Linformer(max(1, call.k.shape[2]), 256))]
