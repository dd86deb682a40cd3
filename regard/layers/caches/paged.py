"""A cache in pages: batch rows and forks share the pages of what they have in common."""

from __future__ import annotations

import copy
import os
from collections import deque
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Self
from weakref import KeyedRef, ref

import torch

from regard.bias import Forgetting
from regard.functional.compiled import uncompiled
from regard.layers.caches.base import (
    Cache,
    Entries,
    checked_rows,
    common_dtype,
    forget_bias,
    needs_gradient,
)
from regard.layers.caches.entries import HeldEntries, entries_before, is_closed, rows_of

PAGE = 64  # entries


class PagePool:
    """The memory of pages: planes (kv_heads, pages, PAGE, dim), shared by forks that may run in threads of their own.

    Entries that are in use are never written again; a page that no table names is free. Pages are taken and written
    under `lock`, so that no thread writes into planes that another one has just replaced by larger ones. Reading needs
    no lock: planes that were replaced still hold all entries that were in use then.
    """

    def __init__(self, planes: dict[str, torch.Tensor]) -> None:
        self.planes = planes
        self.lock: Any = RLock()  # it knows whether this thread holds it, see `PageTable.appended`
        self._free: list[int] = []
        self._lent: dict[int, KeyedRef[int, MemoryPage]] = {}  # by index, each page that exists
        # A dead reference arrives here without a line of Python, in which an interruption could be lost.
        self._returned: deque[KeyedRef[int, MemoryPage]] = deque()
        _pools.add(ref(self, _pools.discard))

    @classmethod
    def like(cls, planes: dict[str, torch.Tensor], kv_heads_axis: int) -> PagePool:
        """A pool without pages, for entries as these planes (.., kv_heads, .., dim) hold them."""
        empty = {}
        for name, plane in planes.items():
            empty[name] = plane.new_empty(plane.shape[kv_heads_axis], 0, PAGE, plane.shape[-1])
        return cls(empty)

    @property
    def pages(self) -> int:
        return self.planes["k"].shape[1]

    def take(self, count: int) -> list[MemoryPage]:
        """Take this many free pages; the pool doubles if it has too few. The caller holds the lock."""
        while self._returned:
            # In this order an exception between two lines loses no page: what is in the queue is seen again, and what
            # is neither lent nor in `_free` is found by `_not_lent`.
            index = self._returned[0].key
            self._lent.pop(index, None)
            self._returned.popleft()
            self._free.append(index)
        if len(self._free) < count:
            self._free = self._not_lent()
        while len(self._free) < count or is_closed(self.planes["k"]):
            self._grow(count - len(self._free))
        return [self._lend(self._free.pop()) for _ in range(count)]

    def _not_lent(self) -> list[int]:
        """The free pages, the first one last, with those that an exception in `take` left out."""
        return [index for index in range(self.pages - 1, -1, -1) if index not in self._lent]

    def _grow(self, missing: int) -> None:
        """Replace the planes by larger ones, or by equally large ones where no page is missing."""
        before = self.pages
        after = before if missing <= 0 else max(2 * before, before + missing)
        grown = {}
        for name, plane in self.planes.items():
            grown[name] = plane.new_empty(plane.shape[0], after, *plane.shape[2:])
            grown[name][:, :before] = plane
        self.planes = grown
        self._free = self._not_lent()

    def _lend(self, index: int) -> MemoryPage:
        page = MemoryPage(index)
        self._lent[index] = KeyedRef(page, self._returned.append, index)
        return page

    def copy_page(self, source: MemoryPage, target: MemoryPage, entries: int) -> None:
        """Copy the first entries of a page into another one. The caller holds the lock."""
        for plane in self.planes.values():
            plane[:, target.index, :entries] = plane[:, source.index, :entries]

    def write(self, slots: list[int], new: dict[str, torch.Tensor]) -> None:
        """Write entries (batch, kv_heads, added, dim) into slots (batch · added), numbered through all pages. The
        caller holds the lock."""
        slots_of_device = torch.tensor(slots, dtype=torch.int64, device="cpu").to(new["k"].device)
        for name, x in new.items():
            plane = self.planes[name]
            entries = x.detach().transpose(0, 1).flatten(1, 2)  # (kv_heads, batch · added, dim)
            plane.flatten(1, 2).index_copy_(1, slots_of_device, entries.to(plane.dtype))

    def read(
        self, rows: tuple[tuple[MemoryPage, ...], ...], length: int
    ) -> dict[str, torch.Tensor]:
        """The entries of tables, (batch, kv_heads, length, dim): a view where one row's pages follow each other, and
        no gradient is recorded, else a copy."""
        if len(rows) == 1 and not torch.is_grad_enabled() and _follow_each_other(rows[0]):
            start = rows[0][0].index * PAGE if rows[0] else 0
            slots = slice(start, start + length)
            return {
                name: plane.flatten(1, 2)[None, :, slots] for name, plane in self.planes.items()
            }

        numbers: list[int] = []
        for row in rows:
            numbers += [page.index for page in row]
        index = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        room = len(rows[0]) * PAGE if rows else 0
        entries = {}
        for name, plane in self.planes.items():
            kv_heads, _, _, dim = plane.shape
            # (kv_heads, batch · pages of a row, PAGE, dim)
            pages = plane.index_select(1, index.to(plane.device))
            each_row = pages.view(kv_heads, len(rows), room, dim)
            entries[name] = each_row.transpose(0, 1)[:, :, :length]
        return entries


