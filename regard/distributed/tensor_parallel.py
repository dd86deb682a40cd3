"""Models whose weights are divided among processes: attention by heads, feed-forward networks by hidden units.

The layers keep their names, and their weights become DTensors, so that `torch.distributed.checkpoint` and FSDP2 know
which part each process has. What the divided layers compute is in `divided_layers`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils.weak import WeakTensorKeyDictionary

from regard.arguments import kind_of
from regard.distributed.divided_layers import (
    DividedAttention,
    DividedFeedForward,
    DividedLatentAttention,
    DividedMechanism,
    DropoutOfProcess,
    HeadShare,
    NormOfHeads,
    ProjectionFromParts,
    ProjectionToPart,
)
from regard.distributed.group import Group
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import FeedForward, LatentAttention, MultiHeadAttention
from regard.layers.attending import AttentionLayer

DIVISIBLE = "MultiHeadAttention, LatentAttention and FeedForward"

# The DTensor of each parameter that was divided, as long as the parameter exists: tied weights stay one parameter.
_divided_parameters = WeakTensorKeyDictionary()


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
            _refuse_indivisible_parts(module)
            share = HeadShare.of(group, module.heads, module.kv_heads)
            _divide_attention(module, device_mesh, share)
        elif type(module) is LatentAttention:
            share = HeadShare.of(group, module.heads, module.heads)
            _divide_latent_attention(module, device_mesh, share)
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


def _refuse_indivisible_parts(layer: MultiHeadAttention) -> None:
    """Raise an UnsupportedError for a layer with parts whose numbers do not belong to single heads."""
    declared = layer.mechanism.declared
    if declared.groups_values:
        raise UnsupportedError(
            f"TensorParallel does not divide {declared}, whose decays belong to all heads; "
            f"divide the positions, by ContextParallel(form='state')"
        )
    parts = (layer.value_mix, layer.difference, layer.to_forget, layer.chooser)
    if any(part is not None for part in parts):
        raise UnsupportedError(
            "TensorParallel does not divide layers with value_residual, differential, forgetting or a "
            "chooser; divide the positions"
        )


class KeptWhole(ParallelStyle):
    """A module whose weights every process keeps whole, as DTensors; what it computes stays on local tensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        names = [name for name, parameter in module._parameters.items() if parameter is not None]
        _divide(module, device_mesh, dict.fromkeys(names))

        # A class of its own, whose attributes are the local tensors that the module computes with.
        kind = type(module)
        local_tensors = {}
        for name in names:
            local_tensors[name] = property(partial(_local_or_itself, name=name, mesh=device_mesh))
        module.__class__ = type(kind.__name__, (kind,), local_tensors)
        return module

    def __repr__(self) -> str:
        return "KeptWhole()"


def _local_or_itself(module: nn.Module, name: str, mesh: DeviceMesh) -> torch.Tensor:
    """The local tensor of a parameter; while FSDP2 divides it over another mesh as well, the parameter itself."""
    parameter = cast(DTensor, module._parameters[name])
    if parameter.device_mesh != mesh:
        return parameter
    return parameter.to_local()


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
    kinds = (AttentionLayer, FeedForward)
    layers = {name for name, module in model.named_modules() if name and isinstance(module, kinds)}
    if not layers:
        raise ArgumentError(
            f"{kind_of(model)} has no {DIVISIBLE.replace(' and ', ' or ')} inside; for such a layer itself, "
            f"parallelize_module(layer, mesh, TensorParallel())"
        )
    _refuse_unlike_ties(model, layers)

    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if name in layers:
            plan[name] = TensorParallel()
        elif name and module._parameters and _layer_around(name, layers) is None:
            plan[name] = KeptWhole()
    return plan


def _layer_around(name: str, layers: set[str]) -> str | None:
    """The name of the layer that a module is, or that it is inside of."""
    return next((layer for layer in layers if f"{name}.".startswith(f"{layer}.")), None)


def _refuse_unlike_ties(model: nn.Module, layers: set[str]) -> None:
    """Raise an ArgumentError if two modules have a weight in common that could not stay one after the division."""
    first_place_and_way: dict[nn.Parameter, tuple[str, str]] = {}
    for module_name, module in model.named_modules():
        layer = _layer_around(module_name, layers)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue

            if layer is not None:
                name_in_layer = f"{module_name}.{name}".removeprefix(f"{layer}.")
                way = f"divided as {name_in_layer} of a layer"
            elif module_name:
                way = "kept whole"
            else:
                way = "left as it is"
            place = f"{name} of {module_name or 'the model itself'}"
            first_place, first_way = first_place_and_way.setdefault(parameter, (place, way))
            if way != first_way:
                raise ArgumentError(
                    f"{first_place} and {place} are one parameter, but the first would be {first_way} and the second "
                    f"{way}, so they would be two; untie them: give each module a parameter of its own"
                )


