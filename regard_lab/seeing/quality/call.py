"""One attention call, how the report varies it, and the exact result that a candidate estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional

from regard.core.plan import Plan
from regard.functional import attention, attention_detail, plan_attention
from regard.mechanisms import LSH, Mechanism, RandomFeature
from regard.patterns import Diagonals, Pattern


@dataclass(frozen=True, eq=False)
class Call:
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

    def but(self, *, options: Mapping[str, Any] | None = None, **changes: Any) -> Call:
        """The same call with other tensors or another pattern; options are added to its own."""
        return replace(self, **changes, options={**self.options, **(options or {})})

    def without(self, option: str) -> Call:
        """The same call without an option."""
        return replace(self, options={name: given for name, given in self.options.items() if name != option})

    def widened(self) -> Call:
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


def exact_answers(call: Call, what: Pattern | Mechanism, known: dict[str, Exact]) -> dict[str, Exact]:
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


def exact_of(call: Call) -> Exact:
    """Softmax attention by the cheapest backend that computes it exactly."""
    return Exact(*call.widened().with_log_sum_exp())


def _unit(call: Call, sigma: float) -> Exact:
    """The softmax of q·k / sigma² for q and k of length 1."""
    q, k = (functional.normalize(x, dim=-1) for x in (call.widened().q, call.widened().k))
    return exact_of(call.widened().but(q=q, k=k, options={"scale": sigma**-2}))


def _shared(call: Call) -> Exact:
    """Exact attention with normalised queries as keys, in which only a query without other keys looks at itself."""
    call = call.widened()
    call = call.but(k=functional.normalize(call.q, dim=-1))
    of_others, log_sum_exp = call.but(pattern=call.pattern & ~ITSELF).with_log_sum_exp()
    of_itself, own_score = call.but(pattern=call.pattern & ITSELF).with_log_sum_exp()
    log_sum_exp = log_sum_exp.masked_fill(own_score == -math.inf, -math.inf)
    output = torch.where((log_sum_exp == -math.inf)[..., None], of_itself, of_others)
    return Exact(output, log_sum_exp, own_score)
