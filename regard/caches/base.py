"""What every cache can do; a kind of cache decides only how much room there is and what is forgotten."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch

from regard.arguments import is_whole, plain, whole
from regard.caches.given import check_rows, checked_device, checked_path
from regard.caches.held import Held
from regard.caches.numbers import check_numbers, checked_dtype, kept
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
from regard.shapes import check_tensor
from regard.stored import Stored

Entries = torch.Tensor | Stored


class Cache:
    """Keys (batch, kv_heads, length, head_dim) and values (batch, kv_heads, length, v_dim) of one layer's texts.

    Numbers are kept in `dtype`. A cache of float64 or float32 keeps what it is given; a narrower one rounds each
    number x of a vector with largest magnitude a, and what it says is off by at most

        bfloat16  |x| / 256        float16  max(|x| / 2048, 2⁻²⁵)        int8  a / 254 (and float32 rounding, 2⁻²⁴ a)

    so that with int8 keys a score moves by at most scale · Σ|q| · a / 254, and with int8 values an output by a / 254.

    Args:
        batch: texts that are continued side by side.
        kv_heads: key/value heads.
        head_dim: size of a key.
        v_dim: size of a value; head_dim by default.
        dtype: how numbers are kept: torch's float64, float32, bfloat16, float16 or int8, or the name of one.
        device: where.
        capacity: entries there is room for, for the kinds that have an end.
    """

    kind = ""  # the word for it in `new_cache` and in files
    bounded = False  # does it have a capacity?

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        head_dim: int,
        v_dim: int | None = None,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        *,
        capacity: int | None = None,
    ) -> None:
        self.dtype = checked_dtype(dtype)
        self.capacity = self._checked_capacity(capacity)
        device = checked_device(device)
        batch, kv_heads, head_dim = whole("batch", batch), whole("kv_heads", kv_heads), whole("head_dim", head_dim)
        dims = {"k": head_dim, "v": head_dim if v_dim is None else whole("v_dim", v_dim)}
        if min(batch, kv_heads - 1, *dims.values()) < 0:
            raise ArgumentError(
                f"batch {batch}, kv_heads {kv_heads}, head_dim {head_dim}, v_dim {v_dim}: kv_heads is 1 or more, "
                f"and none is below 0"
            )
        room = self._room(0, 0)
        planes = {
            name: torch.empty(batch, kv_heads, room, dim, dtype=self.dtype, device=device) for name, dim in dims.items()
        }
        if self.dtype == torch.int8:
            planes |= {
                f"{name}_scales": torch.empty(batch, kv_heads, room, 1, dtype=torch.float32, device=device)
                for name in dims
            }
        self._held = Held(planes)

    @property
    def length(self) -> int:
        """Entries appended and not cropped, which is the position of the next one."""
        return self._held.length

    @property
    def batch(self) -> int:
        """Rows, each with its own entries."""
        return self._held.planes["k"].shape[0]

    @property
    def keys(self) -> Entries:
        """(batch, kv_heads, length, head_dim); Stored where they are int8, or where some are no longer held."""
        return self._handed(self._held, self.dtype)[0]

    @property
    def values(self) -> Entries:
        """(batch, kv_heads, length, v_dim), as `keys`."""
        return self._handed(self._held, self.dtype)[1]

    @property
    def nbytes(self) -> int:
        """Bytes held, room for entries to come included."""
        return sum(plane.numel() * plane.element_size() for plane in self._held.planes.values())

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[Entries, Entries]:
        """Keep these entries behind the others, and return what a query among them may look at.

        Args:
            k: (batch, kv_heads, added, head_dim).
            v: (batch, kv_heads, added, v_dim).

        Returns:
            Keys and values of all positions, as tensors where nothing was rounded or dropped, else as `Stored`;
            attention takes both.

        Raises:
            ShapeError: entries of another shape, or a dtype that would be rounded unasked.
            ArgumentError: more than there is room for, or a number beyond what a narrow dtype can keep.
            UnsupportedError: int8 of numbers that need a gradient.
            After any of them the cache is as it was.
        """
        self._check(k, v)
        new = {}
        for name, x in (("k", k), ("v", v)):
            new[name], scales = kept(name, x, self.dtype)
            if scales is not None:
                new[f"{name}_scales"] = scales
        seen = self._with(new)
        self._held = self._remembered(seen)
        return self._handed(seen, k.dtype if k.dtype == v.dtype else None)

    def crop(self, length: int) -> None:
        """Keep the first `length` entries and forget the rest.

        Raises:
            ArgumentError: more than there are, or entries that are no longer held.
        """
        held, length = self._held, whole("the length to crop to", length)
        if not 0 <= length <= held.length:
            raise ArgumentError(f"crop({length}): this cache holds {held.length} entries; 0 to {held.length} can stay")
        if 0 < length <= held.first:
            raise ArgumentError(
                f"crop({length}): this cache holds entries {held.first} to {held.length - 1}, so the first {length} "
                f"are gone; {held.first + 1} to {held.length} can stay, or none"
            )
        self._held = held.cropped(length) if length else Held(held.planes, written_to=held.written_to)

    def reorder(self, index: torch.Tensor) -> None:
        """Row i becomes what row `index[i]` was; index: integers (new batch,), as beams need it."""
        check_rows(index, self.batch, "cache")
        self._held = self._held.reordered(index)

    @contextmanager
    def unless_refused(self) -> Generator[None]:
        """What is appended in this block is forgotten if the block raises."""
        before = self._held
        try:
            yield
        except BaseException:
            self._held = before
            raise

    def save(self, path: str | Path) -> None:
        """Write what is held to one safetensors file, in one instant, so that every changed bit is noticed.

        Raises:
            CheckpointError: it could not be written; an old file is unchanged.
        """
        from regard.caches.files import write

        write(checked_path(path), self.kind, self.capacity, self._held)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Self:
        """A cache of this kind as `save` wrote it.

        Raises:
            CheckpointError: missing, damaged, of another kind, or no cache.
        """
        from regard.caches.files import read

        capacity, held = read(checked_path(path), cls.kind, cls.bounded, device)
        batch, kv_heads, _, head_dim = held.planes["k"].shape
        v_dim, dtype = held.planes["v"].shape[3], held.planes["k"].dtype
        cache = cls(batch, kv_heads, head_dim, v_dim, dtype, device, capacity=capacity)
        cache._held = held.moved(cache._room(held.entries, 0))
        return cache

    # What a kind of cache decides

    def _room(self, needed: int, now: int) -> int:
        """Slots to make where `needed` are used next and there are `now`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how much room it makes")

    def _check_capacity(self, added: int) -> None:
        """Raise an ArgumentError if so many more do not fit."""

    def _remembered(self, seen: Held) -> Held:
        """What stays of all that the entries just appended may look at."""
        return seen

    # What all kinds share

    def _with(self, new: dict[str, torch.Tensor]) -> Held:
        held, added = self._held, new["k"].shape[2]
        if torch.is_grad_enabled() and (held.recorded or any(x.requires_grad for x in new.values())):
            return held.joined(new)
        if held.stop + added > held.room or held.fixed:
            held = held.moved(self._room(held.entries + added, held.room))
        return held.written({name: x.detach() for name, x in new.items()})

    def _handed(self, held: Held, dtype: torch.dtype | None) -> tuple[Entries, Entries]:
        used = held.used()
        if self.dtype == dtype != torch.int8 and not held.first:
            return used["k"], used["v"]
        return (
            Stored(used["k"], used.get("k_scales"), held.first),
            Stored(used["v"], used.get("v_scales"), held.first),
        )

    def _check(self, k: torch.Tensor, v: torch.Tensor) -> None:
        for name, new in (("k", k), ("v", v)):
            check_tensor(name, new)
            if isinstance(new, Stored):
                raise ShapeError(f"{name} is stored by another cache; a cache takes tensors to append")
            plane = self._held.planes[name]
            wanted = (*plane.shape[:2], "added", plane.shape[3])
            fits = new.dim() == 4 and new.shape[:2] == plane.shape[:2] and new.shape[3] == plane.shape[3]
            if not fits or new.device != plane.device:
                raise ShapeError(
                    f"{name} {tuple(new.shape)} {new.dtype} on {new.device} cannot be appended; this cache takes "
                    f"{wanted} on {plane.device}"
                )
            check_numbers(name, new, self.dtype)
        if k.shape[2] != v.shape[2]:
            raise ShapeError(f"{k.shape[2]} keys but {v.shape[2]} values were to be appended; they come in pairs")
        self._check_capacity(k.shape[2])

    def _checked_capacity(self, capacity: int | None) -> int | None:
        if not self.bounded and capacity is not None:
            raise ArgumentError(f"capacity={shown(capacity)}: a {self.kind} cache has no end; leave capacity out")
        capacity = plain("capacity", capacity)
        if self.bounded and (not is_whole(capacity) or capacity < 1):
            raise ArgumentError(f"capacity={shown(capacity)}: a {self.kind} cache needs room for 1 entry or more")
        return capacity if capacity is None else whole("capacity", capacity)

    def __repr__(self) -> str:
        batch, kv_heads, _, head_dim = self._held.planes["k"].shape
        sizes = f"batch={batch}, kv_heads={kv_heads}, length={self.length}, head_dim={head_dim}"
        end = f", capacity={self.capacity}" if self.bounded else ""
        return f"{type(self).__name__}({sizes}, {str(self.dtype).removeprefix('torch.')}{end})"
