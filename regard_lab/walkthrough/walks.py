"""The walkthroughs: of one layer, `walk`, and of a whole model, `walk_whole` and `walk_whole_run`.

`example` gives the options of `walk` for a worked example that articles print.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from regard.arguments import a_list, a_string, one_of, whole, yes_or_no
from regard.errors import ArgumentError, UnsupportedError
from regard_lab.decoding.loading import check_together, load_with_tokeniser
from regard_lab.models import (
    EncoderConfig,
    LanguageConfig,
    LanguageModel,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.models.kinds import TRANSFORMERS, Transformer
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.text import Tokeniser
from regard_lab.text.vocabularies import SPECIALS
from regard_lab.walkthrough.heads import walk_layer
from regard_lab.walkthrough.inputs import Text, embed_words, number_words, read_pieces, split_texts
from regard_lab.walkthrough.layer import DRAWS, SCORES, Scene, draw_layer, new_layer
from regard_lab.walkthrough.stacks import LEARNED, through_model
from regard_lab.walkthrough.steps import (
    RANDOM_NOTE,
    Axis,
    Walk,
    Walker,
    call_of,
    changed,
    check_words,
    find_word,
    split_words,
)

# The options that are settings of a walkthrough only where they do not have their defaults.
LATER = ("query_dim", "key_dim", "value_dim", "weights_seed", "words", "draw")
POSITIONS = ("none", "sinusoidal", "rotary")

# "Life is short, eat dessert first", as articles about self-attention from scratch compute it: six words without the
# comma, vectors of 16 numbers, queries and keys of 24, values of 28, the second word; torch.manual_seed(123) before the
# embedding and again before W_query = rand(24, 16), W_key = rand(24, 16), W_value = rand(28, 16).
_EXAMPLES: dict[str, dict[str, Any]] = {
    "life-is-short": {
        "text": "Life is short, eat dessert first",
        "words": "letters",
        "word": 2,
        "heads": 1,
        "dim": 16,
        "query_dim": 24,
        "key_dim": 24,
        "value_dim": 28,
        "draw": "uniform",
        "seed": 123,
        "weights_seed": 123,
        "decimals": 4,
    },
}


def walk(
    text: Text,
    *,
    word: int | str | None = None,
    context: Text | None = None,
    causal: bool = False,
    heads: int = 2,
    kv_heads: int | None = None,
    head: int = 0,
    dim: int = 8,
    query_dim: int | None = None,
    key_dim: int | None = None,
    value_dim: int | None = None,
    score: str = "scaled_dot",
    positions: str = "none",
    words: str = "all",
    draw: str = "normal",
    seed: int = 0,
    weights_seed: int | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    decimals: int = 3,
) -> Walk:
    """Compute one attention layer for a text step by step, with weights drawn from a seed or given.

    Args:
        text: a sentence, or its words.
        word: the word that is shown in detail: its number, from 1, or its text; the second by default.
        context: another sentence, which the words attend to instead of their own (cross-attention).
        causal: if True, a word may look only at itself and earlier words.
        heads, kv_heads: of the layer.
        head: the head that is shown in detail, from 0.
        dim: size of the vectors.
        query_dim, key_dim: sizes of the queries and keys of a head, dim / heads by default; a dot product needs them
            equal.
        value_dim: size of the values of a head, dim / heads by default.
        score: "scaled_dot", "dot", "general", "concat" or "additive".
        positions: "none", "sinusoidal" (added to the embeddings) or "rotary" (rotates queries and keys).
        words: the units of a sentence: "all", or "letters" to drop punctuation.
        draw: how weights are drawn: "normal" or "uniform" (from 0 to 1); the table of vectors is always normal.
        seed: of the table of vectors; the weights are drawn after it.
        weights_seed: a seed of its own for the weights.
        weights: tensors that replace drawn ones, by name: table (words, dim), W_q (heads, query_dim, dim), W_k and W_v
            likewise, W_o (dim, heads · value_dim), and W_a, U_a, v_a of a score.
        decimals: of the printed numbers, 0 to 8.

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
    yes_or_no("causal", causal)
    heads = whole("heads", heads, 1)
    head = whole("head", head)
    dim = whole("dim", dim, 1)
    seed = whole("seed", seed)
    if weights_seed is not None:
        weights_seed = whole("weights_seed", weights_seed)
    call = call_of(walk, locals())
    more = changed(walk, locals())
    cut, text = cut_text("text", text, words)
    read = None
    if context is not None:
        read, context = cut_text("context", context, words)
    whole("decimals", decimals, 0, 8)
    one_of("score", score, SCORES)
    one_of("positions", positions, POSITIONS)
    one_of("draw", draw, DRAWS)
    if read is not None and (causal or positions == "rotary"):
        what = "causal attention" if causal else "rotary positions"
        raise ArgumentError(
            f"{what} compares positions, and positions of two texts have no common origin; leave out this option or "
            f"the context"
        )
    if not 0 <= head < heads:
        raise ArgumentError(f"head {head} does not exist; there are heads 0 to {heads - 1}")

    new = partial(
        new_layer,
        dim,
        heads,
        kv_heads=kv_heads,
        query_dim=query_dim,
        key_dim=key_dim,
        value_dim=value_dim,
        score=score,
        positions=positions,
        causal=causal,
    )
    vocabulary = sorted({*cut, *(read or ())})
    drawn = draw_layer(vocabulary, dim, new, draw, seed, weights_seed, weights)
    place = find_word(word, cut)

    walker = Walker("From text to vectors", repeats=True)
    readers = Axis("words", tuple(cut), place)
    seen = None if read is None else Axis("words", tuple(read))
    every = split_texts(walker, text, context, readers, seen, words)
    number_words(walker, every, drawn, readers, seen)
    x = embed_words(walker, "", readers, positions)
    c = x
    if seen is not None:
        c = embed_words(walker, "context_", seen, positions)
    walk_layer(Scene(walker, drawn.layer, readers, seen or readers, x, c, drawn.origin, head))

    settings = {
        "heads": heads,
        "kv_heads": drawn.layer.kv_heads,
        "head": head,
        "dim": dim,
        "score": score,
        "positions": positions,
        "causal": causal,
        "seed": seed,
    }
    settings |= {name: more[name] for name in LATER if name in more}
    if drawn.given:
        settings["given"] = ", ".join(sorted(drawn.given))
    return walker.walk(readers, seen, settings, call=call, notes=drawn.notes(), decimals=decimals)


