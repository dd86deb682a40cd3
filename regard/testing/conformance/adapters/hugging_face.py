"""The attention functions of transformers, with masks as its `masking_utils` make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.testing.conformance.adapters.pytorch import refuse_windows_of_the_caller
from regard.testing.conformance.adapters.tensors import WORDS, Tensors, Torch
from regard.testing.conformance.call import CannotAskError, NeutralCall, Results, allowed_pairs


def ask_transformers(kind: str) -> Callable[[NeutralCall], Results]:
    """`sdpa_attention_forward`, or the eager functions of Llama, of Gemma 2 (softcap) and of gpt-oss (sinks)."""
    words = (*WORDS, "key_lengths", "window", "first_positions", "dropout")
    if kind == "eager":
        words = (*words, "softcap", "sink", "weights")

    def ask(call: NeutralCall) -> Results:
        refuse_windows_of_the_caller(call)
        if call.softcap is not None and call.sink is not None:
            raise CannotAskError("softcap and sink together")
        if call.softcap is not None and call.softcap < 0:
            raise CannotAskError("the configuration of a model holds the softcap")
        allowed = torch.tensor(np.array(allowed_pairs(call)))
        is_masked = not bool(allowed.all())
        if is_masked and call.bias is not None:
            raise CannotAskError("mask and bias together")
        forward = _forward(kind, call)
        layer: Any = nn.Module()
        layer.num_key_value_groups = call.q.shape[1] // call.k.shape[1]
        layer.is_causal = call.causal
        layer.train()

        def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
            q, k, v = (tensors[name] for name in "qkv")
            assert q is not None
            mask = tensors["bias"]
            if is_masked and kind == "sdpa":
                mask = allowed
            elif is_masked:
                # Masks of eager models hold the lowest number, not -inf.
                zeros = torch.zeros(allowed.shape, dtype=q.dtype)
                lowest = torch.full_like(zeros, torch.finfo(q.dtype).min)
                mask = torch.where(allowed, zeros, lowest)
            options: dict[str, Any] = {"scaling": call.used_scale, "dropout": call.dropout}
            if call.softcap is not None:
                options["softcap"] = call.softcap
            if call.sink is not None:
                layer.sinks = tensors["sink"]
            output, weights = forward(layer, q, k, v, mask, **options)
            results = {"output": output.transpose(1, 2)}
            if "weights" in call.wants:
                results["weights"] = weights
            return results

        return Torch(attend, words)(call)

    return ask


def _forward(kind: str, call: NeutralCall) -> Any:
    if kind == "sdpa":
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward
    if call.softcap is not None:
        from transformers.models.gemma2 import modeling_gemma2

        return modeling_gemma2.eager_attention_forward
    if call.sink is not None:
        from transformers.models.gpt_oss import modeling_gpt_oss

        return modeling_gpt_oss.eager_attention_forward
    from transformers.models.llama import modeling_llama

    return modeling_llama.eager_attention_forward
