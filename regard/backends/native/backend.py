"""The native backend: which problems its kernel computes, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from regard.backends import kernelised, recurrence
from regard.backends.composed import Calls
from regard.backends.documents import ROWS_IN_ORDER, is_causal
from regard.backends.limits import (
    Limited,
    no_weights,
    not_empty,
    on_dot_products,
    refusal_by,
    where,
)
from regard.backends.native import recurrence as recurring
from regard.backends.native.kernel import Differentiated, Kernel, with_kernel_statistics
from regard.backends.native.library import SPAN, Library, load
from regard.backends.native.lowering import (
    ROWS,
    Bands,
    bands_of,
    bands_of_problem,
    lists_of,
    lists_read,
    rows_of_lists,
)
from regard.backends.native.recurrence import cost_of, memory_shape
from regard.backends.native.steps import steps_of
from regard.backends.schedule import Schedule, pairs_of_long_band, strictly
from regard.backends.sinks import with_sinks
from regard.core import costs
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import PER_ROW, Problem
from regard.core.result import Result
from regard.core.tensors import HALF
from regard.mechanisms.features import Kernelised
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Pattern

MOST_GRADIENT = 1 << 26  # bytes of a gradient for every pair, where the bias itself is smaller
MOST_DIM = 4096  # of a recurrent memory
MOST_KEYS = 2**31 - 1 - SPAN


def _is_built(problem: Problem) -> str | None:
    """A limit: the library must be there."""
    return library if isinstance(library := load(), str) else None


def _holds_bias(problem: Problem) -> str | None:
    """A limit: the gradient of a bias is held for every pair, which may be more than the bias itself."""
    whole = (problem.batch, problem.heads, problem.q_len, problem.k_len)
    if _gradient_of_pairs(problem) <= MOST_GRADIENT or problem.bias == whole:
        return None
    return (
        f"it would hold the gradient of the bias {problem.bias} for each of {problem.pairs} pairs"
    )


LIMITS = (
    _is_built,
    where(
        lambda one: one.device != "cpu",
        "it is for the CPU, and the tensors are on {problem.device}",
    ),
    on_dot_products,
    not_empty,
    where(
        lambda one: max(one.q_len, one.k_len) > MOST_KEYS,
        "it counts keys in 32 bits, and there are {problem.q_len} queries and {problem.k_len} keys",
    ),
    _holds_bias,
)


MANY = 64  # queries; for so many or more, estimating lists of keys on other backends takes longer than computing
OF_RECURRENCES = (
    *LIMITS[:2],
    not_empty,
    no_weights,
    *ROWS_IN_ORDER,
    where(
        lambda one: max(memory_shape(one)) > MOST_DIM,
        f"it computes vectors of at most {MOST_DIM} numbers",
    ),
    where(
        lambda one: isinstance(one.mechanism, Kernelised) and not is_causal(one),
        "it computes linear attention of causal patterns alone, and {pattern} is not causal",
    ),
    where(
        lambda one: one.k_len > MOST_KEYS,
        "it counts keys in 32 bits, and there are {problem.k_len}",
    ),
)


@with_sinks
class Native(Limited):
    """Softmax over dot products with every option, recurrent mechanisms and causal linear ones, in float32, or in
    float64 if q is.

    Weights of softmax are rounded to bfloat16 where q, k and v are bfloat16, unless the call is precise; their
    products are exact.
    """

    name = "native"
    precise = True
    limits = LIMITS

    def assess(self, problem: Problem) -> Offer | Refusal:
        if not isinstance(problem.mechanism, Recurrent | Kernelised):
            return super().assess(problem)
        if (refusal := refusal_by(OF_RECURRENCES, problem)) is not None:
            return refusal
        library = load()
        assert isinstance(library, Library)
        form = recurrence if isinstance(problem.mechanism, Recurrent) else kernelised
        return Offer(
            cost_of(problem, form.cost(problem)),
            partial(form.run, problem, recurring.Kernel(library)),
        )

    def offer(self, problem: Problem) -> Offer | Refusal:
        library = load()
        assert isinstance(library, Library)
        if problem.precise and problem.dtype in HALF:  # lists are read in float32 alone
            wide = replace(problem, dtype=torch.float32, storage=torch.float32)
            if lists_read(wide) is not None:
                offer = self.offer(wide)
                assert isinstance(offer, Offer)
                return replace(offer, run=partial(_in_float32, offer.run), takes_stored=False)
        kernel = Kernel(library, problem)
        reads = _reads_stored(problem)
        steps = steps_of(library, problem) if reads else None
        cost = with_kernel_statistics(_cost(problem, library, *_pairs(problem, library)), problem)
        lists = (
            problem.q_len >= MANY and rows_of_lists(problem) is not None
        )  # other backends cut them into small calls
        return strictly(
            problem, Offer(cost, kernel.run, reads, None if steps is None else steps.run, lists)
        )


def _in_float32(compute: Callable[[Operands], Result], operands: Operands) -> Result:
    """The result of half-precision operands as float32 tensors, with its output rounded once."""
    result = compute(operands.in_float32())
    return result._replace(output=result.output.to(operands.q.dtype))


def kernel_of(problem: Problem) -> tuple[Calls, Cost] | None:
    """The kernel for a part of another backend's call, and its cost; None where it does not compute this problem."""
    library = load()
    if isinstance(library, str) or refusal_by(LIMITS, problem) is not None:
        return None
    return Differentiated(Kernel(library, problem)), _cost(
        problem, library, *_pairs(problem, library)
    )


