"""The manifest of a checkpoint of several processes: where each part of each tensor is, as sealed JSON."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from regard.errors import ArgumentError, CheckpointError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard.storage.tensors import DTYPES

MANIFEST = "checkpoint.json"
FORMAT = 1
CODES = {dtype: code for code, dtype in DTYPES.items()}
SHARD = re.compile(r"shard-[0-9a-f]{16}-[0-9]{5,}\.safetensors")
SEAL = re.compile(r"[0-9a-f]{64}")
MOST_SHOWN = 5  # differences in a message
OPTIMISER = "optimiser."  # before the names of what is an optimiser's


class Place(NamedTuple):
    """One part of a tensor: where it begins along each axis, its sizes, and the file that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str


class Stored(NamedTuple):
    """One tensor and its parts."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    places: tuple[Place, ...]


def shard_file(token: str, rank: int) -> str:
    """The file of a process; `token` is one save's own."""
    return f"shard-{token}-{rank:05d}.safetensors"


def part_name(name: str, offsets: Sequence[int]) -> str:
    """The name of a part inside its file.

    >>> part_name("model.weight", (4, 0))
    'model.weight@4,0'
    """
    return f"{name}@{','.join(map(str, offsets))}"


@dataclass(frozen=True)
class Manifest:
    """What `checkpoint.json` holds.

    values: the caller's. settings: those of the optimiser. tensors: by name. files: the seal of each.
    """

    values: dict[str, Any]
    settings: dict[str, Any]
    tensors: dict[str, Stored]
    files: dict[str, str]

    def check_values(self) -> None:
        """Raise an ArgumentError unless values and settings can be written and read as they are."""
        body = json.loads(render_sealed({"values": self.values, "settings": self.settings}))
        if body["values"] != self.values:
            raise ArgumentError(
                "values change when they are written as JSON; keys are strings, and there are lists but no tuples"
            )

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder, and then remove the files that only the old one named."""
        tensors = {
            name: [CODES[one.dtype], one.shape, [[at.offsets, at.sizes, at.file] for at in one.places]]
            for name, one in self.tensors.items()
        }
        content = {"format": FORMAT, "values": self.values, "settings": self.settings}
        replace_file(folder / MANIFEST, render_sealed({**content, "tensors": tensors, "files": self.files}))
        for path in folder.glob("shard-*.safetensors"):
            if SHARD.fullmatch(path.name) and path.name not in self.files:
                path.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest and check every claim of it.

        Raises:
            CheckpointError: it is missing, damaged, or no manifest.
        """
        content = read_sealed(path)
        if content.get("format") != FORMAT:
            raise CheckpointError(f"{path} has format {content.get('format')!r}; this version reads format {FORMAT}")
        try:
            values, settings, files = content["values"], content["settings"], content["files"]
            tensors = {name: _stored(*one) for name, one in content["tensors"].items()}
            if not isinstance(values, dict) or not isinstance(settings, dict):
                raise ValueError("values and settings are given by name")
            for file, seal in files.items():
                if not SHARD.fullmatch(file) or not SEAL.fullmatch(seal):
                    raise ValueError(f"{file[:80]!r} is no file of a checkpoint")
            for name, one in tensors.items():
                _check_places(name, one, files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path} is not the manifest of a checkpoint: {error}") from error
        return cls(values, settings, tensors, files)

    def check_fits(
        self, folder: Path, here: dict[str, tuple[torch.dtype, tuple[int, ...]]], settings: dict[str, Any]
    ) -> None:
        """Raise a CheckpointError that names the differences unless it holds these tensors and settings."""
        there = {name: (one.dtype, one.shape) for name, one in self.tensors.items()}
        known, asked = there.keys() | self.settings, here.keys() | settings
        faults = []
        if (saved := _with_optimiser(known)) != _with_optimiser(asked):
            advice = "with an optimiser; give one to load_checkpoint" if saved else "without an optimiser; give none"
            faults.append(f"it was saved {advice}")
            known, asked = _without_optimiser(known), _without_optimiser(asked)
        faults += [f"{name} is missing" for name in sorted(asked - known)]
        faults += [f"{name} has no place" for name in sorted(known - asked)]
        faults += [f"{name} is no tensor there and one here" for name in sorted(here.keys() & self.settings.keys())]
        faults += [f"{name} is a tensor there and none here" for name in sorted(there.keys() & settings.keys())]
        for name in sorted(here.keys() & there.keys()):
            if here[name] != there[name]:
                one, other = (f"{dtype} {shape}" for dtype, shape in (there[name], here[name]))
                faults.append(f"{name} is {one} and here {other}")
        if faults:
            more = f", and {len(faults) - MOST_SHOWN} more" if len(faults) > MOST_SHOWN else ""
            raise CheckpointError(
                f"{folder} holds another model or optimiser: {'; '.join(faults[:MOST_SHOWN])}{more}; load it into one "
                f"with the same settings"
            )

    def digest(self) -> str:
        """A text that differs where two manifests do."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def file_of(self, index: MetadataIndex) -> str:
        """The file that holds a part."""
        for place in self.tensors[index.fqn].places:
            if place.offsets == tuple(index.offset or ()):
                return place.file
        raise CheckpointError(f"the manifest names no file for {part_name(index.fqn, index.offset or ())}")


def _stored(code: str, shape: list[int], places: list[Any]) -> Stored:
    parts = [Place(_sizes(offsets), _sizes(sizes), file) for offsets, sizes, file in places]
    return Stored(DTYPES[code], _sizes(shape), tuple(parts))


def _sizes(numbers: list[int]) -> tuple[int, ...]:
    if any(type(one) is not int or not 0 <= one < 2**62 for one in numbers) or len(numbers) > 64:
        raise ValueError(f"{str(numbers)[:80]} are no sizes")
    return tuple(numbers)


def _check_places(name: str, one: Stored, files: dict[str, str]) -> None:
    """Raise a ValueError unless the parts lie inside the tensor, do not overlap, and fill it."""
    for place in one.places:
        inside = len(place.offsets) == len(place.sizes) == len(one.shape) and all(
            at + size <= whole for at, size, whole in zip(place.offsets, place.sizes, one.shape, strict=True)
        )
        if not inside or place.file not in files:
            raise ValueError(f"a part of {name} lies outside it, or in no file")
    if sum(math.prod(place.sizes) for place in one.places) != math.prod(one.shape):
        raise ValueError(f"the parts of {name} do not fill it")
    for at, first in enumerate(one.places):
        if any(_overlap(first, other) for other in one.places[:at]):
            raise ValueError(f"two parts of {name} overlap")


def _overlap(one: Place, other: Place) -> bool:
    return all(
        max(a, b) < min(a + size, b + width)
        for a, size, b, width in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )


def _with_optimiser(names: Iterable[str]) -> bool:
    return any(name.startswith(OPTIMISER) for name in names)


def _without_optimiser(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith(OPTIMISER)}
