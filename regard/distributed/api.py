"""Attention over a sequence that several processes share: a function, its statistics, and layers inside a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from regard.arguments import kind_of
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
from regard.distributed.function import (
    SharedRun,
    attend,
    check_pieces,
    refusing_gradients,
    statistics,
)
from regard.distributed.group import (
    Group,
    about_weights,
    agree,
    contents,
    refuse_together,
    refusing_together,
)
from regard.distributed.needs import Layout, check_division, needs_of
from regard.distributed.pieces import Options
from regard.distributed.recurrent import Chain, attend_by_state, refuse_others
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.functional.compiled import uncompiled
from regard.functional.jagged import is_nested
from regard.functional.transforms import transforming
from regard.layers import LatentAttention, MultiHeadAttention
from regard.layers.attending import AttentionLayer
from regard.layers.recording import current_recording
from regard.mechanisms import Softmax
from regard.mechanisms.features import Kernelised
from regard.patterns import as_pattern

OPTIONS = tuple(name for name in Call._fields if name not in ("q", "k", "v", "want"))
SIZES = ("batch", "heads", "kv_heads", "head_dim", "v_dim", "dtype", "device")
ALIKE = (*SIZES, "mechanism", "softcap", "scale", "dropout", "strict", "precise")
OTHERS = ("mechanism", "softcap", "scale", "dropout", "strict", "backend", "precise")


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
    agreed = _agreed("regard.distributed.attention", q, k, v, mesh, layout, form, options)
    tensors = agreed.tensors
    if form == "state":
        parameters = agreed.call.parameters or {}
        return attend_by_state(
            Chain(agreed.group, agreed.k_layout, agreed.problem, tuple(parameters)),
            *tensors,
            parameters,
        )
    return attend(_run(agreed, form, ()), *tensors)[0]


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
    if refused := [str(one) for one in wants if str(one).startswith("weights")]:
        raise UnsupportedError(
            f"want={refused[0]} over several processes: each row would hold the keys of all of them; ask for "
            f"top_keys(n), or compute it on one process"
        )
    if form == "state":
        raise UnsupportedError(
            "form='state' keeps sums and gives no statistics; use form='auto' for those"
        )
    agreed = _agreed(
        "regard.distributed.attention_detail", q, k, v, mesh, layout, form, options, wants
    )
    tensors = agreed.tensors
    run = _run(agreed, form, wants)
    output, log_sum_exp = attend(run, *tensors)
    found = statistics(run, *(x.detach() for x in tensors), log_sum_exp.detach(), wants)
    found = refusing_gradients(found, output)
    if "log_sum_exp" in wants:
        found["log_sum_exp"] = log_sum_exp
    return SharedDetail(Result(output, **found), wants)


class Agreed(NamedTuple):
    """A call that all processes make, and how they divide the sequence."""

    group: Group
    call: Call
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # q, k and v in autocast's dtype
    problem: Problem
    q_layout: Layout
    k_layout: Layout
    dropout_seed: int | None


def _agreed(
    name: str,
    q: Any,
    k: Any,
    v: Any,
    mesh: Any,
    layout: str,
    form: str,
    options: dict[str, Any],
    want: tuple[Want, ...] = (),
) -> Agreed:
    """The call of this process, after all processes agreed on it."""
    group = Group.of(mesh)
    group.begin()
    device = group.device_for(q)
    with refusing_together(group, device):
        refuse_keywords(name, options, ("mesh", "layout", "form", *OPTIONS), OF_CALLS)
        call = Call(q, k, v, **options).in_numbers().cast()
        if isinstance(call.k, Stored) or isinstance(call.v, Stored):
            raise UnsupportedError(
                "attention over several processes takes k and v as tensors, not as a cache stores them"
            )
        tensors = call.q, call.k, call.v
        problem = _checked(call, want, form)
        group.check_device(call.q.device)
        bias_keys, of_bias = _about_bias(call, problem)
        if call.dropout_seed is not None:
            call = call._replace(dropout_seed=checked_seed(call.dropout_seed))
        words = _words(problem, call, layout, form, want)
        if form == "state":
            refuse_others(problem, layout, call.q_start, call.backend)
    learning = torch.is_grad_enabled() and (
        problem.needs_grad or problem.bias_learns or problem.sink_learns
    )
    seed = call.dropout_seed
    if seed is None:  # drawn as on one process
        seed = int(torch.randint(2**62, (), device="cpu").item()) if problem.dropout else 0
    agreed = agree(
        group,
        device,
        words,
        q_len=problem.q_len,
        k_len=problem.k_len,
        learning=learning,
        seed=seed,
        bias_keys=bias_keys,
        of_bias=of_bias,
    )
    q_layout = Layout(layout, agreed.q_lengths)
    k_layout = Layout(layout, agreed.k_lengths)
    problem.pattern.check(problem.batch, problem.heads, q_layout.length, k_layout.length)
    seed = (
        (agreed.seed if call.dropout_seed is None else call.dropout_seed)
        if problem.dropout
        else None
    )
    return Agreed(group, call, tensors, problem, q_layout, k_layout, seed)


def _run(agreed: Agreed, form: str, want: tuple[Want, ...]) -> SharedRun:
    """The call as this process runs it, by an exchange of keys.

    A named backend and `strict` may refuse a piece that only some processes have. So with them all pieces are planned
    before any key is sent, and the processes agree that all of them can compute theirs.
    """
    call, problem, q, k = agreed.call, agreed.problem, agreed.q_layout, agreed.k_layout
    needs = needs_of(
        problem.pattern, q, k, k.length - q.length if call.q_start is None else call.q_start
    )
    others = {one: getattr(call, one) for one in OTHERS}
    shared = Options(
        problem.pattern, call.bias, call.sink, call.parameters, agreed.dropout_seed, others
    )
    run = SharedRun(agreed.group, needs, needs.form(form), shared)
    if problem.strict or call.backend != "auto":
        device = run.group.device_for(call.q)
        with refusing_together(run.group, device):
            check_pieces(run, *agreed.tensors, want)
        agree(run.group, device, [])
    return run


def _checked(call: Call, want: tuple[Want, ...], form: str) -> Problem:
    """The problem of this process's part; what depends on the whole sequence is checked after the processes agreed."""
    of_distance = call.bias if isinstance(call.bias, Bias) else None
    first = "causal" if form == "state" else None
    problem = call._replace(pattern=first, bias=of_distance, q_start=0).problem()
    mechanism = problem.mechanism
    pattern = as_pattern(call.pattern).canonical()
    merges = mechanism.is_softmax or (
        isinstance(mechanism, Kernelised) and "log_sum_exp" in mechanism.statistics
    )
    if form != "state" and not merges:
        raise UnsupportedError(
            f"{mechanism} over several processes: its outputs over some of the keys cannot be merged into that over "
            f"all by a log-sum-exp; use softmax, LinearTransformer or Performer, or one process; form='state' is for "
            f"causal RandomFeature"
        )
    given = {
        name for name in ("bias", "softcap", "scale", "sink") if getattr(call, name) is not None
    }
    if mechanism != Softmax():
        check_combination(
            mechanism, pattern, given | ({"dropout"} if problem.dropout else set()), want
        )
    if call.q_start is not None:
        checked_q_start(call.q_start, problem.batch)
    if problem.forward_mode or transforming():
        raise UnsupportedError(
            "forward-mode derivatives and transforms of torch.func stay within one process, so attention over several "
            "has none; use backward(), or one process"
        )
    return replace(problem, pattern=pattern, bias_learns=learns(call.bias))


