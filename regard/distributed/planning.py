"""Plans a call over many processes without running it: bytes, memory, and how long processes wait for keys.

The messages are those that an `Exchange` sends, step by step, for any number of processes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from regard.arguments import count_of, real, shown, whole, yes_or_no
from regard.core.problem import checked_q_start
from regard.core.tensors import DTYPES
from regard.distributed.needs import Layout, Needs
from regard.errors import ArgumentError
from regard.functional import attention
from regard.patterns import Grid, KeySpan, Pattern, as_pattern
from regard.patterns.grid import grids_of_rows
from regard.reprs import brief

if TYPE_CHECKING:
    from regard.distributed.group import Group

HEADER = 9  # numbers of 8 bytes that each process sends every other one before a call, see `group.Header`
SHORT = 1 << 10  # bytes of the message whose time is the latency


class Sizes(NamedTuple):
    """The sizes of a call, and the bytes of a number."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    itemsize: int

    @classmethod
    def checked(
        cls, batch: int, heads: int | None, kv_heads: int | None, head_dim: int, v_dim: int | None, dtype: torch.dtype
    ) -> Sizes:
        """The sizes, where as many kv_heads as heads, and values as large as keys, are the default."""
        if dtype not in DTYPES:
            raise ArgumentError(f"dtype is {shown(dtype)}; attention takes {', '.join(map(str, DTYPES))}")
        batch, head_dim = whole("batch", batch, 0), whole("head_dim", head_dim, 1)
        v_dim = head_dim if v_dim is None else whole("v_dim", v_dim, 0)
        heads = None if heads is None else whole("heads", heads, 1)
        kv_heads = heads if kv_heads is None else whole("kv_heads", kv_heads, 1)
        assert kv_heads is not None
        return cls(batch, heads or kv_heads, kv_heads, head_dim, v_dim, dtype.itemsize)

    @property
    def numbers(self) -> int:
        """Numbers of the keys and values of one position."""
        return self.batch * self.kv_heads * (self.head_dim + self.v_dim)


class Message(NamedTuple):
    """What one process sends another in one step; step 0 of a gather, steps 1 to processes - 1 of a ring."""

    step: int
    receiver: int
    source: int  # the process that holds the keys
    sender: int
    keys: int


def messages(needs: Needs, form: str) -> list[Message]:
    found = [
        Message((to - source) % needs.processes, to, source, needs.sender(to, source, form), needs.count(to, source))
        for to, held in enumerate(needs.by_holder)
        for source in held
        if source != to
    ]
    return sorted(found) if form == "ring" else [one._replace(step=0) for one in sorted(found)]


