"""What a cache holds at one moment, and which of the caches that share memory may write into it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch

from regard.arguments import count_of, whole_or
from regard.core.tensors import positions_of
from regard.errors import ArgumentError, UnsupportedError


def is_closed(x: torch.Tensor) -> bool:
    """Whether a tensor was made in inference mode, and cannot be written outside of it."""
    return x.is_inference() and not torch.is_inference_mode_enabled()


class FreeSlots:
    """The free slots of planes that caches share: which cache may write them, also where each has a thread of its own.

    A copy of a cache shares its planes. Whoever appends first behind the last entry that was written goes on in place,
    and every other cache moves its entries to new planes.

    Args:
        written: how many slots from the first on are written already.
    """

    def __init__(self, written: int) -> None:
        # One past the last slot that was claimed. Whoever claims takes it out: two threads never both have it, and an
        # exception at any line loses it at worst, so that the next append moves the entries.
        self._written = [written]
        self._holders: set[ref[Any]] = set()  # caches that were copied, and their copies

    def share(self, *caches: Any) -> None:
        """Note that these caches hold entries of the planes."""
        for cache in caches:
            # What is called when a cache is gone is no Python code, in which an interruption could be lost.
            self._holders.add(ref(cache, self._holders.discard))

    def claim(self, start: int, stop: int, overwrites: bool = False) -> bool:
        """Whether a cache whose entries end at the slot `start` may write up to `stop`; if so, no other one may.

        overwrites: whether it may write over entries that it dropped. No other cache may hold them then, and where
            gradients are recorded autograd may have saved them.
        """
        try:
            written = self._written.pop()
        except IndexError:
            return False
        granted = written == start
        if not granted and overwrites and not torch.is_grad_enabled():
            granted = len(self._holders) <= 1
        self._written.append(stop if granted else written)
        return granted

    def give_back(self, claimed: int, stop: int) -> None:
        """Free the slots from `stop` on, which were claimed up to `claimed` and not written."""
        try:
            written = self._written.pop()
        except IndexError:
            return
        self._written.append(stop if written == claimed else written)

    def note(self, stop: int) -> None:
        """Note that a compiled graph, which claims nothing, has written up to `stop`."""
        self._written[:] = [stop]

    def __reduce__(self) -> Any:  # planes are pickled without it: what is unpickled makes its own
        return FreeSlots, (0,)


@dataclass(frozen=True)
class HeldEntries:
    """Entries in slots `start` to `stop` - 1 of every plane. `dropped` positions have no entry any more.

    A plane is a tensor (batch, kv_heads, room, dim): the keys, the values, their scales, or the sums of log forget
    gates up to each key, which `keeping` counts again from the end of the text. HeldEntries are immutable: a change
    makes new ones. Slots in use are never written again, so earlier HeldEntries stay valid while only appends
    follow them. Free slots are written only if `free_slots` grants it.

    `places` (batch or 1, kv_heads or 1, n) are the positions of the first n entries, where positions between some of
    them were dropped. The entries after these follow one another.
    """

    planes: dict[str, torch.Tensor]
    start: int = 0
    stop: int = 0
    dropped: int = 0
    free_slots: FreeSlots | None = None  # of the planes
    places: torch.Tensor | None = None
    stop_tensor: Any = None  # of a static cache: `stop` as a tensor (1,), for graphs of any length

    @property
    def entries(self) -> int:
        return self.stop - self.start

    @property
    def length(self) -> int:
        """Number of positions so far, including dropped entries."""
        return self.dropped + self.entries

    @property
    def room(self) -> int:
        return self.planes["k"].shape[2]

    @property
    def recorded(self) -> bool:
        """Whether autograd records these entries."""
        # Each step of decoding reads this several times, and any() with a generator takes twice as long.
        for plane in self.planes.values():
            if plane.requires_grad:
                return True
        return False

    @property
    def read_only(self) -> bool:
        """Whether free slots may not be written, because autograd or inference mode forbids it."""
        if self.recorded:
            return True
        # A compiler cannot trace inference tensors, so it does not ask for them.
        return not torch.compiler.is_compiling() and is_closed(self.planes["k"])

    def used(self) -> dict[str, torch.Tensor]:
        """Views of the slots in use of every plane."""
        return {name: plane[:, :, self.start : self.stop] for name, plane in self.planes.items()}

    def concatenated(self, new: dict[str, torch.Tensor]) -> HeldEntries:
        """These entries and new ones concatenated into new tensors, as autograd needs."""
        planes = {name: torch.cat([plane, new[name]], 2) for name, plane in self.used().items()}
        entries = self.entries + new["k"].shape[2]
        return HeldEntries(planes, 0, entries, self.dropped, places=self.places)

    def claimed(self, added: int, overwrites: bool) -> bool:
        """Whether `added` more entries may be written into free slots; see `FreeSlots.claim`."""
        if self.stop + added > self.room or self.read_only or self.free_slots is None:
            return False
        return self.free_slots.claim(self.stop, self.stop + added, overwrites)

    def written(self, new: dict[str, torch.Tensor]) -> HeldEntries:
        """These entries and new ones after them, written into free slots that were claimed."""
        stop = self.stop + new["k"].shape[2]
        for name, plane in self.planes.items():
            # Where gradients are recorded only slots that were never written are claimed: autograd has saved none of
            # them, so writing them through .data does not invalidate what it has saved.
            target = plane.data if torch.is_grad_enabled() else plane
            target[:, :, self.stop : stop] = new[name]
        # Each step of decoding passes here, and `replace` would ask the class for its fields first.
        return HeldEntries(
            self.planes,
            self.start,
            stop,
            self.dropped,
            self.free_slots,
            self.places,
            self.stop_tensor,
        )

    def moved(self, room: int) -> HeldEntries:
        """These entries at the start of new planes with `room` slots, detached."""
        planes = {}
        for name, plane in self.used().items():
            planes[name] = plane.new_empty(*plane.shape[:2], room, plane.shape[3])
            planes[name][:, :, : self.entries] = plane.detach()
        free_slots = FreeSlots(self.entries)
        return HeldEntries(planes, 0, self.entries, self.dropped, free_slots, self.places)

    def reordered(self, index: torch.Tensor) -> HeldEntries:
        """Batch row i is batch row `index[i]` of these."""
        index = index.to(self.planes["k"].device)
        places = rows_of(self.places, index)
        if self.recorded:
            planes = {name: plane.index_select(0, index) for name, plane in self.used().items()}
            return HeldEntries(planes, 0, self.entries, self.dropped, places=places)

        planes = {}
        for name, plane in self.used().items():
            planes[name] = plane.new_empty(len(index), plane.shape[1], self.room, plane.shape[3])
            torch.index_select(plane, 0, index, out=planes[name][:, :, : self.entries])
        free_slots = FreeSlots(self.entries)
        return HeldEntries(planes, 0, self.entries, self.dropped, free_slots, places)

    def without_oldest(self, count: int) -> HeldEntries:
        """Without the first `count` entries; the others keep their positions."""
        return replace(self, start=self.start + count, dropped=self.dropped + count)

    def without_middle(self, first_entries: int, count: int) -> HeldEntries:
        """The entries, in new planes, without the `count` that follow the first `first_entries`."""
        planes = {}
        for name, plane in self.used().items():
            rest = plane[:, :, first_entries + count :]
            planes[name] = torch.cat([plane[:, :, :first_entries], rest], 2)
        return HeldEntries(planes, 0, self.entries - count, self.dropped + count)

    def cropped(self, length: int, first_entries: int = 0) -> HeldEntries:
        """The entries before the position `length`; the first `first_entries` of a text were never dropped."""
        if length <= first_entries:
            return replace(self, stop=self.start + length, dropped=0)
        count, places = entries_before(length, self.dropped, self.places)
        return replace(self, stop=self.start + count, dropped=length - count, places=places)

    def positions(self, first_entries: int = 0) -> torch.Tensor:
        """The positions of the entries, int64 (batch or 1, kv_heads or 1, entries)."""
        device = self.planes["k"].device
        return positions_of(self.entries, self.dropped, first_entries, self.places, device)

    def forgotten(self) -> torch.Tensor:
        """The sums of log forget gates up to the end of the text, (batch, kv_heads, 1, gates)."""
        sums = self.planes["forgotten"]
        if not self.entries:
            return sums.new_zeros(*sums.shape[:2], 1, sums.shape[3])
        last = sums[:, :, self.stop - 1 : self.stop]
        if self.places is None or self.places.shape[2] < self.entries:
            return last
        ends_the_text = self.places[..., -1:] == self.length - 1
        return last.where(ends_the_text[..., None], 0)

    def keeping(self, chosen: torch.Tensor, after: int | None = None) -> HeldEntries:
        """The entries at ascending positions (batch or 1, kv_heads or 1, n) alone; see `Cache.keep`.

        Raises:
            ArgumentError: a position that is not held, or that is named twice.
            UnsupportedError: `after` with forget gates.
        """
        if after is not None and "forgotten" in self.planes:
            raise UnsupportedError(
                "keep(after=...): forget gates are summed along the text and not along a path of a Tree; crop the "
                "cache to the entries before the tree, and compute the path again"
            )
        length = whole_or("after", after, self.length, 0, self.length)

        held = self.positions()
        rows = max(held.shape[0], chosen.shape[0])
        heads = max(held.shape[1], chosen.shape[1])
        held = held.expand(rows, heads, -1).contiguous()
        chosen = chosen.expand(rows, heads, -1).contiguous()
        slots = torch.searchsorted(held, chosen)
        if not chosen.is_meta:
            self._check_chosen(chosen, held, slots, after)

        positions = chosen
        if after is not None:
            count, _ = entries_before(length, self.dropped, self.places)
            earlier_slots = torch.arange(count, device=held.device).expand(rows, heads, -1)
            slots = torch.cat([earlier_slots, slots], -1)
            new_length = length + chosen.shape[2]
            new_positions = torch.arange(length, new_length, device=held.device)
            positions = torch.cat([held[..., :count], new_positions.expand(chosen.shape)], -1)
            length = new_length

        entries = slots.shape[2]
        dropped = length - entries
        sizes = (*self.planes["k"].shape[:2], entries)
        index = slots.expand(sizes)[..., None]
        planes = {}
        for name, plane in self.used().items():
            planes[name] = plane.gather(2, index.expand(*sizes, plane.shape[3]))
        if "forgotten" in planes:
            planes["forgotten"] = planes["forgotten"] - self.forgotten()
        return HeldEntries(planes, 0, entries, dropped, places=_before_gap(positions, dropped))

    def _check_chosen(
        self, chosen: torch.Tensor, held: torch.Tensor, slots: torch.Tensor, after: int | None
    ) -> None:
        """Refuse chosen positions that are not held; `slots` are where they would be among the held ones."""
        if self.entries:
            unknown = held.gather(-1, slots.clamp(max=self.entries - 1)) != chosen
        else:
            unknown = torch.ones_like(chosen, dtype=torch.bool)
        repeated = torch.nn.functional.pad(chosen.diff(dim=-1) == 0, (1, 0))
        earlier = chosen < (after or 0)

        faults = {
            "is not held" if self.dropped else "is not a position of this text": unknown,
            "is named twice": repeated,
            f"is before {after}, where entries stay in any case": earlier,
        }
        for fault, wrong in faults.items():
            if bool(wrong.any()):
                entries = count_of(self.entries, "entries")
                raise ArgumentError(
                    f"keep: {int(chosen[wrong][0])} {fault}; this cache holds {entries} of "
                    f"{count_of(self.length, 'positions')}"
                )


def _before_gap(positions: torch.Tensor, dropped: int) -> torch.Tensor | None:
    """The positions of the entries before the last gap; None where no position was dropped."""
    if not dropped:
        return None
    if positions.is_meta:
        return positions
    gapless = torch.arange(positions.shape[2], device=positions.device) + dropped
    displaced = (positions != gapless).any(0).any(0).nonzero()
    count = int(displaced.max()) + 1 if len(displaced) else 0
    return positions[..., :count]


def rows_of(places: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    """The places of other batch rows."""
    if places is None or len(places) == 1:
        return places
    return places.index_select(0, index.to(places.device))


def entries_before(
    length: int, dropped: int, places: torch.Tensor | None
) -> tuple[int, torch.Tensor | None]:
    """How many held entries have a position below `length`, and the places among them.

    Raises:
        ArgumentError: batch rows or heads differ in this number.
    """
    if places is None or length >= places.shape[2] + dropped:
        return length - dropped, places
    count = int((places < length).sum(-1).max())
    if not bool((places[..., :count] < length).all()):
        raise ArgumentError(
            f"batch rows or heads kept different numbers of entries before position {length}, and a cache has "
            f"equally many of each; give {int(places.max()) + 1} or more, or 0"
        )
    return count, places[..., :count] if count < length else None
