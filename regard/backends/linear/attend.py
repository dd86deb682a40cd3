"""Linear attention of one call: as one walk over all keys, or document by document with SameDocument patterns.

A walk is an autograd function, whose backward pass takes the steps in reverse order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from regard.backends import recurrence
from regard.backends.documents import (
    ROWS_IN_ORDER,
    Pack,
    first_rows,
    is_causal,
    on_all,
    pack_documents,
    put_back,
    visible_keys,
)
from regard.backends.limits import Limited, no_weights, not_empty, on_mechanism
from regard.backends.linear.sight import Sight, without_hidden
from regard.backends.linear.walk import BLOCK, CHUNK, Step, Sums, Walk, WalkTensors, longer_on, normalised, vanishing
from regard.backends.second_order import Piece, gradients
from regard.core.backend import Cost, Offer, Operands, Refusal, reachable_keys
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms.features import Features, Kernelised
from regard.mechanisms.recurrent import Recurrent


def follow(walk: Walk, tensors: WalkTensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (batch, heads, rows, v_dim) and the logarithms of their denominators (batch, heads, rows)."""
    given = (tensors.q, tensors.k, tensors.v, tensors.k_log, tensors.decay_log, tensors.least)
    output, log = _Follow.apply(walk, *given)  # (u, g, rows, v_dim), (u, g, rows)
    heads = tensors.units[0], tensors.q.shape[1] * tensors.q.shape[2]
    return output.view(*heads, *output.shape[2:]), log.view(*heads, walk.rows)