def _reads_stored(problem: Problem) -> bool:
    """Whether the kernel reads keys and values as they are stored; float64 it reads beside queries of float64 alone."""
    return problem.storage != torch.float64 or problem.dtype == torch.float64


def _gradient_of_pairs(problem: Problem) -> int:
    """Bytes of the gradient of a bias tensor, which is summed to the shape of the bias in the end."""
    if not problem.bias_learns or not problem.bias:
        return 0
    return problem.pairs * (8 if problem.dtype == torch.float64 else 4)


def _pairs(problem: Problem, library: Library) -> tuple[int, bool]:
    """Pairs in the tiles that the kernel computes, over all batch rows and heads, and whether that is an estimate."""
    pattern = problem.pattern
    if (bands := bands_of_problem(problem)) is not None:
        pairs, rows, estimated = _pairs_of_bands(bands, problem, library)
        return pairs * problem.batch * problem.heads // rows, estimated
    if problem.q_start is PER_ROW:
        return problem.pairs, True
    if (listed := lists_read(problem)) is not None:
        sizes = (problem.q_start, problem.q_len, problem.reachable_keys)
        every = problem.batch * problem.heads
        if not problem.strict and not listed.in_tiles:  # counting would take as long as the call
            return listed.most_pairs(*sizes) * every, True
        return listed.pairs(*sizes) * (every // math.prod(listed.lists.listed.shape[:2])), False
    total = 0
    rows = problem.batch if pattern.varies_by_row else 1
    heads = problem.heads if pattern.varies_by_head else 1
    for row in range(rows):
        own = pattern.for_row(row) if rows > 1 else pattern
        for head in range(heads):
            one = own.for_head(head) if heads > 1 else own
            if (bands := bands_of(one, problem.k_len)) is not None:
                total += _pairs_of_bands(bands, problem, library)[0]
            elif (lists := lists_of(one, problem.k_len)) is not None:
                total += lists.pairs(problem.q_start, problem.q_len, problem.reachable_keys)
            else:
                total += _pairs_of_schedule(one, problem, library.tile[1])
    return total * problem.batch * problem.heads // (rows * heads), False


def _pairs_of_bands(bands: Bands, problem: Problem, library: Library) -> tuple[int, int, bool]:
    """Pairs of the tiles of one head, over so many batch rows, and whether that is an estimate.

    A tile is computed from the panel of its first key to the panel of its last.
    """
    rows, width = library.tile
    q_len = problem.q_len
    keys = problem.reachable_keys
    start = problem.k_len - q_len if problem.q_start is PER_ROW else problem.q_start
    if (pairs := pairs_of_long_band(problem, rows, width)) is not None:
        return pairs, 1, True
    if (alone := bands.bounds_alone([start], q_len, keys)) is not None:
        low, high = alone
        end = min(-(-high // width) * width, keys.stop)
        return max(0, end - max(low // width * width, keys.start)) if low < high else 0, 1, False
    lo, hi = bands.bounds([start], q_len, keys)
    first = torch.arange(0, q_len, rows, device="cpu")
    last = (first + rows - 1).clamp(max=q_len - 1)
    low = lo[:, first]
    high = hi[:, last]
    begin = (low // width * width).clamp(min=keys.start)
    end = ((high + width - 1) // width * width).clamp(max=keys.stop)
    pairs = torch.where(high > low, end - begin, 0) * (last - first + 1)
    return int(pairs.sum()), len(lo), False


def _pairs_of_schedule(pattern: Pattern, problem: Problem, width: int) -> int:
    """Pairs of the panels of `width` keys in which a row block has a key."""
    assert problem.q_start is not PER_ROW
    starts = problem.q_start, problem.q_start
    schedule = Schedule(pattern, problem.q_len, problem.k_len, starts, problem.reachable_keys, ROWS)

    pairs = 0
    for block in schedule:
        done = 0
        for run in block.runs:
            first = run.keys.start // width * width
            end = min(-(-run.keys.stop // width) * width, problem.k_len)
            pairs += max(0, end - max(first, done)) * len(block.rows) * block.times
            done = max(done, end)
    return pairs


def _cost(problem: Problem, library: Library, pairs: int, estimated: bool) -> Cost:
    dims = problem.head_dim + problem.v_dim
    rows = problem.batch * problem.heads * problem.q_len * dims * problem.dtype.itemsize
    keys = min(
        len(problem.reachable_keys), -(-pairs // (problem.batch * problem.heads))
    )  # of one query: those it sees
    stored = problem.batch * problem.kv_heads * keys * dims * problem.storage.itemsize
    return Cost(
        flops=2 * pairs * dims * (3.5 if problem.needs_grad else 1),
        bytes=(rows + stored) * (3 if problem.needs_grad else 1) + 2 * _gradient_of_pairs(problem),
        peak_bytes=4.0 * (1 << 18) + _gradient_of_pairs(problem),
        pairs=pairs,
        calls=1,
        estimated=estimated,
        pace=_pace(problem, library)
        * (1 if rows_of_lists(problem) is None else costs.KERNEL_TIMES_BY_ROW),
    )


def _pace(problem: Problem, library: Library) -> float:
    if problem.dtype == torch.float64:
        return costs.KERNEL_PACE_FLOAT64
    narrow = problem.dtype == problem.storage == torch.bfloat16 and not problem.precise
    narrow &= library.instructions == "AVX-512 with BF16"
    return costs.KERNEL_PACE_BFLOAT16 if narrow else costs.KERNEL_PACE[library.instructions]