_pools: set[ref[PagePool]] = set()  # all that exist


def _unlock_pools() -> None:
    """Give each pool a new lock in a process that was forked: no thread is left that would release the old one.

    What such a thread was changing is as after an exception at its line: entries in use are whole.
    """
    for reference in list(_pools):
        pool = reference()
        if pool is not None:
            pool.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_pools)


class MemoryPage:
    """A page of a pool; it is free again when no table names it."""

    __slots__ = ("__weakref__", "filled", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.filled = 0  # entries that were ever written


def _follow_each_other(pages: tuple[MemoryPage, ...]) -> bool:
    for number, page in enumerate(pages, pages[0].index if pages else 0):
        if page.index != number:
            return False
    return True


@dataclass(frozen=True)
class PageTable:
    """The pages of each batch row in a pool, and the number of entries of each; the rest is as in `HeldEntries`."""

    pool: PagePool
    rows: tuple[tuple[MemoryPage, ...], ...]
    entries: int = 0
    dropped: int = 0
    places: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Number of positions so far."""
        return self.dropped + self.entries

    @classmethod
    def empty(cls, pool: PagePool, batch: int) -> PageTable:
        """The table of rows without entries."""
        return cls(pool, ((),) * batch)

    def appended(self, new: dict[str, torch.Tensor]) -> PageTable:
        """The table with new entries, which are written into its pages."""
        before = self
        if self.pool.lock._is_owned():
            # This call interrupts one of its thread that is changing the pool, as that of a signal handler may. The
            # pool cannot be waited for, nor changed, so these rows get one of their own.
            entries = self.pool.read(self.rows, self.entries)
            own = PageTable.empty(PagePool.like(self.pool.planes, 0), len(self.rows))
            before = replace(own.appended(entries), dropped=self.dropped, places=self.places)
        pool = before.pool
        lock = pool.lock
        try:
            with lock:
                table = before._extended(new["k"].shape[2])
                pool.write(table._slots(before.entries), new)
        except BaseException:
            if lock._is_owned():  # raised between the last line and the release
                lock.release()
            raise
        return table

    def _extended(self, added: int) -> PageTable:
        """With pages for more entries. A row whose last page another row has written on gets a copy of that page.

        The caller holds the lock of the pool.
        """
        if not added:
            return self
        entries = self.entries + added
        offset = self.entries % PAGE
        rows: list[tuple[MemoryPage, ...]] = []
        for row in self.rows:
            pages = list(row)
            if offset and pages[-1].filled != offset:
                (copied,) = self.pool.take(1)
                self.pool.copy_page(pages[-1], copied, offset)
                pages[-1] = copied
            pages += self.pool.take(-(-entries // PAGE) - len(pages))
            for number in range(self.entries // PAGE, len(pages)):
                pages[number].filled = min(PAGE, entries - number * PAGE)
            rows.append(tuple(pages))
        return PageTable(self.pool, tuple(rows), entries, self.dropped, self.places)

    def _slots(self, start: int) -> list[int]:
        """The slot of each entry from the number `start` on, row by row."""
        slots: list[int] = []
        for row in self.rows:
            slots += [
                row[entry // PAGE].index * PAGE + entry % PAGE
                for entry in range(start, self.entries)
            ]
        return slots

    def reordered(self, index: torch.Tensor) -> PageTable:
        """The table whose row i names the pages of row `index[i]` of this one."""
        chosen = range(len(index)) if index.is_meta else index.tolist()
        last = len(self.rows) - 1
        rows = tuple(self.rows[min(row, last)] for row in chosen)
        return replace(self, rows=rows, places=rows_of(self.places, index))

    def cropped(self, length: int) -> PageTable:
        """The table of the entries before the position `length`."""
        count, places = entries_before(length, self.dropped, self.places)
        rows = tuple(row[: -(-count // PAGE)] for row in self.rows)
        return PageTable(self.pool, rows, count, length - count, places)


class PagedCache(Cache):
    """A cache in pages of 64 entries, which batch rows and forks share: `reorder` and `fork` copy no entry.

    A row that continues after a page was shared copies the begun page at most. Pages are taken as they are needed, and
    are free again when no row names them, so a beam search stores what its beams have in common once. Attention reads
    one row in place while its pages follow each other; otherwise keys and values are gathered in each call, which costs
    time in proportion to the length.

    Where gradients are recorded, entries are concatenated, as in a growing cache.

    Args:
        capacity: the most entries of a row; None for no limit.

    >>> cache = PagedCache(batch=1, kv_heads=2, head_dim=4)
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache.reorder(torch.tensor([0, 0, 0]))  # three beams of one text
    >>> other = cache.fork()
    >>> keys, values = other.append(torch.ones(3, 2, 1, 4), torch.ones(3, 2, 1, 4))
    >>> cache.length, other.length, other.pages
    (3, 4, 3)
    """

    kind = "paged"
    bounded = None
    _changing = ("_held", "_table", "_owner")

    def _set_up(self) -> None:
        self._table = PageTable.empty(PagePool.like(self._held.planes, 1), self.batch)

    @property
    def _pool(self) -> PagePool:
        return self._table.pool

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_table"]  # forks may be writing into its pool
        if not self._held.recorded:
            held = self._read(self._table)
            planes = {name: plane.clone() for name, plane in held.planes.items()}
            state["_held"] = replace(held, planes=planes)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()
        if not self._held.recorded:
            self._table = self._paged(self._held)
            self._held = self._emptied(self.batch)

    @property
    def length(self) -> int:
        """Number of entries appended and not cropped; also the position of the next entry."""
        return self._held.length if self._held.recorded else self._table.length

    @property
    def entries(self) -> int:
        """Number of entries held: fewer than `length` after `keep`."""
        return self._held.entries if self._held.recorded else self._table.entries

    @property
    def pages(self) -> int:
        """Number of different pages that the batch rows name."""
        return len({page.index for row in self._table.rows for page in row})

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, including free ones; forks of a cache have them in common."""
        planes = (*self._pool.planes.values(), *self._held.planes.values())
        return sum(plane.numel() * plane.element_size() for plane in planes)

    def fork(self) -> Self:
        """An independent cache with the same entries, which shares their pages; nothing is copied. Each fork may be
        continued by a thread of its own."""
        return copy.copy(self)

    @uncompiled  # a compiler would make pages of its own, and free them
    def append_gated(
        self, k: torch.Tensor, v: torch.Tensor | None, log_forget: torch.Tensor | None
    ) -> tuple[Entries, Entries, Forgetting | None]:
        """Append entries, and return all keys and values; see `Cache.append_gated`."""
        new = self._stored(k, v, log_forget)
        if torch.is_grad_enabled() and (self._held.recorded or needs_gradient(new)):
            held = self._whole().concatenated(new)
            table = PageTable.empty(self._pool, self.batch)
            whole = held
        elif self._held.recorded:
            held = self._emptied(self.batch)
            table = self._paged(self._held).appended(new)
            whole = self._read(table)
        else:
            held = self._held
            table = self._table.appended(new)
            whole = self._read(table)
        keys, values = self._returned(whole, common_dtype(k, v))
        bias = forget_bias(whole.used(), new)
        self._held, self._table = held, table
        return keys, values, bias

    def reorder(self, index: torch.Tensor) -> None:
        """Replace batch row i by batch row `index[i]`, as beam search needs; index: integers (new batch,). No entry is
        copied."""
        index = checked_rows(index, self.batch, "cache")
        if self._held.recorded:
            self._keep(self._held.reordered(index))
        else:
            self._held, self._table = self._emptied(len(index)), self._table.reordered(index)

    def _room(self, needed: int, now: int) -> int:
        return 0

    def _begin_with(self, held: HeldEntries) -> None:
        self._table = self._paged(held)

    def _keep(self, held: HeldEntries) -> None:
        batch = len(held.planes["k"])
        if held.recorded and held.entries:
            table = PageTable.empty(self._pool, batch)
        else:
            table = self._paged(held)
            held = self._emptied(batch)
        self._held, self._table = held, table

    def _crop(self, length: int) -> None:
        if not self._held.recorded:
            self._table = self._table.cropped(length)
        elif length:
            self._keep(self._held.cropped(length))
        else:
            self._keep(self._emptied(self.batch))

    def _emptied(self, batch: int) -> HeldEntries:
        """What stands for entries of so many rows that are in pages: their dtype, heads and sizes."""
        planes = {}
        for name, plane in self._held.planes.items():
            _, kv_heads, _, dim = plane.shape
            planes[name] = plane.detach().new_empty(batch, kv_heads, 0, dim)
        return HeldEntries(planes)

    def _paged(self, held: HeldEntries) -> PageTable:
        """Pages with these entries."""
        used = held.used()
        table = PageTable.empty(self._pool, len(used["k"])).appended(used)
        return replace(table, dropped=held.dropped, places=held.places)

    def _forgotten(self) -> torch.Tensor:
        if self._held.recorded:
            return self._held.forgotten()
        table = self._table
        count = (table.entries - 1) % PAGE + 1 if table.entries else 0  # of the last page
        planes = table.pool.read(tuple(row[-1:] for row in table.rows), count)
        places = table.places
        if places is not None:
            places = None if places.shape[2] < table.entries else places[..., -count:]
        last_page = HeldEntries(planes, 0, count, table.length - count, places=places)
        return last_page.forgotten()

    def _whole(self) -> HeldEntries:
        return self._held if self._held.recorded else self._read(self._table)

    def _read(self, table: PageTable) -> HeldEntries:
        """The entries of a table, in one piece."""
        planes = table.pool.read(table.rows, table.entries)
        return HeldEntries(planes, 0, table.entries, table.dropped, places=table.places)
