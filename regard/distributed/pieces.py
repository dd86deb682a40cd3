"""The pieces of a call: keys that travel, the queries that look at them, and the merge of their outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from regard.bias import Bias
from regard.core.tensors import Stored
from regard.distributed.group import Group, Mail
from regard.distributed.needs import Needs
from regard.patterns import Pattern
from regard.patterns.ranges import Ranges, hull, shifted, size

MOST_ROWS = (
    1 << 13
)  # queries of one piece: what a backend needs besides its tensors grows with them


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
        before = self.first - keys.start
        after = keys.stop - self.first - self.numbers.shape[2]
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

    def without_dropout(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Options:
        """The same without dropout, and with another tensor for each one of the bias, the sink and the mechanism."""
        bias: Any = function(self.bias) if isinstance(self.bias, torch.Tensor) else self.bias
        sink = function(self.sink) if isinstance(self.sink, torch.Tensor) else self.sink
        parameters = {name: function(x) for name, x in (self.parameters or {}).items()}
        others = {**self.others, "dropout": 0.0}
        return Options(self.pattern, bias, sink, parameters or self.parameters, None, others)


class Part(NamedTuple):
    """One piece of the work: queries `rows` of a chunk at `at` among this process's, and keys `cut` of those held."""

    chunk: int
    rows: range
    keys: range
    runs: tuple[
        tuple[range, range], ...
    ]  # positions within `keys`, counted from its start; places among those held


def parts_of(needs: Needs, rank: int, held: HeldKeys | None) -> Iterator[Part]:
    """The pieces of a process's queries over keys that it has; none without keys."""
    at = 0
    for ranges in () if held is None else held.positions:
        if not ranges:
            continue
        keys = hull(ranges)
        runs = []
        place = at
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
        low = max(at.start, keys.start)
        high = min(at.stop, keys.stop)
        if low < high:
            runs.append((range(low, high), shifted(range(low, high), there.start - at.start)))
    if runs:
        near = range(runs[0][0].start, runs[-1][0].stop)
        yield Part(
            part.chunk,
            part.rows,
            near,
            tuple((shifted(at, -near.start), there) for at, there in runs),
        )


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


