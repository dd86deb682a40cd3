"""The rounds of LSH attention, one after the other: keys are sorted and cut into tiles, each with a window of keys.

In this file q and k are (units, keys, head_dim) and v is (units, keys, v_dim); a unit is a head of a batch row. In
sorted order the window of a tile ends with the tile, so windows are overlapping views and need no copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends import flash
from regard.backends.merging import merge
from regard.backends.second_order import Piece, gradients
from regard.mechanisms import LSH

BLOCK = 1 << 19  # pairs computed at once, at most; a larger tile is computed alone


@dataclass(frozen=True)
class Layout:
    """Sizes of tiles: `tile` queries look at the `back` sorted keys before them and at their own tile."""

    keys: int
    tile: int
    back: int
    causal: bool
    scale: float

    @classmethod
    def of(cls, keys: int, chunk: int, causal: bool, scale: float) -> Layout:
        """A tile is a chunk. Causal chunks begin anywhere, counted in buckets, and need almost 2 chunks back."""
        if not causal:
            return cls(keys, chunk, chunk, causal, scale)
        tile = -(-chunk // 2)
        return cls(keys, tile, -(-2 * chunk // tile) * tile, causal, scale)

    @property
    def tiles(self) -> int:
        return -(-self.keys // self.tile)

    @property
    def window(self) -> int:
        """Keys of a tile."""
        return self.back + self.tile

    @property
    def pairs(self) -> int:
        """Computed pairs of one unit and round."""
        return self.tiles * self.tile * self.window

    @property
    def spare(self) -> int:
        """Padding after the last key, which fills its tile."""
        return self.tiles * self.tile - self.keys

    @property
    def together(self) -> int:
        """Units that are computed together."""
        return max(1, BLOCK // self.pairs)

    def groups(self, count: int) -> int:
        """The number of groups in which this many units are computed."""
        return -(-count // self.together)

    def units(self, count: int) -> Iterator[slice]:
        return (slice(first, first + self.together) for first in range(0, count, self.together))

    def runs(self) -> Iterator[slice]:
        """Tiles that are computed together."""
        step = max(1, BLOCK // (self.tile * self.window))
        return (slice(first, min(self.tiles, first + step)) for first in range(0, self.tiles, step))


class Round:
    """One round of some units."""

    def __init__(self, layout: Layout, order: torch.Tensor, codes: torch.Tensor, number: int) -> None:
        self.layout = layout
        units, _, keys = order.shape
        # index of each unit's first row, all units flattened
        of_unit = torch.arange(units, device=order.device)[:, None] * keys
        self.order = order[:, number]  # (units, keys)
        places = torch.arange(keys, device=order.device).expand_as(self.order)
        self.inverse = (torch.empty_like(places).scatter_(1, self.order, places) + of_unit).flatten()
        # the padding may hold any row
        self.k_rows = (F.pad(self.order, (layout.back, layout.spare)) + of_unit).flatten()
        self.q_rows = (F.pad(self.order, (0, layout.spare)) + of_unit).flatten()

        codes = codes[:, : number + 1].gather(-1, self.order[:, None].expand(-1, number + 1, -1))
        no_match = -4 - 2 * keys
        self.q_codes = self.tiled(F.pad(codes, (0, layout.spare), value=no_match - 2), dim=2)
        self.k_codes = F.pad(codes, (layout.back, layout.spare), value=no_match).unfold(2, layout.window, layout.tile)
        at = torch.arange(layout.window, device=order.device)
        own = at[layout.back :, None]
        self.others = at < own if layout.causal else at != own  # (tile, window)

    def tiled(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        return x.unflatten(dim, (self.layout.tiles, self.layout.tile))

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """(units, keys, ·) in the order of this round: (units, tiles, tile, ·)."""
        return self.tiled(x.flatten(0, 1).index_select(0, self.q_rows).unflatten(0, (len(x), -1)))

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        """(units, keys, ·) in the order of this round: (units, tiles, window, ·), overlapping in place."""
        rows = x.flatten(0, 1).index_select(0, self.k_rows).unflatten(0, (len(x), -1))
        return rows.unfold(1, self.layout.window, self.layout.tile).mT

    def unsorted(self, x: torch.Tensor) -> torch.Tensor:
        """From sorted order with padding, (units, padded keys, ·), to the order of positions, (units, keys, ·)."""
        x = x[:, : self.layout.keys]
        return x.flatten(0, 1).index_select(0, self.inverse).view(x.shape)

    def call(self, run: slice, dtype: torch.dtype) -> flash.FusedCall:
        """The call of some tiles: other keys of the bucket in nearby chunks, unless an earlier round had them."""
        *earlier, now = (
            meets(q[:, run], k[:, run]) for q, k in zip(self.q_codes.unbind(1), self.k_codes.unbind(1), strict=True)
        )
        seen = now.logical_and_(self.others)
        for before in earlier:
            seen.logical_and_(before.logical_not_())
        zero, hidden = (seen.new_full((), x, dtype=dtype) for x in (0.0, -math.inf))
        return flash.FusedCall(
            torch.where(seen, zero, hidden), False, self.layout.scale
        )  # (units, tiles, tile, window)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (units, keys, v_dim) and log-sum-exp (units, keys) of this round, by position."""
        q, k, v = self.queries(q), self.windows(k), self.windows(v)
        runs = self.layout.runs()
        found = [flash.attend(q[:, run], k[:, run], v[:, run], self.call(run, q.dtype)) for run in runs]
        output, log_sum_exp = (torch.cat(parts, 1).flatten(1, 2) for parts in zip(*found, strict=True))
        return self.unsorted(output), self.unsorted(log_sum_exp[..., None])[..., 0]

    def send(
        self, grad: torch.Tensor, grad_log_sum_exp: torch.Tensor | None, *saved: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of q, k and v from this round, of q, k, v and the output and log-sum-exp of all rounds."""
        q, k, v, output, log_sum_exp = saved
        rows = [self.queries(x) for x in (grad, q, output)]
        sums = self.queries(log_sum_exp[..., None])[..., 0]
        pull = None if grad_log_sum_exp is None else self.queries(grad_log_sum_exp[..., None])[..., 0]
        dq = torch.empty_like(rows[1])
        places = self.layout.back + self.layout.tiles * self.layout.tile
        dk, dv = (x.new_zeros(len(x), places, x.shape[-1]) for x in (k, v))
        k, v = self.windows(k), self.windows(v)
        for run in self.layout.runs():
            g, one, out = (x[:, run] for x in rows)
            extra = None if pull is None else pull[:, run]
            here = flash.Saved(one, k[:, run], v[:, run], out, sums[:, run], g, extra)
            sent = flash.backward(here, self.call(run, q.dtype))
            dq[:, run] = sent[0]
            self._fold(dk, sent[1], run)
            self._fold(dv, sent[2], run)
        dk, dv = dk[:, self.layout.back :], dv[:, self.layout.back :]
        return self.unsorted(dq.flatten(1, 2)), self.unsorted(dk), self.unsorted(dv)

    def _fold(self, total: torch.Tensor, windows: torch.Tensor, run: slice) -> None:
        """Add windows (units, tiles of the run, window, ·) to `total` (units, padded keys, ·), where they overlap."""
        tile = self.layout.tile
        tiles = total.unflatten(1, (-1, tile))
        for shift in range(self.layout.window // tile):
            tiles[:, run.start + shift : run.stop + shift] += windows[:, :, shift * tile : (shift + 1) * tile]


class Rounds(torch.autograd.Function):
    """Output (units, keys, v_dim) and log-sum-exp (units, keys) over all rounds, with each pair computed once."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        order: torch.Tensor,
        codes: torch.Tensor,
        layout: Layout,
    ) -> Any:
        found = [_over_rounds(layout, order[i], codes[i], q[i], k[i], v[i]) for i in layout.units(len(q))]
        output, log_sum_exp = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.save_for_backward(q, k, v, output, log_sum_exp, order, codes)
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *saved, order, codes = ctx.saved_tensors
        layout = ctx.layout

        def first(grads: Any) -> Any:
            grad = torch.zeros_like(saved[3]) if grads[0] is None else grads[0]
            sent = []
            for units in layout.units(len(order)):
                pull = None if grads[1] is None else grads[1][units]
                rounds = _rounds(layout, order[units], codes[units])
                each = (one.send(grad[units], pull, *(x[units] for x in saved)) for one in rounds)
                sent.append(reduce(lambda sums, more: tuple(x.add_(y) for x, y in zip(sums, more, strict=True)), each))
            return tuple(torch.cat(parts) for parts in zip(*sent, strict=True))

        def pieces() -> Iterator[Piece]:
            for units in layout.units(len(order)):
                compute = partial(_over_rounds, layout, order[units], codes[units])
                yield Piece(compute, (units,) * 3, (units,) * 2)

        return *gradients(first, pieces, saved[:3], grads), None, None, None


