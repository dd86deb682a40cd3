"""Padding as a pattern: only the keys of a span are live."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from regard.arguments import is_whole, plain, whole
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.identity import new_serial

End = int | torch.Tensor | None


@dataclass(frozen=True, eq=False)
class KeySpan(Pattern):
    """Keys `start <= j < stop` are live, for every query; the way to say left and right padding.

    Args:
        start: first live key: a number, or one for each batch row, (batch,).
        stop: one past the last live key, likewise; None for no end.

    >>> KeySpan(1, 3).dense(1, 4).int().tolist()
    [[0, 1, 1, 0]]
    >>> KeySpan(0, torch.tensor([1, 2])).dense(1, 2).shape
    torch.Size([2, 1, 1, 2])
    """

    start: End = 0
    stop: End = None
    serial: int = field(default=0, init=False, repr=False)

    query_free = True
    compares_positions = False

    @property
    def by_value(self) -> bool:  # type: ignore[override]
        return not self.serial

    def __post_init__(self) -> None:
        for name in ("start", "stop"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if self._tensors():
            object.__setattr__(self, "serial", new_serial())

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        live = torch.broadcast_tensors(q_pos, k_pos)[1] >= _on_rows(self.start, k_pos)
        return live if self.stop is None else live & (k_pos < _on_rows(self.stop, k_pos))

    def band(self) -> Band | None:
        if self._tensors():
            return None
        assert isinstance(self.start, int)
        assert not isinstance(self.stop, torch.Tensor)
        return Band(start=self.start, stop=self.stop)

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return bool(self.serial)

    @property
    def batch_rows(self) -> int:
        return max((len(end) for end in self._tensors().values()), default=1)

    def for_row(self, row: int) -> Pattern:
        return KeySpan(_in_row(self.start, row), _in_row(self.stop, row)) if self.serial else self

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for name, tensor in self._tensors().items():
            if len(tensor) not in (1, batch):
                raise ShapeError(
                    f"KeySpan's {name} holds {len(tensor)} numbers but the batch has {batch} rows; give one for each"
                )

    def _tensors(self) -> dict[str, torch.Tensor]:
        ends = {"start": self.start, "stop": self.stop}
        return {name: end for name, end in ends.items() if isinstance(end, torch.Tensor)}

    def _value(self) -> tuple[object, ...]:
        return ("serial", self.serial) if self.serial else (self.start, self.stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySpan) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(("KeySpan", self._value()))

    def __str__(self) -> str:
        ends = [self.start] if self.stop is None else [self.start, self.stop]
        words = [f"<{len(end)} numbers>" if isinstance(end, torch.Tensor) else str(end) for end in ends]
        return f"key_span({', '.join(words)})"


def _checked(name: str, end: End) -> End:
    end = plain(f"KeySpan's {name}", end)
    if isinstance(end, torch.Tensor):
        if end.dim() != 1 or end.dtype not in (torch.int64, torch.int32):
            raise ArgumentError(
                f"KeySpan's {name} is a {end.dtype} tensor {tuple(end.shape)}; it needs integers (batch,)"
            )
        return end.detach().to(torch.int64, copy=True)
    if end is None and name == "stop":
        return end
    if not is_whole(end):
        raise ArgumentError(f"KeySpan's {name} is {shown(end)}; it needs a number or an integer tensor (batch,)")
    return whole(f"KeySpan's {name}", end)


def _in_row(end: End, row: int) -> int | Any:
    if not isinstance(end, torch.Tensor):
        return end
    return int(end[row if len(end) > 1 else 0])


def _on_rows(end: End, k_pos: torch.Tensor) -> Any:
    return end.to(k_pos.device).view(-1, 1, 1, 1) if isinstance(end, torch.Tensor) else end
