"""The language model: a decoder-only Transformer with any pattern, mechanism, positions and kind of cache."""

import math
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import torch
from torch import nn

from regard.arguments import a_string, count_of, of_kind, real
from regard.bias import ALiBi
from regard.core.keywords import OF_MODELS, refusing_keywords
from regard.core.problem import check_combination
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import (
    NSA,
    Chooser,
    Difference,
    FeedForward,
    LatentAttention,
    LightningIndexer,
    MoBA,
    MultiHeadAttention,
    ValueResidual,
)
from regard.layers.feed_forward import ACTIVATIONS, GATED
from regard.layers.projection import Projection
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Causal, Pattern, Tree, parse
from regard.positions import Rotary
from regard.reprs import brief
from regard_lab.models.base import Settings, TextModel, align, check_step, new_positions
from regard_lab.models.layers import NORMS, Attention, Block, new_norm
from regard_lab.models.state import (
    LanguageState,
    LayerCaches,
    Texts,
    by_start,
    end_together,
    frugal_kind,
    may_begin_at,
)

POSITIONS = ("rotary", "alibi", "learned", "sinusoidal", "none")
# Options of layers without latents.
LAYER_OPTIONS = ("qk_norm", "output_gate", "value_residual", "differential", "forgetting")
CHOOSERS = ("moba", "nsa", "indexer")
EACH = str | tuple[str, ...]  # one text for all layers, or several that the layers use in turn


