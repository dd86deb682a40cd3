"""The Transformer of the paper: an encoder that reads, a decoder that writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.caches import Cache, RecurrentState
from regard.caches.given import check_rows
from regard.errors import ArgumentError
from regard.kinds import of_kind
from regard.layers import FeedForward, MultiHeadAttention, ProjectedContext, Projection, project
from regard.models.ids import check_ids, check_step
from regard.models.padding import align
from regard.models.sources import Sources
from regard.models.storable import Storable
from regard.models.transformer_layers import DecoderLayer, EncoderLayer
from regard.models.translation_config import TranslationConfig
from regard.patterns import Causal, KeySpan, Pattern, parse
from regard.positions import Learned, Rotary, Sinusoidal

KIND = "translation-transformer"


@dataclass
class TranslationState:
    """Where a translation stands: the source as each layer reads it, and each layer's cache of the target."""

    sources: Sources
    caches: list[Cache | RecurrentState]

    @property
    def contexts(self) -> list[ProjectedContext]:
        """The keys and values of the sources, for each layer."""
        return self.sources.contexts

    @property
    def length(self) -> int:
        """Target ids decoded so far."""
        return self.caches[0].length

    @property
    def nbytes(self) -> int:
        return self.sources.nbytes + sum(cache.nbytes for cache in self.caches)

    def reorder(self, index: torch.Tensor) -> None:
        """Row i goes on from what row `index[i]` was; index: integers (new batch,)."""
        check_rows(index, self.sources.rows, "state")
        if index.tolist() == list(range(self.sources.rows)):
            return  # as a beam's rows often stay
        for cache in self.caches:
            cache.reorder(index)
        self.sources.reorder(index)


