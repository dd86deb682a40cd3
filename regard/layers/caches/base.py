"""The base class of all caches. A kind of cache decides how much room there is and which entries are dropped."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from regard.arguments import (
    a_path,
    count_of,
    in_memory,
    refuse_wrapper,
    shown,
    whole,
    whole_or,
    yes_or_no,
)
from regard.bias import Forgetting, log_sums
from regard.core.layout import checked_layout, swapped
from regard.core.tensors import HEADS_FIRST, Stored, check_tensor
from regard.devices import has_float64
from regard.errors import ArgumentError, CheckpointError, ShapeError, UnsupportedError
from regard.exporting import exporting
from regard.layers.caches.entries import FreeSlots, HeldEntries
from regard.layers.caches.files import FORMAT, read_cache
from regard.layers.caches.rounding import check_numbers, checked_dtype, rounded
from regard.patterns.grid import checked_device
from regard.storage import save_tensors


def checked_rows(index: torch.Tensor, batch: int, of: str) -> torch.Tensor:
    """An index of batch rows, integers (new batch,), with its numbers in its memory."""
    is_vector = isinstance(index, torch.Tensor) and index.dim() == 1
    if not is_vector or index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"reorder takes integers (new batch,), not {shown(index)}")
    refuse_wrapper("the index of rows", index)
    if index.is_meta or not index.numel():
        return index
    index = in_memory("the index of rows", index)
    if int(index.min()) < 0 or int(index.max()) >= batch:
        raise ArgumentError(
            f"reorder to rows {shown(index.tolist())}: this {of} has batch rows 0 to {batch - 1}"
        )
    return index


def check_room(length: int, added: int, capacity: int) -> None:
    """Raise an ArgumentError if `added` more entries do not fit."""
    if length + added > capacity:
        raise ArgumentError(
            f"{count_of(added, 'more entries')} would not fit: this cache holds {length} of {capacity}; "
            f"make it with a larger capacity"
        )


Entries = torch.Tensor | Stored


def _misfit(name: str, new: torch.Size, held: torch.Size, layout: str = HEADS_FIRST) -> str | None:
    """Why k or v of this shape cannot follow the entries of a cache; None if it can."""
    axes = ("batch", "kv_heads", "added", "head_dim" if name == "k" else "v_dim")
    sizes = dict(zip(axes, held, strict=True))
    if layout != HEADS_FIRST:
        batch, kv_heads, added, dim = axes
        axes = (batch, added, kv_heads, dim)
    if len(new) != len(axes):
        return f"{name} has shape {tuple(new)}; append takes ({', '.join(axes)})"
    for axis, size in zip(axes, new, strict=True):
        held_size = sizes[axis]
        if axis == "added" or size == held_size:
            continue
        way_out = "the layer that computes these keys and values"
        if axis == "batch":
            way_out = f"new_cache(batch={size})"
        return f"{axis} is {size} in {name} {tuple(new)}, and the cache has {held_size}; make the cache with {way_out}"
    return None


def forget_bias(used: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> Forgetting | None:
    """The bias of the keys in planes, which end with new ones, for queries at these; None without forget gates."""
    if "forgotten" not in new:
        return None
    sums_of_keys = used["forgotten"].transpose(2, 3).flatten(1, 2)  # (batch, heads, length)
    sums_of_queries = new["forgotten"].transpose(2, 3).flatten(1, 2)
    # Sums are counted from the middle of the queries, so that those of a long text keep their digits.
    middle: torch.Tensor | float = 0.0
    if sums_of_queries.shape[2]:
        middle = (sums_of_queries[..., :1] + sums_of_queries[..., -1:]) / 2
    return Forgetting.of_sums(sums_of_keys, middle, new["k"].device)


class Owned:
    """What continues the texts of one layer, the one that wrote first; copies and files have none until a layer writes.

    `shared`: several layers may write to it.
    """

    shared = False
    # Attributes that a call replaces; what they hold never changes.
    _changing: tuple[str, ...] = ("_owner",)
    _owner: weakref.ref[object] | None = None  # a layer is not kept alive by its caches

    @property
    def length(self) -> int:
        """Number of positions so far."""
        raise NotImplementedError(f"{type(self).__name__} does not define length")

    @property
    def place(self) -> Any:
        """The position of the next entry, as a q_start: its number, or in a graph a static cache's `Place`."""
        return self.length

    def refuse_other(self, layer: object) -> None:
        """Raise an ArgumentError if another layer wrote what this holds, unless it is shared.

        A graph does not know whether a cache is empty, so it also refuses an empty one that another layer made.
        """
        owner = None if self.shared or self._owner is None else self._owner()
        if owner is None or owner is layer:
            return
        held = "the room" if torch.compiler.is_compiling() else count_of(self.length, "positions")
        if held != "0 positions":
            raise ArgumentError(
                f"this cache holds {held} of another layer, and each layer continues its own keys and values; make one "
                f"for each: caches = [block.attn.new_cache(batch) for block in blocks] (or new_cache(..., "
                f"shared=True), if several layers are meant to write to one)"
            )

    @contextmanager
    def unless_refused(self) -> Generator[None]:
        """Undo what was added inside the `with` block if the block raises."""
        before = {name: getattr(self, name) for name in self._changing}
        try:
            yield
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def belong_to(self, layer: object) -> None:
        """Note the layer that has written; to an empty cache, the one that made it."""
        self._owner = weakref.ref(layer)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._owner = None
        return copied


