"""A walk with weights that were drawn: every step is real, and nothing has been learned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from regard.arguments import whole, yes_or_no
from regard.errors import ArgumentError
from regard.kinds import a_list
from regard.layers import MultiHeadAttention
from regard.mechanisms import Softmax
from regard.positions import Rotary
from regard.walkthrough.attention import walk_layer
from regard.walkthrough.drawn_inputs import Text, embed_words, read_words
from regard.walkthrough.layer import Scene
from regard.walkthrough.scores import SCORES, new_score
from regard.walkthrough.steps import Axis, Walk
from regard.walkthrough.walker import Walker
from regard.walkthrough.words import check_words, find_word, split_words

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
    """Go step by step from a text to what one attention layer makes of it, with every number on the way.

    Args:
        text: a sentence, or its words.
        word: the word that is followed alone: its number, from 1, or itself; the second by default.
        context: another sentence, which the words look at instead of themselves (cross-attention).
        causal: may a word look at what came before it alone?
        heads, kv_heads: of the layer; head: the one that is followed, from 1.
        dim: size of the vectors.
        score: "scaled_dot", "dot", "general", "concat" or "additive".
        positions: "none", "sinusoidal" (added to the embeddings) or "rotary" (turned into queries and keys).
        seed: of all weights.

    Raises:
        ArgumentError: a text without words or with too many, a word or head that is not there, sizes that do not
            divide, or choices that do not go together.

    Source: Attention Is All You Need, Vaswani et al. 2017, sections 3.2.1 and 3.2.2.

    >>> found = walk("Life is short, eat dessert first")
    >>> found.chosen, found["weights"].shape
    ('is', torch.Size([7, 7]))
    >>> round(found["alpha"].sum().item(), 6)
    1.0
    """
    words, text = _cut("text", text)
    read, context = (None, None) if context is None else _cut("context", context)
    yes_or_no("causal", causal)
    heads, head, dim, seed = whole("heads", heads), whole("head", head), whole("dim", dim), whole("seed", seed)
    _check_choices(score, positions, causal, crosses=read is not None)
    if not 1 <= head <= heads:
        raise ArgumentError(f"head {head} was asked for; there are heads 1 to {heads}")
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
    """The words of a text, and the text as the lines of a walk take it: a string, or a list that can be read twice."""
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
            f"{what} compares places, and two texts share no first place; leave it, or the context, out"
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
    """A layer and a table of vectors (words, dim): normal numbers such that queries and keys have unit variance."""
    if min(dim, heads) < 1 or dim % heads:
        raise ArgumentError(
            f"dim {dim} does not divide into {heads} heads; take another dim, or as many heads as divide it"
        )
    if positions == "sinusoidal" and dim % 2:
        raise ArgumentError(f"sines and cosines come in pairs, and dim is {dim}; take an even one")
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
