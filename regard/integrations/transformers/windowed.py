"""Attention modules of image encoders that add a bias of their own to scores, computed by regard with the same results.

Modules of Swin get the windows of images as batch rows, and add a learned bias by offset and a mask of windows: Donut,
MaskFormer and CLAP as the first Swin, Swin v2 and Swin2SR with scores of cosines. SAM, SAM-HQ, GOT-OCR 2 and ViTDet add
scores of the query and learned vectors, one for each distance of rows and one for each distance of columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.clap.modeling_clap import ClapAudioSelfAttention
from transformers.models.donut.modeling_donut_swin import DonutSwinSelfAttention
from transformers.models.got_ocr2.modeling_got_ocr2 import GotOcr2VisionAttention
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinSelfAttention
from transformers.models.sam.modeling_sam import SamVisionAttention, SamVisionSdpaAttention
from transformers.models.sam_hq.modeling_sam_hq import (
    SamHQVisionAttention,
    SamHQVisionSdpaAttention,
)
from transformers.models.swin2sr.modeling_swin2sr import Swin2SRSelfAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention
from transformers.models.vitdet.modeling_vitdet import VitDetAttention, get_rel_pos

from regard.integrations.transformers.attending import regard_attention
from regard.integrations.transformers.biased import (
    dropout_in_training,
    project_heads,
    refuse_weights,
)

__all__ = ["WINDOWED"]

LARGEST_LOGIT_SCALE = math.log(100)
LARGEST_BIAS = 16  # of Swin v2


class _InWindows:
    """The attention of both kinds of Swin: the cells of a window, (batch · windows, cells, dim), look at each other.

    Classes that derive from it say how scores are made of queries and keys, and which bias is added to them.
    """

    mask_factor = 1  # of the mask, where its own code adds it

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[torch.Tensor]:
        """attention_mask: numbers to add, (windows, cells, cells), for the windows of each image."""
        refuse_weights(output_attentions)
        layers = (self.query, self.key, self.value)
        q, k, v = project_heads(hidden_states, self.num_attention_heads, *layers)
        q, k, scale = self._with_scale(q, k)
        bias = self._bias_by_offset()
        if attention_mask is not None:
            mask = self.mask_factor * attention_mask
            of_image = bias + mask[:, None]  # (windows, heads, cells, cells)
            bias = of_image.repeat(len(q) // len(mask), 1, 1, 1)
        dropout = dropout_in_training(self, self.dropout.p)
        output, _ = regard_attention(
            self, q, k, v, None, scaling=scale, dropout=dropout, is_causal=False, position_bias=bias
        )
        return (output.flatten(2),)

    def _bias_of_table(self: Any, table: torch.Tensor) -> torch.Tensor:
        """(1, heads, cells, cells) of a table (offsets, heads)."""
        height, width = self.window_size
        by_pair = table[self.relative_position_index.flatten()]
        return by_pair.unflatten(0, (height * width, height * width)).permute(2, 0, 1)[None]


class _WithTable(_InWindows):
    """The attention of Swin, whose bias is a table by offset."""

    def _with_scale(self: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
        return q, k, self.attention_head_size**-0.5

    def _bias_by_offset(self: Any) -> torch.Tensor:
        return self._bias_of_table(self.relative_position_bias_table)


class _WithCosines(_InWindows):
    """The attention of Swin v2: cosines times a learned scale, and a bias that a small network makes of offsets."""

    mask_factor = 2

    def _with_scale(self: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
        scale = self.logit_scale.clamp(max=LARGEST_LOGIT_SCALE).exp()
        return functional.normalize(q, dim=-1) * scale, functional.normalize(k, dim=-1), 1.0

    def _bias_by_offset(self: Any) -> torch.Tensor:
        table = self.continuous_position_bias_mlp(self.relative_coords_table).flatten(0, -2)
        return LARGEST_BIAS * self._bias_of_table(table).sigmoid()


def _attend_with_distances(
    module: Any,
    hidden_states: torch.Tensor,
    heads: int,
    vectors_of: Callable[..., torch.Tensor] | None,
) -> torch.Tensor:
    """The output (batch, height, width, dim) of an image or of its windows.

    vectors_of: makes of a table of distances the vectors (rows, rows, head_dim) of each query row and key row, or those
    of columns; None without distances.

    The score of a query and a key is the sum of three: q · k, that of their rows, and that of their columns. The last
    two depend on the query and on the key's row or column alone. So they become further numbers of the query, and a key
    gets ones at its own row and column, which pick its two out of them: no number is stored for each pair.
    """
    _, height, width, _ = hidden_states.shape
    q, k, v = (
        x.transpose(1, 2)
        for x in module.qkv(hidden_states.flatten(1, 2)).unflatten(-1, (3, heads, -1)).unbind(2)
    )
    q_scaled = q * module.scale
    if vectors_of is not None:
        of_rows = vectors_of(height, height, module.rel_pos_h)
        of_columns = vectors_of(width, width, module.rel_pos_w)
        by_cell = q.unflatten(2, (height, width))
        row_scores = torch.einsum("bhyxd,ykd->bhyxk", by_cell, of_rows)
        column_scores = torch.einsum("bhyxd,xkd->bhyxk", by_cell, of_columns)
        q_scaled = torch.cat([q_scaled, row_scores.flatten(2, 3), column_scores.flatten(2, 3)], -1)
        k = torch.cat([k, _ones_at_cells(height, width, k)], -1)
    dropout = dropout_in_training(module, getattr(module, "dropout", 0.0))
    output, _ = regard_attention(
        module, q_scaled, k, v, None, scaling=1.0, dropout=dropout, is_causal=False
    )
    return module.proj(output.flatten(2).unflatten(1, (height, width)))


def _ones_at_cells(height: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """For each cell a one at its row and a one at its column, (batch, heads, height · width, height + width)."""
    rows = torch.eye(height, dtype=like.dtype, device=like.device).repeat_interleave(width, 0)
    columns = torch.eye(width, dtype=like.dtype, device=like.device).repeat(height, 1)
    ones = torch.cat([rows, columns], -1)
    return ones.expand(*like.shape[:2], -1, -1)


class _WithDistances:
    """The attention of SAM's image encoder."""

    def forward(
        self: Any, hidden_states: torch.Tensor, output_attentions: bool | None = None
    ) -> Any:
        refuse_weights(output_attentions)
        vectors_of = self.get_rel_pos if self.use_rel_pos else None
        heads = self.num_attention_heads
        return _attend_with_distances(self, hidden_states, heads, vectors_of), None


