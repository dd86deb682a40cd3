"""Attention modules of Longformer, LED, BigBird, Falcon and MiniMax, computed by regard with the same results; those of
`biased` and `windowed` too.

These models never call registered attention. Their modules are replaced one by one: the class of a module changes, its
weights stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.models.big_bird.modeling_big_bird import (
    BigBirdAttention,
    BigBirdBlockSparseAttention,
    BigBirdSelfAttention,
)
from transformers.models.falcon.modeling_falcon import FalconAttention, apply_rotary_pos_emb
from transformers.models.led.modeling_led import LEDDecoderAttention, LEDEncoderSelfAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.minimax.modeling_minimax import (
    MiniMaxLightningAttention,
    apply_mask_to_padding_states,
)

from regard.errors import UnsupportedError
from regard.integrations.transformers.attending import ModuleCall, attend, regard_attention
from regard.integrations.transformers.biased import (
    BIASED,
    attend_as_bart,
    dropout_in_training,
    heads_of,
    project_heads,
    refuse_weights,
)
from regard.integrations.transformers.caches import append_to_cache, cache_among
from regard.integrations.transformers.packed import DOCUMENTS
from regard.integrations.transformers.reading import unpadded_keys
from regard.integrations.transformers.recurring import RecurrentCall, compute_recurrence
from regard.integrations.transformers.windowed import WINDOWED
from regard.mechanisms.recurrent import Lightning
from regard.patterns import KeyMask, KeySpan, Pattern, SameBlock, SlidingWindow

__all__ = ["is_exchanged", "replace_modules", "restore_modules"]

# By the mask tensor that they are made from, which all layers of a forward pass share.
_patterns: Any = WeakTensorKeyDictionary()


def _make_once(
    mask: torch.Tensor, name: Any, make: Callable[[], Pattern]
) -> tuple[Pattern, dict[Any, Any]]:
    """A pattern that is made from a mask, with its plans."""
    made = _patterns.setdefault(mask, {})
    if name not in made:
        made[name] = make(), {}
    return made[name]


class _Windowed(nn.Module):
    """Longformer's attention: windows and global tokens in one softmax, and queries of global tokens with weights of
    their own over all keys."""

    one_sided_attn_window_size: int
    num_heads: int
    dropout: float
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    query_global: nn.Linear
    key_global: nn.Linear
    value_global: nn.Linear

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        is_index_masked: torch.Tensor | None = None,
        is_index_global_attn: torch.Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor]:
        """attention_mask: (batch, length), below 0 for padding, above 0 for global tokens, 0 otherwise."""
        refuse_weights(output_attentions)
        x = hidden_states
        window = 2 * self.one_sided_attn_window_size
        unpadded = attention_mask >= 0
        is_global = attention_mask > 0
        pattern, plans = _make_once(
            attention_mask, window, lambda: _longformer_pattern(window, unpadded, is_global)
        )
        q, k, v = project_heads(x, self.num_heads, self.query, self.key, self.value)
        output = self._attend(q, k, v, pattern, plans) * unpadded.unsqueeze(-1)
        if is_global_attn:
            pattern, plans = _make_once(attention_mask, "rows", lambda: unpadded_keys(unpadded))
            output = self._with_global_rows(x, output, is_global, pattern, plans)
        return (output,)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
        plans: dict[Any, Any],
    ) -> torch.Tensor:
        """(batch, length, dim) of these queries."""
        dropout = dropout_in_training(self, self.dropout)
        call = ModuleCall(pattern, 0, dropout=dropout, plans=plans)
        return attend(self, q, k, v, call).transpose(1, 2).flatten(2)

    def _with_global_rows(
        self,
        x: torch.Tensor,
        output: torch.Tensor,
        is_global: torch.Tensor,
        pattern: Pattern,
        plans: dict[Any, Any],
    ) -> torch.Tensor:
        """The output with the rows of global tokens, which have projections of their own."""
        most = int(is_global.sum(1).max())
        # (batch, most): the global rows, and others where a text has fewer
        rows = is_global.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        index = rows.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        q = heads_of(self.query_global(x.gather(1, index)), self.num_heads)
        k, v = project_heads(x, self.num_heads, self.key_global, self.value_global)
        of_rows = self._attend(q, k, v, pattern, plans)
        filled = output.scatter(1, index, of_rows.to(output.dtype))
        return torch.where(is_global.unsqueeze(-1), filled, output)


class RegardLongformerSelfAttention(_Windowed, LongformerSelfAttention):
    """The self-attention of Longformer, computed by regard."""


class RegardLEDEncoderSelfAttention(_Windowed, LEDEncoderSelfAttention):
    """The self-attention of LED's encoder, which is the same as Longformer's."""


class RegardLEDDecoderAttention(LEDDecoderAttention):
    """The attention of LED's decoder to itself and to the encoder's outputs; as BART's."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        cache: Any = None,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool = False,
        past_key_values: Any = None,
    ) -> tuple[torch.Tensor, None, Any]:
        """attention_mask: as registered attention gets it."""
        refuse_weights(output_attentions)
        past = cache_among(cache, past_key_values)
        output = attend_as_bart(self, hidden_states, key_value_states, past, attention_mask)
        return output, None, past


