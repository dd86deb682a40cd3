"""The decode backend: which problems it refuses, and what the others cost."""

from __future__ import annotations

import math
from functools import partial

import torch

from regard.backends import flash
from regard.backends.decode import fold, weigh
from regard.backends.decode.runs import Runs, lower
from regard.backends.limits import not_empty, on_dot_products, refused, where
from regard.backends.schedule import strict_refusal
from regard.backends.sinks import with_sinks
from regard.backends.statistics.observe import observe
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.patterns.row_blocks import Kind, Run
from regard.reprs import Described

QUERIES = 16  # the most queries it computes; for more, the backends that compute blocks are faster


@with_sinks
class Decode(Described):
    """Softmax over dot products of at most 16 queries, with every option and statistic, without a gradient."""

    name = "decode"
    limits = (
        on_dot_products,
        not_empty,
        where(
            lambda problem: problem.q_len > QUERIES,
            f"it is for at most {QUERIES} queries, and there are {{problem.q_len}}",
        ),
        where(
            lambda problem: problem.needs_grad or problem.bias_learns,
            "it has no gradient; continue texts under torch.no_grad()",
        ),
    )

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (refusal := refused(self.limits, problem)) is not None:
            return refusal
        runs = lower(problem)
        if (refusal := strict_refusal(problem, _pairs(problem, runs))) is not None:
            return refusal
        folds = _folds(problem, runs)
        return Offer(_cost(problem, runs, folds), partial(self.run, problem, runs, folds), takes_stored=True)

    def run(self, problem: Problem, runs: Runs, folds: bool, operands: Operands) -> Result:
        with torch.no_grad():
            if folds and runs:
                return fold.run(problem, runs, operands)
            return weigh.run(problem, runs, operands) if runs else _nothing(problem, operands)


def _folds(problem: Problem, runs: Runs) -> bool:
    """Whether the fused operation can compute it from keys in their stored dtype.

    Keys in bfloat16 are not widened first on any processor: reading them twice is what would take the time. On cuda
    only FlashAttention, which takes no mask, divides the keys among the multiprocessors.
    """
    plain = problem.softcap is None and not problem.dropout and not set(problem.want) - {"log_sum_exp"}
    narrow = problem.dtype == torch.bfloat16 and problem.bias is None
    computing = problem.dtype if narrow else flash.computing(problem.dtype, problem.device)
    if problem.device == "cuda":
        unmasked = all(run.kind == Kind.WHOLE for run in runs)
        size = max(problem.head_dim, problem.v_dim)
        return (
            plain and problem.storage == computing and unmasked and flash.has_flash_attention(computing, size, "cuda")
        )
    return plain and problem.storage == computing and flash.refusal(computing, problem.device) is None


def _pairs(problem: Problem, runs: Runs) -> int:
    return problem.batch * problem.heads * problem.q_len * sum(len(run.keys) for run in runs)


def _cost(problem: Problem, runs: Runs, folds: bool) -> Cost:
    """Each key and value is read once from memory, as it is stored; a widened chunk stays in the core's cache."""
    width = 8 if problem.dtype == torch.float64 else 4
    pairs = _pairs(problem, runs)
    keys = sum(len(run.keys) for run in runs)
    dims = problem.head_dim + problem.v_dim
    stored = problem.batch * problem.kv_heads * keys * dims * problem.storage.itemsize
    rows = problem.batch * problem.heads * problem.q_len * dims * problem.dtype.itemsize
    masks = width * max((_mask_size(problem, run) for run in runs if run.kind == Kind.BITS), default=0)
    flops = 2 * pairs * dims
    if folds:
        return Cost(flops, stored + rows + 2 * masks, 2 * masks, pairs, calls=2 * len(runs))
    size = weigh.chunk_size(problem.batch * problem.kv_heads * max(problem.head_dim, problem.v_dim), problem.device)
    chunks = -(-keys // size)
    scores = width * pairs
    return Cost(flops, stored + rows + 4 * scores + 2 * masks, 3 * scores + masks, pairs, calls=5 + 2 * chunks)


def _mask_size(problem: Problem, run: Run) -> int:
    rows = problem.batch if problem.q_start is None or problem.pattern.varies_by_row else 1
    heads = problem.heads if problem.bias is not None or problem.pattern.varies_by_head else problem.group
    return rows * heads * problem.q_len * len(run.keys)


def _nothing(problem: Problem, operands: Operands) -> Result:
    """The result of a problem in which every row is empty."""
    shape = operands.q.shape[:3]
    wide = torch.promote_types(problem.dtype, torch.float32)
    none = operands.q.new_zeros(*shape, 0, dtype=wide)
    found = observe(problem, operands.grid, none, none.bool())
    if "log_sum_exp" in problem.want:
        found["log_sum_exp"] = none.new_full(shape, -math.inf)
    return Result(operands.q.new_zeros(*shape, problem.v_dim), **found)
