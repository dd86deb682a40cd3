"""Attention of some queries over some keys of a longer sequence, by their positions, and the merge of such pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from regard.backends.merging import Merging
from regard.bias import Bias
from regard.core.tensors import Stored
from regard.distributed.needs import Needs
from regard.patterns import Pattern
from regard.patterns.ranges import Ranges, hull, size
from regard.patterns.row_blocks import shifted

MOST_ROWS = 1 << 13  # queries of one piece: what a backend needs besides its tensors grows with them


@dataclass(frozen=True)
class DistantKeys(Stored):
    """Keys or values from position `first` on, of a sequence of `length` positions."""

    length: int = 0

    @property
    def shape(self) -> torch.Size:
        """(batch, kv_heads, length, dim), the positions that are elsewhere included."""
        batch, kv_heads, _, dim = self.numbers.shape
        return torch.Size((batch, kv_heads, self.length, dim))

    def cut(self, keys: range) -> Stored:
        """The vectors at the positions `keys`; zeros where they are elsewhere, since the pattern of a piece hides them.

        More keys than are held are asked for only where batch rows start at different positions.
        """
        before, after = self.first - keys.start, keys.stop - self.first - self.numbers.shape[2]
        if not keys or max(before, after) <= 0:
            return super().cut(keys)
        numbers = self.numbers[:, :, max(0, -before) : self.numbers.shape[2] - max(0, -after)]
        return Stored(torch.nn.functional.pad(numbers, (0, 0, max(0, before), max(0, after))))


class HeldKeys(NamedTuple):
    """Keys and values of one process that this one has, (batch, kv_heads, held, dim), and their positions by chunk."""

    source: int
    positions: tuple[Ranges, ...]
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class Options:
    """The options of a call, alike on every process; `shared` names the tensors among them that may learn."""

    pattern: Pattern
    bias: torch.Tensor | Bias | None
    sink: float | torch.Tensor | None
    parameters: Mapping[str, torch.Tensor] | None
    dropout_seed: int | None
    others: Mapping[str, Any]

    def shared(self) -> list[torch.Tensor]:
        """Tensors besides q, k and v that need a gradient: of the bias, the sink and the mechanism."""
        bias = self.bias
        tensors: list[Any] = [*bias.parameters()] if isinstance(bias, torch.nn.Module) else [bias]
        tensors += [self.sink, *(self.parameters or {}).values()]
        return [one for one in tensors if isinstance(one, torch.Tensor) and one.requires_grad]

    def mapped(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Options:
        """The same options with another tensor for each tensor of the bias, the sink and the mechanism."""
        bias, sink = (function(x) if isinstance(x, torch.Tensor) else x for x in (self.bias, self.sink))
        parameters = {name: function(x) for name, x in (self.parameters or {}).items()}
        return replace(self, bias=bias, sink=sink, parameters=parameters or self.parameters)

    def without_dropout(self) -> Options:
        """The same options, by which no weight is dropped."""
        return replace(self, dropout_seed=None, others={**self.others, "dropout": 0.0})


class Part(NamedTuple):
    """One piece of the work: queries `rows` of a chunk at `at` among this process's, and keys `cut` of those held."""

    chunk: int
    rows: range
    keys: range
    runs: tuple[tuple[range, range], ...]  # positions within `keys`, counted from its start; places among those held


def parts_of(needs: Needs, rank: int, held: HeldKeys | None) -> Iterator[Part]:
    """The pieces of a process's queries over keys that it has; none without keys."""
    at = 0
    for ranges in () if held is None else held.positions:
        if not ranges:
            continue
        keys, runs, place = hull(ranges), [], at
        for run in ranges:
            runs.append((shifted(run, -keys.start), range(place, place + len(run))))
            place += len(run)
        at += size(ranges)
        for chunk, rows in enumerate(needs.q.chunks[rank]):
            seeing = needs.rows_that_see(rows, keys)
            for first in range(seeing.start, seeing.stop, MOST_ROWS):
                some = range(first, min(first + MOST_ROWS, seeing.stop))
                yield from _cut(Part(chunk, some, keys, tuple(runs)), needs.keys_near(some, keys))


def _cut(part: Part, keys: range) -> Iterator[Part]:
    """The part with those of its keys that lie in a range; nothing if none does."""
    runs = []
    for here, there in part.runs:
        at = shifted(here, part.keys.start)
        low, high = max(at.start, keys.start), min(at.stop, keys.stop)
        if low < high:
            runs.append((range(low, high), shifted(range(low, high), there.start - at.start)))
    if runs:
        near = range(runs[0][0].start, runs[-1][0].stop)
        yield Part(part.chunk, part.rows, near, tuple((shifted(at, -near.start), there) for at, there in runs))


def keys_of(part: Part, x: torch.Tensor) -> torch.Tensor:
    """The keys of a part, cut from those held; zeros where a position is not held, since no query looks there."""
    if len(part.runs) == 1:
        there = part.runs[0][1]
        return x[:, :, there.start : there.stop]
    every = x.new_zeros(*x.shape[:2], len(part.keys), x.shape[3])
    for here, there in part.runs:
        every[:, :, here.start : here.stop] = x[:, :, there.start : there.stop]
    return every


def add_back(part: Part, total: torch.Tensor, grad: torch.Tensor) -> None:
    """Add the gradient of a part's keys to that of the keys held, in place."""
    for here, there in part.runs:
        total[:, :, there.start : there.stop] += grad[:, :, here.start : here.stop]


class MergedRows:
    """Attention of this process's queries, merged as its pieces come, of which each covers some rows and keys.

        log_sum_exp = log Σ exp(lse_p),   output = Σ exp(lse_p - log_sum_exp) · output_p

    output: (batch, heads, q_len, v_dim), float32 at least; log_sum_exp: (batch, heads, q_len).
    """

    def __init__(self, like: torch.Tensor, v_dim: int) -> None:
        self._like, self._sizes = like, (*like.shape[:3], v_dim)
        self._dtype = torch.promote_types(like.dtype, torch.float32)
        self._merging: Merging | None = None

    def add(self, here: slice, output: torch.Tensor, log_sum_exp: torch.Tensor, keep: bool) -> None:
        """Merge a piece of the queries at `here`; with `keep`, its tensors are still needed and are not changed."""
        first = self._merging is None and here == slice(0, self._sizes[2])
        output, log_sum_exp = (x.to(self._dtype, copy=keep and first) for x in (output, log_sum_exp))
        if first:
            self._merging = Merging(output, log_sum_exp)
            return
        self._merging = self._merging or self._of_none()
        self._merging.add((slice(None), slice(None), here), output, log_sum_exp)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp of all pieces; zeros and -inf without any."""
        return (self._merging or self._of_none()).merged()

    def _of_none(self) -> Merging:
        options: dict[str, Any] = {"dtype": self._dtype, "device": self._like.device}
        return Merging(torch.zeros(self._sizes, **options), torch.full(self._sizes[:3], -math.inf, **options))


def share(log_sum_exp: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """exp(lse_p - log_sum_exp): the share of a piece in each row; 0 where the row is empty so far."""
    return (log_sum_exp - total.masked_fill(total == -math.inf, 0)).exp()
