"""The linear backend: which problems it refuses, and what the others cost."""

from __future__ import annotations

from functools import partial

import torch

from regard.backends.limits import no_weights, not_empty, refused, where
from regard.backends.linear.attend import attend, is_causal
from regard.backends.linear.walk import BLOCK, CHUNK, longer_on
from regard.core.backend import Cost, Offer, Operands, Refusal, reachable_keys
from regard.core.problem import PER_ROW, Problem
from regard.core.result import Result
from regard.mechanisms.features import Kernelised
from regard.reprs import Described


class Linear(Described):
    """Mechanisms with feature maps (linear attention), with log_sum_exp as the only statistic."""

    name = "linear"
    limits = (
        where(
            lambda problem: not isinstance(problem.mechanism, Kernelised),
            "it computes linear attention by feature maps, not {problem.mechanism}",
        ),
        not_empty,
        no_weights,
        where(
            lambda problem: problem.q_start is PER_ROW and (bool(problem.pattern.documents) or is_causal(problem)),
            "q_start is a tensor, and a chunk of queries needs the same positions in all batch rows",
        ),
        where(
            lambda problem: bool(problem.pattern.documents) and (problem.q_start, problem.q_len) != (0, problem.k_len),
            "it computes each document by itself, which needs a query and a key at every position",
        ),
    )

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (refusal := refused(self.limits, problem)) is not None:
            return refusal
        by_document = bool(problem.pattern.documents)
        return Offer(_cost(problem, by_document), partial(self.run, problem))

    def run(self, problem: Problem, operands: Operands) -> Result:
        wide = torch.promote_types(problem.dtype, torch.float32)
        operands = operands._replace(q=operands.q.to(wide), k=operands.k.to(wide), v=operands.v.to(wide))
        output, log = attend(problem, operands)
        return Result(output.to(problem.dtype), log if "log_sum_exp" in problem.want else None)


def _cost(problem: Problem, by_document: bool) -> Cost:
    assert isinstance(problem.mechanism, Kernelised)
    causal, keys = is_causal(problem), len(reachable_keys(problem))
    features, wide = problem.mechanism.feature_dim(problem.head_dim), problem.v_dim + 1
    rows = problem.batch * problem.heads * problem.q_len * (2 if by_document else 1)  # padding at most doubles them
    added = problem.batch * problem.kv_heads * keys * (2 if by_document else 1)
    longer = longer_on(problem.device, problem.batch * problem.heads)
    pairs = rows * min(longer * CHUNK, keys) if causal else 0
    chunks = -(-keys // (longer * (CHUNK if causal else BLOCK)))
    width = 8 if problem.dtype == torch.float64 else 4
    vectors = (rows + added) * (problem.head_dim + 2 * features + wide)
    return Cost(
        flops=2 * (pairs * (features + wide) + (rows + added) * features * wide) * (3 if problem.needs_grad else 1),
        bytes=width * vectors * (2.5 if problem.needs_grad else 1),
        peak_bytes=width * ((rows + added) * features + added * features * wide // CHUNK),
        pairs=pairs,
        calls=(4 + 2 * chunks) * (3 if problem.needs_grad else 1),
    )
