"""Which heads of a layer each process has, and what it takes of patterns, biases and weights for them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch

from regard.bias import ALiBi, Bias, series
from regard.core.problem import learns
from regard.distributed.group import Group
from regard.errors import ArgumentError
from regard.patterns import Pattern


@dataclass(frozen=True)
class HeadShare:
    """The heads of one process.

    group: the processes among which the layer is divided.
    heads: this process's query heads.
    kv_heads: the key/value head of each key/value head that it computes. One may occur twice, where the query heads of
        this process that share it are fewer than those of another one.
    all_heads, all_kv_heads: of the whole layer.
    """

    group: Group
    heads: range
    kv_heads: tuple[int, ...]
    all_heads: int
    all_kv_heads: int

    @classmethod
    def of(cls, group: Group, heads: int, kv_heads: int) -> HeadShare:
        """The share of this process of a layer.

        Raises:
            ArgumentError: a number of processes that does not divide the heads.
        """
        if heads % group.count:
            fitting = ", ".join(str(one) for one in range(1, heads + 1) if not heads % one)
            raise ArgumentError(
                f"{heads} query heads cannot be divided among {group.count} processes, each with as many; "
                f"numbers of processes that can: {fitting}"
            )
        each, sharing = heads // group.count, heads // kv_heads
        together = gcd(each, sharing)  # query heads of this process that read one key/value head
        first = group.rank * each
        keys = tuple((first + head) // sharing for head in range(0, each, together))
        return cls(group, range(first, first + each), keys, heads, kv_heads)

    @property
    def divides_keys(self) -> bool:
        """Whether each process has key/value heads of its own."""
        return not self.all_kv_heads % self.group.count

    def axis_of(self, parameter: torch.Tensor) -> int | None:
        """The axis along which a tensor (heads, kv_heads or 1, ...) of the whole layer is divided; None for whole."""
        alone = len(parameter) == self.all_heads or (len(parameter) == self.all_kv_heads and self.divides_keys)
        return 0 if alone else None

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of a tensor (kv_heads · size, ...) of the whole layer, the part of this process's key/value heads."""
        return tensor.unflatten(0, (self.all_kv_heads, -1))[list(self.kv_heads)].flatten(0, 1)

    def of_pattern(self, pattern: Pattern) -> Pattern:
        """The pattern of this process's heads."""
        return pattern.of_heads(self.heads, self.all_heads)

    def of_bias(
        self, bias: torch.Tensor | Bias, q_len: int, k_len: int, q_start: int | torch.Tensor | None
    ) -> torch.Tensor | Bias:
        """The bias of this process's heads in a call; gradients of the whole one are summed over processes."""
        if isinstance(bias, torch.Tensor):
            alike = bias.dim() < 3 or bias.shape[-3] != self.all_heads
            return copied(bias, self.group) if alike else copied(bias, self.group)[..., self.heads, :, :]
        if type(bias) is ALiBi:
            bias.check(self.all_heads)
            slopes = series(self.all_heads) if bias.slopes is None else bias.slopes
            return ALiBi(slopes[self.heads.start : self.heads.stop])
        return BiasOfHeads(bias, self, q_len, k_len, q_start)


@dataclass(frozen=True, eq=False)
class BiasOfHeads(Bias):
    """A bias of a whole layer, for the heads of one process.

    q_len, k_len, q_start: of the call, alike on all processes.
    """

    whole: Bias
    share: HeadShare
    q_len: int
    k_len: int
    q_start: int | torch.Tensor | None

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        if not learns(self.whole):
            return self._own(self.whole.by_distance(distances, self.share.all_heads))
        lowest, highest = self._farthest()  # the distances asked for differ: each process's heads look at other keys
        every = torch.arange(lowest, highest + 1, device=distances.device)
        numbers = copied(self.whole.by_distance(every, self.share.all_heads), self.share.group)
        return self._own(numbers)[:, distances - lowest]

    def _own(self, every: torch.Tensor) -> torch.Tensor:
        return every if len(every) == 1 else every[self.share.heads.start : self.share.heads.stop]

    def _farthest(self) -> tuple[int, int]:
        """The lowest and the highest distance of the call, also of pairs that no head allows."""
        start = self.k_len - self.q_len if self.q_start is None else self.q_start
        starts = start.tolist() if isinstance(start, torch.Tensor) else [start]
        lowest = -max(starts, default=0) - max(0, self.q_len - 1)
        return lowest, max(lowest, self.k_len - 1 - min(starts, default=0))

    @property
    def learns(self) -> bool:
        return self.whole.learns

    @property
    def plan_key(self) -> Hashable | None:
        key = self.whole.plan_key
        return None if key is None else (type(self.whole), key, self.share.all_heads, self.share.heads)

    @property
    def by_value(self) -> bool:
        return self.whole.by_value

    def check(self, heads: int) -> None:
        self.whole.check(self.share.all_heads)


class _CopiedOrSummed(torch.autograd.Function):
    """Each is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, sums: bool) -> torch.Tensor:
        ctx.group, ctx.sums = group, sums
        return group.summed(x) if sums else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _CopiedOrSummed.apply(grads[0], ctx.group, not ctx.sums), None, None


def copied(x: Any, group: Group) -> Any:
    """A tensor that is alike on all processes, each of which computes with it: its gradients are summed over them."""
    return _CopiedOrSummed.apply(x, group, False) if isinstance(x, torch.Tensor) and x.requires_grad else x


def summed(x: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over processes; the gradient of the sum, alike on all, is that of each part."""
    return _CopiedOrSummed.apply(x, group, True)
