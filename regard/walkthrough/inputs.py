"""What the shown layer reads: vectors drawn from a seed, or what the earlier layers of a trained model compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.layers import MultiHeadAttention
from regard.models import TranslationTransformer
from regard.models.language.stack import Stack
from regard.models.layers import Block, DecoderLayer, EncoderLayer
from regard.text import Tokeniser
from regard.walkthrough.steps import Axis, Walker, numbered
from regard.walkthrough.words import check_words, find_word

Text = str | Sequence[str]


def read_words(
    walker: Walker, text: Text, context: Text | None, table: torch.Tensor, words: Axis, seen: Axis | None, seed: int
) -> None:
    """The texts cut into words, and the words numbered."""
    walker.section = "From text to vectors"
    every = "set(words)" if seen is None else "{*words, *context_words}"
    for name, given, axis, what in (("", text, words, "text"), ("context_", context, seen, "context")):
        if axis is not None:
            walker.give(what, given if isinstance(given, str) else list(given or ()), f"the {what}")
            cut = f"split_words({what})" if isinstance(given, str) else f"list({what})"
            says = f"The {what}, cut into words and punctuation: the pieces that attention compares."
            walker.step(f"{name}words = {cut}", "Words" if not name else "Words of the context", says, axes=(axis,))
    walker.give("table", table, f"a vector for each word of the vocabulary, drawn with seed {seed}")
    vocabulary = Axis("words", tuple(sorted({*words.labels, *(seen.labels if seen else ())})), first=0)
    says = "Every word once, in order. A trained model comes with a vocabulary; this one is of the text alone."
    walker.step(f"vocabulary = sorted({every})", "Vocabulary", says, axes=(vocabulary,))
    for name, axis in (("", words), ("context_", seen)):
        if axis is not None:
            walker.step(
                f"{name}ids = torch.tensor([vocabulary.index(word) for word in {name}words])",
                "Ids" if not name else "Ids of the context", "Each word's place in the vocabulary, from 0.",
                axes=(axis,), scale="none",
            )  # fmt: skip


def embed_words(walker: Walker, names: tuple[str, str, str], words: Axis, positions: str) -> str:
    """Vectors of words, with their positions where those are added; the name of the vectors."""
    ids, embeddings, x = names
    dim = walker.values["table"].shape[1]
    size, of = numbered("numbers", dim), "" if x == "x" else " of the context"
    waves = positions == "sinusoidal"
    walker.step(
        f"{embeddings if waves else x} = F.embedding({ids}, table)", f"Embeddings{of}",
        "Each id takes its row of the table: a word becomes numbers.", f"{'e' if waves else x}_i = E_{{id_i}}",
        axes=(words, size),
    )  # fmt: skip
    if waves:
        _add_waves(walker, embeddings, x, words, size, of)
    return x


def _add_waves(walker: Walker, embeddings: str, x: str, words: Axis, size: Axis, of: str) -> None:
    """Sines and cosines of the place, added."""
    dim, name = len(size), "positions" if x == "x" else "context_positions"
    angles = f"{name}_angles"
    walker.step(
        f"{angles} = torch.arange({len(words)})[:, None] * 10000 ** (-torch.arange(0, {dim}, 2).double() / {dim})",
        f"Angles{of}", "The place times speeds that fall from 1 to nearly 1 / 10000.", "θ_{ic} = i · 10000^{-2c/d}",
        axes=(words, numbered("numbers", dim // 2)),
    )  # fmt: skip
    walker.step(
        f"{name} = torch.stack([{angles}.sin(), {angles}.cos()], dim=-1).flatten(1)", f"Positions{of}",
        "A sine and a cosine for each angle: slow and fast waves that tell where a word stands.",
        "p_i = [sin θ_{i0} ; cos θ_{i0} ; sin θ_{i1} ; …]", axes=(words, size),
    )  # fmt: skip
    walker.step(
        f"{x} = {embeddings} + {name}", f"Embeddings with positions{of}", "What a word is, and where it stands.",
        f"{x}_i = e_i + p_i", axes=(words, size),
    )  # fmt: skip


def read_pieces(walker: Walker, prefix: str, text: str, word: int | str | None, *, opens: bool, closes: bool) -> Axis:
    """A text cut by the run's tokeniser, between BEGIN and END where the model was trained so.

    Raises:
        ArgumentError: no text, too much of it, or no such word.
    """
    what = "context" if prefix else "text"
    tokeniser: Tokeniser = walker.values["tokeniser"]
    check_words(tokeniser.encode(text), what)
    parts = [*(["BEGIN"] if opens else []), f"*tokeniser.encode({what})", *(["END"] if closes else [])]
    walker.give(what, text, f"the {what}")
    of = " of the context" if prefix else ""
    line = f"[{', '.join(parts)}]"
    labels = tuple(tokeniser.pieces(eval(line, walker.values)))
    words = Axis("words", labels, None if prefix else find_word(word, labels))
    walker.step(
        f"{prefix}ids = torch.tensor({line})", f"Ids{of}",
        "The run's own tokeniser cuts the text into sub-words that it has learned, each with a number.",
        axes=(words,), scale="none",
    )  # fmt: skip
    walker.step(f"{prefix}words = tokeniser.pieces({prefix}ids.tolist())", f"Sub-words{of}", "As text.", axes=(words,))
    return words


def embed_run(walker: Walker, model: Stack | TranslationTransformer, words: Axis, written: bool) -> str:
    """The vectors that the first layer reads; their name."""
    config, size = model.config, numbered("numbers", model.config.dim)
    own = isinstance(model, TranslationTransformer) and written and model.target_embedding is not None
    scaled = isinstance(model, TranslationTransformer) or config.positions == "sinusoidal"
    factor = f" * math.sqrt({config.dim})" if scaled else ""
    table = "target_embedding" if own else "embedding"
    name = walker.step(
        f"embeddings = model.{table}(ids){factor}", "Embeddings",
        "Each id takes its row of the table that was learned.", "e_i = E_{t_i}" + (" √{d}" if scaled else ""),
        axes=(words, size),
    )  # fmt: skip
    if model.positions is None:
        return name
    walker.step(
        f"positions = model.positions(torch.arange({len(words)})).double()", "Positions",
        f"Where each word stands, as a vector: {config.positions}.", "p_i", axes=(words, size),
    )  # fmt: skip
    return walker.step(
        "h = embeddings + positions", "Embeddings with positions", "What a word is, and where it stands.",
        "h_i = e_i + p_i", axes=(words, size),
    )  # fmt: skip


def through_stack(walker: Walker, model: Stack, words: Axis, h: str, layer: int) -> tuple[str, Block]:
    """What attention reads in a layer of a decoder or encoder alone, and that layer."""
    axes = words, numbered("numbers", model.config.dim)
    h = _before(walker, h, layer, "blocks", "layer(h)", axes)
    x = _normed(walker, h, f"model.blocks[{layer - 1}].attention_norm", axes)
    block = model.blocks[layer - 1]
    assert isinstance(block, Block)
    return x, block


def through_encoder(
    walker: Walker, model: TranslationTransformer, words: Axis, h: str, layer: int
) -> tuple[str, MultiHeadAttention]:
    """Likewise of a translator's encoder."""
    axes, own = (words, numbered("numbers", model.config.dim)), model.encoder[layer - 1]
    assert isinstance(own, EncoderLayer)
    h = _before(walker, h, layer, "encoder", "layer(h, None)", axes)
    norm = f"model.encoder[{layer - 1}].around_attention.norm"
    return _normed(walker, h, norm, axes) if own.around_attention.first else h, own.attention


