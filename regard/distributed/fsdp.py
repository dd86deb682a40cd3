"""Models whose weights are divided by FSDP2, layer by layer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from regard.arguments import of_kind
from regard.layers import MultiHeadAttention


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
