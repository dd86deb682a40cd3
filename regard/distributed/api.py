"""Attention over a sequence that several processes share: a function, and the same with statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from regard.bias import Bias
from regard.core.call import Call
from regard.core.keywords import OF_CALLS, refuse_keywords
from regard.core.problem import (
    Problem,
    check_combination,
    checked_bias,
    checked_q_start,
    checked_seed,
    learns,
)
from regard.core.result import Result, Statistics, Want, checked_wants
from regard.core.tensors import Stored
from regard.distributed.agreement import Announcement, agree, refusing_together
from regard.distributed.contents import contents
from regard.distributed.function import SharedRun, attend, check_pieces
from regard.distributed.group import Group
from regard.distributed.layout import Layout, check_division
from regard.distributed.needs import needs_of
from regard.distributed.pieces import SharedOptions
from regard.distributed.recurrent import Chain, attend_by_state, refuse_without_state
from regard.distributed.statistics import refusing_gradients, statistics
from regard.errors import ShapeError, UnsupportedError
from regard.functional.compiled import uncompiled
from regard.functional.transforms import transforming
from regard.mechanisms import Softmax
from regard.mechanisms.features import Kernelised
from regard.patterns import as_pattern

OPTIONS = tuple(name for name in Call._fields if name not in ("q", "k", "v", "want"))

# What every process needs alike, as attributes of a Problem.
SIZES = ("batch", "heads", "kv_heads", "head_dim", "v_dim", "dtype", "device")
ALIKE = (*SIZES, "mechanism", "softcap", "scale", "dropout", "strict", "precise")

# Options of a call that its pieces have as they are.
OPTIONS_OF_PIECES = ("mechanism", "softcap", "scale", "dropout", "strict", "backend", "precise")


class SharedDetail(Statistics):
    """Output and statistics of this process's queries, as `AttentionDetail` has them; `received` is that of its keys.

    Indices of `top_keys` count in the whole sequence. Weights cannot be requested: a row would hold the keys of all.
    """

    def __repr__(self) -> str:
        return f"SharedDetail(output {tuple(self.output.shape)}, {self.statistics})"


@uncompiled
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mesh: Any,
    *,
    layout: str = "contiguous",
    form: str = "auto",
    **options: Any,
) -> torch.Tensor:
    """`regard.attention` over a sequence that is divided among processes; each gives its own part of q, k and v.

        softmax(cap(q kᵀ · scale) + bias, over the allowed keys and the sink) v

    Every process of the mesh calls it with the same options. Positions are those of the whole sequence, so patterns,
    biases, dropout and sinks have the same meaning as on one process. Keys are sent only to processes whose queries
    may look at them. Gradients flow to q, k and v of every process; the gradient of a tensor that all processes share,
    such as a learned bias, is this process's part, to be summed over processes as that of any weight is.

    Args:
        q: this process's queries (batch, heads, q_len, head_dim); q_len may differ between processes.
        k: its keys (batch, kv_heads, k_len, head_dim).
        v: its values (batch, kv_heads, k_len, v_dim).
        mesh: a one-dimensional DeviceMesh, or a ProcessGroup. Its order is the order of the parts.
        layout: "contiguous", or "zigzag" for two chunks on each process, which balances causal patterns.
        form: "gather" fetches all needed keys at once, "ring" holds those of two other processes at most and computes
            its pieces again in the backward pass; "auto" gathers if few keys are needed. "state" is for causal
            LinearTransformer, Performer and RandomFeature: it sends sums over earlier keys instead of keys.
        options: as for `regard.attention`; a bias that is a tensor has this process's queries and the keys of all.

    Returns:
        (batch, heads, q_len, v_dim) in q's dtype, for this process's queries.

    Raises:
        ShapeError, ArgumentError, UnsupportedError: as `regard.attention`; also if processes make different calls.
        UnsupportedError: a mechanism whose parts cannot be merged: Linformer, LSH, and RandomFeature unless
            form="state".
        RegardError: another process ended, or sent nothing within the timeout of its group.

    Source: Ring Attention with Blockwise Transformers, Liu et al. 2023.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun starts several
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    >>> attention(q, k, v, dist.group.WORLD, pattern="causal", layout="zigzag").shape
    torch.Size([2, 8, 5, 16])
    >>> dist.destroy_process_group()
    """
    division = Division(mesh, layout, form)
    agreed = _agree_on_call("regard.distributed.attention", (q, k, v), division, options, ())
    if form == "state":
        parameters = agreed.call.parameters or {}
        chain = Chain(agreed.group, agreed.k_layout, agreed.problem, tuple(parameters))
        return attend_by_state(chain, *agreed.tensors, parameters)

    output, _ = attend(_run_of(agreed, form, ()), *agreed.tensors)
    return output


@uncompiled
def attention_detail(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mesh: Any,
    *,
    want: Iterable[Want] | Want = ("log_sum_exp",),
    layout: str = "contiguous",
    form: str = "auto",
    **options: Any,
) -> SharedDetail:
    """`attention` over processes with statistics.

    Args:
        q: this process's queries (batch, heads, q_len, head_dim).
        k: its keys (batch, kv_heads, k_len, head_dim).
        v: its values (batch, kv_heads, k_len, v_dim).
        mesh: as for `attention`.
        want: any of "log_sum_exp", "entropy", "received", "distance", "sink" and `top_keys(n)`.
        layout: as for `attention`.
        form: as for `attention`.
        options: as for `attention`.

    Returns:
        The output and the statistics, those of queries for this process's queries, `received` for its keys. Output and
        log-sum-exp have gradients; asking for that of another statistic raises.

    Raises:
        UnsupportedError: "weights" and `weights_of`, whose rows would hold the keys of all processes.
    """
    wants = checked_wants(want)
    weights = [str(want) for want in wants if str(want).startswith("weights")]
    if weights:
        raise UnsupportedError(
            f"want={weights[0]} over several processes: each row would hold the keys of all of them; ask for "
            f"top_keys(n), or compute it on one process"
        )
    if form == "state":
        raise UnsupportedError(
            "form='state' keeps sums and gives no statistics; use form='auto' for those"
        )

    division = Division(mesh, layout, form)
    name = "regard.distributed.attention_detail"
    agreed = _agree_on_call(name, (q, k, v), division, options, wants)
    run = _run_of(agreed, form, wants)
    output, log_sum_exp = attend(run, *agreed.tensors)
    tensors = [x.detach() for x in agreed.tensors]
    detail = statistics(run, *tensors, log_sum_exp.detach(), wants)
    detail = refusing_gradients(detail, output)
    if "log_sum_exp" in wants:
        detail["log_sum_exp"] = log_sum_exp
    return SharedDetail(Result(output, **detail), wants)


class Division(NamedTuple):
    """How a call is divided, as the user gave it."""

    mesh: Any
    layout: str
    form: str


class AgreedCall(NamedTuple):
    """A call that all processes make, and how they divide the sequence."""

    group: Group
    call: Call
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # q, k and v in autocast's dtype
    problem: Problem
    q_layout: Layout
    k_layout: Layout
    dropout_seed: int | None


def _agree_on_call(
    name: str,
    tensors: tuple[Any, Any, Any],
    division: Division,
    options: dict[str, Any],
    want: tuple[Want, ...],
) -> AgreedCall:
    """The call of this process, after all processes agreed on it."""
    layout, form = division.layout, division.form
    group = Group.of(division.mesh)
    group.begin()
    device = group.device_for(tensors[0])

    with refusing_together(group, device):
        refuse_keywords(name, options, ("mesh", "layout", "form", *OPTIONS), OF_CALLS)
        call = Call(*tensors, **options).in_numbers().cast()
        if isinstance(call.k, Stored) or isinstance(call.v, Stored):
            raise UnsupportedError(
                "attention over several processes takes k and v as tensors, not as a cache stores them"
            )
        cast = call.q, call.k, call.v
        problem = _checked_problem(call, want, form)
        group.check_device(call.q.device)
        bias_keys, about_bias = _about_bias(call, problem)
        if call.dropout_seed is not None:
            call = call._replace(dropout_seed=checked_seed(call.dropout_seed))
        words = _words_alike(problem, call, division, want)
        if form == "state":
            refuse_without_state(problem, layout, call.q_start, call.backend)

    needs_grad = problem.needs_grad or problem.bias_learns or problem.sink_learns
    announcement = Announcement(
        words,
        q_len=problem.q_len,
        k_len=problem.k_len,
        learning=torch.is_grad_enabled() and needs_grad,
        seed=_seed_of(call, problem),
        bias_keys=bias_keys,
        about_bias=about_bias,
    )
    agreed = agree(group, device, announcement)

    q_layout = Layout(layout, agreed.q_lengths)
    k_layout = Layout(layout, agreed.k_lengths)
    problem.pattern.check(problem.batch, problem.heads, q_layout.length, k_layout.length)
    seed = None
    if problem.dropout:
        seed = agreed.seed if call.dropout_seed is None else call.dropout_seed
    return AgreedCall(group, call, cast, problem, q_layout, k_layout, seed)


def _seed_of(call: Call, problem: Problem) -> int:
    """The seed of the dropout, drawn as on one process where the call has none."""
    if call.dropout_seed is not None:
        return call.dropout_seed
    if not problem.dropout:
        return 0
    return int(torch.randint(2**62, (), device="cpu").item())


def _run_of(agreed: AgreedCall, form: str, want: tuple[Want, ...]) -> SharedRun:
    """The call as this process runs it, by an exchange of keys.

    A named backend and `strict` may refuse a piece that only some processes have. So with them all pieces are planned
    before any key is sent, and the processes agree that all of them can compute theirs.
    """
    call = agreed.call
    problem = agreed.problem
    q_layout = agreed.q_layout
    k_layout = agreed.k_layout

    q_start = k_layout.length - q_layout.length if call.q_start is None else call.q_start
    needs = needs_of(problem.pattern, q_layout, k_layout, q_start)
    options = SharedOptions(
        problem.pattern,
        call.bias,
        call.sink,
        call.parameters,
        agreed.dropout_seed,
        {name: getattr(call, name) for name in OPTIONS_OF_PIECES},
    )
    run = SharedRun(agreed.group, needs, needs.form(form), options)

    if problem.strict or call.backend != "auto":
        device = run.group.device_for(call.q)
        with refusing_together(run.group, device):
            check_pieces(run, *agreed.tensors, want)
        agree(run.group, device, Announcement([]))
    return run


def _checked_problem(call: Call, want: tuple[Want, ...], form: str) -> Problem:
    """The problem of this process's part; what depends on the whole sequence is checked after the processes agreed."""
    # The pattern, a bias that is a tensor and q_start belong to the whole sequence.
    local = call._replace(
        pattern="causal" if form == "state" else None,
        bias=call.bias if isinstance(call.bias, Bias) else None,
        q_start=0,
    )
    problem = local.problem()
    mechanism = problem.mechanism
    pattern = as_pattern(call.pattern).canonical()

    kernelised = isinstance(mechanism, Kernelised) and "log_sum_exp" in mechanism.statistics
    if form != "state" and not mechanism.is_softmax and not kernelised:
        raise UnsupportedError(
            f"{mechanism} over several processes: its outputs over some of the keys cannot be merged into that over "
            f"all by a log-sum-exp; use softmax, LinearTransformer or Performer, or one process; form='state' is for "
            f"causal RandomFeature"
        )
    if mechanism != Softmax():
        names = ("bias", "softcap", "scale", "sink")
        options = {name for name in names if getattr(call, name) is not None}
        if problem.dropout:
            options.add("dropout")
        check_combination(mechanism, pattern, options, want)
    if call.q_start is not None:
        checked_q_start(call.q_start, problem.batch)
    if problem.forward_mode or transforming():
        raise UnsupportedError(
            "forward-mode derivatives and transforms of torch.func stay within one process, so attention over several "
            "has none; use backward(), or one process"
        )

    return replace(problem, pattern=pattern, bias_learns=learns(call.bias))


