"""All attention weights of a language model or an encoder on one text, between its ids and between its words."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import a_string, of_kind
from regard.errors import ArgumentError
from regard.inspection.watching import Span, merge
from regard.layers.recording import record_attention
from regard.models import LanguageModel
from regard.models.encoder import TextEncoder
from regard.reprs import brief
from regard.text import BEGIN, END, Tokeniser

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
    of_kind("model", model, TextModel, "a LanguageModel or a TextEncoder; `look` takes a translator")
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    if model.config.vocab_size != tokeniser.vocab_size:
        raise ArgumentError(
            f"the model has {model.config.vocab_size} ids and the tokeniser {tokeniser.vocab_size}; use the tokeniser "
            f"that the model was trained with"
        )
    causal = isinstance(model, LanguageModel)
    ids = [BEGIN, *tokeniser.encode(a_string("text", text)), *([] if causal else [END])]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), record_attention(model, "weights") as recording:
            model(torch.tensor([ids], device=next(model.parameters()).device))
    finally:
        for module, mode in modes:
            module.training = mode
    details = [recording[f"blocks.{layer}.attention"][0] for layer in range(model.config.layers)]
    weights = torch.stack([detail.weights[0].float().cpu() for detail in details])
    spans = tuple(tokeniser.words(ids))
    words = tuple(word for word, _ in spans)
    return TextMaps(words, merge(weights, spans, spans), spans, weights, causal)
