"""Checkpoints of models on several processes, which any other number of processes can load.

`torch.distributed.checkpoint` plans which process writes and reads which part of each tensor. regard writes the
files: each process writes its parts to one safetensors file, sealed with hashes, and `checkpoint.json`, which is sealed
too, says where each part is. Nothing in a file is unpickled.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from regard.arguments import a_path, of_kind
from regard.distributed.group import Group
from regard.distributed.manifest import MANIFEST, Manifest, Place, Stored, part_name, shard_file
from regard.errors import ArgumentError, CheckpointError, RegardError
from regard.storage.tensors import DTYPES, load_tensors, save_tensors

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


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
    checkpoint replaces an older one in the folder when it is complete; until then the older one is kept.

    Args:
        folder: made if it does not exist.
        model: weights that are DTensors are saved in parts, others by one process.
        optimiser: of this model's parameters.
        values: JSON values to keep beside them, such as the step.
        group: the processes, a DeviceMesh or ProcessGroup; all by default. Without torch.distributed, this one.

    Raises:
        ArgumentError: values that are not JSON, or tensors that the format does not store.
        CheckpointError: a process could not write its part.

    >>> import tempfile
    >>> model = nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(folder, model, values={"step": 7})
    ...     load_checkpoint(folder, nn.Linear(4, 2))
    {'step': 7}
    """
    folder = a_path("folder", folder)
    values = of_kind("values", {} if values is None else values, dict, "JSON values by name")
    tensors, settings = _split(_state(model, optimiser))
    manifest = Manifest(values, settings, {}, {})
    manifest.check_values()
    writer = SealedWriter(folder, manifest)
    with _in_sentences(f"{folder}: the checkpoint was not saved"):
        dcp.save(tensors, storage_writer=writer, **_processes(group))


def load_checkpoint(
    folder: str | Path, model: nn.Module, optimiser: torch.optim.Optimizer | None = None, *, group: Any = None
) -> dict[str, Any]:
    """Load what `save_checkpoint` saved, on any number of processes and with any division of the model.

    Each process reads the parts that it holds. All hashes are checked on all processes before a number is changed.

    Args:
        folder: as for `save_checkpoint`.
        model: of the same sizes as the saved one.
        optimiser: of the same kind as the saved one; None where none was saved.
        group: as for `save_checkpoint`.

    Returns:
        The values that were saved.

    Raises:
        CheckpointError: a file is missing or damaged, or holds other tensors; the model is unchanged.
    """
    folder = a_path("folder", folder)
    state = _state(model, optimiser)
    tensors, settings = _split(state)
    manifest = Manifest.read(folder / MANIFEST)
    manifest.check_fits(folder, {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}, settings)
    several = _processes(group)
    with _in_sentences(f"{folder}: the checkpoint was not loaded"):
        dcp.load(tensors, storage_reader=SealedReader(folder, manifest, several.get("process_group")), **several)
    loaded = {**tensors, **{name: _like(manifest.settings[name], one) for name, one in settings.items()}}
    parts = {kind: {} for kind in ("model", "optimiser")}
    for name, one in loaded.items():
        kind, _, inside = name.partition(".")
        parts[kind][inside] = one
    optimisers = [] if optimiser is None else [optimiser]
    set_state_dict(
        model, optimisers, model_state_dict=parts["model"], optim_state_dict=parts["optimiser"], options=FLAT
    )
    return manifest.values


def _state(model: Any, optimiser: Any) -> dict[str, Any]:
    """Tensors and settings of a model and its optimiser by name."""
    of_kind("model", model, nn.Module, "a module")
    if optimiser is not None:
        of_kind("optimiser", optimiser, torch.optim.Optimizer, "an optimiser of torch.optim")
    own, of_optimiser = get_state_dict(model, [] if optimiser is None else [optimiser], options=FLAT)
    named = {f"model.{name}": one for name, one in own.items()}
    return named | {f"optimiser.{name}": one for name, one in of_optimiser.items()}


