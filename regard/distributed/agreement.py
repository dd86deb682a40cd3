"""What the processes agree on before a call, and how they refuse it together."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from regard.distributed.group import Group
from regard.errors import ArgumentError, RegardError, ShapeError

# Seeds and digests are below this, so that they fit into a number of 8 bytes with a sign.
_NUMBERS_BELOW = 2**62


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
            begun=group.begun,
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

    group.count_again()
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
    group.count_again()
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
