"""All attention weights of a language model or an encoder on one text, between its ids and between its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.arguments import a_string, of_kind, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.recording import record_attention
from regard.reprs import brief
from regard_lab.models import LanguageModel
from regard_lab.models.encoder import TextEncoder
from regard_lab.seeing.watching import Span, in_eval_mode, merge
from regard_lab.text import BEGIN, END, Tokeniser

TextModel = LanguageModel | TextEncoder


@brief
@dataclass(frozen=True, eq=False, repr=False)
class TextMaps:
    """The weights of every head on one text; each row holds the weights of one query and sums to 1.

    Args:
        words: "<begin>", the words and runs of punctuation, and for an encoder "<end>".
        weights: (layers, heads, words, words), float32.
        spans: the words with the indices of their ids.
        piece_weights: (layers, heads, ids, ids), before sub-words are merged.
        causal: whether a query has only itself and earlier keys.
    """

    words: tuple[str, ...]
    weights: torch.Tensor
    spans: tuple[Span, ...]
    piece_weights: torch.Tensor
    causal: bool


def look_text(model: TextModel, tokeniser: Tokeniser, text: str) -> TextMaps:
    """Record all attention weights while a model reads a text, in one forward pass.

    Args:
        model: a language model, which reads "<begin>" and the text, or an encoder, which also reads "<end>". It is
            left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        text: the text.

    Returns:
        The weights between words (the sum over key sub-words, the mean over query sub-words) and between ids.

    Raises:
        ArgumentError: another kind of model, or a tokeniser that does not fit it.

    >>> tokeniser = Tokeniser.train(["The cat sat on the mat."], vocab_size=300)
    >>> model = LanguageModel(LanguageModel.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1))
    >>> maps = look_text(model, tokeniser, "The cat sat.")
    >>> maps.words, maps.weights.shape, maps.causal
    (('<begin>', 'The', 'cat', 'sat', '.'), torch.Size([1, 2, 5, 5]), True)
    """
    ids, causal = _ids_of(model, tokeniser, text)
    with in_eval_mode(model), torch.no_grad(), record_attention(model, "weights") as recording:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    details = [recording[f"blocks.{layer}.attention"][0] for layer in range(model.config.layers)]
    weights = torch.stack([detail.weights[0].float().cpu() for detail in details])
    spans = tuple(tokeniser.words(ids))
    words = tuple(word for word, _ in spans)
    return TextMaps(words, merge(weights, spans, spans), spans, weights, causal)


def _ids_of(model: TextModel, tokeniser: Tokeniser, text: str) -> tuple[list[int], bool]:
    """The ids that the model reads, and whether each looks at itself and earlier ones alone."""
    of_kind("model", model, TextModel, "a LanguageModel or a TextEncoder; `look` takes a translator")
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    if model.config.vocab_size != tokeniser.vocab_size:
        raise ArgumentError(
            f"the model has {model.config.vocab_size} ids and the tokeniser {tokeniser.vocab_size}; use the tokeniser "
            f"that the model was trained with"
        )
    causal = isinstance(model, LanguageModel)
    return [BEGIN, *tokeniser.encode(a_string("text", text)), *([] if causal else [END])], causal


@brief
@dataclass(frozen=True, eq=False, repr=False)
class SampledMaps:
    """The weights of every head for some words of a long text, whose other rows were not computed.

    Args:
        words: all words of the text.
        rows: indices of the words whose rows were computed, in order.
        weights: (layers, heads, rows, words), float32; each row sums to 1.
        causal: whether a query has only itself and earlier keys.
    """

    words: tuple[str, ...]
    rows: tuple[int, ...]
    weights: torch.Tensor
    causal: bool


@torch.no_grad()
def look_rows(model: TextModel, tokeniser: Tokeniser, text: str, count: int, *, seed: int = 0) -> SampledMaps:
    """Record the weights of all heads for some words of a text, without the weights of the others.

    The model reads the text once. Then each layer computes the rows of the chosen words again, one at a time, so memory
    grows with the length and not with its square.

    Args:
        model, tokeniser, text: as for `look_text`.
        count: how many words are chosen; all if there are fewer.
        seed: decides which.

    Raises:
        ArgumentError: as `look_text`.
        UnsupportedError: a mechanism whose rows depend on each other.

    >>> tokeniser = Tokeniser.train(["The cat sat on the mat."], vocab_size=300)
    >>> model = LanguageModel(LanguageModel.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1))
    >>> maps = look_rows(model, tokeniser, "The cat sat on the mat.", 3)
    >>> len(maps.rows), maps.weights.shape
    (3, torch.Size([1, 2, 3, 8]))
    """
    ids, causal = _ids_of(model, tokeniser, text)
    spans = tuple(tokeniser.words(ids))
    order = torch.randperm(len(spans), generator=torch.Generator().manual_seed(whole("seed", seed, 0)))
    rows = tuple(sorted(order[: whole("count", count, 1)].tolist()))
    with in_eval_mode(model):
        inputs = _inputs_of_layers(model, torch.tensor([ids], device=next(model.parameters()).device))
        weights = torch.stack([_rows_of(block.attention, *given, [spans[row] for row in rows], spans)
                               for block, given in zip(model.blocks, inputs, strict=True)])  # fmt: skip
    return SampledMaps(tuple(word for word, _ in spans), rows, weights, causal)


def _inputs_of_layers(model: TextModel, ids: torch.Tensor) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """What the attention of each layer reads: its vectors (1, length, dim) and its options."""
    found: list[tuple[torch.Tensor, dict[str, Any]]] = []

    def keep(_: torch.nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        found.append((given[0], dict(options)))

    layers: list[Any] = list(model.blocks)
    hooks = [layer.attention.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _rows_of(
    attention: Any, x: torch.Tensor, options: dict[str, Any], chosen: Sequence[Span], spans: Sequence[Span]
) -> torch.Tensor:
    """The weights (heads, chosen words, words) of one layer."""
    if attention.to_k is None:
        raise UnsupportedError(
            f"{attention.mechanism.declared} compares all queries with each other, so some rows cannot be computed by "
            f"themselves; give a shorter text"
        )
    options = {name: value for name, value in options.items() if name in ("pattern", "bias")}
    context, parts = attention.project_context(x), []
    for _, places in chosen:
        with record_attention(attention, "weights") as recording:
            for at in places:
                attention(x[:, at : at + 1], context, q_start=at, **options)
        rows = torch.cat([detail.weights[0].float().cpu() for detail in recording[""]], 1)  # (heads, ids of word, ids)
        parts.append(merge(rows, [("", range(len(places)))], spans))
    return torch.cat(parts, 1)
