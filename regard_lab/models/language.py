"""The language model: a decoder-only Transformer with any pattern, mechanism, positions and kind of cache."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, TypeVar

import torch
from torch import nn

from regard.arguments import a_string, count_of, of_kind, real
from regard.backends.native.program import Choice, Written
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
from regard_lab.models.base import (
    Settings,
    TextModel,
    align,
    check_ids,
    check_step,
    new_positions,
)
from regard_lab.models.language_program import LanguageProgram
from regard_lab.models.layers import NORMS, AttentionLayer, Block, new_norm
from regard_lab.models.state import (
    NOT_ASKED,
    LanguageState,
    LayerCaches,
    TextGroup,
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

Result = TypeVar("Result")


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
        self._check_positions()
        # Later layers repeat the combinations of these.
        combinations = lcm(count_of_texts(self.pattern), count_of_texts(self.mechanism))
        for layer in range(min(self.layers, combinations)):
            self._check_attention(self.pattern_of(layer), self.mechanism_of(layer))

    @property
    def least_parameters(self) -> int:
        return self.vocab_size * self.dim + self.layers * 2 * self.dim * self.hidden_dim

    @property
    def special(self) -> str:
        """The options of its layers that plain attention lacks, as a phrase; empty if there are none."""
        return ", ".join(self._chosen((*LAYER_OPTIONS, "rotary_scaling", "chooser")))

    def _chosen(self, names: tuple[str, ...]) -> list[str]:
        """Those of these settings that are set."""
        return [name for name in names if getattr(self, name)]

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
        hidden_dim = of_kind("hidden_dim", self.hidden_dim, int, "an integer, 0 for the default")
        head_dim = self.dim // self.heads if self.head_dim is None else self.head_dim
        filled: dict[str, Any] = {"head_dim": head_dim, "hidden_dim": hidden_dim}
        if self.kv_heads is None:
            filled["kv_heads"] = self.heads
        if hidden_dim == 0 and self.activation in GATED:
            filled["hidden_dim"] = math.ceil(self.dim / 3) * 8
        elif hidden_dim == 0:
            filled["hidden_dim"] = 4 * self.dim
        if self._has_rotary_latents and self.rope_dim is None:
            filled["rope_dim"] = 2 * max(1, head_dim // 4)
        if self.rope_frequencies is not None:
            of_kind("rope_frequencies", self.rope_frequencies, list | tuple, "a list")
            filled["rope_frequencies"] = tuple(self.rope_frequencies)
        for name in ("pattern", "mechanism"):
            filled[name] = self._checked_texts(name)
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def _checked_texts(self, name: str) -> EACH:
        """One text for all layers, or a tuple of texts that they use in turn."""
        texts = getattr(self, name)
        if not isinstance(texts, list | tuple):
            return a_string(name, texts)
        checked = tuple(a_string(f"a text of {name}", text) for text in texts)
        if not 1 <= len(checked) <= self.layers:
            count = count_of(len(checked), "texts")
            layers = count_of(self.layers, "layers")
            raise ArgumentError(f"{name} has {count} for {layers}; give 1 to {self.layers}")
        return checked

    @property
    def _has_rotary_latents(self) -> bool:
        return self.latent_dim is not None and self.positions == "rotary"

    def _check_heads(self) -> None:
        assert self.kv_heads is not None
        if self.heads % self.kv_heads:
            raise ArgumentError(
                f"kv_heads is {self.kv_heads}; heads, {self.heads}, must be a multiple of it"
            )
        if self.latent_dim is None:
            return
        self.check_sizes("latent_dim")
        if self._has_rotary_latents:
            self.check_sizes("rope_dim")
        if self.kv_heads != self.heads:
            raise ArgumentError(
                f"kv_heads is {self.kv_heads}, and latents have all {self.heads} heads; leave it out"
            )

    def _check_positions(self) -> None:
        assert self.head_dim is not None
        has_rotary = self.positions == "rotary"
        has_latents = self.latent_dim is not None
        has_rope_options = self.rope_dim is not None or self.rope_frequencies is not None
        if has_rope_options and not self._has_rotary_latents:
            raise ArgumentError(
                "rope_dim and rope_frequencies need latent_dim and rotary positions; leave them out"
            )
        name = "rope_dim" if has_latents else "head_dim"
        if has_rotary and getattr(self, name) % 2:
            raise ArgumentError(
                f"rotary rotates pairs, and {name} is {getattr(self, name)}; it must be even"
            )
        if self.rotary_scaling is not None:
            if not has_rotary:
                raise ArgumentError(
                    f"rotary_scaling is for rotary positions, and these are {self.positions}"
                )
            Rotary(self.rotary_base, frequencies=self.rope_frequencies, scaling=self.rotary_scaling)
        options_of_heads = self._chosen((*LAYER_OPTIONS, "chooser"))
        if has_latents and options_of_heads:
            raise ArgumentError(
                f"{', '.join(options_of_heads)} are for keys and values of heads, and latents have none; leave out one "
                f"of them"
            )
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ArgumentError(
                f"sines and cosines come in pairs, and dim is {self.dim}; it must be even"
            )

    def _check_attention(self, pattern: Pattern, mechanism: Mechanism) -> None:
        """Refuse a pattern or mechanism that a model of this config cannot have."""
        pattern.check(1, self.heads, 1, 1)
        self._check_continued(pattern)
        has_alibi = self.positions == "alibi"
        options = []
        if has_alibi or self.forgetting:
            options.append("bias")
        if self.attention_dropout > 0:
            options.append("dropout")
        check_combination(mechanism, pattern.canonical(), options, ())
        if self.latent_dim is not None and mechanism != Softmax():
            raise ArgumentError(
                f"mechanism is {mechanism}; latent attention is softmax, so leave it out"
            )
        if self.forgetting and has_alibi:
            raise ArgumentError(
                "forgetting is the bias of causal attention, and here is positions alibi, a second bias; leave out one "
                "of them"
            )
        if self.forgetting and pattern.reach().ahead != 0:
            raise ArgumentError(
                f"forgetting is the bias of causal attention, and here is pattern {pattern}, which looks ahead; leave "
                f"out one of them"
            )
        if mechanism.shares_keys and self.kv_heads != self.heads:
            raise ArgumentError(
                f"{mechanism}: its queries are its keys, so kv_heads must be heads, {self.heads}"
            )
        if self.chooser == "nsa" and (has_alibi or pattern.canonical() != Causal()):
            raise ArgumentError(
                "nsa has compressed keys, so it supports neither alibi nor a pattern besides causal"
            )
        if self.chooser == "indexer" and has_alibi:
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
    top = config.chosen
    block = config.chosen_block
    if config.chooser is None:
        return None
    if config.chooser == "nsa":
        stride = block // 2 if block % 2 == 0 else block
        return NSA(length=block, stride=stride, block=block, top=top, window=2 * block)
    if config.chooser == "moba":
        return MoBA(block, top)
    assert config.head_dim is not None
    assert config.kv_heads is not None
    positions = "rotary" if config.positions == "rotary" else None
    size = config.head_dim * config.kv_heads
    return LightningIndexer(top * block, head_dim=size, positions=positions)


def in_turn(texts: EACH, layer: int) -> str:
    """The text for a layer, counted from 0."""
    return texts if isinstance(texts, str) else texts[layer % len(texts)]


def count_of_texts(texts: EACH) -> int:
    return 1 if isinstance(texts, str) else len(texts)


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
        return self._embed(ids, places, factor=self._embedding_factor, vectors=vectors)

    @property
    def _embedding_factor(self) -> float:
        # Sinusoidal positions have size 1, so embeddings are scaled to match: Vaswani et al. 2017, section 3.4.
        return math.sqrt(self.config.dim) if self.config.positions == "sinusoidal" else 1.0

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
    attention = new_attention(config, layer)
    feed_forward = FeedForward(
        config.dim, config.hidden_dim, config.activation, config.dropout, config.biases
    )
    return Block(
        attention,
        feed_forward,
        norm=config.norm,
        epsilon=config.epsilon,
        norm_bias=config.biases,
        bias=ALiBi() if config.positions == "alibi" else None,
        dropout=config.dropout,
    )


def new_attention(config: LanguageConfig, layer: int) -> AttentionLayer:
    """The attention of a layer, counted from 0."""
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
    if config.latent_dim is not None:
        return LatentAttention(
            config.dim,
            config.heads,
            latent_dim=config.latent_dim,
            rope_dim=config.rope_dim or 0,
            latent_norms=config.latent_norms,
            epsilon=config.epsilon,
            **options,
        )

    if config.value_residual and layer > 0:
        options["value_residual"] = ValueResidual()
    if config.differential:  # Differential Transformer, Ye et al. 2024, section 2.1
        options["differential"] = Difference(0.8 - 0.6 * math.exp(-0.3 * layer))
    return MultiHeadAttention(
        config.dim,
        config.heads,
        kv_heads=config.kv_heads,
        mechanism=config.mechanism_of(layer),
        qk_norm=config.qk_norm,
        output_gate=config.output_gate,
        forgetting=config.forgetting,
        chooser=new_chooser(config),
        **options,
    )


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
        self.to_vocabulary = None
        if not config.tied:
            self.to_vocabulary = Projection(config.dim, config.vocab_size, bias=False)
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
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self._embed_texts(aligned.ids, places, aligned.move(vectors))
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
        if starts is None or self._may_begin_at(starts):
            texts = TextGroup(self._caches(len(ids), cache, capacity, dtype), starts, None)
            x = self._continue_texts(ids, texts)[:, -1]
            return LanguageState([texts], self._score(x))

        groups = []
        last_vectors = []
        for rows, first in by_start(starts):
            texts = TextGroup(self._caches(len(rows), cache, capacity, dtype), None, rows)
            x = self._continue_texts(ids[rows, first:], texts)  # (texts, length, dim)
            groups.append(texts)
            last_vectors.append(x[:, -1])
        return LanguageState(groups, self._score(TextGroup.joined(last_vectors, groups)))

    def _may_begin_at(self, starts: torch.Tensor) -> bool:
        """Whether texts that begin at different places may be computed together."""
        return all(may_begin_at(starts, block.attention) for block in self._blocks())

    def step(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """Append `ids` (batch,) to the texts of the state, and return scores (batch, vocab_size) of the next ids."""
        check_step(ids, state, LanguageState)
        logits = self._step_by_program(ids, state)
        if logits is not None:
            return logits
        return self._score(self._continue(ids[:, None], state)[:, 0])

    def _step_by_program(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor | None:
        """A step of a small model for a few texts, in one call; None where its modules have to be called."""
        return self._by_program(state, ids, lambda program, caches: program.step(ids, caches))

    def continue_texts(
        self, ids: torch.Tensor, state: LanguageState, choice: Choice
    ) -> tuple[Written, torch.Tensor | None] | None:
        """Append `ids` (batch,) to the texts, and then the ids that a greedy or a beam search would choose.

        It stops before a step in which a text may end, so that the search decides about that step. The ids are those
        that the search would choose from the logits of `step`, in less time.

        Args:
            ids: integers (batch,).
            state: the texts so far.
            choice: how many steps there are at most, and which ids are chosen.

        Returns:
            What was written, and the logits (batch, vocab_size) of the step after it where it was computed. None where
            the next step has to be asked for, as where something watches the modules.
        """
        if "step" in self.__dict__ or type(self).step is not PLAIN_STEP:
            return None
        check_step(ids, state, LanguageState)
        return self._by_program(
            state, ids, lambda program, caches: program.write(ids, caches, choice)
        )

    def _by_program(
        self,
        state: LanguageState,
        ids: torch.Tensor,
        compute: Callable[[LanguageProgram, list[Any]], Result | None],
    ) -> Result | None:
        """What a program computes with the caches of all texts, which then hold more; None where there is none."""
        if state.program == NOT_ASKED:
            # A derived class may compute its steps in another way.
            is_usual = type(self) is LanguageModel
            state.program = LanguageProgram.of(self, self._embedding_factor) if is_usual else None
        program = state.program
        if program is None or program.model is not self or len(state.groups) > 1:
            return None
        texts = state.groups[0]
        if texts.starts is not None or texts.rows is not None:
            return None
        caches = texts.caches.copy()
        try:
            result = compute(program, caches.each)
        except IndexError:
            check_ids(ids, self.config.vocab_size)  # its error names the id
            raise
        if result is None:
            return None
        # in one statement, which an exception cannot divide
        state.groups, state.next_scores = [replace(texts, caches=caches)], None
        return result

    def extend(
        self, ids: torch.Tensor, state: LanguageState, tree: Tree | None = None
    ) -> torch.Tensor:
        """Append `ids` (batch, added) to the texts of the state; return scores (batch, added, vocab_size) after each.

        PAD is treated as an ordinary id here. With a `tree` (added,) the ids are its nodes, each scored after those of
        its own branch; `state.accept` then keeps one branch.
        """
        check_step(ids, state, LanguageState, axes=2)
        if tree is not None:
            of_kind("tree", tree, Tree, "a Tree of the ids")
            if self._compares_places():
                raise UnsupportedError(
                    "branches of a tree have other places in a call than in their texts, and this model has windows, "
                    "alibi, forgetting, latents or a chooser, which compare places; continue one branch"
                )
        return self._score(self._continue(ids, state, tree))

    def _compares_places(self) -> bool:
        config = self.config
        if config.positions == "alibi" or config.forgetting or config.latent_dim or config.chooser:
            return True
        patterns = [config.pattern_of(layer) for layer in range(config.layers)]
        return any(pattern.canonical() != Causal() for pattern in patterns)

    def _continue(
        self, ids: torch.Tensor, state: LanguageState, tree: Tree | None = None
    ) -> torch.Tensor:
        """(batch, added, dim), before the last norm; after an error the state is unchanged."""
        groups = [replace(texts, caches=texts.caches.copy()) for texts in state.groups]
        vectors = [self._continue_texts(texts.of(ids), texts, tree) for texts in groups]
        x = TextGroup.joined(vectors, groups)
        # in one statement, which an exception cannot divide
        state.groups, state.next_scores = groups, None
        return x

    def _continue_texts(
        self, ids: torch.Tensor, texts: TextGroup, tree: Tree | None = None
    ) -> torch.Tensor:
        caches = texts.caches
        if tree is None:
            added = torch.arange(ids.shape[1], device=ids.device)
            places = texts.places(added)
            return self._through_layers(ids, places, texts.live, caches.each, None)

        depths = tree.depths.to(ids.device)
        pattern = tree if texts.live is None else tree & texts.live
        rotated = caches.length + depths if self.config.positions == "rotary" else None
        return self._through_layers(ids, texts.places(depths), pattern, caches.each, rotated)

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
            attention = block.attention
            if kind is not None:
                caches.append(attention.new_cache(batch, kind, capacity, dtype))
                continue
            frugal = frugal_kind(attention)
            # A state has the dtype of the weights.
            stored = None if frugal == "state" else dtype
            caches.append(attention.new_cache(batch, frugal, None, stored))
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


# The step that `continue_texts` may leave out; another one, which somebody puts in its place, is called.
PLAIN_STEP = LanguageModel.step
