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
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from regard.arguments import a_path, of_kind
from regard.distributed.group import Group
from regard.distributed.manifest import MANIFEST, Manifest, Place, Stored, part_name, shard_file
from regard.distributed.states import HeldState
from regard.errors import CheckpointError, RegardError
from regard.storage.tensors import load_tensors, save_tensors

ALL_SEE = "the folder must be one that all processes see, such as on a network file system"


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
        UnsupportedError: an optimiser whose state is not tensors and numbers, or one of a model that FSDP1 divided.
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
    writer = SealedWriter(folder, manifest)
    with _in_sentences(failed):
        dcp.save(held.tensors, storage_writer=writer, **_of_torch(processes))


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
        held.expect({name: (one.dtype, one.shape) for name, one in manifest.tensors.items()}, manifest.settings)
        here = {name: (one.dtype, tuple(one.shape)) for name, one in held.tensors.items()}
        manifest.check_fits(folder, here, held.settings)
        held.check_groups(manifest.settings)
    _check_same(processes, folder, manifest)
    with _in_sentences(failed):
        dcp.load(held.tensors, storage_reader=SealedReader(folder, manifest, processes), **_of_torch(processes))
    held.install(manifest.settings)
    return manifest.values


def _processes(group: Any) -> Group | None:
    """The processes that save or load together; None without torch.distributed."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return Group.of(dist.group.WORLD if group is None else group)


def _of_torch(processes: Group | None) -> dict[str, Any]:
    """The processes as torch.distributed.checkpoint takes them."""
    return {"no_dist": True} if processes is None else {"process_group": processes.handle}


@contextmanager
def _together(processes: Group | None, failed: str) -> Generator[None]:
    """Within it is what may fail on one process alone; then all of them raise, so that none waits for it."""
    own = None
    try:
        yield
    except Exception as error:
        own = error
    words = "" if own is None else " ".join(str(own).split())[:500] or type(own).__name__
    every = [words] if processes is None else [one for (one,) in processes.gathered_lists([words])]
    if own is not None:
        raise own
    if reasons := {rank: one for rank, one in enumerate(every) if one}:
        first = next(iter(reasons.values()))
        raise CheckpointError(f"{failed}; on process {', '.join(map(str, reasons))}: {first}")


def _check_same(processes: Group | None, folder: Path, manifest: Manifest) -> None:
    """Raise a CheckpointError on every process unless all of them read the same manifest."""
    if processes is None:
        return
    every = [one for (one,) in processes.gathered_lists([manifest.digest()])]
    if others := [str(rank) for rank, one in enumerate(every) if one != every[0]]:
        raise CheckpointError(
            f"{folder} holds one checkpoint on process 0 and another on process {', '.join(others)}; {ALL_SEE}, and "
            f"nothing may be saved there meanwhile"
        )


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


class Written(NamedTuple):
    """The file that a process wrote, its seal and its size in bytes."""

    file: str
    seal: str
    size: int


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
        written = Written(file, "", 0)
        if parts:
            tensors = {name: cast(torch.Tensor, planner.resolve_data(item)).detach() for name, item in parts.items()}
            seal = save_tensors(self.folder / file, tensors)
            written = Written(file, seal, (self.folder / file).stat().st_size)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, written) for item in parts.values()])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest, which makes the checkpoint, and remove the files of the one before."""
        for rank, process in enumerate(results):
            for file in {one.storage_data for one in process}:
                self._check_seen(file, rank)
        written = {one.index: one.storage_data for process in results for one in process}
        tensors = {}
        for name, kind in metadata.state_dict_metadata.items():
            assert isinstance(kind, TensorStorageMetadata)
            places = []
            for chunk in kind.chunks:
                if (found := written.get(MetadataIndex(name, chunk.offsets))) is not None:
                    places.append(Place(tuple(chunk.offsets), tuple(chunk.sizes), found.file))
            tensors[name] = Stored(kind.properties.dtype, tuple(kind.size), tuple(places))
        files = dict(sorted({(one.file, one.seal) for one in written.values()}))
        replace(self.manifest, tensors=tensors, files=files).write(self.folder)

    def _check_seen(self, file: Written, rank: int) -> None:
        """Raise a CheckpointError unless this process sees the whole file that another one wrote."""
        path = self.folder / file.file
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"process 0 does not find {path}, which process {rank} wrote; {ALL_SEE}") from error
        if size != file.size:
            raise CheckpointError(
                f"process 0 finds {size} bytes in {path}, and process {rank} wrote {file.size}; {ALL_SEE}"
            )

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

    def __init__(self, folder: Path, manifest: Manifest, processes: Group | None) -> None:
        self.folder, self.manifest, self.processes = folder, manifest, processes

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
                part = whole[cut].clone() if whole[cut].numel() < whole.numel() else whole
                if part.shape != one.lengths or part.dtype != self.manifest.tensors[one.storage_index.fqn].dtype:
                    raise CheckpointError(
                        f"{self.folder / file} does not hold {one.storage_index.fqn} as {MANIFEST} says"
                    )
                read.append(Read(one, part))
        return read

    def _agreed(self, sound: bool) -> bool:
        """Whether every process could read its part."""
        if self.processes is None:
            return sound
        return bool(self.processes.gathered(torch.tensor([int(sound)], device=self.processes.device)).all())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Any path."""
        return isinstance(checkpoint_id, str | Path)
