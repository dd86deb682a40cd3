"""Attention modules that add a bias of their own to scores, computed by regard with the same results.

Bloom and MPT add ALiBi, MPNet and WavLM a bias by distance, DeBERTa one by content and distance, which their own code
makes. TrOCR's decoder adds none, but computes attention in its own code too. None of them calls registered attention. A
bias for each pair takes as much memory as these models give it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.bloom.modeling_bloom import BloomAttention, dropout_add
from transformers.models.deberta.modeling_deberta import (
    DisentangledSelfAttention as DebertaAttention,
)
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention as DebertaV2Attention,
)
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention
from transformers.models.mpt.modeling_mpt import MptAttention
from transformers.models.trocr.modeling_trocr import TrOCRAttention
from transformers.models.wavlm.modeling_wavlm import WavLMAttention

from regard.errors import UnsupportedError
from regard.integrations.transformers.attending import regard_attention
from regard.integrations.transformers.masks import NO_WEIGHTS
from regard.integrations.transformers.window_cache import cache_among

__all__ = ["BIASED", "attended_beside", "heads_of", "refuse_weights"]


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, heads, length, head_dim) of (batch, length, dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def refuse_weights(wanted: Any) -> None:
    """Raise an UnsupportedError where weights are wanted, which these modules do not return."""
    if wanted:
        raise UnsupportedError(NO_WEIGHTS)


def attended_beside(
    module: Any,
    hidden_states: torch.Tensor,
    seen: torch.Tensor | None,
    past: Any,
    attention_mask: Any,
) -> torch.Tensor:
    """The output of a decoder's attention, written as BART's: to itself, or to what an encoder made (`seen`).

    Keys and values of the encoder are computed once for a text and then read from the cache.
    """
    crossing = seen is not None
    cache = past
    if isinstance(past, EncoderDecoderCache):
        cache = past.cross_attention_cache if crossing else past.self_attention_cache
    q = heads_of(module.q_proj(hidden_states), module.num_heads)
    if crossing and cache is not past and past.is_updated.get(module.layer_idx):
        k, v = (getattr(cache.layers[module.layer_idx], name) for name in ("keys", "values"))
    else:
        read = hidden_states if seen is None else seen
        k, v = (heads_of(layer(read), module.num_heads) for layer in (module.k_proj, module.v_proj))
        if cache is not None:
            k, v = cache.update(k, v, module.layer_idx)
            if crossing and cache is not past:
                past.is_updated[module.layer_idx] = True
    dropout = (module.dropout or 0.0) if module.training else 0.0
    output, _ = regard_attention(
        module, q, k, v, attention_mask, scaling=module.scaling, dropout=dropout, is_causal=False
    )
    return module.out_proj(output.flatten(2))


class RegardBloomAttention(BloomAttention):
    """Bloom's attention, whose ALiBi is a number for each key."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        residual: torch.Tensor,
        alibi: torch.Tensor,
        attention_mask: Any,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        refuse_weights(output_attentions)
        q, k, v = self._reshape(self.query_key_value(hidden_states))
        if (cache := cache_among(layer_past, *others.values())) is not None:
            k, v = cache.update(k, v, self.layer_idx)
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            attention_mask,
            scaling=self.inv_norm_factor,
            is_causal=attention_mask is None,
            dropout=self.attention_dropout.p if self.training else 0.0,
            position_bias=alibi.unflatten(0, (-1, self.num_heads)),
        )
        return dropout_add(
            self.dense(output.flatten(2)), residual, self.hidden_dropout, self.training
        ), None


class RegardMptAttention(MptAttention):
    """MPT's attention, whose ALiBi is a number for each key."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor,
        past_key_values: Any = None,
        attention_mask: Any = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """attention_mask: (batch, 1, q_len, k_len), True for masked pairs."""
        mixed = self.Wqkv(hidden_states)
        mixed = mixed.clamp(-self.clip_qkv, self.clip_qkv) if self.clip_qkv else mixed
        q, k, v = (heads_of(one, self.n_heads) for one in mixed.chunk(3, 2))
        if (cache := cache_among(past_key_values, *others.values())) is not None:
            k, v = cache.update(k, v, self.layer_idx)
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            None if attention_mask is None else ~attention_mask,
            scaling=self.softmax_scale,
            dropout=self.attn_dropout_p if self.training else 0.0,
            position_bias=position_bias[None, ..., -k.shape[2] :],
        )
        return self.out_proj(output.flatten(2)), None


class RegardMPNetSelfAttention(MPNetSelfAttention):
    """MPNet's attention, whose bias by distance all layers share."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_bias: torch.Tensor | None = None,
        output_attentions: bool = False,
        **others: Any,
    ) -> tuple[torch.Tensor]:
        refuse_weights(output_attentions)
        q, k, v = (
            heads_of(layer(hidden_states), self.num_attention_heads)
            for layer in (self.q, self.k, self.v)
        )
        dropout = self.dropout.p if self.training else 0.0
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            attention_mask,
            dropout=dropout,
            position_bias=position_bias,
            is_causal=False,
        )
        return (self.o(output.flatten(2)),)


