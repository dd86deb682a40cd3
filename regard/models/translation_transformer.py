"""The Transformer of the paper: an encoder that reads, a decoder that writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from regard.caches import Cache, RecurrentState
from regard.errors import ArgumentError, CheckpointError
from regard.layers import FeedForward, MultiHeadAttention, ProjectedContext
from regard.models.padding import align
from regard.models.storage import SavedModel, load_model, save_model
from regard.models.transformer_layers import DecoderLayer, EncoderLayer
from regard.models.translation_config import TranslationConfig
from regard.patterns import Causal, KeySpan, Pattern, parse
from regard.positions import Learned, Rotary, Sinusoidal

KIND = "translation-transformer"


@dataclass
class TranslationState:
    """Where a translation stands: the source as each layer reads it, and each layer's cache of the target."""

    contexts: list[ProjectedContext]
    source_live: KeySpan | None
    caches: list[Cache | RecurrentState]

    @property
    def length(self) -> int:
        """Target ids decoded so far."""
        return self.caches[0].length

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self.contexts, *self.caches))

    def reorder(self, index: torch.Tensor) -> None:
        """Row i goes on from what row `index[i]` was; index: integers (new batch,)."""
        if self.source_live is not None:
            lengths = self.source_live.stop
            assert isinstance(lengths, torch.Tensor)
            self.source_live = KeySpan(0, lengths[index.to(lengths.device)])
        self.contexts = [context.reorder(index) for context in self.contexts]
        for cache in self.caches:
            cache.reorder(index)


class TranslationTransformer(nn.Module):
    """Encoder and decoder of any depth over one vocabulary; any pattern and number of key/value heads in each.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.

    >>> model = TranslationTransformer(TranslationConfig(vocab_size=100, dim=32, heads=4)).eval()
    >>> source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[2, 8]])
    >>> model(source, target).shape
    torch.Size([1, 2, 100])
    """

    Config = TranslationConfig

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.target_embedding = None if config.tied else nn.Embedding(config.vocab_size, config.dim)
        self.to_vocabulary = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.positions: nn.Module | None = None
        if config.positions == "sinusoidal":
            self.positions = Sinusoidal(config.dim)
        elif config.positions == "learned":
            self.positions = Learned(config.max_length, config.dim)
        self.dropout = nn.Dropout(config.dropout)
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
        for layer in self._decoder_layers():
            x = layer(
                x, context, live=aligned.span, context_live=source_live, context_q_start=self._cross_start(0)
            )  # (batch, target_length, dim)
        return aligned.put_back(self._score(x))

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, KeySpan | None]:
        """The source as the decoder reads it, (batch, source_length, dim), padding on the right, and what lives."""
        aligned = align(source)
        x = self._embed(aligned.ids, 0, None)
        for layer in self.encoder:
            x = layer(x, aligned.span)
        return self.encoder_norm(x), aligned.span

    def start(self, source: torch.Tensor) -> TranslationState:
        """The state from which sources (batch, source_length) are translated step by step."""
        context, live = self.encode(source)
        contexts = [layer.cross_attention.project_context(context) for layer in self._decoder_layers()]
        caches = [layer.self_attention.new_cache(len(source)) for layer in self._decoder_layers()]
        return TranslationState(contexts, live, caches)

    def step(self, ids: torch.Tensor, state: TranslationState) -> torch.Tensor:
        """Scores (batch, vocab_size) of the next id, after `ids` (batch,) have followed what the state holds."""
        place = state.length
        x = self._embed(ids[:, None], place, self.target_embedding)
        shift = self._cross_start(place)
        for layer, context, cache in zip(self._decoder_layers(), state.contexts, state.caches, strict=True):
            x = layer(
                x, context, live=None, context_live=state.source_live, context_q_start=shift, cache=cache
            )  # (batch, 1, dim)
        return self._score(x)[:, 0]

    def save(self, folder: str | Path, extra_files: dict[str, str] | None = None) -> None:
        """Write the model into a folder, whole or not at all."""
        save_model(folder, self.config.to_dict(), self.state_dict(), KIND, extra_files)

    @classmethod
    def load(cls, folder: str | Path) -> TranslationTransformer:
        """The model that `save` wrote, or the best one of a training run, ready to translate.

        Raises:
            CheckpointError: missing, damaged, or no TranslationTransformer.
        """
        return cls.from_saved(load_model(folder, KIND), str(folder))

    @classmethod
    def from_saved(cls, saved: SavedModel, where: str) -> TranslationTransformer:
        """The model in what was read from `where`; sizes are compared before any memory is taken for them."""
        try:
            config = TranslationConfig.from_dict(saved.config)
            with torch.device("meta"):
                model = cls(config)
            model.load_state_dict(saved.state, strict=True, assign=True)
        except (ArgumentError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"{where} holds weights that are not those of its config: {error}") from error
        return model.requires_grad_(True).eval()

    def _embed(self, ids: torch.Tensor, start: int, table: nn.Module | None) -> torch.Tensor:
        if ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) < self.config.vocab_size):
            raise ArgumentError(
                f"ids go from {int(ids.min())} to {int(ids.max())}; this vocabulary goes from 0 to "
                f"{self.config.vocab_size - 1}"
            )
        table = self.embedding if table is None else table
        x = table(ids) * math.sqrt(self.config.dim)  # (batch, length, dim)
        if self.positions is not None:
            x = x + self.positions(torch.arange(start, start + ids.shape[1], device=ids.device)).to(x.dtype)
        return self.dropout(x)

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        x = self.decoder_norm(x)
        return F.linear(x, self.embedding.weight) if self.to_vocabulary is None else self.to_vocabulary(x)

    def _cross_start(self, place: int) -> int | None:
        """Where the target stands among the source's places, for a cross pattern that compares the two."""
        return place if parse(self.config.cross_pattern).compares_positions else None

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    def _encoder_layer(self) -> EncoderLayer:
        config = self.config
        attention = self._attention(parse(config.encoder_pattern), config.encoder_kv_heads, turns=True)
        return EncoderLayer(attention, self._feed_forward(), config.norm, config.dropout)

    def _decoder_layer(self) -> DecoderLayer:
        config = self.config
        own = self._attention(Causal() & parse(config.decoder_pattern), config.decoder_kv_heads, turns=True)
        cross = self._attention(parse(config.cross_pattern), config.cross_kv_heads, turns=False)
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
