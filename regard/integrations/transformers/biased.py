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
from regard.integrations.transformers.caches import append_to_cache, cache_among
from regard.integrations.transformers.masks import NO_WEIGHTS

__all__ = [
    "BIASED",
    "attend_as_bart",
    "dropout_in_training",
    "heads_of",
    "project_heads",
    "refuse_weights",
]


def heads_of(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, heads, length, head_dim) of (batch, length, dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def project_heads(x: torch.Tensor, heads: int, *layers: nn.Module) -> list[torch.Tensor]:
    """The heads (batch, heads, length, head_dim) of each layer's output for x, (batch, length, dim)."""
    return [heads_of(layer(x), heads) for layer in layers]


def dropout_in_training(module: nn.Module, probability: float) -> float:
    """The dropout of a call of this module: 0 outside of training."""
    return probability if module.training else 0.0


def refuse_weights(wanted: Any) -> None:
    """Raise an UnsupportedError where weights are wanted, which these modules do not return."""
    if wanted:
        raise UnsupportedError(NO_WEIGHTS)


def attend_as_bart(
    module: Any,
    hidden_states: torch.Tensor,
    encoded: torch.Tensor | None,
    past: Any,
    attention_mask: Any,
) -> torch.Tensor:
    """The output of a decoder's attention, written as BART's: to itself, or to what an encoder made (`encoded`).

    Keys and values of the encoder are computed once for a text and then read from the cache.
    """
    q = heads_of(module.q_proj(hidden_states), module.num_heads)
    k, v = _keys_as_bart(module, hidden_states, encoded, past)
    dropout = dropout_in_training(module, module.dropout or 0.0)
    output, _ = regard_attention(
        module, q, k, v, attention_mask, scaling=module.scaling, dropout=dropout, is_causal=False
    )
    return module.out_proj(output.flatten(2))


def _keys_as_bart(
    module: Any, hidden_states: torch.Tensor, encoded: torch.Tensor | None, past: Any
) -> Any:
    """Keys and values of all tokens of the decoder, or of the encoder's."""
    index = module.layer_idx
    cache = past
    has_two_caches = isinstance(past, EncoderDecoderCache)
    if has_two_caches:
        cache = past.self_attention_cache if encoded is None else past.cross_attention_cache
    is_computed_once = has_two_caches and encoded is not None
    if is_computed_once and past.is_updated.get(index):
        layer = cache.layers[index]
        return layer.keys, layer.values
    read = hidden_states if encoded is None else encoded
    k, v = project_heads(read, module.num_heads, module.k_proj, module.v_proj)
    k, v = append_to_cache(cache, k, v, index)
    if is_computed_once:
        past.is_updated[index] = True
    return k, v


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
        cache = cache_among(layer_past, *others.values())
        k, v = append_to_cache(cache, k, v, self.layer_idx)
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            attention_mask,
            scaling=self.inv_norm_factor,
            is_causal=attention_mask is None,
            dropout=dropout_in_training(self, self.attention_dropout.p),
            position_bias=alibi.unflatten(0, (-1, self.num_heads)),
        )
        output = self.dense(output.flatten(2))
        return dropout_add(output, residual, self.hidden_dropout, self.training), None


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
        projected = self.Wqkv(hidden_states)
        if self.clip_qkv:
            projected = projected.clamp(-self.clip_qkv, self.clip_qkv)
        q, k, v = (heads_of(x, self.n_heads) for x in projected.chunk(3, 2))
        cache = cache_among(past_key_values, *others.values())
        k, v = append_to_cache(cache, k, v, self.layer_idx)
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            None if attention_mask is None else ~attention_mask,
            scaling=self.softmax_scale,
            dropout=dropout_in_training(self, self.attn_dropout_p),
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
        q, k, v = project_heads(hidden_states, self.num_attention_heads, self.q, self.k, self.v)
        dropout = dropout_in_training(self, self.dropout.p)
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
        refuse_weights(output_attentions)
        heads = self.num_attention_heads
        seen = hidden_states if query_states is None else query_states
        # (batch · heads, length, head_dim)
        q = self.transpose_for_scores(self.query_proj(seen), heads)
        k = self.transpose_for_scores(self.key_proj(hidden_states), heads)
        v = self.transpose_for_scores(self.value_proj(hidden_states), heads)
        terms = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        bias = None
        if self.relative_attention:
            distances = self.pos_dropout(rel_embeddings)
            bias = self.disentangled_attention_bias(q, k, relative_pos, distances, terms)
            bias = bias.unflatten(0, (-1, heads)) if isinstance(bias, torch.Tensor) else None
        q, k, v = (x.unflatten(0, (-1, heads)) for x in (q, k, v))
        scale = (q.shape[-1] * terms) ** -0.5
        return _attend_disentangled(self, (q, k, v), attention_mask, scale, bias), None


def _attend_disentangled(
    module: Any,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """The output of DeBERTa's attention. attention_mask: (batch, 1, length, length), 1 for pairs without padding."""
    dropout = dropout_in_training(module, module.dropout.p)
    output, _ = regard_attention(
        module,
        *tensors,
        attention_mask.bool(),
        scaling=scale,
        dropout=dropout,
        position_bias=bias,
    )
    return output.flatten(2)


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
        mixes_heads = self.head_logits_proj is not None or self.head_weights_proj is not None
        if mixes_heads or query_states is not None:
            raise UnsupportedError(
                "this DeBERTa mixes the scores or weights of its heads (talking_head), or has queries of another text, "
                "which regard does not compute; set attn_implementation='eager' for this model"
            )
        q, k, v = self.transpose_for_scores(self.in_proj(hidden_states)).chunk(3, -1)
        q = q + self.transpose_for_scores(self.q_bias[None, None])
        v = v + self.transpose_for_scores(self.v_bias[None, None])
        terms = 1 + len(self.pos_att_type)
        q = q * (q.shape[-1] * terms) ** -0.5
        bias = None
        if self.relative_attention and rel_embeddings is not None and relative_pos is not None:
            distances = self.pos_dropout(rel_embeddings)
            bias = self.disentangled_att_bias(q, k, relative_pos, distances, terms)
            bias = bias if isinstance(bias, torch.Tensor) else None
        return _attend_disentangled(self, (q, k, v), attention_mask, 1.0, bias), None


class RegardWavLMAttention(WavLMAttention):
    """WavLM's attention, whose bias by distance is multiplied by a gate of each query."""

    def torch_multi_head_self_attention(
        self, hidden_states: torch.Tensor, attention_mask: Any, gated_position_bias: torch.Tensor
    ) -> Any:
        """attention_mask: (batch, length), 0 for padding; gated_position_bias: (batch · heads, length, length)."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = project_heads(hidden_states, self.num_heads, *layers)
        unpadded = None if attention_mask is None else attention_mask.eq(1)[:, None, None]
        output, _ = regard_attention(
            self,
            q,
            k,
            v,
            unpadded,
            dropout=dropout_in_training(self, self.dropout),
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
        return attend_as_bart(self, hidden_states, key_value_states, past, attention_mask), None


BIASED: dict[type[nn.Module], type[nn.Module]] = {
    BloomAttention: RegardBloomAttention,
    MptAttention: RegardMptAttention,
    MPNetSelfAttention: RegardMPNetSelfAttention,
    DebertaV2Attention: RegardDebertaV2Attention,
    DebertaAttention: RegardDebertaAttention,
    WavLMAttention: RegardWavLMAttention,
    TrOCRAttention: RegardTrOCRAttention,
}