class RegardDebertaV2Attention(DebertaV2Attention):
    """Disentangled attention: scores of contents, and of contents and distances, which its own code makes."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        output_attentions: bool = False,
        query_states: torch.Tensor | None = None,
        relative_pos: Any = None,
        rel_embeddings: Any = None,
    ) -> tuple[torch.Tensor, None]:
        """attention_mask: (batch, 1, length, length), 1 for pairs of words without padding."""
        refuse_weights(output_attentions)
        seen = hidden_states if query_states is None else query_states
        heads = self.num_attention_heads
        q, k, v = (  # (batch · heads, length, head_dim)
            self.transpose_for_scores(layer(x), heads)
            for layer, x in (
                (self.query_proj, seen),
                (self.key_proj, hidden_states),
                (self.value_proj, hidden_states),
            )
        )
        terms = 1 + sum(one in self.pos_att_type for one in ("c2p", "p2c"))
        bias = None
        if self.relative_attention:
            bias = self.disentangled_attention_bias(
                q, k, relative_pos, self.pos_dropout(rel_embeddings), terms
            )
            bias = bias.unflatten(0, (-1, heads)) if isinstance(bias, torch.Tensor) else None
        q, k, v = (x.unflatten(0, (-1, heads)) for x in (q, k, v))
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            attention_mask.bool(),
            scaling=(q.shape[-1] * terms) ** -0.5,
            dropout=self.dropout.p if self.training else 0.0,
            position_bias=bias,
        )
        return output.flatten(2), None


class RegardDebertaAttention(DebertaAttention):
    """The same in the first DeBERTa, whose queries are scaled before distances are added."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        output_attentions: bool = False,
        query_states: torch.Tensor | None = None,
        relative_pos: Any = None,
        rel_embeddings: Any = None,
    ) -> tuple[torch.Tensor, None]:
        refuse_weights(output_attentions)
        if (
            self.head_logits_proj is not None
            or self.head_weights_proj is not None
            or query_states is not None
        ):
            raise UnsupportedError(
                "this DeBERTa mixes the scores or weights of its heads (talking_head), or has queries of another text, "
                "which regard does not compute; set attn_implementation='eager' for this model"
            )
        q, k, v = self.transpose_for_scores(self.in_proj(hidden_states)).chunk(3, -1)
        q, v = (
            x + self.transpose_for_scores(b[None, None])
            for x, b in ((q, self.q_bias), (v, self.v_bias))
        )
        terms = 1 + len(self.pos_att_type)
        bias = None
        q = q * (q.shape[-1] * terms) ** -0.5
        if self.relative_attention and rel_embeddings is not None and relative_pos is not None:
            bias = self.disentangled_att_bias(
                q, k, relative_pos, self.pos_dropout(rel_embeddings), terms
            )
            bias = bias if isinstance(bias, torch.Tensor) else None
        dropout = self.dropout.p if self.training else 0.0
        output, _ = regard_attention(
            self, q, k, v, attention_mask.bool(), scaling=1.0, dropout=dropout, position_bias=bias
        )
        return output.flatten(2), None


class RegardWavLMAttention(WavLMAttention):
    """WavLM's attention, whose bias by distance is multiplied by a gate of each query."""

    def torch_multi_head_self_attention(
        self, hidden_states: torch.Tensor, attention_mask: Any, gated_position_bias: torch.Tensor
    ) -> Any:
        """attention_mask: (batch, length), 0 for padding; gated_position_bias: (batch · heads, length, length)."""
        layers = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (heads_of(layer(hidden_states), self.num_heads) for layer in layers)
        live = None if attention_mask is None else attention_mask.eq(1)[:, None, None]
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            live,
            dropout=self.dropout if self.training else 0.0,
            position_bias=gated_position_bias.unflatten(0, (-1, self.num_heads)),
        )
        return self.out_proj(output.flatten(2)), None


class RegardTrOCRAttention(TrOCRAttention):
    """The attention of TrOCR's decoder to itself and to the image."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Any = None,
        output_attentions: bool | None = False,
        **others: Any,
    ) -> Any:
        refuse_weights(output_attentions)
        past = cache_among(past_key_values, *others.values())
        return attended_beside(self, hidden_states, key_value_states, past, attention_mask), None


BIASED: dict[type[nn.Module], type[nn.Module]] = {
    BloomAttention: RegardBloomAttention,
    MptAttention: RegardMptAttention,
    MPNetSelfAttention: RegardMPNetSelfAttention,
    DebertaV2Attention: RegardDebertaV2Attention,
    DebertaAttention: RegardDebertaAttention,
    WavLMAttention: RegardWavLMAttention,
    TrOCRAttention: RegardTrOCRAttention,
}