def through_decoder(
    walker: Walker, model: TranslationTransformer, words: Axis, seen: Axis, h: str, layer: int
) -> tuple[str, MultiHeadAttention]:
    """Likewise where a translator's decoder looks at the encoder, whose vectors become `c`."""
    size, own = numbered("numbers", model.config.dim), model.decoder[layer - 1]
    axes, name = (words, size), f"model.decoder[{layer - 1}]"
    assert isinstance(own, DecoderLayer)
    says = "The encoder reads the context; its vectors are what is looked at."
    walker.step("c = model.encode(context_ids[None])[0][0]", "The encoder's vectors", says, axes=(seen, size))
    start = 0 if own.cross_attention.pattern.compares_positions else None
    call = f"layer(h, c[None], live=None, context_live=None, context_q_start={start})"
    h = _before(walker, h, layer, "decoder", call, axes)
    walker.step(
        f"looked = {name}.around_self_attention({h}[None], {name}.self_attention)[0]", "After self-attention",
        "First what was written looks at itself.", axes=axes,
    )  # fmt: skip
    if not own.around_cross_attention.first:
        return "looked", own.cross_attention
    return _normed(walker, "looked", f"{name}.around_cross_attention.norm", axes), own.cross_attention


def _before(walker: Walker, h: str, layer: int, stack: str, call: str, axes: tuple[Axis, Axis]) -> str:
    """What the layers before one have made of the vectors."""
    if layer == 1:
        return h
    says = f"What layer{'s 1 to' if layer > 2 else ''} {layer - 1} made of them."
    line = f"deeper = reduce(lambda h, layer: {call}, model.{stack}[:{layer - 1}], {h}[None])[0]"
    return walker.step(line, "After the layers before", says, axes=axes)


def _normed(walker: Walker, h: str, norm: str, axes: tuple[Axis, Axis]) -> str:
    says = "The norm brings every vector to one length, about; this is what attention reads."
    return walker.step(f"x = {norm}({h})", "Normed", says, f"x_i = norm({h[0]}_i)", axes=axes)
