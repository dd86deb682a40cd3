"""Records the weights of a translator without changing it, and merges weights of sub-words into weights of words."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch

from regard.arguments import a_list, shown
from regard.core.tensors import check_tensor
from regard.errors import ArgumentError, ShapeError
from regard.layers.recording import Recording, record_attention
from regard.models.kinds import TranslationModel
from regard.text import Tokeniser

Span = tuple[str, range]  # a word and the places of its ids


def merge(weights: torch.Tensor, rows: Sequence[Span], keys: Sequence[Span]) -> torch.Tensor:
    """Sub-words as words: the sum over the ids that are read, the mean over the ids that read.

        merged[I, J] = mean over i in I of sum over j in J of weights[i, j]

    A row of weights that summed to 1 still does.

    Args:
        weights: (..., ids that read, ids that are read).
        rows, keys: words of the two sides, as `Tokeniser.words` tells them; each id is in one of them.

    Returns:
        (..., words that read, words that are read).

    Raises:
        ShapeError: weights that are no tensor of floating-point numbers, or that do not fit the words.
        ArgumentError: words that are not told by spans.

    >>> halves = torch.full((2, 2), 0.5)
    >>> merge(halves, [("street", range(2))], [("street", range(2))])
    tensor([[1.]])
    """
    check_tensor("weights", weights)
    reading, read = (_membership(_spans(n, spans), weights.dtype) for n, spans in (("rows", rows), ("keys", keys)))
    fits = weights.dim() >= 2 and weights.shape[-2:] == (reading.shape[1], read.shape[1])
    if not fits or not weights.is_floating_point():
        raise ShapeError(
            f"weights are {tuple(weights.shape)} of {weights.dtype}; these words need floating-point numbers "
            f"(..., {reading.shape[1]}, {read.shape[1]})"
        )
    return (reading / reading.sum(1, keepdim=True)) @ weights @ read.mT


def _spans(name: str, spans: Sequence[Span]) -> list[Span]:
    needs = "(word, range of its ids) for each word, as Tokeniser.words gives them"
    found = a_list(name, spans, (tuple, list), needs)
    for span in found:
        if len(span) != 2 or not isinstance(span[1], range) or not span[1] or span[1].step != 1:
            raise ArgumentError(f"{name} holds {shown(span)}; it needs {needs}")
    ids = sorted(place for _, places in found for place in places)
    if ids != list(range(len(ids))):
        raise ArgumentError(f"{name} are words of the ids {shown(ids)}; each id, from 0, is in one word")
    return found


def _membership(spans: Sequence[Span], dtype: torch.dtype) -> torch.Tensor:
    """(words, ids), 1 where the id is part of the word."""
    member = torch.zeros(len(spans), sum(len(places) for _, places in spans), dtype=dtype)
    for word, (_, places) in enumerate(spans):
        member[word, places.start : places.stop] = 1
    return member


@contextmanager
def watched(model: TranslationModel, tokeniser: Tokeniser) -> Generator[Recording]:
    """While the block runs, the model drops nothing, makes no gradients and tells the weights of every layer.

    Afterwards each of its modules is in the mode, training or eval, that it was in before.

    Raises:
        ArgumentError: a tokeniser of another size than the model's vocabulary.
    """
    if model.config.vocab_size != tokeniser.vocab_size:
        raise ArgumentError(
            f"the model has {model.config.vocab_size} ids and the tokeniser {tokeniser.vocab_size}; look with the "
            f"tokeniser it was trained with"
        )
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), record_attention(model, "weights") as recording:
            yield recording
    finally:
        for module, mode in modes:
            module.training = mode


def recorded_weights(recording: Recording, stack: str, attention: str, depth: int) -> torch.Tensor:
    """The weights of every layer of a stack, (layers, batch, heads, rows, keys), float32 on the CPU."""
    return torch.stack([layer_weights(recording, f"{stack}.{layer}.{attention}") for layer in range(depth)])


def layer_weights(recording: Recording, name: str) -> torch.Tensor:
    """The weights of one layer, (batch, heads, rows, keys), float32 on the CPU.

    A recurrent layer runs once for each word that it writes; its rows are joined in their order.
    """
    return torch.cat([detail.weights.float().cpu() for detail in recording[name]], 2)
