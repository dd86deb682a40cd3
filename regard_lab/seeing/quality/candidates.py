"""A call of attention, its exact result, what may replace exact attention, and the candidates tried by default."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional

from regard.arguments import count_of, suggest
from regard.core.plan import Plan
from regard.core.problem import checked_parameters
from regard.errors import ArgumentError, RegardError
from regard.functional import attention, attention_detail, plan_attention
from regard.mechanisms import LSH, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import (
    CausalWindow,
    Diagonals,
    Fixed,
    GlobalTokens,
    Pattern,
    RandomBlocks,
    SlidingWindow,
    Strided,
    as_pattern,
)
from regard.reprs import brief


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Tensors and options of one call of `attention`."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pattern: Pattern
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def causal(self) -> bool:
        """Whether no query may look at a later key."""
        return self.pattern.canonical().reach().ahead == 0

    def but(self, *, options: Mapping[str, Any] | None = None, **changes: Any) -> AttentionCall:
        """The same call with other tensors or another pattern; options are added to its own."""
        return replace(self, **changes, options={**self.options, **(options or {})})

    def without(self, option: str) -> AttentionCall:
        """The same call without an option."""
        return replace(self, options={name: given for name, given in self.options.items() if name != option})

    def widened(self) -> AttentionCall:
        """The same call in float32 at least."""
        wide = torch.promote_types(self.q.dtype, torch.float32)
        return replace(self, q=self.q.to(wide), k=self.k.to(wide), v=self.v.to(wide))

    def output(self) -> torch.Tensor:
        """(batch, heads, q_len, v_dim)."""
        return attention(self.q, self.k, self.v, pattern=self.pattern, **self.options)

    def with_log_sum_exp(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp, (batch, heads, q_len, v_dim) and (batch, heads, q_len)."""
        detail = attention_detail(self.q, self.k, self.v, pattern=self.pattern, want="log_sum_exp", **self.options)
        return detail.output, detail.log_sum_exp

    def plan(self) -> Plan:
        """The plan of the call.

        Raises:
            RegardError: no backend computes the call.
        """
        return plan_attention(self.q, self.k, self.v, pattern=self.pattern, **self.options)


@dataclass(frozen=True, eq=False)
class Exact:
    """The result of exact attention, at least in float32.

    output: (batch, heads, q_len, v_dim). log_sum_exp: (batch, heads, q_len).
    own_score: (batch, heads, q_len), the score of each query with its own position, for mechanisms in which a query
    may look at its own position only if it may look at no other; else None.
    """

    output: torch.Tensor
    log_sum_exp: torch.Tensor
    own_score: torch.Tensor | None = None

    def errors(self, estimate: torch.Tensor) -> tuple[float, float]:
        """The errors of an estimate: |estimate - exact| / |exact|, and its largest row over the size of a row.

        Sizes are Euclidean norms; that of a row is the root mean square over all rows, so that the two errors are equal
        if all rows have the same error.
        """
        wrong = (estimate.to(self.output.dtype) - self.output).norm(dim=-1)  # (batch, heads, q_len)
        size = self.output.norm()
        return float(wrong.norm() / size), float(wrong.max() * math.sqrt(wrong.numel()) / size)

    def mass(self, kept: torch.Tensor) -> float:
        """The mean share of the exact softmax weight on the kept pairs, computed from log-sum-exps.

            Σ weights over kept pairs = exp(log_sum_exp of kept pairs - log_sum_exp of all)

        The mean is over all rows except empty ones; no weights are stored.
        """
        there = self.log_sum_exp > -math.inf
        share = (kept - self.log_sum_exp).exp()
        if self.own_score is not None:  # rows that kept only their own position kept no other pair
            share = share.masked_fill(torch.isclose(kept, self.own_score, rtol=1e-5, atol=1e-5), 0)
        return float(share[there].mean())


THIS_CALL = "the call"
ITSELF = Diagonals(0, 0)


