"""Hidden keys and masked pairs change no bit of an output, even if the keys hold NaN.

Before a backend runs, hidden keys are cut away or zeroed. After it has run, the output is checked for numbers that are
not finite; if there are any, the call is computed again so that they reach only the queries that may look at their key.
A call without gradients on the CPU does not zero hidden keys first, which would copy all keys and values: a backend
gives masked pairs the weight 0, so only numbers that are not finite could reach the output, and the check finds those.
Gradients and most statistics are products with keys and values of their own, in which such numbers appear even if the
output is finite. In calls that return them, keys that a bias hides are found by their numbers before the backend runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.arguments import in_memory, real
from regard.bias import Bias
from regard.core.backend import Operands, Relative
from regard.core.call import Call
from regard.core.problem import PER_ROW, Problem, checked_seed
from regard.core.result import Result, TopKeysFound, WeightsOf, requested
from regard.core.tensors import Stored
from regard.patterns import Full
from regard.patterns.grid import Grid, four_axes, true_runs
from regard.patterns.visible import visible_keys

ALIGNED = 64  # bytes; new tensors on a CPU begin at a multiple
PAIRS = 1 << 22  # checked at once
# Products of larger numbers could overflow; float16 and bfloat16 are multiplied in float32.
LIMIT = 2.0**63
LIMITS = {torch.float64: 2.0**511}
# The largest table of a bias by distance that is kept; the time to make a larger one is small beside its call.
NUMBERS_KEPT = 1 << 16
_PROXY: Any = torch._C._TorchDispatchModeKey.PROXY
_NO_PARAMETERS: dict[str, torch.Tensor] = {}


@dataclass(frozen=True)
class CallGrid:
    """The positions of a call's queries and of the keys that they can reach, and which of those keys are hidden.

    hidden: (batch or 1, kv_heads or 1, keys, 1), True = hidden; None where every key is visible.
    bias: the numbers of a bias object that are the same in every call, if they are kept.
    """

    grid: Grid
    hidden: torch.Tensor | None
    bias: Relative | None = None


def grid_of_call(
    problem: Problem, keys: range, q_start: int | torch.Tensor | None, device: torch.device
) -> CallGrid:
    """The grid of a call; q_start is read where it differs by batch row."""
    start: int | torch.Tensor | None = problem.q_start
    if start is PER_ROW:
        assert isinstance(q_start, torch.Tensor)
        # A copy, since the caller may change it in place before the backward pass.
        start = in_memory("q_start", q_start).clone()
    grid = Grid(problem.q_len, problem.k_len, start, range(problem.q_len), keys, device)
    hidden = None if problem.checks_hidden_after else _hidden(problem, grid)
    return CallGrid(grid, hidden)


def lasting_grid(problem: Problem, call_grid: CallGrid, call: Call) -> CallGrid | None:
    """The grid that all calls with the same key share and that holds no tensor of one call; None where it differs.

    A bias that compares by value has the same numbers in each of them, so these are kept too.
    """
    if call_grid.hidden is not None or call_grid.grid.per_batch:
        return None
    bias = call.bias
    if not isinstance(bias, Bias) or not bias.by_value or bias.plan_key is None:
        return call_grid
    relative = _prepared_bias(bias, problem, call_grid.grid)
    assert isinstance(relative, Relative)
    if relative.table.numel() > NUMBERS_KEPT:
        return call_grid
    return replace(call_grid, bias=relative)


def _hidden(problem: Problem, grid: Grid) -> torch.Tensor | None:
    """The keys that no query may look at, (batch or 1, kv_heads or 1, keys, 1); None where every key is visible."""
    visible = visible_keys(problem.pattern, grid)
    return None if visible is None else ~_for_kv_heads(visible, problem)[..., None]


def prepare(problem: Problem, call_grid: CallGrid, call: Call) -> Operands:
    """Cut the tensors of a call to the keys of its grid and zero the hidden ones.

    A weight of zero does not hide a NaN, since NaN times zero is NaN: hidden keys and values are replaced before any
    backend reads them.
    """
    grid = call_grid.grid
    k = call.k
    v = call.v
    if len(grid.keys) < problem.k_len or isinstance(k, Stored):
        k = _cut(k, grid.keys)
        v = _cut(v, grid.keys)
    if call_grid.hidden is not None:
        k = _zeroed(k, call_grid.hidden)
        v = _zeroed(v, call_grid.hidden)
    bias: torch.Tensor | Relative | None = call_grid.bias
    if bias is None and call.bias is not None:
        bias = _prepared_bias(call.bias, problem, grid)
    seed = 0
    if problem.dropout or call.dropout_seed is not None:
        seed = _seed(call.dropout_seed)
    sink = None
    if call.sink is not None:
        sink = prepared_sink(call.sink, call.q)

    operands = Operands(call.q, k, v, bias, grid, seed, _NO_PARAMETERS, sink)
    if bias is None or problem.checks_hidden_after:
        return operands
    return without_masked(problem, operands)


def without_masked(problem: Problem, operands: Operands) -> Operands:
    """The operands with zeros for extreme keys and values that the bias, or bias and pattern together, hide.

    Where no number can be read, all keys that a bias hides are zeroed, and a bias by distance is taken without the
    pattern.
    """
    if problem.empty or not len(operands.grid.keys):
        return operands
    k = _sizes_of_numbers(operands.k)
    v = _sizes_of_numbers(operands.v)
    if _can_be_read(k) and _can_be_read(v):
        extreme = _extreme_keys(k, v, LIMITS.get(problem.dtype, LIMIT))
        if extreme is None:
            return operands
        visible = _visible(problem, operands, extreme.flatten(0, 1).any(0))
        hidden = extreme & ~_for_kv_heads(visible, problem)
        if not hidden.any():
            return operands
    elif isinstance(operands.bias, Relative):
        visible = ~_masked_by_distance(operands.bias, operands.grid)
        hidden = ~_for_kv_heads(visible, problem)
    else:
        all_keys = torch.ones(len(operands.grid.keys), dtype=torch.bool, device="cpu")
        hidden = ~_for_kv_heads(_visible(problem, operands, all_keys), problem)
    return _with_zeros(operands, hidden[..., None])


def _sizes_of_numbers(x: torch.Tensor | Stored) -> torch.Tensor:
    """The tensor in which extreme numbers are searched; for int8 the scales, which say how large the numbers are."""
    if not isinstance(x, Stored):
        return x
    return x.numbers if x.scales is None else x.scales


def _extreme_keys(k: torch.Tensor, v: torch.Tensor, limit: float) -> torch.Tensor | None:
    """Keys with a number beyond the limit or a NaN in key or value, (batch, kv_heads, keys); None without any."""
    k = k.detach()
    v = v.detach()
    least_key, most_key = k.aminmax()
    least_value, most_value = v.aminmax()
    # A comparison with NaN is False, so a NaN is never overlooked.
    if least_key >= -limit and most_key <= limit and least_value >= -limit and most_value <= limit:
        return None
    return ~((k.abs().amax(-1) <= limit) & (v.abs().amax(-1) <= limit))


def _with_zeros(
    operands: Operands, hidden_keys: torch.Tensor, hidden_values: torch.Tensor | None = None
) -> Operands:
    """The operands with zeros for hidden keys, and for hidden values, which are those of the keys by default."""
    if hidden_values is None:
        hidden_values = hidden_keys
    k = _aligned_as(operands.k, _zeroed(operands.k, hidden_keys))
    v = _aligned_as(operands.v, _zeroed(operands.v, hidden_values))
    return operands._replace(k=k, v=v)


def _visible(problem: Problem, operands: Operands, suspects: torch.Tensor) -> torch.Tensor:
    """Which of the suspect keys some query may look at by pattern and bias, (batch or 1, heads or 1, keys).

    Others, which are False in `suspects`, (keys,), may be called visible though they are hidden.
    """
    bias = operands.bias
    # Such a bias is the same for every query, and keys that the pattern hides were removed before.
    if isinstance(bias, torch.Tensor) and bias.shape[2] == 1:
        return (bias[:, :, 0] != -math.inf).expand(-1, -1, len(suspects))
    visible = torch.ones(
        problem.batch, problem.heads, len(suspects), dtype=torch.bool, device=operands.grid.device
    )
    for run, _, allowed in _pairs(problem, operands, suspects):
        visible[..., run] = allowed.any(-2)
    return visible


def _masked_by_distance(bias: Relative, grid: Grid) -> torch.Tensor:
    """Which keys a bias by distance masks for every query, (batch or 1, heads or 1, keys)."""
    masked = torch.nn.functional.pad((bias.table == -math.inf).cumsum(-1), (1, 0))
    # The distances of a key to all queries are neighbours; this is the first of them.
    first = grid.k_pos - grid.q_pos[..., -1:, :] - bias.lowest
    by_head = masked[:, first + len(grid.rows)] - masked[:, first] == len(grid.rows)
    if grid.per_batch:
        by_head = by_head[:, :, 0, 0]  # of (heads, batch, 1, 1, keys)
    return by_head.transpose(0, 1)


def _cut(x: torch.Tensor | Stored, keys: range) -> torch.Tensor | Stored:
    return x.cut(keys) if isinstance(x, Stored) else x[:, :, keys.start : keys.stop]


def _zeroed(x: torch.Tensor | Stored, hidden: torch.Tensor) -> torch.Tensor | Stored:
    return x.hidden(hidden) if isinstance(x, Stored) else x.masked_fill(hidden, 0)


def _aligned_as(x: torch.Tensor | Stored, copy: torch.Tensor | Stored) -> torch.Tensor | Stored:
    """The copy, with each row at the same distance from a multiple of 64 bytes as the row of x.

    The rounding of matrix products may depend on that distance. If x is a view that leaves out numbers between its
    rows, the copy has less than 64 bytes in their place.
    """
    if isinstance(x, Stored) or isinstance(copy, Stored) or copy.requires_grad:
        return copy
    # A tensor of a transform has no memory of its own.
    if not copy.is_cpu or torch._C._functorch.is_functorch_wrapped_tensor(copy):
        return copy

    period = ALIGNED // x.element_size()
    ahead = x.data_ptr() % ALIGNED // x.element_size()
    strides = [0] * copy.dim()
    extent = 1
    for axis in sorted(range(copy.dim()), key=copy.stride):
        strides[axis] = extent + (x.stride(axis) - extent) % period
        extent += (copy.shape[axis] - 1) * strides[axis]
    if not ahead and strides == list(copy.stride()):
        return copy
    return copy.new_empty(extent + ahead).as_strided(copy.shape, strides, ahead).copy_(copy)


def _prepared_bias(
    bias: torch.Tensor | Bias, problem: Problem, grid: Grid
) -> torch.Tensor | Relative:
    """A tensor with four axes, cut to the reachable keys, or a bias by distance at every distance that occurs."""
    if isinstance(bias, torch.Tensor):
        bias = bias[(None,) * (4 - bias.dim())]  # (batch or 1, heads or 1, q_len or 1, k_len or 1)
        return bias if bias.shape[-1] == 1 else bias[..., grid.keys.start : grid.keys.stop]
    start = grid.q_start
    starts = start.tolist() if isinstance(start, torch.Tensor) else [start]
    lowest = grid.keys.start - (max(starts, default=0) + max(0, problem.q_len - 1))
    highest = max(lowest, grid.keys.stop - 1 - min(starts, default=0))
    return Relative(bias.in_range(lowest, highest, problem.heads, grid.device), lowest)


def prepared_sink(sink: float | torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The logits of the sinks as (batch or 1, heads or 1, 1) in float32, or in float64 where q is."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if not isinstance(sink, torch.Tensor):
        # The key of a call does not hold this number, so every call reads it.
        return torch.full((1, 1, 1), real("sink", sink), dtype=dtype, device=q.device)
    # A logit of -inf is no sink, so nothing depends on it, not even the sum of an empty row.
    if sink.requires_grad:
        sink = sink.masked_fill(sink == -math.inf, -math.inf)
    return sink.to(dtype)[(None,) * (2 - sink.dim())][..., None]


def _for_kv_heads(visible: torch.Tensor, problem: Problem) -> torch.Tensor:
    """A key is visible if any query head of its group may look at it: (batch or 1, kv_heads or 1, keys)."""
    if visible.shape[1] == 1 or problem.group == 1:
        return visible
    return visible.unflatten(1, (problem.kv_heads, problem.group)).any(2)


def _seed(dropout_seed: int | None) -> int:
    if dropout_seed is None:
        return int(torch.randint(2**62, (), device="cpu").item())
    return checked_seed(dropout_seed)


def masks_pairs(problem: Problem, keys: range) -> bool:
    """Whether the pattern or the bias masks some pairs. If so, a value that is not finite could reach other queries."""
    if not keys or problem.empty:
        return False
    if problem.bias is not None:  # it may mask pairs by -inf
        return True
    if problem.pattern == Full():
        return False
    if problem.q_start is PER_ROW:
        return True
    last = problem.q_start + problem.q_len - 1
    return not problem.pattern.sees_all(problem.q_start, last, keys)


def looks_sound(result: Result) -> bool:
    """Whether the output is finite, as the backend found or by its sum; always True where it cannot be read."""
    if result.sound is not None:
        return result.sound
    output = result.output
    if not _can_be_read(output):
        return True
    total = output.sum(dtype=torch.float32) if output.dtype.itemsize == 2 else output.sum()
    return math.isfinite(total.item())


def _can_be_read(x: Any) -> bool:
    """Whether the numbers of a tensor can be read: not inside vmap and make_fx, nor on devices where reading would
    block, all but the CPU."""
    if not x.is_cpu or torch._C._get_dispatch_mode(_PROXY) is not None:
        return False
    return not (torch._C._functorch.is_functorch_wrapped_tensor(x) and _is_batched(x))


def _is_batched(x: torch.Tensor) -> bool:
    """Whether vmap made this tensor of a transform, or one of those that it wraps."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def contained(
    problem: Problem, operands: Operands, result: Result, compute: Callable[[Operands], Result]
) -> Result:
    """The result computed again, with NaN only for queries that may look at a number that is not finite.

    A weight of 0 does not stop a NaN, so the other queries are computed with zeros for those keys and values, and for
    numbers of the bias that are NaN or inf.
    """
    if problem.checks_hidden_after:
        without_hidden = operands
        hidden = _hidden(problem, operands.grid)
        if hidden is not None:
            without_hidden = _with_zeros(without_hidden, hidden)
        if operands.bias is not None:
            without_hidden = without_masked(problem, without_hidden)
        if without_hidden is not operands:
            operands = without_hidden
            result = compute(operands)

    operands = operands.widened()
    finite_keys = operands.k.isfinite().all(-1).repeat_interleave(problem.value_group, 1)
    bad = ~(finite_keys & operands.v.isfinite().all(-1))  # (batch, kv_heads, keys)
    spoilt = operands.changed_bias(_is_spoilt)
    suspects = bad.flatten(0, 1).any(0)  # the keys of pairs that are not finite, (keys,)
    if isinstance(spoilt, Relative):
        suspects = suspects | spoilt.table.any()
    elif spoilt is not None:
        suspects = suspects | spoilt.flatten(0, 2).any(0)
    if not suspects.any():
        return result

    touched = _touched(problem, operands, bad, spoilt, suspects)
    operands = operands._replace(bias=operands.changed_bias(_without_spoilt))
    # k may have fewer heads than v: a key that is not finite is bad for all value heads that share it.
    bad_keys = bad.unflatten(1, (-1, problem.value_group)).all(2)
    finite = compute(_with_zeros(operands, bad_keys[..., None], bad[..., None]))
    return _with_nan(finite, touched, problem)


