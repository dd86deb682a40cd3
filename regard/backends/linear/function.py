"""A walk as an autograd function; its backward pass takes the steps in reverse order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.backends.linear.walk import Step, Sums, Tensors, Walk, normalised, vanishing
from regard.backends.second_order import Piece, gradients


def follow(walk: Walk, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (batch, heads, rows, v_dim) and the logarithms of their denominators (batch, heads, rows)."""
    given = (tensors.q, tensors.k, tensors.v, tensors.k_log, tensors.decay_log, tensors.least)
    output, log = _Follow.apply(walk, *given)  # (u, g, rows, v_dim), (u, g, rows)
    heads = tensors.units[0], tensors.q.shape[1] * tensors.q.shape[2]
    return output.view(*heads, *output.shape[2:]), log.view(*heads, walk.rows)


def follow_on(walks: Iterable[tuple[slice, Walk, Tensors]], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `follow`, without gradients, for consecutive walks; the slice of each says which of all rows it computes.

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
    def of(cls, tensors: Tensors, rows: int) -> _Results:
        """Uninitialised results for this number of rows."""
        units, group = math.prod(tensors.units), tensors.q.shape[2]
        output = tensors.q.new_empty(units, group, rows, tensors.v.shape[-1])
        denominator = output.new_empty(units, group, rows)
        scale = None if tensors.k_log is None else output.new_empty(units, 1, rows)
        raised = None if tensors.least is None else torch.empty_like(denominator, dtype=torch.bool)
        return cls(output, denominator, scale, raised)

    def after(self, step: Step, tensors: Tensors, sums: Sums, first: int = 0) -> Sums:
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
        tensors = Tensors(*given)
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
            back = _WayBack(walk, Tensors(*given), output, denominator, raised, grads, wants_decay)
            for step, before in reversed(list(zip(walk.steps(), sums, strict=True))):
                back.step(step, before)
            return back.result()

        whole = Piece(partial(_followed, walk), (...,) * len(given), (..., ...))
        return None, *gradients(first, lambda: [whole] if walk.rows else [], given, grads)


def _followed(walk: Walk, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The same walk by plain differentiable operations; autograd's memory for it grows linearly with the length."""
    tensors = Tensors(*given)
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
        tensors: Tensors,
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
        """The gradients of all tensors, in their order and shapes."""
        k_log, k = self.tensors.k_log, self.tensors.k.flatten(0, 1)
        dk_log = None if k_log is None else (k * self.dk).sum(-1)  # exp(k_log) scales the key
        grads = (self.dq, self.dk, self.dv, dk_log, self.ddecay_log, self.dleast)
        return [None if x is None else x.unflatten(0, self.tensors.units) for x in grads]
