"""Checkpoints of models on several processes, which any other number of processes can load.

Each process writes its parts of the tensors to one safetensors file, sealed with hashes; `checkpoint.json`, which is
sealed too, names the file of each part. Nothing in a file is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from regard.arguments import a_path, of_kind
from regard.distributed.group import Group
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.storage.files import replace_file
from regard.storage.sealed_json import check_format, read_sealed, render_sealed
from regard.storage.tensors import CODES, DTYPES, load_tensors, save_tensors

MANIFEST = "checkpoint.json"
FORMAT = 1
SHARD = re.compile(r"shard-[0-9a-f]{16}-[0-9]{5,}\.safetensors")
SEAL = re.compile(r"[0-9a-f]{64}")
MOST_SHOWN = 5  # differences in a message
OPTIMISER = "optimiser."  # before the names of what is an optimiser's
ALL_SEE = "the folder must be one that all processes see, such as on a network file system"
STATE, GROUPS = f"{OPTIMISER}state.", f"{OPTIMISER}param_groups."  # before the name of a parameter


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
        """Read a manifest and check every claim of it."""
        content = read_sealed(path)
        check_format(content, FORMAT, path)
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

    def check_fits(self, folder: Path, held: HeldState) -> None:
        """Raise a CheckpointError that names the differences unless it has these tensors and settings."""
        here = {name: (one.dtype, tuple(one.shape)) for name, one in held.tensors.items()}
        there = {name: (one.dtype, one.shape) for name, one in self.tensors.items()}
        known, asked = there.keys() | self.settings, here.keys() | held.settings
        faults = []
        of_optimiser = {name for name in known | asked if name.startswith(OPTIMISER)}
        if (saved := bool(known & of_optimiser)) != bool(asked & of_optimiser):
            advice = "with an optimiser; give one to load_checkpoint" if saved else "without an optimiser; give none"
            faults.append(f"it was saved {advice}")
            known, asked = known - of_optimiser, asked - of_optimiser
        faults += [f"{name} is missing" for name in sorted(asked - known)]
        faults += [f"{name} has no place" for name in sorted(known - asked)]
        faults += [f"{name} is no tensor there and one here" for name in sorted(here.keys() & self.settings.keys())]
        faults += [f"{name} is a tensor there and none here" for name in sorted(there.keys() & held.settings.keys())]
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


def save_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer | None = None,
    *,
    values: dict[str, Any] | None = None,
    group: Any = None,
) -> None:
    """Save a model that is divided among processes, by FSDP2, tensor parallelism or both.

    Every process calls it and writes its own part, into a folder that all processes can read and write. The new
    checkpoint replaces an older one in the folder when it is complete; until then the older one is kept. Model and
    optimiser are only read. If one process cannot save, all of them raise.

    Args:
        folder: made if it does not exist; process 0 checks that it sees the parts of all.
        model: weights that are DTensors are saved in parts, others by one process.
        optimiser: of this model's parameters; those that had no gradient yet have no state, here and when loaded.
        values: JSON values to keep beside them, such as the step; those of process 0 are kept.
        group: the processes, a DeviceMesh or ProcessGroup; all by default. Without torch.distributed, this one.

    Raises:
        ArgumentError: values that are not JSON, tensors that the format does not store, or an optimiser of others.
        UnsupportedError: an optimiser whose state is not tensors and numbers, or a model that FSDP1 divided.
        CheckpointError: a process could not write its part, or another one refused.

    >>> import tempfile
    >>> model = nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(folder, model, values={"step": 7})
    ...     load_checkpoint(folder, nn.Linear(4, 2))
    {'step': 7}
    """
    processes, failed = _processes(group), f"{folder}: the checkpoint was not saved"
    with _together(processes, failed):
        folder = a_path("folder", folder)
        values = of_kind("values", {} if values is None else values, dict, "JSON values by name")
        held = HeldState(model, optimiser)
        manifest = Manifest(values, held.settings, {}, {})
        manifest.check_values()
        parts = {part: x for part, x in _parts(held.tensors) if x.numel()}
    with _together(processes, failed):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be made: {error.strerror}") from error
    rank, token = 0 if processes is None else processes.rank, _gathered(processes, secrets.token_hex(8))[0]
    writers = _writers(_gathered(processes, [*parts]))
    written = None
    with _together(processes, failed):
        if mine := {part_name(part.name, part.offsets): x for part, x in parts.items() if writers[part] == rank}:
            path = folder / f"shard-{token}-{rank:05d}.safetensors"
            written = Written(path.name, save_tensors(path, mine), path.stat().st_size)
    every = _gathered(processes, written)
    with _together(processes, failed):
        if rank == 0:
            for other, one in enumerate(every):
                if one is not None:
                    _check_seen(folder, one, other)
            shards: dict[str, list[Shard]] = {name: [] for name in held.tensors}
            for part, writer in writers.items():
                shards[part.name].append(Shard(part.offsets, part.sizes, every[writer].file))
            tensors = {
                name: Sharded(one.dtype, tuple(one.shape), tuple(shards[name])) for name, one in held.tensors.items()
            }
            files = {one.file: one.seal for one in every if one is not None}
            replace(manifest, tensors=tensors, files=files).write(folder)


def load_checkpoint(
    folder: str | Path, model: nn.Module, optimiser: torch.optim.Optimizer | None = None, *, group: Any = None
) -> dict[str, Any]:
    """Load what `save_checkpoint` saved, on any number of processes and with any division of the model.

    Each process reads the parts that it holds. All hashes are checked on all processes before a number of the model or
    of the optimiser is changed. If one process cannot load, all of them raise.

    Args:
        folder: as for `save_checkpoint`.
        model: of the same sizes as the saved one.
        optimiser: of the same kind as the saved one, with its groups of parameters; None where none was saved.
        group: as for `save_checkpoint`.

    Returns:
        The values that were saved.

    Raises:
        CheckpointError: a file is missing or damaged, or holds other tensors; model and optimiser are unchanged.
    """
    processes, failed = _processes(group), f"{folder}: the checkpoint was not loaded"
    with _together(processes, failed):
        folder = a_path("folder", folder)
        manifest = Manifest.read(folder / MANIFEST)
        held = HeldState(model, optimiser)
        held.expect(manifest)
        manifest.check_fits(folder, held)
        held.check_groups(manifest.settings)
    digests = _gathered(processes, manifest.digest())
    if others := [str(rank) for rank, one in enumerate(digests) if one != digests[0]]:
        raise CheckpointError(
            f"{folder} holds one checkpoint on process 0 and another on process {', '.join(others)}; {ALL_SEE}, and "
            f"nothing may be saved there meanwhile"
        )
    with _together(processes, failed):
        copies = _verified(folder, manifest, held.tensors)
    for target, numbers in copies:
        target.copy_(numbers)
    held.install(manifest.settings)
    return manifest.values


# Processes


def _processes(group: Any) -> Group | None:
    """The processes that save or load together; None without torch.distributed."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return Group.of(dist.group.WORLD if group is None else group)


