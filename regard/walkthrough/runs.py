"""A walk with the weights of a trained model: one of its attention layers, reading what it really reads there."""

from __future__ import annotations

from pathlib import Path

from regard.arguments import whole
from regard.decoding.loading import check_together, load_with_tokeniser
from regard.errors import ArgumentError, UnsupportedError
from regard.models import LanguageModel, TextEncoder, TranslationTransformer
from regard.models.language.stack import Stack
from regard.models.storage import SavedModel
from regard.models.translation_transformer import KIND as TRANSLATOR
from regard.walkthrough.attention import walk_layer
from regard.walkthrough.layer import Scene
from regard.walkthrough.model_inputs import embed_run, read_pieces, through_decoder, through_encoder, through_stack
from regard.walkthrough.steps import Walk
from regard.walkthrough.walker import Walker

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
    """Go step by step through one attention layer of a trained model, in float64.

    Of a translator, `text` alone goes through its encoder. With a `context`, the sentence that is translated, `text` is
    what was written so far, and looks at it.

    Args:
        run: the folder of a training or of a saved LanguageModel, TextEncoder or TranslationTransformer.
        text: what is read; its words are the sub-words of the run's tokeniser.
        word: the one that is followed alone: its number, from 1, or itself; the second by default.
        context: of a translator, what is looked at.
        layer, head: which, from 1.

    Raises:
        CheckpointError: missing or damaged.
        ArgumentError: a text without words or with too many, or a word, layer or head that is not there.
        UnsupportedError: a model without layers that a walk shows, or a layer that does what no step shows.
    """
    saved, tokeniser = load_with_tokeniser(run)
    model = _load(saved, str(run))
    check_together(model.config.vocab_size, tokeniser)
    translates, crosses = isinstance(model, TranslationTransformer), context is not None
    if crosses and not translates:
        raise ArgumentError(f"{run} holds a {saved.kind}, which reads one text; leave the context out")
    _check_number("layer", layer, _depth(model, crosses))
    _check_number("head", head, model.config.heads)

    walker = Walker()
    walker.give("model", model, f"the {saved.kind} of the run")
    walker.give("tokeniser", tokeniser, "the one it was trained with")
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
    """The model in float64, so that each number shown is right to its last digit."""
    kinds = {LanguageModel.KIND: LanguageModel, TextEncoder.KIND: TextEncoder, TRANSLATOR: TranslationTransformer}
    if saved.kind not in kinds:
        raise UnsupportedError(f"{where} holds a {saved.kind}; a walk goes through a {', a '.join(kinds)}")
    return kinds[saved.kind].from_saved(saved, where).double().eval().requires_grad_(False)


def _depth(model: Model, crosses: bool) -> int:
    if isinstance(model, TranslationTransformer):
        return model.config.decoder_layers if crosses else model.config.encoder_layers
    return model.config.layers


def _check_number(what: str, number: int, count: int) -> None:
    if not 1 <= whole(what, number) <= count:
        raise ArgumentError(f"{what} {number} was asked for; this model has {what}s 1 to {count}")
