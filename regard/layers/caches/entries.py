"""What a cache holds at one moment, how it rounds numbers, and how it is written to a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from regard.errors import ArgumentError, CheckpointError, ShapeError, UnsupportedError
from regard.kinds import shown
from regard.storage import load_tensor_metadata, load_tensors, save_tensors

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
FULL = (torch.float64, torch.float32)  # of a computation; a cache of these rounds nothing
LEVELS = 127  # of int8 on each side of 0


def checked_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A dtype that caches keep numbers in, also by its name.

    >>> checked_dtype("int8")
    torch.int8
    """
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or found not in DTYPES.values():
        raise ArgumentError(f"dtype={shown(dtype)}: a cache keeps numbers as {', '.join(DTYPES)}")
    return found


def check_numbers(name: str, new: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise a ShapeError where numbers would be rounded that nobody asked to round."""
    if new.dtype not in DTYPES.values() or new.dtype == torch.int8:
        raise ShapeError(f"{name} has dtype {new.dtype}; a cache takes floating-point numbers")
    if dtype in FULL and torch.promote_types(new.dtype, dtype) != dtype:
        raise ShapeError(
            f"{name} has dtype {new.dtype} and this cache keeps {dtype}, which would round it; make the cache with "
            f"dtype={new.dtype}, or with a half dtype or 'int8' to round on purpose"
        )


def kept(name: str, new: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Numbers as a cache of `dtype` keeps them, and for int8 the scales (..., 1) they are multiplied with.

    int8: each vector x (a token of a key/value head) becomes round(x / s) with s = max|x| / 127.

    Raises:
        UnsupportedError: int8 of numbers that need a gradient.
        ArgumentError: a finite number beyond what the dtype reaches.
    """
    if dtype == new.dtype:
        return new, None
    if dtype != torch.int8:
        numbers = new.to(dtype)
        _refuse_overflow(name, new, numbers, dtype)
        return numbers, None
    if torch.is_grad_enabled() and new.requires_grad:
        raise UnsupportedError(
            f"{name} needs a gradient, and rounding to int8 has none; continue under torch.no_grad(), or train with a "
            f"cache of floating-point numbers"
        )
    largest = new.abs().amax(-1, keepdim=True)
    scales = (largest / LEVELS).to(torch.float32).clamp_min(torch.finfo(torch.float32).tiny)
    _refuse_overflow(name, largest, scales, dtype)
    return (new / scales).round().to(torch.int8), scales


def _refuse_overflow(name: str, new: torch.Tensor, numbers: torch.Tensor, dtype: torch.dtype) -> None:
    if not new.is_meta and (numbers.isinf() & new.isfinite()).any():
        raise ArgumentError(
            f"{name} reaches {float(new.abs().max()):.3g}, beyond what a cache of {dtype} can keep; use a wider dtype"
        )


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


FORMAT = "1"
LARGEST = 2**62  # a position beyond would leave int64


def write(path: Path, kind: str, capacity: int | None, held: Held) -> None:
    """Write the entries held, without the room for more."""
    words = {"cache": kind, "format": FORMAT, "first": str(held.first)}
    if capacity is not None:
        words["capacity"] = str(capacity)
    save_tensors(path, held.used(), words)


def read_kind(path: Path, kinds: tuple[str, ...]) -> str:
    """Which kind of cache a file holds.

    Raises:
        CheckpointError: missing, damaged, or none of `kinds`.
    """
    words = load_tensor_metadata(path)
    if words.get("format") != FORMAT or words.get("cache") not in kinds:
        raise CheckpointError(
            f"{path} holds a cache of kind {words.get('cache')!r} in format {words.get('format')!r}; read here are "
            f"{', '.join(kinds)} in format {FORMAT}"
        )
    return words["cache"]


def read(path: Path, kind: str, bounded: bool, device: torch.device | str) -> tuple[int | None, Held]:
    """The capacity and the entries of a cache of this kind, after everything the file says was checked.

    Raises:
        CheckpointError: missing, damaged, of another kind, or saying what cannot be.
    """
    read_kind(path, (kind,))
    words, planes = load_tensor_metadata(path), load_tensors(path)
    first = whole_number(path, words, "first")
    capacity = whole_number(path, words, "capacity") if bounded else None
    if not _fit_together(planes):
        found = {name: (plane.dtype, tuple(plane.shape)) for name, plane in planes.items()}
        raise CheckpointError(f"{path} holds {found}, which are not the keys and values of a cache")
    entries = planes["k"].shape[2]
    if (first and kind != "ring") or (capacity is not None and (capacity < 1 or entries > capacity)):
        raise CheckpointError(f"{path} holds {entries} entries from {first} on, which a {kind} cache never does")
    planes = {name: plane.to(device) for name, plane in planes.items()}
    return capacity, Held(planes, 0, entries, first)


def whole_number(path: Path, words: dict[str, str], name: str) -> int:
    """A whole number among the words of a file.

    Raises:
        CheckpointError: anything else.
    """
    text = words.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < LARGEST):
        raise CheckpointError(f"{path}: {name} is {text[:40]!r}, not a whole number")
    return int(text)


def _fit_together(planes: dict[str, torch.Tensor]) -> bool:
    if not {"k", "v"} <= planes.keys() or any(plane.dim() != 4 for plane in planes.values()):
        return False
    dtype = planes["k"].dtype
    scales = {"k_scales", "v_scales"} if dtype == torch.int8 else set()
    return (
        planes.keys() == {"k", "v"} | scales
        and dtype == planes["v"].dtype
        and dtype in DTYPES.values()
        and len({plane.shape[:3] for plane in planes.values()}) == 1
        and planes["k"].shape[1] > 0
        and all(planes[name].dtype == torch.float32 and planes[name].shape[3] == 1 for name in scales)
    )
