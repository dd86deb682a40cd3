"""Which keys a call linear in the length may look at: padding, the place of its rows, and documents side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch.nn import functional

from regard.backends.limits import where
from regard.core.backend import Operands
from regard.core.problem import PER_ROW, Problem
from regard.patterns import Causal, Pattern
from regard.patterns.documents import document_ids
from regard.patterns.grid import Grid
from regard.patterns.visible import visible_keys


def is_causal(problem: Problem) -> bool:
    """Does the pattern mask all keys after a query's own position?"""
    return Causal() in problem.pattern.factors


def _has_documents(problem: Problem) -> bool:
    return bool(document_ids(problem.pattern))


def _has_rows_in_several_orders(problem: Problem) -> bool:
    return problem.q_start is PER_ROW and (_has_documents(problem) or is_causal(problem))


def _has_part_of_documents(problem: Problem) -> bool:
    return _has_documents(problem) and (problem.q_start, problem.q_len) != (0, problem.k_len)


ROWS_IN_ORDER = (
    where(
        _has_rows_in_several_orders,
        "q_start is a tensor, and a chunk of queries needs the same positions in all batch rows",
    ),
    where(
        _has_part_of_documents,
        "it computes each document by itself, which needs a query and a key at every position",
    ),
)


def unpadded_keys(pattern: Pattern, grid: Grid) -> torch.Tensor | None:
    """Keys of the grid that are not padding, (batch or 1, 1, keys); None where all are visible."""
    by_part = (visible_keys(part, grid) for part in pattern.factors if part.query_free)
    masks = [mask for mask in by_part if mask is not None]
    return reduce(torch.logical_and, masks) if masks else None


def leading_rows(problem: Problem, keys: range) -> tuple[int, int]:
    """The number of rows before the first key, and the number of keys before the next row's own."""
    if not keys:
        return problem.q_len, 0
    if not is_causal(problem):
        return 0, len(keys)
    assert problem.q_start is not None
    leading = min(max(0, keys.start - problem.q_start), problem.q_len)
    return leading, problem.q_start + leading - keys.start


def padded_to_all_keys(x: torch.Tensor, problem: Problem, operands: Operands) -> torch.Tensor:
    """A tensor of the reachable keys (·, ·, keys, ...) padded with zeros to all keys."""
    keys = operands.grid.keys
    if len(keys) == problem.k_len:
        return x
    axes_after_keys = x.dim() - 3
    padding = (0, 0) * axes_after_keys + (keys.start, problem.k_len - keys.stop)
    return functional.pad(x, padding)


@dataclass(frozen=True)
class Pack:
    """Documents of similar length as one batch; the longest is less than twice as long as the shortest.

    places: (documents, longest), the index of each position of a document among the positions of all batch rows; the
    last index of a shorter document is repeated. real: the same shape, False for the repetitions.
    """

    places: torch.Tensor
    real: torch.Tensor

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, heads, positions, ...) to (documents, heads, longest, ...)."""
        positions = x.transpose(1, 2).flatten(0, 1)  # (all positions, heads, ...)
        packed = positions.index_select(0, self.places.flatten())
        return packed.unflatten(0, self.places.shape).transpose(1, 2)


def pack_documents(
    ids: Iterable[torch.Tensor], batch: int, length: int, device: torch.device
) -> list[Pack]:
    """The documents of a call: positions of one batch row whose ids are equal in every tensor of ids."""
    document = torch.arange(batch, device=device)[:, None].expand(batch, length)
    for tensor in ids:
        _, id_number = torch.unique(tensor.to(device)[..., :length], return_inverse=True)
        _, document = torch.unique(document * length * batch + id_number, return_inverse=True)
    document = document.flatten()  # the number of each position's document

    places = document.argsort(stable=True)  # document by document, positions in ascending order
    lengths = torch.bincount(document)
    starts = lengths.cumsum(0) - lengths
    return list(_packs_by_length(places, lengths, starts))


def _packs_by_length(
    places: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor
) -> Iterator[Pack]:
    """One pack for the documents of 1 position, one for those of 2, of 3 to 4, of 5 to 8, and so on."""
    powers = 2 ** torch.arange(63, device=lengths.device)
    exponents = torch.bucketize(lengths, powers)
    for exponent in exponents.unique().tolist():
        chosen = exponents == exponent
        steps = torch.arange(int(lengths[chosen].max()), device=places.device)
        last = lengths[chosen, None] - 1
        yield Pack(places[starts[chosen, None] + steps.minimum(last)], steps <= last)


def put_back(packs: Sequence[Pack], parts: Sequence[torch.Tensor], batch: int) -> torch.Tensor:
    """From each pack's (documents, heads, longest, ...) to (batch, heads, positions, ...)."""
    real = torch.cat([pack.real.flatten() for pack in packs]).nonzero()[:, 0]
    places = torch.cat([pack.places.flatten() for pack in packs])[real]
    source = torch.empty_like(places).index_copy_(0, places, real)
    rows = torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])
    return rows.index_select(0, source).unflatten(0, (batch, -1)).transpose(1, 2)


