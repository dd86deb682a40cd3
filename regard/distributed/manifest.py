"""The manifest of a checkpoint of several processes: where each part of each tensor is, as sealed JSON."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import ArgumentError, CheckpointError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard.storage.tensors import CODES, DTYPES

MANIFEST = "checkpoint.json"
FORMAT = 1
SHARD = re.compile(r"shard-[0-9a-f]{16}-[0-9]{5,}\.safetensors")
SEAL = re.compile(r"[0-9a-f]{64}")
MOST_SHOWN = 5  # differences in a message
OPTIMISER = "optimiser."  # before the names of what is an optimiser's


class Shard(NamedTuple):
    """One part of a tensor: where it begins along each axis, its sizes, and the file that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str


class Sharded(NamedTuple):
    """One tensor and its parts."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[Shard, ...]

    def check(self, name: str, files: dict[str, str]) -> None:
        """Raise a ValueError unless the parts lie inside the tensor and in these files, do not overlap, and fill it."""
        for part in self.parts:
            inside = len(part.offsets) == len(part.sizes) == len(self.shape) and all(
                at + size <= whole for at, size, whole in zip(part.offsets, part.sizes, self.shape, strict=True)
            )
            if not inside or part.file not in files:
                raise ValueError(f"a part of {name} lies outside it, or in no file")
        if sum(math.prod(part.sizes) for part in self.parts) != math.prod(self.shape):
            raise ValueError(f"the parts of {name} do not fill it")
        if any(_overlap(*two) for two in combinations(self.parts, 2)):
            raise ValueError(f"two parts of {name} overlap")


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
    tensors: dict[str, Sharded]
    files: dict[str, str]

    def check_values(self) -> None:
        """Raise an ArgumentError unless values and settings can be written and read as they are."""
        body = json.loads(render_sealed({"values": self.values, "settings": self.settings}))
        if body["values"] != self.values:
            raise ArgumentError(
                "values change when they are written as JSON; keys are strings, and there are lists but no tuples"
            )

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder, and then remove the files that only the old one named.

        Raises:
            ValueError: the parts of a tensor are not those of one tensor, as where processes hold different ones.
        """
        for name, one in self.tensors.items():
            one.check(name, self.files)
        tensors = {name: [CODES[one.dtype], one.shape, one.parts] for name, one in self.tensors.items()}
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
            tensors = {name: _sharded(*one) for name, one in content["tensors"].items()}
            if not isinstance(values, dict) or not isinstance(settings, dict):
                raise ValueError("values and settings are given by name")
            for file, seal in files.items():
                if not SHARD.fullmatch(file) or not SEAL.fullmatch(seal):
                    raise ValueError(f"{file[:80]!r} is no file of a checkpoint")
            for name, one in tensors.items():
                one.check(name, files)
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
        of_optimiser = {name for name in known | asked if name.startswith(OPTIMISER)}
        if (saved := bool(known & of_optimiser)) != bool(asked & of_optimiser):
            advice = "with an optimiser; give one to load_checkpoint" if saved else "without an optimiser; give none"
            faults.append(f"it was saved {advice}")
            known, asked = known - of_optimiser, asked - of_optimiser
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


def _sharded(code: str, shape: list[int], parts: list[Any]) -> Sharded:
    shards = [Shard(_sizes(offsets), _sizes(sizes), file) for offsets, sizes, file in parts]
    return Sharded(DTYPES[code], _sizes(shape), tuple(shards))


def _sizes(numbers: list[int]) -> tuple[int, ...]:
    if any(type(one) is not int or not 0 <= one < 2**62 for one in numbers) or len(numbers) > 64:
        raise ValueError(f"{str(numbers)[:80]} are no sizes")
    return tuple(numbers)


def _overlap(one: Shard, other: Shard) -> bool:
    return all(
        max(a, b) < min(a + size, b + width)
        for a, size, b, width in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )
