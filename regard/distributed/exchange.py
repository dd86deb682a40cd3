"""The exchange of keys and values between processes, and of their gradients on the way back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

from regard.distributed.group import Group, MessagesUnderWay
from regard.distributed.needs import Needs
from regard.distributed.pieces import HeldKeys
from regard.patterns.ranges import Ranges, shifted, size


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

    # Gradients of own keys that are on their way, with the process that computed them; `collect` empties the list.
    gradients_under_way: list[tuple[int, MessagesUnderWay]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.group.rank

    @cached_property
    def own(self) -> HeldKeys:
        """The keys and values of this process."""
        return HeldKeys(self.rank, self.needs.held(self.rank), self.k, self.v)

    def arrivals(self) -> Iterator[tuple[int, HeldKeys | None]]:
        """Each process with the keys that this one needs of it, None for no key: its own first, then step by step."""
        if self.form == "ring":
            return self._arrivals_in_ring()
        return self._arrivals_at_once()

    def _arrivals_at_once(self) -> Iterator[tuple[int, HeldKeys | None]]:
        processes = self.group.count
        others = [(self.rank - step) % processes for step in range(1, processes)]

        sends = {}
        receives = {}
        for process in others:
            if self.needs.count(process, self.rank):
                sends[process] = self._pack(self.own, process)
            needed = self.needs.count(self.rank, process)
            if needed:
                receives[process] = self._space(needed)
        under_way = self.group.start(sends, receives)
        yield self.rank, self.own

        received = under_way.wait()
        for source in others:
            held = self._unpack(source, received[source]) if source in received else None
            yield source, held

    def _arrivals_in_ring(self) -> Iterator[tuple[int, HeldKeys | None]]:
        processes = self.group.count
        if processes == 1:
            yield self.rank, self.own
            return

        under_way = self._begin_step(1, None)
        yield self.rank, self.own
        for step in range(1, processes):
            source = (self.rank - step) % processes
            received = under_way.wait()
            held = self._unpack(source, received.popitem()[1]) if received else None
            # The next keys travel while the caller computes with these.
            if step + 1 < processes:
                under_way = self._begin_step(step + 1, held)
            yield source, held

    def _begin_step(self, step: int, held: HeldKeys | None) -> MessagesUnderWay:
        """Begin a step of the ring: send own keys to who stands that far ahead, and pass on what is held."""
        processes = self.group.count
        next_process = (self.rank + 1) % processes
        ahead = (self.rank + step) % processes
        source = (self.rank - step) % processes

        sends = {}
        if self._sends_in_ring(self.rank, ahead):
            sends[ahead] = self._pack(self.own, ahead)
        if held is not None and self._sends_in_ring(held.source, next_process):
            sends[next_process] = self._pack(held, next_process)

        receives = {}
        needed = self.needs.count(self.rank, source)
        if needed:
            sender = self.needs.sender(self.rank, source, "ring")
            receives[sender] = self._space(needed)
        return self.group.start(sends, receives)

    def _sends_in_ring(self, source: int, target: int) -> bool:
        """Whether in a ring this process sends the keys of `source`, if any are needed, to `target`."""
        if not self.needs.count(target, source):
            return False
        return self.needs.sender(target, source, "ring") == self.rank

    def _pack(self, held: HeldKeys, target: int) -> torch.Tensor:
        """The keys and values that a process needs of those held, as one row of numbers."""
        places = _places_in_held(held.positions, self.needs.between(target, held.source))
        rows = []
        for x in (held.k, held.v):
            needed = torch.cat([x[:, :, place.start : place.stop] for place in places], dim=2)
            rows.append(needed.reshape(-1))
        return torch.cat(rows)

    def _space(self, keys: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Memory for the keys and values of so many positions, or for their gradients."""
        batch, kv_heads, _, head_dim = self.k.shape
        v_dim = self.v.shape[3]
        return self.k.new_empty(batch * kv_heads * keys * (head_dim + v_dim), dtype=dtype)

    def _unpack(self, source: int, numbers: torch.Tensor) -> HeldKeys:
        positions = self.needs.between(self.rank, source)
        k, v = self._split(numbers, positions)
        return HeldKeys(source, positions, k, v)

    def _split(
        self, numbers: torch.Tensor, positions: tuple[Ranges, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, or their gradients, from one row of numbers."""
        batch, kv_heads, _, head_dim = self.k.shape
        v_dim = self.v.shape[3]
        vectors = batch, kv_heads, sum(map(size, positions))
        numbers_of_keys = math.prod(vectors) * head_dim
        keys = numbers[:numbers_of_keys].view(*vectors, head_dim)
        values = numbers[numbers_of_keys:].view(*vectors, v_dim)
        return keys, values

    def send_home(
        self, source: int, grads: tuple[torch.Tensor, torch.Tensor] | None, dtype: torch.dtype
    ) -> None:
        """Begin to send the gradients of keys to the process that holds them, and to receive some of own keys.

        It is called once for each other process, in the order of `arrivals`, with None where no key came. What is
        received comes from the process that stands as far ahead as `source` is behind.
        """
        ahead = (2 * self.rank - source) % self.group.count
        sends = {}
        if grads is not None:
            sends[source] = torch.cat([x.reshape(-1) for x in grads])
        receives = {}
        keys_used_ahead = self.needs.count(ahead, self.rank)
        if keys_used_ahead:
            receives[ahead] = self._space(keys_used_ahead, dtype)
        self.gradients_under_way.append((ahead, self.group.start(sends, receives)))

    def collect(self, totals: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Add the gradients of own keys that other processes computed, in the order of the steps."""
        for process, under_way in self.gradients_under_way:
            for numbers in under_way.wait().values():
                positions = self.needs.between(process, self.rank)
                places = _places_in_held(self.own.positions, positions)
                grads = self._split(numbers, positions)
                for total, grad in zip(totals, grads, strict=True):
                    _add_at_places(total, grad, places)
        self.gradients_under_way.clear()


def _add_at_places(total: torch.Tensor, grad: torch.Tensor, places: list[range]) -> None:
    """Add consecutive rows of a gradient to the rows at some places of another, in place."""
    start = 0
    for place in places:
        stop = start + len(place)
        total[:, :, place.start : place.stop] += grad[:, :, start:stop]
        start = stop


def _places_in_held(held: tuple[Ranges, ...], needed: tuple[Ranges, ...]) -> list[range]:
    """Where the needed positions stand among those held; both are sorted within each chunk."""
    places = []
    start_of_run = 0
    for held_runs, needed_runs in zip(held, needed, strict=True):
        remaining = iter(needed_runs)
        wanted = next(remaining, None)
        for run in held_runs:
            while wanted is not None and wanted.stop <= run.stop:
                places.append(shifted(wanted, start_of_run - run.start))
                wanted = next(remaining, None)
            start_of_run += len(run)
    return places
