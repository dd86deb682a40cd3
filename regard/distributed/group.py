"""The processes of a call: who they are, and how they send tensors to each other."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from regard.arguments import kind_of
from regard.errors import ArgumentError, RegardError, UnsupportedError

# How many calls this process began, by its group. An entry lives as long as the group.
_begun: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Group:
    """The processes that share a sequence, as one of them sees them."""

    handle: Any
    rank: int
    count: int

    @classmethod
    def of(cls, mesh: Any) -> Group:
        """The group of a one-dimensional DeviceMesh, or of a ProcessGroup."""
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
            handle = None if mesh.get_coordinate() is None else mesh.get_group()
        elif type(mesh) is int and mesh == dist.GroupMember.NON_GROUP_MEMBER:
            handle = None  # new_group returns it to processes that are not in the group
        elif isinstance(mesh, dist.ProcessGroup):
            handle = mesh
        else:
            raise ArgumentError(
                f"mesh is {kind_of(mesh)}; it needs to be a DeviceMesh of one dimension or a ProcessGroup, such as "
                f"torch.distributed.group.WORLD"
            )

        rank = -1 if handle is None else dist.get_rank(handle)
        if rank < 0:
            raise ArgumentError(
                "this process is not one of the group's; only its own processes may call attention on it"
            )
        return cls(handle, rank, dist.get_world_size(handle))

    def begin(self) -> None:
        """Count a call that this process begins; `agree` compares the counts.

        Otherwise a process whose call was interrupted would agree on its next call with the same call of the others.
        """
        _begun[self.handle] = _begun.get(self.handle, 0) + 1

    @property
    def begun(self) -> int:
        """How many calls this process began, since the processes last refused one together."""
        return _begun.get(self.handle, 0)

    def count_again(self) -> None:
        """Count calls from 0 again: after a call that all refuse, some have begun it and others have not."""
        _begun.pop(self.handle, None)

    def gather(self, header: torch.Tensor) -> torch.Tensor:
        """The headers of all processes, int64 (processes, numbers)."""
        if self.count == 1:
            return header[None].cpu()

        headers = [torch.empty_like(header) for _ in range(self.count)]
        with self._explaining_failures("agreeing on the call"):
            dist.all_gather(headers, header, group=self.handle)
        return torch.stack(headers).cpu()

    def gather_lists(self, items: list[Any]) -> list[list[Any]]:
        """The lists of all processes, in the order of their ranks."""
        lists: list[Any] = [None] * self.count
        with self._explaining_failures("gathering results"):
            dist.all_gather_object(lists, items, group=self.handle)
        return lists

    @property
    def backends(self) -> dict[str, str]:
        """The backend that sends tensors of each type of device, such as "nccl" for "cuda"."""
        config = dist.get_backend_config(self.handle)  # such as "cpu:gloo,cuda:nccl"
        return dict(entry.split(":") for entry in config.split(","))

    @property
    def device(self) -> torch.device:
        """A device whose tensors this group sends: the CPU if it can, else this process's GPU."""
        device_types = [*self.backends]
        if "cpu" in device_types or not device_types:
            return torch.device("cpu")

        bound = getattr(self.handle, "bound_device_id", None)
        return bound or torch.device(device_types[0])

    def device_for(self, x: Any) -> torch.device:
        """The device that the lengths and options of a call are sent from: that of its tensor, if the group sends it.

        NCCL needs one collective of all processes on that device before two of them exchange keys.
        """
        if isinstance(x, torch.Tensor) and x.device.type in self.backends:
            return x.device
        return self.device

    def check_device(self, device: torch.device) -> None:
        """Raise an UnsupportedError unless this group sends tensors of a device from one process to another."""
        # gloo sends from one process to another only what is on the CPU.
        senders = {
            device_type: backend
            for device_type, backend in self.backends.items()
            if device_type == "cpu" or backend != "gloo"
        }
        if device.type in senders:
            return

        sent = ", ".join(f"{device_type} by {backend}" for device_type, backend in senders.items())
        raise UnsupportedError(
            f"q is on {device}, and this group sends tensors on {sent}; give tensors there, or a group that sends "
            f"those of {device.type}, as init_process_group('nccl') does for cuda"
        )

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the tensors of all processes, on each of them."""
        total = x.clone(memory_format=torch.contiguous_format)
        if self.count > 1:
            with self._explaining_failures("summing over processes"):
                dist.all_reduce(total, group=self.handle)
        return total

    def start(
        self, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]
    ) -> MessagesUnderWay:
        """Begin to send contiguous tensors to some processes, and to receive into tensors from some.

        Every process posts its messages in the same order of steps, so that the messages between two of them meet.
        """
        ops = [self._p2p_op(dist.isend, tensor, peer) for peer, tensor in sorted(sends.items())]
        ops += [self._p2p_op(dist.irecv, tensor, peer) for peer, tensor in sorted(receives.items())]
        with self._explaining_failures("starting to exchange keys"):
            works = dist.batch_isend_irecv(ops) if ops else []
        return MessagesUnderWay(self, works, dict(sends), dict(receives))

    def _p2p_op(self, function: Any, tensor: torch.Tensor, peer: int) -> dist.P2POp:
        peer = dist.get_global_rank(self.handle, peer)
        return dist.P2POp(function, tensor, peer, group=self.handle)

    @contextmanager
    def _explaining_failures(self, doing: str) -> Generator[None]:
        """Within it, a failure of torch.distributed becomes a sentence."""
        try:
            yield
        except (RegardError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            words = " ".join(str(error).split())[:200]
            raise RegardError(
                f"process {self.rank} of {self.count} lost another one while {doing}: it ended, or sent nothing "
                f"within the timeout of init_process_group. Start all again, from the last checkpoint. ({words})"
            ) from error


@dataclass
class MessagesUnderWay:
    """Messages between this process and others; `sends` are held until they have arrived."""

    group: Group
    works: list[Any]
    sends: dict[int, torch.Tensor]
    receives: dict[int, torch.Tensor]

    def wait(self) -> dict[int, torch.Tensor]:
        """The tensors that were received, by the process that sent them."""
        with self.group._explaining_failures("exchanging keys"):
            for work in self.works:
                work.wait()
        self.sends.clear()
        return self.receives