def _gathered(processes: Group | None, own: Any) -> list[Any]:
    """What each process gives, in their order."""
    return [own] if processes is None else [one for (one,) in processes.gathered_lists([own])]


@contextmanager
def _together(processes: Group | None, failed: str) -> Generator[None]:
    """Within it is what may fail on one process alone; then all of them raise, so that none waits for it."""
    own = None
    try:
        yield
    except Exception as error:
        own = error
    every = _gathered(processes, "" if own is None else " ".join(str(own).split())[:500] or type(own).__name__)
    if isinstance(own, RegardError):
        raise own
    if reasons := {rank: one for rank, one in enumerate(every) if one}:
        first = next(iter(reasons.values()))
        raise CheckpointError(f"{failed}; on process {', '.join(map(str, reasons))}: {first}") from own


# Files


class Part(NamedTuple):
    """A part of a tensor that a process holds: where it begins along each axis, its sizes and its bytes."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    nbytes: int


class Written(NamedTuple):
    """The file that a process wrote, its seal and its size in bytes."""

    file: str
    seal: str
    size: int


def _parts(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[Part, torch.Tensor]]:
    """What this process holds of each tensor, in its memory."""
    for name, x in tensors.items():
        if isinstance(x, DTensor):
            held = [(chunk.offsets, x.to_local()) for chunk in x.__create_chunk_list__()]
        else:
            held = [((0,) * x.ndim, x)]
        for offsets, numbers in held:
            yield Part(name, tuple(offsets), tuple(numbers.shape), numbers.nbytes), numbers.detach()


def _writers(plans: list[list[Part]]) -> dict[Part, int]:
    """The process that writes each part: of those that hold it, the one that has the fewest bytes to write so far."""
    holders: dict[Part, list[int]] = {}
    for rank, plan in enumerate(plans):
        for part in plan:
            holders.setdefault(part, []).append(rank)
    writers, load = {}, Counter[int]()
    for part, ranks in holders.items():
        writers[part] = min(ranks, key=load.__getitem__)
        load[writers[part]] += part.nbytes
    return writers


def _check_seen(folder: Path, file: Written, rank: int) -> None:
    """Raise a CheckpointError unless this process sees the whole file that another one wrote."""
    path = folder / file.file
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"process 0 does not find {path}, which process {rank} wrote; {ALL_SEE}") from error
    if size != file.size:
        raise CheckpointError(
            f"process 0 finds {size} bytes in {path}, and process {rank} wrote {file.size}; {ALL_SEE}"
        )


def _verified(
    folder: Path, manifest: Manifest, tensors: dict[str, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The places in this process's memory that are loaded, each with its numbers, which are read and verified."""
    wanted: dict[str, list[tuple[str, Shard, torch.Tensor, tuple[slice, ...]]]] = {}
    for part, numbers in _parts(tensors):
        for shard in manifest.tensors[part.name].parts:
            if (cuts := _common(part, shard)) is not None:
                key = part_name(part.name, shard.offsets)
                wanted.setdefault(shard.file, []).append((key, shard, numbers[cuts[0]], cuts[1]))
    copies = []
    for file, requests in sorted(wanted.items()):
        loaded = load_tensors(folder / file, manifest.files[file], names={key for key, *_ in requests})
        for key, shard, target, cut in requests:
            whole = loaded[key]
            if tuple(whole.shape) != shard.sizes or whole.dtype != target.dtype:
                raise CheckpointError(f"{folder / file} holds {key} with other sizes or numbers than {MANIFEST} names")
            some = whole[cut]
            copies.append((target, some.clone() if some.numel() < whole.numel() else some))
    return copies


