"""A cache in pages: batch rows and forks share the pages of what they have in common."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Self
from weakref import KeyedRef

import torch

from regard.bias import Forgetting
from regard.functional.compiled import uncompiled
from regard.layers.caches.base import Cache, Entries, checked_rows, forgotten
from regard.layers.caches.entries import Held, entries_before, rows_of

PAGE = 64  # entries


class Pool:
    """The memory of pages: planes (kv_heads, pages, PAGE, dim), shared by forks that may run in threads of their own.

    Entries that are in use are never written again; a page that no table names is free. Pages are taken and written
    under `lock`, so that no thread writes into planes that another one has just replaced by larger ones. Reading needs
    no lock: planes that were replaced still hold all entries that were in use then.
    """

    def __init__(self, planes: dict[str, torch.Tensor]) -> None:
        self.planes = planes
        self.lock = RLock()  # a signal handler may continue a fork while this thread holds it
        self._free: list[int] = []
        self._lent: dict[int, KeyedRef[int, Page]] = {}  # by index, each page that exists
        # A dead reference arrives here without a line of Python, in which an interruption could be lost.
        self._returned: deque[KeyedRef[int, Page]] = deque()

    @property
    def pages(self) -> int:
        return self.planes["k"].shape[1]

    def take(self, count: int) -> list[Page]:
        """Take this many free pages; the pool doubles if it has too few. The caller holds the lock."""
        while self._returned:
            index = self._returned.popleft().key
            self._lent.pop(index, None)
            self._free.append(index)
        if len(self._free) < count:
            self._free = self._not_lent()
        while len(self._free) < count or self._is_closed():
            self._grow(count - len(self._free))
        return [self._lend(self._free.pop()) for _ in range(count)]

    def _not_lent(self) -> list[int]:
        """The free pages, the first one last, with those that an exception in `take` left out."""
        return [index for index in range(self.pages - 1, -1, -1) if index not in self._lent]

    def _is_closed(self) -> bool:
        """Whether the planes were made in inference mode, and cannot be written outside of it."""
        return self.planes["k"].is_inference() and not torch.is_inference_mode_enabled()

    def _grow(self, missing: int) -> None:
        """Replace the planes by larger ones, or by equally large ones where no page is missing."""
        planes = self.planes
        before = self.pages
        after = before if missing <= 0 else max(2 * before, before + missing)
        grown = {}
        for name, plane in planes.items():
            grown[name] = plane.new_empty(plane.shape[0], after, *plane.shape[2:])
            grown[name][:, :before] = plane
        if self.planes is planes:  # else a signal handler has replaced them meanwhile
            self.planes = grown
        self._free = self._not_lent()

    def _lend(self, index: int) -> Page:
        page = Page(index)
        self._lent[index] = KeyedRef(page, self._returned.append, index)
        return page

    def write(self, slots: torch.Tensor, new: dict[str, torch.Tensor]) -> None:
        """Write entries (batch, kv_heads, added, dim) into slots (batch · added), numbered through all pages. The
        caller holds the lock."""
        for name, x in new.items():
            entries = x.detach().transpose(0, 1).flatten(1, 2)  # (kv_heads, batch · added, dim)
            self.planes[name].flatten(1, 2).index_copy_(
                1, slots, entries.to(self.planes[name].dtype)
            )

    def read(self, rows: tuple[tuple[Page, ...], ...], length: int) -> dict[str, torch.Tensor]:
        """The entries of tables, (batch, kv_heads, length, dim): a view where one row's pages follow each other, and
        no gradient is recorded, else a copy."""
        first = rows[0][0].index if len(rows) == 1 and rows[0] else 0
        if (
            len(rows) == 1
            and not torch.is_grad_enabled()
            and all(p.index == first + n for n, p in enumerate(rows[0]))
        ):
            slots = slice(first * PAGE, first * PAGE + length)
            return {
                name: plane.flatten(1, 2)[None, :, slots] for name, plane in self.planes.items()
            }
        index = torch.tensor(
            [page.index for row in rows for page in row], dtype=torch.int64, device="cpu"
        )
        found = {}
        for name, plane in self.planes.items():
            pages = plane.index_select(
                1, index.to(plane.device)
            )  # (kv_heads, batch · pages of a row, PAGE, dim)
            each = pages.view(
                plane.shape[0], len(rows), len(rows[0]) * PAGE if rows else 0, plane.shape[3]
            )
            found[name] = each.transpose(0, 1)[:, :, :length]
        return found


class Page:
    """A page of a pool; it is free again when no table names it."""

    __slots__ = ("__weakref__", "filled", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.filled = 0  # entries that were ever written


@dataclass(frozen=True)
class PageTable:
    """The pages of each batch row, and the number of entries of all of them; the rest is as in `Held`."""

    rows: tuple[tuple[Page, ...], ...]
    entries: int = 0
    first: int = 0
    places: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Number of positions so far."""
        return self.first + self.entries

    def extended(self, pool: Pool, added: int) -> PageTable:
        """With pages for more entries. A row whose last page another row has written on gets a copy of that page.

        The caller holds the lock of the pool.
        """
        if not added:
            return self
        offset = self.entries % PAGE
        rows = list[tuple[Page, ...]]()
        for row in self.rows:
            pages = list(row)
            if offset and pages[-1].filled != offset:
                (own,) = pool.take(1)
                for plane in pool.planes.values():
                    plane[:, own.index, :offset] = plane[:, pages[-1].index, :offset]
                pages[-1] = own
            pages += pool.take(-(-(self.entries + added) // PAGE) - len(pages))
            for at in range(self.entries // PAGE, len(pages)):
                pages[at].filled = min(PAGE, self.entries + added - at * PAGE)
            rows.append(tuple(pages))
        return replace(self, rows=tuple(rows), entries=self.entries + added)

    def slots(self, first: int) -> list[int]:
        """The slot of each entry from the first on, row by row."""
        return [
            row[at // PAGE].index * PAGE + at % PAGE
            for row in self.rows
            for at in range(first, self.entries)
        ]


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
        planes = self._held.planes
        self._pool = Pool(
            {
                name: plane.new_empty(plane.shape[1], 0, PAGE, plane.shape[3])
                for name, plane in planes.items()
            }
        )
        self._table = PageTable(((),) * self.batch)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_pool"], state["_table"]  # forks may be writing into the pool
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
        dtype = k.dtype if v is None or k.dtype == v.dtype else None
        if torch.is_grad_enabled() and (
            self._held.recorded or any(x.requires_grad for x in new.values())
        ):
            held = self._whole().joined(new)
            table = PageTable(((),) * self.batch)
            whole = held
        else:
            recorded = self._held.recorded
            before, held = (
                (self._paged(self._held), self._emptied(self.batch))
                if recorded
                else (self._table, self._held)
            )
            table = self._written(before, new)
            whole = self._read(table)
        returned = *self._returned(whole, dtype), forgotten(whole.used(), new)
        self._held, self._table = held, table
        return returned

    def reorder(self, index: torch.Tensor) -> None:
        """Replace batch row i by batch row `index[i]`, as beam search needs; index: integers (new batch,). No entry is
        copied."""
        index = checked_rows(index, self.batch, "cache")
        if self._held.recorded:
            self._held, self._table = self._held.reordered(index), PageTable(((),) * len(index))
            return
        chosen = range(len(index)) if index.is_meta else index.tolist()
        rows = self._table.rows
        chosen_rows = tuple(rows[min(row, len(rows) - 1)] for row in chosen)
        places = rows_of(self._table.places, index)
        table = replace(self._table, rows=chosen_rows, places=places)
        self._held, self._table = self._emptied(len(index)), table

    def _room(self, needed: int, now: int) -> int:
        return 0

    def _take(self, held: Held) -> None:
        self._table = self._paged(held)

    def _keep(self, held: Held) -> None:
        table = PageTable(((),) * self.batch) if held.recorded else self._paged(held)
        self._held, self._table = held if held.recorded else self._emptied(self.batch), table

    def _crop(self, length: int) -> None:
        if self._held.recorded:
            super()._crop(length)
            if not self._held.entries:
                self._held = self._emptied(self.batch)
        else:
            count, places = entries_before(length, self._table.first, self._table.places)
            rows = tuple(row[: -(-count // PAGE)] for row in self._table.rows)
            self._table = PageTable(rows, count, length - count, places)

    def _emptied(self, batch: int) -> Held:
        """What stands for entries of so many rows that are in pages: their dtype, heads and sizes."""
        planes = self._held.planes
        return Held(
            {
                name: plane.detach().new_empty(batch, plane.shape[1], 0, plane.shape[3])
                for name, plane in planes.items()
            }
        )

    def _paged(self, held: Held) -> PageTable:
        """Pages with these entries."""
        used = held.used()
        table = self._written(PageTable(((),) * used["k"].shape[0]), used)
        return replace(table, first=held.first, places=held.places)

    def _written(self, before: PageTable, new: dict[str, torch.Tensor]) -> PageTable:
        """The table with new entries, which are written into its pages."""
        lock: Any = self._pool.lock
        nested = lock._is_owned()
        try:
            with lock:
                table = before.extended(self._pool, new["k"].shape[2])
                slots = torch.tensor(table.slots(before.entries), dtype=torch.int64, device="cpu")
                self._pool.write(slots.to(new["k"].device), new)
        except BaseException:
            if lock._is_owned() and not nested:  # raised between the last line and the release
                lock.release()
            raise
        return table

    def _last(self) -> Held:
        if self._held.recorded:
            return self._held
        table = self._table
        places = self._table.places
        count = (table.entries - 1) % PAGE + 1 if table.entries else 0  # of the last page
        planes = self._pool.read(tuple(row[-1:] for row in table.rows), count)
        places = None if places is None or places.shape[2] < table.entries else places[..., -count:]
        return Held(planes, 0, count, table.length - count, places=places)

    def _whole(self) -> Held:
        return self._held if self._held.recorded else self._read(self._table)

    def _read(self, table: PageTable) -> Held:
        """The entries of a table, in one piece."""
        planes = self._pool.read(table.rows, table.entries)
        return Held(planes, 0, table.entries, table.first, places=table.places)
