"""Models whose weights are divided among processes: attention by heads, feed-forward networks by hidden units.

The layers keep their names, and their weights become DTensors, so that `torch.distributed.checkpoint` and FSDP2 know
which part each process has. What a layer computes stays on local tensors, with one sum over processes at its end and,
in the backward pass, one at its beginning (Megatron-LM, Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils.weak import WeakTensorKeyDictionary

from regard.arguments import kind_of, of_kind
from regard.bias import Bias
from regard.distributed.group import Group
from regard.distributed.heads import HeadShare, copied, summed
from regard.errors import ArgumentError, UnsupportedError
from regard.functional import attention
from regard.layers import FeedForward, MultiHeadAttention, ProjectedContext, Projection
from regard.layers.mechanism import LayerMechanism
from regard.layers.recording import current_recording

_made = WeakTensorKeyDictionary()  # the DTensor of each parameter that still exists, so that tied ones stay one


class TensorParallel(ParallelStyle):
    """A `MultiHeadAttention` or `FeedForward` divided among processes, as a style of `parallelize_module`.

    Each process has some of the heads, or some of the hidden numbers; input and output are whole on every process. With
    fewer key/value heads than processes, every process keeps the weights of all of them, but computes and caches only
    those that its query heads look at. Attention dropout is drawn for each process.

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

    def __init__(self) -> None:
        super().__init__()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = Group.of(device_mesh)
        if type(module) is MultiHeadAttention:
            return _divide_attention(module, device_mesh, HeadShare.of(group, module.heads, module.kv_heads))
        if type(module) is FeedForward:
            return _divide_feed_forward(module, device_mesh, group)
        raise ArgumentError(
            f"TensorParallel is for MultiHeadAttention and FeedForward and was given {kind_of(module)}; "
            f"tensor_parallel_plan(model) names the layers of a model"
        )

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
        model: a model of `regard_lab.models`, or any module with MultiHeadAttention or FeedForward layers inside.

    Returns:
        A `TensorParallel` for each of these layers, by its name, and a `KeptWhole` for every other module with weights.

    Raises:
        ArgumentError: a module without such layers, or modules with a common weight that are not divided alike.

    >>> model = nn.Sequential(MultiHeadAttention(dim=32, heads=4), nn.LayerNorm(32))
    >>> tensor_parallel_plan(model)
    {'0': TensorParallel(), '1': KeptWhole()}
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model is {kind_of(model)}; give a module with MultiHeadAttention or FeedForward layers")
    layers = (MultiHeadAttention, FeedForward)
    divided = {name for name, one in model.named_modules() if name and isinstance(one, layers)}
    plan: dict[str, ParallelStyle] = {}
    for name, one in model.named_modules():
        if name in divided:
            plan[name] = TensorParallel()
        elif name and one._parameters and not any(name.startswith(f"{layer}.") for layer in divided):
            plan[name] = KeptWhole()
    if not divided:
        raise ArgumentError(
            f"{kind_of(model)} has no MultiHeadAttention or FeedForward inside; for such a layer itself, "
            f"parallelize_module(layer, mesh, TensorParallel())"
        )
    _refuse_unlike_ties(model, divided)
    return plan


def _refuse_unlike_ties(model: nn.Module, divided: set[str]) -> None:
    """Raise an ArgumentError if two modules have a weight in common that could not stay one after the division."""
    first: dict[nn.Parameter, tuple[str, str]] = {}
    for module_name, module in model.named_modules():
        layer = next((one for one in divided if f"{module_name}.".startswith(f"{one}.")), None)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if layer is None:
                way = "kept whole" if module_name else "left as it is"
            else:
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
    for layer in [layer for one in model.modules() if isinstance(one, nn.ModuleList) for layer in one]:
        cross = getattr(layer, "cross_attention", None)
        if isinstance(cross, MultiHeadAttention):  # its context is projected once, before the first step
            _sharded(cross, mesh, options, ("project_context",))
        _sharded(layer, mesh, options, ("step",))
    return _sharded(model, mesh, options, ("encode", "start", "step", "extend", "vectors"))


def _sharded(module: nn.Module, mesh: DeviceMesh, options: dict[str, Any], methods: tuple[str, ...]) -> nn.Module:
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


