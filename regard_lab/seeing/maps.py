"""All attention weights of a model on one text, with named axes.

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
        of_kind("words", self.source_words, tuple, "a tuple of words")
        of_kind("words", self.target_words, tuple, "a tuple of words")
        for kind in KINDS:
            weights = of_kind(f"{kind} weights", getattr(self, kind), torch.Tensor, "a tensor")
            shape = tuple(weights.shape)
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
        if kind == "encoder":
            return self.source_words, self.source_words
        if kind == "decoder":
            return self.target_words, self.read_words
        return self.target_words, self.source_words

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
        source = self.source_spans or _one_label_spans(self.source_words)
        target = self.target_spans or _one_label_spans(self.target_words)
        read = [("<begin>", range(1))]
        for word, ids in target[:-1]:
            read.append((word, range(ids.start + 1, ids.stop + 1)))
        return AttentionMaps(
            source_words=tuple(word for word, _ in source),
            target_words=tuple(word for word, _ in target),
            encoder=merge(self.encoder, source, source),
            decoder=merge(self.decoder, target, read),
            cross=merge(self.cross, target, source),
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
        last_but_one = max(-2, -len(self.cross))
        words = self.matrix("cross", last_but_one)[:-1, :-1]  # without "<end>"
        if not words.numel():
            return []
        return list(zip(words.argmax(1).tolist(), range(len(words)), strict=True))

    def __repr__(self) -> str:
        source = count_of(len(self.source_words), "source labels")
        target = count_of(len(self.target_words), "target labels")
        encoder = count_of(len(self.encoder), "encoder layers")
        decoder = count_of(len(self.decoder), "decoder layers")
        heads = count_of(self.cross.shape[1], "heads")
        return f"AttentionMaps({source}, {target}, {encoder} and {decoder} of {heads})"


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
            source_ids, target_ids = encoded[index]
            source = [*source_ids, END]
            target = [*target_ids, END]
            s = len(source)
            t = len(target)
            # Copies, so that the padded batch can be freed.
            results[index] = AttentionMaps(
                source_words=tuple(tokeniser.pieces(source)),
                target_words=tuple(tokeniser.pieces(target)),
                encoder=encoder[:, row, :, :s, :s].clone(),
                decoder=decoder[:, row, :, :t, :t].clone(),
                cross=cross[:, row, :, :t, :s].clone(),
                source_spans=tuple(tokeniser.words(source)),
                target_spans=tuple(tokeniser.words(target)),
            )
    return [results[index] for index in range(len(sentences))]


def check_attends(model: TranslationModel) -> None:
    """Raise an UnsupportedError if the model has no attention."""
    needed = "a translation model, as load_translation_model returns it"
    of_kind("model", model, TranslationModel, needed)
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


def _one_label_spans(labels: Sequence[str]) -> tuple[Span, ...]:
    """Words of one label each."""
    return tuple((label, range(place, place + 1)) for place, label in enumerate(labels))


ReadingModel = LanguageModel | TextEncoder


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


def look_text(model: ReadingModel, tokeniser: Tokeniser, text: str) -> TextMaps:
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
    ids = ids_of_text(model, tokeniser, text)
    with watched(model, tokeniser) as recording:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    weights = text_weights(recording)[:, 0]
    spans = tuple(tokeniser.words(ids))
    return TextMaps(
        words=tuple(word for word, _ in spans),
        weights=merge(weights, spans, spans),
        spans=spans,
        piece_weights=weights,
        causal=isinstance(model, LanguageModel),
        layers=tuple(layers_with_weights(model)),
    )


def ids_of_text(model: ReadingModel, tokeniser: Tokeniser, text: str) -> list[int]:
    """The ids that the model reads: BEGIN and the text, and for an encoder END."""
    needed = "a LanguageModel or a TextEncoder; `look` takes a translator"
    of_kind("model", model, ReadingModel, needed)
    check_together(model.config.vocab_size, tokeniser)

    ids = [BEGIN, *tokeniser.encode(a_string("text", text))]
    if isinstance(model, TextEncoder):
        ids.append(END)
    return ids
