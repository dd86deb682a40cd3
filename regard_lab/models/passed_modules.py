"""Modules that a step of decoding does not call, because it computes itself what they would.

A call of a small module takes longer than its work. The call may be left out where the module does only what its class
says, and nothing watches the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from regard.exporting import exporting
from regard.layers import FeedForward, MultiHeadAttention
from regard.layers.attending import LayerMechanism
from regard.layers.multi_head import is_simple
from regard.layers.projection import Projection, hooks_of_all_modules
from regard.positions import Learned, Sinusoidal
from regard_lab.models.layers import Block, DecoderLayer, EncoderLayer, Residual

# Modules whose work is known, so that it may be done without calling them.
KNOWN_MODULES = {
    Block,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerMechanism,
    Learned,
    MultiHeadAttention,
    nn.Dropout,
    nn.Embedding,
    nn.LayerNorm,
    nn.ModuleList,
    nn.ParameterDict,
    nn.RMSNorm,
    Projection,
    Residual,
    Sinusoidal,
}


def does_more(
    module: nn.Module, is_known: Callable[[MultiHeadAttention], bool] = is_simple
) -> bool:
    """Whether a call of the module may do more than its class says, or its class is not known.

    is_known: whether the work of an attention layer is known.
    """
    attributes = module.__dict__
    if type(module) not in KNOWN_MODULES or "forward" in attributes:
        return True
    if "weight" in attributes:  # as copies of a model have
        return True
    if attributes.get("_compiled_call_impl") is not None:  # set by `module.compile()`
        return True
    if type(module) is not MultiHeadAttention:
        return False
    return "project_context" in attributes or not is_known(module)


def does_nothing(module: nn.Module) -> bool:
    """Whether a call of the module returns what it gets, and nothing watches the call."""
    attributes = module.__dict__
    return (
        type(module) is nn.Identity
        and "forward" not in attributes
        and attributes.get("_compiled_call_impl") is None
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def has_usual_parameters(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether all weights of the module are plain parameters of this dtype, in the memory of the CPU."""
    if "weight" in module._buffers:
        return False
    for parameter in module._parameters.values():
        if parameter is None:
            continue
        if type(parameter) is not nn.Parameter or parameter.dtype != dtype:
            return False
        if parameter.device.type != "cpu":
            return False
    return True


def needs_modules_now() -> bool:
    """Whether autograd, a compiler, an exporter or autocast is active in this thread and needs calls of modules."""
    return (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or exporting()
        or torch.is_autocast_enabled("cpu")
    )


def _all_modules(parts: Iterable[nn.Module | None]) -> list[nn.Module]:
    """The parts and all modules in them; `Module.modules` takes three times as long, since it names them."""
    found = [part for part in parts if part is not None]
    for module in found:  # grows
        found += [child for child in module._modules.values() if child is not None]
    return found


def _settings_of_attention(layer: MultiHeadAttention) -> tuple[Any, ...]:
    sizes = (layer.heads, layer.kv_heads, layer.head_dim, layer.value_dim)
    return *sizes, layer.pattern, layer.positions, *layer.options.items()


# By class, since texts begin with these: the numbers and options by which a module computes beside its parameters.
_SETTINGS: dict[type, Callable[[Any], Any]] = {
    MultiHeadAttention: _settings_of_attention,
    FeedForward: lambda layer: layer.activation,
    nn.LayerNorm: lambda norm: norm.eps,
    nn.RMSNorm: lambda norm: norm.eps,
}


class PassedModules:
    """The modules that are not called, as they were when a text began; `PassedModules.of` finds them."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules
        # The dictionaries themselves, so that hooks that are set later are noticed.
        self._hooks = [module._forward_hooks for module in modules]
        self._hooks += [module._forward_pre_hooks for module in modules]
        self._attention_layers = [
            module for module in modules if type(module) is MultiHeadAttention
        ]

    @classmethod
    def of(
        cls,
        parts: Iterable[nn.Module | None],
        is_known: Callable[[MultiHeadAttention], bool] = is_simple,
    ) -> PassedModules | None:
        """All modules of these parts of a model; None if a call of one may do more, or something watches it.

        is_known: as for `does_more`.
        """
        if needs_modules_now():
            return None
        modules = _all_modules(parts)
        for module in modules:
            if does_more(module, is_known):
                return None
        passed = cls(modules)
        return None if passed.are_watched() else passed

    def have_usual_parameters(self, dtype: torch.dtype) -> bool:
        """Whether all weights are plain parameters of this dtype, in the memory of the CPU."""
        return all(has_usual_parameters(module, dtype) for module in self._modules)

    def have_norms_at(self, place: str) -> bool:
        """Whether all residual connections have their norm at this place, "pre" or "post"."""
        norm_first = place == "pre"
        return all(
            module.norm_first == norm_first for module in self._modules if type(module) is Residual
        )

    def parameters(self) -> list[nn.Parameter | None]:
        """The parameters of all modules, in order."""
        return [parameter for module in self._modules for parameter in module._parameters.values()]

    def settings(self) -> list[Any]:
        """The modules, and the numbers and options by which they compute beside their parameters."""
        found: list[Any] = [*self._modules]
        for module in self._modules:
            settings_of = _SETTINGS.get(type(module))
            if settings_of is not None:
                found.append(settings_of(module))
        return found

    def weight_count(self) -> int:
        """How many numbers the parameters of the modules have; a shared parameter counts once."""
        parameters = {
            parameter
            for module in self._modules
            for parameter in module._parameters.values()
            if parameter is not None
        }
        return sum(parameter.numel() for parameter in parameters)

    def are_watched(self) -> bool:
        """Whether the modules must be called now: for hooks, recordings, training mode or what watches the thread."""
        return (
            needs_modules_now()
            or hooks_of_all_modules()
            or any(self._hooks)
            or any(module.training for module in self._modules)
            or any(layer.recordings for layer in self._attention_layers)
        )
