"""The public functions: attention, its plan, its statistics, and merging of attention over several sets of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Never

import torch

from regard.arguments import shown
from regard.backends.merging import merge
from regard.bias import Bias, Forgetting
from regard.core.call import Call
from regard.core.dropped import at_positions, without_gaps
from regard.core.keywords import OF_CALLS, refuse_keywords
from regard.core.layout import checked_layout, refusal_as_given, swapped
from regard.core.plan import AttentionDetail, Plan
from regard.core.problem import checked_seed
from regard.core.result import Result, Want, checked_wants
from regard.core.tensors import HEADS_FIRST, LENGTH_FIRST, Stored, refuse_layout
from regard.errors import ShapeError, UnsupportedError
from regard.functional.compiled import compiler_beside, text_alone, traced_attention, uncompiled
from regard.functional.jagged import (
    is_nested,
    packed_call,
    traced_varlen_call,
    varlen_call,
)
from regard.functional.kept import PLANS
from regard.functional.measured import measured, open_modes, profiling
from regard.functional.remarks import warn_of_doubtful
from regard.functional.repeated import REPEATED, UNKNOWN
from regard.functional.transforms import transformed, transforming
from regard.mechanisms import Mechanism
from regard.patterns import Pattern, as_pattern

OPTIONS = (*(name for name in Call._fields if name not in ("q", "k", "v", "want")), "layout")


def attention(
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    *,
    pattern: Pattern | str | None = None,
    mechanism: Mechanism | str | None = None,
    bias: torch.Tensor | Bias | None = None,
    sink: float | torch.Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    dropout_seed: int | None = None,
    q_start: int | torch.Tensor | None = None,
    backend: str = "auto",
    strict: bool = False,
    precise: bool = False,
    parameters: Mapping[str, torch.Tensor] | None = None,
    layout: str = HEADS_FIRST,
    **foreign: Never,
) -> torch.Tensor:
    """Compute for each query the mean of the values, weighted by the softmax of its scores over the allowed keys.

        softmax(cap(q kᵀ · scale) + bias, over the allowed keys and the sink) v

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim); query head h reads key/value head h // (heads // kv_heads).
        v: values (batch, kv_heads, k_len, v_dim).
        pattern: which query may look at which key: a Pattern, its text, or None for all.
        mechanism: how scores become weights: a Mechanism, its text, or None for softmax.
        bias: added to the scores: a tensor broadcastable to (batch, heads, q_len, k_len), or one of `regard.bias`.
        sink: a logit for each head, which takes part in the softmax as a key without a value: (heads,), (batch, heads)
            or a number.
        softcap: scores become softcap · tanh(scores / softcap).
        scale: multiplies the dot products; 1 / sqrt(head_dim) by default.
        dropout: share of the weights that is dropped; it is always applied.
        dropout_seed: determines which weights are dropped; drawn from torch's generator by default.
        q_start: position of the first query, a number or int64 (batch,); by default the ends of queries and keys align.
        backend: "auto" for the cheapest, or the name of one, which then computes the call or raises.
        strict: raise where a dense q_len x k_len matrix or more than twice the kept pairs would be computed.
        precise: never round weights to bfloat16 or float16, as faster operations do before the values are summed.
        parameters: the tensors that the mechanism learned, by name; `mechanism.new_parameters` makes them.
        layout: the order of the axes of q, k, v and the output: "bhnd" as above, or "bnhd" for (batch, length, heads,
            dim), which is computed without a copy. All other arguments keep their axes, and so do `Stored` entries of a
            cache.

    Returns:
        (batch, heads, q_len, v_dim) in q's dtype; zeros for a query that may look at no key. With layout="bnhd"
        (batch, q_len, heads, v_dim).

    Raises:
        ShapeError: tensors that do not fit together.
        ArgumentError: an option outside the values it may take.
        UnsupportedError: no backend, or not the named one, computes this call; or its mechanism has no such option.
        KeywordError: an argument of another library, such as attn_mask; the message names what to write instead.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.

    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    >>> attention(q, k, v, pattern="causal & causal_window(4)").shape
    torch.Size([2, 8, 5, 16])
    """
    if foreign:
        refuse_keywords("attention", foreign, OPTIONS, OF_CALLS)
    is_length_first = layout is LENGTH_FIRST  # mostly; a call of few tokens notices the function
    if is_length_first or (layout is not HEADS_FIRST and checked_layout(layout) != HEADS_FIRST):
        # In the order of _REPEATED_OPTIONS.
        options = (
            pattern,
            mechanism,
            bias,
            parameters,
            dropout_seed,
            sink,
            q_start,
            softcap,
            scale,
            dropout,
            strict,
            backend,
            precise,
        )
        return _output_in_layout(layout, q, k, v, options)
    is_unknown = False
    if not torch.compiler.is_compiling() and REPEATED.repeat is not None:
        repeated = REPEATED.repeat(
            q,
            k,
            v,
            pattern,
            mechanism,
            bias,
            parameters,
            dropout_seed,
            sink,
            q_start,
            softcap,
            scale,
            dropout,
            strict,
            backend,
            precise,
        )
        is_unknown = repeated is UNKNOWN
        if repeated is not None and not is_unknown:
            return repeated
    if isinstance(bias, Forgetting):
        bias = _by_key(bias, k, pattern, sink, ())
    call = Call(
        q,
        k,
        v,
        bias,
        parameters,
        dropout_seed,
        sink,
        pattern,
        mechanism,
        softcap,
        scale,
        dropout,
        q_start,
        strict=strict,
        backend=backend,
        precise=precise,
    )
    if torch.compiler.is_compiling():
        return traced_attention(call)
    if compiler_beside() is not None:
        return _output_of_new(call)
    if type(k) is Stored:
        call = without_gaps(call)
    if open_modes() or profiling():  # C functions, so fast that a warm call takes no longer
        return measured(call, _output_of_new)
    if isinstance(pattern, Pattern) and pattern.row_keys is not None:
        output = PLANS.output_by_structure(call, is_unknown)
        if output is not None:
            return output
    known = PLANS.find(call)
    if known is not None:
        plan, call_grid = known
        if is_unknown:
            REPEATED.keep(call, plan, call_grid)
        return plan.compute(call, call_grid).output
    output = PLANS.step(call, is_unknown)
    return _output_of_new(call) if output is None else output


# The options of a call in the order in which a repeated one is looked up.
_REPEATED_OPTIONS = (
    "pattern",
    "mechanism",
    "bias",
    "parameters",
    "dropout_seed",
    "sink",
    "q_start",
    "softcap",
    "scale",
    "dropout",
    "strict",
    "backend",
    "precise",
)


def _output_in_layout(
    layout: str,
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    options: tuple[Any, ...],
) -> torch.Tensor:
    """The output of a call whose heads are not before the length of q, k and v, in the order of q's axes."""
    # A call of few tokens would take some percent longer if it entered `swapped` for each tensor, and `attention` again
    # before it is looked up.
    if type(q) is type(k) is type(v) is torch.Tensor and q.dim() == k.dim() == v.dim() == 4:
        heads_first = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if not torch.compiler.is_compiling() and REPEATED.repeat is not None:
            repeated = REPEATED.repeat(*heads_first, *options)
            if repeated is not None and repeated is not UNKNOWN:
                return repeated.transpose(1, 2)
    else:
        heads_first = swapped(q), swapped(k), swapped(v)
    by_name: dict[str, Any] = dict(zip(_REPEATED_OPTIONS, options, strict=True))
    try:
        output = attention(*heads_first, **by_name)
    except ShapeError as error:
        raise refusal_as_given(error, layout, q, k, v, by_name["mechanism"]) from None
    return swapped(output)


