"""Which keys each process needs from every other process, by the pattern, and how many bytes they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from regard.arguments import count_of, shown, whole
from regard.core.problem import checked_q_start
from regard.core.tensors import DTYPES
from regard.distributed.layout import Layout
from regard.errors import ArgumentError, UnsupportedError
from regard.patterns import Grid, Pattern, as_pattern
from regard.patterns.ranges import Ranges, common, everything, meets, size, union
from regard.reprs import brief

FORMS = ("auto", "ring", "gather", "state")
HEADER = 9  # numbers of 8 bytes that each process tells every other one before a call
ROWS = 64  # queries looked at together where the first or last one that sees a key is searched for
NARROW = 0.5  # auto gathers if the keys that come from other processes are at most this share of a process's own


@dataclass(frozen=True, eq=False)
class Needs:
    """The keys that the queries of each process look at, by the process that holds them.

    Args:
        pattern: of the whole call, by positions in the whole sequence.
        q: how the queries are divided.
        k: how the keys are divided.
        q_start: position of the first query of the whole call.
    """

    pattern: Pattern
    q: Layout
    k: Layout
    q_start: int | torch.Tensor

    @property
    def processes(self) -> int:
        """The number of processes."""
        return len(self.q.lengths)

    @cached_property
    def _known(self) -> dict[int, Ranges]:
        return {}

    def of(self, rank: int) -> Ranges:
        """The keys that some query of a process may look at."""
        if rank not in self._known:
            self._known[rank] = union(keys for rows in self.q.chunks[rank] for keys in self._of_rows(rows))
        return self._known[rank]

    def _of_rows(self, rows: range) -> Ranges:
        pattern, k_len = self.pattern, self.k.length
        if not rows or not k_len:
            return ()
        grid = Grid.whole(self.q.length, k_len, self.q_start).block(rows, range(k_len))
        alike = isinstance(self.q_start, int) and not (pattern.varies_by_head or pattern.varies_by_row)
        if alike and (band := pattern.band()) is not None:
            assert isinstance(self.q_start, int)
            keys = band.keys(self.q_start + rows[0], self.q_start + rows[-1], k_len)
            return (keys,) if keys else ()
        if alike and pattern.structured:
            return pattern.machinery.seen_keys(pattern, grid)
        visible = pattern.visible_keys(grid)
        return everything(k_len) if visible is None else _ranges(visible.flatten(0, 1).any(0))

    @cached_property
    def _between(self) -> dict[tuple[int, int], tuple[Ranges, ...]]:
        return {}

    def between(self, target: int, source: int) -> tuple[Ranges, ...]:
        """The keys that `target` needs of each chunk of `source`."""
        if (target, source) not in self._between:
            needed = self.of(target)
            self._between[target, source] = tuple(common(needed, (chunk,)) for chunk in self.k.chunks[source])
        return self._between[target, source]

    def count(self, target: int, source: int) -> int:
        """The number of keys that `target` needs of `source`."""
        return sum(map(size, self.between(target, source)))

    def parent(self, target: int, source: int) -> int:
        """The process that sends the keys of `source` to `target` in a ring.

        It is the process before `target` if that one needs all of these keys itself, and passes them on; otherwise it
        is `source`.
        """
        before = (target - 1) % self.processes
        if before in (source, target):
            return source
        mine, its = self.between(target, source), self.between(before, source)
        return before if all(common(one, other) == one for one, other in zip(mine, its, strict=True)) else source

    def rows_that_see(self, rows: range, keys: range) -> range:
        """The queries from the first to the last of `rows` that may look at some of `keys`; it may hold more."""
        start = self.q_start
        if not isinstance(start, int) or not self.pattern.structured:
            return rows

        def some(first: int, last: int) -> bool:
            return meets(self.pattern.segments(start + first, start + last, self.k.length).some, keys)

        first = _search(rows, some, backwards=False)
        last = _search(rows, some, backwards=True)
        return range(first, last + 1) if first is not None and last is not None else range(0)

    def keys_near(self, rows: range, keys: range) -> range:
        """The keys from the first to the last of `keys` that some of these queries may look at; it may hold more."""
        if not isinstance(self.q_start, int) or not self.pattern.structured:
            return keys
        near = self.pattern.keys(self.q_start + rows[0], self.q_start + rows[-1], self.k.length)
        low = max(near.start, keys.start)
        return range(low, max(low, min(near.stop, keys.stop)))

    @staticmethod
    def check_form(asked: str) -> None:
        """Raise an ArgumentError unless it is the name of a form."""
        if asked not in FORMS:
            raise ArgumentError(f"form {shown(asked)} does not exist; there are {', '.join(FORMS)}")

    def form(self, asked: str) -> str:
        """The form of the exchange: the one that was asked for, or for "auto" the one that suits the sizes."""
        self.check_form(asked)
        if asked == "state":
            raise UnsupportedError("form='state' exchanges sums of a fixed size and no keys; use it in attention")
        if asked != "auto":
            return asked
        foreign = (size(self.of(rank)) - self.count(rank, rank) for rank in range(self.processes))
        narrow = all(count <= NARROW * own for count, own in zip(foreign, self.k.lengths, strict=True))
        return "gather" if narrow else "ring"


@lru_cache(maxsize=64)
def _kept(pattern: Pattern, q: Layout, k: Layout, q_start: int) -> Needs:
    return Needs(pattern, q, k, q_start)


def needs_of(pattern: Pattern, q: Layout, k: Layout, q_start: int | torch.Tensor) -> Needs:
    """The `Needs` of a call; those of patterns without tensors are kept for later calls, as plans are."""
    if isinstance(q_start, torch.Tensor) or not pattern.by_value:
        return Needs(pattern, q, k, q_start)
    return _kept(pattern, q, k, q_start)


def _search(rows: range, some: Callable[[int, int], bool], backwards: bool) -> int | None:
    """The first row (`backwards`: the last one) of a block that sees something, to within a block."""
    if not rows or not some(rows[0], rows[-1]):
        return None
    if len(rows) <= ROWS:
        return rows[-1] if backwards else rows[0]
    half = len(rows) // 2
    parts = (rows[half:], rows[:half]) if backwards else (rows[:half], rows[half:])
    found = _search(parts[0], some, backwards)
    return _search(parts[1], some, backwards) if found is None else found


def _ranges(marks: torch.Tensor) -> Ranges:
    edges = torch.nn.functional.pad(marks.cpu().to(torch.int8), (1, 1)).diff()
    starts, stops = ((edges == sign).nonzero().flatten().tolist() for sign in (1, -1))
    return tuple(map(range, starts, stops))


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
        raise ArgumentError(f"dtype is {shown(dtype)}; attention takes {', '.join(map(str, DTYPES))}")
    q = Layout(layout, tuple(lengths))
    k = q if k_lengths is None else Layout(layout, tuple(k_lengths))
    if len(k.lengths) != len(q.lengths):
        raise ArgumentError(
            f"lengths are those of {count_of(len(q.lengths), 'processes')} and k_lengths those of {len(k.lengths)}"
        )
    start = k.length - q.length if q_start is None else int(checked_q_start(q_start, batch))
    needs = Needs(as_pattern(pattern).canonical(), q, k, start)
    sizes = whole("batch", batch, 0), whole("kv_heads", kv_heads, 1), whole("head_dim", head_dim, 1)
    a_key = sizes[0] * sizes[1] * (sizes[2] + (sizes[2] if v_dim is None else whole("v_dim", v_dim, 0)))
    return traffic(needs, needs.form(form), a_key, dtype, backward)


def traffic(needs: Needs, form: str, a_key: int, dtype: torch.dtype, backward: bool) -> Traffic:
    """The traffic of a call whose keys and values have `a_key` numbers for each position."""
    ranks = range(needs.processes)
    sent, received = [0] * needs.processes, [0] * needs.processes
    keys = a_key * dtype.itemsize * (2 if backward and form == "ring" else 1)
    gradients = a_key * torch.promote_types(dtype, torch.float32).itemsize if backward else 0
    for target in ranks:
        for source in ranks:
            if source == target or not (count := needs.count(target, source)):
                continue
            sender = needs.parent(target, source) if form == "ring" else source
            sent[sender] += count * keys
            received[target] += count * keys
            sent[target] += count * gradients
            received[source] += count * gradients
    return Traffic(tuple(sent), tuple(received), 8 * HEADER * needs.processes * (needs.processes - 1))
