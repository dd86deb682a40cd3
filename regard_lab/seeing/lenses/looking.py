"""Attention as a lens: raw cross-attention, and rollout. Both show where a model looks, not what it uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from regard.errors import ArgumentError, UnsupportedError
from regard.layers.recording import Recording
from regard_lab.models import LanguageModel, RecurrentTranslator
from regard_lab.seeing.lenses.contrast import Contrast
from regard_lab.seeing.lenses.passes import Batch, Explained, in_batches, run
from regard_lab.seeing.lenses.record import WordScores, by_word
from regard_lab.seeing.maps import check_attends
from regard_lab.seeing.watching import layer_weights, recorded_weights, watched
from regard_lab.text import Tokeniser

Row = tuple[torch.Tensor, torch.Tensor]  # scores of the source ids and of the written ids
Stacks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # encoder, decoder, cross: (layers, heads, rows, keys)


def attention_scores(
    model: Explained, tokeniser: Tokeniser, contrasts: Sequence[Contrast], *, head: tuple[int, int] | None = None
) -> list[WordScores]:
    """The raw weights of the step that writes the word: cross-attention to the source, self-attention to the written.

    Args:
        model: a model with attention; a recurrent translator has no weights on written words.
        tokeniser: the tokeniser that the model was trained with.
        contrasts: what is explained; attention does not depend on the words that are compared.
        head: (layer, head), from 0; None for the mean over all heads of all layers.

    Raises:
        ArgumentError: a head that does not exist.
        UnsupportedError: a recurrent translator without attention.
    """

    def last_row(stacks: Stacks) -> Row:
        _, decoder, cross = (_chosen(stack, head) for stack in stacks)
        return cross[-1] if len(cross) else cross.flatten(), decoder[-1] if len(decoder) else decoder.flatten()

    return _from_weights(model, tokeniser, contrasts, last_row)


def rollout_scores(model: Explained, tokeniser: Tokeniser, contrasts: Sequence[Contrast]) -> list[WordScores]:
    """Attention rolled out through all layers: the product of the mean weights, half of each layer being the residual.

        E = prod over encoder layers of (A + I) / 2
        X = [0, I];  for each decoder layer: X = (A + I) / 2 X, then X = X / 2 + [C E, 0] / 2

    The row of the step that writes the word is the result. It is a weak lens: it treats every head as equally useful
    and ignores values, norms and feed-forwards.

    Raises:
        UnsupportedError: a recurrent translator.

    Source: Quantifying Attention Flow in Transformers, Abnar and Zuidema 2020, section 3.
    """
    if isinstance(model, RecurrentTranslator):
        raise UnsupportedError(
            "rollout multiplies the self-attention of layers, and RecurrentTranslator has none; use "
            "lens='gradients' or lens='erase'"
        )
    return _from_weights(model, tokeniser, contrasts, rolled_out)


def rolled_out(stacks: Stacks) -> Row:
    """The last row of the rollout of one text, for its source ids and its written ids."""
    encoder, decoder, cross = (stack.mean(1) for stack in stacks)  # (layers, rows, keys)
    from_source = torch.eye(encoder.shape[-1])
    for weights in encoder:
        from_source = (weights + torch.eye(len(weights))) / 2 @ from_source
    source, written = torch.zeros(decoder.shape[-1], encoder.shape[-1]), torch.eye(decoder.shape[-1])
    for layer, weights in enumerate(decoder):
        mixing = (weights + torch.eye(len(weights))) / 2
        source, written = mixing @ source, mixing @ written
        if layer < len(cross):
            source, written = (source + cross[layer] @ from_source) / 2, written / 2
    return source[-1], written[-1]


def _chosen(weights: torch.Tensor, head: tuple[int, int] | None) -> torch.Tensor:
    """(layers, heads, rows, keys) -> the weights of a head, or the mean; none if there are no layers."""
    layers, heads = weights.shape[:2]
    if not layers:
        return weights.new_zeros(0, 0)
    if head is None:
        return weights.mean((0, 1))
    layer, number = head
    if not (0 <= layer < layers and 0 <= number < heads):
        raise ArgumentError(
            f"head {number} of layer {layer} does not exist; there are layers 0 to {layers - 1} and heads 0 to "
            f"{heads - 1}"
        )
    return weights[layer, number]


def _from_weights(
    model: Explained, tokeniser: Tokeniser, contrasts: Sequence[Contrast], read: Callable[[Stacks], Row]
) -> list[WordScores]:
    """Word scores from the weights of one pass; `read` gets those of one text without its padding."""
    if not isinstance(model, LanguageModel):
        check_attends(model)
    results: dict[int, WordScores] = {}
    for group in in_batches(contrasts):
        batch = Batch.of_contrasts([contrasts[index] for index in group], model.embedding.weight.device)
        with watched(model, tokeniser) as recording:
            run(model, batch)
        encoder, decoder, cross = _all_weights(recording, model)
        for row, index in enumerate(group):
            contrast = contrasts[index]
            s, t = len(contrast.source), len(contrast.written)
            stacks = encoder[:, row, :, :s, :s], decoder[:, row, :, :t, :t], cross[:, row, :, :t, :s]
            source, written = read(stacks)
            results[index] = WordScores(
                source=by_word(source, contrast.source_words) if len(source) else (),
                written=by_word(written, contrast.written_words) if len(written) else (),
                passes=1,
            )
    return [results[index] for index in range(len(contrasts))]


def _all_weights(recording: Recording, model: Explained) -> Stacks:
    """Encoder, decoder and cross weights of a batch, (layers, batch, heads, rows, keys); some may have 0 layers."""
    if isinstance(model, LanguageModel):
        decoder = recorded_weights(recording, "blocks", "attention", model.config.layers)
        none = decoder[:0, ..., :0]
        return none[..., :0, :], decoder, none
    if isinstance(model, RecurrentTranslator):
        cross = layer_weights(recording, "cell.attention")[None]
        return cross[:0], cross[:0], cross
    return (
        recorded_weights(recording, "encoder", "attention", model.config.encoder_layers),
        recorded_weights(recording, "decoder", "self_attention", model.config.decoder_layers),
        recorded_weights(recording, "decoder", "cross_attention", model.config.decoder_layers),
    )
