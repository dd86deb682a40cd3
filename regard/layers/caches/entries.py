"""What a cache holds at one moment, how it rounds numbers, and how it is written to a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import ref

import torch

from regard.arguments import count_of, shown, whole
from regard.core.tensors import positions_of
from regard.errors import ArgumentError, CheckpointError, ShapeError, UnsupportedError
from regard.storage import load_tensor_metadata, load_tensors

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
FULL = (torch.float64, torch.float32)  # a cache of these rounds nothing
LEVELS = 127  # largest magnitude of an int8 entry


def checked_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """The storage dtype of a cache, given as a dtype or by its name.

    >>> checked_dtype("int8")
    torch.int8
    """
    known = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(known, torch.dtype) or known not in DTYPES.values():
        raise ArgumentError(f"dtype={shown(dtype)}: a cache stores {', '.join(DTYPES)}")
    return known


def check_numbers(name: str, new: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise a ShapeError if storing these numbers in `dtype` would round them without being asked to."""
    if new.dtype not in DTYPES.values() or new.dtype == torch.int8:
        raise ShapeError(f"{name} has dtype {new.dtype}; a cache takes floating-point numbers")
    if dtype in FULL and torch.promote_types(new.dtype, dtype) != dtype:
        raise ShapeError(
            f"{name} has dtype {new.dtype} and this cache stores {dtype}, which would round it; make the cache with "
            f"dtype={new.dtype}, or with 'bfloat16', 'float16' or 'int8' if it may round"
        )


