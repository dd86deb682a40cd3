"""Kernels of vLLM and SGLang for CPUs, which their servers call, beside `attention`."""

from collections.abc import Callable
from dataclasses import replace

import torch

from regard.errors import UnsupportedError
from regard.mechanisms import GatedDelta
from regard.patterns import Causal
from regard.testing.serving_kernels import (
    VLLM_HEAD_DIMS,
    kernels,
    one_row_for_each_token,
    sglang_call,
    vllm_call,
)
from regard_lab.bench.cases import REGARD
from regard_lab.bench.peers import SDPA, SDPA_GROUPED
from regard_lab.bench.work import (
    CAUSAL,
    CAUSAL_WINDOW,
    Attend,
    Case,
    Contender,
    Contest,
    Tensors,
    Work,
)

LATENT_BLOCK = 16  # entries of a block of vLLM's cache of latents
SPLITS = 8  # parts into which SGLang divides the keys of one query


def sglang_decoding_call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, v_dim: int, scale: float
) -> Callable[[], torch.Tensor]:
    """`decode_attention_cpu`: one query for each batch row.

    Args:
        v: None where the values are the first `v_dim` numbers of the keys, as with latents.
    """
    batch, heads = q.shape[:2]
    k_len = k.shape[2]
    operations = kernels()
    queries = one_row_for_each_token(q)
    keys = one_row_for_each_token(k)
    values = keys[..., :v_dim] if v is None else one_row_for_each_token(v)
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


def vllm_latent_call(
    q: torch.Tensor, latents: torch.Tensor, v_dim: int, scale: float
) -> Callable[[], torch.Tensor]:
    """`mla_decode_kvcache`: one query for each batch row over latents, whose first `v_dim` numbers are the values.

    Args:
        latents: (batch, 1, k_len, dim), where k_len is a multiple of 16.
    """
    batch, heads, _, dim = q.shape
    k_len = latents.shape[2]
    operations = kernels()
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
) -> Callable[[], torch.Tensor]:
    """`chunk_gated_delta_rule_cpu` of one batch row in bfloat16, from a state of zeros; its outputs are scaled.

    Args:
        log_decay: (1, heads, length), in float32; strength: the same shape.
    """
    _, heads, length, dim = q.shape
    operations = kernels()
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


def _vllm(work: Work, tensors: Tensors) -> Attend:
    """vLLM's kernel over a cache of blocks, which is written in advance."""
    q, k, v = _served(work, tensors, ("float32", "bfloat16"))
    if work.gated:
        raise UnsupportedError(f"its own code has no kernel for {work.mechanism}")
    if work.latent:
        return vllm_latent_call(q, k, work.v_dim, work.scale)
    if work.head_dim not in VLLM_HEAD_DIMS:
        raise UnsupportedError(f"it has no kernel for heads of {work.head_dim}")
    earlier = _keys_before(work)
    return vllm_call(q, k, v, is_causal=True, earlier=earlier, scale=work.scale)


def _sglang(work: Work, tensors: Tensors) -> Attend:
    q, k, v = _served(work, tensors, ("bfloat16",))
    if work.gated:
        gates = tensors.parameters
        return sglang_gated_delta_call(q, k, v, gates["log_decay"], gates["strength"])
    if work.q_len == 1:
        values = None if work.latent else v
        return sglang_decoding_call(q, k, values, work.v_dim, work.scale)
    earlier = _keys_before(work)
    return sglang_call(q, k, v, is_causal=True, earlier=earlier, scale=work.scale)


def _served(
    work: Work, tensors: Tensors, dtypes: tuple[str, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of a call that a server makes."""
    if work.dtype not in dtypes:
        raise UnsupportedError(f"it computes in {' and '.join(dtypes)}, not in {work.dtype}")
    options = [work.backward, work.dropout, work.cache_dtype, work.shares_keys]
    if any(options) or tensors.bias is not None or (work.mechanism and not work.gated):
        raise UnsupportedError(f"it is measured forward, without options, not on {work}")
    return tensors.q, tensors.k, tensors.v


def _keys_before(work: Work) -> int | None:
    """How many keys before its own a query of a causal window may look at; None without a window."""
    if work.pattern == Causal() or work.q_len == 1:
        return None
    band = work.pattern.band()
    if band is None or band.right != 0 or band.left is None:
        raise UnsupportedError(f"it computes causal attention and its windows, not {work.pattern}")
    return band.left


VLLM = Contender("vLLM", _vllm, package="vllm", device="cpu")
SGLANG = Contender("SGLang", _sglang, package="vllm", device="cpu")
GATED_JUDGED_AT = 256  # keys; the formula of the gated delta rule keeps the state after each
SGLANG_GATED = replace(SGLANG, judged_at=GATED_JUDGED_AT)

SERVED = (VLLM, SGLANG)
HALF = "bfloat16"


def _prefill(length: int, dtype: str = "float32") -> Contest:
    work = Work(length, heads=8, pattern=CAUSAL, dtype=dtype)
    label = f"causal, {length:,} tokens, 8 heads of 64, {dtype}"
    return Contest(label, work, (REGARD, *SERVED, SDPA))


def _causal_window(length: int, dtype: str = "float32") -> Contest:
    work = Work(length, heads=8, pattern=CAUSAL_WINDOW, dtype=dtype)
    label = f"a causal window of 512, {length:,} tokens, 8 heads of 64, {dtype}"
    return Contest(label, work, (REGARD, *SERVED))


def _served_query(k_len: int, kv_heads: int, dtype: str = "float32") -> Contest:
    work = Work(1, k_len, heads=8, kv_heads=kv_heads, dtype=dtype)
    work = replace(work, caches=max(2, 2**27 // work.tensor_bytes))
    label = f"one query, {k_len:,} keys, 8 heads over {kv_heads} of 64, {dtype}"
    return Contest(label, work, (REGARD, *SERVED, SDPA_GROUPED))


def _latents(k_len: int, dtype: str = "float32") -> Contest:
    work = Work(1, k_len, heads=16, kv_heads=1, head_dim=576, v_dim=512, dtype=dtype, latent=True)
    label = f"one query over {k_len:,} latents of 576, 16 heads, {dtype}"
    return Contest(label, work, (REGARD, *SERVED))


def _single(work: Work) -> Work:
    return replace(work, dtype="float32")


def _gated_delta(length: int) -> Contest:
    work = Work(length, heads=4, head_dim=128, pattern=CAUSAL, mechanism=GatedDelta(), dtype=HALF)
    ours = replace(REGARD, judged_at=GATED_JUDGED_AT)
    in_float32 = replace(ours, name="regard in float32", works_on=_single)
    label = f"gated delta, {length:,} tokens, 4 heads of 128, bfloat16"
    return Contest(label, work, (ours, in_float32, SGLANG_GATED))


_SERVING = (
    *(_prefill(length) for length in (16, 512, 2048)),
    *(_prefill(length, HALF) for length in (512, 2048)),
    *(_causal_window(4096, dtype) for dtype in ("float32", HALF)),
    *(_served_query(k_len, 2) for k_len in (256, 1024, 4096)),
    _served_query(4096, 8),
    *(_served_query(k_len, 2, HALF) for k_len in (256, 4096)),
    *(_latents(4096, dtype) for dtype in ("float32", HALF)),
    *(_gated_delta(length) for length in (256, 1024, 4096)),
)

SERVING_CASE = Case(
    "serving",
    "Kernels of vLLM and SGLang for CPUs",
    _SERVING,
    (_SERVING[0], _SERVING[7], _SERVING[-3]),
)