def _words(
    problem: Problem, call: Call, layout: str, form: str, want: tuple[Want, ...]
) -> list[str]:
    """What has to be alike on all processes, option by option."""
    check_division(layout, form)
    by_key = problem.mechanism.by_key  # each process gives those of its own keys
    parameters = {
        name: x for name, x in sorted((call.parameters or {}).items()) if name not in by_key
    }
    options = {name: getattr(problem, name) for name in ALIKE} | {
        "mechanism": contents(problem.mechanism),
        "pattern": contents(problem.pattern),
        "dropout_seed": call.dropout_seed,
        "backend": call.backend,
        "want": want,
        "layout": layout,
        "form": form,
        "q_start": contents(call.q_start),
        "sink": contents(call.sink),
        "bias": "a tensor" if isinstance(call.bias, torch.Tensor) else contents(call.bias),
    }
    options |= {f"parameters[{name!r}]": contents(x) for name, x in parameters.items()}
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
    checked_bias(
        bias,
        call.q,
        {name: getattr(problem, name) for name in ("batch", "heads", "q_len")} | {"k_len": keys},
    )
    alike = rows == 1 and problem.q_len != 1
    text = f"bias {contents(bias[(None,) * (4 - bias.dim())])}" if alike else None
    return None if keys == 1 else keys, text


