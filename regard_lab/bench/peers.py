"""The libraries that regard is compared with, each with the best settings of its documentation.

A peer is a `Contender`; if its package is not installed, the report lists it as missing."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import UnsupportedError
from regard.patterns import Causal, Full
from regard.patterns.band import Band
from regard_lab.bench.work import Attend, Contender, Tensors, Work, formula


def _best(work: Work, tensors: Tensors) -> Attend:
    """SDPA without a mask, its fast path; a learned bias is passed as a float mask."""
    q, k, v = _numbers(work, tensors)
    is_causal = is_square_causal(work) and tensors.bias is None
    return partial(
        scaled_dot_product_attention,
        q,
        k,
        v,
        attn_mask=tensors.bias,
        dropout_p=work.dropout,
        is_causal=is_causal,
        enable_gqa=work.group > 1,
    )


def _masked(work: Work, tensors: Tensors) -> Attend:
    """SDPA with the pattern as a boolean mask, created in advance."""
    q, k, v = _numbers(work, tensors)
    return partial(
        scaled_dot_product_attention,
        q,
        k,
        v,
        attn_mask=work.pattern.dense(work.q_len, work.k_len).to(work.device),
        dropout_p=work.dropout,
        enable_gqa=work.group > 1,
    )


def _repeated(work: Work, tensors: Tensors) -> Attend:
    """SDPA with keys and values repeated for each query head, as in Hugging Face models."""
    q, k, v = _numbers(work, tensors)
    is_causal = is_square_causal(work)

    def attend() -> torch.Tensor:
        keys = k.repeat_interleave(work.group, dim=1)
        values = v.repeat_interleave(work.group, dim=1)
        return scaled_dot_product_attention(q, keys, values, is_causal=is_causal)

    return attend


def _numbers(work: Work, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v in the dtype of the cache: SDPA needs equal dtypes, and widening the cache each time costs more."""
    q, k, v = tensors.q, tensors.k, tensors.v
    if work.cache_dtype is None:
        return q, k, v
    dtype = getattr(torch, work.cache_dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def is_square_causal(work: Work) -> bool:
    """Whether it is causal, with as many queries as keys; an UnsupportedError for what needs a mask."""
    square = work.pattern == Causal() and work.q_len == work.k_len
    if not square and work.pattern != Full():
        raise UnsupportedError(
            f"without a mask it computes full and square causal attention, not {work.pattern}"
        )
    return square


SDPA = Contender("SDPA", _best, own_dropout=True)
SDPA_GROUPED = Contender("SDPA enable_gqa", _best)
SDPA_REPEATED = Contender("SDPA repeat_interleave", _repeated)
SDPA_SOFTMAX = Contender(
    "SDPA, softmax", _best, works_on=lambda work: replace(work, mechanism=None)
)
SDPA_MASK = Contender("SDPA bool mask", _masked)


def _flex(work: Work, tensors: Tensors) -> Attend:
    attend = _compiled()
    block_mask = _block_mask(work)
    return lambda: attend(
        tensors.q, tensors.k, tensors.v, block_mask=block_mask, enable_gqa=work.group > 1
    )


def _compiled() -> Callable[..., Any]:
    """FlexAttention compiled for each work; after too many recompilations it would silently run uncompiled."""
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False)


@cache
def _block_mask(work: Work) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    rule = formula(work.pattern, work.k_len)
    return create_block_mask(
        lambda batch, head, i, j: rule(i, j), None, None, work.q_len, work.k_len, device=work.device
    )


FLEX = Contender("FlexAttention", _flex, compiles=True)


def one_side(work: Work) -> int:
    """The number of keys on each side in a work's window."""
    band = work.pattern.band()
    if band is None or band.left is None or band != Band(left=band.left, right=band.left):
        raise UnsupportedError(f"it computes sliding windows, not {work.pattern}")
    return band.left


def _local_attention(work: Work, tensors: Tensors) -> Attend:
    attend = import_module("local_attention").LocalAttention(
        window_size=one_side(work),
        look_backward=1,
        look_forward=1,
        exact_windowsize=True,
        autopad=True,
        use_rotary_pos_emb=False,
    )
    return lambda: attend(tensors.q, tensors.k, tensors.v)


LOCAL_ATTENTION = Contender("local-attention", _local_attention, package="local_attention")


def _longformer(work: Work, tensors: Tensors) -> Attend:
    """Longformer's sliding chunks, which need (batch, length, heads, head_dim)."""
    side = one_side(work)
    config = import_module("transformers").LongformerConfig(
        hidden_size=work.heads * work.head_dim,
        num_attention_heads=work.heads,
        attention_window=[2 * side],
        num_hidden_layers=1,
    )
    module = import_module("transformers.models.longformer.modeling_longformer")
    layer = module.LongformerSelfAttention(config, 0)

    def attend() -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v))
        scores = layer._sliding_chunks_query_key_matmul(q * work.scale, k, side)
        weights = scores.softmax(-1)
        outputs = layer._sliding_chunks_matmul_attn_probs_value(weights, v, side)
        return outputs.transpose(1, 2)

    return attend


LONGFORMER = Contender("HF Longformer", _longformer, package="transformers")