@partial(uncompiled, recorded=traced_attention)
def _output_of_new(call: Call) -> torch.Tensor:
    """The output of a call that may be of any kind: without a kept plan, of nested tensors, or between two graphs."""
    if not is_nested(call.q, call.k, call.v):
        result, _ = _result_of_new(call)
        return result.output
    call, unpack = packed_call(call)
    result, _ = _result_of_new(call)
    return unpack(result.output)


def _result_of_new(call: Call) -> tuple[Result, Plan]:
    """The result of a call, inside autocast and torch.func too, and the plan of its first computation."""
    original = call
    call = without_gaps(call).in_numbers()
    cast = call.cast()
    if cast is not call:
        with torch.autocast(cast.q.device.type, enabled=False):
            result, plan = _result_of_new(cast)
            return at_positions(result, original), plan
    plans: list[Plan] = []

    def compute(call: Call) -> Result:
        plan, call_grid, is_new = PLANS.plan(call)
        plans.append(plan)
        if not is_new:
            return plan.compute(call, call_grid)
        warn_of_doubtful(call, plan.problem)
        return plan.compute_first(call, call_grid)

    result = transformed(call, compute) if transforming() else compute(call)
    if original.want:
        result = at_positions(result, original)
    return result, plans[0]


def _by_key(
    bias: Forgetting, k: Any, pattern: Pattern | str | None, sink: Any, want: tuple[Want, ...]
) -> torch.Tensor | Forgetting:
    """The bias of a call as one number for each key, which gives the same weights; as it is for keys with gaps.

    Raises:
        UnsupportedError: a pattern that looks ahead, where nothing says what is forgotten; a sink or a log-sum-exp,
            which depend on the number by which the scores of a row differ.
    """
    if _looks_ahead(pattern):
        raise UnsupportedError(
            f"Forgetting is for causal attention, and pattern {as_pattern(pattern)} looks ahead"
        )
    if sink is not None or "log_sum_exp" in want:
        what = "log_sum_exp" if sink is None else "a sink"
        raise UnsupportedError(
            f"Forgetting shifts all scores of a row by a number, which {what} does not allow; leave it out"
        )
    if bias.held and isinstance(k, Stored) and k.first:
        return bias
    return bias.by_key()


