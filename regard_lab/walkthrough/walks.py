"""`walk` computes one attention layer; `example` gives its options for a worked example that articles print."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from regard.arguments import a_list, one_of, whole, yes_or_no
from regard.errors import ArgumentError
from regard_lab.walkthrough.drawn import DRAWS, new_layer
from regard_lab.walkthrough.drawn import draw as draw_layer
from regard_lab.walkthrough.heads import walk_layer
from regard_lab.walkthrough.inputs import (
    Text,
    embed_words,
    number_words,
    split_texts,
)
from regard_lab.walkthrough.layer import SCORES, Scene
from regard_lab.walkthrough.steps import (
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
        "text": "Life is short, eat dessert first", "words": "letters", "word": 2, "heads": 1, "dim": 16,
        "query_dim": 24, "key_dim": 24, "value_dim": 28, "draw": "uniform", "seed": 123, "weights_seed": 123,
        "decimals": 4,
    },
}  # fmt: skip


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
    heads, head, dim, seed = whole("heads", heads, 1), whole("head", head), whole("dim", dim, 1), whole("seed", seed)
    weights_seed = None if weights_seed is None else whole("weights_seed", weights_seed)
    call, more = call_of(walk, locals()), changed(walk, locals())
    cut, text = cut_text("text", text, words)
    read, context = (None, None) if context is None else cut_text("context", context, words)
    whole("decimals", decimals, 0, 8)
    one_of("score", score, SCORES), one_of("positions", positions, POSITIONS), one_of("draw", draw, DRAWS)
    if read is not None and (causal or positions == "rotary"):
        what = "causal attention" if causal else "rotary positions"
        raise ArgumentError(
            f"{what} compares positions, and positions of two texts have no common origin; leave out this option or "
            f"the context"
        )
    if not 0 <= head < heads:
        raise ArgumentError(f"head {head} does not exist; there are heads 0 to {heads - 1}")
    new = partial(
        new_layer, dim, heads, kv_heads=kv_heads, query_dim=query_dim, key_dim=key_dim, value_dim=value_dim,
        score=score, positions=positions, causal=causal,
    )  # fmt: skip
    drawn = draw_layer(sorted({*cut, *(read or ())}), dim, new, draw, seed, weights_seed, weights)
    place = find_word(word, cut)

    walker = Walker()
    readers, seen = Axis("words", tuple(cut), place), None if read is None else Axis("words", tuple(read))
    every = split_texts(walker, text, context, readers, seen, words)
    number_words(walker, every, drawn, readers, seen)
    x = c = embed_words(walker, "", readers, positions)
    if seen is not None:
        c = embed_words(walker, "context_", seen, positions)
    scene = Scene(drawn.layer, readers, seen or readers, x, c, place, head, drawn.origin)
    walk_layer(walker, scene)
    settings = {"heads": heads, "kv_heads": drawn.layer.kv_heads, "head": head, "dim": dim, "score": score}
    settings |= {"positions": positions, "causal": causal, "seed": seed}
    settings |= {name: more[name] for name in LATER if name in more}
    settings |= {"given": ", ".join(sorted(drawn.given))} if drawn.given else {}
    return walker.walk(readers, seen, settings, call=call, notes=drawn.notes(), decimals=decimals)


def cut_text(what: str, text: Text, kept: str) -> tuple[list[str], Text]:
    """The words of a text, and the text as a string or list for the lines of the walkthrough."""
    given = text if isinstance(text, str) else a_list(what, text, str, "a sentence, or a list of its words")
    if not isinstance(given, str) and kept != "all":
        raise ArgumentError(f"the {what} is a list of words, and words={kept!r} splits a sentence; give a sentence")
    words = split_words(given, kept) if isinstance(given, str) else given
    check_words(words, what)
    return words, given


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
