"""All attention weights of a model on one text, with named axes, and what one word looked at most.

`look` is for translators, `look_text` for language models and encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from regard.arguments import a_list, a_string, count_of, of_kind, shown, suggest, whole
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.mechanisms import parse as parse_mechanism
from regard.reprs import brief
from regard_lab.decoding.loading import check_together
from regard_lab.models import LanguageModel, RecurrentTranslator
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing.terminal import visible
from regard_lab.seeing.watching import (
    Span,
    all_weights,
    layers_with_weights,
    merge,
    target_of,
    text_weights,
    watched,
)
from regard_lab.text import BEGIN, END, Tokeniser
from regard_lab.text.batches import batches_in_order

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMaps:
    """All attention weights of one sentence, float32; each row holds the weights of one query id or word.

    Row t of `decoder` and `cross` is the step that *writes* target_words[t]: its query has read "<begin>" and the
    target up to t - 1. The keys of `decoder` are therefore `read_words`, the target shifted by one.

    Args:
        source_words: labels of the source, ending with "<end>".
        target_words: labels of the target, ending with "<end>".
        encoder: (encoder layers, heads, source, source).
        decoder: (decoder layers, heads, target, target).
        cross: (decoder layers, heads, target, source).
        source_spans, target_spans: the words that the labels form, with their indices; empty if labels are words.

    Recurrent translators only have cross-attention: their `encoder` and `decoder` have 0 layers.

    Raises:
        ShapeError: weights of another size than the labels.

    >>> maps = AttentionMaps(("a", "<end>"), ("<end>",), torch.ones(1, 2, 2, 2) / 2, torch.ones(1, 2, 1, 1),
    ...                      torch.ones(1, 2, 1, 2) / 2)
    >>> maps
    AttentionMaps(2 source labels, 1 target label, 1 encoder layer and 1 decoder layer of 2 heads)
    >>> maps.matrix("cross", head=1)
    tensor([[0.5000, 0.5000]])
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    encoder: torch.Tensor
    decoder: torch.Tensor
    cross: torch.Tensor
    source_spans: tuple[Span, ...] = ()
    target_spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        for kind in KINDS:
            for words in (self.source_words, self.target_words):
                of_kind("words", words, tuple, "a tuple of words")
            shape = tuple(
                of_kind(f"{kind} weights", getattr(self, kind), torch.Tensor, "a tensor").shape
            )
            rows, columns = self.labels(kind)
            if len(shape) != 4 or shape[2:] != (len(rows), len(columns)):
                raise ShapeError(
                    f"{kind} weights are {shape}; their labels need (layers, heads, {len(rows)}, {len(columns)})"
                )

    @property
    def read_words(self) -> tuple[str, ...]:
        """The target as the decoder reads it: "<begin>", then all target words except the last."""
        return ("<begin>", *self.target_words[:-1])

    def labels(self, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The labels of the rows and of the columns of a kind of weights.

        Raises:
            ArgumentError: another kind than "encoder", "decoder" or "cross".
        """
        if kind not in KINDS:
            raise ArgumentError(f"kind is {kind!r}; {suggest(kind, KINDS)}")
        rows = self.source_words if kind == "encoder" else self.target_words
        return rows, self.read_words if kind == "decoder" else self.source_words

    def matrix(self, kind: Kind, layer: int = -1, head: int | None = None) -> torch.Tensor:
        """The weights of one head, or the mean over a layer's heads, (rows, columns).

        Args:
            kind: "encoder", "decoder" or "cross".
            layer: counted from 0; -1 is the last.
            head: counted from 0; None for the mean over all heads.

        Raises:
            ArgumentError: a kind, layer or head that does not exist.
        """
        self.labels(kind)
        layer = whole("layer", layer)
        head = None if head is None else whole("head", head)
        weights: torch.Tensor = getattr(self, kind)
        layers, heads = weights.shape[:2]
        if not layers:
            raise ArgumentError(
                f"a recurrent translator has no {kind} weights; there are those of kind 'cross'"
            )
        if not -layers <= layer < layers:
            raise ArgumentError(
                f"layer {layer} does not exist; the {kind} weights have layers 0 to {layers - 1}"
            )
        if head is not None and not 0 <= head < heads:
            raise ArgumentError(
                f"head {head} does not exist; the {kind} weights have heads 0 to {heads - 1}"
            )
        return weights[layer].mean(0) if head is None else weights[layer, head]

    def merged(self) -> AttentionMaps:
        """The weights between words instead of sub-words: the sum over key sub-words, the mean over query sub-words.

        "<end>" and "<begin>" keep their own rows and columns. A row of `decoder` may have weight on its own word:
        when the second sub-word of a word is written, the first has already been read.
        """
        source = self.source_spans or _singles(self.source_words)
        target = self.target_spans or _singles(self.target_words)
        read = [
            ("<begin>", range(1)),
            *((word, range(at.start + 1, at.stop + 1)) for word, at in target[:-1]),
        ]
        return AttentionMaps(
            tuple(word for word, _ in source),
            tuple(word for word, _ in target),
            merge(self.encoder, source, source),
            merge(self.decoder, target, read),
            merge(self.cross, target, source),
        )

    def alignment(self) -> list[tuple[int, int]]:
        """Which word of the source each word of the target looks at most, as places (source, target) in its order.

        The weights are the mean over the heads of the decoder's last layer but one.

        Source: Garg et al. 2019, Jointly Learning to Align and Translate, section 4.3: the last layer but one.

        >>> cross = torch.tensor([[[[0.1, 0.7, 0.2], [0.6, 0.1, 0.3], [0.1, 0.1, 0.8]]]])
        >>> none, layers = torch.zeros(0, 1, 3, 3), torch.cat([cross, cross.flip(-2)])
        >>> AttentionMaps(("it", "rains", "<end>"), ("regnet", "es", "<end>"), none, none, layers).alignment()
        [(1, 0), (0, 1)]
        """
        words = self.matrix("cross", max(-2, -len(self.cross)))[:-1, :-1]  # without "<end>"
        return (
            list(zip(words.argmax(1).tolist(), range(len(words)), strict=True))
            if words.numel()
            else []
        )

    def __repr__(self) -> str:
        counts = (
            *map(len, (self.source_words, self.target_words, self.encoder, self.decoder)),
            self.cross.shape[1],
        )
        units = "source labels", "target labels", "encoder layers", "decoder layers", "heads"
        sizes = map(count_of, counts, units)
        return "AttentionMaps({}, {}, {} and {} of {})".format(*sizes)


def look(
    model: TranslationModel, tokeniser: Tokeniser, source: str, target_ids: Sequence[int]
) -> AttentionMaps:
    """Record all attention weights while a model reads a source and given target ids, in one forward pass.

    Args:
        model: in any mode; it is left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        source: the text.
        target_ids: the target, without BEGIN and END; the last row, "<end>", is the step after them.

    Returns:
        The weights between ids; `.merged()` returns those between words.

    Raises:
        ArgumentError: text instead of ids, special ids, or a tokeniser that does not fit the model.
        UnsupportedError: a translator without attention.

    >>> from regard_lab.models import TranslationTransformer
    >>> tokeniser = Tokeniser.train(["The animal didn't cross the street."], vocab_size=300)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> maps = look(model, tokeniser, "The animal.", tokeniser.encode("The street.")).merged()
    >>> maps.source_words, maps.target_words
    (('The', 'animal', '.', '<end>'), ('The', 'street', '.', '<end>'))
    >>> maps.cross.shape, maps.cross.sum(-1).allclose(torch.ones(()))
    (torch.Size([2, 2, 4, 4]), True)
    """
    return look_batch(model, tokeniser, [(source, target_ids)])[0]


def look_batch(
    model: TranslationModel,
    tokeniser: Tokeniser,
    sentences: Sequence[tuple[str, Sequence[int]]],
    batch_tokens: int = 2048,
) -> list[AttentionMaps]:
    """Call `look` for many sentences, (source, target ids) each, in batches of similar length.

    Padding has no effect: each result equals that of `look`, up to rounding.

    Returns:
        The maps in the order of the sentences.

    Raises:
        ArgumentError: as `look`.
    """
    check_attends(model)
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    whole("batch_tokens", batch_tokens, 1)
    sentences = a_list(
        "sentences", sentences, (tuple, list), "(source, target ids), one for each sentence"
    )
    for sentence in sentences:
        if len(sentence) != 2:
            raise ArgumentError(f"sentences hold {shown(sentence)}; each is (source, target ids)")
    encoded = [(tokeniser.encode(source), target_of(ids)) for source, ids in sentences]
    results: dict[int, AttentionMaps] = {}
    device = next(model.parameters()).device
    for indices, batch in batches_in_order(encoded, batch_tokens):
        with watched(model, tokeniser) as recording:
            model(batch.source.to(device), batch.target.to(device))
        encoder, decoder, cross = all_weights(recording, model)
        for row, index in enumerate(indices):
            source, target = ([*ids, END] for ids in encoded[index])
            s = len(source)
            t = len(target)
            results[index] = AttentionMaps(
                tuple(tokeniser.pieces(source)),
                tuple(tokeniser.pieces(target)),
                encoder[:, row, :, :s, :s].clone(),  # a copy, so that the padded batch can be freed
                decoder[:, row, :, :t, :t].clone(),
                cross[:, row, :, :t, :s].clone(),
                tuple(tokeniser.words(source)),
                tuple(tokeniser.words(target)),
            )
    return [results[index] for index in range(len(sentences))]


def check_attends(model: TranslationModel) -> None:
    """Raise an UnsupportedError if the model has no attention."""
    of_kind(
        "model",
        model,
        TranslationModel,
        "a translation model, as load_translation_model returns it",
    )
    if isinstance(model, RecurrentTranslator) and model.config.attention == "none":
        raise UnsupportedError(
            "this translator has attention='none': it reads the source as one vector, so it has no attention weights; "
            "use a translator with attention, such as 'bahdanau'"
        )
    if not has_encoder_weights(model):
        raise UnsupportedError(
            f"the encoder's mechanism is {model.config.encoder_mechanism}, which computes no weights, so there is "
            f"nothing to show; softmax, linear, performer, random_feature and lsh have weights"
        )


def has_encoder_weights(model: TranslationModel) -> bool:
    """Whether the self-attention of the encoder, if there is one, computes weights; Linformer's does not."""
    if isinstance(model, RecurrentTranslator):
        return True
    return "weights" in parse_mechanism(model.config.encoder_mechanism).statistics


def _singles(words: Sequence[str]) -> tuple[Span, ...]:
    return tuple((word, range(place, place + 1)) for place, word in enumerate(words))


def looked_at(
    maps: AttentionMaps,
    word: str | int,
    *,
    kind: Kind = "encoder",
    layer: int = -1,
    head: int | None = None,
) -> list[tuple[str, float]]:
    """The key words of one query word with their weights, the largest first; the word itself is included.

    Args:
        maps: the weights, merged or not.
        word: the label of the row (its first occurrence, ignoring case), or its index.
        kind, layer, head: as for `AttentionMaps.matrix`.

    Returns:
        Each column's label and weight; the weights sum to 1, and equal weights are in the order of the text.

    Raises:
        ArgumentError: a word, kind, layer or head that does not exist.

    >>> import torch
    >>> weights = torch.tensor([[[[0.9, 0.0, 0.1], [0.7, 0.2, 0.1], [0.0, 0.0, 1.0]]]])
    >>> maps = AttentionMaps(("animal", "it", "<end>"), ("<end>",), weights, torch.ones(1, 1, 1, 1), weights[:, :, :1])
    >>> [(word, round(weight, 2)) for word, weight in looked_at(maps, "it")]
    [('animal', 0.7), ('it', 0.2), ('<end>', 0.1)]
    """
    of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look returns")
    return [(label, weight) for label, weight, _ in _ranked(maps, word, kind, layer, head)]


def tell_look(
    maps: AttentionMaps,
    word: str | int,
    *,
    referent: str | None = None,
    count: int = 3,
    kind: Kind = "encoder",
    layer: int = -1,
    head: int | None = None,
) -> str:
    """Describe in one sentence which words a word looked at most, except itself.

    Args:
        maps, word, kind, layer, head: as for `looked_at`.
        referent: the true referent of the word, if known; the sentence states if no head of the layer gives it weight.
        count: the number of words to list, 1 or more.

    Raises:
        ArgumentError: as `looked_at`.

    >>> import torch
    >>> weights = torch.tensor([[[[0.9, 0.0, 0.1], [0.7, 0.2, 0.1], [0.0, 0.0, 1.0]]]])
    >>> maps = AttentionMaps(("animal", "it", "<end>"), ("<end>",), weights, torch.ones(1, 1, 1, 1), weights[:, :, :1])
    >>> tell_look(maps, "it", referent="animal")
    '*it* looked most at animal (0.70), <end> (0.10); true referent: animal'
    """
    of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look returns")
    count = whole("count", count, 1)
    place = _place_of(maps, word, kind)
    # In decoder and cross the word is being written and not among the keys, so no key is excluded.
    own = place if kind == "encoder" else None
    others = [
        (label, weight)
        for label, weight, at in _ranked(maps, place, kind, layer, head)
        if at != own
    ]
    named = (
        ", ".join(f"{visible(label)} ({weight:.2f})" for label, weight in others[:count])
        or "nothing else"
    )
    truth = ""
    if referent is not None:
        looked = looked_at(maps, place, kind=kind, layer=layer)
        unseen = not any(weight for label, weight in looked if label == referent)
        truth = f"; true referent: {visible(referent)}" + (
            ", unseen by every head of this layer" if unseen else ""
        )
    return f"*{visible(maps.labels(kind)[0][place])}* looked most at {named}{truth}"


def _ranked(
    maps: AttentionMaps, word: str | int, kind: Kind, layer: int, head: int | None
) -> list[tuple[str, float, int]]:
    """The label, weight and place of each key, the largest weight first."""
    row = maps.matrix(kind, layer, head)[_place_of(maps, word, kind)].tolist()
    columns = maps.labels(kind)[1]
    return sorted(zip(columns, row, range(len(row)), strict=True), key=lambda entry: -entry[1])


def _place_of(maps: AttentionMaps, word: str | int, kind: Kind) -> int:
    rows = maps.labels(kind)[0]
    if not isinstance(word, str):
        word = whole("word", word)
        if not 0 <= word < len(rows):
            there = f"rows are words 0 to {len(rows) - 1}" if len(rows) > 1 else "row is word 0"
            raise ArgumentError(f"word {word} does not exist; the {kind} {there}")
        return word
    places = [place for place, label in enumerate(rows) if label.lower() == word.lower()]
    if not places:
        raise ArgumentError(
            f"no {kind} row is called {word!r}; there are {' '.join(map(visible, rows))}"
        )
    return places[0]


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
        layers: the layers of the model, from 0, that have these weights; recurrent ones have none.
    """

    words: tuple[str, ...]
    weights: torch.Tensor
    spans: tuple[Span, ...]
    piece_weights: torch.Tensor
    causal: bool
    layers: tuple[int, ...] = ()


def look_text(model: TextModel, tokeniser: Tokeniser, text: str) -> TextMaps:
    """Record all attention weights while a model reads a text, in one forward pass; recurrent layers have none.

    Args:
        model: a language model, which reads "<begin>" and the text, or an encoder, which also reads "<end>". It is
            left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        text: the text.

    Returns:
        The weights between words (the sum over key sub-words, the mean over query sub-words) and between ids.

    Raises:
        ArgumentError: another kind of model, or a tokeniser that does not fit it.
        UnsupportedError: a model none of whose layers computes weights.

    >>> tokeniser = Tokeniser.train(["The cat sat on the mat."], vocab_size=300)
    >>> model = LanguageModel(LanguageModel.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1))
    >>> maps = look_text(model, tokeniser, "The cat sat.")
    >>> maps.words, maps.weights.shape, maps.causal
    (('<begin>', 'The', 'cat', 'sat', '.'), torch.Size([1, 2, 5, 5]), True)
    """
    ids, causal = ids_of_text(model, tokeniser, text)
    with watched(model, tokeniser) as recording:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    weights = text_weights(recording)[:, 0]
    spans = tuple(tokeniser.words(ids))
    words = tuple(word for word, _ in spans)
    layers = tuple(layers_with_weights(model))
    return TextMaps(words, merge(weights, spans, spans), spans, weights, causal, layers)


def ids_of_text(model: TextModel, tokeniser: Tokeniser, text: str) -> tuple[list[int], bool]:
    """The ids that the model reads, and whether each looks at itself and earlier ones alone."""
    of_kind(
        "model", model, TextModel, "a LanguageModel or a TextEncoder; `look` takes a translator"
    )
    check_together(model.config.vocab_size, tokeniser)
    causal = isinstance(model, LanguageModel)
    return [BEGIN, *tokeniser.encode(a_string("text", text)), *([] if causal else [END])], causal