def cut_text(what: str, text: Text, kept: str) -> tuple[list[str], Text]:
    """The words of a text, and the text as a string or list for the lines of the walkthrough."""
    if isinstance(text, str):
        words = split_words(text, kept)
        check_words(words, what)
        return words, text

    words = a_list(what, text, str, "a sentence, or a list of its words")
    if kept != "all":
        raise ArgumentError(
            f"the {what} is a list of words, and words={kept!r} splits a sentence; give a sentence"
        )
    check_words(words, what)
    return words, words


def _open_run(run: str | Path) -> tuple[Walker, Transformer, str]:
    """A walker that has the model, in float64 so that every digit shown is correct, and its tokeniser; its kind."""
    saved, tokeniser = load_with_tokeniser(run)
    if saved.kind not in TRANSFORMERS:
        raise UnsupportedError(
            f"{run} is a {saved.kind}; a walkthrough needs a {', a '.join(TRANSFORMERS)}"
        )
    model = (
        TRANSFORMERS[saved.kind].from_saved(saved, str(run)).double().eval().requires_grad_(False)
    )
    check_together(model.config.vocab_size, tokeniser)
    walker = Walker("From text to vectors")
    walker.give("model", model, f"the trained {saved.kind}")
    walker.give("tokeniser", tokeniser, "the tokeniser of the model")
    return walker, model, saved.kind


def example(name: str) -> dict[str, Any]:
    """The options with which `walk` gives the numbers of a worked example.

    Args:
        name: "life-is-short": six words, queries and keys of 24 numbers, values of 28, weights between 0 and 1.

    Returns:
        Keyword arguments of `walk`; change those that should differ.

    Raises:
        ArgumentError: no such example.

    >>> from regard_lab.walkthrough import walk
    >>> steps = walk(**example("life-is-short"))
    >>> steps["ids"].tolist(), [round(weight, 3) for weight in steps["alpha"].tolist()]
    ([0, 4, 5, 2, 1, 3], [0.291, 0.011, 0.098, 0.062, 0.492, 0.046])
    """
    return dict(_EXAMPLES[one_of("example", name, _EXAMPLES)])


