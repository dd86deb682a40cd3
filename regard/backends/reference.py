"""The reference backend: every mechanism computed by its formula, with every option; other backends must agree with it.

Softmax attention and its scores, for queries and keys that are projected already:

    softmax(cap(score(q, k) · scale) + bias, over the allowed keys) v

    with a sink: one column more, whose score is the sink's logit and which has no value

    dot, scaled dot, general   q' · k'
    additive, concat           v · tanh(q' + k')
    local-p                    one of them - (j - p)² / (2 σ²),   p = first + S · sigmoid(...),   σ = D / 2

Other mechanisms define their formula themselves.

Sources: Attention Is All You Need, Vaswani et al. 2017, equation 1; Bahdanau et al. 2015, appendix A.1.2; Luong et al.
2015, section 3.1 and equations 9 and 10. Sinks: gpt-oss model card, OpenAI 2025, section 2.2.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from regard.backends.dropout import drop
from regard.backends.limits import Limited, where
from regard.backends.scores.formulas import sums_tanh, visible_span
from regard.backends.statistics.second_pass import observe, with_statistics
from regard.core import costs
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import LSH, Softmax
from regard.mechanisms.base import FormulaInputs, Mechanism
from regard.mechanisms.features import Kernelised
from regard.mechanisms.recurrent import Recurrent
from regard.mechanisms.scores import AroundCentre


def softmax_attention(problem: Problem, operands: Operands) -> Result:
    """Output and every statistic by the formula above, with every option."""
    dtype = torch.promote_types(operands.q.dtype, torch.float32)
    masked = ~problem.pattern.evaluate(operands.grid)
    bias = operands.bias_block(operands.grid)
    if bias is not None:
        masked = masked | (bias == -math.inf)
    distances = distances_from_centre(problem, operands)
    if distances is not None:
        masked = masked | (distances.abs() > window(problem))
    # The output of an empty row is zeros, even if its query holds NaN.
    empty_rows = masked.all(-1, keepdim=True)

    q = operands.q.to(dtype).masked_fill(empty_rows, 0)
    # (batch, heads, keys, head_dim)
    k = operands.k.to(dtype).repeat_interleave(problem.group, dim=1)
    v = operands.v.to(dtype).repeat_interleave(problem.group, dim=1)  # (batch, heads, keys, v_dim)

    scores = similarity(problem, operands, q, k) * problem.scale  # (batch, heads, q_len, keys)
    if problem.softcap is not None:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if bias is not None:
        scores = scores + bias.to(dtype)
    if distances is not None:
        scores = scores + nearness(problem, distances.masked_fill(empty_rows, 0))

    # A score that overflows to -inf has the weight 0, as one that is masked.
    masked = masked | (scores == -math.inf)
    empty_rows = masked.all(-1, keepdim=True)
    scores = scores.masked_fill(masked, -math.inf).masked_fill(empty_rows, 0)
    sink = None
    if operands.sink is not None:
        sink = operands.sink.to(dtype).expand(scores.shape[:-1])  # (batch, heads, q_len)
        column = sink[..., None].masked_fill(empty_rows, 0)
        scores = torch.cat([scores, column], -1)

    weights_and_sink = scores.softmax(-1)
    weights = weights_and_sink[..., : k.shape[2]].masked_fill(empty_rows, 0)
    kept_weights = weights
    if problem.dropout:
        kept_weights = drop(weights, problem.dropout, operands.dropout_seed, operands.grid)
    output = (kept_weights @ v).to(operands.q.dtype)  # (batch, heads, q_len, v_dim)

    log_sum_exp = None
    if "log_sum_exp" in problem.want:
        log_sum_exp = scores.logsumexp(-1)  # (batch, heads, q_len)
        of_empty_row = torch.full_like(log_sum_exp, -math.inf) if sink is None else sink
        log_sum_exp = torch.where(empty_rows[..., 0], of_empty_row, log_sum_exp)
    statistics = observe(problem, operands.grid, weights, ~masked.expand(weights.shape))
    if "sink" in problem.want:
        if sink is None:
            statistics["sink"] = scores.new_zeros(scores.shape[:-1])
        else:
            of_empty_row = (sink > -math.inf).to(dtype)
            statistics["sink"] = torch.where(
                empty_rows[..., 0], of_empty_row, weights_and_sink[..., -1]
            )
    return Result(output, log_sum_exp, **statistics)


def similarity(
    problem: Problem, operands: Operands, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor:
    """Scores of queries (batch, heads, q_len, head_dim) and keys (batch, heads, keys, head_dim), before the scale."""
    if not sums_tanh(problem):
        return q @ k.mT
    # (batch, heads, q_len, keys, head_dim)
    hidden_layer = torch.tanh(q[:, :, :, None] + k[:, :, None])
    energy = operands.parameters["energy"].to(q.dtype)  # (heads or 1, head_dim)
    return (hidden_layer * energy[:, None, None]).sum(-1)


def distances_from_centre(problem: Problem, operands: Operands) -> torch.Tensor | None:
    """`j - p`, (batch, heads, q_len, keys), for scores that predict a centre p for each query; else None."""
    if _score_around_centre(problem) is None:
        return None
    first, count = visible_span(problem, operands.grid)
    centre = first + count * operands.parameters["centre"]  # (batch, heads, q_len)
    return operands.grid.k_pos - centre[..., None]


def window(problem: Problem) -> int:
    """D, the largest distance from the centre at which a pair is allowed."""
    score = _score_around_centre(problem)
    assert score is not None
    return score.window


def nearness(problem: Problem, distances: torch.Tensor) -> torch.Tensor:
    """The logarithm of the Gaussian around the centre, which is added to the scores."""
    deviation = window(problem) / 2
    return -(distances**2) / (2 * deviation**2)


def _score_around_centre(problem: Problem) -> AroundCentre | None:
    assert isinstance(problem.mechanism, Softmax)
    score = problem.mechanism.score
    return score if isinstance(score, AroundCentre) else None


def by_formula(problem: Problem, operands: Operands) -> Result:
    """Output and every statistic by the formula of a mechanism other than softmax."""
    q, k, v = operands.q, operands.k, operands.v
    grid = operands.grid
    inputs = FormulaInputs(q, k, v, problem.pattern, grid, problem.scale, operands.parameters)

    computed = problem.mechanism.formula(inputs)

    output = computed.output.to(q.dtype)
    log_sum_exp = problem.wanted_sums(computed.log_sum_exp)
    if computed.weights is None or computed.allowed is None:
        return Result(output, log_sum_exp)
    statistics = observe(problem, grid, computed.weights, computed.allowed)
    return Result(output, log_sum_exp, **statistics)


def _has_no_formula(problem: Problem) -> bool:
    mechanism = problem.mechanism
    return not mechanism.is_softmax and type(mechanism).formula is Mechanism.formula


class Reference(Limited):
    """Computes every pair in float32, or in float64 when given float64; supports every option and statistic."""

    name = "reference"
    precise = True
    limits = (where(_has_no_formula, "it has no formula for {problem.mechanism}"),)

    def offer(self, problem: Problem) -> Offer | Refusal:
        if problem.strict and problem.q_len > 1:
            return Refusal("strict=True, and it computes a dense q_len x k_len matrix of scores")
        formula = softmax_attention if problem.mechanism.is_softmax else by_formula
        # Statistics are counted as for other backends, so that they do not change the plan.
        return Offer(with_statistics(_cost(problem), problem), partial(formula, problem))


def _cost(problem: Problem) -> Cost:
    if isinstance(problem.mechanism, Recurrent):
        return _cost_by_steps(problem)

    width = problem.computed_bytes
    flops = 2 * problem.pairs * (problem.head_dim + problem.v_dim)
    # Each operation of a formula reads the scores, which is one pass over them, and writes new memory.
    if problem.needs_grad or problem.bias_learns:
        flops *= 3.5
        passes = 40
        passes_over_terms = 14
        terms_saved = 4  # by autograd
        calls = 25
    else:
        passes = 24
        passes_over_terms = 6
        terms_saved = 3
        calls = 10
    if problem.dropout:
        flops += costs.DROPOUT_PAIR * problem.pairs

    scores = problem.pairs * width
    lengths = problem.q_len + problem.k_len
    vectors = problem.batch * problem.heads * lengths * (problem.head_dim + problem.v_dim)
    moved = width * vectors + passes * scores
    peak = 3 * scores
    if sums_tanh(problem):
        terms = scores * problem.head_dim  # of the sums
        moved += passes_over_terms * terms
        peak += terms_saved * terms

    if isinstance(problem.mechanism, LSH):
        # It hashes, and compares the buckets of all pairs in every round.
        rounds = problem.mechanism.rounds
        buckets = problem.mechanism.bucket_count
        hashed = problem.batch * problem.heads * problem.k_len * buckets
        flops += 2 * hashed * rounds * problem.head_dim
        moved += 10 * rounds * scores + 32 * rounds * hashed
        peak += 16 * hashed
        calls += 30 * rounds
    if isinstance(problem.mechanism, Kernelised):
        features = problem.mechanism.feature_dim(problem.head_dim)
        flops += 2 * problem.pairs * (features - problem.head_dim)
    return Cost(flops, moved, peak, pairs=problem.pairs, calls=calls)


def _cost_by_steps(problem: Problem) -> Cost:
    """The cost of a recurrence step by step, whose memories are all in memory at once."""
    memory = problem.batch * problem.heads * problem.head_dim * problem.v_dim
    flops = 8 * memory * problem.k_len
    width = problem.computed_bytes
    return Cost(
        flops,
        bytes=8 * width * memory * problem.k_len,
        peak_bytes=width * memory * problem.k_len,
        pairs=problem.pairs,
        calls=8 * problem.k_len + 2 * problem.q_len,
    )
