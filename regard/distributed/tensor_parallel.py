"""Models whose weights are divided among processes: attention by heads, feed-forward networks by hidden units.

The layers keep their names, and their weights become DTensors, so that `torch.distributed.checkpoint` and FSDP2 know
which part each process has. What a layer computes stays on local tensors, with one sum over processes at its end and,
in the backward pass, one at its beginning (Megatron-LM, Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils.weak import WeakTensorKeyDictionary

from regard.arguments import kind_of, of_kind
from regard.bias import ALiBi, Bias, series
from regard.core.problem import learns
from regard.core.tensors import refuse_layout
from regard.distributed.group import Group
from regard.errors import ArgumentError, UnsupportedError
from regard.functional import attention
from regard.layers import FeedForward, LatentAttention, MultiHeadAttention, ProjectedContext
from regard.layers.attending import AttentionLayer, LayerMechanism
from regard.layers.feed_forward import Projection
from regard.layers.recording import current_recording

DIVISIBLE = "MultiHeadAttention, LatentAttention and FeedForward"
_made = (
    WeakTensorKeyDictionary()
)  # the DTensor of each parameter that still exists, so that tied ones stay one


class TensorParallel(ParallelStyle):
    """An attention layer or `FeedForward` divided among processes, as a style of `parallelize_module`.

    Each process has some of the heads, or some of the hidden numbers; input and output are whole on every process. With
    fewer key/value heads than processes, every process keeps the weights of all of them, but computes and caches only
    those that its query heads look at. Of a `LatentAttention` every process computes and caches all latents. Attention
    dropout is drawn for each process.

    Raises:
        ArgumentError: another module, or heads that the processes do not divide.
        UnsupportedError: in a call, a recording.

    Source: Megatron-LM, Shoeybi et al. 2019, section 3.

    >>> from torch.distributed.tensor.parallel import parallelize_module
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun starts several
    >>> layer = MultiHeadAttention(dim=32, heads=4, kv_heads=2, pattern="causal")
    >>> layer = parallelize_module(layer, init_device_mesh("cpu", (1,)), TensorParallel())
    >>> layer(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    >>> dist.destroy_process_group()
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = Group.of(device_mesh)
        if type(module) is MultiHeadAttention:
            if module.mechanism.declared.groups_values:
                raise UnsupportedError(
                    f"TensorParallel does not divide {module.mechanism.declared}, whose decays belong to all heads; "
                    f"divide the positions, by ContextParallel(form='state')"
                )
            if any(
                one is not None
                for one in (module.value_mix, module.difference, module.to_forget, module.chooser)
            ):
                raise UnsupportedError(
                    "TensorParallel does not divide layers with value_residual, differential, forgetting or a "
                    "chooser; divide the positions"
                )
            _divide_attention(
                module, device_mesh, HeadShare.of(group, module.heads, module.kv_heads)
            )
        elif type(module) is LatentAttention:
            _divide_latent_attention(
                module, device_mesh, HeadShare.of(group, module.heads, module.heads)
            )
        elif type(module) is FeedForward:
            _divide_feed_forward(module, device_mesh, group)
        else:
            raise ArgumentError(
                f"TensorParallel is for {DIVISIBLE} and was given {kind_of(module)}; "
                f"tensor_parallel_plan(model) names the layers of a model"
            )
        return module

    def __repr__(self) -> str:
        return "TensorParallel()"


class KeptWhole(ParallelStyle):
    """A module whose weights every process keeps whole, as DTensors; what it computes stays on local tensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        names = [name for name, one in module._parameters.items() if one is not None]
        _divide(module, device_mesh, dict.fromkeys(names))
        kind = type(module)
        read = {name: property(partial(_own, name=name, mesh=device_mesh)) for name in names}
        module.__class__ = type(kind.__name__, (kind,), read)
        return module

    def __repr__(self) -> str:
        return "KeptWhole()"


def _own(module: nn.Module, name: str, mesh: DeviceMesh) -> torch.Tensor:
    """The local tensor of a parameter; while FSDP2 divides it over another mesh as well, the parameter itself."""
    parameter = cast(DTensor, module._parameters[name])
    return parameter.to_local() if parameter.device_mesh == mesh else parameter


def tensor_parallel_plan(model: nn.Module) -> dict[str, ParallelStyle]:
    """The plan that divides a model's attention and feed-forward layers, for `parallelize_module(model, mesh, plan)`.

    Embeddings, norms and the output matrix stay whole on every process. Their weights become DTensors too, because
    `clip_grad_norm_` and optimisers take either only DTensors or none.

    Args:
        model: a model of `regard_lab.models`, or any module with attention or FeedForward layers inside.

    Returns:
        A `TensorParallel` for each of these layers, by its name, and a `KeptWhole` for every other module with weights.

    Raises:
        ArgumentError: a module without such layers, or modules with a common weight that are not divided alike.

    >>> model = nn.Sequential(MultiHeadAttention(dim=32, heads=4), nn.LayerNorm(32))
    >>> tensor_parallel_plan(model)
    {'0': TensorParallel(), '1': KeptWhole()}
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model is {kind_of(model)}; give a module with layers of {DIVISIBLE}")
    layers = (AttentionLayer, FeedForward)
    divided = {name for name, one in model.named_modules() if name and isinstance(one, layers)}
    if not divided:
        raise ArgumentError(
            f"{kind_of(model)} has no {DIVISIBLE.replace(' and ', ' or ')} inside; for such a layer itself, "
            f"parallelize_module(layer, mesh, TensorParallel())"
        )
    _refuse_unlike_ties(model, divided)
    plan: dict[str, ParallelStyle] = {}
    for name, one in model.named_modules():
        if name in divided:
            plan[name] = TensorParallel()
        elif (
            name and one._parameters and not any(name.startswith(f"{layer}.") for layer in divided)
        ):
            plan[name] = KeptWhole()
    return plan


def _refuse_unlike_ties(model: nn.Module, divided: set[str]) -> None:
    """Raise an ArgumentError if two modules have a weight in common that could not stay one after the division."""
    first: dict[nn.Parameter, tuple[str, str]] = {}
    for module_name, module in model.named_modules():
        layer = next((one for one in divided if f"{module_name}.".startswith(f"{one}.")), None)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            way = "kept whole" if module_name else "left as it is"
            if layer is not None:
                way = f"divided as {f'{module_name}.{name}'.removeprefix(f'{layer}.')} of a layer"
            place = f"{name} of {module_name or 'the model itself'}"
            other, other_way = first.setdefault(parameter, (place, way))
            if way != other_way:
                raise ArgumentError(
                    f"{other} and {place} are one parameter, but the first would be {other_way} and the second {way}, "
                    f"so they would be two; untie them: give each module a parameter of its own"
                )


def shard_model(model: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    """Divide the weights of a model by FSDP2: each layer fetches its weights while it computes, and drops them again.

    `fully_shard` is called for each module of a ModuleList and then for the model, after `parallelize_module` if both
    are used. A model of `regard_lab.models` can then be called, and so can those of the methods `encode`, `start`,
    `step`, `extend` and `vectors` that it has; all processes call them together, each with its rows of the batch.

    Args:
        model: the same on every process.
        mesh: the processes among which weights and batches are divided.
        options: as for `fully_shard`, such as `mp_policy` or `reshard_after_forward`.

    Returns:
        The model, whose parameters are DTensors.

    Source: PyTorch FSDP, Zhao et al. 2023; Zero Redundancy Optimizer, Rajbhandari et al. 2020, section 5.
    """
    of_kind("model", model, nn.Module, "a module")
    of_kind("mesh", mesh, DeviceMesh, "a DeviceMesh")
    for layer in [
        layer for one in model.modules() if isinstance(one, nn.ModuleList) for layer in one
    ]:
        cross = getattr(layer, "cross_attention", None)
        if isinstance(
            cross, MultiHeadAttention
        ):  # its context is projected once, before the first step
            _sharded(cross, mesh, options, ("project_context",))
        _sharded(layer, mesh, options, ("step",))
    return _sharded(model, mesh, options, ("encode", "start", "step", "extend", "vectors"))


def _sharded(
    module: nn.Module, mesh: DeviceMesh, options: dict[str, Any], methods: tuple[str, ...]
) -> nn.Module:
    fully_shard(module, mesh=mesh, **options)
    for method in methods:
        if hasattr(module, method):
            register_fsdp_forward_method(module, method)
    return module


def _divide(module: nn.Module, mesh: DeviceMesh, shards: dict[str, int | None]) -> None:
    """Make DTensors of a module's own parameters, divided along these axes; None keeps them whole.

    Raises:
        ArgumentError: a parameter of another module too, where it was divided along another axis.
    """
    for name, axis in shards.items():
        if (given := module._parameters.get(name)) is None:
            continue
        placement = Replicate() if axis is None else Shard(axis)
        made: nn.Parameter | None = _made.get(given)
        if made is None or cast(DTensor, made).device_mesh != mesh:
            tensor = distribute_tensor(given.detach(), mesh, [placement])
            made = _made[given] = nn.Parameter(tensor, requires_grad=given.requires_grad)
        if (other := cast(DTensor, made).placements[0]) != placement:
            ways = [
                f"divided along axis {one.dim}" if isinstance(one, Shard) else "kept whole"
                for one in (other, placement)
            ]
            raise ArgumentError(
                f"{name} of {kind_of(module)} {tuple(given.shape)} is a parameter of another module too, where it was "
                f"{ways[0]}, and here it would be {ways[1]}; untie them: give each module a parameter of its own"
            )
        module.register_parameter(name, made)


def _become(module: nn.Module, kind: type[nn.Module], **values: Any) -> None:
    """Make a module one of another class, with these attributes besides its own."""
    module.__class__ = kind
    for name, value in values.items():
        setattr(module, name, value)


def _divide_feed_forward(module: FeedForward, mesh: DeviceMesh, group: Group) -> None:
    for part in (module.gate, module.widen):
        if part is not None:
            _divide_projection(part, mesh, group)
    _divide_sum(module.narrow, mesh, group)
    _become(module.dropout, OwnDropout, group=group)
    _become(module, DividedFeedForward, group=group)


def _divide_attention(module: MultiHeadAttention, mesh: DeviceMesh, share: HeadShare) -> None:
    group = share.group
    mechanism = module.mechanism
    _divide_projection(module.to_q, mesh, group)
    for part in (module.to_k, module.to_v, mechanism.to_gate):
        if part is not None:
            _divide_projection(part, mesh, group, None if share.divides_keys else share)
    if module.to_output_gate is not None:
        _divide_projection(module.to_output_gate, mesh, group)
    for norm in (module.q_norm, module.k_norm):
        if norm is not None:
            _divide(norm, mesh, {"weight": None})
            _become(norm, NormOfHeads, group=group)
    _divide_sum(module.to_output, mesh, group)
    _divide(module, mesh, {"sinks": 0})
    _divide(
        mechanism.learned,
        mesh,
        {name: share.axis_of(one) for name, one in mechanism.learned.items()},
    )
    _become(mechanism, DividedMechanism, share=share)
    _become(
        module, DividedAttention, share=share, heads=len(share.heads), kv_heads=len(share.kv_heads)
    )


def _divide_latent_attention(module: LatentAttention, mesh: DeviceMesh, share: HeadShare) -> None:
    for part in (module.to_query_latent, module.query_norm, module.to_latent, module.latent_norm):
        if part is not None:
            KeptWhole()._apply(part, mesh)
    for part in (module.to_q, module.to_k, module.to_v):
        _divide_projection(part, mesh, share.group)
    _divide_sum(module.to_output, mesh, share.group)
    _divide(module, mesh, {"sinks": 0})
    _become(module, DividedLatentAttention, share=share, heads=len(share.heads))


def _divide_projection(
    module: nn.Linear, mesh: DeviceMesh, group: Group, share: HeadShare | None = None
) -> None:
    """A projection of which each process computes some outputs; with `share`, by weights that stay whole."""
    axis = 0 if share is None else None
    _divide(module, mesh, {"weight": axis, "bias": axis})
    _become(module, ProjectionToPart, group=group, share=share)


def _divide_sum(module: nn.Linear, mesh: DeviceMesh, group: Group) -> None:
    _divide(module, mesh, {"weight": 1, "bias": None})
    _become(module, ProjectionFromParts, group=group)


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
            fitting = ", ".join(str(one) for one in range(1, heads + 1) if not heads % one)
            raise ArgumentError(
                f"{heads} query heads cannot be divided among {group.count} processes, each with as many; "
                f"numbers of processes that can: {fitting}"
            )
        each = heads // group.count
        sharing = heads // kv_heads
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
        alone = len(parameter) == self.all_heads or (
            len(parameter) == self.all_kv_heads and self.divides_keys
        )
        return 0 if alone else None

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of a tensor (kv_heads · size, ...) of the whole layer, the part of this process's key/value heads."""
        return tensor.unflatten(0, (self.all_kv_heads, -1))[list(self.kv_heads)].flatten(0, 1)

    def of_bias(
        self, bias: torch.Tensor | Bias, q_len: int, k_len: int, q_start: int | torch.Tensor | None
    ) -> torch.Tensor | Bias:
        """The bias of this process's heads in a call; gradients of the whole one are summed over processes."""
        if isinstance(bias, torch.Tensor):
            alike = bias.dim() < 3 or bias.shape[-3] != self.all_heads
            return (
                copied(bias, self.group)
                if alike
                else copied(bias, self.group)[..., self.heads, :, :]
            )
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
        lowest, highest = (
            self._farthest()
        )  # the distances asked for differ: each process's heads look at other keys
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
        return (
            None if key is None else (type(self.whole), key, self.share.all_heads, self.share.heads)
        )

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
    return (
        _CopiedOrSummed.apply(x, group, False)
        if isinstance(x, torch.Tensor) and x.requires_grad
        else x
    )


def summed(x: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over processes; the gradient of the sum, alike on all, is that of each part."""
    return _CopiedOrSummed.apply(x, group, True)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """This process's part of a parameter, differentiable."""
    return cast(DTensor, parameter).to_local()


class ProjectionToPart(Projection):
    """A projection that gives this process's part of the outputs, of an input that is whole."""

    group: Group
    share: HeadShare | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self._part(_local(self.bias))
        return torch.nn.functional.linear(input, self._part(_local(self.weight)), bias)

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.share is None else self.share.of_keys(copied(tensor, self.group))


class ProjectionFromParts(Projection):
    """A projection of an input whose parts are on several processes; its output is whole."""

    group: Group

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output = summed(torch.nn.functional.linear(input, _local(self.weight)), self.group)
        return output if self.bias is None else output + _local(self.bias)


class NormOfHeads(nn.RMSNorm):
    """The norm of this process's heads, by a weight that is alike on all processes."""

    group: Group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(
            x, self.normalized_shape, copied(_local(self.weight), self.group), self.eps
        )


class OwnDropout(nn.Dropout):
    """Dropout of numbers that are on this process alone; the default generator stays alike on all processes."""

    group: Group

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.p:
            return input
        generator = torch.Generator(input.device).manual_seed(_own_seed(self.group))
        kept = torch.rand(input.shape, generator=generator, device=input.device) >= self.p
        return input * kept / (1 - self.p) if self.p < 1 else input * 0


def _own_seed(group: Group) -> int:
    """A seed of this process, by one draw of the default generator, which is alike on all."""
    return int(torch.randint(2**62, (), device="cpu").item()) ^ group.rank


class DividedFeedForward(FeedForward):
    """What `TensorParallel` makes of a FeedForward."""

    group: Group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(copied(x, self.group))


class DividedMechanism(LayerMechanism):
    """The mechanism of some heads: learned tensors of heads are cut to those of this process."""

    share: HeadShare

    @property
    def learned(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Its parameters by name, as tensors of this process's heads; `parameters()` has the DTensors."""
        every = cast(nn.ParameterDict, self._modules["learned"])
        return {name: self._part(cast(DTensor, one)) for name, one in every.items()}

    def _part(self, parameter: DTensor) -> torch.Tensor:
        local = parameter.to_local()
        if parameter.placements[0].is_shard():
            return local
        local = copied(local, self.share.group)
        return self.share.of_keys(local) if len(local) == self.share.all_kv_heads else local


class Divided(AttentionLayer):
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
            **self.mechanism.options(gate),
        }
        if self.training and self.dropout:
            options |= {"dropout": self.dropout, "dropout_seed": _own_seed(share.group)}
        sink = None if self.sinks is None else _local(self.sinks)
        if isinstance(bias, torch.Tensor | Bias):
            bias = share.of_bias(bias, q.shape[2], k.shape[2], q_start)
        return attention(
            q,
            k,
            v,
            pattern=pattern.of_heads(share.heads, share.all_heads),
            bias=bias,
            sink=sink,
            **options,
        )

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, process {self.share.group.rank} of {self.share.group.count}"
        )


class DividedAttention(Divided, MultiHeadAttention):
    """A MultiHeadAttention; `kv_heads` are those of this process as well."""

    def forward(self, x: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        refuse_layout("x", x)
        return super().forward(copied(x, self.share.group), *inputs, **options)

    def project_context(self, context: torch.Tensor) -> ProjectedContext:
        return super().project_context(copied(context, self.share.group))


class DividedLatentAttention(Divided, LatentAttention):
    """A LatentAttention, whose latents are the same on all processes."""

    def _of_queries(self, x: torch.Tensor) -> torch.Tensor:
        return copied(super()._of_queries(x), self.share.group)

    def _latents(self, x: torch.Tensor, first: int) -> torch.Tensor:
        return copied(super()._latents(x, first), self.share.group)

    def _can_absorb(self) -> bool:
        """Its projections are parts of plain ones; hooks on them are honoured by calling them."""
        parts = self.to_k, self.to_v
        return not any(part._forward_hooks or part._forward_pre_hooks for part in parts)

    def _matrices(self, projection: nn.Linear) -> torch.Tensor:
        return _local(projection.weight).unflatten(0, (self.heads, -1))
