"""The fused backend: any pattern by PyTorch's fused operations, in row blocks whose masks are small."""

from __future__ import annotations

from functools import partial

import torch

from regard.backends import flash
from regard.backends.composed import RowBlockCalls, compose
from regard.backends.limits import Limited
from regard.backends.schedule import strictly
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import result_of, with_statistics
from regard.core.backend import Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result


@with_sinks
class Fused(Limited):
    """Softmax over dot products with any pattern, scale and fixed bias."""

    name = "fused"
    limits = flash.LIMITS

    def offer(self, problem: Problem) -> Offer | Refusal:
        calls = RowBlockCalls.of(problem)
        cost = with_statistics(calls.cost, problem)
        return strictly(problem, Offer(cost, partial(_run, problem, calls)))


def _run(problem: Problem, calls: RowBlockCalls, operands: Operands) -> Result:
    dtype = operands.q.dtype
    wider = flash.operation_dtype(dtype, problem.device)
    if flash.rounds_bias(operands):
        wider = torch.float32
    if dtype.itemsize == 2 and wider != dtype:
        operands = operands._replace(
            q=operands.q.to(wider), k=operands.k.to(wider), v=operands.v.to(wider)
        )
    block = calls.only
    if block is not None:
        k = operands.k
        v = operands.v
        keys = block.runs[0].keys
        reachable = operands.grid.keys
        if keys != reachable:  # the only run may be shorter than the range of reachable keys
            columns = slice(keys.start - reachable.start, keys.stop - reachable.start)
            k = k[:, :, columns]
            v = v[:, :, columns]
        call = calls.unmasked or calls.call(operands, block)
        output, log_sum_exp = flash.attend(operands.q, k, v, call)
    else:
        output, log_sum_exp = compose(calls, operands, sums=bool(problem.want))
    output = output if output.dtype == dtype else output.to(dtype)
    return result_of(problem, operands, output, log_sum_exp) if problem.want else Result(output)