def _common(part: Part, shard: Shard) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where the numbers that both hold are in the part and in the shard; None if there are none."""
    here, there = [], []
    for at, size, start, width in zip(part.offsets, part.sizes, shard.offsets, shard.sizes, strict=True):
        low, high = max(at, start), min(at + size, start + width)
        if low >= high:
            return None
        here.append(slice(low - at, high - at))
        there.append(slice(low - start, high - start))
    return tuple(here), tuple(there)


class HeldState:
    """What a model and its optimiser hold: `tensors` and `settings` by name, which share their memory.

    They are read here and not by `get_state_dict` of torch, which lets an optimiser without state make a step, so that
    Adam counts one step more. Until all of the saved state is known to fit, an optimiser is only read.
    """

    def __init__(self, model: Any, optimiser: Any) -> None:
        of_kind("model", model, nn.Module, "a module")
        if FullyShardedDataParallel.fsdp_modules(model):
            raise UnsupportedError(
                "the model is divided by FullyShardedDataParallel (FSDP1), and checkpoints hold models that FSDP2 "
                "divided; divide it by shard_model or fully_shard"
            )
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.optimiser, self.names = optimiser, {_unwrapped(name): name for name in self.model.state_dict()}
        state = {f"model.{_unwrapped(name)}": one for name, one in self.model.state_dict().items()}
        self.groups: list[list[str]] = []  # names of the parameters of each group of the optimiser
        self.parameters: dict[str, torch.Tensor] = {}  # all of them
        if optimiser is not None:
            of_kind("optimiser", optimiser, torch.optim.Optimizer, "an optimiser of torch.optim")
            names = {one: _unwrapped(name) for name, one in self.model.named_parameters()}
            if any(one not in names for group in optimiser.param_groups for one in group["params"]):
                raise ArgumentError(
                    "the optimiser has a parameter that is not one of the model's; give the optimiser that was made "
                    "of this model's parameters, after the model was divided"
                )
            for group in optimiser.param_groups:
                self.groups.append([names[one] for one in group["params"]])
                self.parameters |= {names[one]: one for one in group["params"]}
                options = {key: one for key, one in group.items() if key != "params"}
                state |= {f"{GROUPS}{name}.{key}": one for name in self.groups[-1] for key, one in options.items()}
            for parameter, kept in optimiser.state.items():
                state |= _flat(f"{STATE}{names[parameter]}", kept)
        self._divide(state)

    def _divide(self, state: dict[str, Any]) -> None:
        self.tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
        self.settings = {name: one for name, one in state.items() if name not in self.tensors}
        for name, one in self.tensors.items():
            if one.dtype not in DTYPES.values() or one.layout != torch.strided:
                raise ArgumentError(f"{name} is {one.dtype} with layout {one.layout}; checkpoints hold dense numbers")

    def expect(self, manifest: Manifest) -> None:
        """Make room for the saved state of parameters that have none here, and leave out what has none there.

        A parameter has state after its first gradient. New tensors are divided among processes as their parameter is.
        """
        tensors, settings = manifest.tensors, manifest.settings
        here = {name: self._owner(name) for name in (*self.tensors, *self.settings)}
        saved = {name: self._owner(name) for name in (*tensors, *settings)}
        kept = {None, *saved.values()}
        state = {name: one for name, one in (self.tensors | self.settings).items() if here[name] in kept}
        for name, owner in saved.items():
            if owner is not None and owner not in here.values():
                room = self.parameters[owner]
                state[name] = _room(name, room, tensors[name]) if name in tensors else settings[name]
        self._divide(state)

    def _owner(self, name: str) -> str | None:
        """The parameter whose state a name belongs to; None for other names."""
        if not name.startswith(STATE):
            return None
        parts = name.removeprefix(STATE).split(".")
        return next((one for at in range(1, len(parts)) if (one := ".".join(parts[:at])) in self.parameters), None)

    def check_groups(self, settings: dict[str, Any]) -> None:
        """Raise a CheckpointError unless the parameters of each group have the same saved settings."""
        for at, names in enumerate(self.groups):
            for key in [key for key in self.optimiser.param_groups[at] if key != "params"]:
                saved = [settings.get(f"{GROUPS}{name}.{key}") for name in names]
                if other := [one for one in saved if one != saved[0]]:
                    raise CheckpointError(
                        f"group {at} of the optimiser has parameters that were saved with {key}={saved[0]} and with "
                        f"{key}={other[0]}; divide the parameters into groups as they were when they were saved"
                    )

    def install(self, settings: dict[str, Any]) -> None:
        """Give model and optimiser the tensors, which hold the saved numbers now, and the saved settings."""
        state = {**self.tensors, **{name: settings[name] for name in self.settings}}
        for name, one in self.settings.items():
            if isinstance(one, tuple):  # JSON has none
                state[name] = tuple(state[name])
        self.model.load_state_dict({raw: state[f"model.{name}"] for name, raw in self.names.items()})
        if self.optimiser is None:
            return
        numbers = {name: at for at, name in enumerate(self.parameters)}
        groups = []
        for names, group in zip(self.groups, self.optimiser.param_groups, strict=True):
            options = {key: one for key, one in group.items() if key != "params"}
            options |= {key: state[f"{GROUPS}{names[0]}.{key}"] for key in options if names}
            groups.append({**options, "params": [numbers[name] for name in names]})
        kept: dict[int, dict[str, Any]] = {}
        for name, one in state.items():
            if (owner := self._owner(name)) is not None:
                *outer, last = name.removeprefix(f"{STATE}{owner}.").split(".")
                inner = kept.setdefault(numbers[owner], {})
                for key in outer:
                    inner = inner.setdefault(key, {})
                inner[last] = one
        self.optimiser.load_state_dict({"state": kept, "param_groups": groups})


def _unwrapped(name: str) -> str:
    """The name of a parameter without the marks of torch.compile and of activation checkpoints."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _flat(name: str, kept: dict[Any, Any]) -> dict[str, Any]:
    """The state of a parameter by name; dictionaries in it add to the name."""
    flat: dict[str, Any] = {}
    for key, one in kept.items():
        if isinstance(one, dict):
            flat |= _flat(f"{name}.{key}", one)
        elif isinstance(one, torch.Tensor | int | float):
            flat[f"{name}.{key}"] = one
        else:
            raise UnsupportedError(
                f"{name}.{key} is {type(one).__name__}; checkpoints of several processes hold the tensors and numbers "
                f"of an optimiser's state, so use another optimiser, or save the model without it"
            )
    return flat


def _room(name: str, parameter: torch.Tensor, saved: Sharded) -> torch.Tensor:
    """A tensor for the saved state of a parameter, divided among processes as the parameter is if it has its shape."""
    dtype, shape = saved.dtype, saved.shape
    try:
        if not shape and (name.endswith(".step") or parameter.ndim):
            return torch.empty((), dtype=dtype)  # numbers are on the CPU, unless `load_state_dict` moves them
        if shape == tuple(parameter.shape):
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        whole = torch.empty(shape, dtype=dtype, device=parameter.device)
    except RuntimeError as error:
        raise CheckpointError(f"there is no memory for {name}, which is {dtype} {shape}") from error
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole
