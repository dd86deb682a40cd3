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

# Seeds and digests are below this, so that they fit into a number of 8 bytes with a sign.
_NUMBERS_BELOW = 2**62

# Words of 8 bytes that a checksum reads at once.
_WORDS_AT_ONCE = 2**17

# Odd numbers with the bits of the golden ratio: products with them are spread evenly.
_GOLDEN = -0x61C8864680B583EB
_GOLDEN_OF_CHUNKS = 0x9E3779B97F

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
        """Count a call that this process begins; `agree` compares the numbers.

        Otherwise a process whose call was interrupted would agree on its next call with the same call of the others.
        """
        _begun[self.handle] = _begun.get(self.handle, 0) + 1

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


class CallHeader(NamedTuple):
    """What a process sends all others before a call, as numbers of 8 bytes.

    agrees: 1, or 0 where this process refuses its own call.
    words, about_bias: digests of what has to be alike.
    bias_keys, about_bias: -1 without such a bias.
    begun: how many calls this process began.
    """

    agrees: int = 0
    q_len: int = 0
    k_len: int = 0
    learning: int = 0
    seed: int = 0
    words: int = 0
    bias_keys: int = -1
    about_bias: int = -1
    begun: int = 0

    def tensor(self, device: torch.device) -> torch.Tensor:
        return torch.tensor(self, dtype=torch.int64, device=device)


class LengthsAndSeed(NamedTuple):
    """What all processes know of a call: the lengths of each, and the seed of the dropout, which is that of rank 0."""

    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Announcement:
    """What a process tells the others about its own call.

    words: what has to be alike on all processes, option by option.
    q_len, k_len: what this process holds.
    learning: whether it needs gradients.
    seed: of the dropout.
    bias_keys: the number of keys for which this process has a bias, if it has one for each key.
    about_bias: what has to be alike on all processes that give it: a bias that is the same for all queries.
    """

    words: list[str]
    q_len: int = 0
    k_len: int = 0
    learning: bool = False
    seed: int = 0
    bias_keys: int | None = None
    about_bias: str | None = None

    def header(self, group: Group) -> CallHeader:
        return CallHeader(
            agrees=1,
            q_len=self.q_len,
            k_len=self.k_len,
            learning=int(self.learning),
            seed=self.seed % _NUMBERS_BELOW,
            words=_digest("\n".join(self.words)),
            bias_keys=-1 if self.bias_keys is None else self.bias_keys,
            about_bias=-1 if self.about_bias is None else _digest(self.about_bias),
            begun=_begun.get(group.handle, 0),
        )


def agree(group: Group, device: torch.device, announcement: Announcement) -> LengthsAndSeed:
    """Tell every process about the call of this one, and check that all make the same call.

    Args:
        group: the processes.
        device: where the numbers are sent from.
        announcement: this process's own call.

    Raises:
        ArgumentError, ShapeError: on every process, if one refused its call or if the calls differ.
        RegardError: if one process was interrupted in an earlier call.
    """
    numbers = group.gather(announcement.header(group).tensor(device))
    headers = [CallHeader(*row) for row in numbers.tolist()]

    _check_that_none_refused(group, headers)
    _check_that_calls_meet(headers)
    _check_alike(group, [header.words for header in headers], announcement.words)
    about_bias = [announcement.about_bias] if announcement.about_bias else []
    _check_alike(group, [header.about_bias for header in headers], about_bias)
    _check_gradients(headers)
    _check_keys_of_biases(headers)

    q_lengths = tuple(header.q_len for header in headers)
    k_lengths = tuple(header.k_len for header in headers)
    return LengthsAndSeed(q_lengths, k_lengths, headers[0].seed)


def _check_that_none_refused(group: Group, headers: list[CallHeader]) -> None:
    refusing = [rank for rank, header in enumerate(headers) if not header.agrees]
    if not refusing:
        return

    # All processes raise now, and some of them before they began a call of attention.
    _begun.pop(group.handle, None)
    reasons = group.gather_lists([])
    raise ArgumentError(
        f"process {', '.join(map(str, refusing))} refused the call: {reasons[refusing[0]][0]}"
    )


def _check_that_calls_meet(headers: list[CallHeader]) -> None:
    begun = [header.begun for header in headers]
    if len(set(begun)) > 1:
        raise RegardError(
            f"the processes of this group began {', '.join(map(str, begun))} calls: one was "
            f"interrupted, and the others went on, so their calls no longer meet. Make a new group on all of them, "
            f"such as by new_group(), or start all again from the last checkpoint"
        )


def _check_gradients(headers: list[CallHeader]) -> None:
    learning = [rank for rank, header in enumerate(headers) if header.learning]
    if learning and len(learning) < len(headers):
        raise ArgumentError(
            f"gradients are needed on process {', '.join(map(str, learning))} and not on the others; the backward "
            f"pass exchanges gradients, so all or none of the processes need q, k or v with requires_grad"
        )


def _check_keys_of_biases(headers: list[CallHeader]) -> None:
    keys = sum(header.k_len for header in headers)
    for rank, header in enumerate(headers):
        if header.bias_keys not in (-1, keys):
            raise ShapeError(
                f"the bias of process {rank} is for {header.bias_keys} keys; over several processes a bias has the "
                f"queries of its process and the keys of all: (..., {header.q_len} or 1, {keys} or 1)"
            )