MODELS = ("decoder", "encoder", "encoder-decoder")
WHOLE_POSITIONS = ("sinusoidal", "rotary", "learned")


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

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3, with the norm before each part instead of after
    each sum: On Layer Normalization in the Transformer Architecture, Xiong et al. 2020.

    >>> steps = walk_whole("Life is short", layers=1)
    >>> steps["probabilities"].shape, round(float(steps["probabilities"][-1].sum()), 6)
    (torch.Size([4, 7]), 1.0)
    """
    call = call_of(walk_whole, locals())
    if model is not None:
        kind = one_of("model", model, MODELS)
    elif context is None:
        kind = "decoder"
    else:
        kind = "encoder-decoder"
    if (context is not None) != (kind == "encoder-decoder"):
        raise ArgumentError(
            f"an encoder-decoder reads a context and writes the text, and others have none: model {kind}"
        )
    cut, text = cut_text("text", text, words)
    read = None
    if context is not None:
        read, context = cut_text("context", context, words)
    vocabulary = [*SPECIALS, *sorted({*cut, *(read or ())})]
    chosen = {
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "dim": dim,
        "positions": positions,
    }
    drawn = _draw(kind, len(vocabulary), chosen, whole("seed", seed))

    walker = Walker("From text to vectors")
    walker.give("model", drawn, f"a {drawn.KIND} with weights drawn with seed {seed}")
    seen = None if read is None else Axis("words", tuple(read))
    every = split_texts(walker, text, context, Axis("words", tuple(cut)), seen, words)
    axis = Axis("words", tuple(vocabulary))
    says = "Four special words, then every different word, sorted. A trained model has a vocabulary of its own."
    walker.step(f"vocabulary = {[*SPECIALS]} + sorted({every})", "Vocabulary", says, axes=(axis,))

    writes = kind != "encoder"
    readers = _number(walker, "", cut, word, opens=writes, follows=writes)
    if read is not None:
        seen = _number(walker, "context_", read, None, opens=False, follows=False)
    spell = "[vocabulary[id] for id in {}]"
    through_model(walker, drawn, readers, seen, spell, f"drawn with seed {seed}")

    settings: dict[str, Any] = {"model": kind, **chosen, "seed": seed}
    settings["kv_heads"] = heads if kv_heads is None else kv_heads
    if words != "all":
        settings["words"] = words
    return walker.walk(readers, seen, settings, call=call, notes=(RANDOM_NOTE,), brief=True)


def walk_whole_run(
    run: str | Path, text: str, *, word: int | str | None = None, context: str | None = None
) -> Walk:
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
    walker, model, kind = _open_run(run)
    translates = isinstance(model, TranslationTransformer)
    if translates != (context is not None):
        way = "leave the context out"
        if translates:
            command = f"regard walkthrough Das --context {quote(text)} --run {quote(str(run))}"
            way = (
                "give the source sentence as --context and the translation so far as the text. For this source, with "
                f"Das as the translation so far: {command}"
            )
        raise ArgumentError(f"{run} is a {kind}; {way}")
    encodes = isinstance(model, TextEncoder)
    if word is None and not encodes:
        tokeniser: Tokeniser = walker.values["tokeniser"]
        encode = tokeniser.encode_target if translates else tokeniser.encode
        word = len(encode(a_string("text", text))) + 1
    readers = read_pieces(walker, "", text, word, opens=True, closes=encodes, target=translates)
    seen = None
    if context is not None:
        seen = read_pieces(walker, "context_", context, None, opens=False, closes=True)
    through_model(walker, model, readers, seen, "tokeniser.pieces({})", LEARNED)
    layers = ("encoder_layers", "decoder_layers") if translates else ("layers",)
    settings = {"run": str(run), "model": kind}
    settings |= {name: getattr(model.config, name) for name in (*layers, "heads", "dim")}
    return walker.walk(readers, seen, settings, call=call, brief=True)


def _draw(kind: str, vocab_size: int, chosen: dict[str, Any], seed: int) -> Transformer:
    """A model of the original form, in float64: layer norms, relu, biases; its weights are drawn from the seed."""
    one_of("positions", chosen["positions"], WHOLE_POSITIONS)

    layers = chosen["layers"]
    kv_heads = chosen["kv_heads"]
    shared: dict[str, Any] = {
        "vocab_size": vocab_size,
        "heads": chosen["heads"],
        "dim": chosen["dim"],
        "dropout": 0.0,
        "positions": chosen["positions"],
        "activation": "relu",
    }
    form: dict[str, Any] = {
        "layers": layers,
        "kv_heads": kv_heads,
        "norm": "layer",
        "biases": True,
    }
    sides: dict[str, Any] = {
        "encoder_kv_heads": kv_heads,
        "decoder_kv_heads": kv_heads,
        "cross_kv_heads": kv_heads,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Transformer
        if kind == "decoder":
            model = LanguageModel(LanguageConfig(**shared, **form))
        elif kind == "encoder":
            model = TextEncoder(EncoderConfig(**shared, **form))
        else:
            model = TranslationTransformer(TranslationConfig(**shared, **sides))
    return model.double().eval().requires_grad_(False)


def _number(
    walker: Walker,
    prefix: str,
    cut: list[str],
    word: int | str | None,
    *,
    opens: bool,
    follows: bool,
) -> Axis:
    """Add the step that numbers the words, after BEGIN (a decoder) or before END (an encoder)."""
    ids = f"*(vocabulary.index(word, {len(SPECIALS)}) for word in {prefix}words)"
    says = "The index of each word in the vocabulary"
    if opens:
        ids = f"BEGIN, {ids}"
        labels = (SPECIALS[2], *cut)
        says += ", after <begin>."
    else:
        ids = f"{ids}, END"
        labels = (*cut, SPECIALS[3])
        says += ", and <end>."

    place = len(labels) - 1 if word is None and follows else find_word(word, labels)
    axis = Axis("words", labels, place)
    title = "Ids of the context" if prefix else "Ids"
    line = f"{prefix}ids = torch.tensor([{ids}])"
    walker.step(line, title, says, axes=(axis,), scale="none")
    return axis
