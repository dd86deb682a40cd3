"""A walk with its gradient, which walks back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.backends.linear.walk import Step, Sums, Tensors, Walk, shares, vanishing
from regard.backends.second_order import Piece, gradients


def follow(walk: Walk, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (batch, heads, rows, v_dim) and the logarithms of their denominators (batch, heads, rows)."""
    given = (tensors.q, tensors.k, tensors.v, tensors.k_log, tensors.decay_log, tensors.least)
    output, log = _Follow.apply(walk, *given)  # (u, g, rows, v_dim), (u, g, rows)
    heads = tensors.units[0], tensors.q.shape[1] * tensors.q.shape[2]
    return output.view(*heads, *output.shape[2:]), log.view(*heads, walk.rows)


def follow_on(walks: Iterable[tuple[slice, Walk, Tensors]], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, without a gradient, of walks that follow on each other, each with its rows among all.

    Their tensors are asked for one after the other, so that features need not all be there at once.
    """
    room: _Told | None = None
    sums: Sums | None = None
    for here, walk, tensors in walks:
        if room is None or sums is None:
            room, sums = _Told.of(tensors, rows), tensors.start()
            heads = tensors.units[0], tensors.q.shape[1] * tensors.q.shape[2]
        for step in walk.steps():
            sums = room.after(step, tensors, sums, here.start)
    assert room is not None
    return room.output.view(*heads, *room.output.shape[2:]), room.log().view(*heads, rows)


@dataclass(frozen=True)
class _Told:
    """What rows are told: output (u, g, rows, v_dim); denominator (u, g, rows), divided by the exponential of scale
    (u, 1, rows) if there is one; raised, likewise, where it was raised to its least."""

    output: torch.Tensor
    denominator: torch.Tensor
    scale: torch.Tensor | None
    raised: torch.Tensor | None

    @classmethod
    def of(cls, tensors: Tensors, rows: int) -> _Told:
        """Room for so many rows."""
        units, group = math.prod(tensors.units), tensors.q.shape[2]
        output = tensors.q.new_empty(units, group, rows, tensors.v.shape[-1])
        denominator = output.new_empty(units, group, rows)
        scale = None if tensors.k_log is None else output.new_empty(units, 1, rows)
        raised = None if tensors.least is None else torch.empty_like(denominator, dtype=torch.bool)
        return cls(output, denominator, scale, raised)

    def after(self, step: Step, tensors: Tensors, sums: Sums, first: int = 0) -> Sums:
        """Tell the rows of a step, which stand `first` further on in this room; the sums after it."""
        chunk = tensors.chunk(sums, step.keys) if step.adds else None
        if step.answers:
            rows = (slice(None), slice(None), slice(first + step.rows.start, first + step.rows.stop))
            found, log = (chunk or sums).answer(tensors.queries(step.rows))
            lowest = tensors.lowest(log, step.rows)
            _, self.denominator[rows] = shares(found, lowest, out=self.output[rows])
            if self.raised is not None and lowest is not None:
                self.raised[rows] = found[..., -1] < lowest
            if self.scale is not None and log is not None:
                self.scale[rows] = log[:, None]
        return sums if chunk is None else chunk.after()

    def log(self) -> torch.Tensor:
        """The logarithms of the denominators, (u, g, rows)."""
        log = self.denominator.log() if self.scale is None else self.denominator.log() + self.scale
        return log.masked_fill_(vanishing(self.denominator), -math.inf)


class _Follow(torch.autograd.Function):
    """The sum before each step is kept, which is little beside the features; all else is computed again."""

    @staticmethod
    def forward(ctx: Any, walk: Walk, *given: Any) -> Any:
        tensors = Tensors(*given)
        told, sums, all_sums = _Told.of(tensors, walk.rows), tensors.start(), []
        for step in walk.steps():
            all_sums.append(sums)
            sums = told.after(step, tensors, sums)
        ctx.save_for_backward(*given, told.output, told.denominator, told.raised)
        ctx.walk, ctx.sums = walk, all_sums
        ctx.set_materialize_grads(False)
        return told.output, told.log()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *given, output, denominator, raised = ctx.saved_tensors
        walk, sums = ctx.walk, ctx.sums

        def first(grads: Any) -> Any:
            back = _WayBack(walk, Tensors(*given), output, denominator, raised, grads)
            for step, before in reversed(list(zip(walk.steps(), sums, strict=True))):
                back.step(step, before)
            return back.found()

        whole = Piece(partial(_followed, walk), (...,) * len(given), (..., ...))
        return None, *gradients(first, lambda: [whole] if walk.rows else [], given, grads)


def _followed(walk: Walk, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The same walk by plain operations; what autograd keeps of it grows with the length."""
    tensors = Tensors(*given)
    sums, outputs, logs = tensors.start(), [], []
    for step in walk.steps():
        chunk = tensors.chunk(sums, step.keys) if step.adds else None
        if step.answers:
            found, log = (chunk or sums).answer(tensors.queries(step.rows))
            output, denominator = shares(found, tensors.lowest(log, step.rows))
            none = vanishing(denominator)
            log_denominator = denominator.masked_fill(none, 1).log()
            log_denominator = log_denominator if log is None else log_denominator + log[:, None]
            outputs.append(output)
            logs.append(log_denominator.masked_fill(none, -math.inf))
        sums = sums if chunk is None else chunk.after()
    return torch.cat(outputs, 2), torch.cat(logs, 2)


class _WayBack:
    """Gradients, gathered from the last step to the first."""

    def __init__(
        self,
        walk: Walk,
        tensors: Tensors,
        output: torch.Tensor,
        denominator: torch.Tensor,
        raised: torch.Tensor | None,
        grads: tuple[torch.Tensor | None, ...],
    ) -> None:
        self.walk, self.tensors, self.output, self.raised = walk, tensors, output, raised
        self.inverse = denominator.masked_fill(vanishing(denominator), math.inf).reciprocal()
        self.grad = torch.zeros_like(output) if grads[0] is None else grads[0]
        self.grad_log = grads[1]
        units = math.prod(tensors.units)
        self.dq = output.new_empty(*output.shape[:3], tensors.q.shape[-1])
        room = tensors.k.new_empty if walk.before + walk.both >= walk.keys else tensors.k.new_zeros
        self.dk, self.dv = (room(units, *x.shape[2:]) for x in (tensors.k, tensors.v))
        self.by_row = None if tensors.decay_log is None else output.new_empty(units, output.shape[2])  # by c_i
        self.dleast = None if tensors.least is None else tensors.least.new_empty(units, output.shape[2])
        self.later = torch.zeros_like(tensors.start().total)  # by the sum after the step

    def step(self, step: Step, before: Sums) -> None:
        if step.answers:
            q, grad = self.tensors.queries(step.rows), self._by_answers(step.rows)
        if not step.adds:
            self.dq[:, :, step.rows], self.later = before.send(q, grad, self.later)
            return
        chunk = self.tensors.chunk(before, step.keys)
        if step.answers:
            self.dq[:, :, step.rows], dk, dv, self.later = chunk.send(q, grad, self.later)
        else:
            dk, dv, self.later = chunk.send_keys(self.later)
        self.dk[:, step.keys], self.dv[:, step.keys] = dk, dv[..., :-1]

    def _by_answers(self, rows: slice) -> torch.Tensor:
        """By sums and denominators, (u, g, n, v_dim + 1), of output = sum / denominator and log = log denominator."""
        grad, output, inverse = (x[:, :, rows] for x in (self.grad, self.output, self.inverse))
        along = (grad * output).sum(-1)  # (u, g, n)
        by_denominator, by_row = -along, torch.zeros_like(along)
        if self.grad_log is not None:
            by_row = self.grad_log[:, :, rows].masked_fill(inverse == 0, 0)
            by_denominator = by_denominator + by_row
        if self.raised is not None and self.dleast is not None:
            raised = self.raised[:, :, rows]
            self.dleast[:, rows] = by_denominator.where(raised, 0).sum(1)
            by_denominator, by_row = by_denominator.masked_fill(raised, 0), torch.where(raised, along, by_row)
        if self.by_row is not None:
            self.by_row[:, rows] = by_row.sum(1)
        both = grad.new_empty(*grad.shape[:3], grad.shape[3] + 1)
        torch.mul(grad, inverse[..., None], out=both[..., :-1])
        torch.mul(by_denominator, inverse, out=both[..., -1])
        return both

    def found(self) -> list[torch.Tensor | None]:
        """Those of all tensors, in their order and shapes."""
        grads = (self.dq, self.dk, self.dv, *self._by_logarithms(), self.dleast)
        return [None if x is None else x.unflatten(0, self.tensors.units) for x in grads]

    def _by_logarithms(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Those of k_log and decay_log, (u, keys): they scale what keys send and rows hear, so k · dk tells them.

        Source: Gated Linear Attention Transformers with Hardware-Efficient Training, Yang et al. 2024, appendix C.
        """
        if self.by_row is None:
            return None, None
        walk = self.walk
        by_key = (self.tensors.k.flatten(0, 1) * self.dk).sum(-1)
        by_place = -by_key.double()  # sums of much that cancels
        by_place[:, walk.before : walk.before + walk.both] += self.by_row[:, : walk.both]
        by_place[:, -1:] += self.by_row[:, walk.both :].sum(-1, keepdim=True)
        return by_key, by_place.flip(-1).cumsum(-1).flip(-1).to(by_key.dtype)
