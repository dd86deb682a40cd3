"""Reads the file of a cache. All that the file says is checked before a cache is made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from regard.arguments import count_of
from regard.errors import CheckpointError
from regard.layers.caches.entries import HeldEntries
from regard.layers.caches.rounding import DTYPES
from regard.storage import load_tensor_metadata, load_tensors

FORMAT = "1"
LARGEST_NUMBER = 2**62  # larger positions could overflow int64
MOST_DIGITS = 19  # of a number that is read


@dataclass(frozen=True)
class CacheFile:
    """What the file of a cache holds.

    capacity: None where it names none. v_dim: size of a value. first_entries: for a ring, how many entries at the
    beginning of the text stay. held: the entries.
    """

    capacity: int | None
    v_dim: int
    first_entries: int
    held: HeldEntries


def read_kind(path: Path, kinds: tuple[str, ...]) -> str:
    """The kind of cache in a file."""
    words = load_tensor_metadata(path)
    if words.get("format") != FORMAT or words.get("cache") not in kinds:
        raise CheckpointError(
            f"{path} holds a cache of kind {words.get('cache')!r} in format {words.get('format')!r}; this version "
            f"reads {', '.join(kinds)} in format {FORMAT}"
        )
    return words["cache"]


def read_cache(
    path: Path, kind: str, bounded: bool | None, device: torch.device | str
) -> CacheFile:
    """Read the cache of this kind in a file.

    Args:
        path: of the file.
        kind: of the cache.
        bounded: whether this kind has a capacity; None for either.
        device: to which the entries go.

    Raises:
        CheckpointError: the file says what cannot be true of a cache of this kind.
    """
    read_kind(path, (kind,))
    words = load_tensor_metadata(path)
    planes = load_tensors(path)
    places = planes.pop("places", None)
    dropped = whole_number(path, words, "first")  # a file has the words of `Stored`
    capacity = None
    if bounded or (bounded is None and "capacity" in words):
        capacity = whole_number(path, words, "capacity")

    is_joined = "v_dim" in words  # it holds keys alone, and says how much of them are values
    if not _fit_together(planes, ("k",) if is_joined else ("k", "v")):
        shapes = {name: (plane.dtype, tuple(plane.shape)) for name, plane in planes.items()}
        raise CheckpointError(
            f"{path} holds {shapes}, which are not the keys and values of a cache"
        )
    keys = planes["k"]
    entries = keys.shape[2]
    first_entries = 0
    if "lead" in words and kind == "ring":
        first_entries = whole_number(path, words, "lead")

    # The file of a ring has no places: its length says which entries were dropped.
    if places is not None and (kind == "ring" or not _are_places(places, keys.shape, dropped)):
        raise CheckpointError(
            f"{path} holds places {places.dtype} {tuple(places.shape)} that are not those of entries"
        )
    may_drop = entries >= first_entries if kind == "ring" else places is not None
    fits = capacity is None or (capacity >= 1 and entries <= capacity + first_entries)
    if (dropped and not may_drop) or not fits:
        raise CheckpointError(
            f"{path} holds {count_of(entries, 'entries')} from position {dropped}, which a {kind} cache never does"
        )
    v_dim = whole_number(path, words, "v_dim") if is_joined else planes["v"].shape[3]
    if is_joined and v_dim > keys.shape[3]:
        raise CheckpointError(f"{path} has values of {v_dim} numbers in keys of {keys.shape[3]}")

    held = HeldEntries({name: plane.to(device) for name, plane in planes.items()}, 0, entries)
    held = replace(held, dropped=dropped, places=None if places is None else places.to(device))
    return CacheFile(capacity, v_dim, first_entries, held)


def whole_number(path: Path, words: dict[str, str], name: str) -> int:
    """A whole number from the metadata of a file."""
    text = words.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not is_number or int(text) >= LARGEST_NUMBER:
        raise CheckpointError(f"{path}: {name} is {text[:40]!r}, not a whole number")
    return int(text)


def _are_places(places: torch.Tensor, shape: torch.Size, dropped: int) -> bool:
    """Whether these are positions of the first entries of a cache that dropped so many positions."""
    if places.dtype != torch.int64 or places.dim() != 3 or not dropped:
        return False
    batch, kv_heads, entries, _ = shape
    rows, heads, count = places.shape
    if rows not in (1, batch) or heads not in (1, kv_heads) or count > entries:
        return False
    is_ascending = bool((places.diff(dim=-1) > 0).all())
    return is_ascending and bool((places >= 0).all()) and bool((places < count + dropped).all())


def _fit_together(planes: dict[str, torch.Tensor], names: tuple[str, ...]) -> bool:
    """Whether these are the planes of a cache whose vectors have these names."""
    if not {*names} <= planes.keys() or any(plane.dim() != 4 for plane in planes.values()):
        return False
    dtype = planes["k"].dtype
    scales = [f"{name}_scales" for name in names] if dtype == torch.int8 else []
    if planes.keys() - {"forgotten"} != {*names, *scales} or dtype not in DTYPES.values():
        return False
    if any(planes[name].dtype != dtype for name in names):
        return False
    for name in scales:
        if planes[name].dtype != torch.float32 or planes[name].shape[3] != 1:
            return False
    gates = planes.get("forgotten")
    if gates is not None and (gates.dtype != torch.float64 or not gates.shape[3]):
        return False
    leading_axes = {plane.shape[:3] for plane in planes.values()}
    return len(leading_axes) == 1 and planes["k"].shape[1] > 0
