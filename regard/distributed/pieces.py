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
from regard.distributed.group import Group, MessagesUnderWay
from regard.distributed.needs import Needs
from regard.patterns import Pattern
from regard.patterns.ranges import Ranges, hull, shifted, size

# A piece has at most so many queries, because what a backend needs besides its tensors grows with them.
MOST_QUERIES_OF_A_PIECE = 8192


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
        held = self.numbers.shape[2]
        missing_before = self.first - keys.start
        missing_after = keys.stop - self.first - held
        if not keys or max(missing_before, missing_after) <= 0:
            return super().cut(keys)

        start = max(0, -missing_before)
        stop = held - max(0, -missing_after)
        padding = (0, 0, max(0, missing_before), max(0, missing_after))
        return Stored(torch.nn.functional.pad(self.numbers[:, :, start:stop], padding))


class HeldKeys(NamedTuple):
    """Keys and values of one process that this one has, (batch, kv_heads, held, dim), and their positions by chunk."""

    source: int
    positions: tuple[Ranges, ...]
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class SharedOptions:
    """The options of a call, alike on every process.

    others: those that no piece changes, by name.
    """

    pattern: Pattern
    bias: torch.Tensor | Bias | None
    sink: float | torch.Tensor | None
    parameters: Mapping[str, torch.Tensor] | None
    dropout_seed: int | None
    others: Mapping[str, Any]

    def learned_tensors(self) -> list[torch.Tensor]:
        """Tensors besides q, k and v that need a gradient: of the bias, the sink and the mechanism."""
        tensors: list[Any] = []
        if isinstance(self.bias, torch.nn.Module):
            tensors += self.bias.parameters()
        else:
            tensors.append(self.bias)
        tensors.append(self.sink)
        tensors += (self.parameters or {}).values()
        return [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]

    def without_dropout(self, function: Callable[[torch.Tensor], torch.Tensor]) -> SharedOptions:
        """The same without dropout, and with another tensor for each one of the bias, the sink and the mechanism."""
        bias: Any = self.bias
        if isinstance(bias, torch.Tensor):
            bias = function(bias)
        sink = self.sink
        if isinstance(sink, torch.Tensor):
            sink = function(sink)
        parameters = self.parameters
        if parameters:
            parameters = {name: function(x) for name, x in parameters.items()}
        others = {**self.others, "dropout": 0.0}
        return SharedOptions(self.pattern, bias, sink, parameters, None, others)


class KeyRun(NamedTuple):
    """Consecutive keys of a piece: where they stand in it, and where among the keys held."""

    in_piece: range
    in_held: range


class CallPiece(NamedTuple):
    """Some queries of one chunk and some of the keys held.

    rows: positions of the queries, all in the chunk `chunk` of this process.
    keys: positions from the first to the last key.
    runs: the keys that are held; no query looks at those between them.
    """

    chunk: int
    rows: range
    keys: range
    runs: tuple[KeyRun, ...]


def pieces_of(needs: Needs, rank: int, held: HeldKeys | None) -> Iterator[CallPiece]:
    """The pieces of a process's queries over keys that it has; none without keys."""
    if held is None:
        return

    start_in_held = 0
    for ranges in held.positions:
        if not ranges:
            continue
        keys = hull(ranges)
        runs = _runs_of(ranges, keys, start_in_held)
        start_in_held += size(ranges)
        for chunk, rows in enumerate(needs.q.chunks[rank]):
            seeing = needs.rows_that_see(rows, keys)
            for start in range(seeing.start, seeing.stop, MOST_QUERIES_OF_A_PIECE):
                some_rows = range(start, min(start + MOST_QUERIES_OF_A_PIECE, seeing.stop))
                piece = CallPiece(chunk, some_rows, keys, runs)
                narrowed = _narrowed(piece, needs.keys_near(some_rows, keys))
                if narrowed is not None:
                    yield narrowed


def _runs_of(ranges: Ranges, keys: range, start_in_held: int) -> tuple[KeyRun, ...]:
    """The runs of a piece whose keys are `keys`; those of `ranges` are held from `start_in_held` on."""
    runs = []
    for positions in ranges:
        in_held = range(start_in_held, start_in_held + len(positions))
        runs.append(KeyRun(shifted(positions, -keys.start), in_held))
        start_in_held = in_held.stop
    return tuple(runs)


def _narrowed(piece: CallPiece, keys: range) -> CallPiece | None:
    """The piece with those of its keys that lie in a range; None if none does."""
    positions_and_places = []
    for in_piece, in_held in piece.runs:
        positions = shifted(in_piece, piece.keys.start)
        start = max(positions.start, keys.start)
        stop = min(positions.stop, keys.stop)
        if start < stop:
            places = shifted(range(start, stop), in_held.start - positions.start)
            positions_and_places.append((range(start, stop), places))
    if not positions_and_places:
        return None

    first_run = positions_and_places[0][0]
    last_run = positions_and_places[-1][0]
    near = range(first_run.start, last_run.stop)
    runs = [
        KeyRun(shifted(positions, -near.start), places)
        for positions, places in positions_and_places
    ]
    return CallPiece(piece.chunk, piece.rows, near, tuple(runs))


def keys_of(piece: CallPiece, x: torch.Tensor) -> torch.Tensor:
    """The keys of a piece, cut from those held; zeros where a position is not held, since no query looks there."""
    if len(piece.runs) == 1:
        in_held = piece.runs[0].in_held
        return x[:, :, in_held.start : in_held.stop]

    keys = x.new_zeros(*x.shape[:2], len(piece.keys), x.shape[3])
    for in_piece, in_held in piece.runs:
        keys[:, :, in_piece.start : in_piece.stop] = x[:, :, in_held.start : in_held.stop]
    return keys


def add_to_held(piece: CallPiece, total: torch.Tensor, grad: torch.Tensor) -> None:
    """Add the gradient of a piece's keys to that of the keys held, in place."""
    for in_piece, in_held in piece.runs:
        total[:, :, in_held.start : in_held.stop] += grad[:, :, in_piece.start : in_piece.stop]


def share(log_sum_exp: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """exp(lse_p - log_sum_exp): the share of a piece in each row; 0 where the row is empty so far."""
    finite_total = total.masked_fill(total == -math.inf, 0)
    return (log_sum_exp - finite_total).exp()


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
        positions = [(chunk,) if chunk else () for chunk in self.needs.k.chunks[self.rank]]
        return HeldKeys(self.rank, tuple(positions), self.k, self.v)

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
