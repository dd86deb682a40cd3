"""What a cache holds at one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Held:
    """Entries in slots start .. stop of every plane; the first of them stands at position `first`.

    A plane is one kind of number of all entries, (batch, kv_heads, room, dim): keys, values, and their scales. What
    is held changes only by making another Held: slots in use are never written again, so an earlier one stays true
    as long as only appends came after it.
    """

    planes: dict[str, torch.Tensor]
    start: int = 0
    stop: int = 0
    first: int = 0
    written_to: int = 0  # one past the last slot that ever held an entry

    @property
    def entries(self) -> int:
        """How many are held."""
        return self.stop - self.start

    @property
    def length(self) -> int:
        """Positions so far, those no longer held included."""
        return self.first + self.entries

    @property
    def room(self) -> int:
        """Slots there are."""
        return self.planes["k"].shape[2]

    @property
    def recorded(self) -> bool:
        """Does autograd remember where these entries came from?"""
        return any(plane.requires_grad for plane in self.planes.values())

    @property
    def fixed(self) -> bool:
        """Must free slots be left as they are, for autograd's sake?"""
        return self.recorded or (self.planes["k"].is_inference() and not torch.is_inference_mode_enabled())

    def used(self) -> dict[str, torch.Tensor]:
        """The slots in use of every plane, viewed in place."""
        return {name: plane[:, :, self.start : self.stop] for name, plane in self.planes.items()}

    def joined(self, new: dict[str, torch.Tensor]) -> Held:
        """These entries and new ones in tensors of their own, as autograd needs it."""
        planes = {name: torch.cat([plane, new[name]], 2) for name, plane in self.used().items()}
        return Held(planes, 0, self.entries + new["k"].shape[2], self.first)

    def written(self, new: dict[str, torch.Tensor]) -> Held:
        """These entries and new ones behind them, written into free slots."""
        stop = self.stop + new["k"].shape[2]
        fresh = torch.is_grad_enabled() and self.stop >= self.written_to
        for name, plane in self.planes.items():
            # autograd has saved no fresh slot, so writing one must not mark the saved ones as changed
            (plane.data if fresh else plane)[:, :, self.stop : stop] = new[name]
        return Held(self.planes, self.start, stop, self.first, max(stop, self.written_to))

    def moved(self, room: int) -> Held:
        """These entries at the start of new planes with `room` slots, without what autograd remembers."""
        planes = {}
        for name, plane in self.used().items():
            planes[name] = plane.new_empty(*plane.shape[:2], room, plane.shape[3])
            planes[name][:, :, : self.entries] = plane.detach()
        return Held(planes, 0, self.entries, self.first)

    def reordered(self, index: torch.Tensor) -> Held:
        """Row i becomes what row `index[i]` was."""
        if self.recorded:
            planes = {name: plane.index_select(0, index) for name, plane in self.used().items()}
            return Held(planes, 0, self.entries, self.first)
        planes = {}
        for name, plane in self.used().items():
            planes[name] = plane.new_empty(len(index), plane.shape[1], self.room, plane.shape[3])
            torch.index_select(plane, 0, index, out=planes[name][:, :, : self.entries])
        return Held(planes, 0, self.entries, self.first)

    def without_oldest(self, count: int) -> Held:
        """The same without the first `count` entries; the positions of the others stay."""
        return replace(self, start=self.start + count, first=self.first + count)

    def cropped(self, length: int) -> Held:
        """The entries at positions below `length`."""
        return replace(self, stop=self.start + length - self.first)