def _over_rounds(
    layout: Layout, order: torch.Tensor, codes: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of some units, differentiable."""
    return merge([one.attend(q, k, v) for one in _rounds(layout, order, codes)])


def _rounds(layout: Layout, order: torch.Tensor, codes: torch.Tensor) -> Iterator[Round]:
    return (Round(layout, order, codes, number) for number in range(order.shape[1]))


def sort_keys(
    mechanism: LSH, k: torch.Tensor, visible: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort keys by (bucket, position), hidden ones last, and give each a code from which `meets` reads its chunk.

    Args:
        mechanism: the LSH mechanism of the call.
        k: (batch, heads, keys, head_dim).
        visible: which keys are visible, (batch or 1, keys); None for all.
        causal: whether chunks are counted inside each bucket.

    Returns:
        order: the keys in each round's order, (batch, heads, rounds, keys).
        codes: by position, (batch, heads, rounds, keys).
    """
    bucket, keys = mechanism.bucket(k), k.shape[2]
    if visible is not None:
        bucket = bucket.masked_fill(~visible[:, None, None], mechanism.bucket_count)
    bucket, order = bucket.sort(stable=True)
    place = torch.arange(keys, device=k.device).expand_as(bucket)
    rank = place - torch.searchsorted(bucket, bucket) if causal else place
    # more than the number of chunks, so that codes of different buckets are never neighbours
    stride = -(-keys // mechanism.chunk) + 1
    codes = bucket * stride + rank // mechanism.chunk
    codes = codes.where(
        bucket < mechanism.bucket_count, -2 - 2 * place
    )  # codes of hidden keys differ by 2 or more from all others
    codes = torch.empty_like(codes).scatter_(-1, order, codes)
    most = max((mechanism.bucket_count + 1) * stride, 2 * keys + 8)
    small = next(dtype for dtype in (torch.int16, torch.int32, torch.int64) if most < torch.iinfo(dtype).max)
    return order, codes.to(small)


def meets(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Is the key in the query's own chunk of its bucket, or in the one before? (..., queries, keys) of their codes."""
    return (query[..., None] - key[..., None, :]).bitwise_and_(-2).logical_not()  # the difference is 0 or 1
