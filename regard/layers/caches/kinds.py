"""The kinds of cache: growing, of fixed capacity, and a ring of the last entries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.arguments import a_path, one_of, whole
from regard.bias import Forgetting
from regard.core.tensors import Place
from regard.errors import ArgumentError, UnsupportedError
from regard.exporting import exporting
from regard.layers.caches.base import Cache, Entries, check_room, forget_bias
from regard.layers.caches.entries import HeldEntries
from regard.layers.caches.files import read_kind
from regard.layers.caches.paged import PagedCache


class GrowingCache(Cache):
    """A cache that grows with its text; its room doubles when it is full, so n appends copy O(n) entries.

    Where gradients are recorded, entries are concatenated instead of written in place, so training through a cache is
    exact.

    >>> cache = GrowingCache(batch=1, kv_heads=2, head_dim=4)
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache.length, keys.shape
    (3, torch.Size([1, 2, 3, 4]))
    """

    kind = "dynamic"
    reserves = True

    def _room(self, needed: int, now: int) -> int:
        # `now` may be far more than is needed: entries also move because another cache has written into the free slots.
        return max(needed, 2 * min(now, needed), 16) if needed else 0


UNKNOWN_STOP = -1  # after a graph wrote entries: it knows the stop only as a tensor
torch.library.define(
    "regard::next_slots", "(Tensor place, SymInt added, SymInt capacity) -> Tensor"
)


class StaticCache(Cache):
    """A cache with room for `capacity` entries, allocated once; further entries are refused.

    A compiled graph cannot move entries: it writes behind those of its cache. Continue only one of several copies in a
    graph, and make the others by `copy.deepcopy`.

    >>> cache = StaticCache(batch=1, kv_heads=2, head_dim=4, capacity=3)
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    Traceback (most recent call last):
    regard.errors.ArgumentError: 1 more entry would not fit: this cache holds 3 of 3; make it with a larger capacity
    """

    kind = "static"
    bounded = True
    reserves = True
    _changing = ("_now", "_owner")
    _now: HeldEntries  # `stop` is unknown after a graph, which computes `stop_tensor` alone

    @property
    def _held(self) -> HeldEntries:
        now = self._now
        if not torch.compiler.is_compiling() and now.stop == UNKNOWN_STOP:
            now = replace(now, stop=int(now.stop_tensor))
            if now.free_slots is not None:
                now.free_slots.note(now.stop)
            self._now = now
        return now

    @_held.setter
    def _held(self, held: HeldEntries) -> None:
        self._now = replace(held, stop_tensor=torch.tensor([held.stop], device="cpu"))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["_now"] = state.pop("_held")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._held.recorded:
            # With room for later entries at once: a graph writes into the planes there are.
            self._held = self._held.moved(self._room(0, 0))

    @property
    def length(self) -> int:
        return int(self._now.stop_tensor) if _in_graph() else self._held.length

    @property
    def place(self) -> Any:
        return Place(self._now.stop_tensor) if _in_graph() else self.length

    def append_gated(
        self, k: torch.Tensor, v: torch.Tensor | None, log_forget: torch.Tensor | None
    ) -> tuple[Entries, Entries, Forgetting | None]:
        if not _in_graph():
            return super().append_gated(k, v, log_forget)
        now = self._now
        learns = k.requires_grad or (v is not None and v.requires_grad)
        if now.dropped or now.start or now.places is not None:
            raise UnsupportedError(
                "a static cache that dropped entries is not compiled; use it outside torch.compile"
            )
        if self.dtype != k.dtype or (learns and torch.is_grad_enabled()):
            raise UnsupportedError(
                "in a compiled graph a static cache stores the dtype of its layer, and no gradient; give new_cache no "
                "dtype, and use torch.no_grad()"
            )
        new = self._stored(k, v, log_forget)
        added = k.shape[2]
        planes = now.planes
        slots = torch.ops.regard.next_slots(now.stop_tensor, added, self.capacity).to(k.device)
        for name, x in new.items():
            planes[name].index_copy_(2, slots, x)
        self._now = HeldEntries(
            planes,
            start=0,
            stop=UNKNOWN_STOP,
            free_slots=now.free_slots,
            stop_tensor=now.stop_tensor + added,
        )
        values = planes["k"][..., : self.v_dim] if self.joined else planes["v"]
        return planes["k"], values, forget_bias(planes, new)

    def _forgotten(self) -> torch.Tensor:
        if not _in_graph():
            return super()._forgotten()
        sums = self._now.planes["forgotten"]
        stop = self._now.stop_tensor.to(sums.device)
        return sums.index_select(2, (stop - 1).clamp(min=0)).where(stop > 0, 0)

    def _check_capacity(self, added: int) -> None:
        if not _in_graph():  # there `next_slots` checks it
            super()._check_capacity(added)

    def _room(self, needed: int, now: int) -> int:
        assert self.capacity is not None
        return self.capacity


def _in_graph() -> bool:
    """Whether a compiler traces; programs that are exported concatenate entries."""
    return torch.compiler.is_compiling() and not exporting()


@torch.library.impl("regard::next_slots", "CompositeExplicitAutograd")
def _next_slots(place: torch.Tensor, added: int, capacity: int) -> torch.Tensor:
    """The slots of the next entries of a static cache, (added,); an ArgumentError if it is full."""
    check_room(int(place), added, capacity)
    return place + torch.arange(added, device="cpu")


@torch.library.register_fake("regard::next_slots")
def _slots_like(place: torch.Tensor, added: int, capacity: int) -> torch.Tensor:
    return place.new_empty(added)


class RingCache(Cache):
    """A cache of the last `capacity` entries of a text of any length, for patterns with a window.

    `length` counts dropped entries too, so positions stay correct; a pattern that reaches a dropped entry is refused.
    Queries of one append see the entries kept before it and the new ones; then all but the last `capacity` are
    dropped. `CausalWindow(w)` therefore needs a capacity of w - 1. Entries stay contiguous: a quarter more room is
    allocated, and they move to the front only when it is used up, so n appends copy O(n) entries.

    With `first_entries=n` the first n entries of the text stay too, for `causal_window(w) | (causal & prefix(n))`; then
    the entries between are dropped when the room is used up.

    >>> cache = RingCache(batch=1, kv_heads=2, head_dim=4, capacity=3)
    >>> for _ in range(5):
    ...     keys, values = cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    >>> cache.length, keys.first, cache.keys.first
    (5, 1, 2)

    Source of the first entries: StreamingLLM, Xiao et al. 2023, section 3.2.
    """

    kind = "ring"
    bounded = True
    reserves = True

    def __init__(self, *sizes: Any, first_entries: int = 0, **options: Any) -> None:
        self.first_entries = whole("first_entries", first_entries, 0)
        super().__init__(*sizes, **options)

    def _room(self, needed: int, now: int) -> int:
        assert self.capacity is not None
        spare = max(16, self.capacity // 4)
        return max(needed, self.first_entries + self.capacity + spare)

    def _check_capacity(self, added: int) -> None:
        pass  # older entries are dropped

    def _kept_after_append(self, held: HeldEntries) -> HeldEntries:
        excess = max(0, self._excess(held))
        usual_room = self._room(0, 0)
        if self.first_entries:
            # Those between stay in their slots until the room is used up, so that few entries move.
            if held.entries < usual_room:
                return held
            kept = held.without_middle(self.first_entries, excess)
            return kept if kept.recorded else kept.moved(usual_room)
        kept = held.without_oldest(excess)
        if kept.room <= usual_room or kept.recorded:
            return kept
        return kept.moved(usual_room)

    def _excess(self, held: HeldEntries) -> int:
        """How many entries are held beyond the first ones and the capacity."""
        assert self.capacity is not None
        return held.entries - self.first_entries - self.capacity

    def _keep(self, held: HeldEntries) -> None:
        raise UnsupportedError(
            f"keep: a ring itself drops its oldest entries, and holds the first {self.first_entries} and the last "
            f"{self.capacity}; use a dynamic, static or paged cache, or first_entries= for the entries that stay"
        )

    def _whole(self) -> HeldEntries:
        held = self._held
        excess = self._excess(held)
        return held.without_middle(self.first_entries, excess) if excess > 0 else held


KINDS: dict[str, type[Cache]] = {
    kind.kind: kind for kind in (GrowingCache, StaticCache, RingCache, PagedCache)
}


def new_cache(kind: str, batch: int, kv_heads: int, head_dim: int, **options: Any) -> Cache:
    """An empty cache of a kind: "dynamic", "static", "ring" or "paged"; further arguments as for `Cache`.

    >>> new_cache("static", 2, 4, 64, dtype="int8", capacity=512)
    StaticCache(batch=2, kv_heads=4, length=0, head_dim=64, int8, capacity=512)
    """
    kind = one_of("kind", kind, KINDS)
    if kind != "ring" and options.pop("first_entries", 0):
        raise ArgumentError(
            f"first_entries= is for a ring, which drops entries; a {kind} cache keeps all, so leave it out"
        )
    return KINDS[kind](batch, kv_heads, head_dim, **options)


def load_cache(path: str | Path, device: torch.device | str = "cpu") -> Cache:
    """Read a cache that `save` wrote, of any kind.

    Raises:
        CheckpointError: the file is missing, damaged, or not a cache.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     StaticCache(1, 2, 4, capacity=8).save(f"{folder}/cache.safetensors")
    ...     load_cache(f"{folder}/cache.safetensors")
    StaticCache(batch=1, kv_heads=2, length=0, head_dim=4, float32, capacity=8)
    """
    kind = read_kind(a_path("path", path), tuple(KINDS))
    return KINDS[kind].load(path, device)
