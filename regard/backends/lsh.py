"""LSH attention in memory linear in the length: keys are sorted by bucket, and tiles of queries look at nearby keys.

Rounds are merged by their log-sum-exp; a pair is computed in the first round that allows it. The backward pass sorts
and computes again.

In the rounds, the first part of the file, q and k are (units, keys, head_dim) and v is (units, keys, v_dim); a unit is
a head of a batch row. In sorted order the window of a tile ends with the tile, so windows overlap and need no copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends import flash
from regard.backends.documents import is_causal
from regard.backends.limits import Limited, no_weights, on_mechanism, where
from regard.backends.merging import merge
from regard.backends.second_order import Piece, gradients
from regard.core import costs
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import LSH
from regard.mechanisms.lsh import rows_at
from regard.patterns.visible import visible_keys

MOST_PAIRS = 1 << 19  # computed at once; a larger tile is computed alone


@dataclass(frozen=True)
class Tiling:
    """Sizes of tiles: `tile` queries look at the `back` sorted keys before them and at their own tile."""

    keys: int
    tile: int
    back: int
    causal: bool
    scale: float

    @classmethod
    def of(cls, keys: int, chunk: int, causal: bool, scale: float) -> Tiling:
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
        return max(1, MOST_PAIRS // self.pairs)

    def groups(self, count: int) -> int:
        return -(-count // self.together)

    def units(self, count: int) -> Iterator[slice]:
        return (slice(first, first + self.together) for first in range(0, count, self.together))

    def runs(self) -> Iterator[slice]:
        step = max(1, MOST_PAIRS // (self.tile * self.window))
        return (slice(first, min(self.tiles, first + step)) for first in range(0, self.tiles, step))


class Round:
    """One round of some units."""

    def __init__(
        self, tiling: Tiling, order: torch.Tensor, codes: torch.Tensor, number: int
    ) -> None:
        self.tiling = tiling
        units, _, keys = order.shape
        # index of each unit's first row, all units flattened
        of_unit = torch.arange(units, device=order.device)[:, None] * keys
        self.order = order[:, number]  # (units, keys)
        places = torch.arange(keys, device=order.device).expand_as(self.order)
        inverse = torch.empty_like(places).scatter_(1, self.order, places)
        self.inverse = (inverse + of_unit).flatten()
        # the padding may hold any row
        self.k_rows = (F.pad(self.order, (tiling.back, tiling.spare)) + of_unit).flatten()
        self.q_rows = (F.pad(self.order, (0, tiling.spare)) + of_unit).flatten()

        codes = codes[:, : number + 1].gather(-1, self.order[:, None].expand(-1, number + 1, -1))
        no_match = -4 - 2 * keys
        self.q_codes = self.tiled(F.pad(codes, (0, tiling.spare), value=no_match - 2), dim=2)
        padded = F.pad(codes, (tiling.back, tiling.spare), value=no_match)
        self.k_codes = padded.unfold(2, tiling.window, tiling.tile)
        columns = torch.arange(tiling.window, device=order.device)
        own_column = columns[tiling.back :, None]
        # (tile, window)
        self.others = columns < own_column if tiling.causal else columns != own_column

    def tiled(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        return x.unflatten(dim, (self.tiling.tiles, self.tiling.tile))

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """(units, keys, ·) in the order of this round: (units, tiles, tile, ·)."""
        return self.tiled(x.flatten(0, 1).index_select(0, self.q_rows).unflatten(0, (len(x), -1)))

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        """(units, keys, ·) in the order of this round: (units, tiles, window, ·), overlapping in place."""
        rows = x.flatten(0, 1).index_select(0, self.k_rows).unflatten(0, (len(x), -1))
        return rows.unfold(1, self.tiling.window, self.tiling.tile).mT

    def unsorted(self, x: torch.Tensor) -> torch.Tensor:
        """From sorted order with padding, (units, padded keys, ·), to the order of positions, (units, keys, ·)."""
        x = x[:, : self.tiling.keys]
        return x.flatten(0, 1).index_select(0, self.inverse).view(x.shape)

    def call(self, run: slice, dtype: torch.dtype) -> flash.FusedCall:
        """The call of some tiles: other keys of the bucket in nearby chunks, unless an earlier round had them."""
        codes = zip(self.q_codes.unbind(1), self.k_codes.unbind(1), strict=True)
        *earlier_rounds, this_round = (meets(q[:, run], k[:, run]) for q, k in codes)
        allowed = this_round.logical_and_(self.others)
        for met_before in earlier_rounds:
            allowed.logical_and_(met_before.logical_not_())
        zero = allowed.new_full((), 0.0, dtype=dtype)
        masked = allowed.new_full((), -math.inf, dtype=dtype)
        mask = torch.where(allowed, zero, masked)  # (units, tiles, tile, window)
        return flash.FusedCall(mask, False, self.tiling.scale)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (units, keys, v_dim) and log-sum-exp (units, keys) of this round, by position."""
        q = self.queries(q)
        k = self.windows(k)
        v = self.windows(v)
        outputs = []
        logs = []
        for run in self.tiling.runs():
            call = self.call(run, q.dtype)
            output, log_sum_exp = flash.attend(q[:, run], k[:, run], v[:, run], call)
            outputs.append(output)
            logs.append(log_sum_exp)
        output = torch.cat(outputs, 1).flatten(1, 2)
        log_sum_exp = torch.cat(logs, 1).flatten(1, 2)
        return self.unsorted(output), self.unsorted(log_sum_exp[..., None])[..., 0]

    def send(
        self, grad: torch.Tensor, grad_log_sum_exp: torch.Tensor | None, *saved: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of q, k and v from this round, of q, k, v and the output and log-sum-exp of all rounds."""
        q, k, v, output, log_sum_exp = saved
        grad = self.queries(grad)
        q = self.queries(q)
        output = self.queries(output)
        log_sum_exp = self.queries(log_sum_exp[..., None])[..., 0]
        if grad_log_sum_exp is not None:
            grad_log_sum_exp = self.queries(grad_log_sum_exp[..., None])[..., 0]

        dq = torch.empty_like(q)
        padded_keys = self.tiling.back + self.tiling.tiles * self.tiling.tile
        dk = k.new_zeros(len(k), padded_keys, k.shape[-1])
        dv = v.new_zeros(len(v), padded_keys, v.shape[-1])
        k = self.windows(k)
        v = self.windows(v)
        for run in self.tiling.runs():
            part = flash.BackwardInputs(
                q[:, run],
                k[:, run],
                v[:, run],
                output[:, run],
                log_sum_exp[:, run],
                grad[:, run],
                None if grad_log_sum_exp is None else grad_log_sum_exp[:, run],
            )
            of_q, of_k, of_v = flash.backward(part, self.call(run, q.dtype))[:3]
            dq[:, run] = of_q
            self._fold(dk, of_k, run)
            self._fold(dv, of_v, run)
        dk = dk[:, self.tiling.back :]
        dv = dv[:, self.tiling.back :]
        return self.unsorted(dq.flatten(1, 2)), self.unsorted(dk), self.unsorted(dv)

    def _fold(self, total: torch.Tensor, windows: torch.Tensor, run: slice) -> None:
        """Add windows (units, tiles of the run, window, ·) to `total` (units, padded keys, ·), where they overlap."""
        tile = self.tiling.tile
        tiles = total.unflatten(1, (-1, tile))
        for shift in range(self.tiling.window // tile):
            part = windows[:, :, shift * tile : (shift + 1) * tile]
            tiles[:, run.start + shift : run.stop + shift] += part


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
        tiling: Tiling,
    ) -> Any:
        outputs = []
        logs = []
        for units in tiling.units(len(q)):
            output, log_sum_exp = _over_rounds(
                tiling, order[units], codes[units], q[units], k[units], v[units]
            )
            outputs.append(output)
            logs.append(log_sum_exp)
        output = torch.cat(outputs)
        log_sum_exp = torch.cat(logs)
        ctx.save_for_backward(q, k, v, output, log_sum_exp, order, codes)
        ctx.tiling = tiling
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *saved, order, codes = ctx.saved_tensors
        tiling = ctx.tiling

        def first(grads: Any) -> Any:
            grad, grad_log_sum_exp = grads
            if grad is None:
                grad = torch.zeros_like(saved[3])
            of_units = []
            for units in tiling.units(len(order)):
                of_log = None if grad_log_sum_exp is None else grad_log_sum_exp[units]
                saved_of_units = [x[units] for x in saved]
                sums = None
                for each in _rounds(tiling, order[units], codes[units]):
                    sent = each.send(grad[units], of_log, *saved_of_units)
                    sums = sent if sums is None else tuple(map(torch.Tensor.add_, sums, sent))
                of_units.append(sums)
            return tuple(torch.cat(parts) for parts in zip(*of_units, strict=True))

        def pieces() -> Iterator[Piece]:
            for units in tiling.units(len(order)):
                compute = partial(_over_rounds, tiling, order[units], codes[units])
                yield Piece(compute, (units,) * 3, (units,) * 2)

        return *gradients(first, pieces, saved[:3], grads), None, None, None


def _over_rounds(
    tiling: Tiling,
    order: torch.Tensor,
    codes: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of some units, differentiable."""
    return merge([each.attend(q, k, v) for each in _rounds(tiling, order, codes)])


def _rounds(tiling: Tiling, order: torch.Tensor, codes: torch.Tensor) -> Iterator[Round]:
    return (Round(tiling, order, codes, number) for number in range(order.shape[1]))


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
    bucket = mechanism.bucket(k)
    keys = k.shape[2]
    if visible is not None:
        bucket = bucket.masked_fill(~visible[:, None, None], mechanism.bucket_count)
    bucket, order = bucket.sort(stable=True)
    place = torch.arange(keys, device=k.device).expand_as(bucket)
    rank = place - torch.searchsorted(bucket, bucket) if causal else place
    # more than the number of chunks, so that codes of different buckets are never neighbours
    stride = -(-keys // mechanism.chunk) + 1
    codes = bucket * stride + rank // mechanism.chunk
    # codes of hidden keys differ by 2 or more from all others
    codes = codes.where(bucket < mechanism.bucket_count, -2 - 2 * place)
    codes = torch.empty_like(codes).scatter_(-1, order, codes)
    most = max((mechanism.bucket_count + 1) * stride, 2 * keys + 8)
    dtypes = (torch.int16, torch.int32, torch.int64)
    smallest = next(dtype for dtype in dtypes if most < torch.iinfo(dtype).max)
    return order, codes.to(smallest)


def meets(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Is the key in the query's own chunk of its bucket, or in the one before? (..., queries, keys) of their codes."""
    difference = query[..., None] - key[..., None, :]
    return difference.bitwise_and_(-2).logical_not()  # it is 0 or 1


class Hashed(Limited):
    """LSH attention, a few tiles of sorted keys at a time."""

    name = "lsh"
    limits = (
        on_mechanism(LSH, "LSH attention"),
        where(
            lambda problem: problem.empty or not problem.reachable_keys,
            "there is nothing to compute",
        ),
        no_weights,
        lambda problem: flash.refusal(
            torch.promote_types(problem.dtype, torch.float32), problem.device
        ),
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        mechanism = problem.mechanism
        assert isinstance(mechanism, LSH)
        return Offer(_cost(problem, mechanism), partial(_run, problem, mechanism))


def _run(problem: Problem, mechanism: LSH, operands: Operands) -> Result:
    grid = operands.grid
    wide = torch.promote_types(problem.dtype, torch.float32)
    visible = visible_keys(problem.pattern, grid)
    if visible is not None:
        visible = visible[:, 0]  # (batch or 1, keys)
    own = mechanism.own_keys(operands.q, operands.k, grid, visible)
    has_no_key = (own == len(grid.keys))[:, None, :, None]
    call = HashedCall(
        mechanism,
        is_causal(problem),
        problem.scale,
        q=operands.q.to(wide).masked_fill(has_no_key, 0),
        hashed=operands.k,
        k=mechanism.unit(operands.k.to(wide)),
        v=operands.v.to(wide),
        own=own,
        visible=visible,
        aligned=problem.q_start == grid.keys.start and problem.q_len == len(grid.keys),
    )
    few = _has_few_queries(problem, mechanism, len(grid.keys))
    output, log_sum_exp = call.few_queries() if few else call.all_keys()
    return Result(output.to(problem.dtype), problem.wanted_sums(log_sum_exp))


def _has_few_queries(problem: Problem, mechanism: LSH, keys: int) -> bool:
    return min(problem.q_len, keys) <= mechanism.chunk


def _cost(problem: Problem, mechanism: LSH) -> Cost:
    keys = len(problem.reachable_keys)
    units = problem.batch * problem.heads
    wide = torch.promote_types(problem.dtype, torch.float32).itemsize
    size = problem.head_dim + problem.v_dim
    rounds = mechanism.rounds
    learning = problem.needs_grad
    tiling = Tiling.of(keys, mechanism.chunk, is_causal(problem), problem.scale)
    if _has_few_queries(problem, mechanism, keys):
        pairs = held = units * problem.q_len * keys
        moved = units * keys * size
        groups = 1
        forward = costs.LSH_DENSE_PAIR
        backward = costs.LSH_DENSE_PAIR
    else:
        pairs = units * (rounds * tiling.pairs + mechanism.chunk**2)
        held = min(units * tiling.pairs, max(MOST_PAIRS, tiling.tile * tiling.window))
        groups = tiling.groups(units)
        moved = units * rounds * keys * size * 6
        forward = costs.LSH_PAIR
        backward = costs.LSH_PAIR_BACKWARD
    hashed = units * keys if keys > mechanism.chunk else 0
    by_pair = forward + 2 * size
    if learning:
        by_pair += backward + 5 * size
    hashing = hashed * rounds * sum(mechanism.factors) * (2 * problem.head_dim + 20)
    # keys at unit length, output, order and codes
    whole = units * keys * (2 * size * wide + 16 * rounds)
    sorting = units * keys * wide * (3 * rounds * problem.v_dim + 4 * size) // groups
    projected = 8 * hashed * (max(mechanism.factors) + problem.head_dim)
    times = 3 if learning else 1
    return Cost(
        flops=pairs * by_pair * wide / 4 + hashing,
        bytes=wide * moved * times,
        peak_bytes=whole + max(3 * wide * held + sorting, projected),
        pairs=pairs,
        calls=100 + 30 * rounds * groups * times,
    )


# Output (batch, heads, ·, v_dim) and log-sum-exp (batch, heads, ·).
Attended = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class HashedCall:
    """A call whose queries are its keys.

    q: (batch, heads, q_len, head_dim), zeros where a query's own key is hidden.
    hashed: (batch, heads, keys, head_dim), the keys as passed.
    k: the same, normalised to length 1.
    v: (batch, heads, keys, v_dim).
    own: index of each query's own key, (batch or 1, q_len); the number of keys if it has none.
    visible: which keys are visible, (batch or 1, keys); None for all.
    aligned: whether query i is key i, for all i.
    """

    mechanism: LSH
    causal: bool
    scale: float
    q: torch.Tensor
    hashed: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    own: torch.Tensor
    visible: torch.Tensor | None
    aligned: bool

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    def few_queries(self) -> Attended:
        """The result from every pair; for calls with at most as many queries, or keys, as a chunk."""
        _, fits = self._first_chunk()
        allowed = rows_at(fits[:, None, :, None], self.own)  # (batch or 1, 1, q_len, 1)
        if self.keys > self.mechanism.chunk:
            _, codes = sort_keys(self.mechanism, self.hashed, self.visible, self.causal)
            q_codes = rows_at(codes.mT, self.own).unbind(3)
            for of_queries, of_keys in zip(q_codes, codes.unbind(2), strict=True):
                allowed = allowed | meets(of_queries, of_keys)
        keys = torch.arange(self.keys, device=self.k.device)
        own = self.own[..., None]
        others = keys < own if self.causal else keys != own
        allowed = allowed & (others & (own < self.keys))[:, None]
        if self.visible is not None:
            allowed = allowed & self.visible[:, None, None]
        call = _masked_call(allowed, self.q, self.keys, self.scale)
        result = flash.attend(self.q, self.k, self.v, call)
        own_k = rows_at(self.k, self.own)
        own_v = rows_at(self.v, self.own)
        return self._or_itself(result, self.q, own_k, own_v)

    def all_keys(self) -> Attended:
        """The result with every key as a query, in tiles of sorted keys, of which the call's queries are selected."""
        q = self._at_keys()
        k = self.k
        v = self.v
        order, codes = sort_keys(self.mechanism, self.hashed, self.visible, self.causal)
        tiling = Tiling.of(self.keys, self.mechanism.chunk, self.causal, self.scale)
        by_unit = [x.flatten(0, 1) for x in (q, k, v, order, codes)]
        output, log_sum_exp = Rounds.apply(*by_unit, tiling)
        output = output.unflatten(0, q.shape[:2])
        log_sum_exp = log_sum_exp.unflatten(0, q.shape[:2])
        rank, fits = self._first_chunk()
        if self.causal or fits.any():
            near_output, near_log = self._within_first_chunk(q)
            rank = rank.where(fits, 0)
            fits = fits[:, None]
            output = rows_at(near_output, rank).where(fits[..., None], output)
            log_sum_exp = rows_at(near_log[..., None], rank)[..., 0].where(fits, log_sum_exp)
        if self.aligned:
            return self._or_itself((output, log_sum_exp), q, k, v)
        output = rows_at(output, self.own)
        log_sum_exp = rows_at(log_sum_exp[..., None], self.own)[..., 0]
        log_sum_exp = log_sum_exp.masked_fill((self.own == self.keys)[:, None], -math.inf)
        result = output, log_sum_exp
        return self._or_itself(result, self.q, rows_at(k, self.own), rows_at(v, self.own))

    def _at_keys(self) -> torch.Tensor:
        """Each query at the index of its own key, (batch, heads, keys, head_dim), zeros elsewhere."""
        if self.aligned:
            return self.q
        batch, heads, _, head_dim = self.q.shape
        places = self.own.expand(batch, -1)[:, None, :, None].expand(self.q.shape)
        # the last row is for queries without a key of their own
        rows = self.q.new_zeros(batch, heads, self.keys + 1, head_dim)
        return rows.scatter(2, places, self.q)[:, :, :-1]

    def _first_chunk(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The number of visible keys before each key, and whether it may look at one chunk only; (batch or 1, keys)."""
        chunk = self.mechanism.chunk
        if self.visible is None:
            rank = torch.arange(self.keys, device=self.k.device)[None]
            return rank, (rank < chunk) & (self.causal or self.keys <= chunk)
        rank = self.visible.cumsum(-1) - 1
        one_chunk = self.causal | (self.visible.sum(-1, keepdim=True) <= chunk)
        return rank, self.visible & (rank < chunk) & one_chunk

    def _within_first_chunk(self, q: torch.Tensor) -> Attended:
        """Attention among the first visible keys of each batch row, (batch, heads, chunk, ·)."""
        chunk = torch.arange(self.mechanism.chunk, device=q.device)
        size = len(chunk)
        # visible keys are one run
        first = chunk[:1] if self.visible is None else self.visible.int().argmax(-1, keepdim=True)
        columns = (first + chunk).clamp(max=self.keys).view(-1, size)
        allowed = chunk < chunk[:, None] if self.causal else chunk != chunk[:, None]
        allowed = allowed.view(1, 1, size, size)
        if self.visible is not None:
            visible = F.pad(self.visible, (0, 1)).expand(len(columns), -1)
            allowed = allowed & visible.gather(1, columns)[:, None, None]
        q = rows_at(q, columns)
        k = rows_at(self.k, columns)
        v = rows_at(self.v, columns)
        return flash.attend(q, k, v, _masked_call(allowed, q, size, self.scale))

    def _or_itself(
        self, result: Attended, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> Attended:
        """The result; a query with no other key attends to its own (batch, heads, q_len, ·), if that is visible."""
        output, log_sum_exp = result
        alone = (log_sum_exp == -math.inf) & (self.own < self.keys)[:, None]
        own_score = (q * k).sum(-1) * self.scale
        return v.where(alone[..., None], output), own_score.where(alone, log_sum_exp)


def _masked_call(
    allowed: torch.Tensor, q: torch.Tensor, keys: int, scale: float
) -> flash.FusedCall:
    """The fused call in which only these pairs are allowed."""
    mask = q.new_zeros(*allowed.shape[:2], q.shape[2], keys)
    return flash.FusedCall(mask.masked_fill_(~allowed, -math.inf), False, scale)
