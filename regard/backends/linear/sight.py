"""Which keys the rows of a linear call may look at, and their features without those of hidden keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from regard.backends.flash import weigh
from regard.backends.linear.walk import Walk, WalkTensors
from regard.backends.second_order import Piece, gradients
from regard.mechanisms.features import Features, Kernelised

PAIRS = 1 << 20  # of positions i and j <= i that are computed at once for second derivatives


def running_log_sum(k_log: torch.Tensor, decay_log: torch.Tensor) -> torch.Tensor:
    """log Σ_j exp(k_log_j + Σ decay_log_t over j < t <= i) over the keys j <= i, for each i of the last axis.

    The gradient of a decay is the sum over the pairs with j < t <= i alone. Autograd would subtract sums over other
    pairs, whose rounding errors may be larger than the result; and the second derivative of `torch.logcumsumexp` is
    infinite where the incoming gradient is 0.
    """
    return _RunningLogSum.apply(k_log, decay_log)


class _RunningLogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k_log: torch.Tensor, decay_log: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(k_log, decay_log)
        decayed = decay_log.cumsum(-1)
        return decayed + (k_log - decayed).logcumsumexp(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given = ctx.saved_tensors
        return tuple(gradients(partial(_first, *given), partial(_pieces, *given), given, grads))


def _first(k_log: torch.Tensor, decay_log: torch.Tensor, grads: Any) -> tuple[torch.Tensor, ...]:
    keys = k_log - decay_log.cumsum(-1)
    running = keys.logcumsumexp(-1)  # without the decays up to i; it never decreases
    later = torch.zeros_like(running)  # Σ grad_i exp(running_t - running_i) over i >= t
    for sign in (1, -1):
        each = (sign * grads[0]).clamp_min(0).log() - running
        later += sign * (running + each.flip(-1).logcumsumexp(-1).flip(-1)).exp()
    before = functional.pad(running, (1, 0), value=-math.inf)[..., :-1]  # of the keys before t
    return later * (keys - running).exp(), later * (before - running).exp()


def _pieces(k_log: torch.Tensor, decay_log: torch.Tensor) -> Iterator[Piece]:
    length = k_log.shape[-1]
    step = max(1, PAIRS // max(1, k_log.numel()))
    for at in range(0, length, step):
        rows, before = slice(at, min(at + step, length)), slice(0, min(at + step, length))

        def compute(k_log: torch.Tensor, decay_log: torch.Tensor, first: int = at) -> tuple[torch.Tensor]:
            decayed = decay_log.cumsum(-1)
            each = (k_log - decayed)[..., None, :].expand(*k_log.shape[:-1], k_log.shape[-1] - first, -1)
            later = torch.ones_like(each, dtype=torch.bool).triu_(first + 1)
            return (decayed[..., first:] + weigh(each, later)[1],)

        yield Piece(compute, ((..., before), (..., before)), ((..., rows),))


LOWEST = -1e300  # in place of -inf, for which a running sum has no gradient


@dataclass(frozen=True)
class Sight:
    """Which keys each row may look at: row r all visible keys up to key `walk.before + r`, and those of earlier calls.

    visible: (batch or 1, 1, keys), booleans; None if all keys are visible.
    earlier: (batch or 1, 1, 1), True if an earlier call had a visible key; None if there was no earlier call.
    least: (batch, kv_heads, 1), the logarithm of the lower bound of denominators after the earlier call, for mechanisms
        that have such a bound.
    """

    walk: Walk
    visible: torch.Tensor | None
    earlier: torch.Tensor | None = None
    least: torch.Tensor | None = None

    def empty_rows(self) -> torch.Tensor | None:
        """Rows that may look at no key, (batch or 1, 1, rows); None if all keys are visible."""
        if self.visible is None:
            return None
        empty = self._at_rows(self.visible.cumsum(-1)) == 0
        return empty if self.earlier is None else empty & ~self.earlier

    def tensors(self, features: Features, v: torch.Tensor) -> WalkTensors:
        """The features and values (batch, kv_heads, keys, v_dim) as a walk reads them."""
        q = features.q.unflatten(1, (features.k.shape[1], -1))  # (batch, kv_heads, group, rows, features)
        tensors = self._without_hidden(WalkTensors(q, features.k, v, *_logarithms(features)))
        return (
            tensors
            if features.floor is None
            else replace(tensors, least=self._at_rows(self._running(features.floor, tensors)))
        )

    def _without_hidden(self, tensors: WalkTensors) -> WalkTensors:
        if self.visible is None:
            return tensors
        hidden = ~self.visible
        k = tensors.k.masked_fill(hidden[..., None], 0)
        if tensors.k_log is None or tensors.decay_log is None:
            return replace(tensors, k=k)
        k_log, decay_log = tensors.k_log.masked_fill(hidden, -math.inf), tensors.decay_log.masked_fill(hidden, 0)
        return replace(tensors, k=k, k_log=k_log, decay_log=decay_log)

    def least_after(self, floor: float, tensors: WalkTensors) -> torch.Tensor:
        """`least` for the call that continues this one."""
        return self._running(floor, tensors)[..., -1:]

    def _running(self, floor: float, tensors: WalkTensors) -> torch.Tensor:
        """log(floor · Σ exp(k_log_j + Σ decay_log_t)), (batch, kv_heads, keys), in float64."""
        if not self.walk.keys and self.least is not None:
            return self.least
        k, k_log, decay_log = tensors.k, tensors.k_log, tensors.decay_log
        if k_log is None or decay_log is None:
            visible = k.new_ones(1, 1, k.shape[2]) if self.visible is None else self.visible
            sums = visible.cumsum(-1, dtype=torch.float64).log().expand(*k.shape[:2], -1) + math.log(floor)
            return sums if self.least is None else torch.logaddexp(self.least, sums)
        k_log, decay_log = k_log.double(), decay_log.double()
        if self.least is not None:  # as a key before the others
            k_log = torch.cat((self.least - math.log(floor), k_log), -1)
            decay_log = functional.pad(decay_log, (1, 0))
        return math.log(floor) + running_log_sum(k_log.clamp_min(LOWEST), decay_log)[..., -k.shape[2] :]

    def _at_rows(self, by_key: torch.Tensor) -> torch.Tensor:
        """Of running sums (..., keys), the entry of the last key that each row may look at, (..., rows)."""
        last = torch.arange(self.walk.before, self.walk.before + self.walk.rows, device=by_key.device)
        return by_key[..., last.clamp_max(max(0, self.walk.keys - 1))]


def without_hidden(
    mechanism: Kernelised, parameters: Mapping[str, torch.Tensor], visible: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The parameters, with zeros where a parameter has an entry for a hidden key."""
    if visible is None:
        return dict(parameters)
    return {name: x.masked_fill(~visible, 0) if name in mechanism.by_key else x for name, x in parameters.items()}


def _logarithms(features: Features) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """k_log and decay_log: both None, or both tensors."""
    k_log, decay_log = features.k_log, features.decay_log
    if decay_log is None:
        return k_log, None if k_log is None else torch.zeros_like(k_log)
    # a stronger decay would make no difference: the earlier keys are below the smallest normal number already
    decay_log = decay_log.clamp_min(math.log(torch.finfo(features.k.dtype).tiny))
    return torch.zeros_like(decay_log) if k_log is None else k_log, decay_log