def exact_results(call: AttentionCall, what: Pattern | Mechanism, known: dict[str, Exact]) -> dict[str, Exact]:
    """Exact results by their name in the column "against"; those missing in `known` are computed and added to it."""
    if isinstance(what, LSH):
        names = ["keys that are the queries"]
    elif isinstance(what, RandomFeature):
        names = [THIS_CALL, f"unit q, k; sigma {what.sigma:g}"]
    else:
        names = [THIS_CALL]
    for name in names:
        if name not in known:
            known[name] = _unit(call, what.sigma) if isinstance(what, RandomFeature) else _shared(call)
    return {name: known[name] for name in names}


def exact_of(call: AttentionCall) -> Exact:
    """Softmax attention by the cheapest backend that computes it exactly."""
    return Exact(*call.widened().with_log_sum_exp())


def _unit(call: AttentionCall, sigma: float) -> Exact:
    """The softmax of q·k / sigma² for q and k of length 1."""
    q, k = (functional.normalize(x, dim=-1) for x in (call.widened().q, call.widened().k))
    return exact_of(call.widened().but(q=q, k=k, options={"scale": sigma**-2}))


def _shared(call: AttentionCall) -> Exact:
    """Exact attention with normalised queries as keys, in which only a query without other keys looks at itself."""
    call = call.widened()
    call = call.but(k=functional.normalize(call.q, dim=-1))
    of_others, log_sum_exp = call.but(pattern=call.pattern & ~ITSELF).with_log_sum_exp()
    of_itself, own_score = call.but(pattern=call.pattern & ITSELF).with_log_sum_exp()
    log_sum_exp = log_sum_exp.masked_fill(own_score == -math.inf, -math.inf)
    output = torch.where((log_sum_exp == -math.inf)[..., None], of_itself, of_others)
    return Exact(output, log_sum_exp, own_score)


UNTRAINED = "untrained"  # in the names of candidates whose parameters were drawn
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

    def reason_against(self, exact: AttentionCall) -> str | None:
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

    def prepared(self, exact: AttentionCall, seed: int) -> Candidate:
        """The candidate with untrained parameters, drawn with a seed, if it needs some and none were given."""
        if not isinstance(self.what, Mechanism) or self.parameters is not None:
            return self
        generator = torch.Generator().manual_seed(seed)
        drawn = self.what.new_parameters(exact.q.shape[1], exact.k.shape[1], generator)
        if not drawn:
            return self
        placed = {name: one.detach().to(exact.q) for name, one in drawn.items()}
        return replace(self, name=f"{self.name} ({UNTRAINED})", parameters=placed)

    def call(self, exact: AttentionCall, seed: int | None = None) -> AttentionCall:
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


def sweep(call: AttentionCall) -> list[Candidate]:
    """The default candidates: every family with several values of its parameter."""
    return [*_windows(call), *_big_birds(call), *_sparse(call), *_features(), *_hashed(call), *_learned(call)]


def _near(call: AttentionCall, size: int) -> Pattern:
    return CausalWindow(size) if call.causal else SlidingWindow(size)


def _windows(call: AttentionCall) -> list[Candidate]:
    name = "causal window" if call.causal else "sliding window"
    return [Candidate(f"{name} {size}", name, str(size), _near(call, size)) for size in (64, 128, 256, 512)]


def _big_birds(call: AttentionCall) -> list[Candidate]:
    near = _near(call, 3 * BLOCK) | GlobalTokens(range(2 * BLOCK))
    return [
        Candidate(
            f"BigBird, {count_of(count, 'random blocks')}", "BigBird", str(count),
            near | RandomBlocks(count, block=BLOCK, past=call.causal),
        )
        for count in (1, 3, 6)
    ]  # fmt: skip


def _sparse(call: AttentionCall) -> list[Candidate]:
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


def _hashed(call: AttentionCall) -> list[Candidate]:
    """LSH with chunks of 64 and twice as many buckets as chunks, as in Reformer's paper."""
    buckets = 2 * max(1, call.k.shape[2] // BLOCK)
    return [
        Candidate(f"LSH, {rounds} round{'s' if rounds > 1 else ''}", "LSH", str(rounds), LSH(BLOCK, buckets, rounds))
        for rounds in (1, 2, 4, 8)
    ]


def _learned(call: AttentionCall) -> list[Candidate]:
    """Linformer, whose projections are drawn, not trained; it is left out of causal calls, with the reason."""
    return [Candidate("Linformer", "Linformer", "", Linformer(max(1, call.k.shape[2]), 256))]
