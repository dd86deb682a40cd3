"""The native backend: which problems its kernel computes, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
from regard.backends.native import recurrence as native_recurrence
from regard.backends.native.bands import RowBand, row_band_of
from regard.backends.native.kernel import Differentiated, Kernel, with_kernel_statistics
from regard.backends.native.library import SPAN, Library, load
from regard.backends.native.lowering import LoweredWindows, lists_to_lower, lists_to_read
from regard.backends.native.recurrence import cost_of, memory_shape
from regard.backends.native.steps import steps_of
from regard.backends.schedule import (
    SHARED_ROWS,
    Schedule,
    pairs_of_long_band,
    shared_row_blocks,
    strictly,
)
from regard.backends.sinks import with_sinks
from regard.core import costs
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import PER_ROW, Problem
from regard.core.result import Result
from regard.core.tensors import HALF
from regard.mechanisms.features import Kernelised
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Pattern
from regard.patterns.row_blocks import RowBlock

MOST_GRADIENT_BYTES = 1 << 26  # of every pair, where the bias itself is smaller
MOST_DIM = 4096  # of a recurrent memory
# Bytes of the kernel's own memory, as costs count it.
KERNEL_MEMORY = 1 << 20
# For so many queries or more, estimating lists of keys on other backends takes longer than computing.
MANY_QUERIES = 64
MOST_KEYS = 2**31 - 1 - SPAN


def _is_built(problem: Problem) -> str | None:
    """A limit: the library must be there."""
    library = load()
    return library if isinstance(library, str) else None


def _holds_bias(problem: Problem) -> str | None:
    """A limit: the gradient of a bias is held for every pair, which may be more than the bias itself."""
    if not problem.bias_learns:
        return None
    every_pair = (problem.batch, problem.heads, problem.q_len, problem.k_len)
    if _gradient_bytes(problem) <= MOST_GRADIENT_BYTES or problem.bias == every_pair:
        return None
    return (
        f"it would hold the gradient of the bias {problem.bias} for each of {problem.pairs} pairs"
    )


LIMITS = (
    _is_built,
    where(
        lambda problem: problem.device != "cpu",
        "it is for the CPU, and the tensors are on {problem.device}",
    ),
    on_dot_products,
    not_empty,
    where(
        lambda problem: max(problem.q_len, problem.k_len) > MOST_KEYS,
        "it counts keys in 32 bits, and there are {problem.q_len} queries and {problem.k_len} keys",
    ),
    _holds_bias,
)

LIMITS_OF_RECURRENCES = (
    *LIMITS[:2],
    not_empty,
    no_weights,
    *ROWS_IN_ORDER,
    where(
        lambda problem: max(memory_shape(problem)) > MOST_DIM,
        f"it computes vectors of at most {MOST_DIM} numbers",
    ),
    where(
        lambda problem: isinstance(problem.mechanism, Kernelised) and not is_causal(problem),
        "it computes linear attention of causal patterns alone, and {pattern} is not causal",
    ),
    where(
        lambda problem: problem.k_len > MOST_KEYS,
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
        refusal = refusal_by(LIMITS_OF_RECURRENCES, problem)
        if refusal is not None:
            return refusal
        library = load()
        assert isinstance(library, Library)
        form = recurrence if isinstance(problem.mechanism, Recurrent) else kernelised
        return Offer(
            cost_of(problem, form.cost(problem)),
            partial(form.run, problem, native_recurrence.RecurrenceKernel(library)),
        )

    def offer(self, problem: Problem) -> Offer | Refusal:
        library = load()
        assert isinstance(library, Library)
        if problem.precise and problem.dtype in HALF:  # lists are read in float32 alone
            wide = replace(problem, dtype=torch.float32, storage=torch.float32)
            if lists_to_read(wide) is not None:
                offer = self.offer(wide)
                assert isinstance(offer, Offer)
                return replace(
                    offer,
                    run=partial(_in_float32, offer.run),
                    takes_stored=False,
                    repeatable=None,
                    growing=None,
                )
        kernel = Kernel(library, problem)
        reads_stored = _reads_stored(problem)
        steps = steps_of(library, problem) if reads_stored else None
        cost = with_kernel_statistics(_cost(kernel), problem)
        # Other backends cut such lists into small calls.
        reads_lists = problem.q_len >= MANY_QUERIES and _reads_lists_by_row(kernel)
        takes_row_keys = (
            set(problem.want) <= {"log_sum_exp"} and problem.pattern.row_keys is not None
        )
        offer = Offer(
            cost,
            kernel.run,
            reads_stored,
            steps,
            unrivalled=reads_lists,
            takes_row_keys=takes_row_keys,
            repeatable=kernel.repeatable,
            growing=None if steps is None else steps.growing,
        )
        return strictly(problem, offer)


def _in_float32(compute: Callable[[Operands], Result], operands: Operands) -> Result:
    """The result of half-precision operands as float32 tensors, with its output rounded once."""
    result = compute(operands.in_float32())
    return result._replace(output=result.output.to(operands.q.dtype))


def kernel_of(problem: Problem) -> tuple[Calls, Cost] | None:
    """The kernel for a part of another backend's call, and its cost; None where it does not compute this problem."""
    library = load()
    if isinstance(library, str) or refusal_by(LIMITS, problem) is not None:
        return None
    kernel = Kernel(library, problem)
    return Differentiated(kernel), _cost(kernel)


def offer_of_windows(problem: Problem, positions: list[torch.Tensor]) -> Offer | None:
    """The kernel for a call whose positions look at their own window; None where it does not compute this problem.

    Args:
        problem: without dropout and statistics of weights; a bias is one by distance.
        positions: of windows of one size, for each size, as `LoweredWindows` takes them.
    """
    library = load()
    if isinstance(library, str) or refusal_by(LIMITS, problem) is not None:
        return None
    kernel = Kernel(library, problem, LoweredWindows(positions))
    return Offer(_cost(kernel), kernel.run)


def _reads_stored(problem: Problem) -> bool:
    """Whether the kernel reads keys and values as they are stored; float64 it reads beside queries of float64 alone."""
    return problem.storage != torch.float64 or problem.dtype == torch.float64


def _gradient_bytes(problem: Problem) -> int:
    """Bytes of the gradient of a bias tensor, which is summed to the shape of the bias in the end."""
    if not problem.bias_learns or not problem.bias:
        return 0
    return problem.pairs * problem.computed_bytes


@dataclass(frozen=True)
class PairsOfTiles:
    """Pairs in the tiles that the kernel computes, over all batch rows and heads, and whether that is an estimate."""

    number: int
    estimated: bool


def _reads_lists_by_row(kernel: Kernel) -> bool:
    """Whether the keys of each row are read where they lie."""
    return kernel.lists is not None and not kernel.lists.in_tiles


