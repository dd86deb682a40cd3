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
from regard.layers.projection import Projection
from regard.layers.recording import current_recording

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
    for module_list in [*model.modules()]:
        if not isinstance(module_list, nn.ModuleList):
            continue
        for layer in module_list:
            cross = getattr(layer, "cross_attention", None)
            if isinstance(cross, MultiHeadAttention):
                # Its context is projected once, before the first step.
                _shard_module(cross, mesh, options, ("project_context",))
            _shard_module(layer, mesh, options, ("step",))
    return _shard_module(model, mesh, options, ("encode", "start", "step", "extend", "vectors"))


def _shard_module(
    module: nn.Module, mesh: DeviceMesh, options: dict[str, Any], methods: tuple[str, ...]
) -> nn.Module:
    """Divide a module's weights by FSDP2, which fetches them for these methods too."""
    fully_shard(module, mesh=mesh, **options)
    for method in methods:
        if hasattr(module, method):
            register_fsdp_forward_method(module, method)
    return module


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
