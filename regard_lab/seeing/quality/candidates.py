"""What may replace exact attention, how `attention` is called with it, and the candidates tried by default."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.arguments import count_of, suggest
from regard.core.problem import checked_parameters
from regard.errors import ArgumentError, RegardError
from regard.mechanisms import LSH, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import CausalWindow, Fixed, GlobalTokens, Pattern, RandomBlocks, SlidingWindow, Strided, as_pattern
from regard.reprs import brief
from regard_lab.seeing.quality.call import Call
from regard_lab.seeing.quality.report import UNTRAINED

LIST = "regard show --list"  # prints the names of patterns
Given = Pattern | str | Mechanism | tuple[Mechanism, Mapping[str, torch.Tensor]]


@brief
@dataclass(frozen=True, eq=False)
class Candidate:
    """A pattern of softmax attention, or another mechanism with its learned parameters.

    Args:
        name: its name in the report.
        family: candidates of a family differ in one parameter; the report suggests one of them.
        knob: the value of that parameter.
        what: the pattern or mechanism.
        parameters: the learned tensors of the mechanism.
    """

    name: str
    family: str
    knob: str
    what: Pattern | Mechanism
    parameters: Mapping[str, torch.Tensor] | None = None

    @property
    def random(self) -> bool:
        """Whether the candidate depends on a seed."""
        return self._reseeded(0) != self._reseeded(1)

    def reason_against(self, exact: Call) -> str | None:
        """The reason why the candidate does not apply to a call, or None."""
        q, k = (tuple(x.shape[:3]) for x in (exact.q, exact.k))
        if isinstance(self.what, Mechanism) and self.what.shares_keys and q != k:
            return f"it needs equal queries and keys, and this call has {q} and {k} of them (batch, heads, length)"
        try:
            problem = self.call(exact).plan().problem
            if isinstance(self.what, Mechanism):
                checked_parameters(self.what, problem.sizes, self.parameters, exact.q)
            kept = problem.kept_pairs
        except RegardError as error:
            return str(error)
        if isinstance(self.what, Pattern) and kept is not None and kept == exact.plan().problem.kept_pairs:
            return f"it keeps all {count_of(kept, 'pairs')} of this call, so it is exact attention"
        return None

    def prepared(self, exact: Call, seed: int) -> Candidate:
        """The candidate with untrained parameters, drawn with a seed, if it needs some and none were given."""
        if not isinstance(self.what, Mechanism) or self.parameters is not None:
            return self
        generator = torch.Generator().manual_seed(seed)
        drawn = self.what.new_parameters(exact.q.shape[1], exact.k.shape[1], generator)
        if not drawn:
            return self
        placed = {name: one.detach().to(exact.q) for name, one in drawn.items()}
        return replace(self, name=f"{self.name} ({UNTRAINED})", parameters=placed)

    def call(self, exact: Call, seed: int | None = None) -> Call:
        """The call with which the candidate replaces an exact call; `seed=None` uses the candidate's own seed.

        The pattern of the call is kept and combined with the candidate's by `&`. The scale is dropped for a mechanism
        without one.
        """
        what = self.what if seed is None else self._reseeded(seed)
        if isinstance(what, Pattern):
            return exact.but(pattern=exact.pattern & what)
        call = exact if "scale" in what.options else exact.without("scale")
        options: dict[str, Any] = {"mechanism": what, "parameters": self.parameters}
        return call.but(k=exact.q, options=options) if what.shares_keys else call.but(options=options)

    def _reseeded(self, seed: int) -> Any:
        if isinstance(self.what, Pattern):
            return self.what.redrawn(seed)
        what: Any = self.what
        if hasattr(what, "redrawn"):
            return what.redrawn(seed)
        return replace(what, seed=seed) if hasattr(what, "seed") else what


def as_candidate(given: Given | Candidate) -> Candidate:
    """Make a candidate from a pattern, a mechanism, the text of either, or a mechanism with parameters.

    Raises:
        ArgumentError: it is neither a pattern nor a mechanism.

    >>> as_candidate("causal & (strided(64) | global_tokens(0))").family
    'causal & (strided | global_tokens)'
    >>> as_candidate("performer(features=64)").name
    'performer(64, seed=0)'
    """
    if isinstance(given, Candidate):
        return given
    what, parameters = given if isinstance(given, tuple) else (given, None)
    if isinstance(what, str):
        what = _read(what)
    if not isinstance(what, Pattern | Mechanism):
        raise ArgumentError(
            f"{what!r} cannot replace exact attention; give a pattern, its text, a mechanism, or a pair of a "
            f"mechanism and its parameters"
        )
    name = str(what)
    family = re.sub(r"(?<=\w)\([^()]*\)", "", name)  # without the arguments
    knob = ", ".join(part for part in re.findall(r"(?<=\w)\(([^()]*)\)", name) if part)
    return Candidate(name, family, knob, what, parameters)


def _read(text: str) -> Pattern | Mechanism:
    """A mechanism if the text begins with the name of one, else a pattern."""
    begins = re.match(r"\s*([A-Za-z][\w-]*)", text)
    name = begins[1].replace("-", "_") if begins else ""
    if name in Mechanism.registry.kinds:
        return parse_mechanism(text)
    if name and name not in Pattern.registry.kinds:
        names = [*Pattern.registry.names(), *Mechanism.registry.names()]
        raise ArgumentError(f"{name!r} is neither a pattern nor a mechanism; {suggest(name, names, LIST)}")
    return as_pattern(text)


BLOCK = 64  # block size of BigBird's paper, with a window of three blocks and two global blocks


def sweep(call: Call) -> list[Candidate]:
    """The default candidates: every family with several values of its parameter."""
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
            f"BigBird, {count_of(count, 'random blocks')}", "BigBird", str(count),
            near | RandomBlocks(count, block=BLOCK, past=call.causal),
        )
        for count in (1, 3, 6)
    ]  # fmt: skip


def _sparse(call: Call) -> list[Candidate]:
    """The patterns of the Sparse Transformer, with strides around the square root of the length."""
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
        Candidate(f"Performer, {count_of(count, 'features')}", "Performer", str(count), Performer(count))
        for count in (64, 128, 256, 512)
    ]
    waves = [
        Candidate(f"RandomFeature, {count_of(count, 'features')}", "RandomFeature", str(count), RandomFeature(count))
        for count in (64, 128, 256)
    ]
    return [Candidate("LinearTransformer", "LinearTransformer", "", LinearTransformer()), *performers, *waves]


def _hashed(call: Call) -> list[Candidate]:
    """LSH with chunks of 64 and twice as many buckets as chunks, as in Reformer's paper."""
    buckets = 2 * max(1, call.k.shape[2] // BLOCK)
    return [
        Candidate(f"LSH, {rounds} round{'s' if rounds > 1 else ''}", "LSH", str(rounds), LSH(BLOCK, buckets, rounds))
        for rounds in (1, 2, 4, 8)
    ]


def _learned(call: Call) -> list[Candidate]:
    """Linformer, whose projections are drawn, not trained; it is left out of causal calls, with the reason."""
    return [Candidate("Linformer", "Linformer", "", Linformer(max(1, call.k.shape[2]), 256))]
