"""What streaming costs, and when it is refused."""

from __future__ import annotations

from functools import partial

import torch

from regard.detail import Result
from regard.kernels import dropout
from regard.kernels.schedule import strict_refusal
from regard.kernels.scores.blocking import Blocking, Size, blocking_of
from regard.kernels.scores.formulas import SLAB, score_flops, score_flops_backward, sums_tanh
from regard.kernels.statistics.second_pass import tell, with_statistics
from regard.kernels.streamed.streaming import FUSED_PAIRS, may_be_fused, stream
from regard.mechanisms import Softmax
from regard.offer import Cost, Offer, Refusal
from regard.operands import Operands
from regard.problem import Problem

# Measured on CPU in float32, as the floating-point operations that take as long:
PAIR = 70  # for each pair forward: its maximum, difference, exponential and sum
PAIR_BACKWARD = 130  # and backward: the exponential again and the products around it
STARTING, BLOCK = 10, 5  # calls: small operations cost less than `Cost.calls` counts


class Streamed:
    """Softmax over every score with every option."""

    name = "streamed"

    def assess(self, problem: Problem) -> Offer | Refusal:
        if not isinstance(problem.mechanism, Softmax):
            return Refusal(f"it computes softmax attention, not {problem.mechanism}")
        if problem.empty:
            return Refusal("there is nothing to compute")
        blocking = blocking_of(problem)
        size = blocking.size()
        if (refusal := strict_refusal(problem, size.pairs)) is not None:
            return refusal
        return Offer(with_statistics(_cost(blocking, size), problem), partial(self.run, blocking))

    def run(self, blocking: Blocking, operands: Operands) -> Result:
        problem = blocking.problem
        output, log_sum_exp = stream(blocking, operands)
        told = tell(problem, operands, log_sum_exp)
        return Result(output.to(problem.dtype), log_sum_exp if "log_sum_exp" in problem.want else None, **told)


def _cost(blocking: Blocking, size: Size) -> Cost:
    problem, pairs = blocking.problem, size.pairs
    learning = problem.needs_grad or problem.bias_learns
    width = torch.promote_types(problem.dtype, torch.float32).itemsize
    by_pair = PAIR + score_flops(problem) + 2 * problem.v_dim * (3.5 if learning else 1)
    by_pair += PAIR_BACKWARD + score_flops_backward(problem) if learning else 0
    by_pair += dropout.PAIR * (2 if learning else 1) if problem.dropout else 0
    reads = pairs // (problem.batch * problem.heads * blocking.rows)  # times the keys of each
    vectors = problem.batch * (problem.heads * problem.q_len + problem.kv_heads * reads)
    held = 2 * min(FUSED_PAIRS, pairs) if may_be_fused(problem) else 0
    return Cost(
        flops=pairs * by_pair * width / 4,
        bytes=width * vectors * (problem.head_dim + problem.v_dim),
        peak_bytes=width * (max(4 * blocking.largest, held) + SLAB * sums_tanh(problem)),
        pairs=pairs,
        calls=round((STARTING + BLOCK * size.blocks) * (2.5 if learning else 1)),
        estimated=not size.exact,
    )