def _check_alike(group: Group, digests: list[int], words: list[str]) -> None:
    """Raise an ArgumentError on every process unless those with a digest, 0 or more, have the same one."""
    ranks = [rank for rank, digest in enumerate(digests) if digest >= 0]
    differing = [rank for rank in ranks if digests[rank] != digests[ranks[0]]]
    if not differing:
        return

    words_of = group.gather_lists(words)
    first = ranks[0]
    second = differing[0]
    only_first = ", ".join(word for word in words_of[first] if word not in words_of[second])
    only_second = ", ".join(word for word in words_of[second] if word not in words_of[first])
    raise ArgumentError(
        f"process {', '.join(map(str, differing))} and process {first} make different calls of attention; every "
        f"process needs the same pattern, options, dtype, layout and sizes, other than lengths. Process "
        f"{second} has {only_second or 'nothing more'}; process {first} has {only_first or 'nothing more'}"
    )


def _digest(text: str) -> int:
    """A number of 62 bits that differs where texts differ."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") % _NUMBERS_BELOW


def refuse_together(group: Group, device: torch.device, reason: BaseException) -> None:
    """Send the others the reason why this process refuses its call, so that they do not wait for it."""
    group.gather(CallHeader().tensor(device))
    _begun.pop(group.handle, None)
    if group.count > 1:
        group.gather_lists([str(reason) or type(reason).__name__])


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
    weights = [weight.detach() for weight in parameters if not isinstance(weight, DTensor)]
    sums = [(str(weight.dtype), tuple(weight.shape), _checksum(weight)) for weight in weights]
    digest = hashlib.sha256(str(sums).encode()).hexdigest()[:8]
    return f"weights with the checksum {digest}; load one state_dict everywhere, or give all processes one seed"


@torch.no_grad()
def _checksum(x: torch.Tensor) -> int:
    """The sum modulo 2^64 of a hash of each 8 bytes and their place, computed where the tensor is.

    With w the bytes as an integer and p a hash of their place, the hash is u ^ (u >> 32), where u = _GOLDEN w + p.
    """
    flat = x.flatten()
    words_in_all = -(-flat.nbytes // 8)
    places = torch.arange(min(_WORDS_AT_ONCE, words_in_all), device=x.device)
    for _ in range(2):
        places.add_(1).mul_(_GOLDEN)
        places ^= places >> 32

    words = torch.empty_like(places)
    words_as_bytes = words.view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    numbers_at_once = _WORDS_AT_ONCE * 8 // flat.element_size()
    for chunk, start in enumerate(range(0, flat.numel(), numbers_at_once)):
        content = flat[start : start + numbers_at_once].contiguous().view(torch.uint8)
        words_as_bytes[: len(content)].copy_(content)
        words_as_bytes[len(content) :].zero_()
        mixed = (words * _GOLDEN).add_(places).add_(chunk * _GOLDEN_OF_CHUNKS)
        total += mixed.bitwise_xor_(mixed >> 32).sum()
    return int(total)


# Texts of patterns. Their tensors are copies, so that nothing changes them while a pattern lives.
_texts_of_patterns: WeakKeyDictionary[Pattern, str] = WeakKeyDictionary()


def contents(value: Any) -> str:
    """A text that differs where two processes have patterns or options of different numbers.

    Tensors are compared by their numbers, wherever an option holds them; functions by their names.
    """
    if value is None or isinstance(value, int | float):
        return str(value)
    unchanging = isinstance(value, Pattern) and _is_of_regard(value)
    if unchanging and value.by_value:
        return str(value)
    if unchanging and value in _texts_of_patterns:
        return _texts_of_patterns[value]

    name = str(value) if isinstance(value, Pattern | Mechanism) else brief_value(value)
    checksum = hashlib.sha256(_numbers_as_text(value).encode()).hexdigest()[:16]
    text = f"{name} with the checksum {checksum}"
    if unchanging:
        _texts_of_patterns[value] = text
    return text


def _is_of_regard(pattern: Pattern) -> bool:
    """Whether a pattern and its parts are of classes of regard, whose numbers never change."""
    return all(type(part).__module__.startswith("regard.") for part in pattern.walk())


def _numbers_as_text(value: Any) -> str:
    """All numbers that an option holds: in its attributes and their items, and in the tensors of a torch module."""
    if isinstance(value, torch.Tensor):
        return _tensor_as_text(value)
    if isinstance(value, bool | int | float | str | range | None):
        return repr(value)

    kind = type(value).__qualname__
    items: list[Any] = []
    if isinstance(value, list | tuple):
        items = [*value]
    elif isinstance(value, Mapping):
        for name_and_item in value.items():
            items += name_and_item
    elif isinstance(value, nn.Module | Described):
        items = _attributes(value)
        if isinstance(value, nn.Module):
            items += value.state_dict().items()
    elif callable(value):
        return getattr(value, "__qualname__", kind)
    else:
        return kind
    return f"{kind}({', '.join(map(_numbers_as_text, items))})"


def _tensor_as_text(x: torch.Tensor) -> str:
    about = f"{x.dtype} {tuple(x.shape)}"
    if isinstance(x, DTensor) or x.is_meta:
        return about
    dense = x if x.layout == torch.strided else x.to_dense()
    return f"{about} {_checksum(dense.detach())}"


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Public attributes with their names, but for those that follow from others, or count or switch something."""
    attributes = []
    for name, attribute in sorted(vars(value).items()):
        derived = isinstance(getattr(type(value), name, None), cached_property)
        if not name.startswith("_") and name not in ("serial", "training") and not derived:
            attributes.append((name, attribute))
    return attributes
