"""What each process computes of a layer whose weights are divided: some heads, or some hidden numbers.

A layer computes with local tensors, with one sum over processes at its end and, in the backward pass, one at its
beginning (Megatron-LM, Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import gcd
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from regard.bias import ALiBi, Bias, series
from regard.core.problem import learns
from regard.core.tensors import refuse_layout
from regard.distributed.group import Group
from regard.errors import ArgumentError, UnsupportedError
from regard.functional import attention
from regard.layers import FeedForward, LatentAttention, MultiHeadAttention, ProjectedContext
from regard.layers.attending import AttentionLayer, LayerMechanism
from regard.layers.projection import Projection
from regard.layers.recording import current_recording


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
        """The share of this process of a layer."""
        if heads % group.count:
            fitting = [str(count) for count in range(1, heads + 1) if not heads % count]
            raise ArgumentError(
                f"{heads} query heads cannot be divided among {group.count} processes, each with as many; "
                f"numbers of processes that can: {', '.join(fitting)}"
            )

        heads_of_process = heads // group.count
        heads_of_key = heads // kv_heads
        first = group.rank * heads_of_process
        own_heads = range(first, first + heads_of_process)
        # So many query heads of this process in turn read one key/value head, on every process equally many.
        heads_in_turn = gcd(heads_of_process, heads_of_key)
        own_kv_heads = [head // heads_of_key for head in own_heads[::heads_in_turn]]
        return cls(group, own_heads, tuple(own_kv_heads), heads, kv_heads)

    @property
    def divides_keys(self) -> bool:
        """Whether each process has key/value heads of its own."""
        return not self.all_kv_heads % self.group.count

    def axis_of(self, parameter: torch.Tensor) -> int | None:
        """The axis along which a tensor (heads, kv_heads or 1, ...) of the whole layer is divided; None for whole."""
        rows = len(parameter)
        if rows == self.all_heads or (rows == self.all_kv_heads and self.divides_keys):
            return 0
        return None

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of a tensor (kv_heads · size, ...) of the whole layer, the part of this process's key/value heads."""
        by_head = tensor.unflatten(0, (self.all_kv_heads, -1))
        return by_head[list(self.kv_heads)].flatten(0, 1)

    def of_bias(
        self, bias: torch.Tensor | Bias, q_len: int, k_len: int, q_start: int | torch.Tensor | None
    ) -> torch.Tensor | Bias:
        """The bias of this process's heads in a call; gradients of the whole one are summed over processes."""
        if isinstance(bias, torch.Tensor):
            bias = copy_to_processes(bias, self.group)
            if bias.dim() < 3 or bias.shape[-3] != self.all_heads:
                return bias
            return bias[..., self.heads, :, :]
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
            return self._of_heads(self.whole.by_distance(distances, self.share.all_heads))

        # Heads of other processes look at other keys, so the distances asked for differ. All processes compute those of
        # the whole call, so that the gradients that they sum have one shape.
        lowest, highest = self._distances_of_call()
        every_distance = torch.arange(lowest, highest + 1, device=distances.device)
        numbers = self.whole.by_distance(every_distance, self.share.all_heads)
        numbers = copy_to_processes(numbers, self.share.group)
        return self._of_heads(numbers)[:, distances - lowest]

    def _of_heads(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) == 1:  # one for all heads
            return rows
        return rows[self.share.heads.start : self.share.heads.stop]

    def _distances_of_call(self) -> tuple[int, int]:
        """The lowest and the highest distance of the call, also of pairs that no head allows."""
        start = self.k_len - self.q_len if self.q_start is None else self.q_start
        starts = start.tolist() if isinstance(start, torch.Tensor) else [start]
        last_query = max(starts, default=0) + max(0, self.q_len - 1)
        first_query = min(starts, default=0)
        lowest = -last_query
        return lowest, max(lowest, self.k_len - 1 - first_query)

    @property
    def learns(self) -> bool:
        return self.whole.learns

    @property
    def plan_key(self) -> Hashable | None:
        key = self.whole.plan_key
        if key is None:
            return None
        return type(self.whole), key, self.share.all_heads, self.share.heads

    @property
    def by_value(self) -> bool:
        return self.whole.by_value

    def check(self, heads: int) -> None:
        self.whole.check(self.share.all_heads)


class _CopyOrSum(torch.autograd.Function):
    """A copy to all processes, or with `sums` the sum over them; each is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, sums: bool) -> torch.Tensor:
        ctx.group = group
        ctx.sums = sums
        return group.sum(x) if sums else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _CopyOrSum.apply(grads[0], ctx.group, not ctx.sums), None, None


def copy_to_processes(x: Any, group: Group) -> Any:
    """A tensor that is alike on all processes, each of which computes with it: its gradients are summed over them."""
    if isinstance(x, torch.Tensor) and x.requires_grad:
        return _CopyOrSum.apply(x, group, False)
    return x


def sum_over_processes(x: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over processes; the gradient of the sum, alike on all, is that of each part."""
    return _CopyOrSum.apply(x, group, True)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """This process's part of a parameter, differentiable."""
    return cast(DTensor, parameter).to_local()