def share(log_sum_exp: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """exp(lse_p - log_sum_exp): the share of a piece in each row; 0 where the row is empty so far."""
    return (log_sum_exp - total.masked_fill(total == -math.inf, 0)).exp()


@dataclass
class Exchange:
    """The exchange of keys and values of one call, seen by one process.

    In a gather, keys come from all processes at once, while a process computes its own pairs. In a ring, step t brings
    the keys of the process t places before, from the process just before where that one has them, while those of step
    t - 1 are used; so a process holds the keys of two others at most.
    """

    group: Group
    needs: Needs
    form: str
    k: torch.Tensor
    v: torch.Tensor
    waiting: list[tuple[int, Mail]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.group.rank

    @cached_property
    def own(self) -> HeldKeys:
        chunks = self.needs.k.chunks[self.rank]
        return HeldKeys(
            self.rank, tuple((chunk,) if chunk else () for chunk in chunks), self.k, self.v
        )

    def arrivals(self) -> Iterator[tuple[int, HeldKeys | None]]:
        """Each process with the keys that this one needs of it, None for no key: its own first, then step by step."""
        return self._ring() if self.form == "ring" else self._gathered()

    def _gathered(self) -> Iterator[tuple[int, HeldKeys | None]]:
        count, others = (
            self.needs.count,
            [(self.rank - step) % self.group.count for step in range(1, self.group.count)],
        )
        sends = {to: self._packed(self.own, to) for to in others if count(to, self.rank)}
        comes = {
            source: self._space(keys) for source in others if (keys := count(self.rank, source))
        }
        mail = self.group.start(sends, comes)
        yield self.rank, self.own
        arrived = mail.wait()
        for source in others:
            yield source, self._unpacked(source, arrived[source]) if source in arrived else None

    def _ring(self) -> Iterator[tuple[int, HeldKeys | None]]:
        if self.group.count == 1:
            yield self.rank, self.own
            return
        mail = self._step(1, None)
        yield self.rank, self.own
        for step in range(1, self.group.count):
            source = (self.rank - step) % self.group.count
            arrived = mail.wait()
            held = self._unpacked(source, arrived.popitem()[1]) if arrived else None
            if step + 1 < self.group.count:
                mail = self._step(step + 1, held)
            yield source, held

    def _step(self, step: int, held: HeldKeys | None) -> Mail:
        """Begin step `step` of the ring: send own keys to who stands that far ahead, and pass on what is held."""
        count = self.group.count
        sends = {}
        after, ahead, source = ((self.rank + far) % count for far in (1, step, -step))
        if self._sends(self.rank, ahead):
            sends[ahead] = self._packed(self.own, ahead)
        if held is not None and self._sends(held.source, after):
            sends[after] = self._packed(held, after)
        comes = {}
        if keys := self.needs.count(self.rank, source):
            comes[self.needs.sender(self.rank, source, "ring")] = self._space(keys)
        return self.group.start(sends, comes)

    def _sends(self, source: int, target: int) -> bool:
        """Whether in a ring this process sends the keys of `source`, if any are needed, to `target`."""
        needs = self.needs
        return (
            bool(needs.count(target, source)) and needs.sender(target, source, "ring") == self.rank
        )

    def _packed(self, held: HeldKeys, target: int) -> torch.Tensor:
        """The keys and values that a process needs of those held, as one row of numbers."""
        places = _places(held.positions, self.needs.between(target, held.source))
        every = (
            torch.cat([x[:, :, at.start : at.stop] for at in places], dim=2)
            for x in (held.k, held.v)
        )
        return torch.cat([x.reshape(-1) for x in every])

    def _space(self, count: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Memory for the keys and values of `count` positions, or for their gradients."""
        batch, kv_heads, _, dim = self.k.shape
        return self.k.new_empty(batch * kv_heads * count * (dim + self.v.shape[3]), dtype=dtype)

    def _unpacked(self, source: int, numbers: torch.Tensor) -> HeldKeys:
        between = self.needs.between(self.rank, source)
        return HeldKeys(source, between, *self._split(numbers, between))

    def _split(
        self, numbers: torch.Tensor, positions: tuple[Ranges, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, or their gradients, from one row of numbers."""
        batch, kv_heads, _, dim = self.k.shape
        axes = batch, kv_heads, sum(map(size, positions))
        of_keys = math.prod(axes) * dim
        return numbers[:of_keys].view(*axes, dim), numbers[of_keys:].view(*axes, self.v.shape[3])

    def send_home(
        self, source: int, grads: tuple[torch.Tensor, torch.Tensor] | None, dtype: torch.dtype
    ) -> None:
        """Begin to send the gradients of keys to the process that holds them, and to receive some of own keys.

        It is called once for each other process, in the order of `arrivals`, with None where no key came. What is
        received comes from the process that stands as far ahead as `source` is behind.
        """
        ahead = (2 * self.rank - source) % self.group.count
        sends = {} if grads is None else {source: torch.cat([x.reshape(-1) for x in grads])}
        keys = self.needs.count(ahead, self.rank)
        self.waiting.append(
            (ahead, self.group.start(sends, {ahead: self._space(keys, dtype)} if keys else {}))
        )

    def collect(self, totals: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Add the gradients of own keys that other processes computed, in the order of the steps."""
        for ahead, mail in self.waiting:
            for numbers in mail.wait().values():
                needed = self.needs.between(ahead, self.rank)
                places = _places(self.own.positions, needed)
                for total, grad in zip(totals, self._split(numbers, needed), strict=True):
                    at = 0
                    for place in places:
                        total[:, :, place.start : place.stop] += grad[:, :, at : at + len(place)]
                        at += len(place)
        self.waiting.clear()


def _places(held: tuple[Ranges, ...], needed: tuple[Ranges, ...]) -> list[range]:
    """Where the needed positions stand among those held; both are sorted within each chunk."""
    places = []
    at = 0
    for have, want in zip(held, needed, strict=True):
        remaining = iter(want)
        one = next(remaining, None)
        for run in have:
            while one is not None and one.stop <= run.stop:
                places.append(range(at + one.start - run.start, at + one.stop - run.start))
                one = next(remaining, None)
            at += len(run)
    return places
