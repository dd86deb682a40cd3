"""The walkthrough of a whole model: `walk_whole` draws a small one, `walk_whole_run` takes a trained one."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import torch

from regard.arguments import a_string, whole
from regard.errors import ArgumentError
from regard_lab.decoding.loading import check_together, load_with_tokeniser
from regard_lab.lessons.walkthrough.inputs import Text, read_pieces
from regard_lab.lessons.walkthrough.pasting import call_of
from regard_lab.lessons.walkthrough.stacks import LEARNED, through_model
from regard_lab.lessons.walkthrough.steps import RANDOM_NOTE, Axis, Walk, Walker
from regard_lab.lessons.walkthrough.walks import Model, cut_text, load_model
from regard_lab.lessons.walkthrough.words import find_word
from regard_lab.models import EncoderConfig, LanguageConfig, LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.text.vocabularies import SPECIALS

MODELS = ("decoder", "encoder", "encoder-decoder")
POSITIONS = ("sinusoidal", "rotary", "learned")


def walk_whole(
    text: Text,
    *,
    word: int | str | None = None,
    context: Text | None = None,
    model: str | None = None,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int | None = None,
    dim: int = 8,
    positions: str = "sinusoidal",
    words: str = "all",
    seed: int = 0,
) -> Walk:
    """Compute a whole small Transformer for a text step by step, with weights drawn from a seed.

    Every layer and the output are compared with the model's own forward pass; a difference raises.

    Args:
        text: a sentence, or its words; with a context, what has been written so far.
        word: the word that is followed; "<begin>" is word 1 of a decoder. By default the last word of a decoder, after
            which the next word is predicted, and the second of an encoder.
        context: the sentence that the encoder of an encoder-decoder reads.
        model: "decoder" (a LanguageModel), "encoder" (a TextEncoder) or "encoder-decoder" (a TranslationTransformer);
            by default "encoder-decoder" with a context, else "decoder".
        layers, heads, kv_heads, dim: of the model; an encoder-decoder has as many layers on each side.
        positions: "sinusoidal", "rotary" or "learned".
        words: the units of a sentence: "all", or "letters" to drop punctuation.
        seed: of all weights.

    Returns:
        The steps with all intermediate results, of all words and heads.

    Raises:
        ArgumentError: no words or too many, a word that does not exist, sizes that do not divide, or options that
            cannot be combined.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.

    >>> steps = walk_whole("Life is short", layers=1)
    >>> steps["probabilities"].shape, round(float(steps["probabilities"][-1].sum()), 6)
    (torch.Size([4, 7]), 1.0)
    """
    call = call_of(walk_whole, locals())
    kind = a_string("model", model if model is not None else ("decoder" if context is None else "encoder-decoder"))
    if kind not in MODELS:
        raise ArgumentError(f"model {kind[:40]!r} does not exist; there are {', '.join(MODELS)}")
    if (context is not None) != (kind == "encoder-decoder"):
        raise ArgumentError(
            f"an encoder-decoder reads a context and writes the text, and others have none: model {kind}"
        )
    cut, text = cut_text("text", text, words)
    read, context = (None, None) if context is None else cut_text("context", context, words)
    vocabulary = [*SPECIALS, *sorted({*cut, *(read or ())})]
    chosen = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "dim": dim, "positions": positions}
    drawn = _draw(kind, len(vocabulary), chosen, whole("seed", seed))

    walker = Walker()
    walker.give("model", drawn, f"a {drawn.KIND} with weights drawn with seed {seed}")
    walker.section = "From text to vectors"
    _split(walker, "", text, cut, words)
    if read is not None:
        _split(walker, "context_", context, read, words)
    every = "set(words)" if read is None else "{*words, *context_words}"
    axis = Axis("words", tuple(vocabulary), first=0)
    says = "Four special words, then every different word, sorted. A trained model has a vocabulary of its own."
    walker.step(f"vocabulary = {[*SPECIALS]} + sorted({every})", "Vocabulary", says, axes=(axis,))
    readers = _number(walker, "", cut, word, opens=kind != "encoder", follows=kind != "encoder")
    seen = None if read is None else _number(walker, "context_", read, None, opens=False, follows=False)
    through_model(walker, drawn, readers, seen, "[vocabulary[id] for id in {}]", f"drawn with seed {seed}")
    settings: dict[str, Any] = {"model": kind, **chosen, "seed": seed}
    settings["kv_heads"] = heads if kv_heads is None else kv_heads
    settings |= {} if words == "all" else {"words": words}
    return walker.walk(readers, seen, settings, call=call, notes=(RANDOM_NOTE,), brief=True)


def walk_whole_run(run: str | Path, text: str, *, word: int | str | None = None, context: str | None = None) -> Walk:
    """Compute a whole trained model for a text step by step, in float64.

    Args:
        run: the folder of a training run or of a saved LanguageModel, TextEncoder or TranslationTransformer.
        text: the text to read; of a translator, the translation so far.
        word: the word that is followed; by default the last of a language model or translator, else the second.
        context: the source sentence of a translator.

    Returns:
        The steps with all intermediate results, of all words and heads.

    Raises:
        CheckpointError: missing or damaged files.
        ArgumentError: no words or too many, a word that does not exist, a translator without a context, or a context
            for another model.
        UnsupportedError: a kind of model or layer that a walkthrough cannot show.
    """
    call = call_of(walk_whole_run, locals())
    saved, tokeniser = load_with_tokeniser(run)
    model = load_model(saved, str(run))
    check_together(model.config.vocab_size, tokeniser)
    translates = isinstance(model, TranslationTransformer)
    if translates != (context is not None):
        way = "leave the context out"
        if translates:
            command = f"regard walkthrough Das --context {quote(text)} --run {quote(str(run))} --whole"
            way = (
                "give the source sentence as --context and the translation so far as the text. For this source, with "
                f"Das as the translation so far: {command}"
            )
        raise ArgumentError(f"{run} is a {saved.kind}; {way}")
    walker, encodes = Walker(), isinstance(model, TextEncoder)
    walker.give("model", model, f"the trained {saved.kind}")
    walker.give("tokeniser", tokeniser, "the tokeniser of the model")
    walker.section = "From text to vectors"
    encode = tokeniser.encode_target if translates else tokeniser.encode
    last = len(encode(a_string("text", text))) + (0 if encodes else 1)
    word = max(last, 1) if word is None and not encodes else word
    readers = read_pieces(walker, "", text, word, opens=True, closes=encodes, target=translates)
    seen = None
    if context is not None:
        seen = read_pieces(walker, "context_", context, None, opens=False, closes=True, follows=True)
    through_model(walker, model, readers, seen, "tokeniser.pieces({})", LEARNED)
    return walker.walk(readers, seen, {"run": str(run), "model": saved.kind, **_sizes(model)}, call=call, brief=True)


def _draw(kind: str, vocab_size: int, chosen: dict[str, Any], seed: int) -> Model:
    """A model of the original form, in float64: layer norms, relu, biases; its weights are drawn from the seed."""
    if chosen["positions"] not in POSITIONS:
        raise ArgumentError(f"positions {chosen['positions']!r} do not exist; there are {', '.join(POSITIONS)}")
    shared: dict[str, Any] = {"vocab_size": vocab_size, "heads": chosen["heads"], "dim": chosen["dim"], "dropout": 0.0}
    shared |= {"positions": chosen["positions"], "activation": "relu"}
    form: dict[str, Any] = {"layers": chosen["layers"], "kv_heads": chosen["kv_heads"], "norm": "layer", "biases": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Model
        if kind == "decoder":
            model = LanguageModel(LanguageConfig(**shared, **form))
        elif kind == "encoder":
            model = TextEncoder(EncoderConfig(**shared, **form))
        else:
            sides: dict[str, Any] = {f"{side}_kv_heads": chosen["kv_heads"] for side in ("encoder", "decoder", "cross")}
            sides |= {f"{side}_layers": chosen["layers"] for side in ("encoder", "decoder")}
            model = TranslationTransformer(TranslationConfig(**shared, **sides))
    return model.double().eval().requires_grad_(False)


def _split(walker: Walker, prefix: str, text: Text | None, cut: list[str], kept: str) -> None:
    """Add the step that splits a text into words."""
    what = "context" if prefix else "text"
    walker.give(what, text, f"the {what}")
    only = "" if kept == "all" else f', "{kept}"'
    line = f"split_words({what}{only})" if isinstance(text, str) else f"list({what})"
    title = "Words of the context" if prefix else "Words"
    axis = Axis("words", tuple(cut))
    walker.step(f"{prefix}words = {line}", title, f"The {what} is split into words.", axes=(axis,))


def _number(walker: Walker, prefix: str, cut: list[str], word: int | str | None, *, opens: bool, follows: bool) -> Axis:
    """Add the step that numbers the words, after BEGIN (a decoder) or before END (an encoder)."""
    one = f"*(vocabulary.index(word, {len(SPECIALS)}) for word in {prefix}words)"
    line = f"[BEGIN, {one}]" if opens else f"[{one}, END]"
    labels = (SPECIALS[2], *cut) if opens else (*cut, SPECIALS[3])
    place = len(labels) - 1 if word is None and follows else find_word(word, labels)
    axis = Axis("words", labels, place)
    says = f"The index of each word in the vocabulary, {'after <begin>' if opens else 'and <end>'}."
    title = "Ids of the context" if prefix else "Ids"
    walker.step(f"{prefix}ids = torch.tensor({line})", title, says, axes=(axis,), scale="none")
    return axis


def _sizes(model: Model) -> dict[str, Any]:
    config = model.config
    if isinstance(config, TranslationConfig):
        layers: dict[str, Any] = {"encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers}
    else:
        layers = {"layers": config.layers}
    return {**layers, "heads": config.heads, "dim": config.dim}
