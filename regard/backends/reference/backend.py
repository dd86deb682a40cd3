"""The reference backend: the formula of each mechanism, and the cost of computing every pair."""

from __future__ import annotations

from functools import partial

import torch

from regard.backends.dropout import PAIR
from regard.backends.limits import refused, where
from regard.backends.reference.softmax import softmax_attention
from regard.backends.scores.formulas import sums_tanh
from regard.backends.statistics.observe import observe
from regard.backends.statistics.second_pass import with_statistics
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import LSH
from regard.mechanisms.base import Given, Mechanism
from regard.mechanisms.features import Kernelised
from regard.reprs import Described


def has_formula(mechanism: Mechanism) -> bool:
    """Whether a mechanism defines its formula."""
    return type(mechanism).formula is not Mechanism.formula


def by_formula(problem: Problem, operands: Operands) -> Result:
    """Output and every statistic by the formula of a mechanism other than softmax."""
    q, k, v, grid = operands.q, operands.k, operands.v, operands.grid
    given = Given(q, k, v, problem.pattern, grid, problem.scale, operands.parameters)
    found = problem.mechanism.formula(given)
    log_sum_exp = found.log_sum_exp if "log_sum_exp" in problem.want else None
    output = found.output.to(q.dtype)
    if found.weights is None or found.allowed is None:
        return Result(output, log_sum_exp)
    return Result(output, log_sum_exp, **observe(problem, grid, found.weights, found.allowed))


class Reference(Described):
    """Computes every pair in float32, or in float64 when given float64; supports every option and statistic."""

    name = "reference"
    limits = (
        where(
            lambda problem: not (problem.mechanism.is_softmax or has_formula(problem.mechanism)),
            "it has no formula for {problem.mechanism}",
        ),
    )

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (refusal := refused(self.limits, problem)) is not None:
            return refusal
        if problem.strict and problem.q_len > 1:
            return Refusal("strict=True, and it computes a dense q_len x k_len matrix of scores")
        width = 8 if problem.dtype == torch.float64 else 4
        learning = problem.needs_grad or problem.bias_learns
        flops = 2 * problem.pairs * (problem.head_dim + problem.v_dim) * (3.5 if learning else 1)
        flops += PAIR * problem.pairs if problem.dropout else 0
        scores = problem.pairs * width
        passes = 40 if learning else 24  # over the scores: each operation of a formula reads them and writes new memory
        vectors = problem.batch * problem.heads * (problem.q_len + problem.k_len) * (problem.head_dim + problem.v_dim)
        moved = width * vectors + passes * scores
        peak = 3 * scores
        if sums_tanh(problem):  # the terms of the sums, and what autograd saves of them
            terms = scores * problem.head_dim
            moved, peak = moved + (14 if learning else 6) * terms, peak + (4 if learning else 3) * terms
        calls = 25 if learning else 10
        if isinstance(problem.mechanism, LSH):  # it hashes, and compares the buckets of all pairs in every round
            rounds, buckets = problem.mechanism.rounds, problem.mechanism.bucket_count
            hashed = problem.batch * problem.heads * problem.k_len * buckets
            flops += 2 * hashed * rounds * problem.head_dim
            moved, calls = moved + 10 * rounds * scores + 32 * rounds * hashed, calls + 30 * rounds
            peak += 16 * hashed
        if isinstance(problem.mechanism, Kernelised):
            flops += 2 * problem.pairs * (problem.mechanism.feature_dim(problem.head_dim) - problem.head_dim)
        cost = Cost(flops, moved, peak, pairs=problem.pairs, calls=calls)
        formula = softmax_attention if problem.mechanism.is_softmax else by_formula
        # Statistics are counted as for other backends, so that they do not change the plan.
        return Offer(with_statistics(cost, problem), partial(formula, problem))