def _looks_ahead(pattern: Pattern | str | None) -> bool:
    """Whether a query may look at a later key; a graph keeps the answer."""
    if not torch.compiler.is_compiling():
        return _reaches_ahead(pattern)
    text = text_alone(pattern)  # PyTorch 2.11 gives no object to what it calls while it traces
    return _reaches_ahead(pattern if text is None else text)


def _reaches_ahead(pattern: Pattern | str | None) -> bool:
    return as_pattern(pattern).reach().ahead != 0


# A compiler calls it while it traces. `torch.compiler.assume_constant_result` sets this too, but imports the compiler.
_reaches_ahead._dynamo_marked_constant = True  # ty: ignore[missing-attribute]


@uncompiled
def plan_attention(
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    *,
    want: Iterable[Want] | Want = (),
    backend: str = "auto",
    layout: str = HEADS_FIRST,
    **options: Any,
) -> Plan:
    """The plan that `attention` would use: the chosen backend, its cost, and the cost or refusal of every other.

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim).
        v: values (batch, kv_heads, k_len, v_dim).
        want: the statistics of `plan.detail`, as for `attention_detail`.
        backend: "auto" or a name.
        layout: as for `attention`; the plan is run with tensors of this layout.
        options: as for `attention`.

    Returns:
        A frozen plan; `print(plan)` shows it, `plan.run(q, k, v)` runs it.

    >>> x = torch.randn(1, 2, 64, 8)
    >>> plan = plan_attention(x, x, x, pattern="causal")
    >>> plan.backend in ("native", "fused")  # fused where no native kernel is built
    True
    """
    refuse_keywords("plan_attention", options, OPTIONS, OF_CALLS)
    if isinstance(options.get("bias"), Forgetting):
        options["bias"] = _by_key(
            options["bias"], k, options.get("pattern"), options.get("sink"), checked_wants(want)
        )
    call = Call(q, k, v, want=checked_wants(want), backend=backend, **options)
    if call.dropout_seed is not None:
        checked_seed(call.dropout_seed)
    if checked_layout(layout) == HEADS_FIRST:
        return _plan_of(call)
    try:
        plan = _plan_of(call._replace(q=swapped(q), k=swapped(k), v=swapped(v)))
    except ShapeError as error:
        raise refusal_as_given(error, layout, q, k, v, call.mechanism) from None
    return replace(plan, layout=layout)