def follow_on(walks: Iterable[tuple[slice, Walk, WalkTensors]], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `follow`, without gradients, for consecutive walks; the slice of each selects its rows of the result.

    The iterable is read one walk at a time, so that only the features of one walk are in memory.
    """
    room: _Results | None = None
    sums: Sums | None = None
    for here, walk, tensors in walks:
        if room is None or sums is None:
            room, sums = _Results.of(tensors, rows), tensors.start()
            heads = tensors.units[0], tensors.q.shape[1] * tensors.q.shape[2]
        for step in walk.steps():
            sums = room.after(step, tensors, sums, here.start)
    assert room is not None
    return room.output.view(*heads, *room.output.shape[2:]), room.log().view(*heads, rows)


@dataclass(frozen=True)
class _Results:
    """Results of a walk, filled step by step.

    output: (u, g, rows, v_dim). denominator: (u, g, rows), divided by exp(scale) if there is a scale. scale: (u, 1,
    rows). raised: (u, g, rows), True where the denominator was raised to its lower bound.
    """

    output: torch.Tensor
    denominator: torch.Tensor
    scale: torch.Tensor | None
    raised: torch.Tensor | None

    @classmethod
    def of(cls, tensors: WalkTensors, rows: int) -> _Results:
        """Uninitialised results for this number of rows."""
        units, group = math.prod(tensors.units), tensors.q.shape[2]
        output = tensors.q.new_empty(units, group, rows, tensors.v.shape[-1])
        denominator = output.new_empty(units, group, rows)
        scale = None if tensors.k_log is None else output.new_empty(units, 1, rows)
        raised = None if tensors.least is None else torch.empty_like(denominator, dtype=torch.bool)
        return cls(output, denominator, scale, raised)

    def after(self, step: Step, tensors: WalkTensors, sums: Sums, first: int = 0) -> Sums:
        """Write the results of a step, with its rows moved by `first`; returns the sums after the step."""
        chunk = tensors.chunk(sums, step.keys) if step.adds else None
        if step.reads:
            rows = (slice(None), slice(None), slice(first + step.rows.start, first + step.rows.stop))
            totals, log = (chunk or sums).unnormalised(tensors.queries(step.rows))
            lowest = tensors.lowest(log, step.rows)
            _, self.denominator[rows] = normalised(totals, lowest, out=self.output[rows])
            if self.raised is not None and lowest is not None:
                self.raised[rows] = totals[..., -1] < lowest
            if self.scale is not None and log is not None:
                self.scale[rows] = log[:, None]
        return sums if chunk is None else chunk.after()

    def log(self) -> torch.Tensor:
        """The logarithms of the denominators, (u, g, rows)."""
        log = self.denominator.log() if self.scale is None else self.denominator.log() + self.scale
        return log.masked_fill_(vanishing(self.denominator), -math.inf)


class _Follow(torch.autograd.Function):
    """Saves the sum before each step, which is small compared with the features; the rest is computed again."""

    @staticmethod
    def forward(ctx: Any, walk: Walk, *given: Any) -> Any:
        tensors = WalkTensors(*given)
        results, sums, all_sums = _Results.of(tensors, walk.rows), tensors.start(), []
        for step in walk.steps():
            all_sums.append(sums)
            sums = results.after(step, tensors, sums)
        ctx.save_for_backward(*given, results.output, results.denominator, results.raised)
        ctx.walk, ctx.sums = walk, all_sums
        ctx.set_materialize_grads(False)
        return results.output, results.log()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *given, output, denominator, raised = ctx.saved_tensors
        walk, sums = ctx.walk, ctx.sums
        wants_decay = ctx.needs_input_grad[5]  # the walk, and then the tensors in their order

        def first(grads: Any) -> Any:
            back = _WayBack(walk, WalkTensors(*given), output, denominator, raised, grads, wants_decay)
            for step, before in reversed(list(zip(walk.steps(), sums, strict=True))):
                back.step(step, before)
            return back.result()

        whole = Piece(partial(_followed, walk), (...,) * len(given), (..., ...))
        return None, *gradients(first, lambda: [whole] if walk.rows else [], given, grads)


def _followed(walk: Walk, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The same walk by plain differentiable operations; autograd's memory for it grows linearly with the length."""
    tensors = WalkTensors(*given)
    sums, outputs, logs = tensors.start(), [], []
    for step in walk.steps():
        chunk = tensors.chunk(sums, step.keys) if step.adds else None
        if step.reads:
            totals, log = (chunk or sums).unnormalised(tensors.queries(step.rows))
            output, denominator = normalised(totals, tensors.lowest(log, step.rows))
            none = vanishing(denominator)
            log_denominator = denominator.masked_fill(none, 1).log()
            log_denominator = log_denominator if log is None else log_denominator + log[:, None]
            outputs.append(output)
            logs.append(log_denominator.masked_fill(none, -math.inf))
        sums = sums if chunk is None else chunk.after()
    return torch.cat(outputs, 2), torch.cat(logs, 2)


class _WayBack:
    """The backward pass: gradients, added up from the last step to the first."""

    def __init__(
        self,
        walk: Walk,
        tensors: WalkTensors,
        output: torch.Tensor,
        denominator: torch.Tensor,
        raised: torch.Tensor | None,
        grads: tuple[torch.Tensor | None, ...],
        wants_decay: bool,
    ) -> None:
        self.tensors, self.output, self.raised = tensors, output, raised
        self.inverse = denominator.masked_fill(vanishing(denominator), math.inf).reciprocal()
        self.grad = torch.zeros_like(output) if grads[0] is None else grads[0]
        self.grad_log = grads[1]
        units = math.prod(tensors.units)
        self.dq = output.new_empty(*output.shape[:3], tensors.q.shape[-1])
        room = tensors.k.new_empty if walk.before + walk.both >= walk.keys else tensors.k.new_zeros
        self.dk, self.dv = (room(units, *x.shape[2:]) for x in (tensors.k, tensors.v))
        self.ddecay_log = room(units, tensors.k.shape[2]) if wants_decay else None
        self.dleast = None if tensors.least is None else tensors.least.new_empty(units, output.shape[2])
        self.later = torch.zeros_like(tensors.start().total)  # gradient of the sum after the step

    def step(self, step: Step, before: Sums) -> None:
        if step.reads:
            q, grad = self.tensors.queries(step.rows), self._by_totals(step.rows)
        if not step.adds:
            self.dq[:, :, step.rows], self.later = before.send(q, grad, self.later)
            return
        chunk, wants_decay = self.tensors.chunk(before, step.keys), self.ddecay_log is not None
        if step.reads:
            self.dq[:, :, step.rows], by_key = chunk.send(q, grad, self.later, wants_decay)
        else:
            by_key = chunk.send_keys(self.later, wants_decay)
        dk, dv, self.later, by_decay = by_key
        self.dk[:, step.keys], self.dv[:, step.keys] = dk, dv[..., :-1]
        if self.ddecay_log is not None and by_decay is not None:
            self.ddecay_log[:, step.keys] = by_decay

    def _by_totals(self, rows: slice) -> torch.Tensor:
        """The gradient of the totals, (u, g, n, v_dim + 1), where output = sum / denominator, log = log denominator."""
        grad, output, inverse = (x[:, :, rows] for x in (self.grad, self.output, self.inverse))
        by_denominator = -(grad * output).sum(-1)  # (u, g, n)
        if self.grad_log is not None:
            by_denominator = by_denominator + self.grad_log[:, :, rows].masked_fill(inverse == 0, 0)
        if self.raised is not None and self.dleast is not None:
            raised = self.raised[:, :, rows]
            self.dleast[:, rows] = by_denominator.where(raised, 0).sum(1)
            by_denominator = by_denominator.masked_fill(raised, 0)
        both = grad.new_empty(*grad.shape[:3], grad.shape[3] + 1)
        torch.mul(grad, inverse[..., None], out=both[..., :-1])
        torch.mul(by_denominator, inverse, out=both[..., -1])
        return both

    def result(self) -> list[torch.Tensor | None]:
        k_log, k = self.tensors.k_log, self.tensors.k.flatten(0, 1)
        dk_log = None if k_log is None else (k * self.dk).sum(-1)  # exp(k_log) scales the key
        grads = (self.dq, self.dk, self.dv, dk_log, self.ddecay_log, self.dleast)
        return [None if x is None else x.unflatten(0, self.tensors.units) for x in grads]


Outputs = tuple[torch.Tensor, torch.Tensor]  # output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len)


def attend(problem: Problem, operands: Operands) -> Outputs:
    """Output and log-sum-exp of a call, from tensors of the dtype in which it is computed."""
    ids = problem.pattern.documents
    return _by_document(problem, operands, ids) if ids else _whole(problem, operands)


def _whole(problem: Problem, operands: Operands) -> Outputs:
    keys = operands.grid.keys
    leading, before = first_rows(problem, keys)
    walk = Walk(problem.q_len - leading, len(keys), before, longer_on(problem.device, problem.batch * problem.heads))
    sight = Sight(walk, visible_keys(problem.pattern, operands.grid))
    operands = operands._replace(q=operands.q[:, :, leading:])
    if sight.visible is None and sight.walk.rows and not _learning(operands):
        output, log = _in_blocks(problem, operands, sight.walk)
    else:
        output, log = _walked(sight, _features(problem, operands, sight.visible, sight.empty_rows()), operands.v)
    if not leading:
        return output, log
    return functional.pad(output, (0, 0, leading, 0)), functional.pad(log, (leading, 0), value=-math.inf)


def _in_blocks(problem: Problem, operands: Operands, walk: Walk) -> Outputs:
    """The output without gradients. Features are made block by block, so that they stay in the processor's cache."""
    q_logs: list[torch.Tensor] = []

    def blocks() -> Iterator[tuple[slice, Walk, WalkTensors]]:
        least = None
        for rows, keys, inner in walk.blocks():
            q, k, parameters = operands.q[:, :, rows], operands.k[:, :, keys], _cut(problem, operands, keys)
            here = operands._replace(q=q, k=k, parameters=parameters)
            features = _features(problem, here, None, None)
            sight = Sight(inner, None, None, least)
            tensors = sight.tensors(features, operands.v[:, :, keys])
            least = least if features.floor is None else sight.least_after(features.floor, tensors)
            q_logs.extend([] if features.q_log is None else [features.q_log])
            yield rows, inner, tensors

    output, log = follow_on(blocks(), walk.rows)
    return output, log + torch.cat(q_logs, -1) if q_logs else log


def _cut(problem: Problem, operands: Operands, keys: slice) -> dict[str, torch.Tensor]:
    by_key = problem.mechanism.by_key
    return {name: x[:, :, keys] if name in by_key else x for name, x in operands.parameters.items()}


def _learning(operands: Operands) -> bool:
    tensors = (operands.q, operands.k, operands.v, *operands.parameters.values())
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _by_document(problem: Problem, operands: Operands, ids: Iterable[torch.Tensor]) -> Outputs:
    batch, length = problem.batch, problem.k_len
    packs = pack_documents(ids, batch, length, operands.q.device)
    visible = visible_keys(problem.pattern, operands.grid)
    cut = len(operands.grid.keys) < length
    visible_here = torch.ones(1, 1, len(operands.grid.keys), dtype=torch.bool, device=operands.q.device)
    visible_here = on_all(visible_here if visible is None else visible, problem, operands).expand(batch, 1, length)
    sights = [_sight(problem, pack, visible_here) for pack in packs]
    hidden = [rows for one in sights if (rows := one.empty_rows()) is not None]
    empty_rows = put_back(packs, hidden, batch) if cut or visible is not None else None
    features = _features(problem, operands, visible, empty_rows)
    k, k_log, decay_log = (
        None if x is None else on_all(x, problem, operands) for x in (features.k, features.k_log, features.decay_log)
    )
    features, v = replace(features, k=k, k_log=k_log, decay_log=decay_log), on_all(operands.v, problem, operands)
    results = [_walked(sight, _taken(pack, features), pack.take(v)) for pack, sight in zip(packs, sights, strict=True)]
    outputs, logs = zip(*results, strict=True)
    return put_back(packs, outputs, batch), put_back(packs, logs, batch)


def _sight(problem: Problem, pack: Pack, visible_here: torch.Tensor) -> Sight:
    documents, longest = pack.places.shape
    longer = longer_on(problem.device, documents * problem.heads)
    walk = Walk(longest, longest, 0 if is_causal(problem) else longest, longer)
    return Sight(walk, pack.take(visible_here) & pack.real[:, None])


def _taken(pack: Pack, features: Features) -> Features:
    tensors = {name: pack.take(x) for name, x in vars(features).items() if isinstance(x, torch.Tensor)}
    return replace(features, **tensors)


def _features(
    problem: Problem, operands: Operands, visible: torch.Tensor | None, empty_rows: torch.Tensor | None
) -> Features:
    assert isinstance(problem.mechanism, Kernelised)
    q = operands.q if empty_rows is None else operands.q.masked_fill(empty_rows[..., None], 0)
    parameters = without_hidden(problem.mechanism, operands.parameters, visible)
    return problem.mechanism.lift(q, operands.k, problem.scale, parameters)


def _walked(sight: Sight, features: Features, v: torch.Tensor) -> Outputs:
    output, log = follow(sight.walk, sight.tensors(features, v))
    return output, log if features.q_log is None else log + features.q_log


class Linear(Limited):
    """Mechanisms of features and recurrent ones, whose past is a sum or a memory; log_sum_exp is the only statistic."""

    name = "linear"
    limits = (
        on_mechanism((Kernelised, Recurrent), "linear attention by feature maps and recurrent memories"),
        not_empty,
        no_weights,
        *ROWS_IN_ORDER,
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        if isinstance(problem.mechanism, Recurrent):
            return Offer(recurrence.cost(problem), partial(recurrence.run, problem, recurrence.PLAIN))
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