def _divide(module: nn.Module, mesh: DeviceMesh, axes: dict[str, int | None]) -> None:
    """Make DTensors of a module's own parameters, divided along these axes; None keeps them whole.

    Raises:
        ArgumentError: a parameter of another module too, where it was divided along another axis.
    """
    for name, axis in axes.items():
        parameter = module._parameters.get(name)
        if parameter is None:
            continue

        placement = Replicate() if axis is None else Shard(axis)
        divided: nn.Parameter | None = _divided_parameters.get(parameter)
        if divided is None or cast(DTensor, divided).device_mesh != mesh:
            tensor = distribute_tensor(parameter.detach(), mesh, [placement])
            divided = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
            _divided_parameters[parameter] = divided
        earlier = cast(DTensor, divided).placements[0]
        if earlier != placement:
            raise ArgumentError(
                f"{name} of {kind_of(module)} {tuple(parameter.shape)} is a parameter of another module too, where it "
                f"was {_way_of(earlier)}, and here it would be {_way_of(placement)}; untie them: give each module a "
                f"parameter of its own"
            )
        module.register_parameter(name, divided)


def _way_of(placement: Any) -> str:
    return f"divided along axis {placement.dim}" if isinstance(placement, Shard) else "kept whole"


def _become(module: nn.Module, kind: type[nn.Module], **values: Any) -> None:
    """Make a module one of another class, with these attributes besides its own."""
    module.__class__ = kind
    for name, value in values.items():
        setattr(module, name, value)


def _divide_feed_forward(module: FeedForward, mesh: DeviceMesh, group: Group) -> None:
    for projection in (module.gate, module.widen):
        if projection is not None:
            _divide_outputs(projection, mesh, group)
    _divide_inputs(module.narrow, mesh, group)
    _become(module.dropout, DropoutOfProcess, group=group)
    _become(module, DividedFeedForward, group=group)


def _divide_attention(module: MultiHeadAttention, mesh: DeviceMesh, share: HeadShare) -> None:
    group = share.group
    mechanism = module.mechanism

    _divide_outputs(module.to_q, mesh, group)
    whole_weights_of = None if share.divides_keys else share
    for projection in (module.to_k, module.to_v, mechanism.to_gate):
        if projection is not None:
            _divide_outputs(projection, mesh, group, whole_weights_of)
    if module.to_output_gate is not None:
        _divide_outputs(module.to_output_gate, mesh, group)
    _divide_inputs(module.to_output, mesh, group)

    for norm in (module.q_norm, module.k_norm):
        if norm is not None:
            _divide(norm, mesh, {"weight": None})
            _become(norm, NormOfHeads, group=group)
    _divide(module, mesh, {"sinks": 0})
    learned_axes = {name: share.axis_of(x) for name, x in mechanism.learned.items()}
    _divide(mechanism.learned, mesh, learned_axes)

    _become(mechanism, DividedMechanism, share=share)
    heads = len(share.heads)
    kv_heads = len(share.kv_heads)
    _become(module, DividedAttention, share=share, heads=heads, kv_heads=kv_heads)


def _divide_latent_attention(module: LatentAttention, mesh: DeviceMesh, share: HeadShare) -> None:
    group = share.group
    of_latents = (module.to_query_latent, module.query_norm, module.to_latent, module.latent_norm)
    for whole_module in of_latents:
        if whole_module is not None:
            KeptWhole()._apply(whole_module, mesh)
    for projection in (module.to_q, module.to_k, module.to_v):
        _divide_outputs(projection, mesh, group)
    _divide_inputs(module.to_output, mesh, group)
    _divide(module, mesh, {"sinks": 0})
    _become(module, DividedLatentAttention, share=share, heads=len(share.heads))


def _divide_outputs(
    module: nn.Linear, mesh: DeviceMesh, group: Group, share: HeadShare | None = None
) -> None:
    """A projection of which each process computes some outputs; with `share`, by weights that stay whole."""
    axis = 0 if share is None else None
    _divide(module, mesh, {"weight": axis, "bias": axis})
    _become(module, ProjectionToPart, group=group, share=share)


def _divide_inputs(module: nn.Linear, mesh: DeviceMesh, group: Group) -> None:
    """A projection of which each process reads some inputs; the outputs are summed over processes."""
    _divide(module, mesh, {"weight": 1, "bias": None})
    _become(module, ProjectionFromParts, group=group)
