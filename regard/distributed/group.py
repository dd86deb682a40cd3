"""The processes of a call: who they are, what they agree on before it, and how they send tensors to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from regard.arguments import kind_of
from regard.distributed.needs import HEADER
from regard.errors import ArgumentError, RegardError, UnsupportedError

_MOST = 2**62


@dataclass(frozen=True)
class Group:
    """The processes that share a sequence, as one of them sees them."""

    handle: Any
    rank: int
    count: int

    @classmethod
    def of(cls, mesh: Any) -> Group:
        """The group of a one-dimensional DeviceMesh, or of a ProcessGroup.

        Raises:
            UnsupportedError: torch.distributed is not available or not initialised.
            ArgumentError: a mesh with several dimensions, a group without this process, or another object.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise UnsupportedError(
                "the processes do not know each other yet; call torch.distributed.init_process_group() in each, or "
                "init_device_mesh(device_type, (processes,)), and start them with torchrun"
            )
        if isinstance(mesh, dist.device_mesh.DeviceMesh):
            if mesh.ndim != 1:
                names = mesh.mesh_dim_names or ("a name given to init_device_mesh",)
                raise ArgumentError(
                    f"the mesh has {mesh.ndim} dimensions; sequences are divided over one of them: mesh[{names[-1]!r}]"
                )
            handle = mesh.get_group()
        elif isinstance(mesh, dist.ProcessGroup):
            handle = mesh
        else:
            raise ArgumentError(
                f"mesh is {kind_of(mesh)}; it needs to be a DeviceMesh of one dimension or a ProcessGroup, such as "
                f"torch.distributed.group.WORLD"
            )
        rank = dist.get_rank(handle)
        if rank < 0:
            raise ArgumentError(
                "this process is not one of the group's; only its own processes may call attention on it"
            )
        return cls(handle, rank, dist.get_world_size(handle))

    def gathered(self, header: torch.Tensor) -> torch.Tensor:
        """The headers of all processes, int64 (processes, numbers)."""
        if self.count == 1:
            return header[None].cpu()
        every = [torch.empty_like(header) for _ in range(self.count)]
        with self._peers("agreeing on the call"):
            dist.all_gather(every, header, group=self.handle)
        return torch.stack(every).cpu()

    def gathered_lists(self, own: list[Any]) -> list[list[Any]]:
        """The lists of all processes, in their order."""
        every: list[Any] = [None] * self.count
        with self._peers("gathering results"):
            dist.all_gather_object(every, own, group=self.handle)
        return every

    @property
    def device(self) -> torch.device:
        """The device of tensors that this group sends: the current GPU for NCCL, else the CPU."""
        return torch.device("cuda" if dist.get_backend(self.handle) == "nccl" else "cpu")

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the tensors of all processes, on each of them."""
        total = x.clone(memory_format=torch.contiguous_format)
        if self.count > 1:
            with self._peers("summing over processes"):
                dist.all_reduce(total, group=self.handle)
        return total

    def start(self, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]) -> Mail:
        """Begin to send contiguous tensors to some processes, and to receive into tensors from some.

        Every process posts its messages in the same order of steps, so that the messages between two of them meet.
        """
        ops = [self._op(dist.isend, tensor, peer) for peer, tensor in sorted(sends.items())]
        ops += [self._op(dist.irecv, tensor, peer) for peer, tensor in sorted(receives.items())]
        with self._peers("starting to exchange keys"):
            works = dist.batch_isend_irecv(ops) if ops else []
        return Mail(self, works, dict(sends), dict(receives))

    def _op(self, kind: Any, tensor: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(kind, tensor, dist.get_global_rank(self.handle, peer), group=self.handle)

    @contextmanager
    def _peers(self, doing: str) -> Generator[None]:
        """Within it, a failure of torch.distributed becomes a sentence."""
        try:
            yield
        except RegardError:
            raise
        except RuntimeError as error:
            words = " ".join(str(error).split())[:200]
            raise RegardError(
                f"process {self.rank} of {self.count} lost another one while {doing}: it ended, or did not answer "
                f"within the timeout of init_process_group. Start all again, from the last checkpoint. ({words})"
            ) from error


@dataclass
class Mail:
    """Messages under way; `sends` are held until they have arrived."""

    group: Group
    works: list[Any]
    sends: dict[int, torch.Tensor]
    receives: dict[int, torch.Tensor]

    def wait(self) -> dict[int, torch.Tensor]:
        """What arrived from each process."""
        with self.group._peers("exchanging keys"):
            for work in self.works:
                work.wait()
        self.sends.clear()
        return self.receives


@dataclass(frozen=True)
class Agreement:
    """What all processes know of a call: the lengths of each, and the seed of the dropout, which is that of rank 0."""

    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    seed: int


def agree(
    group: Group, q_len: int, k_len: int, learning: bool, seed: int, words: str, device: torch.device
) -> Agreement:
    """Tell every process the lengths of this one, and check that all make the same call.

    Raises:
        ArgumentError: another process makes another call; every process raises it.
    """
    digest = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") % _MOST
    header = torch.tensor([1, q_len, k_len, int(learning), seed % _MOST, digest], dtype=torch.int64)
    assert len(header) == HEADER
    every = group.gathered(header.to(device)).tolist()
    refused = [rank for rank, row in enumerate(every) if not row[0]]
    if refused:
        raise ArgumentError(f"the call was refused on process {', '.join(map(str, refused))}; the reason stands there")
    others = [rank for rank, row in enumerate(every) if row[5] != every[0][5]]
    if others:
        raise ArgumentError(
            f"process {', '.join(map(str, others))} and process 0 make different calls of attention; every process "
            f"needs the same pattern, options, dtype, layout and sizes, other than lengths. Here: {words}"
        )
    learning_at = [rank for rank, row in enumerate(every) if row[3]]
    if learning_at and len(learning_at) < group.count:
        raise ArgumentError(
            f"gradients are needed on process {', '.join(map(str, learning_at))} and not on the others; the backward "
            f"pass exchanges gradients, so all or none of the processes need q, k or v with requires_grad"
        )
    return Agreement(tuple(row[1] for row in every), tuple(row[2] for row in every), every[0][4])


def refuse_together(group: Group, device: torch.device) -> None:
    """Tell the others that this process refuses its call, so that they do not wait for it."""
    group.gathered(torch.zeros(HEADER, dtype=torch.int64, device=device))
