"""The Transformer that translates: an encoder reads the source, a decoder writes the target."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from regard.arguments import a_string, of_kind
from regard.backends.native.program import MOST_ROWS, Choice, Written
from regard.core.problem import check_combination
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import FeedForward, MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache, RecurrentState
from regard.layers.caches.base import checked_rows
from regard.layers.feed_forward import ACTIVATIONS
from regard.mechanisms import parse as parse_mechanism
from regard.mechanisms.base import Sizes
from regard.patterns import Causal, KeySpan, Pattern, parse
from regard.positions import Rotary
from regard.reprs import Described, brief
from regard_lab.models.base import (
    Aligned,
    Settings,
    TranslationBase,
    align,
    check_ids,
    check_number,
    check_shape_of_ids,
    check_step,
    new_positions,
)
from regard_lab.models.encoder_program import EncoderProgram
from regard_lab.models.flat_decoder import FlatDecoder
from regard_lab.models.flat_target import FlatTarget
from regard_lab.models.layers import NORM_PLACES, DecoderLayer, EncoderLayer
from regard_lab.models.state import Sources

KIND = "translation-transformer"
POSITIONS = ("sinusoidal", "learned", "rotary")


@brief
@dataclass(frozen=True, kw_only=True)
class TranslationConfig(Settings):
    """The config of a TranslationTransformer.

    Args:
        vocab_size: size of the vocabulary that source and target share.
        dim: size of the vectors.
        heads: number of query heads.
        hidden_dim: inside the feed-forward; 0 for 4 · dim.
        encoder_layers, decoder_layers: number of layers on each side.
        encoder_kv_heads, decoder_kv_heads, cross_kv_heads: numbers of key/value heads; `heads` by default.
        encoder_pattern, decoder_pattern, cross_pattern: allowed pairs, as text. The decoder's is ANDed with causal; the
            cross pattern compares positions of the target with positions of the source.
        encoder_mechanism: how the scores of the encoder's self-attention become weights, as a text of
            `regard.mechanisms.parse`. The decoder's attention is softmax.
        positions: "sinusoidal", "learned" (up to max_length) or "rotary".
        max_length: number of learned positions.
        norm: "pre" (before each part) or "post" (after it).
        tied: use one matrix for source, target and output vocabulary.
        dropout: after embeddings and in residuals.
        attention_dropout: of the attention weights.
        activation: of the feed-forward, see FeedForward.
        gradient_checkpointing: in training, store only the input of each layer and compute the rest again in the
            backward pass.

    Raises:
        ArgumentError: invalid sizes or choices.
        UnsupportedError: a mechanism that does not support the encoder's pattern, padding or dropout.

    >>> TranslationConfig(vocab_size=100, dim=32, heads=4).hidden_dim
    128
    """

    vocab_size: int
    dim: int = 128
    heads: int = 4
    hidden_dim: int = 0
    encoder_layers: int = 2
    decoder_layers: int = 2
    encoder_kv_heads: int | None = None
    decoder_kv_heads: int | None = None
    cross_kv_heads: int | None = None
    encoder_pattern: str = "full"
    decoder_pattern: str = "causal"
    cross_pattern: str = "full"
    encoder_mechanism: str = "softmax"
    positions: str = "sinusoidal"
    max_length: int = 512
    norm: str = "pre"
    tied: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: str = "relu"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.hidden_dim == 0 and isinstance(self.dim, int):
            object.__setattr__(self, "hidden_dim", 4 * self.dim)
        self.check_sizes(
            "vocab_size",
            "dim",
            "heads",
            "hidden_dim",
            "encoder_layers",
            "decoder_layers",
            "max_length",
        )
        for name in ("encoder_kv_heads", "decoder_kv_heads", "cross_kv_heads"):
            self._check_kv_heads(name)
        if self.dim % self.heads or self.dim % 2:
            raise ArgumentError(
                f"dim is {self.dim}; it must be even and a multiple of heads, {self.heads}"
            )
        head_dim = self.dim // self.heads
        if self.positions == "rotary" and head_dim % 2:
            raise ArgumentError(
                f"rotary rotates pairs, and dim / heads is {head_dim}; it must be even"
            )
        for name in ("encoder_pattern", "decoder_pattern", "cross_pattern"):
            self._check_pattern(name)
        self.check_choice("positions", POSITIONS)
        self.check_choice("norm", NORM_PLACES)
        self.check_choice("activation", ACTIVATIONS)
        self.check_shares("dropout", "attention_dropout")
        self.check_flags("tied", "gradient_checkpointing")
        self._check_mechanism()

    def _check_kv_heads(self, name: str) -> None:
        if getattr(self, name) is None:
            return
        self.check_sizes(name)
        kv_heads = getattr(self, name)
        if self.heads % kv_heads:
            raise ArgumentError(
                f"{name} is {kv_heads}; heads, {self.heads}, must be a multiple of it"
            )

    def _check_pattern(self, name: str) -> None:
        pattern = parse(getattr(self, name))
        if pattern.by_length:
            raise ArgumentError(
                f"{name} {pattern} depends on the number of keys, so a translation would depend on the other "
                f"sentences in its batch; use a pattern of the past only, such as random_blocks(3, block=64, "
                f"seed=0, past=true)"
            )

    def _check_mechanism(self) -> None:
        """Refuse a mechanism that the encoder of this config cannot have."""
        mechanism = parse_mechanism(a_string("encoder_mechanism", self.encoder_mechanism))
        # As in a batch, where padding is ANDed as a KeySpan; only its kind counts here.
        pattern = (parse(self.encoder_pattern) & KeySpan(0, 1)).canonical()
        options = ["dropout"] if self.attention_dropout > 0 else []
        check_combination(mechanism, pattern, options, ())
        kv_heads = self.heads if self.encoder_kv_heads is None else self.encoder_kv_heads
        if mechanism.shares_keys and kv_heads != self.heads:
            raise ArgumentError(
                f"{mechanism}: its queries are its keys, so encoder_kv_heads, {kv_heads}, must be heads, {self.heads}"
            )
        # The shortest source, so that only what is refused at every length is refused here.
        refusal = self.encoder_refusal(length=1)
        if refusal:
            raise UnsupportedError(refusal)

    def encoder_refusal(self, length: int) -> str | None:
        """Why the encoder's mechanism cannot read sources of `length` ids, END included; None if it can.

        >>> config = TranslationConfig(vocab_size=100, encoder_mechanism="linformer(length=8, rank=4)")
        >>> config.encoder_refusal(length=8), str(config.encoder_refusal(length=9))[:48]
        (None, 'linformer(length=8, rank=4): the call has 9 keys')
        """
        mechanism = parse_mechanism(self.encoder_mechanism)
        head_dim = self.dim // self.heads
        kv_heads = self.encoder_kv_heads or self.heads
        sizes = Sizes(batch=1, heads=self.heads, kv_heads=kv_heads, k_len=length)
        pattern = parse(self.encoder_pattern).canonical()
        scale = mechanism.default_scale(head_dim)
        reason = mechanism.reason_against(pattern, sizes, head_dim, scale)
        return None if reason is None else f"{mechanism}: {reason}"

    @property
    def least_parameters(self) -> int:
        layers = self.encoder_layers + self.decoder_layers
        return self.vocab_size * self.dim + layers * 2 * self.dim * self.hidden_dim


class TranslationState(Described):
    """The state of translations in progress: the projected sources, and the keys and values of the target.

    `target` are the caches of the layers, or what a `decoder` written out flat keeps in their place.
    """

    def __init__(
        self,
        sources: Sources,
        target: list[Cache | RecurrentState] | FlatTarget,
        decoder: FlatDecoder | None = None,
    ) -> None:
        self.sources = sources
        self._target = target
        self._decoder = decoder

    @property
    def contexts(self) -> list[ProjectedContext]:
        """The keys and values of the sources, for each layer."""
        return self.sources.contexts

    @property
    def caches(self) -> list[Cache | RecurrentState]:
        """The caches of the decoder's layers; from then on the steps go through the modules of the model."""
        if isinstance(self._target, FlatTarget):
            assert self._decoder is not None
            self._target = self._decoder.new_caches(self._target)
        return self._target

    @caches.setter
    def caches(self, caches: list[Cache | RecurrentState]) -> None:
        self._target = caches

    def flat(self, model: nn.Module) -> tuple[FlatDecoder, FlatTarget] | None:
        """The decoder and the target of the next step, if it needs no module of this model; else None."""
        decoder = self._decoder
        target = self._target
        if decoder is None or not isinstance(target, FlatTarget):
            return None
        if decoder.model is not model:  # another model goes on with a state that this one began
            return None
        return None if target.is_fixed or decoder.is_watched() else (decoder, target)

    def advance(self, target: FlatTarget) -> None:
        """Go on with this target, which continues the one before."""
        self._target = target

    @property
    def length(self) -> int:
        """Number of target ids so far."""
        if isinstance(self._target, FlatTarget):
            return self._target.length
        return self._target[0].length

    @property
    def nbytes(self) -> int:
        if isinstance(self._target, FlatTarget):
            return self.sources.nbytes + self._target.entries.nbytes
        return self.sources.nbytes + sum(cache.nbytes for cache in self._target)

    def reorder(self, index: torch.Tensor) -> None:
        """Continue batch row i from batch row `index[i]`; index: integers (new batch,)."""
        index = checked_rows(index, self.sources.rows, "state")
        if index.tolist() == list(range(self.sources.rows)):
            return  # often the case in a beam

        sources = copy.copy(self.sources)
        sources.reorder(index)
        target = self._target
        if isinstance(target, FlatTarget):
            target = target.reordered(index)
        else:
            target = [copy.copy(cache) for cache in target]
            for cache in target:
                cache.reorder(index)
        # in one statement, which an exception cannot divide
        self._target, self.sources = target, sources

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle has caches: their copies know that they share memory, those of a flat target would not.
        return {"sources": self.sources, "_target": self.caches, "_decoder": None}


