"""Measures what a process computes and sends each second, for forecasts of calls on the same machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from regard.arguments import shown, whole
from regard.core.tensors import DTYPES
from regard.distributed.api import attention as shared_attention
from regard.distributed.group import Group, agree, contents, refuse_together
from regard.distributed.layout import Layout
from regard.distributed.needs import Needs
from regard.distributed.planning import Machine, Schedule
from regard.errors import ArgumentError
from regard.functional import attention
from regard.patterns import Pattern, as_pattern

SHORT = 1 << 10  # bytes of the message whose time is the latency


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
    group = Group.of(mesh)
    device = group.device
    try:
        if group.count == 1:
            raise ArgumentError("one process sends no messages; start two or more with torchrun")
        if dtype not in DTYPES:
            raise ArgumentError(f"dtype is {shown(dtype)}; attention takes {', '.join(map(str, DTYPES))}")
        of_calls, length = as_pattern(pattern).canonical(), whole("length", length, 1)
        message, rounds = whole("message", message, 2 * SHORT), whole("rounds", rounds, 1)
        batch, heads, head_dim = whole("batch", batch, 1), whole("heads", heads, 1), whole("head_dim", head_dim, 1)
        kv_heads = heads if kv_heads is None else whole("kv_heads", kv_heads, 1)
        v_dim = head_dim if v_dim is None else whole("v_dim", v_dim, 1)
        shapes = (batch, heads, length, head_dim), (batch, kv_heads, length, head_dim), (batch, kv_heads, length, v_dim)
        q, k, v = (torch.randn(shape, dtype=dtype, device=device) for shape in shapes)
        attention(q, k, v, pattern=of_calls)
    except Exception as error:
        refuse_together(group, device, error)
        raise
    words = [f"shapes {shapes}", f"dtype {dtype}", f"pattern {contents(of_calls)}", f"message {message}"]
    agree(group, length, length, False, 0, [*words, f"rounds {rounds}"], device)
    computing = _slowest(group, rounds, device, lambda: attention(q, k, v, pattern=of_calls))
    latency, long = (_slowest(group, rounds, device, _shift(group, size, device)) for size in (SHORT, message))
    first = [x[:, :, :1] for x in (q, k, v)]
    steps = _slowest(group, rounds, device, lambda: shared_attention(*first, mesh, form="ring"))
    own = Layout("contiguous", (length,))
    pairs = Schedule(Needs(of_calls, own, own, 0)).pairs(0)
    operations = 2 * batch * heads * (head_dim + v_dim) * pairs
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