def rounded(
    name: str, new: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Numbers rounded to `dtype`, and for int8 their scales (..., 1); None for other dtypes.

    int8: each vector x (one token of one key/value head) becomes round(x / s) with s = max|x| / 127.

    Raises:
        UnsupportedError: int8 storage of numbers that need a gradient.
        ArgumentError: a finite number too large for the dtype.
    """
    if dtype == new.dtype:
        return new, None
    if dtype != torch.int8:
        numbers = new.to(dtype)
        _refuse_overflow(name, new, numbers, dtype)
        return numbers, None
    if torch.is_grad_enabled() and new.requires_grad:
        raise UnsupportedError(
            f"{name} needs a gradient, and rounding to int8 has none; use torch.no_grad(), or train with a "
            f"floating-point cache"
        )
    if new.shape[-1]:
        largest = new.abs().amax(-1, keepdim=True)
    else:  # vectors without numbers have no largest one
        largest = new.new_zeros(*new.shape[:-1], 1)
    scales = (largest / LEVELS).to(torch.float32).clamp_min(torch.finfo(torch.float32).tiny)
    _refuse_overflow(name, largest, scales, dtype)
    return (new / scales).round().to(torch.int8), scales


def _refuse_overflow(
    name: str, new: torch.Tensor, numbers: torch.Tensor, dtype: torch.dtype
) -> None:
    if not new.is_meta and (numbers.isinf() & new.isfinite()).any():
        raise ArgumentError(
            f"{name} reaches {float(new.abs().max()):.3g}, too large for a cache of {dtype}; use a wider dtype"
        )


class Ownership:
    """Which of the caches that share planes may write their free slots, also where each has a thread of its own.

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

    def note(self, stop: int) -> None:
        """Note that a compiled graph, which claims nothing, has written up to `stop`."""
        self._written[:] = [stop]

    def __reduce__(self) -> Any:  # planes are pickled without it: what is unpickled makes its own
        return Ownership, (0,)


@dataclass(frozen=True)
class Held:
    """Entries in slots `start` to `stop` - 1 of every plane; the first one has position `first`.

    A plane is a tensor (batch, kv_heads, room, dim): the keys, the values, their scales, or the sums of log forget
    gates up to each key, which `keeping` counts again from the end of the text. Held is immutable: a change makes a new
    one. Slots in use are never written again, so an earlier Held stays valid while only appends
    follow it. Free slots are written only where `ownership` grants it, and never without one.

    `places` (batch or 1, kv_heads or 1, n) are the positions of the first n entries, where some between them were
    dropped; `first` is then their number. The entries after these follow one another.
    """

    planes: dict[str, torch.Tensor]
    start: int = 0
    stop: int = 0
    first: int = 0
    ownership: Ownership | None = None  # of the planes
    places: torch.Tensor | None = None
    stop_tensor: Any = None  # of a static cache: `stop` as a tensor (1,), for graphs of any length

    @property
    def entries(self) -> int:
        return self.stop - self.start

    @property
    def length(self) -> int:
        """Number of positions so far, including dropped entries."""
        return self.first + self.entries

    @property
    def room(self) -> int:
        return self.planes["k"].shape[2]

    @property
    def recorded(self) -> bool:
        """Whether autograd records these entries."""
        # each step asks several times, and a generator takes twice as long
        for plane in self.planes.values():
            if plane.requires_grad:
                return True
        return False

    @property
    def fixed(self) -> bool:
        """Whether free slots may not be written, because autograd or inference mode forbids it."""
        # A compiler cannot trace inference tensors, so it does not ask for them.
        if self.recorded or torch.compiler.is_compiling():
            return self.recorded
        return self.planes["k"].is_inference() and not torch.is_inference_mode_enabled()

    def used(self) -> dict[str, torch.Tensor]:
        """Views of the slots in use of every plane."""
        return {name: plane[:, :, self.start : self.stop] for name, plane in self.planes.items()}

    def joined(self, new: dict[str, torch.Tensor]) -> Held:
        """These entries and new ones concatenated into new tensors, as autograd needs."""
        planes = {name: torch.cat([plane, new[name]], 2) for name, plane in self.used().items()}
        return Held(planes, 0, self.entries + new["k"].shape[2], self.first, places=self.places)

    def claimed(self, added: int, overwrites: bool) -> bool:
        """Whether `added` more entries may be written into free slots; see `Ownership.claim`."""
        if self.stop + added > self.room or self.fixed or self.ownership is None:
            return False
        return self.ownership.claim(self.stop, self.stop + added, overwrites)

    def written(self, new: dict[str, torch.Tensor]) -> Held:
        """These entries and new ones after them, written into free slots that were claimed."""
        stop = self.stop + new["k"].shape[2]
        for name, plane in self.planes.items():
            # Where gradients are recorded only slots that were never written are claimed: autograd has saved none of
            # them, so writing them through .data does not invalidate what it has saved.
            into = plane.data if torch.is_grad_enabled() else plane
            into[:, :, self.stop : stop] = new[name]
        return replace(self, stop=stop)

    def moved(self, room: int) -> Held:
        """These entries at the start of new planes with `room` slots, detached."""
        planes = {}
        for name, plane in self.used().items():
            planes[name] = plane.new_empty(*plane.shape[:2], room, plane.shape[3])
            planes[name][:, :, : self.entries] = plane.detach()
        ownership = Ownership(self.entries)
        return Held(planes, 0, self.entries, self.first, ownership, self.places)

    def reordered(self, index: torch.Tensor) -> Held:
        """Batch row i is batch row `index[i]` of these."""
        index = index.to(self.planes["k"].device)
        places = rows_of(self.places, index)
        if self.recorded:
            planes = {name: plane.index_select(0, index) for name, plane in self.used().items()}
            return Held(planes, 0, self.entries, self.first, places=places)
        planes = {}
        for name, plane in self.used().items():
            planes[name] = plane.new_empty(len(index), plane.shape[1], self.room, plane.shape[3])
            torch.index_select(plane, 0, index, out=planes[name][:, :, : self.entries])
        ownership = Ownership(self.entries)
        return Held(planes, 0, self.entries, self.first, ownership, places)

    def without_oldest(self, count: int) -> Held:
        """Without the first `count` entries; the others keep their positions."""
        return replace(self, start=self.start + count, first=self.first + count)

    def without_middle(self, lead: int, count: int) -> Held:
        """The first `lead` entries and, after `count` that are dropped, the others, in new planes."""
        planes = {
            name: torch.cat([plane[:, :, :lead], plane[:, :, lead + count :]], 2)
            for name, plane in self.used().items()
        }
        return Held(planes, 0, self.entries - count, self.first + count)

    def cropped(self, length: int, lead: int = 0) -> Held:
        """The entries before the position `length`, of which the first `lead` are held whatever was dropped."""
        if length <= lead:
            return replace(self, stop=self.start + length, first=0)
        count, places = entries_before(length, self.first, self.places)
        return replace(self, stop=self.start + count, first=length - count, places=places)

    def positions(self, lead: int = 0) -> torch.Tensor:
        """The positions of the entries, int64 (batch or 1, kv_heads or 1, entries)."""
        return positions_of(self.entries, self.first, lead, self.places, self.planes["k"].device)

    def forgotten(self) -> torch.Tensor:
        """The sums of log forget gates up to the end of the text, (batch, kv_heads, 1, gates)."""
        sums = self.planes["forgotten"]
        if not self.entries:
            return sums.new_zeros(*sums.shape[:2], 1, sums.shape[3])
        last = sums[:, :, self.stop - 1 : self.stop]
        if self.places is None or self.places.shape[2] < self.entries:
            return last
        return last.where((self.places[..., -1:] == self.length - 1)[..., None], 0)

    def keeping(self, chosen: torch.Tensor, after: int | None = None) -> Held:
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
        length = self.length if after is None else whole("after", after, 0, self.length)
        own = self.positions()
        axes = [max(sizes) for sizes in zip(own.shape[:2], chosen.shape[:2], strict=True)]
        own = own.expand(*axes, -1).contiguous()
        chosen = chosen.expand(*axes, -1).contiguous()
        slots = torch.searchsorted(own, chosen)
        if not chosen.is_meta:
            self._check_chosen(chosen, own, slots, after)
        positions = chosen
        if after is not None:
            count = entries_before(length, self.first, self.places)[0]
            follow = torch.arange(length, length + chosen.shape[2], device=own.device)
            positions = torch.cat([own[..., :count], follow.expand(chosen.shape)], -1)
            slots = torch.cat([torch.arange(count, device=own.device).expand(*axes, -1), slots], -1)
            length += chosen.shape[2]
        sizes = *self.planes["k"].shape[:2], slots.shape[2]
        index = slots.expand(sizes)[..., None]
        planes = {
            name: plane.gather(2, index.expand(*sizes, plane.shape[3]))
            for name, plane in self.used().items()
        }
        if "forgotten" in planes:
            planes["forgotten"] = planes["forgotten"] - self.forgotten()
        return Held(
            planes, 0, sizes[2], length - sizes[2], places=_before_gap(positions, length - sizes[2])
        )

    def _check_chosen(
        self, chosen: torch.Tensor, own: torch.Tensor, slots: torch.Tensor, after: int | None
    ) -> None:
        known = (
            own.gather(-1, slots.clamp(max=self.entries - 1)) == chosen
            if self.entries
            else chosen < chosen
        )
        for wrong, what in (
            (~known, "is not held" if self.first else "is not a position of this text"),
            (torch.nn.functional.pad(chosen.diff(dim=-1) == 0, (1, 0)), "is named twice"),
            (chosen < (after or 0), f"is before {after}, where entries stay in any case"),
        ):
            if bool(wrong.any()):
                holds = (
                    f"{count_of(self.entries, 'entries')} of {count_of(self.length, 'positions')}"
                )
                raise ArgumentError(
                    f"keep: {int(chosen[wrong][0])} {what}; this cache holds {holds}"
                )


def _before_gap(positions: torch.Tensor, dropped: int) -> torch.Tensor | None:
    """The positions of the entries before the last gap; None where no position was dropped."""
    if not dropped or positions.is_meta:
        return positions if dropped else None
    displaced = positions != torch.arange(positions.shape[2], device=positions.device) + dropped
    before = displaced.any(0).any(0).nonzero()
    return positions[..., : int(before.max()) + 1 if len(before) else 0]


def rows_of(places: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    """The places of other batch rows."""
    if places is None or len(places) == 1:
        return places
    return places.index_select(0, index.to(places.device))


def entries_before(
    length: int, first: int, places: torch.Tensor | None
) -> tuple[int, torch.Tensor | None]:
    """How many held entries have a position below `length`, and the places among them.

    Raises:
        ArgumentError: batch rows or heads differ in this number.
    """
    if places is None or length >= places.shape[2] + first:
        return length - first, places
    count = int((places < length).sum(-1).max())
    if not bool((places[..., :count] < length).all()):
        raise ArgumentError(
            f"batch rows or heads kept different numbers of entries before position {length}, and a cache has "
            f"equally many of each; give {int(places.max()) + 1} or more, or 0"
        )
    return count, places[..., :count] if count < length else None


FORMAT = "1"
LARGEST = 2**62  # larger positions could overflow int64


def read_kind(path: Path, kinds: tuple[str, ...]) -> str:
    """The kind of cache in a file."""
    words = load_tensor_metadata(path)
    if words.get("format") != FORMAT or words.get("cache") not in kinds:
        raise CheckpointError(
            f"{path} holds a cache of kind {words.get('cache')!r} in format {words.get('format')!r}; this version "
            f"reads {', '.join(kinds)} in format {FORMAT}"
        )
    return words["cache"]


def read(
    path: Path, kind: str, bounded: bool | None, device: torch.device | str
) -> tuple[int | None, int, int, Held]:
    """Read the capacity, v_dim, number of first entries that stay, and entries of a cache of this kind, checking every
    claim of the file."""
    read_kind(path, (kind,))
    words = load_tensor_metadata(path)
    planes = load_tensors(path)
    places = planes.pop("places", None)
    first = whole_number(path, words, "first")
    limited = bounded or (bounded is None and "capacity" in words)
    capacity = whole_number(path, words, "capacity") if limited else None
    # A joined cache has one tensor, and says what of it are values.
    names = ("k",) if "v_dim" in words else ("k", "v")
    if not _fit_together(planes, names):
        shapes = {name: (plane.dtype, tuple(plane.shape)) for name, plane in planes.items()}
        raise CheckpointError(
            f"{path} holds {shapes}, which are not the keys and values of a cache"
        )
    entries = planes["k"].shape[2]
    lead = whole_number(path, words, "lead") if "lead" in words and kind == "ring" else 0
    if places is not None and (kind == "ring" or not _are_places(places, planes["k"].shape, first)):
        raise CheckpointError(
            f"{path} holds places {places.dtype} {tuple(places.shape)} that are not those of entries"
        )
    if (first and ((kind != "ring" and places is None) or entries < lead)) or (
        capacity is not None and (capacity < 1 or entries > capacity + lead)
    ):
        raise CheckpointError(
            f"{path} holds {count_of(entries, 'entries')} from position {first}, which a {kind} cache never does"
        )
    v_dim = whole_number(path, words, "v_dim") if "v_dim" in words else planes["v"].shape[3]
    if "v_dim" in words and v_dim > planes["k"].shape[3]:
        raise CheckpointError(
            f"{path} has values of {v_dim} numbers in keys of {planes['k'].shape[3]}"
        )
    planes = {name: plane.to(device) for name, plane in planes.items()}
    return (
        capacity,
        v_dim,
        lead,
        Held(planes, 0, entries, first, places=None if places is None else places.to(device)),
    )


def whole_number(path: Path, words: dict[str, str], name: str) -> int:
    """A whole number from the metadata of a file."""
    text = words.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < LARGEST):
        raise CheckpointError(f"{path}: {name} is {text[:40]!r}, not a whole number")
    return int(text)


def _are_places(places: torch.Tensor, shape: torch.Size, first: int) -> bool:
    """Whether these are positions of the first entries of a cache that dropped `first` of them."""
    if places.dtype != torch.int64 or places.dim() != 3 or not first or places.shape[2] > shape[2]:
        return False
    fits = all(size in (1, whole) for size, whole in zip(places.shape, shape[:2], strict=False))
    ascending = bool((places.diff(dim=-1) > 0).all()) and bool((places >= 0).all())
    return fits and ascending and bool((places < places.shape[2] + first).all())


def _fit_together(planes: dict[str, torch.Tensor], names: tuple[str, ...]) -> bool:
    if not {*names} <= planes.keys() or any(plane.dim() != 4 for plane in planes.values()):
        return False
    dtype = planes["k"].dtype
    scales = {f"{name}_scales" for name in names} if dtype == torch.int8 else set()
    gates = planes.get("forgotten")
    return (
        planes.keys() - {"forgotten"} == {*names} | scales
        and (gates is None or (gates.dtype == torch.float64 and gates.shape[3] > 0))
        and all(planes[name].dtype == dtype for name in names)
        and dtype in DTYPES.values()
        and len({plane.shape[:3] for plane in planes.values()}) == 1
        and planes["k"].shape[1] > 0
        and all(
            planes[name].dtype == torch.float32 and planes[name].shape[3] == 1 for name in scales
        )
    )
