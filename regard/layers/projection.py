"""Linear projections, fast for a few rows; and the matrix, dtype and device of a layer that may have replaced one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from regard.backends.native.few_rows import FEW_ROWS, product_of_few_rows
from regard.errors import UnsupportedError


class Projection(nn.Linear):
    """`x Wᵀ + b`, as `torch.nn.Linear`, and fast for a few rows too.

    `torch.ao.quantization.quantize_dynamic` replaces modules of the exact type `torch.nn.Linear` and leaves others as
    they are without a message, so a model that holds a Projection refuses it where linear layers are among the types.
    It differs in speed alone: make it that type first.

    >>> layer = Projection(3, 5)
    >>> for module in layer.modules():
    ...     if type(module) is Projection:
    ...         module.__class__ = nn.Linear
    >>> type(layer).__name__
    'Linear'
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features)."""
        return project(input, self.weight, self.bias)

    @property
    def qconfig(self) -> Any:
        """What PyTorch's quantisation sets on every module of a model, None on those that it leaves; never kept."""
        raise AttributeError("qconfig")

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        if value is None and not _quantises_linear_layers():
            return
        raise UnsupportedError(
            f"torch.ao.quantization replaces modules of the exact type torch.nn.Linear, and this model holds a "
            f"{type(self).__name__}, which it would leave in {self.weight.dtype} without a message. Make them that "
            f"type first, which changes their speed alone: for module in model.modules(): if type(module) is "
            f"regard.layers.projection.Projection: module.__class__ = torch.nn.Linear"
        )


def _quantises_linear_layers() -> bool:
    """Whether the quantisation that sets `qconfig` on a module now was asked for linear layers.

    PyTorch sets None on every module whose exact type is not among those that it was given, and keeps these types in a
    variable of the function that does so. Where it has no such function, the answer is True.
    """
    frame = sys._getframe(1)
    while frame is not None:
        configs = frame.f_locals.get("qconfig_dict")
        if isinstance(configs, Mapping):
            return configs.get(nn.Linear) is not None
        frame = frame.f_back
    return True


def hooks_of_all_modules() -> bool:
    """Whether hooks are set that PyTorch calls with every module, as counters of operations do."""
    module = torch.nn.modules.module
    return bool(
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    )


def needs_call(module: nn.Module) -> bool:
    """Whether a module does more than its class says: it has hooks, is compiled, or has a forward of its own."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
    )


def apply_projection(linear: Any, x: torch.Tensor) -> torch.Tensor:
    """`linear(x)`, in a third of the time for a few vectors where the layer is a Projection without hooks.

    What PyTorch does in the call of a module is needed for hooks, compilers and tracers, and takes longer than a small
    product.
    """
    passes_over_module = (
        type(linear) is Projection
        and type(x) is torch.Tensor
        and not needs_call(linear)
        and not hooks_of_all_modules()
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
    )
    if not passes_over_module:
        return linear(x)
    parameters = linear._parameters
    # DataParallel and FSDP put plain tensors in the place of parameters.
    if "weight" not in parameters or "bias" not in parameters:
        return linear(x)
    return project(x, parameters["weight"], parameters["bias"])


# The forwards of layers that multiply by their weight and do nothing else, also with a parametrised weight.
PLAIN_FORWARDS = (nn.Linear.forward, Projection.forward)


def matrix_of(linear: Any) -> torch.Tensor | None:
    """The matrix of a linear layer whose call is `x Wᵀ + b` and nothing else; None if it may be more.

    Quantised layers, adapters, hooks (also those by which PyTorch prunes and normalises weights) and forwards that were
    set on the layer itself do more: their matrix cannot be used in their place.
    """
    hooked = linear._forward_hooks or linear._forward_pre_hooks
    if type(linear).forward not in PLAIN_FORWARDS or hooked or "forward" in linear.__dict__:
        return None
    return linear.weight


def dtype_and_device_of(linear: Any) -> tuple[torch.dtype, torch.device]:
    """The dtype in which a linear layer computes, and its device; float32 for quantised ones."""
    weight = linear.weight
    if callable(weight) and not isinstance(weight, torch.Tensor):  # PyTorch's quantised layers
        weight = weight()
    return weight.dtype if weight.dtype.is_floating_point else torch.float32, weight.device


def project(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`x Wᵀ + b`, as `torch.nn.functional.linear`, but faster on a CPU when x has a few rows and needs no gradient.

    The compiled library, if there is one, multiplies up to fifteen rows of float32; the bits of a row do not depend on
    the others. One row of bfloat16 uses a matrix-vector product. Every other case calls torch's own function.

    Args:
        x: (..., in_features); weight: (out_features, in_features); bias: (out_features,).

    Returns:
        (..., out_features).

    >>> x, weight = torch.randn(5, 1, 8), torch.randn(130, 8)
    >>> with torch.inference_mode():
    ...     torch.allclose(project(x, weight), torch.nn.functional.linear(x, weight), atol=1e-5)
    True
    """
    if torch.compiler.is_compiling():  # one graph for any number of rows
        return F.linear(x, weight, bias)
    rows = x.numel() // max(1, x.shape[-1])
    if rows <= FEW_ROWS and not torch.is_grad_enabled():
        multiply_few = product_of_few_rows()
        product = None if multiply_few is None else multiply_few(x, weight, bias)
        if product is not None:
            return product
    if rows == 1 and x.dtype == torch.bfloat16 and _takes_vector(x, weight, bias):
        vector = x.reshape(-1)
        product = torch.mv(weight, vector) if bias is None else torch.addmv(bias, weight, vector)
        return product.view(*x.shape[:-1], len(weight))
    return F.linear(x, weight, bias)


def _takes_vector(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether torch's product of a matrix and this vector does what its linear function does."""
    if torch.is_grad_enabled() or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    if bias is not None and len(bias) != len(weight):
        return False
    is_plain = is_plain_tensor(weight)  # one that is sharded or quantised brings its own product
    return is_plain and x.numel() == x.shape[-1]


def is_plain_tensor(weight: object) -> bool:
    return type(weight) in (torch.Tensor, nn.Parameter)
