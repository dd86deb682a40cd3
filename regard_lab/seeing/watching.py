"""Records the weights of a translator without changing it, and merges weights of sub-words into weights of words."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from regard.arguments import a_list, each, shown, whole
from regard.core.tensors import check_tensor
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.recording import Recording, record_attention
from regard_lab.decoding.loading import check_together
from regard_lab.models import LanguageModel, RecurrentTranslator, TextEncoder
from regard_lab.models.kinds import TranslationModel
from regard_lab.models.layers import AttentionLayer
from regard_lab.text import BEGIN, END, PAD, Tokeniser

Span = tuple[str, range]  # a word and the indices of its ids


def merge(weights: torch.Tensor, rows: Sequence[Span], keys: Sequence[Span]) -> torch.Tensor:
    """Merge weights between sub-words into weights between words: the sum over keys, the mean over queries.

        merged[I, J] = mean over i in I of sum over j in J of weights[i, j]

    Each row still sums to 1.

    Args:
        weights: (..., query ids, key ids).
        rows, keys: words of queries and of keys, as `Tokeniser.words` returns them; each id is in exactly one word.

    Returns:
        (..., query words, key words).

    Raises:
        ShapeError: weights without floating-point numbers, or of another size than the words.
        ArgumentError: words that are not (word, range) pairs, or that do not cover each id once.

    >>> halves = torch.full((2, 2), 0.5)
    >>> merge(halves, [("street", range(2))], [("street", range(2))])
    tensor([[1.]])
    """
    check_tensor("weights", weights)
    row_members = _membership("rows", rows).to(weights.dtype)  # (query words, query ids)
    key_members = _membership("keys", keys).to(weights.dtype)  # (key words, key ids)
    sizes = (row_members.shape[1], key_members.shape[1])
    fits = weights.dim() >= 2 and weights.shape[-2:] == sizes
    if not fits or not weights.is_floating_point():
        raise ShapeError(
            f"weights are {tuple(weights.shape)} of {weights.dtype}; these words need floating-point numbers "
            f"(..., {sizes[0]}, {sizes[1]})"
        )
    means = row_members / row_members.sum(1, keepdim=True)
    return means @ weights @ key_members.mT


def _membership(name: str, spans: Sequence[Span]) -> torch.Tensor:
    """(words, ids), True if the id is part of the word."""
    needed = "(word, range of its ids) for each word, as Tokeniser.words returns them"
    words = a_list(name, spans, (tuple, list), needed)
    ids: list[int] = []
    for span in words:
        if not _is_span(span):
            raise ArgumentError(f"{name} contains {shown(span)}; it needs {needed}")
        ids += span[1]
    ids.sort()
    if ids != list(range(len(ids))):
        raise ArgumentError(
            f"{name} are words of the ids {shown(ids)}; each id, from 0, must be in exactly one word"
        )

    member = torch.zeros(len(words), len(ids), dtype=torch.bool)
    for row, (_, places) in enumerate(words):
        member[row, places.start : places.stop] = True
    return member


def _is_span(span: Sequence[Any]) -> bool:
    """Whether it is a word with the range of its ids, at least one of them."""
    if len(span) != 2 or not isinstance(span[1], range):
        return False
    return len(span[1]) > 0 and span[1].step == 1


@contextmanager
def watched(
    model: TranslationModel | LanguageModel | TextEncoder, tokeniser: Tokeniser
) -> Generator[Recording]:
    """Record the weights of every layer, in eval mode and without gradients."""
    check_together(model.config.vocab_size, tokeniser)
    with in_eval_mode(model), torch.no_grad(), recorded(model) as recording:
        yield recording


@contextmanager
def recorded(model: torch.nn.Module) -> Generator[Recording]:
    """Record the weights of every layer that computes some.

    Raises:
        UnsupportedError: a language model or an encoder none of whose layers computes weights.
    """
    if not isinstance(model, LanguageModel | TextEncoder):
        with record_attention(model, "weights") as recording:
            yield recording
        return

    attentions = attentions_of(model)
    layers = layers_with_weights(model)
    if not layers:
        raise UnsupportedError(
            f"{_mechanisms_of(attentions)}: no layer computes weights{_way_out(model)}"
        )
    attending = torch.nn.ModuleList(attentions[layer] for layer in layers)
    with record_attention(attending, "weights") as recording:
        yield recording


def attentions_of(model: LanguageModel | TextEncoder) -> list[AttentionLayer]:
    """The attention of each layer."""
    blocks: Any = model.blocks
    return [block.attention for block in blocks]


def _mechanisms_of(attentions: Sequence[AttentionLayer]) -> str:
    """The mechanisms of some layers in words, each once."""
    return " and ".join(sorted({str(attention.mechanism.declared) for attention in attentions}))


def _way_out(model: torch.nn.Module) -> str:
    if not isinstance(model, LanguageModel):
        return ", so there is nothing to show; softmax, linear, performer, random_feature and lsh have weights"
    return (
        "; what a word depends on is measured without any: lens='erase' of relevance, "
        "or regard view RUN TEXT --lens erase"
    )


def layers_with_weights(model: LanguageModel | TextEncoder) -> list[int]:
    """The layers, from 0, whose mechanism computes weights; recurrent ones compute none.

    >>> config = LanguageModel.Config(vocab_size=9, dim=8, heads=2, layers=3, mechanism=("ssd", "softmax"))
    >>> layers_with_weights(LanguageModel(config))
    [1]
    """
    layers = []
    for layer, attention in enumerate(attentions_of(model)):
        if "weights" in attention.mechanism.declared.statistics:
            layers.append(layer)
    return layers


def remark_on_layers(model: LanguageModel | TextEncoder) -> str | None:
    """A sentence that names the layers without weights, where some layers have them; None if all have."""
    attentions = attentions_of(model)
    with_weights = layers_with_weights(model)
    without = [layer for layer in range(len(attentions)) if layer not in with_weights]
    if not with_weights or not without:
        return None
    mechanisms = _mechanisms_of([attentions[layer] for layer in without])
    have = "have" if len(without) > 1 else "has"
    return (
        f"The maps are those of {_numbered(with_weights)} of the model, from 0; {_numbered(without)}, with "
        f"{mechanisms}, {have} no attention weights."
    )


def _numbered(layers: Sequence[int]) -> str:
    """Layers in words.

    >>> _numbered([1]), _numbered([0, 2, 5])
    ('layer 1', 'layers 0, 2 and 5')
    """
    *before, last = map(str, layers)
    return f"layers {', '.join(before)} and {last}" if before else f"layer {last}"


@contextmanager
def in_eval_mode(model: torch.nn.Module) -> Generator[None]:
    """Eval mode inside; afterwards each module has its previous mode, training or eval."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def all_weights(
    recording: Recording, model: TranslationModel | LanguageModel | TextEncoder
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Encoder, decoder and cross weights of a batch, (layers, batch, heads, rows, keys); some may have 0 layers."""
    if isinstance(model, LanguageModel | TextEncoder):
        weights = text_weights(recording)
        none = weights[:0, ..., :0]  # no layers and no keys
        nothing = none[..., :0, :]  # nor rows
        if isinstance(model, LanguageModel):
            return nothing, weights, none
        return weights, nothing, none

    if isinstance(model, RecurrentTranslator):
        cross = layer_weights(recording, "cell.attention")[None]  # (1, batch, 1, target, source)
        _, batch, heads, target, source = cross.shape
        encoder = cross.new_zeros(0, batch, heads, source, source)
        decoder = cross.new_zeros(0, batch, heads, target, target)
        return encoder, decoder, cross

    return (
        recorded_weights(recording, "encoder", "attention", model.config.encoder_layers),
        recorded_weights(recording, "decoder", "self_attention", model.config.decoder_layers),
        recorded_weights(recording, "decoder", "cross_attention", model.config.decoder_layers),
    )


def target_of(target_ids: Sequence[int]) -> list[int]:
    """The ids of a target as a list."""
    if isinstance(target_ids, str):
        raise ArgumentError(
            f"target_ids is the text {target_ids[:40]!r}; give its ids, tokeniser.encode_target(text)"
        )
    listed = each("target_ids", target_ids, "ids, as encode returns them")
    ids = [whole("an id of target_ids", identifier, 0) for identifier in listed]
    special = sorted({PAD, BEGIN, END} & set(ids))
    if special:
        raise ArgumentError(
            f"target_ids contain the special ids {special}; give only those of the text"
        )
    return ids


def recorded_weights(recording: Recording, stack: str, attention: str, depth: int) -> torch.Tensor:
    """The weights of every layer of a stack, (layers, batch, heads, rows, keys), float32 on the CPU."""
    names = [f"{stack}.{layer}.{attention}" for layer in range(depth)]
    return torch.stack([layer_weights(recording, name) for name in names])


def text_weights(recording: Recording) -> torch.Tensor:
    """The weights of the layers that `recorded` records of a language model or an encoder, as `recorded_weights`."""
    return torch.stack([layer_weights(recording, name) for name in recording.details])


def layer_weights(recording: Recording, name: str) -> torch.Tensor:
    """The weights of one layer, (batch, heads, rows, keys), float32 on the CPU.

    A recurrent layer runs once for each target word; its rows are concatenated.
    """
    return torch.cat([detail.weights.float().cpu() for detail in recording[name]], 2)