class Cache(Owned):
    """Keys (batch, kv_heads, length, head_dim) and values (batch, kv_heads, length, v_dim) of one attention layer.

    Numbers are stored in `dtype`. float64 and float32 round nothing; a narrower dtype rounds each number x. In a
    vector whose largest magnitude is a, the error is at most

        bfloat16  |x| / 256        float16  max(|x| / 2048, 2⁻²⁵)        int8  a / 254 (and float32 rounding, 2⁻²⁴ a)

    With int8 keys a score changes by at most scale · Σ|q| · a / 254; with int8 values an output by at most a / 254.

    A joined cache keeps the keys alone, and a value is the first v_dim numbers of its key, as in latent attention.
    `copy.copy` gives an independent cache: both share the memory of their entries, and the one that does not append
    first copies them when it appends. `copy.deepcopy` copies them at once.

    Args:
        batch: number of texts in the batch.
        kv_heads: key/value heads.
        head_dim: size of a key.
        v_dim: size of a value; head_dim by default.
        dtype: storage dtype: torch's float64, float32, bfloat16, float16 or int8, or its name.
        device: device of the entries.
        capacity: the most entries, for the kinds that have a limit.
        shared: whether several layers may write to it; otherwise it belongs to the layer that writes first.
        joined: whether values are the first numbers of the keys, so that it holds one tensor.
        forgetting: how many forget gates a key has, one for each query head of its key/value head; 0 for layers without
            `forgetting`. Their sums up to each key are stored in float64, whatever the dtype is.
    """

    _changing = ("_held", "_owner")
    # Whether entries lie one behind the other in two planes, so that other code may write the next one; see `reserve`.
    reserves = False
    first_entries = 0  # entries at the beginning of a text that are never dropped
    kind = ""  # its name in `new_cache` and in files
    bounded: bool | None = False  # whether it has a capacity; None for either
    # Whether later entries are written over those that `crop` drops: not once a caller was given tensors of them.
    _overwrites = True

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
        shared: bool = False,
        joined: bool = False,
        forgetting: int = 0,
    ) -> None:
        self.shared = yes_or_no("shared", shared)
        self.joined = yes_or_no("joined", joined)
        self.dtype = checked_dtype(dtype)
        self.capacity = self._checked_capacity(capacity)
        device = checked_device(device)
        batch = whole("batch", batch, 0)
        kv_heads = whole("kv_heads", kv_heads, 1)
        room = self._room(0, 0)
        head_dim = whole("head_dim", head_dim, 0)
        self.v_dim = whole_or("v_dim", v_dim, head_dim, 0)
        if self.joined and self.v_dim > head_dim:
            raise ArgumentError(
                f"v_dim is {self.v_dim}, and in a joined cache at most head_dim, {head_dim}"
            )
        forgetting = whole("forgetting", forgetting, 0)
        if forgetting and not has_float64(device):
            raise UnsupportedError(
                f"a cache with {forgetting} forget gates for each key/value head keeps their sums in float64, which "
                f"{device} does not have; use device 'cpu'"
            )

        widths = {"k": head_dim}
        if not self.joined:
            widths["v"] = self.v_dim
        dtypes = dict.fromkeys(widths, self.dtype)
        if self.dtype == torch.int8:
            for name in tuple(widths):
                widths[f"{name}_scales"] = 1
                dtypes[f"{name}_scales"] = torch.float32
        if forgetting:
            widths["forgotten"] = forgetting
            dtypes["forgotten"] = torch.float64
        planes = {}
        try:
            for name, width in widths.items():
                shape = (batch, kv_heads, room, width)
                planes[name] = torch.empty(shape, dtype=dtypes[name], device=device)
        except RuntimeError as error:  # of an allocator, also where a size exceeds 64 bits
            raise ArgumentError(
                f"a {self.kind} cache with room for {room} entries of {sum(widths.values())} numbers for each of "
                f"{batch} batch rows and {kv_heads} key/value heads cannot be allocated on {device}; give a smaller "
                f"capacity"
            ) from error
        self._held = HeldEntries(planes, free_slots=FreeSlots(0))
        self._set_up()

    def _set_up(self) -> None:
        """Make what a kind of cache has besides its entries."""

    def __copy__(self) -> Self:
        copied = super().__copy__()
        free_slots = self._held.free_slots
        if free_slots is not None:
            free_slots.share(self, copied)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        # Caches that are copied or pickled together may share planes there too, so nothing may be written into these.
        return {**super().__getstate__(), "_held": replace(self._held, free_slots=None)}

    @property
    def length(self) -> int:
        """Number of entries appended and not cropped; also the position of the next entry."""
        return self._held.length

    @property
    def batch(self) -> int:
        """Number of batch rows."""
        return self._held.planes["k"].shape[0]

    @property
    def entries(self) -> int:
        """Number of entries held: fewer than `length` after `keep`, and in a ring."""
        return self._whole().entries

    @property
    def positions(self) -> torch.Tensor:
        """Positions of the entries held, int64 (batch or 1, kv_heads or 1, entries)."""
        return self._whole().positions(self.first_entries)

    @property
    def keys(self) -> Entries:
        """(batch, kv_heads, length, head_dim); `Stored` if they are int8 or if the first ones were dropped.

        Later changes of the cache leave them as they are, except those in a compiled graph.
        """
        self._overwrites = False
        keys, _ = self._returned(self._whole(), self.dtype)
        return keys

    @property
    def values(self) -> Entries:
        """(batch, kv_heads, length, v_dim), as `keys`."""
        self._overwrites = False
        _, values = self._returned(self._whole(), self.dtype)
        return values

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including room for later entries."""
        return sum(plane.nbytes for plane in self._held.planes.values())

    def append(
        self, k: torch.Tensor, v: torch.Tensor | None = None, *, layout: str = HEADS_FIRST
    ) -> tuple[Entries, Entries]:
        """Append entries, and return all keys and values that queries at the new positions may look at.

        Args:
            k: (batch, kv_heads, added, head_dim).
            v: (batch, kv_heads, added, v_dim); None for a joined cache.
            layout: "bhnd", or "bnhd" for k, v and returned tensors (batch, length, kv_heads, dim), as `attention` takes
                them with the same layout.

        Returns:
            Keys and values of all positions: tensors if nothing was rounded or dropped, else `Stored`. Attention takes
            both. `Stored` entries have the same axes in both layouts.

        Raises:
            ShapeError: entries of another shape, or of a dtype that this cache would round without being asked to.
            ArgumentError: more entries than the capacity, or a number too large for the storage dtype.
            UnsupportedError: int8 storage of numbers that need a gradient.

        After an error the cache is unchanged.
        """
        if checked_layout(layout) == HEADS_FIRST:
            return self.append_gated(k, v, None)[:2]
        self._check_axes(k, v, layout)
        keys, values, _ = self.append_gated(swapped(k), swapped(v), None)
        return swapped(keys), swapped(values)

    def append_gated(
        self, k: torch.Tensor, v: torch.Tensor | None, log_forget: torch.Tensor | None
    ) -> tuple[Entries, Entries, Forgetting | None]:
        """As `append`, with the logarithms of the forget gates of the entries.

        Args:
            k, v: as for `append`.
            log_forget: (batch, kv_heads · forgetting, added), 0 or below; None for a cache without forget gates.

        Returns:
            Keys and values of all positions, and for queries at the new ones the bias, which is None without gates.
        """
        new = self._stored(k, v, log_forget)
        held = self._with_new(new)
        keys, values = self._returned(held, common_dtype(k, v))
        kept = self._kept_after_append(held)
        bias = forget_bias(held.used(), new) if self._forgets else None
        self._held = kept
        return keys, values, bias

    def reserve(self, most: int = 1) -> HeldEntries | None:
        """Room for one to `most` more entries of each text, which the caller writes instead of calling `append`.

        The slots follow the entries held, in the planes "k" and "v" (batch, kv_heads, room, dim). The caller fills them
        from the first on, and then calls `hold`. Until then the cache keeps the entries that it had.

        Returns:
            The entries held and the new ones behind them, as many as there is memory for; None where entries are stored
            in another way (rounded to int8, joined, paged, with forget gates, with gaps), or where gradients are
            recorded.

        Raises:
            ArgumentError: the capacity is used up.

        >>> from regard.layers.caches import new_cache
        >>> cache = new_cache("dynamic", batch=1, kv_heads=2, head_dim=4)
        >>> with torch.no_grad():
        ...     reserved = cache.reserve()
        >>> for plane in reserved.planes.values():
        ...     plane[:, :, reserved.stop - 1] = 1.0
        >>> cache.hold(reserved)
        >>> cache.length, float(cache.keys.sum())
        (1, 8.0)
        """
        held = self._held
        is_plain = self.reserves and not self.first_entries and held.places is None
        if not is_plain or len(held.planes) != 2 or self.joined or torch.is_grad_enabled():
            return None
        self._check_capacity(1)
        added = max(1, min(most, held.room - held.stop))
        if not held.claimed(added, self._overwrites):
            held = held.moved(self._room(held.entries + 1, held.room))
            added = max(1, min(most, held.room - held.stop))
            if not held.claimed(added, self._overwrites):
                return None
        return HeldEntries(
            held.planes, held.start, held.stop + added, held.dropped, held.free_slots
        )

    def hold(self, reserved: HeldEntries, left: int = 0) -> None:
        """Add the entries that the caller wrote into the slots of `reserve`.

        left: how many slots at the end were not written.
        """
        if left:
            stop = reserved.stop - left
            if reserved.free_slots is not None:
                reserved.free_slots.give_back(reserved.stop, stop)
            reserved = replace(reserved, stop=stop)
        self._held = self._kept_after_append(reserved)

    def crop(self, length: int) -> None:
        """Keep the first `length` entries and drop the rest.

        Raises:
            ArgumentError: a length beyond the entries there are, or entries that were dropped before.
        """
        length = whole("the length to crop to", length)
        whole_length = self.length
        if not 0 <= length <= whole_length:
            raise ArgumentError(
                f"crop({length}): this cache has {count_of(whole_length, 'entries')}; give 0 to {whole_length}"
            )
        self._refuse_dropped_end(length)
        if self._forgets and 0 < length < whole_length:
            ends = (self.positions == length - 1).any(-1)  # of each row and head
            if not ends.all():
                raise UnsupportedError(
                    f"crop({length}): keep() dropped entry {length - 1}, so what was forgotten up to it is not known; "
                    f"give a length that ends with an entry that is held"
                )
        self._crop(length)

    def _refuse_dropped_end(self, length: int) -> None:
        """Refuse to crop to a length that ends with an entry that was dropped as one of the oldest."""
        first = self.first_entries
        oldest = first + self._held.dropped  # position of the first entry behind the dropped ones
        if self._held.places is not None or not first < length <= oldest:
            return
        if first:
            held_before = f"0 to {first - 1} and "
            dropped = f"entries {first} to {oldest - 1}"
            ways = f"0 to {first}"
        else:
            held_before = ""
            dropped = f"the first {oldest}"
            ways = "0"
        raise ArgumentError(
            f"crop({length}): this cache holds entries {held_before}{oldest} to {self.length - 1}, and {dropped} were "
            f"dropped; give {oldest + 1} to {self.length}, or {ways}"
        )

    def keep(self, indices: torch.Tensor, *, after: int | None = None) -> None:
        """Keep the entries at some positions and drop all others; positions stay those of the text.

        Later calls give what they give over the whole text with the dropped keys hidden: `length`, rotary positions,
        patterns and biases count the dropped positions too.

        Args:
            indices: int64 positions of the text, each once, in any order: (n,), (batch, n), or (batch, kv_heads, n)
                with entries of its own for each key/value head.
            after: keep all entries before this position too. The named entries are behind them; they get the positions
                from `after` on, and the text ends with them. This is for the accepted path of a `Tree`, whose keys have
                the rotary positions of their depths.

        Raises:
            ShapeError, ArgumentError: another tensor, or positions that are not held.
            UnsupportedError: a ring, which itself chooses what it keeps; `after` with forget gates, which are summed
                along the text and not along a path.

        After an error the cache is unchanged.

        >>> from regard.layers.caches import new_cache
        >>> cache = new_cache("dynamic", batch=1, kv_heads=2, head_dim=4)
        >>> keys, values = cache.append(torch.zeros(1, 2, 9, 4), torch.zeros(1, 2, 9, 4))
        >>> cache.keep(torch.tensor([0, 3, 8]))
        >>> cache.length, cache.entries, cache.positions.tolist()
        (9, 3, [[[0, 3, 8]]])
        """
        positions = self._checked_positions(indices)
        self._keep(self._whole().keeping(positions, after))

    def reorder(self, index: torch.Tensor) -> None:
        """Replace batch row i by batch row `index[i]`, as beam search needs; index: integers (new batch,)."""
        index = checked_rows(index, self.batch, "cache")
        self._held = self._held.reordered(index)

    def save(self, path: str | Path) -> None:
        """Write the entries to one safetensors file, atomically and with checksums.

        Raises:
            CheckpointError: the file could not be written; an old file is unchanged.
        """
        held = self._whole()
        # A file has the words of `Stored`: `first` for dropped positions, `lead` for the first entries.
        words = {"cache": self.kind, "format": FORMAT, "first": str(held.dropped)}
        if self.capacity is not None:
            words["capacity"] = str(self.capacity)
        if self.joined:
            words["v_dim"] = str(self.v_dim)
        if self.first_entries:
            words["lead"] = str(self.first_entries)
        tensors = held.used()
        if held.places is not None:
            tensors["places"] = held.places
        save_tensors(path, tensors, words)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Self:
        """Read a cache of this kind that `save` wrote.

        Raises:
            CheckpointError: the file is missing, damaged, of another kind, or not a cache, or names a capacity for
                which there is no memory.
        """
        path = a_path("path", path)
        file = read_cache(path, cls.kind, cls.bounded, device)
        planes = file.held.planes
        batch, kv_heads, _, head_dim = planes["k"].shape
        options: dict[str, Any] = {"capacity": file.capacity, "joined": "v" not in planes}
        if file.first_entries:
            options["first_entries"] = file.first_entries
        if "forgotten" in planes:
            options["forgetting"] = planes["forgotten"].shape[3]
        try:
            dtype = planes["k"].dtype
            cache = cls(batch, kv_heads, head_dim, file.v_dim, dtype, device, **options)
        except ArgumentError as error:
            raise CheckpointError(f"{path} holds a cache that cannot be made: {error}") from error
        cache._begin_with(file.held)
        return cache

    # What each kind of cache decides

    def _room(self, needed: int, now: int) -> int:
        """Number of slots to allocate when `needed` are used next and `now` exist."""
        raise NotImplementedError(f"{type(self).__name__} does not define _room")

    def _check_capacity(self, added: int) -> None:
        """Raise an ArgumentError if `added` more entries do not fit."""
        if self.capacity is not None:
            check_room(self.entries, added, self.capacity)

    def _kept_after_append(self, held: HeldEntries) -> HeldEntries:
        """The entries to keep after an append."""
        return held

    def _whole(self) -> HeldEntries:
        """All entries, in one piece."""
        return self._held

    def _begin_with(self, held: HeldEntries) -> None:
        """Begin with these entries."""
        self._held = held.moved(self._room(held.entries, 0))

    def _keep(self, held: HeldEntries) -> None:
        """Hold these entries, all of which were held."""
        self._held = held

    def _crop(self, length: int) -> None:
        """Keep the first `length` entries, which are held, or none."""
        held = self._held
        if length:
            self._held = held.cropped(length, self.first_entries)
        else:
            self._held = HeldEntries(held.planes, free_slots=held.free_slots)

    # What all kinds of cache share

    @property
    def _forgets(self) -> bool:
        return "forgotten" in self._held.planes

    def _forgotten(self) -> torch.Tensor:
        """The sums of log forget gates up to the end of the text, (batch, kv_heads, 1, gates)."""
        return self._held.forgotten()

    def _stored(
        self, k: torch.Tensor, v: torch.Tensor | None, log_forget: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """New entries as this cache stores them, by the names of its planes, after a check."""
        new = {}
        for name, x in self._checked(k, v).items():
            new[name], scales = rounded(name, x, self.dtype)
            if scales is not None:
                new[f"{name}_scales"] = scales
        if self._forgets:
            new["forgotten"] = self._forget_sums(log_forget, k.shape[2])
        elif log_forget is not None:
            raise ShapeError(f"log_forget is {shown(log_forget)}, and this cache takes none")
        return new

    def _forget_sums(self, log_forget: torch.Tensor | None, added: int) -> torch.Tensor:
        """The sums of log forget gates up to each new key, (batch, kv_heads, added, gates), after a check."""
        batch, kv_heads, _, gates = self._held.planes["forgotten"].shape
        needed = (batch, kv_heads * gates, added)
        if not isinstance(log_forget, torch.Tensor) or log_forget.shape != needed:
            raise ShapeError(
                f"log_forget is {shown(log_forget)}, and this cache takes {needed} numbers with these entries"
            )
        by_key = log_forget.unflatten(1, (kv_heads, gates)).transpose(2, 3)
        return self._forgotten() + log_sums(by_key, 2)

    def _with_new(self, new: dict[str, torch.Tensor]) -> HeldEntries:
        """The entries held and new ones after them."""
        held = self._held
        added = new["k"].shape[2]
        if torch.is_grad_enabled() and (held.recorded or needs_gradient(new)):
            return held.concatenated(new)
        if exporting():  # allocating ahead would fix the lengths of the program
            return held.concatenated(new)
        if not held.claimed(added, self._overwrites):
            held = held.moved(self._room(held.entries + added, held.room))
            held.claimed(added, self._overwrites)
        return held.written({name: x.detach() for name, x in new.items()})

    def _returned(self, held: HeldEntries, dtype: torch.dtype | None) -> tuple[Entries, Entries]:
        """Keys and values of these entries: tensors if they are of this dtype and none was dropped, else `Stored`."""
        used = held.used()
        k = used["k"]
        v = k[..., : self.v_dim] if self.joined else used["v"]
        if self.dtype == dtype != torch.int8 and not held.dropped:
            return k, v
        k_scales = used.get("k_scales")
        v_scales = k_scales if self.joined else used.get("v_scales")
        # `Stored` has public names for what attention asks: `first` counts the positions that were dropped, `lead` the
        # entries before them.
        options: dict[str, Any] = {
            "first": held.dropped,
            "lead": self.first_entries,
            "places": held.places,
        }
        return Stored(k, k_scales, **options), Stored(v, v_scales, **options)

    def _checked(self, k: torch.Tensor, v: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """The new entries by the names of their planes, after a check."""
        if self.joined and v is not None:
            raise ShapeError(
                f"append to a joined {self.kind} cache: values are in the keys, so give keys alone"
            )
        if not self.joined and v is None:
            raise ShapeError(f"append to a {self.kind} cache: give keys and values")
        named = {"k": k} if v is None else {"k": k, "v": v}
        for name, new in named.items():
            check_tensor(name, new)
            if isinstance(new, Stored):
                raise ShapeError(f"{name} comes from another cache; append takes tensors")
            plane = self._held.planes[name]
            if new.device != plane.device:
                raise ShapeError(
                    f"{name} is on {new.device} and the cache on {plane.device}; move one of them"
                )
            reason = _misfit(name, new.shape, plane.shape)
            if reason is not None:
                raise ShapeError(reason)
            check_numbers(name, new, self.dtype)
        if v is not None and k.shape[2] != v.shape[2]:
            raise ShapeError(
                f"{count_of(k.shape[2], 'keys')} but {count_of(v.shape[2], 'values')}; append as many values as keys"
            )
        self._check_capacity(k.shape[2])
        return named

    def _check_axes(self, k: Any, v: Any, layout: str) -> None:
        """Raise a ShapeError unless k and v, in another layout, fit the entries; it names the axes in that layout."""
        for name, x in (("k", k), ("v", v)):
            plane = self._held.planes.get(name)
            if isinstance(x, torch.Tensor) and plane is not None:
                reason = _misfit(name, x.shape, plane.shape, layout)
                if reason is not None:
                    raise ShapeError(reason)

    def _checked_positions(self, indices: torch.Tensor) -> torch.Tensor:
        """Positions in ascending order, (batch or 1, kv_heads or 1, n), after a check of their tensor."""
        keys = self._held.planes["k"]
        batch, kv_heads = keys.shape[:2]
        if not isinstance(indices, torch.Tensor) or indices.dtype not in (torch.int64, torch.int32):
            raise ShapeError(f"keep takes positions as an int64 tensor, not {shown(indices)}")
        refuse_wrapper("the tensor of positions", indices)
        indices = in_memory("the tensor of positions", indices)
        leading_axes = {1: (), 2: (batch,), 3: (batch, kv_heads)}.get(indices.dim())
        if leading_axes is None or indices.shape[:-1] != leading_axes:
            raise ShapeError(
                f"keep was given positions {tuple(indices.shape)}; it takes (n,), (batch, n) or (batch, kv_heads, n), "
                f"and this cache has batch {batch} and kv_heads {kv_heads}"
            )
        if indices.dim() == 1:
            indices = indices[None]
        if indices.dim() == 2:
            indices = indices[:, None]
        with torch.inference_mode(False):  # a cache may go on where gradients are recorded
            copied = indices.detach().to(keys.device, torch.int64, copy=True)
            return copied.sort(-1).values

    def _checked_capacity(self, capacity: int | None) -> int | None:
        if self.bounded is False and capacity is not None:
            raise ArgumentError(
                f"capacity={shown(capacity)}: a {self.kind} cache has no capacity; leave it out"
            )
        if self.bounded and capacity is None:
            raise ArgumentError(f"a {self.kind} cache needs a capacity; give capacity=, 1 or more")
        return None if capacity is None else whole("capacity", capacity, 1)

    def __repr__(self) -> str:
        batch, kv_heads, _, head_dim = self._held.planes["k"].shape
        words = [
            f"batch={batch}",
            f"kv_heads={kv_heads}",
            f"length={self.length}",
            f"head_dim={head_dim}",
        ]
        if self.joined:
            words.append(f"joined v_dim={self.v_dim}")
        if self._whole().places is not None:
            words.append(f"entries={self.entries}")
        words.append(str(self.dtype).removeprefix("torch."))
        if self.capacity is not None:
            words.append(f"capacity={self.capacity}")
        if self.first_entries:
            words.append(f"first_entries={self.first_entries}")
        if self._forgets:
            words.append(f"forgetting={self._held.planes['forgotten'].shape[3]}")
        return f"{type(self).__name__}({', '.join(words)})"


def common_dtype(k: torch.Tensor, v: torch.Tensor | None) -> torch.dtype | None:
    """The dtype of keys and values; None if it differs."""
    return k.dtype if v is None or k.dtype == v.dtype else None


def needs_gradient(planes: dict[str, torch.Tensor]) -> bool:
    for plane in planes.values():
        if plane.requires_grad:
            return True
    return False