def _longformer_pattern(window: int, unpadded: torch.Tensor, is_global: torch.Tensor) -> Pattern:
    pattern = SlidingWindow(window) & unpadded_keys(unpadded)
    if bool(is_global.any()):
        pattern = pattern | KeyMask(is_global)
    return pattern.canonical()


class RegardBigBirdBlockSparseAttention(BigBirdBlockSparseAttention):
    """BigBird's block-sparse attention in evaluation: near blocks, the first and the last block.

    Its random blocks are all block 0 in evaluation, so each query of the middle counts block 0 once more for each of
    them, which is a bias of log(1 + random blocks). In training they are drawn for each head and layer, and this is
    refused.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        band_mask: torch.Tensor | None = None,
        from_mask: torch.Tensor | None = None,
        to_mask: torch.Tensor | None = None,
        from_blocked_mask: torch.Tensor | None = None,
        to_blocked_mask: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """from_mask: (batch, 1, length, 1), to_mask: (batch, 1, 1, length), with 1 for unpadded positions."""
        if self.training:
            raise UnsupportedError(
                f"BigBird draws {self.num_random_blocks} random blocks for each head and layer while it trains, and "
                f"regard computes those of evaluation alone; call model.eval(), detach(model) to train, or "
                f"config.attention_type='original_full'"
            )
        refuse_weights(others.get("output_attentions"))
        assert from_mask is not None
        assert to_mask is not None
        x = hidden_states
        size = self.block_size
        length = x.shape[1]
        unpadded = to_mask[:, 0, 0] > 0
        pattern, plans = _make_once(to_mask, "keys", lambda: unpadded_keys(unpadded))
        outer = ModuleCall(pattern, 0, plans=plans)
        pattern, plans = _make_once(
            to_mask, size, lambda: _big_bird_pattern(size, length, unpadded)
        )
        bias = x.new_zeros(1, 1, 1, length)
        bias[..., :size] = math.log1p(self.num_random_blocks)
        inner = ModuleCall(pattern, size, bias, plans=plans)

        q, k, v = project_heads(x, self.num_attention_heads, self.query, self.key, self.value)
        first, middle, last = q.split((size, length - 2 * size, size), 2)
        first = attend(self, first, k, v, outer)
        last = attend(self, last, k, v, outer)
        middle = attend(self, middle, k, v, inner)
        # (batch, heads, length, head_dim)
        output = torch.cat((first, middle, last), 2) * (from_mask > 0)
        return output.transpose(1, 2).flatten(2), None


def _big_bird_pattern(size: int, length: int, unpadded: torch.Tensor) -> Pattern:
    # a block, the one before it and the one after it
    near = SameBlock(2 * size) | SameBlock(2 * size, offset=size)
    outer = KeySpan(0, size) | KeySpan(length - size, length)
    return ((near | outer) & unpadded_keys(unpadded)).canonical()


class RegardBigBirdSelfAttention(BigBirdSelfAttention):
    """BigBird's full attention, which it also uses for short inputs; the same as BERT's."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        refuse_weights(others.get("output_attentions"))
        heads = self.num_attention_heads
        cache = cache_among(cache, *others.values())
        is_crossing = encoder_hidden_states is not None
        q = heads_of(self.query(hidden_states), heads)
        if is_crossing and cache is not None and cache.get_seq_length(self.layer_idx) > 0:
            layer = cache.layers[self.layer_idx]
            k, v = layer.keys, layer.values
        else:
            read = hidden_states if encoder_hidden_states is None else encoder_hidden_states
            k, v = project_heads(read, heads, self.key, self.value)
            k, v = append_to_cache(cache, k, v, self.layer_idx)
        mask = encoder_attention_mask if is_crossing else attention_mask
        dropout = dropout_in_training(self, self.dropout.p)
        output, _ = regard_attention(self, q, k, v, mask, dropout=dropout, is_causal=False)
        return output.flatten(2), None