def _divide_feed_forward(module: FeedForward, mesh: DeviceMesh, group: Group) -> FeedForward:
    for part in (module.gate, module.widen):
        if part is not None:
            _divide_projection(part, mesh, group)
    _divide_sum(module.narrow, mesh, group)
    module.dropout.__class__ = OwnDropout
    assert isinstance(module.dropout, OwnDropout)
    module.dropout.group = group
    module.__class__ = DividedFeedForward
    assert isinstance(module, DividedFeedForward)
    module.group = group
    return module


def _divide_attention(module: MultiHeadAttention, mesh: DeviceMesh, share: HeadShare) -> MultiHeadAttention:
    group = share.group
    _divide_projection(module.to_q, mesh, group)
    for part in (module.to_k, module.to_v, module.mechanism.to_gate):
        if part is not None:
            _divide_projection(part, mesh, group, None if share.divides_keys else share)
    _divide_sum(module.to_output, mesh, group)
    _divide(module, mesh, {"sinks": 0})
    learned = module.mechanism.learned
    _divide(learned, mesh, {name: share.axis_of(one) for name, one in learned.items()})
    module.mechanism.__class__ = DividedMechanism
    assert isinstance(module.mechanism, DividedMechanism)
    module.mechanism.share = share
    module.__class__ = DividedAttention
    assert isinstance(module, DividedAttention)
    module.share, module.heads, module.kv_heads = share, len(share.heads), len(share.kv_heads)
    return module


def _divide_projection(module: nn.Linear, mesh: DeviceMesh, group: Group, share: HeadShare | None = None) -> None:
    """A projection of which each process computes some outputs; with `share`, by weights that stay whole."""
    axis = 0 if share is None else None
    _divide(module, mesh, {"weight": axis, "bias": axis})
    module.__class__ = ProjectionToPart
    assert isinstance(module, ProjectionToPart)
    module.group, module.share = group, share


def _divide_sum(module: nn.Linear, mesh: DeviceMesh, group: Group) -> None:
    _divide(module, mesh, {"weight": 1, "bias": None})
    module.__class__ = ProjectionFromParts
    assert isinstance(module, ProjectionFromParts)
    module.group = group


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """This process's part of a parameter, differentiable."""
    return cast(DTensor, parameter).to_local()


class ProjectionToPart(Projection):
    """A projection that gives this process's part of the outputs, of an input that is whole."""

    group: Group
    share: HeadShare | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., this process's outputs)."""
        bias = None if self.bias is None else self._part(_local(self.bias))
        return torch.nn.functional.linear(input, self._part(_local(self.weight)), bias)

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.share is None else self.share.of_keys(copied(tensor, self.group))


class ProjectionFromParts(Projection):
    """A projection of an input whose parts are on several processes; its output is whole."""

    group: Group

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., this process's inputs) -> (..., out_features)."""
        output = summed(torch.nn.functional.linear(input, _local(self.weight)), self.group)
        return output if self.bias is None else output + _local(self.bias)


class OwnDropout(nn.Dropout):
    """Dropout of numbers that are on this process alone; the default generator stays alike on all processes."""

    group: Group

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The same shape."""
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
        """(batch, length, dim) -> (batch, length, dim)."""
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


class DividedAttention(MultiHeadAttention):
    """What `TensorParallel` makes of a MultiHeadAttention: `heads` and `kv_heads` are those of this process."""

    share: HeadShare

    def forward(self, x: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        """(batch, length, dim) -> (batch, length, dim)."""
        return super().forward(copied(x, self.share.group), *inputs, **options)

    def project_context(self, context: torch.Tensor) -> ProjectedContext:
        """The keys and values of this process's heads."""
        return super().project_context(copied(context, self.share.group))

    def _attend(self, q: Any, k: Any, v: Any, pattern: Any, bias: Any, q_start: Any, gate: Any) -> torch.Tensor:
        if current_recording(self) is not None:
            raise UnsupportedError("a layer over several processes records nothing; record it on one process")
        share = self.share
        options: dict[str, Any] = {**self.options, "q_start": q_start, **self.mechanism.options(gate)}
        if self.training and self.dropout:
            options |= {"dropout": self.dropout, "dropout_seed": _own_seed(share.group)}
        sink = None if self.sinks is None else _local(self.sinks)
        if isinstance(bias, torch.Tensor | Bias):
            bias = share.of_bias(bias, q.shape[2], k.shape[2], q_start)
        return attention(q, k, v, pattern=share.of_pattern(pattern), bias=bias, sink=sink, **options)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, process {self.share.group.rank} of {self.share.group.count}"
