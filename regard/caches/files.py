"""A cache in one file: its planes as safetensors, and the words that say what they are."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.caches.held import Held
from regard.caches.numbers import DTYPES
from regard.errors import CheckpointError
from regard.storage import load_tensor_metadata, load_tensors, save_tensors

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
    first = _number(path, words, "first")
    capacity = _number(path, words, "capacity") if bounded else None
    if not _fit_together(planes):
        found = {name: (plane.dtype, tuple(plane.shape)) for name, plane in planes.items()}
        raise CheckpointError(f"{path} holds {found}, which are not the keys and values of a cache")
    entries = planes["k"].shape[2]
    if (first and kind != "ring") or (capacity is not None and (capacity < 1 or entries > capacity)):
        raise CheckpointError(f"{path} holds {entries} entries from {first} on, which a {kind} cache never does")
    planes = {name: plane.to(device) for name, plane in planes.items()}
    return capacity, Held(planes, 0, entries, first)


def _number(path: Path, words: dict[str, str], name: str) -> int:
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