class ContextParallel(ParallelStyle):
    """Makes an attention layer attend over the positions of all processes; other layers see only their own part.

    Rotary positions are those of the whole sequence; so are those of a pattern or bias that is given to the layer's
    call. Weights are the same on every process, which the first call checks. The gradients on each process are its
    part of the sum: add them over the processes (DistributedDataParallel also divides the sum by their number).

    Args:
        layout: "contiguous" or "zigzag": how the vectors that the layer gets are divided.
        form: as for `regard.distributed.attention`.

    Raises:
        ArgumentError: another module than a MultiHeadAttention or LatentAttention, or an unknown layout or form; in the
            first call, weights that differ between processes.
        UnsupportedError: in a call, with a context, a cache or a recording.

    >>> from torch.distributed.tensor.parallel import parallelize_module
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun starts several
    >>> mesh = init_device_mesh("cpu", (1,))
    >>> model = nn.Sequential(MultiHeadAttention(dim=32, heads=4, pattern="causal"), nn.Linear(32, 32))
    >>> model = parallelize_module(model, mesh, {"0": ContextParallel(layout="zigzag")})
    >>> model(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    >>> dist.destroy_process_group()
    """

    def __init__(self, layout: str = "contiguous", form: str = "auto") -> None:
        check_division(layout, form)
        self.layout, self.form = layout, form

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) not in (*SHARED, *SHARED.values()):
            raise ArgumentError(
                f"ContextParallel is for {' or '.join(one.__name__ for one in SHARED)} itself and was given "
                f"{kind_of(module)}; name the attention layers in the plan, such as 'layers.*.attention', before "
                f"another style or FSDP2 divides them"
            )
        if module.chooser is not None:
            raise UnsupportedError(
                "ContextParallel divides positions, and a chooser compares all of them; leave it out"
            )
        module.__class__ = SHARED.get(type(module), type(module))
        assert isinstance(module, Shared)
        module.shared, module.agreed = (
            (Group.of(device_mesh), device_mesh, self.layout, self.form),
            False,
        )
        return module

    def __repr__(self) -> str:
        return f"ContextParallel(layout={self.layout!r}, form={self.form!r})"


class Shared(AttentionLayer):
    """What `ContextParallel` makes of an attention layer; its weights, names and state are the same."""

    shared: tuple[Group, Any, str, str]
    agreed: bool  # whether the weights are known to be those of the other processes
    asked: list[
        Layout
    ]  # of the call that is computed: how its positions are divided, once the processes agreed
    refuses_alone: bool  # whether a failure here is one that the other processes do not know of

    def forward(self, x: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        self.shared[0].begin()
        self.asked, self.refuses_alone = [], True
        if not self.agreed:
            group = self.shared[0]
            agree(group, group.device_for(x), [about_weights(self.parameters())])
            self.agreed = True
        try:
            if is_nested(x) or any(
                one is not None for one in (*inputs, options.get("context"), options.get("cache"))
            ):
                raise UnsupportedError(
                    "a layer over several processes attends to its own dense sequence, without a context and "
                    "without a cache; regard.distributed.attention takes q, k and v of two sequences"
                )
            return super().forward(x, *inputs, **options)
        except Exception as error:
            if self.refuses_alone:
                refuse_together(self.shared[0], self.shared[0].device_for(x), error)
            raise

    def _rotated(
        self, heads: torch.Tensor, start: int | torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        if (
            self.positions is None or positions is not None
        ):  # positions of this process's own tokens
            return super()._rotated(heads, start, positions)
        group, _, layout, _ = self.shared
        if not self.asked:
            self.refuses_alone = False
            words = [f"positions {self.positions}", f"batch {len(heads)}", f"layout {layout}"]
            lengths = agree(group, group.device_for(heads), words, q_len=heads.shape[2]).q_lengths
            self.asked.append(Layout(layout, lengths))
            self.refuses_alone = True
        places = self.asked[0].positions(group.rank).to(heads.device)
        first = start[:, None].to(heads.device) if isinstance(start, torch.Tensor) else start
        return self.positions.rotate(heads, places + first)

    def _attend(
        self, q: Any, k: Any, v: Any, pattern: Any, bias: Any, q_start: Any, gate: Any = None
    ) -> torch.Tensor:
        if current_recording(self) is not None:
            raise UnsupportedError(
                "a layer over several processes records nothing; record it on one process"
            )
        _, mesh, layout, form = self.shared
        options: dict[str, Any] = {
            **self.options,
            "pattern": pattern,
            "bias": bias,
            "q_start": q_start,
        }
        options |= {
            **self.mechanism.options(gate),
            "dropout": self.dropout if self.training else 0.0,
        }
        self.refuses_alone = False
        return attention(q, k, v, mesh, layout=layout, form=form, sink=self.sinks, **options)


class SharedAttention(Shared, MultiHeadAttention):
    """A MultiHeadAttention over the positions of all processes."""


class SharedLatentAttention(Shared, LatentAttention):
    """A LatentAttention over the positions of all processes; "auto" is expanded, alike on all of them."""

    def _attended(
        self, q: Any, latents: Any, values: Any, pattern: Any, bias: Any, q_start: Any, form: str
    ) -> torch.Tensor:
        form = "expanded" if form == "auto" else form
        return super()._attended(q, latents, values, pattern, bias, q_start, form)


SHARED: dict[type, type] = {
    MultiHeadAttention: SharedAttention,
    LatentAttention: SharedLatentAttention,
}