class RegardBigBirdAttention(BigBirdAttention):
    """Holds one of the two modules above, and replaces it by the other when BigBird changes its type of attention."""

    def set_attention_type(self, value: str, layer_idx: int | None = None) -> None:
        super().set_attention_type(value, layer_idx=layer_idx)
        replace_modules(self)


class RegardFalconAttention(FalconAttention):
    """Falcon's attention with rotary positions, which drops no weights in training either."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        alibi: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        refuse_weights(output_attentions)
        assert position_embeddings is not None
        separate = self._split_heads(self.query_key_value(hidden_states))
        q, k, v = (x.transpose(1, 2) for x in separate)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        cache = cache_among(layer_past, *others.values())
        k, v = append_to_cache(cache, k, v, self.layer_idx)
        output, _ = regard_attention(
            self, q, k, v, attention_mask, is_causal=attention_mask is None
        )
        return self.dense(output.flatten(2)), None


class RegardMiniMaxLightningAttention(MiniMaxLightningAttention):
    """MiniMax's lightning attention, which keeps its memory in float32 at least."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None,
        past_key_values: Any = None,
        **others: Any,
    ) -> Any:
        """attention_mask: (batch, length), 0 for padding."""
        cache = cache_among(past_key_values, *others.values())
        x = apply_mask_to_padding_states(self.act_fn(self.qkv_proj(hidden_states)), attention_mask)
        dtype = torch.promote_types(x.dtype, torch.float32)
        q, k, v = heads_of(x.to(dtype), self.num_attention_heads).split(self.head_dim, 3)
        log_decay = -self.slope_rate[None, :, 0].to(dtype).expand(*k.shape[:3])
        # Only names the mechanism: the log decays are the layer's own.
        share = 1 - self.layer_idx / max(1, self.num_hidden_layers - 1)
        mechanism = Lightning(round(share, 3))
        memory = None if cache is None else cache.get_linear_cache(self.layer_idx)
        documents = others.get(DOCUMENTS)
        begins = None
        if documents is not None:
            begins = documents.begins
            documents.readers.append(self)
        gates = {"log_decay": log_decay}
        call = RecurrentCall(mechanism, q, k, v, gates, memory, scale=1.0, begins=begins)
        output, memory = compute_recurrence(call, keeps_memory=cache is not None, module=self)
        if cache is not None:
            cache.set_linear_cache(self.layer_idx, memory)
        output = self.norm(output.transpose(1, 2).flatten(2).to(hidden_states.dtype))
        return self.out_proj(self.output_gate(hidden_states).sigmoid() * output), memory


REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    LongformerSelfAttention: RegardLongformerSelfAttention,
    LEDEncoderSelfAttention: RegardLEDEncoderSelfAttention,
    LEDDecoderAttention: RegardLEDDecoderAttention,
    BigBirdBlockSparseAttention: RegardBigBirdBlockSparseAttention,
    BigBirdSelfAttention: RegardBigBirdSelfAttention,
    BigBirdAttention: RegardBigBirdAttention,
    FalconAttention: RegardFalconAttention,
    MiniMaxLightningAttention: RegardMiniMaxLightningAttention,
    **BIASED,
    **WINDOWED,
}


def is_exchanged(module: nn.Module) -> bool:
    """Whether an attention module has the class of its replacement."""
    return type(module) in REPLACEMENTS.values()


def replace_modules(model: nn.Module) -> None:
    """Give the attention modules that have a replacement its class."""
    _exchange(model, REPLACEMENTS)


def restore_modules(model: nn.Module) -> None:
    """The opposite of `replace_modules`."""
    _exchange(model, {ours: theirs for theirs, ours in REPLACEMENTS.items()})


def _exchange(model: nn.Module, classes: dict[type[nn.Module], type[nn.Module]]) -> None:
    for module in model.modules():
        if type(module) in classes:
            module.__class__ = classes[type(module)]
