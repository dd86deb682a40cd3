"""The one call: attention, the plan behind it, and the detail that it can tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from regard.autocast import cast
from regard.bias import Bias
from regard.compiled import traced_attention, uncompiled
from regard.detail import AttentionDetail, Result
from regard.errors import ShapeError
from regard.jagged import is_nested, packed_call
from regard.kernels import flash
from regard.kinds import shown
from regard.mechanisms import Mechanism
from regard.operands import checked_seed
from regard.patterns import Pattern
from regard.plan import Plan
from regard.planned import planned
from regard.problem import plain_options
from regard.shapes import refuse_layout
from regard.statistics import Want, checked_wants
from regard.stored import Stored
from regard.transforms import transformed, transforming


def attention(
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    *,
    pattern: Pattern | str | None = None,
    mechanism: Mechanism | None = None,
    bias: torch.Tensor | Bias | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    dropout_seed: int | None = None,
    q_start: int | torch.Tensor | None = None,
    backend: str = "auto",
    strict: bool = False,
    parameters: Mapping[str, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Each query's mean of the values, weighted by the softmax of its scores over the keys that its pattern allows.

        softmax(cap(q kᵀ · scale) + bias, over the allowed keys) v

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim); query head h reads key/value head h // (heads // kv_heads).
        v: values (batch, kv_heads, k_len, v_dim).
        pattern: who may look at whom: a Pattern, its text, or None for everyone.
        mechanism: how scores become weights; None for softmax.
        bias: added to the scores: a tensor broadcastable to (batch, heads, q_len, k_len), or one of `regard.bias`.
        softcap: scores become softcap · tanh(scores / softcap).
        scale: multiplies the dot products; 1 / sqrt(head_dim) unless given.
        dropout: share of the weights dropped, always applied.
        dropout_seed: which ones; drawn from torch's generator unless given.
        q_start: position of the first query, a number or int64 (batch,); by default the last query meets the last key.
        backend: "auto" for the cheapest, or a name, which then computes it or raises.
        strict: raise where a dense q_len x k_len matrix or more than twice the kept pairs would be computed.
        parameters: the tensors that the mechanism learned, by name; `mechanism.new_parameters` makes them.

    Returns:
        (batch, heads, q_len, v_dim) in q's dtype; zeros for a query that may see no key.

    Raises:
        ShapeError: tensors that do not fit together.
        ArgumentError: an option outside the values it may take.
        UnsupportedError: no backend, or not the named one, computes this call; or its mechanism has no such option.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.

    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    >>> attention(q, k, v, pattern="causal & causal_window(4)").shape
    torch.Size([2, 8, 5, 16])
    """
    options: dict[str, Any] = {
        "pattern": pattern, "mechanism": mechanism, "bias": bias, "softcap": softcap, "scale": scale,
        "dropout": dropout, "q_start": q_start, "backend": backend, "strict": strict, "parameters": parameters,
    }  # fmt: skip
    if torch.compiler.is_compiling():
        return traced_attention(q, k, v, dropout_seed=dropout_seed, **options)
    return _attention(q, k, v, dropout_seed, options)


@uncompiled
def _attention(q: torch.Tensor, k: Any, v: Any, dropout_seed: int | None, options: dict[str, Any]) -> torch.Tensor:
    if is_nested(q, k, v):
        tensors, options, unpacked = packed_call(q, k, v, options)
        return unpacked(_attention(*tensors, dropout_seed, options))
    q, k, v = _settled(q, k, v, options)
    if transforming():
        return _transformed(q, k, v, dropout_seed, options)[0].output
    start = options["q_start"] if isinstance(options["q_start"], torch.Tensor) else None
    plan = planned(q, k, v, **options)
    handed = options["parameters"]
    return plan.run(q, k, v, bias=options["bias"], q_start=start, dropout_seed=dropout_seed, parameters=handed)


def _transformed(
    q: torch.Tensor, k: Any, v: Any, dropout_seed: int | None, options: dict[str, Any]
) -> tuple[Result, Plan]:
    """The same call inside torch.func, and the plan of its first computation."""
    plans: list[Plan] = []

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Result:
        given["parameters"] = given["parameters"] or None
        plan = planned(q, k, v, **{**options, **given})
        plans.append(plan)
        start = given["q_start"] if isinstance(given["q_start"], torch.Tensor) else None
        rest = {"bias": given["bias"], "q_start": start, "parameters": given["parameters"]}
        return plan.result(q, k, v, dropout_seed=dropout_seed, **rest)

    names = ("bias", "q_start", "pattern")
    given: dict[str, Any] = {name: options.get(name) for name in names}
    given["parameters"], given["dropout"] = dict(options.get("parameters") or {}), options.get("dropout", 0.0)
    result = transformed(compute, q, k, v, **given, dropout_seed=dropout_seed)
    return result, plans[0]


