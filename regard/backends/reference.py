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
from regard.mechanisms.base import Given, Mechanism
from regard.mechanisms.features import Kernelised
from regard.mechanisms.recurrent import Recurrent
from regard.mechanisms.scores import AroundCentre


def softmax_attention(problem: Problem, operands: Operands) -> Result:
    """Output and every statistic by the formula above, with every option."""
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    hidden = ~problem.pattern.evaluate(operands.grid)
    bias = operands.bias_block(operands.grid)
    if bias is not None:
        hidden = hidden | (bias == -math.inf)
    apart = distances_from_centre(problem, operands)
    if apart is not None:
        hidden = hidden | (apart.abs() > window(problem))
    empty_rows = hidden.all(-1, keepdim=True)  # their output is zeros, even if the query holds NaN

    q = operands.q.to(wide).masked_fill(empty_rows, 0)
    k = operands.k.to(wide).repeat_interleave(
        problem.group, dim=1
    )  # (batch, heads, keys, head_dim)
    v = operands.v.to(wide).repeat_interleave(problem.group, dim=1)  # (batch, heads, keys, v_dim)

    scores = similarity(problem, operands, q, k) * problem.scale  # (batch, heads, q_len, keys)
    if problem.softcap is not None:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if bias is not None:
        scores = scores + bias.to(wide)
    if apart is not None:
        scores = scores + nearness(problem, apart.masked_fill(empty_rows, 0))
    hidden = hidden | (
        scores == -math.inf
    )  # a score that overflows has the weight 0, as one that is masked
    empty_rows = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden, -math.inf).masked_fill(empty_rows, 0)
    sink = (
        None if operands.sink is None else operands.sink.to(wide).expand(scores.shape[:-1])
    )  # (batch, heads, q_len)
    if sink is not None:
        column = sink[..., None].masked_fill(empty_rows, 0)
        scores = torch.cat([scores, column], -1)
    joint = scores.softmax(-1)
    weights = joint[..., : k.shape[2]].masked_fill(empty_rows, 0)
    dropped = (
        drop(weights, problem.dropout, operands.dropout_seed, operands.grid)
        if problem.dropout
        else weights
    )
    output = (dropped @ v).to(operands.q.dtype)  # (batch, heads, q_len, v_dim)

    log_sum_exp = None
    if "log_sum_exp" in problem.want:
        log_sum_exp = scores.logsumexp(-1)  # (batch, heads, q_len)
        of_empty = torch.full_like(log_sum_exp, -math.inf) if sink is None else sink
        log_sum_exp = torch.where(empty_rows[..., 0], of_empty, log_sum_exp)
    found = observe(problem, operands.grid, weights, ~hidden.expand(weights.shape))
    if "sink" in problem.want:
        none = scores.new_zeros(scores.shape[:-1])
        of_empty = none if sink is None else (sink > -math.inf).to(wide)
        found["sink"] = (
            none if sink is None else torch.where(empty_rows[..., 0], of_empty, joint[..., -1])
        )
    return Result(output, log_sum_exp, **found)


def similarity(
    problem: Problem, operands: Operands, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor:
    """Scores of queries (batch, heads, q_len, head_dim) and keys (batch, heads, keys, head_dim), before the scale."""
    if not sums_tanh(problem):
        return q @ k.mT
    hidden_layer = torch.tanh(
        q[:, :, :, None] + k[:, :, None]
    )  # (batch, heads, q_len, keys, head_dim)
    energy = operands.parameters["energy"].to(q.dtype)  # (heads or 1, head_dim)
    return (hidden_layer * energy[:, None, None]).sum(-1)


def distances_from_centre(problem: Problem, operands: Operands) -> torch.Tensor | None:
    """`j - p`, (batch, heads, q_len, keys), for scores that predict a centre p for each query; else None."""
    if _local(problem) is None:
        return None
    first, count = visible_span(problem, operands.grid)  # of the visible keys
    centre = first + count * operands.parameters["centre"]  # (batch, heads, q_len)
    return operands.grid.k_pos - centre[..., None]


def window(problem: Problem) -> int:
    """D, the largest distance from the centre at which a pair is allowed."""
    local = _local(problem)
    assert local is not None
    return local.window


def nearness(problem: Problem, apart: torch.Tensor) -> torch.Tensor:
    """The logarithm of the Gaussian around the centre, which is added to the scores."""
    deviation = window(problem) / 2
    return -(apart**2) / (2 * deviation**2)


def _local(problem: Problem) -> AroundCentre | None:
    assert isinstance(problem.mechanism, Softmax)
    score = problem.mechanism.score
    return score if isinstance(score, AroundCentre) else None


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


class Reference(Limited):
    """Computes every pair in float32, or in float64 when given float64; supports every option and statistic."""

    name = "reference"
    precise = True
    limits = (
        where(
            lambda one: (
                not one.mechanism.is_softmax and type(one.mechanism).formula is Mechanism.formula
            ),
            "it has no formula for {problem.mechanism}",
        ),
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        if problem.strict and problem.q_len > 1:
            return Refusal("strict=True, and it computes a dense q_len x k_len matrix of scores")
        width = 8 if problem.dtype == torch.float64 else 4
        learning = problem.needs_grad or problem.bias_learns
        flops = 2 * problem.pairs * (problem.head_dim + problem.v_dim) * (3.5 if learning else 1)
        flops += costs.DROPOUT_PAIR * problem.pairs if problem.dropout else 0
        scores = problem.pairs * width
        passes = (
            40 if learning else 24
        )  # over the scores: each operation of a formula reads them and writes new memory
        vectors = (
            problem.batch
            * problem.heads
            * (problem.q_len + problem.k_len)
            * (problem.head_dim + problem.v_dim)
        )
        moved = width * vectors + passes * scores
        peak = 3 * scores
        if sums_tanh(problem):  # the terms of the sums, and what autograd saves of them
            terms = scores * problem.head_dim
            moved = moved + (14 if learning else 6) * terms
            peak = peak + (4 if learning else 3) * terms
        calls = 25 if learning else 10
        if isinstance(
            problem.mechanism, LSH
        ):  # it hashes, and compares the buckets of all pairs in every round
            rounds, buckets = problem.mechanism.rounds, problem.mechanism.bucket_count
            hashed = problem.batch * problem.heads * problem.k_len * buckets
            flops += 2 * hashed * rounds * problem.head_dim
            moved = moved + 10 * rounds * scores + 32 * rounds * hashed
            calls = calls + 30 * rounds
            peak += 16 * hashed
        if isinstance(problem.mechanism, Recurrent):
            memory = problem.batch * problem.heads * problem.head_dim * problem.v_dim
            flops = 8 * memory * problem.k_len
            moved = 8 * width * memory * problem.k_len
            peak = width * memory * problem.k_len
            calls = 8 * problem.k_len + 2 * problem.q_len
        if isinstance(problem.mechanism, Kernelised):
            flops += (
                2
                * problem.pairs
                * (problem.mechanism.feature_dim(problem.head_dim) - problem.head_dim)
            )
        cost = Cost(flops, moved, peak, pairs=problem.pairs, calls=calls)
        formula = softmax_attention if problem.mechanism.is_softmax else by_formula
        # Statistics are counted as for other backends, so that they do not change the plan.
        return Offer(with_statistics(cost, problem), partial(formula, problem))