def _is_spoilt(bias: torch.Tensor) -> torch.Tensor:
    return bias.isnan() | (bias == math.inf)


def _without_spoilt(bias: torch.Tensor) -> torch.Tensor:
    return bias.masked_fill(_is_spoilt(bias), 0)


def _touched(
    problem: Problem, operands: Operands, bad: torch.Tensor, spoilt: Any, suspects: torch.Tensor
) -> torch.Tensor:
    """Which queries may look at bad keys, or at pairs whose bias is spoilt, (batch, heads, q_len)."""
    bad = bad.repeat_interleave(problem.group, dim=1)  # (batch, heads, keys)
    touched = bad.new_zeros(problem.batch, problem.heads, problem.q_len)
    with_spoilt = operands._replace(bias=spoilt)
    for run, block, allowed in _pairs(problem, operands, suspects):
        reached = bad[:, :, None, run]
        spoilt_pairs = with_spoilt.bias_block(block)
        if spoilt_pairs is not None:
            reached = reached | spoilt_pairs
        touched |= (allowed & reached).any(-1)
    return touched


def _pairs(
    problem: Problem, operands: Operands, suspects: torch.Tensor
) -> Iterator[tuple[slice, Grid, torch.Tensor]]:
    """Slices of the keys that together cover the suspects, their grids, and which pairs pattern and bias allow."""
    grid = operands.grid
    step = max(1, PAIRS // max(1, problem.batch * problem.heads * problem.q_len))
    for run in _runs(suspects, step):
        keys = range(grid.keys.start + run.start, grid.keys.start + run.stop)
        block = grid.block(grid.rows, keys)
        allowed = four_axes(problem.pattern.evaluate(block))
        bias = operands.bias_block(block)
        if bias is not None:
            allowed = allowed & (bias != -math.inf)
        yield run, block, allowed  # (batch or 1, heads or 1, q_len, keys of the run)


def _runs(suspects: torch.Tensor, size: int) -> Iterator[slice]:
    """Slices of at most `size` that together cover every True.

    >>> [*_runs(torch.tensor([1, 0, 1, 1, 1, 0]).bool(), 2)]
    [slice(0, 1, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for run in true_runs(suspects):
        for start in range(run.start, run.stop, size):
            yield slice(start, min(start + size, run.stop))


def _with_nan(result: Result, touched: torch.Tensor, problem: Problem) -> Result:
    """The result with NaN in the outputs and statistics of the touched queries."""
    rows = touched[..., None]
    places = dict.fromkeys(("log_sum_exp", "entropy", "distance", "sink"), touched)
    places |= {"output": rows, "weights": rows, "received": touched.any(-1, keepdim=True)}
    chosen = requested(WeightsOf, problem.want)
    if chosen is not None:
        touched_rows = touched[:, :, list(chosen.rows)]
        if chosen.heads is not None:
            touched_rows = touched_rows[:, list(chosen.heads)]
        places["chosen_weights"] = touched_rows[..., None]

    changed: dict[str, Any] = {}
    for name, places_of_statistic in places.items():
        statistic = getattr(result, name)
        if statistic is not None:
            changed[name] = _WithNaN.apply(statistic, places_of_statistic)
    top = result.top_keys
    if top is not None:
        changed["top_keys"] = TopKeysFound(top.indices, _WithNaN.apply(top.weights, rows))
    return Result(**changed)


class _WithNaN(torch.autograd.Function):
    """Writes NaN at some places, and into the gradient there unless it is 0, as for outputs that no loss uses."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(places, math.nan)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor
    ) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (places,) = ctx.saved_tensors
        return grads[0].masked_fill(places & (grads[0] != 0), math.nan), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0].masked_fill(ctx.saved_tensors[0], math.nan)