@brief
@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Settings):
    """The config of a LanguageModel, a decoder-only Transformer.

    The defaults give a small Llama with tied embeddings. GPT-2 has norm="layer", positions="learned",
    activation="gelu-tanh" and biases=True.

    Args:
        vocab_size: size of the vocabulary.
        dim: size of the vectors.
        layers: number of layers.
        heads: number of query heads.
        kv_heads: number of key/value heads; `heads` by default.
        head_dim: size of a head; dim / heads by default.
        latent_dim: for latent attention, the size of the vector from which a layer computes keys and values of all
            heads; kv_heads is then `heads`.
        rope_dim: with latent_dim and rotary positions, the size of the rotated part; half of head_dim by default.
        rope_frequencies: of its pairs, as for Rotary; those of rotary_base by default.
        latent_norms: whether latents have RMS norms.
        hidden_dim: inside the feed-forward; 0 for 4 · dim, or two thirds of that with a gated activation.
        pattern: allowed pairs, as text, ANDed with causal; or several texts, which the layers use in turn, such as
            ("causal_window(128)", "full").
        mechanism: how scores become weights, as a text of `regard.mechanisms.parse`; or several texts likewise.
        positions: "rotary", "alibi", "learned", "sinusoidal" or "none".
        rotary_base: base of the rotary positions.
        rotary_scaling: for texts longer than those of the training, the text of a scaling of Rotary: "yarn(4, 1024)".
        qk_norm, output_gate: as for MultiHeadAttention.
        value_residual: whether every layer but the first adds the values of the first one to its own.
        differential: whether each head subtracts the output of a second one; the first λ of layer l, counted from 0, is
            0.8 - 0.6 exp(-0.3 l).
        forgetting: whether each head forgets earlier tokens by gates of its own.
        chooser: "moba", "nsa" or "indexer", by which each query chooses keys; see `regard.layers`.
        chosen, chosen_block: it chooses so many blocks of so many keys; the indexer as many single keys.
        max_length: number of learned positions.
        norm: "rms" or "layer", before each part and at the end.
        epsilon: of the norms.
        activation: of the feed-forward, see FeedForward.
        biases: whether projections and layer norms have biases.
        tied: whether the embeddings also score the vocabulary.
        dropout: after embeddings and in residuals.
        attention_dropout: of the attention weights.
        gradient_checkpointing: in training, store only the input of each layer and compute the rest again in the
            backward pass.

    Raises:
        ArgumentError, UnsupportedError: invalid sizes or choices, or choices that exclude each other.

    >>> LanguageConfig(vocab_size=100, dim=32, heads=4).hidden_dim
    88
    """

    vocab_size: int
    dim: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    head_dim: int | None = None
    latent_dim: int | None = None
    rope_dim: int | None = None
    rope_frequencies: tuple[float, ...] | None = None
    latent_norms: bool = True
    hidden_dim: int = 0
    pattern: EACH = "causal"
    mechanism: EACH = "softmax"
    positions: str = "rotary"
    rotary_base: float = 10_000.0
    rotary_scaling: str | None = None
    qk_norm: bool = False
    output_gate: bool = False
    value_residual: bool = False
    differential: bool = False
    forgetting: bool = False
    chooser: str | None = None
    chosen: int = 8
    chosen_block: int = 16
    max_length: int = 1024
    norm: str = "rms"
    epsilon: float = 1e-5
    activation: str = "swiglu"
    biases: bool = False
    tied: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        self.check_sizes(
            "vocab_size", "dim", "layers", "heads", "max_length", "chosen", "chosen_block"
        )
        if self.chooser is not None:
            self.check_choice("chooser", CHOOSERS)
        self.check_choice("positions", POSITIONS)
        self.check_choice("norm", NORMS)
        self.check_choice("activation", ACTIVATIONS)
        self.check_shares("dropout", "attention_dropout")
        self.check_flags("biases", "tied", "gradient_checkpointing", "latent_norms", *LAYER_OPTIONS)
        for name in ("rotary_base", "epsilon"):
            real(name, getattr(self, name), above=0)
        self._fill()
        self.check_sizes("kv_heads", "head_dim", "hidden_dim")
        self._check_heads()
        lengths = [
            len(texts) for texts in (self.pattern, self.mechanism) if not isinstance(texts, str)
        ]
        # Later layers repeat these combinations.
        for layer in range(min(self.layers, lcm(*lengths))):
            self._check_attention(self.pattern_of(layer), self.mechanism_of(layer))

    @property
    def least_parameters(self) -> int:
        return self.vocab_size * self.dim + self.layers * 2 * self.dim * self.hidden_dim

    @property
    def special(self) -> str:
        """The options of its layers that plain attention lacks, as a phrase; empty if there are none."""
        return ", ".join(
            name for name in (*LAYER_OPTIONS, "rotary_scaling", "chooser") if getattr(self, name)
        )

    def pattern_of(self, layer: int) -> Pattern:
        """The causal pattern of a layer, counted from 0."""
        return Causal() & parse(in_turn(self.pattern, layer))

    def mechanism_of(self, layer: int) -> Mechanism:
        """The mechanism of a layer, counted from 0."""
        return parse_mechanism(in_turn(self.mechanism, layer))

    def _fill(self) -> None:
        """Fill in defaults that depend on other settings, and turn lists (as JSON has them) into tuples."""
        if self.head_dim is None and self.dim % self.heads:
            raise ArgumentError(
                f"dim is {self.dim}; without head_dim it must be a multiple of heads, {self.heads}"
            )
        filled: dict[str, Any] = {
            "kv_heads": self.heads if self.kv_heads is None else self.kv_heads,
            "head_dim": self.dim // self.heads if self.head_dim is None else self.head_dim,
            "hidden_dim": of_kind(
                "hidden_dim", self.hidden_dim, int, "an integer, 0 for the default"
            ),
        }
        if filled["hidden_dim"] == 0:
            filled["hidden_dim"] = (
                -(-self.dim // 3) * 8 if self.activation in GATED else 4 * self.dim
            )
        if self.latent_dim is not None and self.positions == "rotary" and self.rope_dim is None:
            filled["rope_dim"] = 2 * max(1, filled["head_dim"] // 4)
        if self.rope_frequencies is not None:
            filled["rope_frequencies"] = (
                *of_kind("rope_frequencies", self.rope_frequencies, list | tuple, "a list"),
            )
        for name in ("pattern", "mechanism"):
            texts = getattr(self, name)
            if not isinstance(texts, list | tuple):
                a_string(name, texts)
                continue
            filled[name] = tuple(a_string(f"a text of {name}", text) for text in texts)
            if not 1 <= len(texts) <= self.layers:
                texts = count_of(len(texts), "texts")
                layers = count_of(self.layers, "layers")
                raise ArgumentError(f"{name} has {texts} for {layers}; give 1 to {self.layers}")
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def _check_heads(self) -> None:
        assert self.kv_heads is not None
        assert self.head_dim is not None
        if self.heads % self.kv_heads:
            raise ArgumentError(
                f"kv_heads is {self.kv_heads}; heads, {self.heads}, must be a multiple of it"
            )
        rotary = self.positions == "rotary"
        latent = self.latent_dim is not None
        if latent:
            self.check_sizes("latent_dim", *["rope_dim"] * rotary)
        if latent and self.kv_heads != self.heads:
            raise ArgumentError(
                f"kv_heads is {self.kv_heads}, and latents have all {self.heads} heads; leave it out"
            )
        if not (latent and rotary) and (
            self.rope_dim is not None or self.rope_frequencies is not None
        ):
            raise ArgumentError(
                "rope_dim and rope_frequencies need latent_dim and rotary positions; leave them out"
            )
        rotated = (self.rope_dim or 0) if latent else self.head_dim
        if rotary and rotated % 2:
            name = "rope_dim" if latent else "head_dim"
            raise ArgumentError(f"rotary rotates pairs, and {name} is {rotated}; it must be even")
        if self.rotary_scaling is not None:
            if not rotary:
                raise ArgumentError(
                    f"rotary_scaling is for rotary positions, and these are {self.positions}"
                )
            Rotary(self.rotary_base, frequencies=self.rope_frequencies, scaling=self.rotary_scaling)
        if latent and (
            given := [name for name in (*LAYER_OPTIONS, "chooser") if getattr(self, name)]
        ):
            raise ArgumentError(
                f"{', '.join(given)} are for keys and values of heads, and latents have none; leave out one of them"
            )
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ArgumentError(
                f"sines and cosines come in pairs, and dim is {self.dim}; it must be even"
            )

    def _check_attention(self, pattern: Pattern, mechanism: Mechanism) -> None:
        """Refuse a pattern or mechanism that a model of this config cannot have."""
        pattern.check(1, self.heads, 1, 1)
        self._check_continued(pattern)
        alibi = self.positions == "alibi"
        options = {"bias": alibi or self.forgetting, "dropout": self.attention_dropout > 0}
        check_combination(
            mechanism, pattern.canonical(), [name for name, given in options.items() if given], ()
        )
        if self.latent_dim is not None and mechanism != Softmax():
            raise ArgumentError(
                f"mechanism is {mechanism}; latent attention is softmax, so leave it out"
            )
        if self.forgetting and (alibi or pattern.reach().ahead != 0):
            other = (
                "positions alibi, a second bias"
                if alibi
                else f"pattern {pattern}, which looks ahead"
            )
            raise ArgumentError(
                f"forgetting is the bias of causal attention, and here is {other}; leave out one of them"
            )
        if mechanism.shares_keys and self.kv_heads != self.heads:
            raise ArgumentError(
                f"{mechanism}: its queries are its keys, so kv_heads must be heads, {self.heads}"
            )
        if self.chooser == "nsa" and (alibi or pattern.canonical() != Causal()):
            raise ArgumentError(
                "nsa has compressed keys, so it supports neither alibi nor a pattern besides causal"
            )
        if self.chooser == "indexer" and alibi:
            raise ArgumentError(
                "an indexer learns weights without a bias, so it does not support alibi"
            )
        if self.chooser is not None:
            with torch.device("meta"):  # other combinations are refused by the layer
                new_block(self, 0)

    def _check_continued(self, pattern: Pattern) -> None:
        """Refuse a pattern under which continuing a text would change the outputs of its earlier tokens."""
        if pattern.by_length:
            raise ArgumentError(
                f"pattern {pattern} depends on the length of the text, so later tokens would change earlier outputs; "
                f"use a pattern of the past only, such as random_blocks(3, block=64, seed=0, past=true)"
            )


def new_chooser(config: LanguageConfig) -> Chooser | None:
    """The chooser of one layer. NSA's compressed windows are half a block apart, and its window is two blocks."""
    top, block = config.chosen, config.chosen_block
    if config.chooser == "nsa":
        return NSA(
            length=block,
            stride=block // 2 if block % 2 == 0 else block,
            block=block,
            top=top,
            window=2 * block,
        )
    if config.chooser == "moba":
        return MoBA(block, top)
    size = (config.head_dim or 1) * (config.kv_heads or 1)
    rotary = config.positions == "rotary"
    return (
        LightningIndexer(top * block, head_dim=size, positions="rotary" * rotary or None)
        if config.chooser
        else None
    )


def in_turn(texts: EACH, layer: int) -> str:
    """The text for a layer, counted from 0."""
    return texts if isinstance(texts, str) else texts[layer % len(texts)]


# Layers


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

    def _first_values(self, x: torch.Tensor) -> torch.Tensor | None:
        """The values that later layers add to their own, of the vectors that the first layer reads; None without.

        Source: Value Residual Learning, Zhou et al. 2024.
        """
        if not self.config.value_residual:
            return None
        first = self._blocks()[0]
        assert isinstance(first.attention, MultiHeadAttention)
        return first.attention.values(first.attention_norm(x))

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
    rotary = None
    if config.positions == "rotary":
        rotary = Rotary(
            config.rotary_base, frequencies=config.rope_frequencies, scaling=config.rotary_scaling
        )
    options: dict[str, Any] = {
        "head_dim": config.head_dim,
        "pattern": config.pattern_of(layer),
        "dropout": config.attention_dropout,
        "positions": rotary,
        "projection_bias": config.biases,
    }
    if config.latent_dim is None:
        options |= {"kv_heads": config.kv_heads, "mechanism": config.mechanism_of(layer)}
        options |= {
            name: getattr(config, name) for name in ("qk_norm", "output_gate", "forgetting")
        }
        options["chooser"] = new_chooser(config)
        if config.value_residual and layer > 0:
            options["value_residual"] = ValueResidual()
        if config.differential:  # Differential Transformer, Ye et al. 2024, section 2.1
            options["differential"] = Difference(0.8 - 0.6 * math.exp(-0.3 * layer))
        attention: Attention = MultiHeadAttention(config.dim, config.heads, **options)
    else:
        options |= {
            name: getattr(config, name) for name in ("latent_dim", "latent_norms", "epsilon")
        }
        attention = LatentAttention(
            config.dim, config.heads, rope_dim=config.rope_dim or 0, **options
        )
    feed_forward = FeedForward(
        config.dim, config.hidden_dim, config.activation, config.dropout, config.biases
    )
    bias = ALiBi() if config.positions == "alibi" else None
    norms = {"norm": config.norm, "epsilon": config.epsilon, "norm_bias": config.biases}
    return Block(attention, feed_forward, bias=bias, dropout=config.dropout, **norms)


# The model


class LanguageModel(Stack):
    """A decoder-only Transformer: scores of the next id after each id of a text.

    Source: Improving Language Understanding by Generative Pre-Training, Radford et al. 2018, section 3.1; norms first
    as in Language Models are Unsupervised Multitask Learners, Radford et al. 2019, section 2.3; "rms", "swiglu" and
    "rotary" as in LLaMA, Touvron et al. 2023, section 2.2.

    >>> model = LanguageModel(LanguageConfig(vocab_size=100, dim=32, heads=4)).eval()
    >>> model(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 3, 100])
    >>> state = model.start(torch.tensor([[5, 6, 7]]))
    >>> next_ids = state.next_scores.argmax(-1)
    >>> model.step(next_ids, state).shape
    torch.Size([1, 100])
    """

    KIND = "language-model"
    Config = LanguageConfig

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__(config)
        self.to_vocabulary = (
            None if config.tied else Projection(config.dim, config.vocab_size, bias=False)
        )
        self._initialise()

    @refusing_keywords("LanguageModel", OF_MODELS)
    def forward(self, ids: torch.Tensor, *, vectors: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the next id at each position.

        Args:
            ids: (batch, length), padded with PAD on either side.
            vectors: (batch, length, dim), read instead of the embeddings of the ids; the ids still decide which
                positions are padding.

        Returns:
            (batch, length, vocab_size): position t scores the id after ids[:, t].
        """
        aligned = align(ids)
        x = self._embed_texts(
            aligned.ids, torch.arange(ids.shape[1], device=ids.device), aligned.move(vectors)
        )
        values = self._first_values(x)
        for block in self._blocks():
            x = self._through(block, x, aligned.span, None, values)  # (batch, length, dim)
        return aligned.put_back(self._score(x))

    def start(
        self,
        prompts: torch.Tensor,
        cache: str | None = None,
        *,
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> LanguageState:
        """Read prompts, and return the state for continuing them; its `next_scores` score the first new ids.

        Prompts of unequal lengths are aligned at their ends. If that would change the outputs (a pattern that counts
        from the beginning of a text; features or hashes of rotated keys), only prompts of equal length are computed
        together, and each length takes steps of its own.

        Args:
            prompts: ids (batch, length), padded with PAD on either side; each batch row has one id or more.
            cache: kind of cache: "dynamic", "static" (up to `capacity`), "ring" (the last `capacity`; by default as far
                as a layer's pattern looks back), "paged" (pages that beams share) or "state" (sums, for mechanisms that
                have them). By default each
                layer uses the kind that is exact in the least memory.
            capacity: the most positions, including the prompt, of "static" and "ring".
            dtype: storage dtype of keys and values, as for `regard.layers.caches.Cache`; that of the weights by
                default.

        Raises:
            ArgumentError: a prompt without ids, or invalid settings of the cache.
            UnsupportedError: a cache that cannot continue the mechanism or the pattern.
        """
        ids, starts = end_together(prompts)
        together = starts is None or all(
            may_begin_at(starts, block.attention) for block in self._blocks()
        )
        groups = []
        last = []
        for rows, first in [(None, 0)] if together else by_start(starts):
            texts = ids if rows is None else ids[rows, first:]  # (texts, length)
            groups.append(
                Texts(
                    self._caches(len(texts), cache, capacity, dtype),
                    starts if together else None,
                    rows,
                )
            )
            last.append(self._continue_texts(texts, groups[-1])[:, -1])
        return LanguageState(groups, self._score(Texts.joined(last, groups)))

    def step(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """Append `ids` (batch,) to the texts of the state, and return scores (batch, vocab_size) of the next ids."""
        check_step(ids, state, LanguageState)
        return self._score(self._continue(ids[:, None], state)[:, 0])

    def extend(
        self, ids: torch.Tensor, state: LanguageState, tree: Tree | None = None
    ) -> torch.Tensor:
        """Append `ids` (batch, added) to the texts of the state; return scores (batch, added, vocab_size) after each.

        PAD is treated as an ordinary id here. With a `tree` (added,) the ids are its nodes, each scored after those of
        its own branch; `state.accept` then keeps one branch.
        """
        check_step(ids, state, LanguageState, axes=2)
        config = self.config
        tree = None if tree is None else of_kind("tree", tree, Tree, "a Tree of the ids")
        placed = (
            config.positions == "alibi" or config.forgetting or config.latent_dim or config.chooser
        )
        placed = placed or any(
            config.pattern_of(layer).canonical() != Causal() for layer in range(config.layers)
        )
        if tree is not None and placed:
            raise UnsupportedError(
                "branches of a tree have other places in a call than in their texts, and this model has windows, "
                "alibi, forgetting, latents or a chooser, which compare places; continue one branch"
            )
        return self._score(self._continue(ids, state, tree))

    def _continue(
        self, ids: torch.Tensor, state: LanguageState, tree: Tree | None = None
    ) -> torch.Tensor:
        """(batch, added, dim), before the last norm; after an error the state is unchanged."""
        groups = [replace(texts, caches=texts.caches.copy()) for texts in state.groups]
        x = Texts.joined(
            [self._continue_texts(texts.of(ids), texts, tree) for texts in groups], groups
        )
        state.groups, state.next_scores = groups, None
        return x

    def _continue_texts(
        self, ids: torch.Tensor, texts: Texts, tree: Tree | None = None
    ) -> torch.Tensor:
        further = (
            torch.arange(ids.shape[1], device=ids.device)
            if tree is None
            else tree.depths.to(ids.device)
        )
        live = texts.live
        pattern = live if tree is None else tree if live is None else tree & live
        rotated = (
            texts.caches.length + further
            if tree is not None and self.config.positions == "rotary"
            else None
        )
        return self._through_layers(ids, texts.places(further), pattern, texts.caches.each, rotated)

    def _through_layers(
        self,
        ids: torch.Tensor,
        places: torch.Tensor,
        pattern: Pattern | None,
        caches: Any,
        rotated: torch.Tensor | None,
    ) -> torch.Tensor:
        """(texts, added, dim); `compile_steps` compiles it, so it reads no value of a tensor."""
        x = self._embed_texts(ids, places)
        values = self._first_values(x)
        for block, cache in zip(self._blocks(), caches, strict=True):
            x = block(x, pattern, cache, values, rotated)  # (texts, added, dim)
        return x

    def _caches(
        self, batch: int, kind: str | None, capacity: int | None, dtype: torch.dtype | str | None
    ) -> LayerCaches:
        if kind is None and capacity is not None:
            raise ArgumentError(
                f"capacity={capacity} needs a kind of cache; give cache='static' or cache='ring'"
            )
        if kind is not None:
            self._check_kind(kind)
        caches = []
        for block in self._blocks():
            own = frugal_kind(block.attention) if kind is None else kind
            # A state has the dtype of the weights.
            kept = None if kind is None and own == "state" else dtype
            caches.append(block.attention.new_cache(batch, own, capacity, kept))
        return LayerCaches(caches)

    def _check_kind(self, kind: str) -> None:
        """Refuse a kind of cache that a layer does not have, with one that all layers have."""
        mechanisms = [block.attention.mechanism for block in self._blocks()]
        states = [mechanism.declared.has_state for mechanism in mechanisms]
        for layer, mechanism in enumerate(mechanisms):
            reason = None
            if kind != "state":
                reason = mechanism.reason_against_caches
            elif not states[layer]:
                reason = "it has no recurrent state; use another kind of cache"
            if reason is None:
                continue
            if any(states) and not all(states):
                reason = reason.partition("; use ")[0]
                reason += "; leave the kind of cache (--cache) out, and each layer has its own"
            raise UnsupportedError(
                f"cache={kind!r} is not for layer {layer}, {mechanism.declared}: {reason}"
            )

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        return super()._score(self.norm(x))
