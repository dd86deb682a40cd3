"""Recurrent mechanisms: a state of constant size decays, and keys are written into it; the delta rule corrects it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from regard.arguments import check_fields, real
from regard.mechanisms.base import (
    FormulaInputs,
    FormulaResult,
    Mechanism,
    Sizes,
    looks_back_alone,
)
from regard.patterns import Causal, KeyMask, KeySpan, Pattern, SameDocument
from regard.patterns.grid import four_axes
from regard.patterns.registry import written

# log_decay and strength, None where every key has 0 and 1.
Gates = tuple[torch.Tensor | None, torch.Tensor | None]


class Recurrent(Mechanism, enrol=False):
    """A mechanism with a state S, (head_dim, v_dim), into which keys are written in turn and which queries read:

        S_t = a_t S_{t-1} + k_t u_tᵀ,   output_i = scale · S_iᵀ q_i
        u_t = b_t v_t,   or b_t (v_t - (a_t S_{t-1})ᵀ k_t) if it corrects

    `log_decay` holds log a_t, one number for each key or one for each of its channels (a_t then multiplies the rows of
    S); `strength` holds b_t. Both are computed for each call and passed to it, `parameters={"log_decay": ...,
    "strength": ...}`, of shape (batch or 1, kv_heads, k_len) or (batch or 1, kv_heads, k_len, head_dim). A log decay
    may be 0 or -inf. Masked keys neither decay nor write. Nothing is normalised: there are no weights, and so no
    statistics of them.

    v may have more heads than q and k: see `docs/conventions.md`, axes and heads.
    """

    patterns: ClassVar[tuple[type[Pattern], ...] | None] = (Causal, KeySpan, KeyMask, SameDocument)
    options: ClassVar[frozenset[str]] = frozenset({"scale"})
    computed: ClassVar[frozenset[str]] = frozenset({"log_decay", "strength"})
    by_key: ClassVar[frozenset[str]] = frozenset({"log_decay", "strength"})
    has_state: ClassVar[bool] = True
    groups_values: ClassVar[bool] = True
    decays_by: ClassVar[str | None] = None  # "head" or "channel"
    takes_strength: ClassVar[bool] = False
    corrects: ClassVar[bool] = False  # whether it is a delta rule

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        by_key = sizes.batch, sizes.kv_heads, sizes.k_len
        shapes: dict[str, tuple[int, ...]] = {}
        if self.decays_by == "head":
            shapes["log_decay"] = by_key
        if self.decays_by == "channel":
            shapes["log_decay"] = (*by_key, sizes.head_dim)
        if self.takes_strength:
            shapes["strength"] = by_key
        return shapes

    def reason_against(
        self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float
    ) -> str | None:
        if looks_back_alone(pattern):
            return None
        return (
            f"its memory holds the keys up to each query, and {pattern} is not causal; add & causal"
        )

    def gates(
        self, parameters: Mapping[str, torch.Tensor], k: torch.Tensor, v: torch.Tensor
    ) -> Gates:
        """log_decay (batch, kv_heads, keys[, head_dim]) and strength (batch, kv_heads, keys), in float32 at least."""
        dtype = torch.promote_types(v.dtype, torch.float32)
        by_key = v.shape[:3]
        log_decay = parameters.get("log_decay")
        strength = parameters.get("strength")
        if log_decay is None:
            log_decay = self.constant_log_decay(v)
        if log_decay is not None:
            log_decay = log_decay.to(dtype).expand(*by_key, *log_decay.shape[3:])
        if strength is not None:
            strength = strength.to(dtype).expand(by_key)
        return log_decay, strength

    def constant_log_decay(self, v: torch.Tensor) -> torch.Tensor | None:
        """The log decays of a call that gives none, (1, kv_heads, 1)."""
        return None

    def state_shape(self, head_dim: int, v_dim: int) -> tuple[int, int]:
        return head_dim, v_dim

    def formula(self, inputs: FormulaInputs) -> FormulaResult:
        """The step above, key by key: each key continues the memory after the last one that its position may look at.

        Sources: those of the mechanisms below, whose steps are this one with some of its parts.
        """
        dtype = inputs.sum_dtype
        heads = max(inputs.q.shape[1], inputs.v.shape[1])
        q, k, v = (_for_heads(x.to(dtype), heads) for x in (inputs.q, inputs.k, inputs.v))
        allowed = inputs.pattern.evaluate(inputs.grid)
        last_of_query = _last_allowed(allowed)
        # A key continues the memory of the last key that a query at its place would look at before it.
        keys = inputs.grid.keys
        at_keys = replace(inputs.grid, q_len=inputs.grid.k_len, q_start=0, rows=keys)
        last_before_key = _last_allowed(inputs.pattern.evaluate(at_keys).tril(-1))

        # The gates of hidden keys may be NaN: (batch or 1, 1, keys, 1).
        hidden = ~four_axes(allowed).any(2)[..., None]
        log_decay, strength = self.gates(inputs.parameters, inputs.k.to(dtype), inputs.v.to(dtype))
        if log_decay is not None:
            log_decay = _gate_of_keys(log_decay, heads, hidden)
        if strength is not None:
            strength = _gate_of_keys(strength, heads, hidden)

        # The state after no key, after key 0, after key 1, ...
        states = [v.new_zeros(v.shape[0], heads, k.shape[3], v.shape[3])]
        for t in range(k.shape[2]):
            state = _states_after(states, last_before_key[:, t])
            key = k[:, :, t, :, None]  # (batch, heads, head_dim, 1)
            if log_decay is not None:
                state = log_decay[:, :, t, :, None].exp() * state
            update = v[:, :, t, None]  # (batch, heads, 1, v_dim)
            if self.corrects:
                update = update - key.mT @ state
            if strength is not None:
                update = strength[:, :, t, None] * update
            states.append(state + key * update)

        # An empty row is zeros, even if its query holds NaN.
        q = q.masked_fill((last_of_query == 0)[:, None, :, None], 0)
        rows = [q[:, :, :0] @ states[-1]]  # a call without queries has no row to join
        for i in range(q.shape[2]):
            rows.append(q[:, :, i, None] @ _states_after(states, last_of_query[:, i]))
        return FormulaResult(torch.cat(rows, 2) * inputs.scale, None)


def _for_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """What belongs to groups of heads, (batch, groups, ...), for each head."""
    return x.repeat_interleave(heads // x.shape[1], 1)


def _gate_of_keys(gate: torch.Tensor, heads: int, hidden: torch.Tensor) -> torch.Tensor:
    """A gate (batch, kv_heads, keys[, head_dim]) as (batch, heads, keys, 1 or head_dim), 0 for hidden keys."""
    return _for_heads(gate[..., None].flatten(3), heads).masked_fill(hidden, 0)


def _last_allowed(allowed: torch.Tensor) -> torch.Tensor:
    """The number of the last allowed key of each row, counted from 1, (batch or 1, rows); 0 if there is none."""
    numbers = allowed * torch.arange(1, allowed.shape[-1] + 1, device=allowed.device)
    of_first_head = four_axes(numbers)[:, 0]  # no pattern of these mechanisms differs between heads
    with_no_key = torch.nn.functional.pad(of_first_head, (1, 0))  # a call may have no keys
    return with_no_key.amax(-1)


def _states_after(states: list[torch.Tensor], counts: torch.Tensor) -> torch.Tensor:
    """The state of each batch row after its number of keys."""
    keys_read = counts.tolist()
    if len(set(keys_read)) == 1:
        return states[keys_read[0]]
    return torch.stack([states[count][row] for row, count in enumerate(keys_read)])


def _by_head(of_heads: Callable[[torch.Tensor], torch.Tensor], v: torch.Tensor) -> torch.Tensor:
    """A function of the numbers of heads; it is computed, since an exported program cannot hold a new constant."""
    numbers = of_heads(torch.arange(v.shape[1], dtype=torch.float64, device="cpu"))
    return numbers.to(v.device, torch.promote_types(v.dtype, torch.float32))[None, :, None]


@dataclass(frozen=True)
class Retention(Recurrent, also=("retnet",)):
    """Retention: `S_t = a S_{t-1} + k_t v_tᵀ`, with a = 1 - 2^{-5-h} for head h unless `log_decay` is given.

    A norm of each head follows it in the paper, and rotary positions precede it: they belong to the model.

    Source: Retentive Network, Sun et al. 2023, equations 6 and 8.

    >>> from regard import attention
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    >>> attention(q, k, v, pattern="causal", mechanism=Retention()).shape
    torch.Size([2, 8, 5, 16])
    """

    decays_by: ClassVar[str | None] = "head"
    optional: ClassVar[frozenset[str]] = frozenset({"log_decay"})

    def constant_log_decay(self, v: torch.Tensor) -> torch.Tensor:
        return _by_head(lambda head: torch.log1p(-(2.0 ** (-5 - head))), v)


@dataclass(frozen=True)
class Lightning(Recurrent):
    """Lightning attention: `S_t = a S_{t-1} + k_t v_tᵀ`, with log a = -rate · 2^{-8 (h + 1) / heads} for head h.

    `log_decay` may be given instead. A norm of each head and a gate follow it in the model.

    Args:
        rate: the paper's factor by layer, 1 - layer / layers.

    Raises:
        ArgumentError: a rate below 0.

    Source: Various Lengths, Constant Speed, Qin et al. 2024, section 3; the slopes are those of TransNormerLLM, Qin et
    al. 2023, equation 8.

    >>> from regard import attention
    >>> x = torch.randn(2, 4, 5, 16)
    >>> attention(x, x, x, pattern="causal", mechanism=Lightning(rate=0.5)).shape
    torch.Size([2, 4, 5, 16])
    """

    rate: float = 1.0

    decays_by: ClassVar[str | None] = "head"
    optional: ClassVar[frozenset[str]] = frozenset({"log_decay"})

    def __post_init__(self) -> None:
        check_fields(self, rate=partial(real, least=0))

    def constant_log_decay(self, v: torch.Tensor) -> torch.Tensor:
        heads = v.shape[1]
        return _by_head(lambda head: -self.rate * 2.0 ** (-8 * (head + 1) / heads), v)

    def __str__(self) -> str:
        return written(self, "rate")


@dataclass(frozen=True)
class SSD(Recurrent, also=("mamba2",)):
    """Mamba-2's state space: `S_t = a_t S_{t-1} + b_t k_t v_tᵀ`, with a number a_t and the step b_t for each key.

    q, k and v are the paper's C, B and x; log a_t is A times the step. C and B are shared by the heads of a group, so v
    has more heads. `strength` holds the step; left out it is 1, for values that are scaled already.

    Source: Transformers are SSMs, Dao and Gu 2024, section 2.1 and equation 16.

    >>> from regard import attention
    >>> x, groups = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 5, 32)
    >>> step = torch.rand(2, 8, 5)
    >>> parameters = {"log_decay": -step, "strength": step}
    >>> attention(groups, groups, x, pattern="causal", mechanism=SSD(), parameters=parameters).shape
    torch.Size([2, 8, 5, 16])
    """

    decays_by: ClassVar[str | None] = "head"
    takes_strength: ClassVar[bool] = True
    optional: ClassVar[frozenset[str]] = frozenset({"strength"})


@dataclass(frozen=True)
class GatedLinear(Recurrent, also=("gla",)):
    """Gated linear attention: `S_t = diag(a_t) S_{t-1} + k_t v_tᵀ`, with a decay for each channel of each key.

    Source: Gated Linear Attention Transformers with Hardware-Efficient Training, Yang et al. 2024, equation 3.

    >>> from regard import attention
    >>> x = torch.randn(2, 4, 5, 16)
    >>> parameters = {"log_decay": torch.nn.functional.logsigmoid(torch.randn(2, 4, 5, 16)) / 16}
    >>> attention(x, x, x, pattern="causal", mechanism=GatedLinear(), parameters=parameters).shape
    torch.Size([2, 4, 5, 16])
    """

    decays_by: ClassVar[str | None] = "channel"


@dataclass(frozen=True)
class Correcting(Recurrent, enrol=False):
    """A delta rule, which learns strengths up to `most_strength` in layers.

    Where a key has length 1, b_t multiplies what the memory holds for it by 1 - b_t. Between 1 and 2 this is negative.
    """

    most_strength: float = 1.0

    takes_strength: ClassVar[bool] = True
    corrects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        needs = "a number above 0 and at most 2, since a memory grows without limit beyond"
        check_fields(self, most_strength=partial(real, above=0, most=2, needs=needs))


@dataclass(frozen=True)
class DeltaRule(Correcting, also=("delta_net",)):
    """The delta rule: `S_t = S_{t-1} + b_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ` replaces what the memory holds for a key.

    Give keys of length 1, as `MultiHeadAttention` does: for longer ones the memory may grow without limit.

    Args:
        most_strength: the largest strength that a layer learns, `most_strength · sigmoid(W x)`; at most 2. Above 1 a
            key can change the sign of what the memory holds for it, so that the memory follows states that alternate.
            A call takes any strengths.

    Raises:
        ArgumentError: another most_strength.

    Sources: Parallelizing Linear Transformers with the Delta Rule over Sequence Length, Yang et al. 2024, section 2.2;
    strengths up to 2: Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues, Grazzi et al. 2025.

    >>> from regard import attention
    >>> x = torch.nn.functional.normalize(torch.randn(2, 4, 5, 16), dim=-1)
    >>> parameters = {"strength": torch.rand(2, 4, 5)}
    >>> attention(x, x, x, pattern="causal", mechanism=DeltaRule(), parameters=parameters).shape
    torch.Size([2, 4, 5, 16])
    """


@dataclass(frozen=True)
class GatedDelta(Correcting, also=("gated_delta_net",)):
    """The gated delta rule: `S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}ᵀ k_t)ᵀ`, with a number a_t for each key.

    Give queries and keys of length 1, as `MultiHeadAttention` does.

    Args:
        most_strength: the largest strength that a layer learns, as in `DeltaRule`.

    Raises:
        ArgumentError: another most_strength.

    Sources: Gated Delta Networks, Yang et al. 2025, equation 10;
    strengths up to 2: Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues, Grazzi et al. 2025.

    >>> from regard import attention
    >>> x, v = torch.nn.functional.normalize(torch.randn(2, 4, 5, 16), dim=-1), torch.randn(2, 8, 5, 16)
    >>> parameters = {"log_decay": -torch.rand(2, 8, 5), "strength": torch.rand(2, 8, 5)}
    >>> attention(x, x, v, pattern="causal", mechanism=GatedDelta(), parameters=parameters).shape
    torch.Size([2, 8, 5, 16])
    """

    decays_by: ClassVar[str | None] = "head"


@dataclass(frozen=True)
class KimiDelta(Correcting, also=("kda",)):
    """Kimi Delta Attention: the gated delta rule with a decay for each channel of each key.

        S_t = diag(a_t) S_{t-1} + b_t k_t (v_t - (diag(a_t) S_{t-1})ᵀ k_t)ᵀ

    Give queries and keys of length 1, as `MultiHeadAttention` does.

    Args:
        most_strength: the largest strength that a layer learns, as in `DeltaRule`.

    Raises:
        ArgumentError: another most_strength.

    Sources: Kimi Linear, Kimi Team 2025, equation 1;
    strengths up to 2: Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues, Grazzi et al. 2025.

    >>> from regard import attention
    >>> x = torch.nn.functional.normalize(torch.randn(2, 4, 5, 16), dim=-1)
    >>> parameters = {"log_decay": -torch.rand(2, 4, 5, 16), "strength": torch.rand(2, 4, 5)}
    >>> attention(x, x, x, pattern="causal", mechanism=KimiDelta(), parameters=parameters).shape
    torch.Size([2, 4, 5, 16])
    """

    decays_by: ClassVar[str | None] = "channel"