def _plan_of(call: Call) -> Plan:
    plan, _, _ = PLANS.plan(without_gaps(call).in_numbers().cast())
    return plan


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
    sink: float | torch.Tensor | None = None,
    q_start: int | torch.Tensor | None = None,
    parameters: Mapping[str, torch.Tensor] | None = None,
    layout: str = HEADS_FIRST,
    **options: Any,
) -> AttentionDetail:
    """Compute attention together with the requested statistics.

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim).
        v: values (batch, kv_heads, k_len, v_dim).
        want: any of "log_sum_exp", "entropy", "received", "distance", "sink", "weights", `top_keys(n)` and
            `weights_of(rows, heads)`.
        layout: as for `attention`; statistics have their usual axes.
        options: as for `attention`.

    Returns:
        Output, the requested statistics, and the plan. Weights are those before dropout.

    >>> x = torch.zeros(1, 1, 2, 4)
    >>> attention_detail(x, x, x, pattern="causal", want="weights").weights[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    refuse_keywords("attention_detail", options, OPTIONS, OF_CALLS)
    options |= {"want": checked_wants(want), "backend": backend, "q_start": q_start}
    if isinstance(bias, Forgetting):
        bias = _by_key(bias, k, options.get("pattern"), sink, options["want"])
    call = Call(q, k, v, bias, parameters, dropout_seed, sink, **options)
    if checked_layout(layout) == HEADS_FIRST:
        return AttentionDetail(*_result_of_new(call))
    try:
        result, plan = _result_of_new(call._replace(q=swapped(q), k=swapped(k), v=swapped(v)))
    except ShapeError as error:
        raise refusal_as_given(error, layout, q, k, v, call.mechanism) from None
    in_layout = result._replace(output=swapped(result.output))
    return AttentionDetail(in_layout, replace(plan, layout=layout))


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
    *,
    bias: Bias | None = None,
    sink: float | torch.Tensor | None = None,
    dropout_seed: int | None = None,
    backend: str = "auto",
    layout: str = LENGTH_FIRST,
    **options: Any,
) -> torch.Tensor:
    """Attention of documents of different lengths that are packed one after the other, without padding.

    Document d of q attends to document d of k, as if each was computed alone: its last query is aligned with its last
    key, and positions count from its beginning. Time and memory grow with the pairs within documents.

    Args:
        q: queries (all positions, heads, head_dim).
        k: keys (all positions, kv_heads, head_dim).
        v: values (all positions, kv_heads, v_dim).
        cu_seqlens_q: the first position of each document of q, and the end of the last; int32 or int64, of size
            (documents + 1,).
        cu_seqlens_k: those of k and v; those of q by default.
        layout: "bnhd", the order above, or "bhnd" for q, k, v and an output (heads, all positions, dim).
        options: as for `attention`, except for `q_start`, and a bias only by distance; batch row d of a pattern belongs
            to document d.

    Returns:
        (all positions, heads, v_dim) in q's dtype.

    Raises:
        ShapeError: tensors that do not fit together, or ends that are not those of documents.
        UnsupportedError: a bias tensor, or a sink for each batch row.

    Source: FlashAttention-2, Dao 2023; its function flash_attn_varlen_func takes the same tensors.

    >>> x, ends = torch.randn(5, 2, 4), torch.tensor([0, 3, 5])
    >>> output = attention_varlen(x, x, x, ends, pattern="causal")
    >>> alone = attention(*(x[3:].transpose(0, 1)[None],) * 3, pattern="causal")[0].transpose(0, 1)
    >>> output.shape, torch.allclose(output[3:], alone, atol=1e-6)
    (torch.Size([5, 2, 4]), True)
    """
    takes = [name for name in OPTIONS if name != "q_start"]
    refuse_keywords("attention_varlen", options, takes, OF_CALLS)
    axes = checked_layout(layout).removeprefix("b")
    call = Call(q, k, v, bias, dropout_seed=dropout_seed, sink=sink, backend=backend, **options)
    if torch.compiler.is_compiling():
        return _traced_varlen(call, cu_seqlens_q, cu_seqlens_k, axes)
    return _varlen_of_new(call, cu_seqlens_q, cu_seqlens_k, axes)


def _traced_varlen(
    call: Call, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None, axes: str
) -> torch.Tensor:
    output = traced_attention(traced_varlen_call(call, cu_seqlens_q, cu_seqlens_k, axes))[0]
    return output if axes == "hnd" else output.transpose(0, 1)


@partial(uncompiled, recorded=_traced_varlen)
def _varlen_of_new(
    call: Call, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None, axes: str
) -> torch.Tensor:
    packed = varlen_call(call, cu_seqlens_q, cu_seqlens_k, axes)
    try:
        result, _ = _result_of_new(packed)
    except ShapeError as error:
        q: Any = call.q
        k: Any = call.k
        v: Any = call.v
        raise refusal_as_given(error, axes, q, k, v, call.mechanism) from None
    output = result.output[0]  # (heads, all positions, v_dim)
    return output if axes == "hnd" else output.transpose(0, 1)


def merge_attention(
    pieces: Iterable[tuple[torch.Tensor, torch.Tensor]], *, layout: str = HEADS_FIRST
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge attention over disjoint sets of keys into attention over all of them, exactly and differentiably.

        log_sum_exp = log Σ exp(lse_p),   output = Σ exp(lse_p - log_sum_exp) · output_p

    Args:
        pieces: outputs (batch, heads, q_len, v_dim) with their log-sum-exp (batch, heads, q_len).
        layout: "bhnd", or "bnhd" for outputs (batch, q_len, heads, v_dim); a log-sum-exp keeps its axes.

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
    checked = _checked_pieces(pieces, checked_layout(layout))
    if layout == HEADS_FIRST:
        return merge(checked)
    output, log_sum_exp = merge([(swapped(output), lse) for output, lse in checked])
    return swapped(output), log_sum_exp


def _checked_pieces(
    pieces: Iterable[tuple[torch.Tensor, torch.Tensor]], layout: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if not isinstance(pieces, Iterable) or isinstance(pieces, str | torch.Tensor):
        raise ShapeError(
            f"merge_attention was given {shown(pieces)}; it needs a list of (output, log_sum_exp)"
        )
    listed = list(pieces)
    if not listed:
        raise ShapeError(
            "merge_attention was given no piece; it needs at least one (output, log_sum_exp)"
        )
    for piece in listed:
        if not isinstance(piece, tuple | list) or len(piece) != 2:
            raise ShapeError(
                f"a piece is {shown(piece)}; each needs to be a pair (output, log_sum_exp)"
            )
        first_output = listed[0][0]
        output, log_sum_exp = piece
        _check_piece("output", output, first_output)
        _check_piece("log_sum_exp", log_sum_exp, first_output)
        rows = output.shape[:-1] if layout == HEADS_FIRST else swapped(output).shape[:-1]
        if output.shape != first_output.shape or log_sum_exp.shape != rows:
            raise ShapeError(
                f"a piece has output {tuple(output.shape)} and log_sum_exp {tuple(log_sum_exp.shape)}; every output "
                f"needs the first one's shape {tuple(first_output.shape)}, every log_sum_exp its axes (batch, heads, "
                f"q_len); layout={layout!r} has outputs ({_axes_of_output(layout)})"
            )
    return listed


def _axes_of_output(layout: str) -> str:
    by_letter = {"b": "batch", "h": "heads", "n": "q_len", "d": "v_dim"}
    return ", ".join([by_letter[letter] for letter in layout])


def _check_piece(name: str, tensor: Any, first_output: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        raise ShapeError(
            f"{name} of a piece is {shown(tensor)}; it needs to be a floating-point tensor"
        )
    refuse_layout(name, tensor)
    if tensor.device != first_output.device:
        raise ShapeError(
            f"a piece is on {tensor.device} and another on {first_output.device}; move one of them"
        )