def _settled(q: Any, k: Any, v: Any, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The tensors as autocast hands them over, beside options whose numbers are Python's."""
    plain_options(options)
    q, k, v, options["bias"] = cast(q, k, v, options.get("bias"))
    return q, k, v


@uncompiled
def plan_attention(
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    *,
    want: Iterable[Want] | Want = (),
    backend: str = "auto",
    **options: Any,
) -> Plan:
    """The plan that `attention` would follow: which backend, what it costs, and why not the others.

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim).
        v: values (batch, kv_heads, k_len, v_dim).
        want: the statistics that `plan.detail` is to tell, as for `attention_detail`.
        backend: "auto" or a name.
        options: as for `attention`.

    Returns:
        A frozen plan; `print(plan)` shows it, `plan.run(q, k, v)` follows it.

    >>> x = torch.randn(1, 2, 64, 8)
    >>> plan = plan_attention(x, x, x, pattern="causal")
    >>> plan.backend
    'fused'
    """
    if (seed := options.pop("dropout_seed", None)) is not None:
        checked_seed(seed)
    q, k, v = _settled(q, k, v, options)
    return planned(q, k, v, want=checked_wants(want), backend=backend, **options)


@uncompiled
def attention_detail(
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    *,
    want: Iterable[Want] | Want = ("log_sum_exp",),
    backend: str = "auto",
    dropout_seed: int | None = None,
    bias: torch.Tensor | Bias | None = None,
    q_start: int | torch.Tensor | None = None,
    parameters: Mapping[str, torch.Tensor] | None = None,
    **options: Any,
) -> AttentionDetail:
    """`attention` together with what one wants to know about it.

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim).
        v: values (batch, kv_heads, k_len, v_dim).
        want: any of "log_sum_exp", "entropy", "received", "weights" and `top_keys(n)`.
        options: as for `attention`.

    Returns:
        Output, the statistics asked for, and the plan. Weights are those before dropout.

    >>> x = torch.zeros(1, 1, 2, 4)
    >>> attention_detail(x, x, x, pattern="causal", want="weights").weights[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    options |= {"bias": bias, "q_start": q_start, "parameters": parameters}
    q, k, v = _settled(q, k, v, options)
    bias, q_start = options["bias"], options["q_start"]
    if transforming():
        every = {**options, "want": checked_wants(want), "backend": backend}
        return AttentionDetail(*_transformed(q, k, v, dropout_seed, every))
    plan = planned(q, k, v, want=checked_wants(want), backend=backend, **options)
    start = q_start if isinstance(q_start, torch.Tensor) else None
    return plan.detail(q, k, v, bias=bias, q_start=start, dropout_seed=dropout_seed, parameters=parameters)


def merge_attention(pieces: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """One attention from several over disjoint keys, exact and differentiable.

        log_sum_exp = log Σ exp(lse_p),   output = Σ exp(lse_p - log_sum_exp) · output_p

    Args:
        pieces: outputs (batch, heads, q_len, v_dim) with their log-sum-exp (batch, heads, q_len).

    Returns:
        The output and log-sum-exp of attention over all the keys at once.

    Raises:
        ShapeError: no piece, or pieces of different shapes.

    >>> q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 6, 4)
    >>> halves = [attention_detail(q, k[:, :, part], k[:, :, part]) for part in (slice(0, 3), slice(3, 6))]
    >>> output, _ = merge_attention([(half.output, half.log_sum_exp) for half in halves])
    >>> torch.allclose(output, attention(q, k, k), atol=1e-6)
    True
    """
    pieces = _checked_pieces(pieces)
    for output, log_sum_exp in pieces:
        if output.shape != pieces[0][0].shape or log_sum_exp.shape != output.shape[:-1]:
            raise ShapeError(
                f"a piece has output {tuple(output.shape)} and log_sum_exp {tuple(log_sum_exp.shape)}; every output "
                f"needs the first one's shape {tuple(pieces[0][0].shape)}, every log_sum_exp that without the last axis"
            )
    return flash.merge(pieces)


def _checked_pieces(pieces: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if not isinstance(pieces, Iterable) or isinstance(pieces, str | torch.Tensor):
        raise ShapeError(f"merge_attention was given {shown(pieces)}; it needs a list of (output, log_sum_exp)")
    found = list(pieces)
    if not found:
        raise ShapeError("merge_attention was given no piece; it needs at least one (output, log_sum_exp)")
    for piece in found:
        if not isinstance(piece, tuple | list) or len(piece) != 2:
            raise ShapeError(f"a piece is {shown(piece)}; each needs to be a pair (output, log_sum_exp)")
        for name, tensor in zip(("output", "log_sum_exp"), piece, strict=True):
            if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
                raise ShapeError(f"{name} of a piece is {shown(tensor)}; it needs to be a floating-point tensor")
            refuse_layout(name, tensor)
            if tensor.device != found[0][0].device:
                raise ShapeError(f"a piece is on {tensor.device} and another on {found[0][0].device}; move one of them")
    return found