def _split(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
    for name, one in tensors.items():
        if one.dtype not in DTYPES.values() or one.layout != torch.strided:
            raise ArgumentError(f"{name} is {one.dtype} with layout {one.layout}; checkpoints hold dense numbers")
    return tensors, {name: one for name, one in state.items() if name not in tensors}


def _like(value: Any, here: Any) -> Any:
    """A setting as JSON holds it, of the type that it has here."""
    return tuple(value) if isinstance(here, tuple) else value


def _processes(group: Any) -> dict[str, Any]:
    """The processes as torch.distributed.checkpoint takes them."""
    if not dist.is_available() or not dist.is_initialized():
        return {"no_dist": True}
    return {"process_group": Group.of(dist.group.WORLD if group is None else group).handle}


@contextmanager
def _in_sentences(failed: str) -> Generator[None]:
    """Within it, the exceptions that torch.distributed.checkpoint collects become one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except dcp.CheckpointException as error:
        reasons = {rank: one for rank, (one, _) in sorted(error.failures.items())}
        own = [one for one in reasons.values() if isinstance(one, RegardError)]
        first = (own or list(reasons.values()))[0]
        where = ", ".join(map(str, reasons))
        raise CheckpointError(f"{failed}; on process {where}: {' '.join(str(first).split())[:500]}") from first


class SealedWriter(StorageWriter):
    """Writes the parts of each process to one sealed file, and then the manifest."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one save to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be made: {error.strerror}") from error

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each process the name of its file, which no other save has."""
        token = secrets.token_hex(8)
        return [replace(plan, storage_data=shard_file(token, rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this process's parts."""
        parts = {part_name(item.index.fqn, item.index.offset or ()): item for item in _with_numbers(plan.items)}
        file = cast(str, plan.storage_data)
        seal = ""
        if parts:
            tensors = {name: cast(torch.Tensor, planner.resolve_data(item)).detach() for name, item in parts.items()}
            seal = save_tensors(self.folder / file, tensors)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, (file, seal)) for item in parts.values()])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest, which makes the checkpoint, and remove the files of the one before."""
        written = {one.index: one.storage_data for process in results for one in process}
        tensors = {}
        for name, kind in metadata.state_dict_metadata.items():
            assert isinstance(kind, TensorStorageMetadata)
            places = []
            for chunk in kind.chunks:
                if (found := written.get(MetadataIndex(name, chunk.offsets))) is not None:
                    places.append(Place(tuple(chunk.offsets), tuple(chunk.sizes), found[0]))
            tensors[name] = Stored(kind.properties.dtype, tuple(kind.size), tuple(places))
        files = dict(sorted(set(written.values())))
        replace(self.manifest, tensors=tensors, files=files).write(self.folder)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Any path."""
        return isinstance(checkpoint_id, str | Path)


def _with_numbers(items: Sequence[WriteItem]) -> list[WriteItem]:
    """The parts that are not empty; where a process holds none of a tensor, its part is."""
    assert all(item.tensor_data is not None for item in items), "values that are no tensors are in the manifest"
    return [item for item in items if item.tensor_data is not None and item.tensor_data.chunk.sizes.numel()]


class Read(NamedTuple):
    """One part that was read and verified, and where it belongs."""

    request: Any
    numbers: torch.Tensor


class SealedReader(StorageReader):
    """Reads the parts that a process needs, verifies them, and copies them when all processes have."""

    def __init__(self, folder: Path, manifest: Manifest, group: Any) -> None:
        self.folder, self.manifest, self.group = folder, manifest, group

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one load to the next."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the manifest says of the tensors."""
        found: dict[str, Any] = {}
        for name, one in self.manifest.tensors.items():
            chunks = [ChunkStorageMetadata(torch.Size(at.offsets), torch.Size(at.sizes)) for at in one.places]
            found[name] = TensorStorageMetadata(TensorProperties(one.dtype), torch.Size(one.shape), chunks)
        return Metadata(found)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the manifest was read before."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read and verify, agree with the other processes, then copy."""
        try:
            read = self._verified(plan)
        except Exception:
            self._agreed(False)
            raise
        if not self._agreed(True):
            raise CheckpointError("another process could not read its part, so nothing was changed")
        for request, numbers in read:
            target = planner.resolve_tensor(request).detach()
            target.copy_(numbers)
            planner.commit_tensor(request, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _verified(self, plan: LoadPlan) -> list[Read]:
        by_file: dict[str, list[Any]] = {}
        for request in plan.items:
            by_file.setdefault(self.manifest.file_of(request.storage_index), []).append(request)
        read = []
        for file, requests in sorted(by_file.items()):
            names = {part_name(one.storage_index.fqn, one.storage_index.offset or ()) for one in requests}
            tensors = load_tensors(self.folder / file, self.manifest.files[file], names=names)
            for one in requests:
                whole = tensors[part_name(one.storage_index.fqn, one.storage_index.offset or ())]
                cut = tuple(slice(at, at + length) for at, length in zip(one.storage_offsets, one.lengths, strict=True))
                read.append(Read(one, whole[cut].clone() if whole[cut].numel() < whole.numel() else whole))
        return read

    def _agreed(self, sound: bool) -> bool:
        """Whether every process could read its part."""
        if self.group is None:
            return sound
        group = Group.of(self.group)
        device = group.device
        return bool(group.gathered(torch.tensor([int(sound)], device=device)).all())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Any path."""
        return isinstance(checkpoint_id, str | Path)
