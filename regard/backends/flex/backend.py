"""The flex backend: which problems it refuses, what the others cost, and how a call is computed."""

from __future__ import annotations

from functools import lru_cache, partial
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends.flex.tile_map import MOST_RUNS, TILE, pairs_of_tiles, tile_map
from regard.backends.limits import Limited, on_dot_products, on_one_start, on_structure, where
from regard.backends.schedule import pairs_of_long_band, strictly
from regard.backends.second_order import first_order_only
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import result_of, with_statistics
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.patterns.grid import Grid

# Numbers of a vector of the kernels, head_dim and v_dim; shorter ones are padded with zeros.
LEAST_SIZE = 16
LARGEST_SIZE = 256
MOST_KERNELS = 256  # compiled ones that are kept: one for each dtype, head size, kind of bias, ..., for all patterns


@with_sinks
class Flex(Limited):
    """Softmax over dot products with any structured pattern, scale, softcap and fixed bias, on cuda.

    The first call of a dtype, head size or kind of options compiles a kernel, which takes seconds to a minute; the
    cost of a plan does not include that. All patterns of the same lengths share at most six kernels: one for bands, one
    each for queries that see up to 1, 2, 4 and 8 runs of keys, and one for all others.

    Args:
        devices: the devices on which it computes; FlexAttention has gradients only on cuda.
        compiled: False computes the kernel pair by pair without compiling, for tests of the code around it.
    """

    name = "flex"

    def __init__(self, devices: tuple[str, ...] = ("cuda",), compiled: bool = True) -> None:
        self.devices = devices
        self.compiled = compiled
        elsewhere = where(
            lambda problem: problem.device not in devices,
            f"FlexAttention is for {' and '.join(devices)} here; on {{problem.device}} other backends compute "
            "this without compiling",
        )
        self.limits = (elsewhere, *_LIMITS)

    def offer(self, problem: Problem) -> Offer | Refusal:
        assert problem.q_start is not None
        grid = Grid.whole(problem.q_len, problem.k_len, problem.q_start)
        grid = grid.block(grid.rows, problem.reachable_keys)
        cost = with_statistics(_cost(problem, grid), problem)
        return strictly(problem, Offer(cost, partial(self.run, problem, grid)))

    def run(self, problem: Problem, grid: Grid, operands: Operands) -> Result:
        output, log_sum_exp = self._compute(problem, grid, operands)
        if log_sum_exp is None:
            return Result(output)
        return result_of(problem, operands, output, log_sum_exp)

    def _compute(
        self, problem: Problem, grid: Grid, operands: Operands
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output, and the log-sum-exp if a statistic needs it."""
        # Imported here, since they load the compiler.
        from torch.nn.attention.flex_attention import AuxRequest

        from regard.backends.flex.tables import block_mask, change_of

        tiles = tile_map(problem.pattern, grid, problem.batch, problem.heads)
        q = operands.q
        if tiles.empty_rows is not None:  # NaN in an empty row must reach no gradient
            q = q.masked_fill(tiles.empty_rows.to(q.device), 0)

        kernel = _kernel(self.compiled)
        output, aux = kernel(
            _padded_vectors(q),
            _padded_vectors(operands.k),
            _padded_vectors(operands.v),
            score_mod=change_of(problem, operands),
            block_mask=block_mask(tiles, problem.q_len, len(grid.keys), q.device),
            scale=problem.scale,
            enable_gqa=problem.group > 1,
            kernel_options=_kernel_options(problem, read=tiles.limits is None),
            return_aux=AuxRequest(lse=bool(problem.want)),
        )

        output = output[..., : problem.v_dim]
        log_sum_exp = aux.lse
        if not problem.needs_grad:
            return output, log_sum_exp
        if log_sum_exp is None:
            return first_order_only(self.name, output)[0], None
        output, log_sum_exp = first_order_only(self.name, output, log_sum_exp)
        return output, log_sum_exp


def _lacks_triton(problem: Problem) -> bool:
    # A call that is only planned needs no compiler.
    is_run = problem.device == "cuda" and not problem.outlined
    return is_run and find_spec("triton") is None


def _is_one_fused_call(problem: Problem) -> bool:
    """Whether this is one call of a fused operation: all pairs, or a causal square."""
    assert problem.q_start is not None
    if problem.softcap is not None or problem.bias is not None:
        return False
    first = problem.q_start
    keys = problem.reachable_keys
    if problem.pattern.sees_all(first, first + problem.q_len - 1, keys):
        return True
    band = problem.pattern.band()
    if band is None or band.left is not None:
        return False
    return len(keys) == problem.q_len and band.right == keys.start - first


_LIMITS = (
    where(_lacks_triton, "FlexAttention compiles with triton, which is not installed"),
    where(
        lambda problem: problem.device == "cpu" and problem.needs_grad,
        "FlexAttention has no gradients on cpu",
    ),
    on_dot_products,
    where(
        "empty",
        "there is nothing to compute, and FlexAttention does not take sizes of 0",
    ),
    where(
        lambda problem: problem.dtype == torch.float64,
        "FlexAttention computes in float32 at most, not in float64",
    ),
    where(
        lambda problem: max(problem.head_dim, problem.v_dim) > LARGEST_SIZE,
        f"FlexAttention's kernels hold vectors of at most {LARGEST_SIZE} numbers, not head_dim {{problem.head_dim}} "
        "and v_dim {problem.v_dim}",
    ),
    where("dropout", "FlexAttention has no dropout"),
    where(
        "bias_learns",
        "it has no gradient of a bias; other backends add it up in a fixed order",
    ),
    on_one_start,
    on_structure,
    where(
        lambda problem: not problem.reachable_keys,
        "no pair is allowed by {pattern}, and FlexAttention does not take sizes of 0",
    ),
    where(
        _is_one_fused_call,
        "{pattern} skips no tile that fused would compute, and fused needs no compiling",
    ),
)


def _cost(problem: Problem, grid: Grid) -> Cost:
    pairs_of_band = pairs_of_long_band(problem, TILE, TILE)
    if pairs_of_band is None:
        pairs = pairs_of_tiles(problem.pattern, grid, problem.batch, problem.heads)
    else:
        pairs = problem.batch * problem.heads * pairs_of_band
    width = problem.dtype.itemsize
    dims = problem.head_dim + problem.v_dim
    rows = problem.batch * problem.heads * problem.q_len
    vectors = (rows + problem.batch * problem.kv_heads * len(grid.keys)) * dims

    # The kinds of tiles, the order of visits, and the runs of keys, as int32.
    copies = problem.batch if problem.pattern.varies_by_row else 1
    copies *= problem.heads if problem.pattern.varies_by_head else 1
    rows_of_tiles = -(-problem.q_len // TILE)
    columns_of_tiles = -(-len(grid.keys) // TILE)
    tables = 4 * copies * rows_of_tiles * (9 * columns_of_tiles + 2 * MOST_RUNS * TILE)

    flops = 2 * pairs * dims
    moved = width * vectors
    peak = tables + 4 * rows
    calls = 1
    if problem.needs_grad:
        flops *= 3.5
        moved *= 2.5
        peak += 4 * rows + width * vectors  # sums for each row, and intermediate gradients
        calls = 4
    return Cost(
        flops=flops,
        bytes=moved + tables,
        peak_bytes=peak,
        pairs=pairs,
        calls=calls,
        estimated=pairs_of_band is not None,
    )


def _kernel_options(problem: Problem, read: bool) -> dict[str, Any] | None:
    """PyTorch's choice of kernel, except where another one is faster, or none of its block sizes fits a tile.

    Args:
        problem: the call.
        read: whether the kernel reads the allowed pairs from tables. With blocks of 128 queries by 128 keys it
            then takes 2 to 5 times as long, measured on an H100.
    """
    if problem.q_len >= TILE:
        return {"fwd_BLOCK_M": TILE // 2, "fwd_BLOCK_N": TILE // 2} if read else None
    # PyTorch's kernel for few queries puts the queries of a group in one block, whose size is a power of two that must
    # divide a tile.
    return {"BACKEND": "TRITON"} if TILE < problem.q_len * problem.group else None


def _padded_vectors(x: torch.Tensor) -> torch.Tensor:
    """Vectors padded with zeros to the least size of the kernels; zeros change no score."""
    if x.shape[-1] < LEAST_SIZE:
        return F.pad(x, (0, LEAST_SIZE - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


@lru_cache(maxsize=2)
def _kernel(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    compile: Any = partial(
        torch.compile, flex_attention, fullgraph=True, backend="inductor" if compiled else "eager"
    )
    if "recompile_limit" in signature(torch.compile).parameters:
        return compile(recompile_limit=MOST_KERNELS)
    # adds 40 us to each call
    return torch._dynamo.config.patch(recompile_limit=MOST_KERNELS)(compile())
