"""Features of one call with hidden keys taken out of the sums, and the logarithm of a running sum of exponentials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import torch

from regard.backends.flash import weigh
from regard.backends.linear.walk import Tensors, Walk
from regard.backends.second_order import Piece, gradients
from regard.mechanisms.base import joined
from regard.mechanisms.features import Features, Kernelised
from regard.patterns import Grid, KeySpan, Pattern

PAIRS = 1 << 20  # of a place and one before it, at once where second derivatives are computed


def running_log_sum(x: torch.Tensor) -> torch.Tensor:
    """log Σ exp(x_j) over j <= i, along the last axis.

    PyTorch's own operation takes the logarithm of the gradient that arrives, whose derivative is infinite at 0.
    """
    return _RunningLogSum.apply(x)


class _RunningLogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.logcumsumexp(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients(partial(_first, x), partial(_pieces, x), (x,), grads)[0]


def _first(x: torch.Tensor, grads: Any) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(leaf.logcumsumexp(-1), leaf, grads[0])


def _pieces(x: torch.Tensor) -> Iterator[Piece]:
    length = x.shape[-1]
    step = max(1, PAIRS // max(1, x.numel()))
    for at in range(0, length, step):
        rows, before = slice(at, min(at + step, length)), slice(0, min(at + step, length))

        def compute(x: torch.Tensor, first: int = at, count: int = rows.stop - at) -> tuple[torch.Tensor]:
            each = x[..., None, :].expand(*x.shape[:-1], count, -1)
            later = torch.ones_like(each, dtype=torch.bool).triu_(first + 1)
            return (weigh(each, later)[1],)

        yield Piece(compute, ((..., before),), ((..., rows),))


NOBODY = -1e300  # in place of -inf, for which a running sum has no gradient


@dataclass(frozen=True)
class Sight:
    """Which keys the rows of a call see: row r all live ones up to key `before + r`, and those of an earlier call.

    live: (batch or 1, 1, keys), booleans; None where all are.
    met: (batch or 1, 1, 1), True where an earlier call had a live key; None where there was no call.
    least: (batch, kv_heads, 1), the logarithm of the least denominator after it, for mechanisms that have one.
    """

    walk: Walk
    live: torch.Tensor | None
    met: torch.Tensor | None = None
    least: torch.Tensor | None = None

    def empty_rows(self) -> torch.Tensor | None:
        """Rows that see no key, (batch or 1, 1, rows); None where each sees one."""
        if self.live is None:
            return None
        alone = self._at_rows(self.live.cumsum(-1)) == 0
        return alone if self.met is None else alone & ~self.met

    def tensors(self, found: Features, v: torch.Tensor) -> Tensors:
        """The features and values (batch, kv_heads, keys, v_dim) as a walk reads them."""
        q = found.q.unflatten(1, (found.k.shape[1], -1))  # (batch, kv_heads, group, rows, features)
        tensors = self._without_hidden(Tensors(q, found.k, v, *_logarithms(found)))
        return tensors if found.floor is None else replace(tensors, least=self._least(found.floor, tensors))

    def _without_hidden(self, tensors: Tensors) -> Tensors:
        if self.live is None:
            return tensors
        hidden = ~self.live
        k = tensors.k.masked_fill(hidden[..., None], 0)
        if tensors.k_log is None or tensors.decay_log is None:
            return replace(tensors, k=k)
        k_log, decay_log = tensors.k_log.masked_fill(hidden, -math.inf), tensors.decay_log.masked_fill(hidden, 0)
        return replace(tensors, k=k, k_log=k_log, decay_log=decay_log)

    def least_after(self, floor: float, tensors: Tensors) -> torch.Tensor:
        """`least` for a call that follows on this one."""
        return self._running(floor, tensors)[..., -1:]

    def _least(self, floor: float, tensors: Tensors) -> torch.Tensor:
        """What `_running` is at the last key that each row sees, (batch, kv_heads, rows)."""
        return self._at_rows(self._running(floor, tensors))

    def _running(self, floor: float, tensors: Tensors) -> torch.Tensor:
        """log(floor · Σ exp(k_log_j + Σ decay_log_t)), (batch, kv_heads, keys), in float64."""
        if not self.walk.keys and self.least is not None:
            return self.least
        k, k_log, decay_log = tensors.k, tensors.k_log, tensors.decay_log
        if k_log is None or decay_log is None:
            live = k.new_ones(1, 1, k.shape[2]) if self.live is None else self.live
            decayed, sums = 0, live.cumsum(-1, dtype=torch.float64).log().expand(*k.shape[:2], -1)
        else:
            decayed = decay_log.cumsum(-1, dtype=torch.float64)
            sums = running_log_sum((k_log - decayed).clamp_min(NOBODY))
        sums = sums + math.log(floor)
        return decayed + (sums if self.least is None else torch.logaddexp(self.least, sums))

    def _at_rows(self, by_key: torch.Tensor) -> torch.Tensor:
        """The running sums (..., keys) as far as each row sees, (..., rows)."""
        last = torch.arange(self.walk.before, self.walk.before + self.walk.rows, device=by_key.device)
        return by_key[..., last.clamp_max(max(0, self.walk.keys - 1))]


def live_keys(pattern: Pattern, grid: Grid) -> torch.Tensor | None:
    """Keys of the grid that are not padding, (batch or 1, 1, keys); None where all are live."""
    spans = (part.visible_keys(grid) for part in joined(pattern) if isinstance(part, KeySpan))
    told = [span for span in spans if span is not None]
    return reduce(torch.logical_and, told) if told else None


def shown(
    mechanism: Kernelised, parameters: Mapping[str, torch.Tensor], live: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Parameters with zeros in place of what was handed for a hidden key."""
    if live is None:
        return dict(parameters)
    return {name: x.masked_fill(~live, 0) if name in mechanism.by_key else x for name, x in parameters.items()}


def _logarithms(found: Features) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """k_log and decay_log, both if there is one."""
    k_log, decay_log = found.k_log, found.decay_log
    if decay_log is None:
        return k_log, None if k_log is None else torch.zeros_like(k_log)
    # a key that fades everything before it below the smallest number there is, has faded it
    decay_log = decay_log.clamp_min(math.log(torch.finfo(found.k.dtype).tiny))
    return torch.zeros_like(decay_log) if k_log is None else k_log, decay_log
