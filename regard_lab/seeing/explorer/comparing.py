"""Two explorations beside each other: two runs, two sentences, or a model before and after it was changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

import torch

from regard_lab.seeing.explorer.sources import Exploration, Second


def compared(one: Exploration, other: Exploration, said: str) -> Exploration:
    """An exploration beside another one: the words that both have, and how far heads of the same number are apart.

    Args:
        one: what the page shows.
        other: what it is compared with.
        said: what the other one is, in a few words.
    """
    matched = {name: _matched(words, other.texts[name]) for name, words in one.texts.items() if name in other.texts}
    others = {attention.name: attention for attention in other.attentions}
    attentions = []
    for attention in one.attentions:
        beside = others.get(attention.name)
        if beside is not None and beside.weights.shape[:2] == attention.weights.shape[:2]:
            apart = heads_apart(attention.weights, beside.weights, matched[attention.rows], matched[attention.columns])
            attention = replace(attention, measured={**attention.measured, "apart": apart})
        attentions.append(attention)
    return replace(one, attentions=tuple(attentions), second=Second(said, other, matched))


def _matched(one: Sequence[str], other: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The places of the words that belong together in two texts: equal words, in order.

    If at least half of the words are equal, as many words that were replaced by as many others belong together too.

    >>> _matched("the animal slept well".split(), "the dog slept".split())
    ((0, 1, 2), (0, 1, 2))
    """
    changes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    equal = sum(stop - start for kind, start, stop, _, _ in changes if kind == "equal")
    pairs = [
        pair
        for kind, start, stop, first, last in changes
        if kind == "equal" or (kind == "replace" and stop - start == last - first and 2 * equal >= len(one))
        for pair in zip(range(start, stop), range(first, last), strict=True)
    ]
    return tuple(at for at, _ in pairs), tuple(at for _, at in pairs)


def heads_apart(
    one: torch.Tensor,
    other: torch.Tensor,
    rows: tuple[Sequence[int], Sequence[int]],
    columns: tuple[Sequence[int], Sequence[int]],
) -> torch.Tensor:
    """The mean Jensen-Shannon distance of the rows of heads with the same number, (layers, heads).

        sqrt((KL(p | m) + KL(q | m)) / 2),   m = (p + q) / 2, logarithms with base 2

    Args:
        one, other: weights (layers, heads, queries, keys), with as many layers and heads.
        rows, columns: the places of shared queries and keys in both; the other keys count as one more key.

    >>> ones = torch.eye(2)[None, None]
    >>> same = (0, 1), (0, 1)
    >>> heads_apart(ones, ones, same, same).item(), heads_apart(ones, ones.flip(-1), same, same).item()
    (0.0, 1.0)
    """
    if not len(rows[0]):
        return torch.zeros(one.shape[:2])
    shared = []
    for weights, queries, keys in zip((one, other), rows, columns, strict=True):
        kept = weights.double()[:, :, list(queries)]
        both = kept[..., list(keys)]
        shared.append(torch.cat([both, (kept.sum(-1) - both.sum(-1)).clamp(min=0)[..., None]], -1))
    middle = (shared[0] + shared[1]) / 2
    divergence = torch.stack([torch.xlogy(part, part / middle.clamp(min=1e-300)).sum(-1) for part in shared]).mean(0)
    return (divergence / math.log(2)).clamp(min=0).sqrt().mean(-1).float()