@dataclass(frozen=True)
class Texts:
    """Texts of similar length that lie one after the other in batch rows, as one batch; all continue, or none does.

    pack: their positions. rows: (texts,), the batch row of each. continues: whether they go on with what came before
    the first position of their rows. last: (texts,), whether each ends at the last position of its row.
    """

    pack: Pack
    rows: torch.Tensor
    continues: bool
    last: torch.Tensor


def texts_between(begins: torch.Tensor) -> list[Texts]:
    """The texts of batch rows, each of which goes up to the next beginning.

    begins: (batch, positions), True where a text begins. A row whose first position is False begins with the rest of
    a text.
    """
    batch, length = begins.shape
    number = begins.long().cumsum(-1)  # 0 for what continues
    texts = []
    for pack in pack_documents([number], batch, length, begins.device):
        first = pack.places[:, 0]
        is_rest = number.flatten()[first] == 0
        for continues in (True, False):
            chosen = is_rest if continues else ~is_rest
            if not bool(chosen.any()):
                continue
            places = pack.places[chosen]
            last = places[:, -1] % length == length - 1
            texts.append(
                Texts(Pack(places, pack.real[chosen]), places[:, 0] // length, continues, last)
            )
    return texts


def texts_packed(ends: torch.Tensor) -> list[Texts]:
    """Documents that are packed into one batch row, each of which goes on with what came before it; also empty ones.

    ends: where each document starts, and where the last ends, (documents + 1,), of one position at least. The rows of
    the texts are the documents.
    """
    starts = ends[:-1]
    lengths = ends.diff()
    exponents = lengths.clamp_min(1).double().log2().ceil().long()
    texts = []
    for exponent in exponents.unique().tolist():
        rows = (exponents == exponent).nonzero()[:, 0]
        longest = max(1, int(lengths[rows].max()))
        steps = torch.arange(longest, device=ends.device)
        last = (lengths[rows, None] - 1).clamp_min(0)
        places = (starts[rows, None] + steps.minimum(last)).clamp_max(ends[-1] - 1)
        pack = Pack(places, steps < lengths[rows, None])
        texts.append(Texts(pack, rows, True, torch.ones_like(rows, dtype=torch.bool)))
    return texts


def at_ends(
    texts: Sequence[Texts], parts: Sequence[torch.Tensor], before: torch.Tensor
) -> torch.Tensor:
    """For each batch row what belongs to its last text, (batch, ...), of what belongs to each text, (texts, ...).

    before: (batch, ...), for rows without a position.
    """
    if not texts:
        return before
    rows = torch.cat([group.rows[group.last] for group in texts])
    ends = torch.cat([part[group.last] for group, part in zip(texts, parts, strict=True)])
    return ends.index_select(0, rows.argsort())