@brief
@dataclass(frozen=True)
class Traffic:
    """The bytes that processes exchange for one call of attention.

    sent: keys and values that each process sends in the forward pass, and if `backward` was asked for, what it sends in
    the backward pass too: gradients of keys and values, and with a ring the keys and values again.
    agreement: what all processes together send before the call, to agree on lengths and options.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]
    agreement: int

    @property
    def total(self) -> int:
        """All bytes, of all processes."""
        return sum(self.sent) + self.agreement

    def __str__(self) -> str:
        return f"{self.total} bytes in all; {max(self.sent)} at most are sent by one process"


def bytes_exchanged(
    lengths: Sequence[int],
    *,
    kv_heads: int,
    head_dim: int,
    v_dim: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    pattern: Pattern | str | None = None,
    layout: str = "contiguous",
    k_lengths: Sequence[int] | None = None,
    q_start: int | None = None,
    form: str = "auto",
    backward: bool = False,
) -> Traffic:
    """The bytes that `regard.distributed.attention` exchanges; nothing is run, and no process is needed.

    They are the sum over pairs of processes of needed keys · batch · kv_heads · (head_dim + v_dim) · bytes of a number.
    A key is needed if the pattern lets some query of the other process look at it. Every needed key is sent to each
    process that needs it exactly once in the forward pass.

    Args:
        lengths: positions (queries) that each process holds.
        kv_heads: key/value heads.
        head_dim: size of a key.
        v_dim: size of a value; head_dim by default.
        batch: batch rows.
        dtype: of keys and values. Gradients are exchanged in float32 at least.
        pattern: as for `attention`.
        layout: "contiguous" or "zigzag".
        k_lengths: keys that each process holds; `lengths` by default.
        q_start: position of the first query; by default the ends of queries and keys align.
        form: "ring", "gather" or "auto".
        backward: count the backward pass too.

    Returns:
        The `Traffic` of one call.

    Raises:
        ArgumentError: sizes or options outside the values that they may take.

    >>> window = bytes_exchanged([1024] * 4, kv_heads=2, head_dim=64, pattern="causal_window(128)")
    >>> window.received  # 127 keys from the process before; the first one needs none
    (0, 130048, 130048, 130048)
    >>> bytes_exchanged([1024] * 4, kv_heads=2, head_dim=64, pattern="causal").received
    (0, 1048576, 2097152, 3145728)
    """
    numbers = Sizes.checked(batch, None, kv_heads, head_dim, v_dim, dtype).numbers
    q = Layout(layout, tuple(lengths))
    k = q if k_lengths is None else Layout(layout, tuple(k_lengths))
    if len(k.lengths) != len(q.lengths):
        raise ArgumentError(
            f"lengths are those of {count_of(len(q.lengths), 'processes')} and k_lengths those of {len(k.lengths)}"
        )
    start = k.length - q.length if q_start is None else int(checked_q_start(q_start, batch))
    needs = Needs(as_pattern(pattern).canonical(), q, k, start)
    form = needs.form(form)
    gradient = torch.promote_types(dtype, torch.float32).itemsize if backward else 0
    return _traffic(
        needs.processes, messages(needs, form), numbers * dtype.itemsize * (2 if backward and form == "ring" else 1),
        numbers * gradient,
    )  # fmt: skip


def _traffic(processes: int, sends: list[Message], a_key: int, a_gradient: int = 0) -> Traffic:
    """The bytes of these messages, and of the gradients that go back to the processes that hold the keys."""
    sent, received = [0] * processes, [0] * processes
    for _, receiver, source, sender, keys in sends:
        sent[sender] += keys * a_key
        received[receiver] += keys * a_key
        sent[receiver] += keys * a_gradient
        received[source] += keys * a_gradient
    return Traffic(tuple(sent), tuple(received), 8 * HEADER * processes * (processes - 1))


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
        for name, least in (("flops", 1), ("bandwidth", 1), ("latency", 0), ("overhead", 0)):
            real(name, getattr(self, name), least)
        yes_or_no("asynchronous", self.asynchronous)


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
    sizes = Sizes.checked(batch, heads, kv_heads, head_dim, v_dim, dtype)
    machine = Machine() if machine is None else machine
    if not isinstance(machine, Machine):
        raise ArgumentError(f"machine is {shown(machine)}; give a Machine")
    divided, of_call = Layout(layout, tuple(lengths)), as_pattern(pattern).canonical()
    of_call.check(sizes.batch, sizes.heads, divided.length, divided.length)
    needs = Needs(of_call, divided, divided, 0)
    form, count = needs.form(form), needs.processes
    a_key, sends = sizes.numbers * sizes.itemsize, messages(needs, form)
    traffic = _traffic(count, sends, a_key)
    # q, output, and the log-sum-exp in float32
    a_query = sizes.batch * sizes.heads * ((sizes.head_dim + sizes.v_dim) * sizes.itemsize + 4)
    held = _held(count, sends)
    memory = (own * (a_query + a_key) + keys * a_key for own, keys in zip(divided.lengths, held, strict=True))
    a_pair = 2 * sizes.batch * sizes.heads * (sizes.head_dim + sizes.v_dim) / machine.flops
    computing = {of: pairs * a_pair for of, pairs in _pairs(needs).items()}
    compute = (sum(computing.get((rank, source), 0) for source in range(count)) for rank in range(count))
    if form == "ring":
        seconds = _ring_seconds(count, sends, computing, a_key, machine)
    else:
        seconds = _gather_seconds(traffic, sends, computing, machine)
    return Forecast(form, traffic.sent, traffic.received, tuple(memory), tuple(compute), tuple(seconds))


def _held(count: int, sends: list[Message]) -> list[int]:
    """The most keys of others that each process has at once: all in a gather, those of two steps in a ring."""
    steps = Counter[tuple[int, int]]()
    for one in sends:
        steps[one.receiver, one.step] += one.keys
    return [max(sum(steps[rank, at] for at in two) for two in pairwise(range(count + 1))) for rank in range(count)]


def _pairs(needs: Needs) -> dict[tuple[int, int], float]:
    """Pairs by (rank, source), as a mean over batch rows and heads.

    Those with own keys are exact, others are divided by the keys that are needed.
    """
    found, every, patterns = {}, range(needs.k.length), _by_head(needs)
    for rank, chunks in enumerate(needs.q.chunks):
        own = sum(_counted(needs, patterns, rows, keys) for keys in needs.k.chunks[rank] for rows in chunks)
        others = {source: needs.count(rank, source) for source in needs.by_holder[rank] if source != rank}
        rest = sum(_counted(needs, patterns, rows, every) for rows in chunks) - own
        found[rank, rank] = own
        for source, keys in others.items():
            found[rank, source] = keys * rest / sum(others.values())
    return found


def _by_head(needs: Needs) -> list[Pattern]:
    """The pattern of each batch row and head; one pattern where it is the same for all of them."""
    pattern = needs.pattern
    if not (pattern.varies_by_head or pattern.varies_by_row) or not needs.q.length or not needs.k.length:
        return [pattern]
    first = Grid.whole(needs.q.length, needs.k.length, needs.q_start).block(range(1), range(1))
    rows, heads, _, _ = pattern.evaluate(first).shape
    return [pattern.for_row(row).for_head(head).canonical() for row in range(rows) for head in range(heads)]


def _counted(needs: Needs, patterns: list[Pattern], rows: range, keys: range) -> float:
    """The pairs of some queries with some keys, as a mean over these patterns of batch rows and heads."""
    if not rows or not keys:
        return 0.0
    total, start = 0, needs.q_start
    assert isinstance(start, int)
    for one in patterns:
        if one.structured:
            part = one if len(keys) == needs.k.length else (one & KeySpan(keys.start, keys.stop)).canonical()
            total += part.count(len(rows), needs.k.length, q_start=start + rows.start)
            continue
        block = Grid.whole(needs.q.length, needs.k.length, start).block(rows, keys)
        total += sum(int(one.evaluate(part).sum()) for part in grids_of_rows(block))
    return total / len(patterns)


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


Computing = dict[tuple[int, int], float]  # seconds by (rank, source)


def _gather_seconds(traffic: Traffic, sends: list[Message], computing: Computing, machine: Machine) -> list[float]:
    """When each process is done, if all keys are fetched while its own pairs are computed."""
    clocks = [Clock(machine).step(0.0, computing[rank, rank]) for rank in range(len(traffic.sent))]
    slowest = list(traffic.received)
    for one in sends:
        slowest[one.receiver] = max(slowest[one.receiver], traffic.sent[one.sender])
    for one in sends:
        arrived = machine.overhead + machine.latency + slowest[one.receiver] / machine.bandwidth
        clocks[one.receiver].step(arrived, computing[one.receiver, one.source])
    return [clock.now for clock in clocks]


def _ring_seconds(count: int, sends: list[Message], computing: Computing, a_key: int, machine: Machine) -> list[float]:
    """When each process is done, if the keys of step t + 1 travel while those of step t are used."""
    posted = [machine.overhead] * count  # when each process began to send and to wait for the messages of the step
    clocks = [Clock(machine).step(0.0, computing[rank, rank]) for rank in range(count)]
    steps: dict[int, list[Message]] = {}
    for one in sends:
        steps.setdefault(one.step, []).append(one)
    for step in range(1, count):
        sent, arrived = Counter[int](), dict[int, float]()
        for one in steps.get(step, []):
            sent[one.sender] += one.keys * a_key
        for one in steps.get(step, []):
            travelled = machine.latency + sent[one.sender] / machine.bandwidth
            arrived[one.receiver] = max(posted[one.receiver], posted[one.sender]) + travelled
        for rank, clock in enumerate(clocks):
            if rank not in arrived and not sent[rank]:
                posted[rank] = clock.now
                continue
            posted[rank] = clock.wait(arrived.get(rank, 0.0))
            clock.step(0.0, computing.get((rank, (rank - step) % count), 0.0))
    return [clock.now for clock in clocks]


def measure_machine(
    mesh: Any,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    v_dim: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    pattern: Pattern | str | None = None,
    length: int = 1024,
    message: int = 1 << 24,
    rounds: int = 5,
) -> Machine:
    """Measure the constants of `forecast` on running processes: operations, bandwidth, latency and overhead.

    All processes compute attention over their own keys at the same time, then each sends a message to the next one,
    then they share a sequence of one position each. The shortest round of each process counts, and of all processes the
    slowest.

        flops = 2 · batch · heads · (head_dim + v_dim) · pairs / seconds,   bandwidth = bytes / (seconds - latency)

    Args:
        mesh: as for `attention`, with two processes or more.
        heads, kv_heads, head_dim, v_dim, batch, dtype: of the calls to be forecast, as for `forecast`.
        pattern: of the calls to be forecast. The pairs of scattered patterns cost more than those of full attention.
        length: queries and keys of each process.
        message: bytes of the long message.
        rounds: how often each is measured, after one round to warm up.

    Returns:
        The `Machine`, equal on all processes.

    Raises:
        ArgumentError: one process, sizes outside the values that they may take, or processes that ask for different
            measurements.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun starts several
    >>> measure_machine(dist.group.WORLD, heads=8, head_dim=64)
    Traceback (most recent call last):
    regard.errors.ArgumentError: one process sends no messages; start two or more with torchrun
    >>> dist.destroy_process_group()
    """
    # imported here, since forecasts need no processes and these modules take seconds
    from regard.distributed.api import attention as shared_attention
    from regard.distributed.group import Group, agree, contents, refusing_together

    group = Group.of(mesh)
    device = group.device
    with refusing_together(group, device):
        if group.count == 1:
            raise ArgumentError("one process sends no messages; start two or more with torchrun")
        sizes = Sizes.checked(batch, heads, kv_heads, head_dim, v_dim, dtype)
        of_calls, length = as_pattern(pattern).canonical(), whole("length", length, 1)
        message, rounds = whole("message", message, 2 * SHORT), whole("rounds", rounds, 1)
        axes = (sizes.heads, sizes.head_dim), (sizes.kv_heads, sizes.head_dim), (sizes.kv_heads, sizes.v_dim)
        q, k, v = (torch.randn(sizes.batch, count, length, dim, dtype=dtype, device=device) for count, dim in axes)
        attention(q, k, v, pattern=of_calls)
    words = [f"shapes {sizes} {length}", f"dtype {dtype}", f"pattern {contents(of_calls)}", f"message {message}"]
    agree(group, device, [*words, f"rounds {rounds}"], q_len=length, k_len=length)
    computing = _slowest(group, rounds, device, lambda: attention(q, k, v, pattern=of_calls))
    latency, long = (_slowest(group, rounds, device, _shift(group, size, device)) for size in (SHORT, message))
    first = [x[:, :, :1] for x in (q, k, v)]
    steps = _slowest(group, rounds, device, lambda: shared_attention(*first, mesh, form="ring"))
    own = Layout("contiguous", (length,))
    pairs = sum(_pairs(Needs(of_calls, own, own, 0)).values())
    operations = 2 * sizes.batch * sizes.heads * (sizes.head_dim + sizes.v_dim) * pairs
    travelling = max(long - latency, long / 2)  # where other load delays the short message as much as the long one
    return Machine(
        max(1.0, operations / computing), message / travelling, latency,
        overhead=max(0.0, steps / group.count - latency), asynchronous=device.type != "cpu",
    )  # fmt: skip


def _shift(group: Group, size: int, device: torch.device) -> Callable[[], Any]:
    """A function that sends so many bytes to the next process, and receives as many from the process before."""
    sent, received = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    after, before = (group.rank + 1) % group.count, (group.rank - 1) % group.count
    return lambda: group.start({after: sent}, {before: received}).wait()


def _slowest(group: Group, rounds: int, device: torch.device, work: Callable[[], Any]) -> float:
    """Seconds of the slowest process, each at its shortest round; the processes begin each round together."""
    shortest = 0
    for number in range(rounds + 1):
        group.gathered(torch.zeros(1, dtype=torch.int64, device=device))
        began = time.perf_counter_ns()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        passed = time.perf_counter_ns() - began
        shortest = min(shortest, passed) if number > 1 else passed  # the first round warms up
    every = group.gathered(torch.tensor([shortest], dtype=torch.int64, device=device))
    return max(1, int(every.max())) * 1e-9