def _pairs(kernel: Kernel) -> PairsOfTiles:
    problem = kernel.problem
    tile = kernel.library.tile
    pattern = problem.pattern
    lines = problem.batch * problem.heads
    if kernel.windows is not None:
        return PairsOfTiles(kernel.windows.pairs * lines, False)
    if kernel.band is not None:
        estimate = pairs_of_long_band(problem, *tile)
        if estimate is not None:
            return PairsOfTiles(estimate * lines, True)
        pairs, batch_rows = _pairs_of_band(kernel.band, problem, tile)
        return PairsOfTiles(pairs * lines // batch_rows, False)
    if problem.q_start is PER_ROW:
        return PairsOfTiles(problem.pairs, True)
    lists = kernel.lists
    if lists is not None:
        q_start, q_len, keys = problem.q_start, problem.q_len, problem.reachable_keys
        if not problem.strict and not lists.in_tiles:  # counting would take as long as the call
            return PairsOfTiles(lists.most_pairs(q_start, q_len, keys) * lines, True)
        lists_count = math.prod(lists.lists.listed.shape[:2])
        return PairsOfTiles(lists.pairs(q_start, q_len, keys) * (lines // lists_count), False)

    rows = problem.batch if pattern.varies_by_row else 1
    heads = problem.heads if pattern.varies_by_head else 1
    total = 0
    for row in range(rows):
        pattern_of_row = pattern.for_row(row) if rows > 1 else pattern
        for head in range(heads):
            pattern_of_head = pattern_of_row.for_head(head) if heads > 1 else pattern_of_row
            total += _pairs_of_pattern(pattern_of_head, problem, tile)
    return PairsOfTiles(total * lines // (rows * heads), False)


def _pairs_of_pattern(pattern: Pattern, problem: Problem, tile: tuple[int, int]) -> int:
    """Pairs of the tiles of one batch row and head, whose pattern this is."""
    assert problem.q_start is not PER_ROW
    band = row_band_of(pattern)
    if band is not None:
        return _pairs_of_band(band, problem, tile)[0]
    lists = lists_to_lower(pattern)
    if lists is not None:
        return lists.pairs(problem.q_start, problem.q_len, problem.reachable_keys)
    return _pairs_of_schedule(pattern, problem, tile[1])


def _pairs_of_band(band: RowBand, problem: Problem, tile: tuple[int, int]) -> tuple[int, int]:
    """Pairs of the tiles of one head, and over how many batch rows they are counted: 1 where all are alike.

    A tile is computed from the panel of its first key to the panel of its last.
    """
    tile_rows, panel_keys = tile
    q_len = problem.q_len
    keys = problem.reachable_keys
    start = problem.k_len - q_len if problem.q_start is PER_ROW else problem.q_start
    bounds = band.bounds_of_one_query([start], q_len, keys)
    if bounds is not None:
        low, high = bounds
        if low >= high:
            return 0, 1
        first_key = max(low // panel_keys * panel_keys, keys.start)
        end_key = min(-(-high // panel_keys) * panel_keys, keys.stop)
        return max(0, end_key - first_key), 1
    lo, hi = band.bounds([start], q_len, keys)
    first_rows = torch.arange(0, q_len, tile_rows, device="cpu")
    last_rows = (first_rows + tile_rows - 1).clamp(max=q_len - 1)
    low = lo[:, first_rows]
    high = hi[:, last_rows]
    first_keys = (low - low.remainder(panel_keys)).clamp(min=keys.start)
    end_keys = high + (-high).remainder(panel_keys)
    end_keys = end_keys.clamp(max=keys.stop)
    keys_of_tiles = torch.where(high > low, end_keys - first_keys, 0)
    return int((keys_of_tiles * (last_rows - first_rows + 1)).sum()), lo.shape[0]


def _pairs_of_schedule(pattern: Pattern, problem: Problem, width: int) -> int:
    """Pairs of the panels of `width` keys in which a row block has a key."""
    assert problem.q_start is not PER_ROW
    starts = problem.q_start, problem.q_start
    keys = problem.reachable_keys
    blocks: Iterable[RowBlock] | None = None
    if pattern is problem.pattern:
        blocks = shared_row_blocks(problem)
    if blocks is None:
        blocks = Schedule(pattern, problem.q_len, problem.k_len, starts, keys, SHARED_ROWS)

    pairs = 0
    for block in blocks:
        counted_to = 0  # panels that two runs share count once
        for run in block.runs:
            first = run.keys.start // width * width
            end = min(-(-run.keys.stop // width) * width, problem.k_len)
            new_keys = max(0, end - max(first, counted_to))
            pairs += new_keys * len(block.rows) * block.times
            counted_to = max(counted_to, end)
    return pairs


def _cost(kernel: Kernel) -> Cost:
    problem = kernel.problem
    pairs = _pairs(kernel)
    dims = problem.head_dim + problem.v_dim
    row_bytes = problem.batch * problem.heads * problem.q_len * dims * problem.dtype.itemsize
    keys_of_query = -(-pairs.number // (problem.batch * problem.heads))
    keys = min(len(problem.reachable_keys), keys_of_query)
    stored_bytes = problem.batch * problem.kv_heads * keys * dims * problem.storage.itemsize
    gradient_bytes = _gradient_bytes(problem)
    pace = _pace(problem, kernel.library)
    if _reads_lists_by_row(kernel):
        pace *= costs.KERNEL_TIMES_BY_ROW
    return Cost(
        flops=2 * pairs.number * dims * (3.5 if problem.needs_grad else 1),
        bytes=(row_bytes + stored_bytes) * (3 if problem.needs_grad else 1) + 2 * gradient_bytes,
        peak_bytes=float(KERNEL_MEMORY) + gradient_bytes,
        pairs=pairs.number,
        calls=1,
        estimated=pairs.estimated,
        pace=pace,
        assumed=assumed_instructions(kernel.library),
    )


def assumed_instructions(library: Library) -> str:
    """The instructions of this processor, if it was not measured how fast the kernel is with them."""
    return library.instructions if library.instructions in costs.ASSUMED else ""


def _pace(problem: Problem, library: Library) -> float:
    if problem.dtype == torch.float64:
        return costs.KERNEL_PACE_FLOAT64
    is_bfloat16 = problem.dtype == problem.storage == torch.bfloat16 and not problem.precise
    if is_bfloat16 and library.instructions == "AVX-512 with BF16":
        return costs.KERNEL_PACE_BFLOAT16
    return costs.KERNEL_PACE[library.instructions]
