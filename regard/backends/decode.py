"""The decode backend: few queries and many keys, as when a text is continued token by token.

Query heads that share a key/value head become rows of one matrix, so that each key is read once. Where the fused
operation takes the dtype of the keys, it computes the call; long runs of keys are divided among the threads. Otherwise
all weights of the few queries are computed, which is every option and statistic, and keys that a cache stores in a
narrow dtype are widened chunk by chunk in one workspace that fits a core's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial, reduce
from typing import Any

import torch

from regard.backends import flash
from regard.backends.dropout import drop
from regard.backends.far import any_far, far_rows
from regard.backends.limits import Limited, not_empty, on_dot_products, where
from regard.backends.merging import merge
from regard.backends.schedule import Schedule, strictly
from regard.backends.scores.factor import divided_factor
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import observe
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import PER_ROW, Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.patterns.grid import four_axes
from regard.patterns.row_blocks import Run, RunKind

MOST_QUERIES = 16  # for more, the backends that compute blocks are faster
MOST_RUNS = 4  # more are computed as one run with a mask
LEAST_KEYS_OF_THREAD = 512
PART_ROWS = 32  # rows that the fused operation gives to one thread in any case
# numbers in the workspace: half a MiB; a quarter of it and four times as much were slower
WORKSPACE = 1 << 17
LEAST_KEYS_OF_CHUNK = 256  # for any number of heads

Runs = tuple[Run, ...]
Merged = tuple[torch.Tensor, torch.Tensor]  # output (.., rows, v_dim) and log-sum-exp (.., rows)


@with_sinks
class Decode(Limited):
    """Softmax over dot products of at most 16 queries, with every option and statistic, without a gradient."""

    name = "decode"
    limits = (
        on_dot_products,
        not_empty,
        where(
            lambda problem: problem.q_len > MOST_QUERIES,
            f"it is for at most {MOST_QUERIES} queries, and there are {{problem.q_len}}",
        ),
        where(
            lambda problem: problem.needs_grad or problem.bias_learns,
            "it has no gradient; continue texts under torch.no_grad()",
        ),
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        runs = _runs_of(problem)
        fused = _takes_fused(problem, runs)
        run = partial(self.run, problem, runs, fused)
        return strictly(problem, Offer(_cost(problem, runs, fused), run, takes_stored=True))

    def run(self, problem: Problem, runs: Runs, fused: bool, operands: Operands) -> Result:
        with torch.no_grad():
            if not runs:
                return _result_without_keys(problem, operands)
            if fused and not flash.rounds_bias(operands):
                return _by_fused_operation(problem, runs, operands)
            return _by_weights(problem, runs, operands)


def _takes_fused(problem: Problem, runs: Runs) -> bool:
    """Whether the fused operation can compute it from keys in their stored dtype.

    Keys in bfloat16 are not widened first on any processor: reading them twice is what would take the time. On cuda
    only FlashAttention, which takes no mask, divides the keys among the multiprocessors.
    """
    if problem.softcap is not None or problem.dropout or set(problem.want) - {"log_sum_exp"}:
        return False
    narrow = problem.dtype == torch.bfloat16 and problem.bias is None
    dtype = problem.dtype
    if not narrow:
        dtype = flash.operation_dtype(dtype, problem.device)
    if problem.storage != dtype:
        return False
    if problem.device == "cuda":
        unmasked = all(run.kind == RunKind.WHOLE for run in runs)
        size = max(problem.head_dim, problem.v_dim)
        return unmasked and flash.has_flash_attention(dtype, size, "cuda")
    return flash.refusal(dtype, problem.device) is None


def _cost(problem: Problem, runs: Runs, fused: bool) -> Cost:
    """Each key and value is read once from memory, as it is stored; a widened chunk stays in the core's cache."""
    width = problem.computed_bytes
    keys = sum(len(run.keys) for run in runs)
    pairs = problem.batch * problem.heads * problem.q_len * keys
    dims = problem.head_dim + problem.v_dim
    stored = problem.batch * problem.kv_heads * keys * dims * problem.storage.itemsize
    rows = problem.batch * problem.heads * problem.q_len * dims * problem.dtype.itemsize
    mask_sizes = [_mask_size(problem, run) for run in runs if run.kind == RunKind.BITS]
    masks = width * max(mask_sizes, default=0)
    flops = 2 * pairs * dims
    moved = stored + rows + 2 * masks
    if fused:
        return Cost(flops, moved, 2 * masks, pairs, calls=2 * len(runs))
    numbers_of_key = problem.batch * problem.kv_heads * max(problem.head_dim, problem.v_dim)
    chunks = -(-keys // _chunk_size(numbers_of_key, problem.device))
    scores = width * pairs
    return Cost(flops, moved + 4 * scores, 3 * scores + masks, pairs, calls=5 + 2 * chunks)


def _mask_size(problem: Problem, run: Run) -> int:
    by_row = problem.q_start is PER_ROW or problem.pattern.varies_by_row
    by_head = problem.bias is not None or problem.pattern.varies_by_head
    rows = problem.batch if by_row else 1
    heads = problem.heads if by_head else problem.group
    return rows * heads * problem.q_len * len(run.keys)


def _result_without_keys(problem: Problem, operands: Operands) -> Result:
    shape = operands.q.shape[:3]
    wide = torch.promote_types(problem.dtype, torch.float32)
    no_weights = operands.q.new_zeros(*shape, 0, dtype=wide)
    statistics = observe(problem, operands.grid, no_weights, no_weights.bool())
    if "log_sum_exp" in problem.want:
        statistics["log_sum_exp"] = no_weights.new_full(shape, -math.inf)
    return Result(operands.q.new_zeros(*shape, problem.v_dim), **statistics)


def _runs_of(problem: Problem) -> Runs:
    """The runs of a problem's queries as one row block: WHOLE without a mask, BITS with one.

    Statistics need all reachable keys in one run, so if any are requested there is one run.
    """
    schedule = Schedule.of_problem(problem, rows=problem.q_len)
    if not schedule.keys:
        return ()
    whole = (Run(schedule.keys, RunKind.BITS),)
    if problem.q_start is PER_ROW:
        return whole
    without_mask = RunKind.WHOLE if problem.bias is None else RunKind.BITS
    last = problem.q_start + problem.q_len - 1
    if problem.pattern.sees_all(problem.q_start, last, schedule.keys):
        return (Run(schedule.keys, without_mask),)
    if set(problem.want) - {"log_sum_exp"}:
        return whole
    runs = schedule.whole.runs
    if len(runs) > MOST_RUNS:
        return whole
    kinds = [without_mask if run.kind == RunKind.WHOLE else RunKind.BITS for run in runs]
    return tuple(Run(run.keys, kind) for run, kind in zip(runs, kinds, strict=True))


def _allowed_and_bias(
    problem: Problem, operands: Operands, run: Run
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Which pairs of a run are allowed and what is added to their scores, both (batch or 1, heads or 1, q_len or 1,
    keys or 1) or None; a score of -inf masks a pair."""
    if run.kind == RunKind.WHOLE:
        return None, None
    grid = operands.grid.block(range(problem.q_len), run.keys)
    pairs = four_axes(problem.pattern.evaluate(grid))
    bias = operands.bias_block(grid)
    return (pairs, None) if bias is None else (pairs & (bias != -torch.inf), bias)


def _with_columns(runs: Iterable[Run]) -> Iterator[tuple[Run, slice]]:
    """Each run with its columns in the concatenation of all runs."""
    start = 0
    for run in runs:
        yield run, slice(start, start + len(run.keys))
        start += len(run.keys)


def _by_fused_operation(problem: Problem, runs: Runs, operands: Operands) -> Result:
    """Output and log-sum-exp by the fused operation, from keys and values in the dtype in which it computes."""
    k = _numbers_of(operands.k)
    v = _numbers_of(operands.v)
    rows = problem.group * problem.q_len
    q = operands.q.to(k.dtype)
    q = q.reshape(problem.batch, problem.kv_heads, rows, problem.head_dim)
    first_key = operands.grid.keys.start
    parts: list[Merged] = []
    for run in runs:
        run_k = k
        run_v = v
        if len(run.keys) < k.shape[2]:
            keys = slice(run.keys.start - first_key, run.keys.stop - first_key)
            run_k = k[:, :, keys]
            run_v = v[:, :, keys]
        mask = _added_scores(problem, operands, run, k.dtype)
        parts += _attend_to_run(q, run_k, run_v, mask, problem.scale)
    output, log_sum_exp = parts[0] if len(parts) == 1 else merge(parts)
    shape = operands.q.shape[:3]
    output = output.reshape(*shape, problem.v_dim).to(operands.q.dtype)
    log_sum_exp = log_sum_exp.reshape(shape)
    if len(parts) > 1 and any(any_far(sums) for _, sums in parts):
        # Parts are merged by their log-sum-exp, which is too coarse for rows that are far in one of them.
        far = reduce(torch.logical_or, (far_rows(sums) for _, sums in parts)).reshape(shape)
        exact = _by_weights(problem, runs, operands)
        output = torch.where(far[..., None], exact.output, output)
        if exact.log_sum_exp is not None:
            log_sum_exp = torch.where(far, exact.log_sum_exp, log_sum_exp)
    return Result(output, problem.wanted_sums(log_sum_exp))


def _added_scores(
    problem: Problem, operands: Operands, run: Run, dtype: torch.dtype
) -> torch.Tensor | None:
    """Scores to add to the rows of a run, (batch or 1, kv_heads or 1, group * q_len, keys)."""
    allowed, bias = _allowed_and_bias(problem, operands, run)
    if allowed is None:
        return None
    if bias is None:
        mask = allowed.new_zeros(allowed.shape, dtype=dtype)
    else:
        mask = bias.to(dtype).expand(allowed.shape)
    mask = mask.masked_fill(~allowed, -math.inf)
    batch = mask.shape[0]
    heads = problem.heads if mask.shape[1] > 1 else problem.group
    keys = len(run.keys)
    mask = mask.expand(batch, heads, problem.q_len, keys)
    return mask.reshape(batch, heads // problem.group, problem.group * problem.q_len, keys)


def _attend_to_run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> list[Merged]:
    """Attention over one run, in several parts along the keys if threads would be idle otherwise."""
    count = _part_count(q, k.shape[2])
    if count == 1:
        return [flash.forward(q, k, v, flash.FusedCall(mask, False, scale))]
    size = k.shape[2] // count
    outputs = []
    sums = []
    for row in range(len(q)):  # one at a time, so that its parts are a batch without a copy
        row_mask = None
        if mask is not None:
            row_mask = _cut(mask[row if mask.shape[0] > 1 else 0], 2, count, size)
        output, log_sum_exp = flash.forward(
            q[row].expand(count, -1, -1, -1),
            _cut(k[row], 1, count, size),
            _cut(v[row], 1, count, size),
            flash.FusedCall(row_mask, False, scale),
        )
        outputs.append(output)
        sums.append(log_sum_exp)
    # of each part (batch, kv_heads, rows, ..)
    results = list(zip(torch.stack(outputs, 1), torch.stack(sums, 1), strict=True))
    if k.shape[2] % count:
        rest = slice(count * size, None)
        call = flash.FusedCall(None if mask is None else mask[..., rest], False, scale)
        results.append(flash.forward(q, k[:, :, rest], v[:, :, rest], call))
    return results


def _cut(x: torch.Tensor, axis: int, count: int, size: int) -> torch.Tensor:
    """Equal parts of x along an axis, (parts, ...), as a view; a shorter rest at the end is omitted."""
    return x.narrow(axis, 0, count * size).unflatten(axis, (count, size)).movedim(axis, 0)


def _part_count(q: torch.Tensor, keys: int) -> int:
    """The number of parts into which the keys of a run are divided; FlashAttention on cuda divides them itself."""
    if not q.is_cpu:
        return 1
    tasks = q.shape[0] * q.shape[1] * -(-q.shape[2] // PART_ROWS)
    return max(1, min(-(-torch.get_num_threads() // tasks), keys // LEAST_KEYS_OF_THREAD))


def _by_weights(problem: Problem, runs: Runs, operands: Operands) -> Result:
    """Output and statistics by the weights of every pair."""
    scores, allowed = _scores(problem, runs, operands)  # (batch, heads, q_len, columns)
    if problem.want:
        allowed = allowed & (scores != -math.inf)
    most = scores.amax(-1, keepdim=True)
    empty_rows = most == -math.inf
    weights = scores.sub_(most.masked_fill(empty_rows, 0)).exp_()
    total = weights.sum(-1, keepdim=True).masked_fill(empty_rows, 1)
    weights.div_(total)
    output = _weighted_mean(problem, runs, operands, weights)

    wanted: dict[str, Any] = {}
    if "log_sum_exp" in problem.want:
        wanted["log_sum_exp"] = (most + total.log())[..., 0]  # -inf for empty rows
    if set(problem.want) - {"log_sum_exp"}:
        wanted |= observe(problem, operands.grid, weights, allowed)
    return Result(output.to(operands.q.dtype), **wanted)


def _numbers_of(x: torch.Tensor | Stored) -> torch.Tensor:
    """Keys or values as they are stored; int8 without their scales."""
    return x.numbers if isinstance(x, Stored) else x


def _chunk_size(width: int, device: str) -> int:
    """Keys in a chunk, if `width` numbers are read for each key over all batch rows and heads."""
    workers = torch.get_num_threads() if device == "cpu" else 256
    return max(LEAST_KEYS_OF_CHUNK, WORKSPACE * workers // max(1, width))


def _scores(problem: Problem, runs: Runs, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores in the order of the formula, -inf where a pair is not allowed, and which pairs are."""
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    shape = (problem.batch, problem.heads, problem.q_len, sum(len(run.keys) for run in runs))
    scores = torch.empty(shape, dtype=wide, device=operands.q.device)
    rows = _as_rows(problem, scores)  # (batch * kv_heads, group * q_len, columns)
    carried, powers = divided_factor(problem.scale)
    q = _as_rows(problem, operands.q.to(wide) * carried)
    for columns, k in _chunks(runs, operands, operands.k, wide):
        rows[..., columns] = torch.bmm(q, k.mT)  # out= with strides would be computed head by head
    scales = _scales(runs, operands, operands.k)
    if scales is not None:
        rows.mul_(scales)
    for power in powers:
        rows.mul_(power)
    if problem.softcap is not None:
        scores.div_(problem.softcap).tanh_().mul_(problem.softcap)

    allowed = torch.ones((), dtype=torch.bool, device=scores.device).expand(shape)
    for run, columns in _with_columns(runs):
        allowed_in_run, bias = _allowed_and_bias(problem, operands, run)
        if allowed_in_run is None:
            continue
        part = scores[..., columns]
        if bias is not None:
            part += bias
        part.masked_fill_(~allowed_in_run, -math.inf)
        if len(runs) == 1:  # only statistics read it, and they need one run
            allowed = allowed_in_run.expand(shape)
    return scores, allowed


def _weighted_mean(
    problem: Problem, runs: Runs, operands: Operands, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted mean of the values, (batch, heads, q_len, v_dim)."""
    if problem.dropout:
        parts = []
        for run, columns in _with_columns(runs):
            grid = operands.grid.block(range(problem.q_len), run.keys)
            parts.append(drop(weights[..., columns], problem.dropout, operands.dropout_seed, grid))
        weights = torch.cat(parts, -1)
    rows = _as_rows(problem, weights)
    scales = _scales(runs, operands, operands.v)
    if scales is not None:
        rows = rows * scales
    output = rows.new_zeros(*rows.shape[:2], problem.v_dim)
    for columns, v in _chunks(runs, operands, operands.v, weights.dtype):
        output.baddbmm_(rows[..., columns], v)
    return output.view(problem.batch, problem.heads, problem.q_len, problem.v_dim)


def _as_rows(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, q_len, ..) as one matrix for each key/value head, with its queries as rows."""
    return x.reshape(problem.batch * problem.kv_heads, problem.group * problem.q_len, x.shape[-1])


def _scales(runs: Runs, operands: Operands, x: torch.Tensor | Stored) -> torch.Tensor | None:
    """The scales of int8 keys or values, (batch * kv_heads, 1, columns); None for other dtypes."""
    if not isinstance(x, Stored) or x.scales is None:
        return None
    first_key = operands.grid.keys.start
    parts = []
    for run in runs:
        keys = slice(run.keys.start - first_key, run.keys.stop - first_key)
        parts.append(x.scales[:, :, keys, 0])
    return torch.cat(parts, 2).flatten(0, 1)[:, None]


def _chunks(
    runs: Runs, operands: Operands, x: torch.Tensor | Stored, wide: torch.dtype
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Keys or values of some columns, (batch * kv_heads, chunk, dim) in `wide`; int8 without their scales.

    All chunks share one workspace, so the next chunk overwrites the last.
    """
    numbers = _numbers_of(x)
    batch, kv_heads, _, dim = numbers.shape
    size = _chunk_size(batch * kv_heads * dim, numbers.device.type)
    workspace = torch.empty(0, dtype=wide, device=numbers.device)
    for run, columns in _with_columns(runs):
        offset = run.keys.start - operands.grid.keys.start
        for start in range(0, len(run.keys), size):
            stop = min(start + size, len(run.keys))
            chunk = numbers[:, :, offset + start : offset + stop]
            if numbers.dtype != wide:
                if workspace.shape != chunk.shape:
                    workspace = chunk.new_empty(chunk.shape, dtype=wide)
                chunk = workspace.copy_(chunk)
            yield slice(columns.start + start, columns.start + stop), chunk.flatten(0, 1)
