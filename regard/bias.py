"""Biases added to the scores; no (q_len, k_len) tensor of them is ever made.

`ALiBi`, `T5Relative` and `GridRelative` add a number for each distance. Those of `ALiBi` are fixed; the others learn
theirs, so they are modules. `Forgetting` adds the logarithms of gates between key and query.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Self

import torch
from torch import nn

from regard.arguments import as_input, count_of, is_unknown, real, shown, whole, yes_or_no
from regard.devices import in_float64, widest_dtype
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.patterns import Neighbourhood, Pattern
from regard.reprs import Described

__all__ = ["ALiBi", "T5Relative", "GridRelative", "Forgetting", "Bias"]


class Bias(Described):
    """Base class of biases: numbers added to the scores, by head and distance `k_pos - q_pos`.

    A call therefore needs one number per head and distance, not one per pair. Biases with parameters are modules.
    """

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        """The bias at these distances, (heads or 1, distances), differentiable with respect to its parameters.

        Args:
            distances: k_pos - q_pos, integers (distances,).
            heads: query heads.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define by_distance")

    def in_range(
        self, lowest: int, highest: int, heads: int, device: torch.device | str
    ) -> torch.Tensor:
        """The bias at every distance from `lowest` to `highest`, (heads or 1, distances)."""
        return self.by_distance(torch.arange(lowest, highest + 1, device=device), heads)

    @property
    def learns(self) -> bool:
        """Whether it has parameters that need a gradient."""
        if not isinstance(self, nn.Module):
            return False
        return any(parameter.requires_grad for parameter in self.parameters())

    @property
    def plan_key(self) -> Hashable | None:
        """What a plan depends on: calls whose biases have the same type and key share one. None: it may change."""
        return None

    @property
    def by_value(self) -> bool:
        """Whether biases of the same type and `plan_key` have the same numbers in every call, so that a plan keeps
        them. False where a number may change, such as that of a parameter, learned or frozen."""
        return False

    def check(self, heads: int) -> None:
        """Raise a ShapeError if this bias was made for another number of heads."""

    def check_pattern(self, pattern: Pattern) -> None:
        """Raise an UnsupportedError if this bias cannot be computed for a pattern."""


@dataclass(frozen=True, init=False)
class ALiBi(Bias):
    """Attention with linear biases: each head subtracts from a score in proportion to the distance, at its own rate.

        bias = -slope[head] · |k_pos - q_pos|

    The paper defines it for causal attention; for keys ahead of the query the bias is the same by distance.

    Args:
        slopes: one for each query head; by default the paper's series for the heads of the call.

    Raises:
        ArgumentError: slopes that are not finite numbers.

    Source: Train Short, Test Long, Press et al. 2022, section 3.

    >>> ALiBi().by_distance(torch.tensor([-2, -1, 0]), heads=2).tolist()
    [[-0.125, -0.0625, -0.0], [-0.0078125, -0.00390625, -0.0]]
    """

    slopes: tuple[float, ...] | None

    def __init__(self, slopes: Iterable[float] | None = None) -> None:
        if slopes is not None:
            if not isinstance(slopes, Iterable) or isinstance(slopes, str | bytes):
                raise ArgumentError(
                    f"ALiBi's slopes are {shown(slopes)}; they are numbers, one for each query head"
                )
            slopes = tuple(_checked_slope(slope) for slope in slopes)
        object.__setattr__(self, "slopes", slopes)

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        slopes = series(heads) if self.slopes is None else self.slopes
        if any(is_unknown(slope) for slope in slopes):
            by_head = torch.stack([as_input(slope) for slope in slopes]).to(distances.device)
        else:
            device = distances.device
            by_head = torch.tensor(slopes, dtype=widest_dtype(device), device=device)
        return -by_head[:, None] * distances.abs()

    @property
    def plan_key(self) -> Hashable:
        return (self.slopes,)

    @property
    def by_value(self) -> bool:
        # a class derived from it may hold numbers that are not in its key
        return type(self) is ALiBi

    def check(self, heads: int) -> None:
        if self.slopes is not None and len(self.slopes) != heads:
            raise ShapeError(
                f"ALiBi has {count_of(len(self.slopes), 'slopes')} and the call "
                f"{count_of(heads, 'query heads')}; give one for each"
            )

    def __str__(self) -> str:
        return "ALiBi()" if self.slopes is None else f"ALiBi({list(self.slopes)})"


