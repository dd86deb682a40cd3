"""The weights and settings of a `torch.nn.MultiheadAttention` for an attention layer of regard."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.arguments import of_kind
from regard.errors import ArgumentError, UnsupportedError


def settings_of(module: nn.MultiheadAttention) -> dict[str, Any]:
    """The arguments of `MultiHeadAttention` that describe a module of PyTorch.

    Raises:
        ArgumentError: it is no such module, or it reads (length, batch, dim).
        UnsupportedError: it has something that regard's layer lacks.
    """
    of_kind("module", module, nn.MultiheadAttention, "a torch.nn.MultiheadAttention")
    if not module.batch_first:
        raise ArgumentError(
            "the module reads (length, batch, dim), and regard's layer reads (batch, length, dim); transpose its "
            "inputs in your model, then set module.batch_first = True and convert it"
        )
    if module.bias_k is not None or module.add_zero_attn:
        name = "add_zero_attn" if module.add_zero_attn else "add_bias_kv"
        raise UnsupportedError(
            f"the module adds a key of its own to each text ({name}=True), which regard's layer cannot"
        )
    if module.kdim != module.vdim:
        raise UnsupportedError(
            f"the module takes keys of size {module.kdim} and values of size {module.vdim} from two inputs; regard's "
            f"layer projects both from one context"
        )
    return {
        "dim": module.embed_dim, "heads": module.num_heads, "context_dim": module.kdim, "dropout": module.dropout,
        "projection_bias": module.in_proj_bias is not None,
    }  # fmt: skip


def weights_of(module: nn.MultiheadAttention) -> dict[str, torch.Tensor]:
    """The parameters of the module by their names in `MultiHeadAttention`."""
    names = ("to_q", "to_k", "to_v")
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)  # PyTorch stores the three projections as one matrix (3 dim, dim)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    named = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    if module.in_proj_bias is not None:
        named |= {f"{name}.bias": offset for name, offset in zip(names, module.in_proj_bias.chunk(3), strict=True)}
    return named | {f"to_output.{name}": weight for name, weight in module.out_proj.state_dict().items()}
