"""The pieces of a call: some queries of a process, and some of the keys that it has for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from regard.bias import Bias
from regard.core.tensors import Stored
from regard.distributed.needs import Needs
from regard.patterns import Pattern
from regard.patterns.ranges import Ranges, hull, shifted, size

# A piece has at most so many queries, because what a backend needs besides its tensors grows with them.
MOST_QUERIES_OF_A_PIECE = 8192


@dataclass(frozen=True)
class DistantKeys(Stored):
    """Keys or values from position `first` on, of a sequence of `length` positions."""

    length: int = 0

    @property
    def shape(self) -> torch.Size:
        """(batch, kv_heads, length, dim), the positions that are elsewhere included."""
        batch, kv_heads, _, dim = self.numbers.shape
        return torch.Size((batch, kv_heads, self.length, dim))

    def cut(self, keys: range) -> Stored:
        """The vectors at the positions `keys`; zeros where they are elsewhere, since the pattern of a piece hides them.

        More keys than are held are asked for only where batch rows start at different positions.
        """
        held = self.numbers.shape[2]
        missing_before = self.first - keys.start
        missing_after = keys.stop - self.first - held
        if not keys or max(missing_before, missing_after) <= 0:
            return super().cut(keys)

        start = max(0, -missing_before)
        stop = held - max(0, -missing_after)
        padding = (0, 0, max(0, missing_before), max(0, missing_after))
        return Stored(torch.nn.functional.pad(self.numbers[:, :, start:stop], padding))


class HeldKeys(NamedTuple):
    """Keys and values of one process that this one has, (batch, kv_heads, held, dim), and their positions by chunk."""

    source: int
    positions: tuple[Ranges, ...]
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class SharedOptions:
    """The options of a call, alike on every process.

    others: those that no piece changes, by name.
    """

    pattern: Pattern
    bias: torch.Tensor | Bias | None
    sink: float | torch.Tensor | None
    parameters: Mapping[str, torch.Tensor] | None
    dropout_seed: int | None
    others: Mapping[str, Any]

    def learned_tensors(self) -> list[torch.Tensor]:
        """Tensors besides q, k and v that need a gradient: of the bias, the sink and the mechanism."""
        tensors: list[Any] = []
        if isinstance(self.bias, torch.nn.Module):
            tensors += self.bias.parameters()
        else:
            tensors.append(self.bias)
        tensors.append(self.sink)
        tensors += (self.parameters or {}).values()
        return [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]

    def without_dropout(self, function: Callable[[torch.Tensor], torch.Tensor]) -> SharedOptions:
        """The same without dropout, and with another tensor for each one of the bias, the sink and the mechanism."""
        bias: Any = self.bias
        if isinstance(bias, torch.Tensor):
            bias = function(bias)
        sink = self.sink
        if isinstance(sink, torch.Tensor):
            sink = function(sink)
        parameters = self.parameters
        if parameters:
            parameters = {name: function(x) for name, x in parameters.items()}
        others = {**self.others, "dropout": 0.0}
        return SharedOptions(self.pattern, bias, sink, parameters, None, others)


class KeyRun(NamedTuple):
    """Consecutive keys of a piece: where they stand in it, and where among the keys held."""

    in_piece: range
    in_held: range


class CallPiece(NamedTuple):
    """Some queries of one chunk and some of the keys held.

    rows: positions of the queries, all in the chunk `chunk` of this process.
    keys: positions from the first to the last key.
    runs: the keys that are held; no query looks at those between them.
    """

    chunk: int
    rows: range
    keys: range
    runs: tuple[KeyRun, ...]


def pieces_of(needs: Needs, rank: int, held: HeldKeys | None) -> Iterator[CallPiece]:
    """The pieces of a process's queries over keys that it has; none without keys."""
    if held is None:
        return

    start_in_held = 0
    for ranges in held.positions:
        if not ranges:
            continue
        keys = hull(ranges)
        runs = _runs_of(ranges, keys, start_in_held)
        start_in_held += size(ranges)
        for chunk, rows in enumerate(needs.q.chunks[rank]):
            seeing = needs.rows_that_see(rows, keys)
            for start in range(seeing.start, seeing.stop, MOST_QUERIES_OF_A_PIECE):
                some_rows = range(start, min(start + MOST_QUERIES_OF_A_PIECE, seeing.stop))
                piece = CallPiece(chunk, some_rows, keys, runs)
                narrowed = _narrowed(piece, needs.keys_near(some_rows, keys))
                if narrowed is not None:
                    yield narrowed


def _runs_of(ranges: Ranges, keys: range, start_in_held: int) -> tuple[KeyRun, ...]:
    """The runs of a piece whose keys are `keys`; those of `ranges` are held from `start_in_held` on."""
    runs = []
    for positions in ranges:
        in_held = range(start_in_held, start_in_held + len(positions))
        runs.append(KeyRun(shifted(positions, -keys.start), in_held))
        start_in_held = in_held.stop
    return tuple(runs)


def _narrowed(piece: CallPiece, keys: range) -> CallPiece | None:
    """The piece with those of its keys that lie in a range; None if none does."""
    positions_and_places = []
    for in_piece, in_held in piece.runs:
        positions = shifted(in_piece, piece.keys.start)
        start = max(positions.start, keys.start)
        stop = min(positions.stop, keys.stop)
        if start < stop:
            places = shifted(range(start, stop), in_held.start - positions.start)
            positions_and_places.append((range(start, stop), places))
    if not positions_and_places:
        return None

    first_run = positions_and_places[0][0]
    last_run = positions_and_places[-1][0]
    near = range(first_run.start, last_run.stop)
    runs = [
        KeyRun(shifted(positions, -near.start), places)
        for positions, places in positions_and_places
    ]
    return CallPiece(piece.chunk, piece.rows, near, tuple(runs))


def keys_of(piece: CallPiece, x: torch.Tensor) -> torch.Tensor:
    """The keys of a piece, cut from those held; zeros where a position is not held, since no query looks there."""
    if len(piece.runs) == 1:
        in_held = piece.runs[0].in_held
        return x[:, :, in_held.start : in_held.stop]

    keys = x.new_zeros(*x.shape[:2], len(piece.keys), x.shape[3])
    for in_piece, in_held in piece.runs:
        keys[:, :, in_piece.start : in_piece.stop] = x[:, :, in_held.start : in_held.stop]
    return keys


def add_to_held(piece: CallPiece, total: torch.Tensor, grad: torch.Tensor) -> None:
    """Add the gradient of a piece's keys to that of the keys held, in place."""
    for in_piece, in_held in piece.runs:
        total[:, :, in_held.start : in_held.stop] += grad[:, :, in_piece.start : in_piece.stop]


def share(log_sum_exp: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """exp(lse_p - log_sum_exp): the share of a piece in each row; 0 where the row is empty so far."""
    finite_total = total.masked_fill(total == -math.inf, 0)
    return (log_sum_exp - finite_total).exp()