def _checked_slope(slope: object) -> float:
    try:
        return real("slope", slope)
    except ArgumentError:
        raise ArgumentError(
            f"ALiBi has the slope {shown(slope)}; give a finite number for each query head"
        ) from None


def series(heads: int) -> tuple[float, ...]:
    """The paper's slopes: 2^(-8/heads) and its powers for a power of two.

    For another number of heads, the slopes of the next lower power of two come first, then every other slope of the
    next higher one.

    >>> series(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    >>> len(series(12)), series(12)[8] == 2**-0.5
    (12, True)
    """
    below = 1 << (heads.bit_length() - 1) if heads else 0
    slopes = [2 ** (-8 * (head + 1) / below) for head in range(below)]
    between = [2 ** (-4 * (head + 1) / below) for head in range(0, 2 * below, 2)]
    return tuple(slopes + between[: heads - below])


class T5Relative(nn.Module, Bias):
    """T5's relative bias: each head learns a number for each bucket of distances.

    Near distances have a bucket each; farther ones share buckets that widen logarithmically up to `max_distance`.

        bias = weight[bucket(k_pos - q_pos), head]

    Args:
        heads: number of query heads.
        buckets: learned numbers per head; half of them are for keys ahead if `bidirectional`.
        max_distance: distances from here on share the last bucket.
        bidirectional: use separate buckets for keys ahead; otherwise keys ahead are treated as distance 0.

    Raises:
        ArgumentError: too few buckets for the distances.

    Source: Exploring the Limits of Transfer Learning, Raffel et al. 2020, section 2.1; the buckets are those of
    its code, so `weight` can be copied from T5's `relative_attention_bias.weight`.

    >>> bias = T5Relative(heads=2, buckets=8, max_distance=16)
    >>> bias.bucket(torch.tensor([-20, -3, -1, 0, 1, 3, 20])).tolist()
    [3, 2, 1, 0, 5, 6, 7]
    """

    def __init__(
        self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        heads = whole("T5Relative's heads", heads)
        buckets = whole("T5Relative's buckets", buckets)
        max_distance = whole("T5Relative's max_distance", max_distance)
        yes_or_no("T5Relative's bidirectional", bidirectional)
        self.heads = heads
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        near = self._buckets_of_a_side // 2
        if heads < 1 or self._buckets_of_a_side < 2 or max_distance <= near:
            raise ArgumentError(
                f"T5Relative(heads={heads}, buckets={buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}): it needs 1 head or more, 2 buckets or more per direction, and a "
                f"max_distance above {near}, the distances that have a bucket each"
            )
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        nn.init.normal_(self.weight, std=0.02)

    @property
    def _buckets_of_a_side(self) -> int:
        return self.buckets // 2 if self.bidirectional else self.buckets

    def bucket(self, distances: torch.Tensor) -> torch.Tensor:
        """The bucket of each k_pos - q_pos, 0 to buckets - 1."""
        buckets = self._buckets_of_a_side
        if self.bidirectional:
            first_bucket = (distances > 0) * buckets
            distances = distances.abs()
        else:
            first_bucket = 0
            distances = (-distances).clamp_min(0)

        near = buckets // 2  # distances that have a bucket each
        ratio = distances.clamp_min(1).float() / near
        share = torch.log(ratio) / math.log(self.max_distance / near)
        far = (near + (share * (buckets - near)).long()).clamp_max(buckets - 1)
        return first_bucket + torch.where(distances < near, distances, far)

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self.weight[self.bucket(distances)].T

    @property
    def learns(self) -> bool:
        # Every call asks it, so the parameters are not searched.
        return self.weight.requires_grad

    @property
    def plan_key(self) -> Hashable:
        return self.heads, self.learns

    def check(self, heads: int) -> None:
        if heads != self.heads:
            raise ShapeError(
                f"this T5Relative has {count_of(self.heads, 'heads')} and the call {heads}; make one with heads={heads}"
            )

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


class GridRelative(nn.Module, Bias):
    """A relative bias on a grid, as windows on images have: each head learns a number for each offset of two cells.

        bias = weight[key's cell - query's cell + window - 1, head],   on each axis

    With `ImageWindows(shape, window, shift)`, as in Swin, and with `Neighbourhood(shape, window)` it costs no more than
    a bias by distance, since the distance of two positions gives their offset if the window is at most half of each
    axis but the first. For other calls `pairs()` gives the numbers of every pair of cells as a tensor, also for an
    image of one window, where `shape` and `window` are equal.

    Args:
        heads: number of query heads.
        shape: cells of each axis, as for the pattern.
        window: of the pattern.

    Raises:
        ArgumentError: as for Neighbourhood.

    Sources: Neighborhood Attention Transformer, Hassani et al. 2023, section 3.1; Swin Transformer, Liu et al. 2021,
    section 3.2. `weight` (offsets, heads) has the offset 1 - window first; Swin's tables have the reverse order.

    >>> bias = GridRelative(heads=2, shape=(3, 5), window=3)
    >>> tuple(bias.weight.shape), bias.offsets(torch.tensor([-6, 1])).tolist()  # one up and left; one to the right
    ((25, 2), [[-1, -1], [0, 1]])
    """

    def __init__(self, heads: int, shape: tuple[int, ...], window: tuple[int, ...] | int) -> None:
        super().__init__()
        self.heads = whole("GridRelative's heads", heads, 1)
        self.pattern = Neighbourhood(shape, window)
        self.offsets_of_axes = [2 * size - 1 for size in self.pattern.window]  # ty: ignore[not-iterable]
        self.weight = nn.Parameter(0.02 * torch.randn(prod(self.offsets_of_axes), self.heads))

    def offsets(self, distances: torch.Tensor) -> torch.Tensor:
        """The offset of each k_pos - q_pos, (distances, axes), the nearest one on all axes but the first."""
        offsets = []
        for size in reversed(self.pattern.shape[1:]):
            offset = (distances + size // 2) % size - size // 2
            offsets.append(offset)
            distances = (distances - offset) // size
        offsets.append(distances)
        return torch.stack(offsets[::-1], -1)

    def _at_offsets(self, offsets: torch.Tensor) -> torch.Tensor:
        """The numbers of offsets (..., axes) for each head, (heads, ...); 0 beyond the window."""
        row = torch.zeros_like(offsets[..., 0])  # of the table
        inside = torch.ones_like(offsets[..., 0], dtype=torch.bool)
        for axis, size in enumerate(self.offsets_of_axes):
            index = offsets[..., axis] + size // 2
            row = row * size + index
            inside = inside & (index >= 0) & (index < size)
        numbers = self.weight[torch.where(inside, row, 0)] * inside[..., None]
        return numbers.movedim(-1, 0)

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self._at_offsets(self.offsets(distances))

    @property
    def _farthest(self) -> int:
        """The largest distance that has an offset of the table."""
        back = self.pattern.reach().back
        assert back is not None
        return back

    def in_range(
        self, lowest: int, highest: int, heads: int, device: torch.device | str
    ) -> torch.Tensor:
        # Only few distances of a large grid have an offset of the table; the numbers of the others are 0.
        far = self._farthest
        first = max(lowest, -far)
        end = min(highest, far) + 1
        if first >= end:
            return super().in_range(lowest, highest, heads, device)
        near = super().in_range(first, end - 1, heads, device)
        return torch.nn.functional.pad(near, (first - lowest, highest + 1 - end))

    def on(self, shape: tuple[int, ...]) -> GridRelative:
        """The same bias, with the same parameter, for images of another shape."""
        other = copy.copy(self)
        other.pattern = Neighbourhood(shape, self.pattern.window)
        return other

    def pairs(self) -> torch.Tensor:
        """The numbers of every pair of cells, (heads, cells, cells), as a bias tensor for small grids."""
        axes = [torch.arange(size, device=self.weight.device) for size in self.pattern.shape]
        cells = torch.cartesian_prod(*axes)  # (cells, axes)
        return self._at_offsets(cells - cells[:, None])

    @property
    def learns(self) -> bool:
        return self.weight.requires_grad

    @property
    def plan_key(self) -> Hashable:
        return self.heads, self.pattern, self.learns

    def check(self, heads: int) -> None:
        if heads != self.heads:
            raise ShapeError(
                f"this GridRelative has {count_of(self.heads, 'heads')} and the call {heads}"
            )

    def check_pattern(self, pattern: Pattern) -> None:
        # A distance gives the offset only if the offsets of an axis, but for the first one, are no more than its cells.
        later_axes = zip(self.offsets_of_axes[1:], self.pattern.shape[1:], strict=True)
        readable = all(offsets <= cells for offsets, cells in later_axes)
        if not readable or not any(self._covers(part) for part in pattern.factors):
            raise UnsupportedError(
                f"GridRelative of {self.pattern} takes offsets from distances, and the pattern is {pattern}; it needs "
                f"{self.pattern} or image_windows on this grid, alone or joined with others by &, and a window of at "
                f"most half of each axis but the first (an axis may be padded); for other calls give bias.pairs() as "
                f"the bias"
            )

    def _covers(self, part: Pattern) -> bool:
        """Whether a part of a pattern is a window on this grid that reaches no offset beyond the table."""
        window_on = getattr(part, "window_on", None)
        window = None if window_on is None else window_on(self.pattern.shape)
        if window is None:
            return False
        axes = zip(window, self.offsets_of_axes, strict=True)
        return all(2 * size - 1 <= offsets for size, offsets in axes)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, shape={self.pattern.shape}, window={self.pattern.window}"


class Forgetting(Bias):
    """Forgetting attention: each token decides how much of everything before it is forgotten.

        bias_ij = Σ log_forget_t,   over j < t <= i

    A softmax does not change if one number is added to all scores of a row, so one number for each key is enough: the
    sum of -log_forget_t over t <= j. Sums are made in float64 and counted from the middle of their range; in float32
    the weights of a text of 8,192 tokens that forget a tenth at each step are right to about 1e-4. Logarithms below
    -1,000 count as -1,000.

    Args:
        log_forget: logarithms of the gates, 0 or below: (batch or 1, heads or 1, k_len), such as `logsigmoid(x W)`.

    Raises:
        ShapeError: another tensor.

    Source: Forgetting Transformer, Lin et al. 2025, section 3.

    >>> from regard import attention
    >>> x, kept = torch.randn(3, 1, 1, 4, 8), torch.tensor([[[0.0, 0.0, -torch.inf, 0.0]]])  # 2 forgets all before
    >>> forgot = attention(*x, pattern="causal", bias=Forgetting(kept))
    >>> torch.allclose(forgot[:, :, 2:], attention(*x[..., 2:, :], pattern="causal"), atol=1e-3)
    True
    """

    def __init__(self, log_forget: torch.Tensor) -> None:
        is_tensor = isinstance(log_forget, torch.Tensor)
        if not is_tensor or log_forget.dim() != 3 or not log_forget.is_floating_point():
            raise ShapeError(
                f"Forgetting's log_forget is {shown(log_forget)}; it is logarithms of gates, (batch, heads, k_len)"
            )
        self.device = log_forget.device
        self.sums = log_sums(log_forget)
        self.zero: torch.Tensor | float = (self.sums[..., :1] + self.sums[..., -1:]) / 2
        self.held = False

    @classmethod
    def of_sums(cls, sums: torch.Tensor, zero: torch.Tensor | float, device: torch.device) -> Self:
        """The same from sums that are known, as those of the keys that a cache holds.

        Args:
            sums: of the logarithms up to each key, float64 (batch, heads, keys).
            zero: the sum that gets the number 0, (batch, heads, 1); digits are kept if the queries' sums are near it.
            device: of the keys, if it has no float64 and the sums are on the CPU.
        """
        bias = cls(sums[..., :0])
        bias.device = sums.device if device is None else device
        bias.sums = sums
        bias.zero = zero
        bias.held = True
        return bias

    @property
    def learns(self) -> bool:
        return self.sums.requires_grad

    def by_key(self) -> torch.Tensor:
        """The number of each key, (batch or 1, heads or 1, 1, k_len), in float64, which autocast does not round.

        On a device without float64 the differences, which are small where weights are not, are rounded to float32.
        """
        numbers = (self.zero - self.sums)[..., None, :]
        return numbers.to(widest_dtype(self.device)).to(self.device)


def log_sums(log_forget: torch.Tensor, axis: int = -1) -> torch.Tensor:
    """The sums of the logarithms of forget gates up to each key, in float64; on the CPU if their device has none."""
    return in_float64(log_forget).clamp_min(-1_000).cumsum(axis)