class ProjectionToPart(Projection):
    """A projection that gives this process's part of the outputs, of an input that is whole."""

    group: Group
    share: HeadShare | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self._part_of(_local(self.weight))
        bias = None if self.bias is None else self._part_of(_local(self.bias))
        return torch.nn.functional.linear(input, weight, bias)

    def _part_of(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.share is None:  # divided already
            return tensor
        return self.share.of_keys(copy_to_processes(tensor, self.group))


class ProjectionFromParts(Projection):
    """A projection of an input whose parts are on several processes; its output is whole."""

    group: Group

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        part = torch.nn.functional.linear(input, _local(self.weight))
        output = sum_over_processes(part, self.group)
        return output if self.bias is None else output + _local(self.bias)


class NormOfHeads(nn.RMSNorm):
    """The norm of this process's heads, by a weight that is alike on all processes."""

    group: Group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = copy_to_processes(_local(self.weight), self.group)
        return nn.functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class DropoutOfProcess(nn.Dropout):
    """Dropout of numbers that are on this process alone; the default generator stays alike on all processes."""

    group: Group

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.p:
            return input
        if self.p == 1:
            _seed_of_process(self.group)  # the default generator advances as for any other p
            return input * 0

        generator = torch.Generator(input.device).manual_seed(_seed_of_process(self.group))
        stays = torch.rand(input.shape, generator=generator, device=input.device) >= self.p
        return input * stays / (1 - self.p)


def _seed_of_process(group: Group) -> int:
    """A seed of this process, by one draw of the default generator, which is alike on all."""
    return int(torch.randint(2**62, (), device="cpu").item()) ^ group.rank


class DividedFeedForward(FeedForward):
    """What `TensorParallel` makes of a FeedForward."""

    group: Group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(copy_to_processes(x, self.group))


class DividedMechanism(LayerMechanism):
    """The mechanism of some heads: learned tensors of heads are cut to those of this process."""

    share: HeadShare

    @property
    def learned(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Its parameters by name, as tensors of this process's heads; `parameters()` has the DTensors."""
        parameters = cast(nn.ParameterDict, self._modules["learned"])
        return {name: self._part_of(cast(DTensor, x)) for name, x in parameters.items()}

    def _part_of(self, parameter: DTensor) -> torch.Tensor:
        local = parameter.to_local()
        if parameter.placements[0].is_shard():
            return local

        whole = copy_to_processes(local, self.share.group)
        if len(whole) != self.share.all_kv_heads:
            return whole
        return self.share.of_keys(whole)


class DividedAttentionLayer(AttentionLayer):
    """What `TensorParallel` makes of an attention layer: `heads` are those of this process."""

    share: HeadShare

    def _attend(
        self, q: Any, k: Any, v: Any, pattern: Any, bias: Any, q_start: Any, gate: Any = None
    ) -> torch.Tensor:
        if current_recording(self) is not None:
            raise UnsupportedError(
                "a layer over several processes records nothing; record it on one process"
            )

        share = self.share
        options: dict[str, Any] = {
            **self.options,
            "q_start": q_start,
            "pattern": pattern.of_heads(share.heads, share.all_heads),
            "sink": None if self.sinks is None else _local(self.sinks),
            **self.mechanism.options(gate),
        }
        if self.training and self.dropout:
            options["dropout"] = self.dropout
            options["dropout_seed"] = _seed_of_process(share.group)
        if isinstance(bias, torch.Tensor | Bias):
            bias = share.of_bias(bias, q.shape[2], k.shape[2], q_start)
        return attention(q, k, v, bias=bias, **options)

    def extra_repr(self) -> str:
        group = self.share.group
        return f"{super().extra_repr()}, process {group.rank} of {group.count}"


class DividedAttention(DividedAttentionLayer, MultiHeadAttention):
    """A MultiHeadAttention; `kv_heads` are those of this process as well."""

    def forward(self, x: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        refuse_layout("x", x)
        return super().forward(copy_to_processes(x, self.share.group), *inputs, **options)

    def project_context(self, context: torch.Tensor) -> ProjectedContext:
        return super().project_context(copy_to_processes(context, self.share.group))


class DividedLatentAttention(DividedAttentionLayer, LatentAttention):
    """A LatentAttention, whose latents are the same on all processes."""

    def _query_vectors(self, x: torch.Tensor) -> torch.Tensor:
        return copy_to_processes(super()._query_vectors(x), self.share.group)

    def _project_latents(self, x: torch.Tensor, first: int) -> torch.Tensor:
        return copy_to_processes(super()._project_latents(x, first), self.share.group)

    def _can_absorb(self) -> bool:
        """Its projections are parts of plain ones; hooks on them are honoured by calling them."""
        parts = self.to_k, self.to_v
        return not any(part._forward_hooks or part._forward_pre_hooks for part in parts)

    def _matrices(self, projection: nn.Linear) -> torch.Tensor:
        return _local(projection.weight).unflatten(0, (self.heads, -1))
