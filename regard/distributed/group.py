"""The processes of a call: who they are, what they agree on before it, and how they send tensors to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from regard.arguments import kind_of
from regard.errors import ArgumentError, RegardError, ShapeError, UnsupportedError
from regard.mechanisms import Mechanism
from regard.patterns import Pattern
from regard.reprs import Described, brief_value

_MOST = 2**62
_WORDS = 2**17  # of 8 bytes, which a checksum reads at once
_ODD, _APART = (
    -0x61C8864680B583EB,
    0x9E3779B97F,
)  # odd, with the bits of the golden ratio: products spread evenly


_begun: WeakKeyDictionary[Any, int] = (
    WeakKeyDictionary()
)  # calls that this process began, by its group


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
        if handle is None or (rank := dist.get_rank(handle)) < 0:
            raise ArgumentError(
                "this process is not one of the group's; only its own processes may call attention on it"
            )
        return cls(handle, rank, dist.get_world_size(handle))

    def begin(self) -> None:
        """Count a call that this process begins; `agree` compares the numbers.

        Otherwise a process whose call was interrupted would agree on its next call with the same call of the others.
        """
        _begun[self.handle] = _begun.get(self.handle, 0) + 1

    def gathered(self, header: torch.Tensor) -> torch.Tensor:
        """The headers of all processes, int64 (processes, numbers)."""
        if self.count == 1:
            return header[None].cpu()
        every = [torch.empty_like(header) for _ in range(self.count)]
        with self._peers("agreeing on the call"):
            dist.all_gather(every, header, group=self.handle)
        return torch.stack(every).cpu()

    def gathered_lists(self, own: list[Any]) -> list[list[Any]]:
        every: list[Any] = [None] * self.count
        with self._peers("gathering results"):
            dist.all_gather_object(every, own, group=self.handle)
        return every

    @property
    def backends(self) -> dict[str, str]:
        """The backend that sends tensors of each type of device, such as "nccl" for "cuda"."""
        return dict(one.split(":") for one in dist.get_backend_config(self.handle).split(","))

    @property
    def device(self) -> torch.device:
        """A device whose tensors this group sends: the CPU if it can, else this process's GPU."""
        kinds = [*self.backends]
        own = getattr(self.handle, "bound_device_id", None)
        return torch.device("cpu") if "cpu" in kinds or not kinds else own or torch.device(kinds[0])

    def device_for(self, x: Any) -> torch.device:
        """The device that the lengths and options of a call are sent from: that of its tensor, if the group sends it.

        NCCL needs one collective of all processes on that device before two of them exchange keys.
        """
        return (
            x.device
            if isinstance(x, torch.Tensor) and x.device.type in self.backends
            else self.device
        )

    def check_device(self, device: torch.device) -> None:
        """Raise an UnsupportedError unless this group sends tensors of a device from one process to another."""
        backend = self.backends.get(device.type)
        if backend is None or (backend == "gloo" and device.type != "cpu"):
            sent = ", ".join(
                f"{one} by {by}"
                for one, by in self.backends.items()
                if one == "cpu" or by != "gloo"
            )
            raise UnsupportedError(
                f"q is on {device}, and this group sends tensors on {sent}; give tensors there, or a group that sends "
                f"those of {device.type}, as init_process_group('nccl') does for cuda"
            )

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the tensors of all processes, on each of them."""
        total = x.clone(memory_format=torch.contiguous_format)
        if self.count > 1:
            with self._peers("summing over processes"):
                dist.all_reduce(total, group=self.handle)
        return total

    def start(
        self, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]
    ) -> Mail:
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
        except (RegardError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            words = " ".join(str(error).split())[:200]
            raise RegardError(
                f"process {self.rank} of {self.count} lost another one while {doing}: it ended, or sent nothing "
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
        with self.group._peers("exchanging keys"):
            for work in self.works:
                work.wait()
        self.sends.clear()
        return self.receives


class Header(NamedTuple):
    """What a process sends all others before a call, as numbers of 8 bytes."""

    agrees: int = 0  # 0 where this process refuses its own call
    q_len: int = 0
    k_len: int = 0
    learning: int = 0
    seed: int = 0
    words: int = 0
    bias_keys: int = -1
    of_bias: int = -1
    begun: int = 0


class Agreement(NamedTuple):
    """What all processes know of a call: the lengths of each, and the seed of the dropout, which is that of rank 0."""

    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    seed: int


def agree(
    group: Group,
    device: torch.device,
    words: list[str],
    *,
    q_len: int = 0,
    k_len: int = 0,
    learning: bool = False,
    seed: int = 0,
    bias_keys: int | None = None,
    of_bias: str | None = None,
) -> Agreement:
    """Send every process the lengths of this one, and check that all make the same call.

    Args:
        group: the processes.
        device: where the numbers are sent from.
        words: what has to be alike on all processes, option by option.
        q_len, k_len: what this process holds.
        learning: whether it needs gradients.
        seed: of the dropout.
        bias_keys: the number of keys for which this process has a bias, if it has one for each key.
        of_bias: what has to be alike on all processes that give it: a bias that is the same for all queries.
    """
    own = Header(
        1,
        q_len,
        k_len,
        int(learning),
        seed % _MOST,
        _digest("\n".join(words)),
        -1 if bias_keys is None else bias_keys,
        -1 if of_bias is None else _digest(of_bias),
        _begun.get(group.handle, 0),
    )
    rows = [
        Header(*row)
        for row in group.gathered(torch.tensor(own, dtype=torch.int64, device=device)).tolist()
    ]
    if refused := [rank for rank, row in enumerate(rows) if not row.agrees]:
        _begun.pop(
            group.handle, None
        )  # all processes raise now, some before they began a call of attention
        reasons = group.gathered_lists([])
        raise ArgumentError(
            f"process {', '.join(map(str, refused))} refused the call: {reasons[refused[0]][0]}"
        )
    if len({row.begun for row in rows}) > 1:
        raise RegardError(
            f"the processes of this group began {', '.join(str(row.begun) for row in rows)} calls: one was "
            f"interrupted, and the others went on, so their calls no longer meet. Make a new group on all of them, "
            f"such as by new_group(), or start all again from the last checkpoint"
        )
    _check_alike(group, [row.words for row in rows], words)
    _check_alike(group, [row.of_bias for row in rows], [of_bias] if of_bias else [])
    learning_at = [rank for rank, row in enumerate(rows) if row.learning]
    if learning_at and len(learning_at) < group.count:
        raise ArgumentError(
            f"gradients are needed on process {', '.join(map(str, learning_at))} and not on the others; the backward "
            f"pass exchanges gradients, so all or none of the processes need q, k or v with requires_grad"
        )
    keys = sum(row.k_len for row in rows)
    for rank, row in enumerate(rows):
        if row.bias_keys not in (-1, keys):
            raise ShapeError(
                f"the bias of process {rank} is for {row.bias_keys} keys; over several processes a bias has the "
                f"queries of its process and the keys of all: (..., {row.q_len} or 1, {keys} or 1)"
            )
    return Agreement(
        tuple(row.q_len for row in rows), tuple(row.k_len for row in rows), rows[0].seed
    )


def _check_alike(group: Group, digests: list[int], own: list[str]) -> None:
    """Raise an ArgumentError on every process unless those with a digest, 0 or more, have the same one."""
    given = [rank for rank, digest in enumerate(digests) if digest >= 0]
    others = [rank for rank in given if digests[rank] != digests[given[0]]]
    if not others:
        return
    every = group.gathered_lists(own)
    first = every[given[0]]
    other = every[others[0]]
    there, here = (
        ", ".join(x for x in a if x not in b) for a, b in ((other, first), (first, other))
    )
    raise ArgumentError(
        f"process {', '.join(map(str, others))} and process {given[0]} make different calls of attention; every "
        f"process needs the same pattern, options, dtype, layout and sizes, other than lengths. Process "
        f"{others[0]} has {there or 'nothing more'}; process {given[0]} has {here or 'nothing more'}"
    )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % _MOST


def refuse_together(group: Group, device: torch.device, reason: BaseException) -> None:
    """Send the others the reason why this process refuses its call, so that they do not wait for it."""
    group.gathered(torch.tensor(Header(), dtype=torch.int64, device=device))
    _begun.pop(group.handle, None)
    if group.count > 1:
        group.gathered_lists([str(reason) or type(reason).__name__])


@contextmanager
def refusing_together(group: Group, device: torch.device) -> Generator[None]:
    """Within it, an exception is raised after `refuse_together`."""
    try:
        yield
    except Exception as error:
        refuse_together(group, device, error)
        raise


def about_weights(parameters: Iterable[torch.Tensor]) -> str:
    """A text with a checksum of the weights, which differs where two processes have different ones.

    The checksum depends on dtype, shape, and the bits and place of each number, and not on the device. Tensors that
    are sharded over processes are left out, since each process holds another part of them.
    """
    whole = [one.detach() for one in parameters if not isinstance(one, DTensor)]
    sums = [(str(one.dtype), tuple(one.shape), _checksum(one)) for one in whole]
    digest = hashlib.sha256(str(sums).encode()).hexdigest()[:8]
    return f"weights with the checksum {digest}; load one state_dict everywhere, or give all processes one seed"


@torch.no_grad()
def _checksum(x: torch.Tensor) -> int:
    """The sum modulo 2^64 of a hash of each 8 bytes and their place, computed where the tensor is.

    With w the bytes as an integer and p a hash of their place, the hash is u ^ (u >> 32), where u = _ODD w + p.
    """
    flat = x.flatten()
    numbers = _WORDS * 8 // flat.element_size()
    places = torch.arange(min(_WORDS, -(-flat.nbytes // 8)), device=x.device)
    for _ in range(2):
        places.add_(1).mul_(_ODD)
        places ^= places >> 32
    words = torch.empty_like(places)
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    as_bytes = words.view(torch.uint8)
    for chunk, first in enumerate(range(0, flat.numel(), numbers)):
        content = flat[first : first + numbers].contiguous().view(torch.uint8)
        as_bytes[: len(content)].copy_(content)
        as_bytes[len(content) :].zero_()
        mixed = (words * _ODD).add_(places).add_(chunk * _APART)
        total += mixed.bitwise_xor_(mixed >> 32).sum()
    return int(total)


_known: WeakKeyDictionary[Pattern, str] = (
    WeakKeyDictionary()
)  # digests of patterns, whose tensors are copies


def contents(value: Any) -> str:
    """A text that differs where two processes have patterns or options of different numbers.

    Tensors are compared by their numbers, wherever an option holds them; functions by their names.
    """
    steady = isinstance(value, Pattern) and all(
        type(one).__module__.startswith("regard.") for one in value.walk()
    )
    if value is None or isinstance(value, int | float) or (steady and value.by_value):
        return str(value)
    if steady and value in _known:
        return _known[value]
    text = str(value) if isinstance(value, Pattern | Mechanism) else brief_value(value)
    found = f"{text} with the checksum {hashlib.sha256(_written(value).encode()).hexdigest()[:16]}"
    if steady:
        _known[value] = found
    return found


def _written(value: Any) -> str:
    """All numbers that an option holds: in its attributes and their items, and in the tensors of a torch module."""
    if isinstance(value, torch.Tensor):
        about = f"{value.dtype} {tuple(value.shape)}"
        if isinstance(value, DTensor) or value.is_meta:
            return about
        return f"{about} {_checksum((value.to_dense() if value.layout != torch.strided else value).detach())}"
    kind = type(value).__qualname__
    if isinstance(value, list | tuple):
        parts: list[Any] = [*value]
    elif isinstance(value, Mapping):
        parts = [part for item in value.items() for part in item]
    elif isinstance(value, nn.Module | Described):
        own = vars(value).items()
        parts = [
            item
            for item in sorted(own)
            if item[0][0] != "_" and not _is_derived(type(value), item[0])
        ]
        parts += value.state_dict().items() if isinstance(value, nn.Module) else ()
    elif callable(value):
        return getattr(value, "__qualname__", kind)
    else:
        return repr(value) if isinstance(value, bool | int | float | str | range | None) else kind
    return f"{kind}({', '.join(map(_written, parts))})"


def _is_derived(kind: type, name: str) -> bool:
    """Whether an attribute is no number of its own: it follows from the others, or counts or switches something."""
    return name in ("serial", "training") or isinstance(getattr(kind, name, None), cached_property)
