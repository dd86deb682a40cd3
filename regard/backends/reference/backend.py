"""The reference backend: the formula of each mechanism, and the cost of computing every pair."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from regard.backends.dropout import PAIR
from regard.backends.limits import refused, where
from regard.backends.reference.kernelised import kernelised_attention
from regard.backends.reference.linformer import linformer_attention
from regard.backends.reference.lsh import lsh_attention
from regard.backends.reference.softmax import softmax_attention
from regard.backends.scores.formulas import sums_tanh
from regard.backends.statistics.second_pass import with_statistics
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import LSH, Linformer, Softmax
from regard.mechanisms.features import Kernelised
from regard.reprs import Described

FORMULAS: dict[type, Callable[[Problem, Operands], Result]] = {
    Softmax: softmax_attention,
    Kernelised: kernelised_attention,
    Linformer: linformer_attention,
    LSH: lsh_attention,
}


def _formula_of(problem: Problem) -> Callable[[Problem, Operands], Result] | None:
    return next((FORMULAS[kind] for kind in type(problem.mechanism).__mro__ if kind in FORMULAS), None)


class Reference(Described):
    """Computes every pair in float32, or in float64 when given float64; supports every option and statistic."""

    name = "reference"
    limits = (where(lambda problem: _formula_of(problem) is None, "it has no formula for {problem.mechanism}"),)

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (refusal := refused(self.limits, problem)) is not None:
            return refusal
        formula = _formula_of(problem)
        assert formula is not None
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
        return Offer(
            with_statistics(cost, problem), partial(formula, problem)
        )  # counted as for other backends, so that statistics do not change the plan
