"""PyTorch's FlexAttention, compiled, with the pattern as arithmetic and its block mask made beforehand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from regard.bench.case import Attend, Contender
from regard.bench.subjects import formula
from regard.bench.work import Tensors, Work


def _prepare(work: Work, tensors: Tensors) -> Attend:
    attend, block_mask = _compiled(), _block_mask(work)
    return lambda: attend(tensors.q, tensors.k, tensors.v, block_mask=block_mask, enable_gqa=work.group > 1)


def _compiled() -> Callable[..., Any]:
    """Compiled anew for each work: beyond a number of recompilations it would silently run uncompiled."""
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


FLEX = Contender("FlexAttention", _prepare, compiles=True)
