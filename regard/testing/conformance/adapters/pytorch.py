"""PyTorch's own functions: `scaled_dot_product_attention`, `nn.MultiheadAttention` and FlexAttention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.testing.conformance.adapters.tensors import TRANSFORMS, WORDS, Tensors, Torch
from regard.testing.conformance.call import CannotAskError, NeutralCall, Results, allowed_pairs


def ask_sdpa(kernel: str | None = None) -> Torch:
    """`scaled_dot_product_attention`, with the kernel that it chooses itself, or with a given one."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor:
        mask = tensors["mask"]
        bias = tensors["bias"]
        if mask is not None and bias is not None:
            raise CannotAskError("mask and bias together")
        arguments: dict[str, Any] = {
            "attn_mask": bias if mask is None else mask,
            "is_causal": call.causal,
            "dropout_p": call.dropout,
            "scale": call.scale,
        }
        if call.sizes[1] != call.k.shape[1]:
            arguments["enable_gqa"] = True
        qkv: Any = (tensors["q"], tensors["k"], tensors["v"])
        if kernel is None:
            return F.scaled_dot_product_attention(*qkv, **arguments)
        with sdpa_kernel(getattr(SDPBackend, kernel)):
            return F.scaled_dot_product_attention(*qkv, **arguments)

    return Torch(attend, (*WORDS, "dropout", "mask_dtype"))


def ask_multihead_attention(need_weights: bool) -> Callable[[NeutralCall], Results]:
    """`nn.MultiheadAttention` with identity matrices as weights, so that it computes attention alone."""
    words = ("mask", "bias", "causal", "gradients", "mask_dtype", *TRANSFORMS)
    if need_weights:
        words = (*words, "weights")

    def ask(call: NeutralCall) -> Results:
        batch, heads, q_len, k_len = call.sizes
        if call.scale is not None:
            raise CannotAskError("scale")
        if call.k.shape[1] != heads:
            raise CannotAskError("grouped heads")
        if call.v.shape[3] != call.q.shape[3]:
            raise CannotAskError("v_dim that is not head_dim")
        if call.bias is not None and (call.mask is not None or call.causal):
            raise CannotAskError("mask and bias together")
        if _differs_by_head(call):
            raise CannotAskError("NaN in one head, which the projections spread")
        # Made here: a layer cannot be made inside of a transform.
        dtype = getattr(torch, call.dtype)
        layer = _layer_of_identities(heads, call.q.shape[3], dtype)
        hidden = None
        if call.mask is not None or call.causal:
            hidden = ~torch.tensor(np.array(allowed_pairs(call)))

        def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
            q, k, v = (_joined_heads(tensors[name]) for name in "qkv")
            mask = tensors["bias"] if hidden is None else hidden
            if call.changed("mask_dtype"):
                mask = tensors["mask"]
            if mask is not None:
                mask = mask.expand(batch, heads, q_len, k_len).reshape(-1, q_len, k_len)
            output, weights = layer(
                q,
                k,
                v,
                attn_mask=mask,
                need_weights=need_weights,
                average_attn_weights=False,
            )
            split = output.unflatten(2, (heads, -1)).transpose(1, 2)
            return {"output": split, "weights": weights} if "weights" in call.wants else split

        return Torch(attend, words)(call)

    return ask


def _differs_by_head(call: NeutralCall) -> bool:
    """Whether some heads have numbers that are not finite, and others have none."""
    for x in (call.q, call.k, call.v):
        wrong = np.logical_not(np.isfinite(x).all(-1))
        if not np.array_equal(wrong, np.repeat(wrong[:, :1], x.shape[1], 1)):
            return True
    return False


def _layer_of_identities(heads: int, head_dim: int, dtype: torch.dtype) -> nn.MultiheadAttention:
    dim = heads * head_dim
    layer = nn.MultiheadAttention(dim, heads, bias=False, batch_first=True, dtype=dtype)
    identity = torch.eye(dim, dtype=dtype)
    layer.in_proj_weight.data = identity.repeat(3, 1)
    layer.out_proj.weight.data = identity
    return layer.requires_grad_(False)


def _joined_heads(x: torch.Tensor | None) -> torch.Tensor:
    assert x is not None
    return x.transpose(1, 2).flatten(2)  # (batch, length, heads · head_dim)


def ask_flex() -> Callable[[NeutralCall], Results]:
    """FlexAttention, uncompiled: masks and biases are functions of positions, which the caller writes."""
    words = (*WORDS, "window", "key_lengths", "first_positions", "softcap", "log_sum_exp")

    def ask(call: NeutralCall) -> Results:
        if call.softcap is not None and call.softcap < 0:
            raise CannotAskError("the caller writes the softcap")
        refuse_windows_of_the_caller(call)
        allowed = torch.tensor(np.array(allowed_pairs(call)))
        shape = allowed.shape
        is_masked = not bool(allowed.all())

        def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
            from torch.nn.attention.flex_attention import flex_attention

            bias = tensors["bias"]
            added = None if bias is None else bias.expand(shape)

            def change(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                if call.softcap is not None:
                    score = call.softcap * torch.tanh(score / call.softcap)
                if added is not None:
                    score = score + added[b, h, i, j]
                if is_masked:
                    score = torch.where(allowed[b, h, i, j], score, -math.inf)
                return score

            asks_lse = "log_sum_exp" in call.wants
            qkv: Any = (tensors["q"], tensors["k"], tensors["v"])
            attend_by_flex: Any = flex_attention
            results = attend_by_flex(
                *qkv,
                score_mod=change,
                scale=call.scale,
                enable_gqa=call.q.shape[1] != call.k.shape[1],
                return_lse=asks_lse,
            )
            if asks_lse:
                return {"output": results[0], "log_sum_exp": results[1]}
            return results

        return Torch(attend, words)(call)

    return ask


def refuse_windows_of_the_caller(call: NeutralCall) -> None:
    """Raise for a wrong window, of a library whose caller writes the mask: the library never sees the window."""
    if call.window is not None and min(limit or 0 for limit in call.window) < 0:
        raise CannotAskError("the caller writes the window")