def _words_alike(
    problem: Problem, call: Call, division: Division, want: tuple[Want, ...]
) -> list[str]:
    """What has to be alike on all processes, option by option."""
    check_division(division.layout, division.form)
    options = {name: getattr(problem, name) for name in ALIKE} | {
        "mechanism": contents(problem.mechanism),
        "pattern": contents(problem.pattern),
        "dropout_seed": call.dropout_seed,
        "backend": call.backend,
        "want": want,
        "layout": division.layout,
        "form": division.form,
        "q_start": contents(call.q_start),
        "sink": contents(call.sink),
        "bias": "a tensor" if isinstance(call.bias, torch.Tensor) else contents(call.bias),
    }
    # Each process gives the parameters by key of its own keys.
    by_key = problem.mechanism.by_key
    for name, x in sorted((call.parameters or {}).items()):
        if name not in by_key:
            options[f"parameters[{name!r}]"] = contents(x)
    return [f"{name} {value}" for name, value in options.items()]


def _about_bias(call: Call, problem: Problem) -> tuple[int | None, str | None]:
    """The number of keys of a bias that is a tensor, and a text about it if it is alike for all queries.

    None where it is the same for every key, and where it may differ between processes.

    Raises:
        ShapeError, ArgumentError: it is no bias for this process's queries; its keys are compared with those of all
            processes later.
    """
    bias = call.bias
    if bias is None or isinstance(bias, Bias):
        return None, None

    keys = bias.shape[-1] if isinstance(bias, torch.Tensor) and bias.dim() else 1
    rows = bias.shape[-2] if isinstance(bias, torch.Tensor) and bias.dim() > 1 else 1
    if rows not in (1, problem.q_len):
        raise ShapeError(
            f"bias has shape {tuple(bias.shape)}; over several processes it needs the queries of this one and the keys "
            f"of all: (..., {problem.q_len} or 1, keys or 1)"
        )
    sizes = {
        "batch": problem.batch,
        "heads": problem.heads,
        "q_len": problem.q_len,
        "k_len": keys,
    }
    checked_bias(bias, call.q, sizes)

    about_bias = None
    if rows == 1 and problem.q_len != 1:
        with_all_axes = bias[(None,) * (4 - bias.dim())]
        about_bias = f"bias {contents(with_all_axes)}"
    return None if keys == 1 else keys, about_bias