class TranslationTransformer(TranslationBase):
    """A Transformer that translates: encoder and decoder over one vocabulary.

    Each side has its own pattern and number of key/value heads. A step for a few texts takes the time to read the
    weights; on a CPU `model.bfloat16()` halves it, with rounding.

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
        self._new_tables()
        self.positions = new_positions(config.positions, config.dim, config.max_length)
        self.cross_pattern = parse(config.cross_pattern)
        self.encoder = nn.ModuleList(
            self._new_encoder_layer() for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            self._new_decoder_layer() for _ in range(config.decoder_layers)
        )
        # "post" has a norm at the end of each layer
        last_norm = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm = last_norm(config.dim)
        self.decoder_norm = last_norm(config.dim)
        self._initialise()

    def _logits(
        self,
        source: torch.Tensor,
        source_vectors: torch.Tensor | None,
        target: Aligned,
        vectors: torch.Tensor | None,
    ) -> torch.Tensor:
        context, context_live = self.encode(source, source_vectors)
        return self._score(self._decode(target, context, context_live, vectors))

    def _decode(
        self,
        target: Aligned,
        context: torch.Tensor,
        context_live: KeySpan | None,
        vectors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The vectors (batch, target_length, dim) of targets from their first id on; `encode` returns the context."""
        x = self._embed_texts(target.ids, table=self.target_embedding, vectors=vectors)
        options = {
            "live": target.span,
            "context_live": context_live,
            "context_q_start": self._cross_start(0),
        }
        for layer in self._decoder_layers():
            x = self._through(partial(layer, **options), x, context)  # (batch, target_length, dim)
        return x

    def score_next(
        self, source: torch.Tensor, context: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        """Logits (batch, vocab_size) of the ids after targets without padding, given the encoded sources.

        It reads the whole target, as a search without a cache does; `start` and `step` keep one.
        """
        check_shape_of_ids(target)
        live = align(source).span
        x = self._decode(Aligned(target, None, None), context, live)
        return self._score(x[:, -1])

    def encode(
        self, source: torch.Tensor, vectors: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, KeySpan | None]:
        """The encoded source (batch, source_length, dim), padded on the right, and the pattern of its visible keys."""
        aligned = align(source)
        x = self._embed_texts(aligned.ids, vectors=aligned.move(vectors))
        for layer in self.encoder:
            x = self._through(layer, x, aligned.span)  # (batch, source_length, dim)
        return self.encoder_norm(x), aligned.span

    def start(
        self,
        source: torch.Tensor,
        cache: str | None = None,
        *,
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
        vectors: torch.Tensor | None = None,
    ) -> TranslationState:
        """The state for translating sources (batch, source_length) step by step.

        Args:
            source: ids (batch, source_length), padded with PAD on either side.
            cache, capacity, dtype: the kind of cache of the decoder's own attention, as for `new_cache` of a layer.
            vectors: as in `encode`.
        """
        live = None
        contexts = None if vectors is not None else self._read_by_program(source)
        if contexts is None:
            context, live = self.encode(source, vectors)
            contexts = [
                layer.cross_attention.project_context(context) for layer in self._decoder_layers()
            ]
        sources = Sources(contexts, live, shared=self.cross_pattern.query_free)
        if cache is None and capacity is None and dtype is None:
            decoder = FlatDecoder.of(self)
            if decoder is not None:
                return TranslationState(sources, decoder.new_target(len(source)), decoder)
        caches = [
            layer.self_attention.new_cache(len(source), cache, capacity, dtype)
            for layer in self._decoder_layers()
        ]
        return TranslationState(sources, caches)

    def _read_by_program(self, source: torch.Tensor) -> list[ProjectedContext] | None:
        """What the decoder reads of short sources without padding, in one call; None where modules are called."""
        if "encode" in self.__dict__ or type(self).encode is not PLAIN_ENCODE:
            return None
        aligned = align(source)
        if aligned.span is not None or source.numel() > MOST_ROWS:
            return None
        program = EncoderProgram.of(self)
        if program is None:
            return None
        try:
            return program.encode(source)
        except IndexError:
            check_ids(source, self.config.vocab_size)  # its error names the id
            raise

    def step(self, ids: torch.Tensor, state: TranslationState) -> torch.Tensor:
        """Append `ids` (batch,) to the targets of the state, and return logits (batch, vocab_size) of the next ids."""
        check_step(ids, state, TranslationState)
        check_number(ids, state.sources.rows)

        sources = state.sources
        place = state.length
        flat = state.flat(self)
        if flat is not None:
            decoder, target = flat
            return decoder.step(ids, target, sources, self._cross_start(place))

        # copies, so that an exception in any layer leaves the state as it was
        caches = [copy.copy(cache) for cache in state.caches]
        x = self._through_layers(
            ids[:, None],
            torch.arange(place, place + 1, device=ids.device),
            sources.contexts,
            caches,
            sources.readers,
            sources.mask,
            self._cross_start(place),
        )
        logits = self._score(x)
        state.caches = caches
        return logits

    def continue_texts(
        self, ids: torch.Tensor, state: TranslationState, choice: Choice
    ) -> tuple[Written, torch.Tensor | None] | None:
        """Append `ids` (batch,) to the targets, and then the ids that a greedy or a beam search would choose.

        It stops before a step in which a target may end, so that the search decides about that step. The ids are those
        that the search would choose from the logits of `step`, in less time.

        Args:
            ids: integers (batch,).
            state: the targets so far.
            choice: how many steps there are at most, and which ids are chosen.

        Returns:
            What was written, and the logits (batch, vocab_size) of the step after it where it was computed. None where
            the next step has to be asked for, as where something watches the modules.
        """
        if "step" in self.__dict__ or type(self).step is not PLAIN_STEP:
            return None
        check_step(ids, state, TranslationState)
        check_number(ids, state.sources.rows)
        flat = state.flat(self)
        if flat is None:
            return None
        decoder, target = flat
        continued = decoder.write(ids, target, state.sources, choice)
        if continued is None:
            return None
        state.advance(continued.target)
        return continued.written, continued.logits

    def _through_layers(
        self,
        ids: torch.Tensor,
        places: torch.Tensor,
        contexts: list[ProjectedContext],
        caches: Any,
        readers: int,
        mask: torch.Tensor | None,
        cross_start: int | None,
    ) -> torch.Tensor:
        """Vectors (batch, dim) of the decoder for the next ids (batch, 1), at `places` (1,).

        `compile_steps` compiles it and puts the result in its place, so it reads no value of a tensor.
        """
        x = self._embed_scaled(ids, places, table=self.target_embedding)[:, 0]
        for layer, context, cache in zip(self._decoder_layers(), contexts, caches, strict=True):
            # (batch, dim)
            x = layer.step(
                x, context, cache, readers=readers, mask=mask, context_q_start=cross_start
            )
        return x

    def _embed_texts(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        """Vectors (batch, length, dim) of ids from position 0 on."""
        return self._embed_scaled(ids, torch.arange(ids.shape[1], device=ids.device), **options)

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        return super()._score(self.decoder_norm(x))

    def _cross_start(self, place: int) -> int | None:
        """The position among those of the source at which the cross pattern sees the target id at `place`.

        None for a pattern that compares no positions.
        """
        return place if self.cross_pattern.compares_positions else None

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    def _new_encoder_layer(self) -> EncoderLayer:
        config = self.config
        mechanism = parse_mechanism(config.encoder_mechanism)
        attention = self._new_attention(
            parse(config.encoder_pattern), config.encoder_kv_heads, mechanism=mechanism
        )
        return EncoderLayer(attention, self._new_feed_forward(), config.norm, config.dropout)

    def _new_decoder_layer(self) -> DecoderLayer:
        config = self.config
        own = self._new_attention(Causal() & parse(config.decoder_pattern), config.decoder_kv_heads)
        cross = self._new_attention(self.cross_pattern, config.cross_kv_heads, positions=None)
        return DecoderLayer(own, cross, self._new_feed_forward(), config.norm, config.dropout)

    def _new_attention(
        self, pattern: Pattern, kv_heads: int | None, **options: Any
    ) -> MultiHeadAttention:
        config = self.config
        rotary = Rotary() if config.positions == "rotary" else None
        options = {
            "pattern": pattern,
            "positions": rotary,
            "dropout": config.attention_dropout,
            **options,
        }
        return MultiHeadAttention(config.dim, config.heads, kv_heads=kv_heads, **options)

    def _new_feed_forward(self) -> FeedForward:
        return FeedForward(
            self.config.dim, self.config.hidden_dim, self.config.activation, self.config.dropout
        )


# The step that `continue_texts` may leave out; another one, which somebody puts in its place, is called.
PLAIN_STEP = TranslationTransformer.step
PLAIN_ENCODE = TranslationTransformer.encode
