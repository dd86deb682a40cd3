"""What a decoder alone and an encoder alone have in common: embeddings, blocks and a norm."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.bias import ALiBi
from regard.kinds import of_kind
from regard.layers import FeedForward, MultiHeadAttention
from regard.models.block import Block, new_norm
from regard.models.ids import check_ids
from regard.models.language.config import LanguageConfig
from regard.models.storable import Storable
from regard.patterns import KeySpan
from regard.positions import Learned, Rotary, Sinusoidal


class Stack(Storable):
    """Embeddings with their positions, blocks of attention, and the norm after them; a model adds its head."""

    def __init__(self, config: LanguageConfig) -> None:
        of_kind("config", config, LanguageConfig, "a config of this model").check_memory()
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.positions: nn.Module | None = None
        if config.positions == "sinusoidal":
            self.positions = Sinusoidal(config.dim)
        elif config.positions == "learned":
            self.positions = Learned(config.max_length, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(new_block(config, layer) for layer in range(config.layers))
        self.norm = new_norm(config.norm, config.dim, config.epsilon, config.biases)

    def _through(self, block: Block, x: torch.Tensor, live: KeySpan | None) -> torch.Tensor:
        if self.config.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, live, use_reentrant=False)
        return block(x, live)

    def _embed(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        check_ids(ids, self.config.vocab_size)
        x = self.embedding(ids)  # (batch, length, dim)
        if self.config.positions == "sinusoidal":
            x = x * math.sqrt(self.config.dim)  # as large as the waves: Vaswani et al. 2017, section 3.4
        if self.positions is not None:
            x = x + self.positions(places).to(x.dtype)
        return self.dropout(x)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _initialise(self) -> None:
        """Normal numbers of variance 2 / (5 dim), what is added to the residual divided by sqrt(2 layers).

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
        """For a head whose numbers are in no Linear or Embedding."""


def new_block(config: LanguageConfig, layer: int) -> Block:
    """A layer, counted from 0, as its config says."""
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
