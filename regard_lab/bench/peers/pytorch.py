"""Attention in PyTorch itself: scaled_dot_product_attention, FlexAttention, and Bahdanau's score as a broadcast sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import UnsupportedError
from regard.patterns import Causal, Full
from regard_lab.bench.case import Attend, Contender
from regard_lab.bench.work import Tensors, Work, formula


def _best(work: Work, tensors: Tensors) -> Attend:
    """SDPA without a mask, its fast path; a learned bias is passed as a float mask."""
    q, k, v = _numbers(work, tensors)
    causal = _is_causal(work) and tensors.bias is None
    return partial(
        scaled_dot_product_attention, q, k, v, attn_mask=tensors.bias, dropout_p=work.dropout, is_causal=causal,
        enable_gqa=work.group > 1,
    )  # fmt: skip


def _masked(work: Work, tensors: Tensors) -> Attend:
    """SDPA with the pattern as a boolean mask, created in advance."""
    mask = work.pattern.dense(work.q_len, work.k_len).to(work.device)
    options: dict[str, Any] = {"dropout_p": work.dropout, "enable_gqa": work.group > 1}
    return partial(scaled_dot_product_attention, *_numbers(work, tensors), attn_mask=mask, **options)


def _repeated(work: Work, tensors: Tensors) -> Attend:
    """SDPA with keys and values repeated for each query head, as in Hugging Face models."""
    q, k, v = _numbers(work, tensors)
    causal = _is_causal(work)

    def attend() -> torch.Tensor:
        for_each_head = [x.repeat_interleave(work.group, dim=1) for x in (k, v)]
        return scaled_dot_product_attention(q, for_each_head[0], for_each_head[1], is_causal=causal)

    return attend


def _numbers(work: Work, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v in the dtype of the cache: SDPA needs equal dtypes, and widening the cache each time costs more."""
    q, k, v = tensors.q, tensors.k, tensors.v
    if work.cache_dtype is None:
        return q, k, v
    dtype = getattr(torch, work.cache_dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _is_causal(work: Work) -> bool:
    square = work.pattern == Causal() and work.q_len == work.k_len
    if not square and work.pattern != Full():
        raise UnsupportedError(f"without a mask it computes full and square causal attention, not {work.pattern}")
    return square


SDPA = Contender("SDPA", _best, own_dropout=True)
SDPA_GROUPED = Contender("SDPA enable_gqa", _best)
SDPA_REPEATED = Contender("SDPA repeat_interleave", _repeated)
SDPA_SOFTMAX = Contender("SDPA, softmax", _best, works_on=lambda work: replace(work, mechanism=None))
SDPA_MASK = Contender("SDPA bool mask", _masked)


def _flex(work: Work, tensors: Tensors) -> Attend:
    attend, block_mask = _compiled(), _block_mask(work)
    return lambda: attend(tensors.q, tensors.k, tensors.v, block_mask=block_mask, enable_gqa=work.group > 1)


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


def _broadcast(work: Work, tensors: Tensors) -> Attend:
    learned = tensors.parameters
    if set(learned) != {"query_weight", "key_weight", "energy"} or work.pattern != Full() or work.group > 1:
        raise UnsupportedError(f"it computes full additive attention without groups, not {work}")

    def attend() -> torch.Tensor:
        q, k = tensors.q @ learned["query_weight"].mT, tensors.k @ learned["key_weight"].mT
        pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (batch, heads, q_len, k_len, hidden)
        return torch.einsum("bhqkd,hd->bhqk", pairs, learned["energy"]).softmax(-1) @ tensors.v

    return attend


BROADCAST = Contender("tanh of a broadcast sum", _broadcast, judged_at=256)
