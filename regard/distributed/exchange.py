"""Sends keys to the processes that need them, all at once or around a ring, and sends their gradients back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from regard.distributed.group import Group, Mail
from regard.distributed.needs import Needs
from regard.distributed.pieces import HeldKeys
from regard.patterns.ranges import Ranges, size


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
        """The rank of this process."""
        return self.group.rank

    @cached_property
    def own(self) -> HeldKeys:
        """This process's own keys."""
        chunks = self.needs.k.chunks[self.rank]
        return HeldKeys(self.rank, tuple((chunk,) if chunk else () for chunk in chunks), self.k, self.v)

    def arrivals(self) -> Iterator[tuple[int, HeldKeys | None]]:
        """Each process with the keys that this one needs of it, None for no key: its own first, then step by step."""
        return self._ring() if self.form == "ring" else self._gathered()

    def _gathered(self) -> Iterator[tuple[int, HeldKeys | None]]:
        count, others = self.needs.count, [(self.rank - step) % self.group.count for step in range(1, self.group.count)]
        sends = {to: self._packed(self.own, to) for to in others if count(to, self.rank)}
        comes = {source: self._space(keys) for source in others if (keys := count(self.rank, source))}
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
        count, sends = self.group.count, {}
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
        return bool(needs.count(target, source)) and needs.sender(target, source, "ring") == self.rank

    def _packed(self, held: HeldKeys, target: int) -> torch.Tensor:
        """The keys and values that a process needs of those held, as one row of numbers."""
        places = _places(held.positions, self.needs.between(target, held.source))
        every = (torch.cat([x[:, :, at.start : at.stop] for at in places], dim=2) for x in (held.k, held.v))
        return torch.cat([x.reshape(-1) for x in every])

    def _space(self, count: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Memory for the keys and values of `count` positions, or for their gradients."""
        batch, kv_heads, _, dim = self.k.shape
        return self.k.new_empty(batch * kv_heads * count * (dim + self.v.shape[3]), dtype=dtype)

    def _unpacked(self, source: int, numbers: torch.Tensor) -> HeldKeys:
        between = self.needs.between(self.rank, source)
        return HeldKeys(source, between, *self._split(numbers, between))

    def _split(self, numbers: torch.Tensor, positions: tuple[Ranges, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, or their gradients, from one row of numbers."""
        batch, kv_heads, _, dim = self.k.shape
        axes = batch, kv_heads, sum(map(size, positions))
        of_keys = math.prod(axes) * dim
        return numbers[:of_keys].view(*axes, dim), numbers[of_keys:].view(*axes, self.v.shape[3])

    def send_home(self, source: int, grads: tuple[torch.Tensor, torch.Tensor] | None, dtype: torch.dtype) -> None:
        """Begin to send the gradients of keys to the process that holds them, and to receive some of own keys.

        It is called once for each other process, in the order of `arrivals`, with None where no key came. What is
        received comes from the process that stands as far ahead as `source` is behind.
        """
        ahead = (2 * self.rank - source) % self.group.count
        sends = {} if grads is None else {source: torch.cat([x.reshape(-1) for x in grads])}
        keys = self.needs.count(ahead, self.rank)
        self.waiting.append((ahead, self.group.start(sends, {ahead: self._space(keys, dtype)} if keys else {})))

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
    places, at = [], 0
    for have, want in zip(held, needed, strict=True):
        remaining = iter(want)
        one = next(remaining, None)
        for run in have:
            while one is not None and one.stop <= run.stop:
                places.append(range(at + one.start - run.start, at + one.stop - run.start))
                one = next(remaining, None)
            at += len(run)
    return places
