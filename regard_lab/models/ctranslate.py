"""A TranslationTransformer as a model of CTranslate2, which servers run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.errors import UnsupportedError
from regard.layers import FeedForward, MultiHeadAttention
from regard.packages import needed
from regard.patterns import Causal, parse
from regard_lab.models.layers import Residual
from regard_lab.models.translation_transformer import TranslationConfig, TranslationTransformer
from regard_lab.text.vocabularies import BEGIN, END, NEVER_WRITTEN, SPECIALS, UNKNOWN

# The numbers of activations in CTranslate2; a gated feed-forward has another form.
ACTIVATIONS = {"relu": 0, "gelu-tanh": 1, "silu": 2, "gelu": 3, "swiglu": 2, "geglu": 3}
GATED = ("swiglu", "geglu")
SINUSOIDAL_POSITIONS = 2_048  # that are written; learned ones are all written
NEVER_CHOSEN = -1e9  # added to the logit of an id


def reason_against(config: TranslationConfig) -> str | None:
    """Which setting CTranslate2 has no counterpart for, in words; None if it can hold such a model.

    >>> reason_against(TranslationConfig(vocab_size=100, positions="rotary", encoder_kv_heads=2))
    >>> print(reason_against(TranslationConfig(vocab_size=100, encoder_pattern="sliding_window(4)")))
    the pattern of its encoder (--attention) is sliding_window(4), and CTranslate2 has full only
    """
    if config.encoder_mechanism != "softmax":
        return (
            f"the mechanism of its encoder (--mechanism) is {config.encoder_mechanism}, and CTranslate2 has softmax "
            f"only"
        )
    wanted = "the pattern of its {} ({}) is {}, and CTranslate2 has {} only"
    if parse(config.encoder_pattern).canonical() != parse("full").canonical():
        return wanted.format("encoder", "--attention", config.encoder_pattern, "full")
    decoder_pattern = (Causal() & parse(config.decoder_pattern)).canonical()
    if decoder_pattern != Causal().canonical():
        return wanted.format("decoder", "--decoder-attention", config.decoder_pattern, "causal")
    if parse(config.cross_pattern).canonical() != parse("full").canonical():
        return wanted.format("cross-attention", "--cross-attention", config.cross_pattern, "full")
    return None


def most_positions(config: TranslationConfig) -> int | None:
    """The most ids of a text in the converted model; None for no limit."""
    if config.positions == "rotary":
        return None
    return config.max_length if config.positions == "learned" else SINUSOIDAL_POSITIONS


def ctranslate2_spec(model: TranslationTransformer, pieces: Sequence[str]) -> Any:
    """The specification of the model for CTranslate2, with its weights in float32; `save` writes it.

    Its ids are those of `pieces`. A source ends with END, which the caller writes; a target begins with BEGIN.
    PAD, UNKNOWN and BEGIN are never chosen.

    Args:
        model: the model.
        pieces: the name of each id, no two alike.

    Raises:
        UnsupportedError: a setting that CTranslate2 has no counterpart for, or pieces that are alike.
        MissingPackageError: ctranslate2 is not installed.
    """
    reason = reason_against(model.config)
    if reason is not None:
        raise UnsupportedError(
            f"CTranslate2 cannot hold this model: {reason}; train one with --for ctranslate2"
        )
    if len(set(pieces)) < len(pieces):
        raise UnsupportedError(
            "two pieces of the vocabulary have the same name, and CTranslate2 finds pieces by name; train another "
            "tokeniser"
        )
    with needed("ctranslate2", "a model for CTranslate2", "ctranslate2"):
        specs: Any = import_module("ctranslate2.specs.transformer_spec")

    config = model.config
    options: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": ACTIVATIONS[config.activation],
        "ffn_glu": config.activation in GATED,
    }
    if config.positions == "rotary":
        options |= {"rotary_dim": config.dim // config.heads, "rotary_interleave": False}
    encoder = specs.TransformerEncoderSpec(
        config.encoder_layers, config.heads, num_heads_kv=config.encoder_kv_heads, **options
    )
    decoder = specs.TransformerDecoderSpec(
        config.decoder_layers, config.heads, num_heads_kv=config.decoder_kv_heads, **options
    )
    if config.cross_kv_heads is not None:
        for layer in decoder.layer:
            layer.attention.num_heads_kv = np.int32(config.cross_kv_heads)
    _fill_encoder(encoder, model)
    _fill_decoder(decoder, model)
    most = most_positions(config)
    if most is not None:
        assert model.positions is not None
        vectors = model.positions(torch.arange(most))
        for side in (encoder, decoder):
            side.position_encodings.encodings = _numbers(vectors)

    spec = specs.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(list(pieces))
    spec.register_target_vocabulary(list(pieces))
    spec.config.unk_token = SPECIALS[UNKNOWN]
    spec.config.bos_token = SPECIALS[BEGIN]
    spec.config.eos_token = SPECIALS[END]
    spec.config.decoder_start_token = SPECIALS[BEGIN]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = False
    spec.config.layer_norm_epsilon = nn.LayerNorm(1).eps
    spec.validate()
    return spec


def _fill_encoder(encoder: Any, model: TranslationTransformer) -> None:
    encoder.embeddings[0].weight = _numbers(model.embedding.weight)
    layers: Any = model.encoder
    for spec, layer in zip(encoder.layer, layers, strict=True):
        _fill_self_attention(spec.self_attention, layer.attention, layer.around_attention)
        _fill_feed_forward(spec.ffn, layer.feed_forward, layer.around_feed_forward)
    if model.config.norm == "pre":
        _fill_norm(encoder.layer_norm, model.encoder_norm)


def _fill_decoder(decoder: Any, model: TranslationTransformer) -> None:
    table = model.embedding if model.target_embedding is None else model.target_embedding
    decoder.embeddings.weight = _numbers(table.weight)
    layers: Any = model.decoder
    for spec, layer in zip(decoder.layer, layers, strict=True):
        _fill_self_attention(spec.self_attention, layer.self_attention, layer.around_self_attention)
        cross = layer.cross_attention
        to_q, to_k_and_v, to_output = spec.attention.linear
        _fill_linear(to_q, cross.to_q)
        _fill_linear(to_k_and_v, cross.to_k, cross.to_v)
        _fill_linear(to_output, cross.to_output)
        _fill_norm(spec.attention.layer_norm, layer.around_cross_attention.norm)
        _fill_feed_forward(spec.ffn, layer.feed_forward, layer.around_feed_forward)
    if model.config.norm == "pre":
        _fill_norm(decoder.layer_norm, model.decoder_norm)

    matrix: Any = model.embedding if model.to_vocabulary is None else model.to_vocabulary
    decoder.projection.weight = _numbers(matrix.weight)
    bias = np.zeros(model.config.vocab_size, np.float32)
    bias[list(NEVER_WRITTEN)] = NEVER_CHOSEN
    decoder.projection.bias = bias


def _fill_self_attention(spec: Any, attention: MultiHeadAttention, around: Residual) -> None:
    joined, to_output = spec.linear
    _fill_linear(joined, attention.to_q, attention.to_k, attention.to_v)
    _fill_linear(to_output, attention.to_output)
    _fill_norm(spec.layer_norm, around.norm)


def _fill_feed_forward(spec: Any, feed_forward: FeedForward, around: Residual) -> None:
    if feed_forward.gate is None:
        _fill_linear(spec.linear_0, feed_forward.widen)
    else:
        _fill_linear(spec.linear_0, feed_forward.gate)
        _fill_linear(spec.linear_0_noact, feed_forward.widen)
    _fill_linear(spec.linear_1, feed_forward.narrow)
    _fill_norm(spec.layer_norm, around.norm)


def _fill_linear(spec: Any, *projections: Any) -> None:
    """Fill a linear layer with one projection, or with several, one below the other."""
    spec.weight = np.concatenate([_numbers(projection.weight) for projection in projections])
    if projections[0].bias is not None:
        spec.bias = np.concatenate([_numbers(projection.bias) for projection in projections])


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _numbers(norm.weight)
    spec.beta = _numbers(norm.bias)


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    """A copy in float32; CTranslate2 changes what it is given when it quantises."""
    return tensor.detach().to("cpu", torch.float32).numpy().copy()
