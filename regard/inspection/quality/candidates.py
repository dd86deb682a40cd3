"""What may replace exact attention, how `attention` is called with it, and the candidates tried by default."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.errors import ArgumentError, RegardError
from regard.inspection.quality.call import Call
from regard.mechanisms import LSH, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature
from regard.patterns import CausalWindow, Fixed, GlobalTokens, Pattern, RandomBlocks, SlidingWindow, Strided, as_pattern

Given = Pattern | str | Mechanism | tuple[Mechanism, Mapping[str, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A pattern of softmax attention, or another mechanism with what it learned.

    Args:
        name: as the report shows it.
        family: candidates of one family differ by a parameter alone, and one of them may be suggested.
        knob: that parameter, in a few letters.
        what: the pattern or mechanism.
        parameters: the tensors that the mechanism learned.
    """

    name: str
    family: str
    knob: str
    what: Pattern | Mechanism
    parameters: Mapping[str, torch.Tensor] | None = None

    @property
    def random(self) -> bool:
        """Does it depend on a seed?"""
        return self._reseeded(0) != self._reseeded(1)

    def reason_against(self, exact: Call) -> str | None:
        """Why it does not apply to a call, in words for the report, or None."""
        q, k = (tuple(x.shape[:3]) for x in (exact.q, exact.k))
        if isinstance(self.what, Mechanism) and self.what.shares_keys and q != k:
            return f"its queries are its keys, and this call has {q} and {k} of them (batch, heads, length)"
        try:
            kept = self.call(exact).plan().problem.kept_pairs
        except RegardError as error:
            return str(error)
        if isinstance(self.what, Pattern) and kept is not None and kept == exact.plan().problem.kept_pairs:
            return f"it keeps each of the {kept} pairs of this call, so it is exact attention itself"
        return None

    def call(self, exact: Call, seed: int | None = None) -> Call:
        """The call that stands for an exact one; without a seed, with its own.

        The call's own pattern stays, `&` the candidate's. A mechanism that has no scale is given none.
        """
        what = self.what if seed is None else self._reseeded(seed)
        if isinstance(what, Pattern):
            return exact.but(pattern=exact.pattern & what)
        call = exact if "scale" in what.takes else exact.without("scale")
        options: dict[str, Any] = {"mechanism": what, "parameters": self.parameters}
        return call.but(k=exact.q, options=options) if what.shares_keys else call.but(options=options)

    def _reseeded(self, seed: int) -> Any:
        if isinstance(self.what, Pattern):
            return self.what.mapped(lambda part: _redrawn(part, seed))
        what: Any = self.what
        if hasattr(what, "redrawn"):
            return what.redrawn(seed)
        return replace(what, seed=seed) if hasattr(what, "seed") else what


def as_candidate(given: Given | Candidate) -> Candidate:
    """A candidate from what a user writes.

    Raises:
        ArgumentError: it is neither pattern nor mechanism.

    >>> as_candidate("causal & (strided(64) | global_tokens(0))").family
    'causal & (strided | global_tokens)'
    """
    if isinstance(given, Candidate):
        return given
    what, parameters = given if isinstance(given, tuple) else (given, None)
    what = as_pattern(what) if isinstance(what, str) else what
    if not isinstance(what, Pattern | Mechanism):
        raise ArgumentError(
            f"{what!r} cannot stand in for exact attention; give a pattern, its text, a mechanism, or a pair of a "
            f"mechanism and its parameters"
        )
    name = str(what)
    family = re.sub(r"(?<=\w)\([^()]*\)", "", name)  # without the arguments
    knob = ", ".join(part for part in re.findall(r"(?<=\w)\(([^()]*)\)", name) if part)
    return Candidate(name, family, knob, what, parameters)


def _redrawn(part: Pattern, seed: int) -> Pattern:
    return RandomBlocks(part.drawn, part.block, seed, part.past) if isinstance(part, RandomBlocks) else part


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