class TranslationTransformer(Storable):
    """Encoder and decoder of any depth over one vocabulary; any pattern and number of key/value heads in each.

    A step of few texts takes the time of reading the weights; on a CPU `model.bfloat16()` halves that, and rounds.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.

    >>> model = TranslationTransformer(TranslationConfig(vocab_size=100, dim=32, heads=4)).eval()
    >>> source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[2, 8]])
    >>> model(source, target).shape
    torch.Size([1, 2, 100])
    """

    KIND = KIND
    Config = TranslationConfig

    def __init__(self, config: TranslationConfig) -> None:
        of_kind("config", config, TranslationConfig, "a TranslationConfig").check_memory()
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.target_embedding = None if config.tied else nn.Embedding(config.vocab_size, config.dim)
        self.to_vocabulary = None if config.tied else Projection(config.dim, config.vocab_size, bias=False)
        self.positions: nn.Module | None = None
        if config.positions == "sinusoidal":
            self.positions = Sinusoidal(config.dim)
        elif config.positions == "learned":
            self.positions = Learned(config.max_length, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.cross_pattern = parse(config.cross_pattern)
        self.encoder = nn.ModuleList(self._encoder_layer() for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(self._decoder_layer() for _ in range(config.decoder_layers))
        last_norm = nn.LayerNorm if config.norm == "pre" else nn.Identity  # "post" ends each layer with its own
        self.encoder_norm, self.decoder_norm = last_norm(config.dim), last_norm(config.dim)
        self._initialise()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of each next target id.

        Args:
            source: ids (batch, source_length), padded with PAD on either side.
            target: ids (batch, target_length) that begin with BEGIN, padded likewise.

        Returns:
            (batch, target_length, vocab_size): place t scores the id that follows target[:, t].
        """
        context, source_live = self.encode(source)
        aligned = align(target)
        x = self._embed(aligned.ids, 0, self.target_embedding)
        looks = {"live": aligned.span, "context_live": source_live, "context_q_start": self._cross_start(0)}
        for layer in self._decoder_layers():
            x = self._through(partial(layer, **looks), x, context)  # (batch, target_length, dim)
        return aligned.put_back(self._score(x))

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, KeySpan | None]:
        """The source as the decoder reads it, (batch, source_length, dim), padding on the right, and what lives."""
        aligned = align(source)
        x = self._embed(aligned.ids, 0, None)
        for layer in self.encoder:
            x = self._through(layer, x, aligned.span)  # (batch, source_length, dim)
        return self.encoder_norm(x), aligned.span

    def start(self, source: torch.Tensor) -> TranslationState:
        """The state from which sources (batch, source_length) are translated step by step."""
        context, live = self.encode(source)
        contexts = [layer.cross_attention.project_context(context) for layer in self._decoder_layers()]
        caches = [layer.self_attention.new_cache(len(source)) for layer in self._decoder_layers()]
        return TranslationState(Sources(contexts, live, shared=self.cross_pattern.query_free), caches)

    def step(self, ids: torch.Tensor, state: TranslationState) -> torch.Tensor:
        """Scores (batch, vocab_size) of the next id, after `ids` (batch,) have followed what the state holds."""
        check_step(ids, state, TranslationState)
        if len(ids) != state.sources.rows:
            raise ArgumentError(f"ids are {len(ids)} for {state.sources.rows} texts; give one for each text")
        place, sources = state.length, state.sources
        looks = {"readers": sources.readers, "mask": sources.mask, "context_q_start": self._cross_start(place)}
        x = self._embed(ids[:, None], place, self.target_embedding)[:, 0]
        for layer, context, cache in zip(self._decoder_layers(), sources.contexts, state.caches, strict=True):
            x = layer.step(x, context, cache, **looks)  # (batch, dim)
        return self._score(x)

    def _through(self, layer: Callable[..., torch.Tensor], *inputs: torch.Tensor | KeySpan | None) -> torch.Tensor:
        if self.config.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def _embed(self, ids: torch.Tensor, start: int, table: nn.Module | None) -> torch.Tensor:
        check_ids(ids, self.config.vocab_size)
        table = self.embedding if table is None else table
        x = table(ids) * math.sqrt(self.config.dim)  # (batch, length, dim)
        if self.positions is not None:
            x = x + self.positions(torch.arange(start, start + ids.shape[1], device=ids.device)).to(x.dtype)
        return self.dropout(x)

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        x = self.decoder_norm(x)
        return project(x, self.embedding.weight) if self.to_vocabulary is None else self.to_vocabulary(x)

    def _cross_start(self, place: int) -> int | None:
        """Where the target stands among the source's places, for a cross pattern that compares the two."""
        return place if self.cross_pattern.compares_positions else None

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    def _encoder_layer(self) -> EncoderLayer:
        config = self.config
        attention = self._attention(parse(config.encoder_pattern), config.encoder_kv_heads, turns=True)
        return EncoderLayer(attention, self._feed_forward(), config.norm, config.dropout)

    def _decoder_layer(self) -> DecoderLayer:
        config = self.config
        own = self._attention(Causal() & parse(config.decoder_pattern), config.decoder_kv_heads, turns=True)
        cross = self._attention(self.cross_pattern, config.cross_kv_heads, turns=False)
        return DecoderLayer(own, cross, self._feed_forward(), config.norm, config.dropout)

    def _attention(self, pattern: Pattern, kv_heads: int | None, turns: bool) -> MultiHeadAttention:
        config = self.config
        return MultiHeadAttention(
            config.dim,
            config.heads,
            kv_heads=kv_heads,
            pattern=pattern,
            positions=Rotary() if turns and config.positions == "rotary" else None,
            dropout=config.attention_dropout,
        )

    def _feed_forward(self) -> FeedForward:
        return FeedForward(self.config.dim, self.config.hidden_dim, self.config.activation, self.config.dropout)

    def _initialise(self) -> None:
        """Matrices as Glorot and Bengio 2010 draw them; embeddings so that their scaled vectors have unit variance."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and "embedding" not in name and not name.startswith("positions"):
                nn.init.xavier_uniform_(parameter)
        for table in (self.embedding, self.target_embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=self.config.dim**-0.5)
