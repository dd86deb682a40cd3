"""Statistics from queries, keys and log-sum-exp: a second pass over the scores, in memory linear in the length.

Every backend that computes the log-sum-exp can use `compute_statistics`. Statistics have gradients: the backward pass
computes the blocks again, and its gradient of the log-sum-exp continues through the backward pass of the backend.

`observe` computes the same statistics from dense weights by their formulas, with which the pass must agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends.scores.blocking import Blocking, RowBlock, blocking_of
from regard.backends.scores.blocks import BlockedScores, ScoreGradients, score_inputs
from regard.backends.scores.formulas import score_flops, score_flops_backward
from regard.backends.scores.normalising import Normaliser
from regard.backends.second_order import gradients
from regard.backends.statistics.collectors import KINDS, Collector, Top, statistics_pieces
from regard.core import costs
from regard.core.backend import Cost, Operands
from regard.core.problem import Problem
from regard.core.result import Result, TopKeys, TopKeysFound, WeightsOf, requested
from regard.core.tensors import Stored
from regard.patterns.arguments import runs
from regard.patterns.grid import Grid


def compute_statistics(
    problem: Problem, operands: Operands, log_sum_exp: torch.Tensor
) -> dict[str, Any]:
    """The requested statistics except log_sum_exp, by their names in `Result`."""
    blocking = _blocking(problem)
    if blocking is None:
        return {}
    chosen = requested(WeightsOf, problem.want)
    if chosen is not None:
        chosen.check(problem.heads, problem.q_len)
    if isinstance(operands.k, Stored):
        # Their scores have to fit the log-sum-exp, so they are not rounded to q's dtype.
        operands = operands.in_float32().widened()
    return _apply_pass(blocking, operands, log_sum_exp, None)


def result_of(
    problem: Problem, operands: Operands, output: torch.Tensor, log_sum_exp: torch.Tensor
) -> Result:
    """The result of a call with every requested statistic, from its output and log-sum-exp."""
    statistics = compute_statistics(problem, operands, log_sum_exp)
    if "log_sum_exp" in problem.want:
        statistics["log_sum_exp"] = log_sum_exp
    return Result(output, **statistics)


def differentiable(
    problem: Problem, operands: Operands, log_sum_exp: torch.Tensor, computed: dict[str, Any]
) -> dict[str, Any]:
    """Statistics that a backend has computed itself, by their names in `Result`, with the gradients of this pass."""
    blocking = _blocking(problem)
    if blocking is None:
        return computed
    return _apply_pass(blocking, operands, log_sum_exp, computed)


def _apply_pass(
    blocking: Blocking,
    operands: Operands,
    log_sum_exp: torch.Tensor,
    computed: dict[str, Any] | None,
) -> dict[str, Any]:
    """The statistics by their names in `Result`; `computed` are those that are known already."""
    inputs = score_inputs(operands)
    *results, indices = _Pass.apply(blocking, operands, log_sum_exp, computed, *inputs)
    names = [kind.name for kind in _kinds_wanted(blocking.problem)]
    statistics: dict[str, Any] = dict(zip(names, results, strict=True))
    if indices is not None:
        statistics["top_keys"] = TopKeysFound(indices, statistics["top_keys"])
    return statistics


def _kinds_wanted(problem: Problem) -> list[type[Collector]]:
    """The classes of the statistics that a problem wants, in the order of `KINDS`."""
    return [kind for kind in KINDS if kind.wanted(problem)]


def with_statistics(cost: Cost, problem: Problem) -> Cost:
    """The cost of a backend that computes its statistics by this pass, given the cost of its output."""
    blocking = _blocking(problem)
    if blocking is None:
        return cost
    size = blocking.size()
    learning = problem.needs_grad or problem.bias_learns
    passes = 3 if learning else 1
    by_pair = passes * costs.STATISTICS_PAIR + score_flops(problem)
    by_pair += score_flops_backward(problem) if learning else 0

    flops_of_pass = size.pairs * by_pair
    flops = cost.flops + flops_of_pass
    # The operations of the pass have the pace 1, those of the backend their own.
    pace = (cost.pace * cost.flops + flops_of_pass) / flops if flops else cost.pace
    weights = 4 * problem.pairs if "weights" in problem.want else 0
    return replace(
        cost,
        flops=flops,
        pace=pace,
        peak_bytes=cost.peak_bytes + 16 * blocking.largest + weights,
        calls=cost.calls + passes * 4 * size.blocks,
        estimated=cost.estimated or not size.exact,
    )


def _blocking(problem: Problem) -> Blocking | None:
    """The blocks in which the pass computes a problem; None if no statistic needs it."""
    if problem.empty or not set(problem.want) - {"log_sum_exp"}:
        return None
    return blocking_of(problem, wide=requested(TopKeys, problem.want) is not None)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        blocking: Blocking,
        operands: Operands,
        log_sum_exp: torch.Tensor,
        computed: dict[str, Any] | None,
        *inputs: torch.Tensor | None,
    ) -> Any:
        if computed is None:
            results, indices = _collect_all(blocking, operands, log_sum_exp)
        else:
            top = computed.get("top_keys")
            indices = None if top is None else top.indices
            tensors = computed if top is None else computed | {"top_keys": top.weights}
            results = [tensors[kind.name] for kind in _kinds_wanted(blocking.problem)]
        ctx.save_for_backward(log_sum_exp, indices, *inputs)
        ctx.lowered = blocking, operands
        ctx.set_materialize_grads(False)
        if indices is not None:
            ctx.mark_non_differentiable(indices)
        return *results, indices

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        log_sum_exp, indices, *inputs = ctx.saved_tensors
        blocking, operands = ctx.lowered
        bias_learns = ctx.needs_input_grad[6]

        def first(grads: Any) -> Any:
            scores = BlockedScores(
                blocking, operands, empty_rows=log_sum_exp == -math.inf, learns=True
            )
            sums = ScoreGradients(scores, bias_learns, every_block=False)
            learning = _statistics_with_gradient(scores, grads, indices)
            normaliser = _normaliser(scores, operands, log_sum_exp)
            to_log_sum_exp = _send(sums, normaliser, learning)
            return to_log_sum_exp.to(log_sum_exp.dtype), *sums.by_input(tuple(inputs))

        problem = blocking.problem
        rows = _rows_wanted(problem)
        pieces = partial(statistics_pieces, problem, operands, rows, indices)
        to_log_sum_exp, *others = gradients(first, pieces, (log_sum_exp, *inputs), grads[:-1])
        return None, None, to_log_sum_exp, None, *others


def _collect_all(
    blocking: Blocking, operands: Operands, log_sum_exp: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """The results in the order of `KINDS`, and the indices of the top keys."""
    scores = BlockedScores(blocking, operands, empty_rows=log_sum_exp == -math.inf)
    collectors = [kind(scores) for kind in _kinds_wanted(blocking.problem)]
    _collect(scores, _normaliser(scores, operands, log_sum_exp), collectors)
    indices = None
    for collector in collectors:
        if isinstance(collector, Top):
            indices = collector.indices
    return [collector.result for collector in collectors], indices


def _normaliser(scores: BlockedScores, operands: Operands, log_sum_exp: torch.Tensor) -> Normaliser:
    return Normaliser(scores, log_sum_exp, operands.sink, _rows_wanted(scores.problem))


@dataclass(frozen=True)
class _Learning:
    """A statistic that received a gradient."""

    collector: Collector
    grad: torch.Tensor


def _statistics_with_gradient(
    scores: BlockedScores, grads: Any, indices: torch.Tensor | None
) -> list[_Learning]:
    """The statistics that received a gradient, in the order of `KINDS`."""
    learning = []
    for kind, grad in zip(_kinds_wanted(scores.problem), grads, strict=True):
        if grad is None:
            continue
        collector = kind(scores)
        if isinstance(collector, Top):
            assert indices is not None
            collector.indices = indices
        learning.append(_Learning(collector, grad))
    return learning


def _collect(scores: BlockedScores, normaliser: Normaliser, collectors: list[Collector]) -> None:
    for collector in collectors:
        collector.begin()
    room = scores.workspace()
    room_for_weights = scores.workspace()
    for row_block, q in _row_blocks(scores):
        normaliser.open(row_block)
        queries = scores.split(q)
        for block in scores.blocks(row_block):
            needing = [collector for collector in collectors if collector.needs(block)]
            if not needing:
                continue
            of_block = scores.compute(block, queries, room)
            logs = normaliser.subtract_from(of_block, block).view(block.shape)
            reads = {collector.reads for collector in needing}
            weights = _weights(logs, reads, room_for_weights.shaped(block.shape))
            for collector in needing:
                collector.collect(block, logs, weights)
    for collector in collectors:
        collector.finish()


def _weights(logs: torch.Tensor, reads: set[str], room: torch.Tensor) -> torch.Tensor:
    """The weights of a block, computed only if a collector reads them, and in place of logs that none reads."""
    if reads == {"weights"}:
        return logs.exp2_()
    if reads == {"logs"}:
        return logs
    return torch.exp2(logs, out=room)


def _send(sums: ScoreGradients, normaliser: Normaliser, learning: list[_Learning]) -> torch.Tensor:
    """The gradient of the log-sum-exp, -rowsum(w G) with G the gradient of the weights; `sums` gets w G for the scores.

    For a weight w = exp(score - log_sum_exp) the derivatives are dw/dscore = w and dw/dlog_sum_exp = -w.
    """
    scores = sums.scores
    to_log_sum_exp = scores.q.new_zeros(scores.rows)
    room = scores.workspace()
    room_for_weights = scores.workspace()
    room_for_gradient = scores.workspace()
    slope = scores.workspace() if scores.problem.softcap is not None else None
    for row_block, q in _row_blocks(scores):
        normaliser.open(row_block)
        sums.open(row_block, q)
        queries = scores.split(q)
        for block in scores.blocks(row_block):
            needing = [statistic for statistic in learning if statistic.collector.needs(block)]
            if not needing:
                continue
            of_block = scores.compute(block, queries, room, slope)
            logs = normaliser.subtract_from(of_block, block).view(block.shape)
            weights = torch.exp2(logs, out=room_for_weights.shaped(block.shape))
            gradient = room_for_gradient.shaped(block.shape).zero_()
            for statistic in needing:
                statistic.collector.send(block, logs, statistic.grad, gradient)
            to_log_sum_exp[block.lines] -= gradient.mul_(weights).sum(-1)
            slope_of_block = None if slope is None else slope.shaped(block.units)
            sums.send(block, gradient.view(block.units), slope_of_block)
        sums.close(row_block.rows)
    return to_log_sum_exp


def _row_blocks(scores: BlockedScores) -> Iterator[tuple[RowBlock, torch.Tensor]]:
    """Row blocks and their queries."""
    for row_block in scores.row_blocks(_rows_wanted(scores.problem)):
        yield row_block, scores.queries(row_block.rows)


def _rows_wanted(problem: Problem) -> list[range] | None:
    """The rows that the statistics need, as ranges; None for all rows."""
    chosen = requested(WeightsOf, problem.want)
    if chosen is None or set(problem.want) - {"log_sum_exp", chosen}:
        return None
    return list(runs(chosen.rows))


def observe(
    problem: Problem, grid: Grid, weights: torch.Tensor, allowed: torch.Tensor
) -> dict[str, Any]:
    """The requested statistics except log_sum_exp, by their names in `Result`.

    Args:
        problem: the call.
        grid: its positions.
        weights: (batch, heads, q_len, keys).
        allowed: booleans of the same shape, True where the pair is allowed.
    """
    statistics: dict[str, Any] = {}
    if "entropy" in problem.want:
        statistics["entropy"] = _entropy(weights)
    if "received" in problem.want:
        statistics["received"] = weights.sum(-2)
    if "distance" in problem.want:
        statistics["distance"] = (weights * (grid.k_pos - grid.q_pos).abs()).sum(-1)
    if "weights" in problem.want:
        statistics["weights"] = weights
    chosen = requested(WeightsOf, problem.want)
    if chosen is not None:
        chosen.check(problem.heads, problem.q_len)
        heads = list(range(problem.heads) if chosen.heads is None else chosen.heads)
        statistics["chosen_weights"] = weights[:, heads][:, :, list(chosen.rows)]
    top = requested(TopKeys, problem.want)
    if top is not None:
        statistics["top_keys"] = _largest(weights, allowed, top.count)
    return statistics


def _entropy(weights: torch.Tensor) -> torch.Tensor:
    """The entropy in nats. A weight of 0 adds nothing and gets a finite gradient, unlike in 0 · log 0.

    It is never below 0, though a weight may be rounded to more than 1; the gradient is that of the formula.
    """
    entropy = -(weights * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()).sum(-1)
    return entropy + (entropy.clamp_min(0) - entropy).detach()


def _largest(weights: torch.Tensor, allowed: torch.Tensor, count: int) -> TopKeysFound:
    """Indices and weights of the largest, (batch, heads, q_len, count), padded with -1 and 0."""
    ranked = weights.masked_fill(~allowed, -math.inf)  # weights of random features may be negative
    largest, indices = ranked.topk(min(count, ranked.shape[-1]), dim=-1)
    missing = largest == -math.inf
    largest = largest.masked_fill(missing, 0)
    indices = indices.masked_fill(missing, -1)
    padding = (0, count - largest.shape[-1])
    return TopKeysFound(F.pad(indices, padding, value=-1), F.pad(largest, padding))