class RegardDonutSwinSelfAttention(_WithTable, DonutSwinSelfAttention):
    """Attention in the windows of Donut's Swin."""


class RegardMaskFormerSwinSelfAttention(_WithTable, MaskFormerSwinSelfAttention):
    """Attention in the windows of MaskFormer's Swin."""


class RegardClapAudioSelfAttention(_WithTable, ClapAudioSelfAttention):
    """Attention in the windows of CLAP's spectrograms."""


class RegardSwinv2SelfAttention(_WithCosines, Swinv2SelfAttention):
    """Attention in the windows of Swin v2."""


class RegardSwin2SRSelfAttention(_WithCosines, Swin2SRSelfAttention):
    """Attention in the windows of Swin2SR."""


class RegardSamVisionAttention(_WithDistances, SamVisionAttention):
    """Attention of SAM's image encoder."""


class RegardSamVisionSdpaAttention(_WithDistances, SamVisionSdpaAttention):
    """The same, of models that were made with sdpa attention."""


class RegardSamHQVisionAttention(_WithDistances, SamHQVisionAttention):
    """Attention of SAM-HQ's image encoder."""


class RegardSamHQVisionSdpaAttention(_WithDistances, SamHQVisionSdpaAttention):
    """The same, of models that were made with sdpa attention."""


class RegardGotOcr2VisionAttention(_WithDistances, GotOcr2VisionAttention):
    """Attention of GOT-OCR 2's image encoder."""


class RegardVitDetAttention(VitDetAttention):
    """ViTDet's attention in windows and in whole images."""

    def forward(
        self, hidden_state: torch.Tensor, output_attentions: bool = False
    ) -> tuple[torch.Tensor]:
        refuse_weights(output_attentions)
        vectors_of = get_rel_pos if self.use_relative_position_embeddings else None
        return (_attend_with_distances(self, hidden_state, self.num_heads, vectors_of),)


WINDOWED: dict[type[nn.Module], type[nn.Module]] = {
    DonutSwinSelfAttention: RegardDonutSwinSelfAttention,
    MaskFormerSwinSelfAttention: RegardMaskFormerSwinSelfAttention,
    ClapAudioSelfAttention: RegardClapAudioSelfAttention,
    Swinv2SelfAttention: RegardSwinv2SelfAttention,
    Swin2SRSelfAttention: RegardSwin2SRSelfAttention,
    SamVisionAttention: RegardSamVisionAttention,
    SamVisionSdpaAttention: RegardSamVisionSdpaAttention,
    SamHQVisionAttention: RegardSamHQVisionAttention,
    SamHQVisionSdpaAttention: RegardSamHQVisionSdpaAttention,
    GotOcr2VisionAttention: RegardGotOcr2VisionAttention,
    VitDetAttention: RegardVitDetAttention,
}
