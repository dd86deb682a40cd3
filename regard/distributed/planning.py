"""Plans a call over many processes without running it: bytes, memory, and how long processes wait for keys.

The schedule is the one that `exchange.py` runs, step by step, for any number of processes; nothing is run here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from regard.arguments import real, shown, whole, yes_or_no
from regard.core.tensors import DTYPES
from regard.distributed.layout import Layout
from regard.distributed.needs import Needs
from regard.errors import ArgumentError
from regard.patterns import Grid, KeySpan, Pattern, as_pattern
from regard.patterns.grid import grids_of_rows
from regard.patterns.ranges import Ranges, common, size
from regard.reprs import brief


@brief
@dataclass(frozen=True)
class Machine:
    """What a process computes and sends each second.

    The default of `flops` was measured on one H100 (`benchmarks/results/attention_cuda`: attention of 16,384 positions
    in bfloat16), that of `overhead` on a CPU (`benchmarks/results/forecasts_cpu`); bandwidth and latency are those of a
    link of 400 gigabits. `measure_machine` measures all of them on running processes.

    Args:
        flops: floating-point operations of attention per second.
        bandwidth: bytes per second that it sends, and as many that it receives.
        latency: seconds before the first byte of a message.
        overhead: seconds in which its host prepares a step: Python, planning, starting messages and kernels.
        asynchronous: whether the host prepares the next steps while the device computes, as with a GPU.
    """

    flops: float = 480e12
    bandwidth: float = 50e9
    latency: float = 10e-6
    overhead: float = 0.9e-3
    asynchronous: bool = True

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth", "latency", "overhead"):
            least = 1 if name in ("flops", "bandwidth") else 0
            if real(name, getattr(self, name)) < least:
                raise ArgumentError(f"{name} is {getattr(self, name)}; it is a number of {least} or more")
        yes_or_no("asynchronous", self.asynchronous)


class Message(NamedTuple):
    """What one process sends another in one step; step 0 of a gather, steps 1 to processes - 1 of a ring."""

    step: int
    sender: int
    receiver: int
    keys: int


@brief
@dataclass(frozen=True)
class Forecast:
    """The forward pass of one call over many processes; tuples have one entry for each process.

    form: "gather" or "ring". sent, received: bytes. memory: bytes of q, k, v, output, log-sum-exp and the keys of
    others. compute: seconds of computing. seconds: until it is done. waiting: seconds of that without computing, for
    keys or for its host.
    """

    form: str
    sent: tuple[int, ...]
    received: tuple[int, ...]
    memory: tuple[int, ...]
    compute: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def waiting(self) -> tuple[float, ...]:
        """Seconds in which each process does not compute: it waits for keys or for its host."""
        return tuple(all_of - own for all_of, own in zip(self.seconds, self.compute, strict=True))

    @property
    def efficiency(self) -> float:
        """The share of the time of all processes in which they compute, 0 to 1."""
        longest = max(self.seconds)
        return sum(self.compute) / (longest * len(self.seconds)) if longest else 1.0

    def __str__(self) -> str:
        return (
            f"{len(self.sent)} processes, {self.form}: at most {max(self.sent):,} bytes sent and "
            f"{max(self.memory):,} bytes of memory in one; {max(self.seconds):.3g} s, of which at most "
            f"{max(self.waiting):.3g} s are waiting; {self.efficiency:.0%} of all time is computing"
        )


def forecast(
    lengths: Sequence[int],
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    v_dim: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    pattern: Pattern | str | None = None,
    layout: str = "contiguous",
    form: str = "auto",
    machine: Machine | None = None,
) -> Forecast:
    """Plan the forward pass of `regard.distributed.attention` for any number of processes, without running it.

    Bytes are exact. Seconds follow from the constants of the machine: pairs that the pattern keeps cost
    2 · heads · (head_dim + v_dim) operations each, a message costs latency + bytes / bandwidth, keys travel while the
    pairs of the step before are computed, and the host prepares each step in which a process sends or computes.

    Args:
        lengths: positions that each process holds.
        heads, kv_heads, head_dim, v_dim, batch, dtype: of the call; as many kv_heads as heads by default.
        pattern, layout, form: as for `attention`.
        machine: the constants; those of `Machine()` by default.

    Returns:
        The `Forecast`.

    Raises:
        ArgumentError: sizes or options outside the values that they may take.

    >>> plan = forecast([1024] * 4, heads=8, kv_heads=2, head_dim=64, pattern="causal_window(128)")
    >>> plan.form, plan.received
    ('gather', (0, 65024, 65024, 65024))
    """
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype is {shown(dtype)}; attention takes {', '.join(map(str, DTYPES))}")
    machine = Machine() if machine is None else machine
    if not isinstance(machine, Machine):
        raise ArgumentError(f"machine is {shown(machine)}; give a Machine")
    heads, head_dim = whole("heads", heads, 1), whole("head_dim", head_dim, 1)
    kv_heads = heads if kv_heads is None else whole("kv_heads", kv_heads, 1)
    batch, v_dim = whole("batch", batch, 0), head_dim if v_dim is None else whole("v_dim", v_dim, 0)
    divided, of_call = Layout(layout, tuple(lengths)), as_pattern(pattern).canonical()
    of_call.check(batch, heads, divided.length, divided.length)
    schedule = Schedule(Needs(of_call, divided, divided, 0))
    asked = schedule.needs.form(form)
    a_key = batch * kv_heads * (head_dim + v_dim) * dtype.itemsize
    a_pair = 2 * batch * heads * (head_dim + v_dim) / machine.flops
    ranks = range(schedule.needs.processes)
    sent, received = [0] * len(ranks), [0] * len(ranks)
    for message in schedule.messages(asked):
        sent[message.sender] += message.keys * a_key
        received[message.receiver] += message.keys * a_key
    a_query = batch * heads * ((head_dim + v_dim) * dtype.itemsize + 4)  # q, output, log-sum-exp in float32
    held = [schedule.held(rank, asked) for rank in ranks]
    memory = [divided.lengths[rank] * (a_query + a_key) + held[rank] * a_key for rank in ranks]
    compute = [pairs * a_pair for pairs in map(schedule.pairs, ranks)]
    run = schedule.ring_seconds if asked == "ring" else schedule.gather_seconds
    seconds = run(a_key, a_pair, machine)
    return Forecast(asked, tuple(sent), tuple(received), tuple(memory), tuple(compute), tuple(seconds))


@dataclass(frozen=True, eq=False)
class Schedule:
    """Who sends how many keys to whom in which step, and how many pairs are computed in each."""

    needs: Needs

    @cached_property
    def _needed(self) -> list[dict[int, tuple[Ranges, ...]]]:
        """For each process the keys that it needs, by the process that holds them and its chunks."""
        chunks = sorted(
            (chunk.start, chunk.stop, rank, at)
            for rank, own in enumerate(self.needs.k.chunks)
            for at, chunk in enumerate(own)
            if chunk
        )
        starts = [start for start, *_ in chunks]
        return [self._of(target, chunks, starts) for target in range(self.needs.processes)]

    def _of(
        self, target: int, chunks: list[tuple[int, int, int, int]], starts: list[int]
    ) -> dict[int, tuple[Ranges, ...]]:
        found: dict[int, list[list[range]]] = {}
        for run in self.needs.of(target):
            at = bisect_right(starts, run.start) - 1
            while at < len(chunks) and chunks[at][0] < run.stop:
                start, stop, source, place = chunks[at]
                inside = range(max(start, run.start), min(stop, run.stop))
                if inside:
                    found.setdefault(source, [[] for _ in self.needs.k.chunks[source]])[place].append(inside)
                at += 1
        return {source: tuple(map(tuple, each)) for source, each in found.items()}

    def keys(self, target: int, source: int) -> int:
        """The number of keys of one process that another one needs."""
        return sum(map(size, self._needed[target].get(source, ())))

    def parent(self, target: int, source: int) -> int:
        """The process that sends the keys of `source` to `target` in a ring, as `Needs.parent` chooses it."""
        before = (target - 1) % self.needs.processes
        if before in (source, target):
            return source
        mine, its = self._needed[target].get(source, ()), self._needed[before].get(source, ())
        if mine == its:
            return before
        inside = len(mine) == len(its) and all(common(one, other) == one for one, other in zip(mine, its, strict=True))
        return before if inside else source

    def messages(self, form: str) -> Iterator[Message]:
        """All messages of a forward pass, step by step."""
        count = self.needs.processes
        for step in range(1, count):
            for receiver in range(count):
                source = (receiver - step) % count
                if keys := self.keys(receiver, source):
                    sender = self.parent(receiver, source) if form == "ring" else source
                    yield Message(step if form == "ring" else 0, sender, receiver, keys)

    def held(self, rank: int, form: str) -> int:
        """The most keys of others that a process has at once: all in a gather, those of two steps in a ring."""
        count = self.needs.processes
        steps = [self.keys(rank, (rank - step) % count) for step in range(1, count)]
        if form != "ring":
            return sum(steps)
        return max((one + other for one, other in zip(steps, [*steps[1:], 0], strict=True)), default=0)

    @cached_property
    def _pairs(self) -> dict[tuple[int, int], float]:
        """Pairs by (rank, source), as a mean over batch rows and heads.

        Those with own keys are exact, others are divided by the keys that are needed.
        """
        needs, found, every = self.needs, {}, range(self.needs.k.length)
        for rank, chunks in enumerate(needs.q.chunks):
            own = sum(self._counted(rows, keys) for keys in needs.k.chunks[rank] for rows in chunks)
            others = {source: self.keys(rank, source) for source in self._needed[rank] if source != rank}
            left = (sum(self._counted(rows, every) for rows in chunks) - own) / max(1, sum(others.values()))
            found |= {(rank, rank): own, **{(rank, source): left * keys for source, keys in others.items()}}
        return found

    @cached_property
    def _by_head(self) -> list[Pattern]:
        """The pattern of each batch row and head; one pattern where it is the same for all of them."""
        needs, pattern = self.needs, self.needs.pattern
        if not (pattern.varies_by_head or pattern.varies_by_row) or not needs.q.length or not needs.k.length:
            return [pattern]
        first = Grid.whole(needs.q.length, needs.k.length, needs.q_start).block(range(1), range(1))
        rows, heads, _, _ = pattern.evaluate(first).shape
        return [pattern.for_row(row).for_head(head).canonical() for row in range(rows) for head in range(heads)]

    def _counted(self, rows: range, keys: range) -> float:
        """The pairs of some queries with some keys, as a mean over batch rows and heads."""
        needs, start = self.needs, self.needs.q_start
        assert isinstance(start, int)
        if not rows or not keys:
            return 0.0
        total = 0
        for one in self._by_head:
            if one.structured:
                part = one if len(keys) == needs.k.length else (one & KeySpan(keys.start, keys.stop)).canonical()
                total += part.count(len(rows), needs.k.length, q_start=start + rows.start)
                continue
            block = Grid.whole(needs.q.length, needs.k.length, start).block(rows, keys)
            total += sum(int(one.evaluate(part).sum()) for part in grids_of_rows(block))
        return total / len(self._by_head)

    def pairs(self, rank: int) -> float:
        """The pairs that a process computes, as a mean over batch rows and heads."""
        return sum(self._pairs.get((rank, source), 0) for source in {rank, *self._needed[rank]})

    def gather_seconds(self, a_key: int, a_pair: float, machine: Machine) -> list[float]:
        """When each process is done, if all keys are fetched while its own pairs are computed."""
        count = self.needs.processes
        out, into = [0] * count, [0] * count
        senders: list[list[int]] = [[] for _ in range(count)]
        for _, sender, receiver, keys in self.messages("gather"):
            out[sender] += keys * a_key
            into[receiver] += keys * a_key
            senders[receiver].append(sender)
        done = []
        for rank in range(count):
            own = self._pairs[rank, rank] * a_pair
            clock = Clock(machine).step(0.0, own)
            if senders[rank]:
                slowest = max([into[rank], *(out[one] for one in senders[rank])])
                arrived = machine.overhead + machine.latency + slowest / machine.bandwidth
                for source in senders[rank]:
                    clock.step(arrived, self._pairs[rank, source] * a_pair)
            done.append(clock.now)
        return done

    def ring_seconds(self, a_key: int, a_pair: float, machine: Machine) -> list[float]:
        """When each process is done, if the keys of step t + 1 travel while those of step t are used."""
        count = self.needs.processes
        posted = [machine.overhead] * count  # when each process began to send and to wait for the messages of the step
        clocks = [Clock(machine).step(0.0, self._pairs[rank, rank] * a_pair) for rank in range(count)]
        for step in range(1, count):
            senders = [(rank - step) % count for rank in range(count)]
            keys = [self.keys(rank, source) for rank, source in enumerate(senders)]
            senders = [self.parent(rank, source) if keys[rank] else -1 for rank, source in enumerate(senders)]
            out = [0] * count
            for rank, sender in enumerate(senders):
                if sender >= 0:
                    out[sender] += keys[rank] * a_key
            arrived = [
                max(posted[rank], posted[sender]) + machine.latency + out[sender] / machine.bandwidth
                if sender >= 0 else 0.0
                for rank, sender in enumerate(senders)
            ]  # fmt: skip
            for rank, sender in enumerate(senders):
                if sender < 0 and not out[rank]:
                    posted[rank] = clocks[rank].now
                    continue
                posted[rank] = clocks[rank].wait(arrived[rank])
                clocks[rank].step(0.0, self._pairs.get((rank, (rank - step) % count), 0) * a_pair)
        return [clock.now for clock in clocks]


@dataclass
class Clock:
    """The time of one process: its device computes, and its host prepares each step before."""

    machine: Machine
    now: float = 0.0  # when the device is done with what was given to it
    host: float = 0.0  # when the host is done with what it prepared

    def wait(self, until: float) -> float:
        """Wait for keys; the time at which they are there, the device is free, and the next messages can start."""
        self.now = max(self.now, until)
        return max(self.now, self.host)

    def step(self, arrived: float, seconds: float) -> Clock:
        """Prepare a step and compute it once its keys have arrived."""
        if not self.machine.asynchronous:
            self.host = max(self.now, arrived)
        self.host += self.machine.overhead
        self.now = max(self.now, self.host, arrived) + seconds
        return self
