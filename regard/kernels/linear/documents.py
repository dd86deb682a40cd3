"""Texts packed into one: each document is laid out as a row of its own, beside others of like length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pack:
    """Documents at most twice as long as each other.

    places: (documents, longest), where among the positions of all batch rows each stands; a shorter document's last
    place is repeated. real: likewise, False for the repetitions.
    """

    places: torch.Tensor
    real: torch.Tensor

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, heads, positions, ...) to (documents, heads, longest, ...)."""
        found = x.transpose(1, 2).flatten(0, 1).index_select(0, self.places.flatten())
        return found.unflatten(0, self.places.shape).transpose(1, 2)


def pack_documents(ids: Iterable[torch.Tensor], batch: int, length: int, device: torch.device) -> list[Pack]:
    """The documents of a call: positions of one batch row with equal ids, in all of several ids.

    Args:
        ids: each (length or more,) or (batch, length or more).
        batch: rows.
        length: positions.
        device: where.
    """
    names = torch.arange(batch, device=device)[:, None].expand(batch, length)
    for one in ids:
        _, here = torch.unique(one.to(device)[..., :length], return_inverse=True)
        _, names = torch.unique(names * length * batch + here, return_inverse=True)
    names = names.flatten()
    places = names.argsort(stable=True)  # document by document, each in the order of its text
    lengths = torch.bincount(names)
    return list(_by_length(places, lengths, lengths.cumsum(0) - lengths))


def _by_length(places: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor) -> Iterator[Pack]:
    classes = lengths.double().log2().ceil().long()  # 1, 2, 3 to 4, 5 to 8, ...
    for one in classes.unique().tolist():
        mine = classes == one
        steps = torch.arange(int(lengths[mine].max()), device=places.device)
        last = lengths[mine, None] - 1
        yield Pack(places[starts[mine, None] + steps.minimum(last)], steps <= last)


def put_back(packs: Sequence[Pack], parts: Sequence[torch.Tensor], batch: int) -> torch.Tensor:
    """From each pack's (documents, heads, longest, ...) to (batch, heads, positions, ...)."""
    real = torch.cat([pack.real.flatten() for pack in packs]).nonzero()[:, 0]
    places = torch.cat([pack.places.flatten() for pack in packs])[real]
    source = torch.empty_like(places).index_copy_(0, places, real)
    rows = torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])
    return rows.index_select(0, source).unflatten(0, (batch, -1)).transpose(1, 2)
