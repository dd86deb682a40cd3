"""The base of the decoder-only and the encoder-only model: embeddings, blocks and a norm."""

from __future__ import annotations

import math

import torch
from torch import nn

from regard.arguments import of_kind
from regard.bias import ALiBi
from regard.layers import FeedForward, MultiHeadAttention
from regard.positions import Rotary
from regard_lab.models.base import TextModel, new_positions
from regard_lab.models.language.config import LanguageConfig
from regard_lab.models.layers import Block, new_norm


class Stack(TextModel):
    """Base class of LanguageModel and TextEncoder: embeddings, blocks and a norm. Subclasses add a head."""

    def __init__(self, config: LanguageConfig) -> None:
        of_kind("config", config, LanguageConfig, "a config of this model").check_memory()
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.positions = new_positions(config.positions, config.dim, config.max_length)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(new_block(config, layer) for layer in range(config.layers))
        self.norm = new_norm(config.norm, config.dim, config.epsilon, config.biases)

    def _embed_texts(
        self, ids: torch.Tensor, places: torch.Tensor, vectors: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Vectors (batch, length, dim) of ids at their positions."""
        # Sinusoidal positions have size 1, so embeddings are scaled to match: Vaswani et al. 2017, section 3.4.
        factor = math.sqrt(self.config.dim) if self.config.positions == "sinusoidal" else 1.0
        return self._embed(ids, places, factor=factor, vectors=vectors)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _initialise(self) -> None:
        """Normal initialisation with variance 2 / (5 dim); the last matrix of each part is divided by sqrt(2 layers).

        Source: Transformers without Tears, Nguyen and Salazar 2019, section 2.2; Radford et al. 2019, section 2.3.
        """
        deviation = math.sqrt(2 / (5 * self.config.dim))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=deviation)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self._initialise_head(deviation)
        for block in self._blocks():
            for last in (block.attention.to_output, block.feed_forward.narrow):
                nn.init.normal_(last.weight, std=deviation / math.sqrt(2 * self.config.layers))

    def _initialise_head(self, deviation: float) -> None:
        """Initialise parameters of the head that belong to no Linear or Embedding."""


def new_block(config: LanguageConfig, layer: int) -> Block:
    """The block of a layer, counted from 0."""
    attention = MultiHeadAttention(
        config.dim,
        config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        pattern=config.pattern_of(layer),
        mechanism=config.mechanism_of(layer),
        positions=Rotary(config.rotary_base) if config.positions == "rotary" else None,
        dropout=config.attention_dropout,
        projection_bias=config.biases,
    )
    feed_forward = FeedForward(config.dim, config.hidden_dim, config.activation, config.dropout, config.biases)
    return Block(
        attention,
        feed_forward,
        norm=config.norm,
        epsilon=config.epsilon,
        norm_bias=config.biases,
        bias=ALiBi() if config.positions == "alibi" else None,
        dropout=config.dropout,
    )
