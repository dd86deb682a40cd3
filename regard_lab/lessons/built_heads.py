"""Heads made by hand that look one word back, at the same word, or after it, for which the true relation is known."""

from __future__ import annotations

from typing import Any

import torch

from regard.functional import attention_detail
from regard.patterns import Causal, Explicit
from regard_lab.lessons.words import normal
from regard_lab.seeing.english import relations_in, split_words
from regard_lab.seeing.relations import Link, Looks, join, looks_of, random_labels

TEXT = (
    "Return the old list of names. The list holds the names that the reader gave to the function, and the function "
    "keeps the names in the order of the reader. The order of the names holds for the copy of the list too, so the "
    "reader may sort the copy. Each name of the copy holds the same letters as the names of the old list."
)
BUILT = {  # a head made by hand, and the relation that it must show
    "looks one word back": "previous word",
    "key is the word itself": "same word earlier",
    "key is the word before": "after the same word",
}
SHARPNESS = 40.0  # the score of equal vectors of norm 1; those of different words are almost orthogonal
DIM = 256
DRAWS = 20  # times that labels are drawn at random
CERTAIN = 0.999
SURE = 5  # standard errors over chance that random labels do not reach


def built_heads(seed: int) -> dict[str, Any]:
    """Heads whose queries and keys are chosen by hand, measured like those of a model, with true and random labels."""
    words = split_words(TEXT)
    links = {relation: relations_in(words)[relation] for relation in BUILT.values()}
    weights = torch.stack([_weights(name, words, seed) for name in BUILT])[None]  # (1, heads, words, words)
    scored = {}
    for head, (name, relation) in enumerate(BUILT.items()):
        looks = looks_of(weights, links[relation], causal=True)
        drawn = _randomly_labelled(weights, links[relation], len(words), seed)
        over = drawn.of_head((0, head)) - drawn.chance
        scored[name] = {
            "relation": relation, "links": len(looks), "share": round(float(looks.of_head((0, head)).mean()), 4),
            "offset": looks.best_offset(), "by_offset": round(float(looks.at_offset(looks.best_offset()).mean()), 4),
            "chance": round(float(looks.chance.mean()), 4),
            "random_labels": round(float(drawn.of_head((0, head)).mean()), 4),
            "over_chance": round(float(over.mean()), 4),
            "error": round(float((drawn.chance * (1 - drawn.chance)).sum().sqrt()) / len(drawn), 4),
        }  # fmt: skip
    return {"words": len(words), "heads": scored}


def _randomly_labelled(weights: torch.Tensor, links: list[Link], length: int, seed: int) -> Looks:
    generator = torch.Generator().manual_seed(seed)
    return join(
        looks_of(weights, random_labels(links, length, True, generator), draw, causal=True) for draw in range(DRAWS)
    )


def _weights(name: str, words: list[str], seed: int) -> torch.Tensor:
    """The weights of a head made by hand, (words, words), computed by attention over earlier words.

    A word is a random vector of norm 1, equal for equal words. The keys of an induction head are the words before,
    which a head of an earlier layer can bring there.
    """
    length = len(words)
    lower = [word.lower() for word in words]
    vectors = torch.nn.functional.normalize(normal(seed, len(set(lower)), DIM), dim=-1)
    content = vectors[[sorted(set(lower)).index(word) for word in lower]]
    places = torch.eye(length, dtype=torch.float64)
    shifted = torch.arange(length).sub(1).clamp(min=0)
    q, k = {
        "looks one word back": (places[shifted], places),
        "key is the word itself": (content, content),
        "key is the word before": (content, content[shifted]),
    }[name]
    earlier = Causal() & ~Explicit(torch.eye(length, dtype=torch.bool))  # a word would find itself
    q, k = SHARPNESS * q[None, None], k[None, None]
    weights = attention_detail(q, k, k, pattern=earlier, scale=1.0, want="weights").weights[0, 0]
    return weights.round(decimals=6)  # equal keys have equal weights on every processor
