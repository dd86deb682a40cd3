"""The backend of LSH attention: which problems it refuses, what the others cost, and how a call is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from regard.backends import flash
from regard.backends.limits import no_weights, refused, where
from regard.backends.lsh.rounds import BLOCK, Layout, Rounds, meets, sort_keys
from regard.core.backend import Cost, Offer, Operands, Refusal, reachable_keys
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import LSH
from regard.mechanisms.lsh import rows_at
from regard.patterns import Causal
from regard.reprs import Described

# Times measured on CPU in float32, in floating-point operations that take as long:
PAIR, PAIR_BACKWARD = 800, 1500  # for each pair of a tile, beside its products: masks, sorting, small products
DENSE = 60  # for each pair of a few queries and all keys


class Hashed(Described):
    """LSH attention, a few tiles of sorted keys at a time."""

    name = "lsh"
    limits = (
        where(lambda one: not isinstance(one.mechanism, LSH), "it computes LSH attention, not {problem.mechanism}"),
        where(lambda one: one.empty or not reachable_keys(one), "there is nothing to compute"),
        no_weights,
        lambda problem: flash.refusal(torch.promote_types(problem.dtype, torch.float32), problem.device),
    )

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (refusal := refused(self.limits, problem)) is not None:
            return refusal
        mechanism = problem.mechanism
        assert isinstance(mechanism, LSH)
        return Offer(_cost(problem, mechanism), partial(_run, problem, mechanism))


def _run(problem: Problem, mechanism: LSH, operands: Operands) -> Result:
    grid, wide = operands.grid, torch.promote_types(problem.dtype, torch.float32)
    seen = problem.pattern.visible_keys(grid)
    visible = None if seen is None else seen[:, 0]  # (batch or 1, keys)
    own = mechanism.own_keys(operands.q, operands.k, grid, visible)
    q = operands.q.to(wide).masked_fill((own == len(grid.keys))[:, None, :, None], 0)
    k, v = mechanism.unit(operands.k.to(wide)), operands.v.to(wide)
    aligned = problem.q_start == grid.keys.start and problem.q_len == len(grid.keys)
    parts = Parts(mechanism, _causal(problem), problem.scale, q, operands.k, k, v, own, visible, aligned)
    output, log_sum_exp = parts.few_queries() if _few(problem, mechanism, len(grid.keys)) else parts.all_keys()
    return Result(output.to(problem.dtype), log_sum_exp if "log_sum_exp" in problem.want else None)


def _causal(problem: Problem) -> bool:
    return Causal() in problem.pattern.factors


def _few(problem: Problem, mechanism: LSH, keys: int) -> bool:
    return min(problem.q_len, keys) <= mechanism.chunk


def _cost(problem: Problem, mechanism: LSH) -> Cost:
    keys, units = len(reachable_keys(problem)), problem.batch * problem.heads
    wide = torch.promote_types(problem.dtype, torch.float32).itemsize
    size, rounds, learning = problem.head_dim + problem.v_dim, mechanism.rounds, problem.needs_grad
    layout = Layout.of(keys, mechanism.chunk, _causal(problem), problem.scale)
    if _few(problem, mechanism, keys):
        pairs = held = units * problem.q_len * keys
        moved, groups = units * keys * size, 1
        forward, backward = DENSE, DENSE
    else:
        pairs = units * (rounds * layout.pairs + mechanism.chunk**2)
        held, groups = min(units * layout.pairs, max(BLOCK, layout.tile * layout.window)), layout.groups(units)
        moved = units * rounds * keys * size * 6
        forward, backward = PAIR, PAIR_BACKWARD
    hashed = units * keys if keys > mechanism.chunk else 0
    by_pair = forward + 2 * size + (backward + 5 * size if learning else 0)
    whole = units * keys * (2 * size * wide + 16 * rounds)  # keys at unit length, output, order and codes
    sorting = units * keys * wide * (3 * rounds * problem.v_dim + 4 * size) // groups
    return Cost(
        flops=pairs * by_pair * wide / 4 + hashed * rounds * sum(mechanism.factors) * (2 * problem.head_dim + 20),
        bytes=wide * moved * (3 if learning else 1),
        peak_bytes=whole + max(3 * wide * held + sorting, 8 * hashed * (max(mechanism.factors) + problem.head_dim)),
        pairs=pairs,
        calls=100 + 30 * rounds * groups * (3 if learning else 1),
    )


Answer = tuple[torch.Tensor, torch.Tensor]  # output (batch, heads, ·, v_dim) and log-sum-exp (batch, heads, ·)


@dataclass(frozen=True)
class Parts:
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

    def few_queries(self) -> Answer:
        """The result from every pair; for calls with at most as many queries, or keys, as a chunk."""
        at, own = torch.arange(self.keys, device=self.k.device), self.own[..., None]
        _, fits = self._first_chunk()
        seen = rows_at(fits[:, None, :, None], self.own)  # (batch or 1, 1, q_len, 1)
        if self.keys > self.mechanism.chunk:
            _, codes = sort_keys(self.mechanism, self.hashed, self.visible, self.causal)
            for queries, keys in zip(rows_at(codes.mT, self.own).unbind(3), codes.unbind(2), strict=True):
                seen = seen | meets(queries, keys)
        seen = seen & ((at < own if self.causal else at != own) & (own < self.keys))[:, None]
        if self.visible is not None:
            seen = seen & self.visible[:, None, None]
        q, k, v, call = self.q, self.k, self.v, _only(seen, self.q, self.keys, self.scale)
        return self._or_itself(flash.attend(q, k, v, call), q, rows_at(k, self.own), rows_at(v, self.own))

    def all_keys(self) -> Answer:
        """The result with every key as a query, in tiles of sorted keys, of which the call's queries are selected."""
        q, k, v = self._at_keys(), self.k, self.v
        order, codes = sort_keys(self.mechanism, self.hashed, self.visible, self.causal)
        layout = Layout.of(self.keys, self.mechanism.chunk, self.causal, self.scale)
        found = Rounds.apply(*(x.flatten(0, 1) for x in (q, k, v, order, codes)), layout)
        output, log_sum_exp = (x.unflatten(0, q.shape[:2]) for x in found)
        rank, fits = self._first_chunk()
        if self.causal or fits.any():
            near = self._within_first_chunk(q)
            rank, fits = rank.where(fits, 0), fits[:, None]
            output = rows_at(near[0], rank).where(fits[..., None], output)
            log_sum_exp = rows_at(near[1][..., None], rank)[..., 0].where(fits, log_sum_exp)
        if self.aligned:
            return self._or_itself((output, log_sum_exp), q, k, v)
        rows = (rows_at(x, self.own) for x in (output, log_sum_exp[..., None], k, v))
        output, log_sum_exp, k, v = rows
        log_sum_exp = log_sum_exp[..., 0].masked_fill((self.own == self.keys)[:, None], -math.inf)
        return self._or_itself((output, log_sum_exp), self.q, k, v)

    def _at_keys(self) -> torch.Tensor:
        """Each query at the index of its own key, (batch, heads, keys, head_dim), zeros elsewhere."""
        if self.aligned:
            return self.q
        batch, heads, _, head_dim = self.q.shape
        places = self.own.expand(batch, -1)[:, None, :, None].expand(self.q.shape)
        return self.q.new_zeros(batch, heads, self.keys + 1, head_dim).scatter(2, places, self.q)[:, :, :-1]

    def _first_chunk(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The number of visible keys before each key, and whether it may look at one chunk only; (batch or 1, keys)."""
        chunk = self.mechanism.chunk
        if self.visible is None:
            rank = torch.arange(self.keys, device=self.k.device)[None]
            return rank, (rank < chunk) & (self.causal or self.keys <= chunk)
        rank = self.visible.cumsum(-1) - 1
        return rank, self.visible & (rank < chunk) & (self.causal | (self.visible.sum(-1, keepdim=True) <= chunk))

    def _within_first_chunk(self, q: torch.Tensor) -> Answer:
        """Attention among the first visible keys of each batch row, (batch, heads, chunk, ·)."""
        at = torch.arange(self.mechanism.chunk, device=q.device)
        # visible keys are one run
        first = at[:1] if self.visible is None else self.visible.int().argmax(-1, keepdim=True)
        columns = (first + at).clamp(max=self.keys).view(-1, len(at))
        seen = at < at[:, None] if self.causal else at != at[:, None]
        seen = seen.view(1, 1, len(at), len(at))
        if self.visible is not None:
            seen = seen & F.pad(self.visible, (0, 1)).expand(len(columns), -1).gather(1, columns)[:, None, None]
        q, k, v = (rows_at(x, columns) for x in (q, self.k, self.v))
        return flash.attend(q, k, v, _only(seen, q, len(at), self.scale))

    def _or_itself(self, answer: Answer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Answer:
        """The answer; a query with no other key attends to its own (batch, heads, q_len, ·), if that is visible."""
        output, log_sum_exp = answer
        alone = (log_sum_exp == -math.inf) & (self.own < self.keys)[:, None]
        return v.where(alone[..., None], output), ((q * k).sum(-1) * self.scale).where(alone, log_sum_exp)


def _only(seen: torch.Tensor, q: torch.Tensor, keys: int, scale: float) -> flash.FusedCall:
    """The fused call in which only these pairs are allowed."""
    mask = q.new_zeros(*seen.shape[:2], q.shape[2], keys)
    return flash.FusedCall(mask.masked_fill_(~seen, -math.inf), False, scale)
