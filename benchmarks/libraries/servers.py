"""Kernels of vLLM and SGLang for CPUs, which their servers call, beside `attention`."""

from dataclasses import replace

import torch

from regard.errors import UnsupportedError
from regard.mechanisms import GatedDelta
from regard.patterns import Causal
from regard.testing import serving_kernels as serving
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


def _vllm(work: Work, tensors: Tensors) -> Attend:
    """vLLM's kernel over a cache of blocks, which is written in advance."""
    q, k, v = _served(work, tensors, ("float32", "bfloat16"))
    if work.gated:
        raise UnsupportedError(f"its own code has no kernel for {work.mechanism}")
    if work.latent:
        return serving.vllm_latent_call(q, k, work.v_dim, work.scale)
    if work.head_dim not in serving.VLLM_HEAD_DIMS:
        raise UnsupportedError(f"it has no kernel for heads of {work.head_dim}")
    earlier = _keys_before(work)
    return serving.vllm_call(q, k, v, is_causal=True, earlier=earlier, scale=work.scale)


def _sglang(work: Work, tensors: Tensors) -> Attend:
    q, k, v = _served(work, tensors, ("bfloat16",))
    if work.gated:
        gates = tensors.parameters
        return serving.sglang_gated_delta_call(q, k, v, gates["log_decay"], gates["strength"])
    if work.q_len == 1:
        values = None if work.latent else v
        return serving.sglang_decoding_call(q, k, values, work.v_dim, work.scale)
    earlier = _keys_before(work)
    return serving.sglang_call(q, k, v, is_causal=True, earlier=earlier, scale=work.scale)


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
