"""The two walkthroughs: `walk` draws weights from a seed, `walk_run` takes those of a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from regard.arguments import a_list, whole, yes_or_no
from regard.decoding.loading import check_together, load_with_tokeniser
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import MultiHeadAttention
from regard.mechanisms import Softmax
from regard.models import LanguageModel, TextEncoder, TranslationTransformer
from regard.models.language.stack import Stack
from regard.models.storage import SavedModel
from regard.models.translation_transformer import KIND as TRANSLATOR
from regard.positions import Rotary
from regard.studies.walkthrough.heads import walk_layer
from regard.studies.walkthrough.inputs import (
    Text,
    embed_run,
    embed_words,
    read_pieces,
    read_words,
    through_decoder,
    through_encoder,
    through_stack,
)
from regard.studies.walkthrough.layer import SCORES, Scene, new_score
from regard.studies.walkthrough.steps import Axis, Walk, Walker
from regard.studies.walkthrough.words import check_words, find_word, split_words

POSITIONS = ("none", "sinusoidal", "rotary")


def walk(
    text: Text,
    *,
    word: int | str | None = None,
    context: Text | None = None,
    causal: bool = False,
    heads: int = 2,
    kv_heads: int | None = None,
    head: int = 1,
    dim: int = 8,
    score: str = "scaled_dot",
    positions: str = "none",
    seed: int = 0,
) -> Walk:
    """Compute one attention layer for a text step by step, with weights drawn from a seed.

    Args:
        text: a sentence, or its words.
        word: the word that is shown in detail: its number, from 1, or its text; the second by default.
        context: another sentence, which the words attend to instead of their own (cross-attention).
        causal: if True, a word may look only at itself and earlier words.
        heads, kv_heads: of the layer.
        head: the head that is shown in detail, from 1.
        dim: size of the vectors.
        score: "scaled_dot", "dot", "general", "concat" or "additive".
        positions: "none", "sinusoidal" (added to the embeddings) or "rotary" (rotates queries and keys).
        seed: of all weights.

    Returns:
        The steps with all intermediate results; `walk(...)["weights"]` is the tensor of the step named "weights".

    Raises:
        ArgumentError: no words or too many, a word or head that does not exist, sizes that do not divide, or options
            that cannot be combined.

    Source: Attention Is All You Need, Vaswani et al. 2017, sections 3.2.1 and 3.2.2.

    >>> steps = walk("Life is short, eat dessert first")
    >>> steps.chosen, steps["weights"].shape
    ('is', torch.Size([7, 7]))
    >>> round(steps["alpha"].sum().item(), 6)
    1.0
    """
    words, text = _cut("text", text)
    read, context = (None, None) if context is None else _cut("context", context)
    yes_or_no("causal", causal)
    heads, head, dim, seed = whole("heads", heads), whole("head", head), whole("dim", dim), whole("seed", seed)
    _check_choices(score, positions, causal, crosses=read is not None)
    if not 1 <= head <= heads:
        raise ArgumentError(f"head {head} does not exist; there are heads 1 to {heads}")
    layer, table = _draw(sorted({*words, *(read or ())}), heads, kv_heads, dim, score, positions, causal, seed)
    place = find_word(word, words)

    walker = Walker()
    readers, seen = Axis("words", tuple(words), place), None if read is None else Axis("words", tuple(read))
    read_words(walker, text, context, table, readers, seen, seed)
    x = c = embed_words(walker, ("ids", "embeddings", "x"), readers, positions)
    if seen is not None:
        c = embed_words(walker, ("context_ids", "context_embeddings", "c"), seen, positions)
    scene = Scene(layer, readers, seen or readers, x, c, place, head - 1, f"drawn with seed {seed}")
    walk_layer(walker, scene)
    settings = {"heads": heads, "kv_heads": layer.kv_heads, "head": head, "dim": dim, "score": score}
    settings |= {"positions": positions, "causal": causal, "seed": seed}
    return walker.walk(readers, seen, settings)


def _cut(what: str, text: Text) -> tuple[list[str], Text]:
    """The words of a text, and the text as a string or list for the lines of the walkthrough."""
    given = text if isinstance(text, str) else a_list(what, text, str, "a sentence, or a list of its words")
    words = split_words(given) if isinstance(given, str) else given
    check_words(words, what)
    return words, given


def _check_choices(score: str, positions: str, causal: bool, crosses: bool) -> None:
    for what, chosen, there in (("score", score, SCORES), ("positions", positions, POSITIONS)):
        if chosen not in there:
            raise ArgumentError(f"{what} {chosen!r} does not exist; there are {', '.join(there)}")
    if crosses and (causal or positions == "rotary"):
        what = "causal attention" if causal else "rotary positions"
        raise ArgumentError(
            f"{what} compares positions, and positions of two texts have no common origin; leave out this option or "
            f"the context"
        )


def _draw(
    vocabulary: Sequence[str],
    heads: int,
    kv_heads: int | None,
    dim: int,
    score: str,
    positions: str,
    causal: bool,
    seed: int,
) -> tuple[MultiHeadAttention, torch.Tensor]:
    """A random layer and table of vectors (words, dim), scaled such that queries and keys have unit variance."""
    if min(dim, heads) < 1 or dim % heads:
        raise ArgumentError(
            f"dim {dim} is not divisible by {heads} heads; choose another dim or another number of heads"
        )
    if positions == "sinusoidal" and dim % 2:
        raise ArgumentError(f"sinusoidal positions need an even dim, and dim is {dim}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        table = torch.randn(len(vocabulary), dim)
        layer = MultiHeadAttention(
            dim,
            heads,
            kv_heads=kv_heads,
            pattern="causal" if causal else None,
            mechanism=Softmax(new_score(score, dim // heads)),
            positions=Rotary() if positions == "rotary" else None,
            projection_bias=False,
        )
        for projection in layer.children():
            if isinstance(projection, nn.Linear):
                nn.init.normal_(projection.weight, std=dim**-0.5)
        for learned in layer.mechanism.learned.values():
            nn.init.normal_(learned, std=learned.shape[-1] ** -0.5)
    return layer.double().eval().requires_grad_(False), table.double()


Model = LanguageModel | TextEncoder | TranslationTransformer
ORIGIN = "learned"


def walk_run(
    run: str | Path,
    text: str,
    *,
    word: int | str | None = None,
    context: str | None = None,
    layer: int = 1,
    head: int = 1,
) -> Walk:
    """Compute one attention layer of a trained model for a text step by step, in float64.

    For a translator without `context`, `text` is the source, and a layer of the encoder is shown. With `context`, the
    source sentence, `text` is the translation so far, and the cross-attention of the decoder is shown.

    Args:
        run: the folder of a training run or of a saved LanguageModel, TextEncoder or TranslationTransformer.
        text: the text to read; its words are the sub-words of the model's tokeniser.
        word: the word that is shown in detail: its number, from 1, or its text; the second by default.
        context: the source sentence, for a translator.
        layer, head: which to show, from 1.

    Returns:
        The steps with all intermediate results.

    Raises:
        CheckpointError: missing or damaged files.
        ArgumentError: no words or too many, or a word, layer or head that does not exist.
        UnsupportedError: a kind of model or layer that a walkthrough cannot show.
    """
    saved, tokeniser = load_with_tokeniser(run)
    model = _load(saved, str(run))
    check_together(model.config.vocab_size, tokeniser)
    translates, crosses = isinstance(model, TranslationTransformer), context is not None
    if crosses and not translates:
        raise ArgumentError(f"{run} is a {saved.kind}, which reads a single text; leave the context out")
    _check_number("layer", layer, _depth(model, crosses))
    _check_number("head", head, model.config.heads)

    walker = Walker()
    walker.give("model", model, f"the trained {saved.kind}")
    walker.give("tokeniser", tokeniser, "the tokeniser of the model")
    walker.section = "From text to vectors"
    opens, closes = crosses or not translates, not crosses and not isinstance(model, LanguageModel)
    readers, seen = read_pieces(walker, "", text, word, opens=opens, closes=closes), None
    assert readers.chosen is not None
    place = readers.chosen
    h = embed_run(walker, model, readers, written=crosses)
    if isinstance(model, Stack):
        x, block = through_stack(walker, model, readers, h, layer)
        attention = block.attention
        scene = Scene(attention, readers, readers, x, x, place, head - 1, ORIGIN, block.bias)
    elif context is None:
        x, attention = through_encoder(walker, model, readers, h, layer)
        scene = Scene(attention, readers, readers, x, x, place, head - 1, ORIGIN)
    else:
        seen = read_pieces(walker, "context_", context, None, opens=False, closes=True)
        x, attention = through_decoder(walker, model, readers, seen, h, layer)
        scene = Scene(attention, readers, seen, x, "c", place, head - 1, ORIGIN)
    walk_layer(walker, scene)
    settings = {"run": str(run), "model": saved.kind, "layer": layer, "head": head, "heads": attention.heads}
    settings |= {"kv_heads": attention.kv_heads, "dim": attention.dim, "pattern": str(attention.pattern)}
    return walker.walk(readers, seen, settings)


def _load(saved: SavedModel, where: str) -> Model:
    """The model in float64, so that every digit shown is correct."""
    kinds = {LanguageModel.KIND: LanguageModel, TextEncoder.KIND: TextEncoder, TRANSLATOR: TranslationTransformer}
    if saved.kind not in kinds:
        raise UnsupportedError(f"{where} is a {saved.kind}; a walkthrough needs a {', a '.join(kinds)}")
    return kinds[saved.kind].from_saved(saved, where).double().eval().requires_grad_(False)


def _depth(model: Model, crosses: bool) -> int:
    if isinstance(model, TranslationTransformer):
        return model.config.decoder_layers if crosses else model.config.encoder_layers
    return model.config.layers


def _check_number(what: str, number: int, count: int) -> None:
    if not 1 <= whole(what, number) <= count:
        raise ArgumentError(f"{what} {number} does not exist; this model has {what}s 1 to {count}")
