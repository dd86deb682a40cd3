"""The architecture of one of regard's own models, read from its config."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from torch import nn

from regard.errors import UnsupportedError
from regard.layers import FeedForward, LatentAttention, MultiHeadAttention
from regard.positions import Learned, Sinusoidal
from regard_lab.models import (
    EncoderConfig,
    LanguageConfig,
    LanguageModel,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.seeing.architecture.parts import DrawnBox, DrawnModel, DrawnPart, DrawnStack

POSITIONS = {"sinusoidal": Sinusoidal, "learned": Learned}  # those that are added to the vectors
NORMS = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}
PLAIN = ("full", "causal")  # patterns whose lesson is that of the layer


@singledispatch
def architecture_of(config: Any) -> DrawnModel:
    """The architecture of a model of regard_lab.

    Args:
        config: a TranslationConfig, LanguageConfig or EncoderConfig.

    Raises:
        UnsupportedError: the config of another model, which has no layers of attention and feed-forward.

    >>> architecture = architecture_of(TranslationConfig(vocab_size=100, dim=32, heads=4))
    >>> [stack.title for stack in architecture.stacks]
    ['Encoder', 'Decoder']
    """
    raise UnsupportedError(
        f"a {type(config).__name__} is drawn by no figure; give a TranslationConfig, a LanguageConfig or an "
        f"EncoderConfig"
    )


@architecture_of.register
def _(config: TranslationConfig) -> DrawnModel:
    norm = DrawnBox("Norm", (), "encoder", nn.LayerNorm)
    last_norm = (norm,) if config.norm == "pre" else ()  # "post" ends each layer with one
    before = _before(config.vocab_size, config.dim, config.positions)
    rotary = ("rotary positions",) if config.positions == "rotary" else ()
    feed_forward = DrawnPart(_feed_forward(config), norm, config.norm)

    def attention(
        title: str, kv_heads: int | None, pattern: str, lesson: str, others: tuple[str, ...]
    ) -> DrawnBox:
        heads = _heads(config.heads, kv_heads, config.dim // config.heads)
        lesson = _lesson(lesson, config.heads, kv_heads, pattern)
        details = (heads, f"pattern {pattern}", *others)
        return DrawnBox(title, details, lesson, MultiHeadAttention)

    mechanism = ()
    if config.encoder_mechanism != "softmax":
        mechanism = (f"mechanism {config.encoder_mechanism}",)
    reads = attention(
        "Self-attention",
        config.encoder_kv_heads,
        config.encoder_pattern,
        "encoder",
        (*mechanism, *rotary),
    )
    encoder = DrawnStack(
        "Encoder",
        config.encoder_layers,
        before,
        (DrawnPart(reads, norm, config.norm, "itself"), feed_forward),
        last_norm,
        "encoder",
    )

    masked = attention(
        "Masked self-attention",
        config.decoder_kv_heads,
        config.decoder_pattern,
        "causal",
        rotary,
    )
    crosses = attention("Cross-attention", config.cross_kv_heads, config.cross_pattern, "cross", ())
    decoder = DrawnStack(
        "Decoder",
        config.decoder_layers,
        before,
        (
            DrawnPart(masked, norm, config.norm, "itself"),
            DrawnPart(crosses, norm, config.norm, "encoder"),
            feed_forward,
        ),
        (*last_norm, *_scores(config.vocab_size, config.tied)),
        "decoder",
    )
    return DrawnModel("Translator", (encoder, decoder), TranslationTransformer)


@architecture_of.register
def _(config: LanguageConfig) -> DrawnModel:
    after = _scores(config.vocab_size, config.tied)
    return _one_stack(config, "Language model", "Decoder", LanguageModel, after)


@architecture_of.register
def _(config: EncoderConfig) -> DrawnModel:
    ends = {
        "words": DrawnBox(
            "Scores of masked words", (f"{config.vocab_size:,} ids",), "transfer", TextEncoder
        ),
        "classes": DrawnBox(
            "Scores of classes", (f"{config.classes} classes",), "transfer", TextEncoder
        ),
    }
    after = (ends[config.head],) if config.head in ends else ()
    return _one_stack(config, "Text encoder", "Encoder", TextEncoder, after)


def _one_stack(
    config: LanguageConfig, title: str, side: str, owner: type, after: tuple[DrawnBox, ...]
) -> DrawnModel:
    """A decoder or an encoder alone, whose norms stand before each part."""
    assert config.head_dim is not None
    norm = DrawnBox("Norm", (), "encoder", NORMS[config.norm])
    patterns = _texts(config.pattern)
    details = [
        _heads(config.heads, config.kv_heads, config.head_dim),
        _in_turn("pattern", patterns),
    ]
    mechanisms = _texts(config.mechanism)
    if mechanisms != ("softmax",):
        details.append(_in_turn("mechanism", mechanisms))
    if config.latent_dim is not None:
        details.append(f"keys and values from latents of {config.latent_dim}")
    if config.special:
        details.append(config.special.replace("_", " "))
    if config.positions in ("rotary", "alibi"):
        details.append(f"{config.positions.replace('alibi', 'ALiBi')} positions")

    masked = side == "Decoder"
    lesson = _lesson("causal" if masked else "encoder", config.heads, config.kv_heads, *patterns)
    if config.chooser is not None:
        lesson = "choosing"
    if mechanisms != ("softmax",):
        lesson = "linear"
    if config.latent_dim is not None:
        lesson = "latent"
    attention = DrawnBox(
        "Masked self-attention" if masked else "Self-attention",
        tuple(details),
        lesson,
        MultiHeadAttention if config.latent_dim is None else LatentAttention,
    )
    stack = DrawnStack(
        side,
        config.layers,
        _before(config.vocab_size, config.dim, config.positions),
        (
            DrawnPart(attention, norm, "pre", "itself"),
            DrawnPart(_feed_forward(config), norm, "pre"),
        ),
        (norm, *after),
        side.lower(),
    )
    return DrawnModel(title, (stack,), owner)


def _before(vocab_size: int, dim: int, positions: str) -> tuple[DrawnBox, ...]:
    """The embedding, and the positions that are added to it."""
    sizes = (f"{vocab_size:,} ids", f"vectors of {dim:,}")
    boxes = [DrawnBox("Embedding", sizes, "one_sentence", nn.Embedding)]
    if positions in POSITIONS:
        owner = POSITIONS[positions]
        boxes.append(DrawnBox("Positions", (f"{positions}, added",), "positions", owner))
    return tuple(boxes)


def _scores(vocab_size: int, tied: bool) -> tuple[DrawnBox, ...]:
    """From the last vectors to the next word."""
    sizes = (f"{vocab_size:,} ids", "by the embeddings" if tied else "by a matrix of their own")
    return (
        DrawnBox("Scores of the words", sizes, "decoder", nn.Embedding if tied else nn.Linear),
        DrawnBox("Softmax", ("the next word",), "generation"),
    )


def _feed_forward(config: TranslationConfig | LanguageConfig) -> DrawnBox:
    sizes = f"{config.dim:,} to {config.hidden_dim:,} to {config.dim:,}"
    return DrawnBox("Feed-forward", (sizes, config.activation), "encoder", FeedForward)


def _heads(heads: int, kv_heads: int | None, size: int) -> str:
    words = f"{heads} heads of {size}" if heads > 1 else f"one head of {size}"
    if kv_heads is not None and kv_heads < heads:
        words += f", {kv_heads} of keys and values"
    return words


def _lesson(plain: str, heads: int, kv_heads: int | None, *patterns: str) -> str:
    """The lesson about what is special in an attention: its windows, its fewer key/value heads, or `plain`."""
    if any("window" in pattern for pattern in patterns):
        return "windows"
    if any(pattern not in PLAIN for pattern in patterns):
        return "sparse"
    return "grouped" if kv_heads is not None and kv_heads < heads else plain


def _texts(texts: str | tuple[str, ...]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts


def _in_turn(what: str, texts: tuple[str, ...]) -> str:
    """One text for all layers, or several that they use in turn."""
    return f"{what} {texts[0]}" if len(texts) == 1 else f"{what}s in turn {', '.join(texts)}"
