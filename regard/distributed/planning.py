"""The bytes that a call over many processes exchanges, without running it.

The messages are those that an `Exchange` sends, step by step, for any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from regard.arguments import count_of, shown, whole, whole_or
from regard.core.problem import checked_q_start
from regard.core.tensors import DTYPES
from regard.distributed.agreement import CallHeader
from regard.distributed.layout import Layout
from regard.distributed.needs import Needs
from regard.errors import ArgumentError
from regard.patterns import Pattern, as_pattern
from regard.reprs import brief

# What each process sends every other one before a call: numbers of 8 bytes.
HEADER_BYTES = 8 * len(CallHeader._fields)


class Message(NamedTuple):
    """What one process sends another in one step; step 0 of a gather, steps 1 to processes - 1 of a ring."""

    step: int
    receiver: int
    source: int  # the process that holds the keys
    sender: int
    keys: int


def messages(needs: Needs, form: str) -> list[Message]:
    """The messages of a forward pass, step by step and within a step by receiver."""
    planned = []
    for receiver, sources in enumerate(needs.by_holder):
        for source in sources:
            if source == receiver:
                continue
            distance = (receiver - source) % needs.processes
            sender = needs.sender(receiver, source, form)
            keys = needs.count(receiver, source)
            planned.append(Message(distance, receiver, source, sender, keys))
    planned.sort()

    if form == "ring":
        return planned
    return [message._replace(step=0) for message in planned]


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
    if dtype not in DTYPES:
        raise ArgumentError(
            f"dtype is {shown(dtype)}; attention takes {', '.join(map(str, DTYPES))}"
        )
    batch = whole("batch", batch, 0)
    kv_heads = whole("kv_heads", kv_heads, 1)
    head_dim = whole("head_dim", head_dim, 1)
    v_dim = whole_or("v_dim", v_dim, head_dim, 0)

    q = Layout(layout, tuple(lengths))
    k = q if k_lengths is None else Layout(layout, tuple(k_lengths))
    if len(k.lengths) != len(q.lengths):
        raise ArgumentError(
            f"lengths are those of {count_of(len(q.lengths), 'processes')} and k_lengths those of {len(k.lengths)}"
        )
    start = k.length - q.length if q_start is None else int(checked_q_start(q_start, batch))
    needs = Needs(as_pattern(pattern).canonical(), q, k, start)
    form = needs.form(form)

    numbers_of_a_key = batch * kv_heads * (head_dim + v_dim)  # with those of its value
    bytes_of_a_key = numbers_of_a_key * dtype.itemsize
    bytes_of_a_gradient = 0
    if backward:
        gradient_dtype = torch.promote_types(dtype, torch.float32)
        bytes_of_a_gradient = numbers_of_a_key * gradient_dtype.itemsize
        if form == "ring":
            bytes_of_a_key *= 2  # the backward pass fetches the keys again

    processes = needs.processes
    sent = [0] * processes
    received = [0] * processes
    for _, receiver, source, sender, keys in messages(needs, form):
        sent[sender] += keys * bytes_of_a_key
        received[receiver] += keys * bytes_of_a_key
        # Gradients go from the process that used the keys to the one that holds them.
        sent[receiver] += keys * bytes_of_a_gradient
        received[source] += keys * bytes_of_a_gradient
    agreement = HEADER_BYTES * processes * (processes - 1)
    return Traffic(tuple(sent), tuple(received), agreement)
