"""Packages that compute patterns of softmax attention: local-attention, two Hugging Face models, xFormers."""

from __future__ import annotations

from importlib import import_module

import torch

from regard.errors import UnsupportedError
from regard.patterns import Causal, Full
from regard.patterns.band import Band
from regard_lab.bench.case import Attend, Contender
from regard_lab.bench.work import BIG_BIRD, Tensors, Work


def one_side(work: Work) -> int:
    """The number of keys on each side in a work's window."""
    band = work.pattern.band()
    if band is None or band.left is None or band != Band(left=band.left, right=band.left):
        raise UnsupportedError(f"it computes sliding windows, not {work.pattern}")
    return band.left


def _local_attention(work: Work, tensors: Tensors) -> Attend:
    attend = import_module("local_attention").LocalAttention(
        window_size=one_side(work), look_backward=1, look_forward=1, exact_windowsize=True, autopad=True,
        use_rotary_pos_emb=False,
    )  # fmt: skip
    return lambda: attend(tensors.q, tensors.k, tensors.v)


LOCAL_ATTENTION = Contender("local-attention", _local_attention, package="local_attention")


MODELS = "transformers.models"
BLOCK, RANDOM = 64, 3
_drawn: dict[tuple[int, int], torch.Tensor] = {}


def _longformer(work: Work, tensors: Tensors) -> Attend:
    """Longformer's sliding chunks, which need (batch, length, heads, head_dim)."""
    side = one_side(work)
    config = import_module("transformers").LongformerConfig(
        hidden_size=work.heads * work.head_dim, num_attention_heads=work.heads, attention_window=[2 * side],
        num_hidden_layers=1,
    )  # fmt: skip
    layer = import_module(f"{MODELS}.longformer.modeling_longformer").LongformerSelfAttention(config, 0)

    def attend() -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v))
        scores = layer._sliding_chunks_query_key_matmul(q * work.scale, k, side)
        return layer._sliding_chunks_matmul_attn_probs_value(scores.softmax(-1), v, side).transpose(1, 2)

    return attend


def _big_bird(work: Work, tensors: Tensors) -> Attend:
    """BigBird's block-sparse attention: its own 2 global, 3 neighbouring and 3 random blocks of 64."""
    if work.pattern != BIG_BIRD:
        raise UnsupportedError(f"it computes its own pattern of BigBird, not {work.pattern}")
    home = import_module(f"{MODELS}.big_bird.modeling_big_bird")
    config = import_module("transformers").BigBirdConfig(
        hidden_size=work.heads * work.head_dim, num_attention_heads=work.heads, block_size=BLOCK,
        num_random_blocks=RANDOM, max_position_embeddings=max(4096, work.q_len),
    )  # fmt: skip
    layer = home.BigBirdBlockSparseAttention(config, seed=0).train()  # in eval mode it would always draw block 0
    blocked, band, from_mask, to_mask = home.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(work.batch, work.q_len), BLOCK
    )
    gather = layer.torch_gather_b2

    def noting(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        _drawn[work.q_len, work.heads] = indices
        return gather(x, indices)

    def attend() -> torch.Tensor:
        output, _ = layer.bigbird_block_sparse_attention(
            tensors.q, tensors.k, tensors.v, band, from_mask, to_mask, blocked, blocked, work.heads, RANDOM,
            work.head_dim, BLOCK, BLOCK, work.batch, work.q_len, work.k_len, 0, None, None,
        )  # fmt: skip
        return output.transpose(1, 2)

    layer.torch_gather_b2 = noting  # ty: ignore[invalid-assignment]
    attend()
    layer.torch_gather_b2 = gather
    return attend


def _big_bird_pairs(work: Work, rows: list[int]) -> torch.Tensor:
    """The pairs that BigBird allows, (1, heads, rows, k_len), from the random blocks it drew."""
    drawn = _drawn[work.q_len, work.heads][0]  # (heads, blocks - 2, 3): the first and the last block draw none
    blocks = work.q_len // BLOCK
    allowed = torch.zeros(work.heads, len(rows), blocks, dtype=torch.bool)
    allowed[:, :, [0, blocks - 1]] = True
    for at, row in enumerate(rows):
        block = row // BLOCK
        if block in (0, blocks - 1):
            allowed[:, at] = True
            continue
        allowed[:, at, block - 1 : block + 2] = True
        allowed[:, at].scatter_(1, drawn[:, block - 1], True)
    return allowed.repeat_interleave(BLOCK, dim=2)[None]


LONGFORMER = Contender("HF Longformer", _longformer, package="transformers")
HF_BIG_BIRD = Contender("HF BigBird, its own blocks", _big_bird, package="transformers", own_pattern=_big_bird_pairs)


def _xformers(work: Work, tensors: Tensors) -> Attend:
    if work.pattern not in (Full(), Causal()) or work.q_len != work.k_len or work.group > 1:
        raise UnsupportedError(f"it computes full and square causal attention without groups, not {work}")
    ops = import_module("xformers.ops")
    bias = ops.LowerTriangularMask() if work.pattern == Causal() else None
    q, k, v = (x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v))

    def attend() -> torch.Tensor:
        return ops.memory_efficient_attention(q, k, v, attn_bias=bias).transpose(1, 2)

    return attend


XFORMERS = Contender("xFormers", _xformers, package="xformers", device="cuda")
