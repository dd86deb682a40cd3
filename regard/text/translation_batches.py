"""Sentence pairs as the tensors that a translation model learns and is judged from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.text.batches import pad
from regard.text.pairs import Pair
from regard.text.tokenisers import Tokeniser
from regard.text.vocabularies import BEGIN, END

EncodedPair = tuple[list[int], list[int]]


class TranslationBatch(NamedTuple):
    """source: (batch, source_length) that ends with END; target: (batch, target_length) that begins with BEGIN;
    next: (batch, target_length), what follows each target id. All padded on the right."""

    source: torch.Tensor
    target: torch.Tensor
    next: torch.Tensor


def encode_pairs(pairs: Sequence[Pair], tokeniser: Tokeniser) -> list[EncodedPair]:
    """Ids of source and target of each pair, without BEGIN and END."""
    return [(tokeniser.encode(pair.source), tokeniser.encode(pair.target)) for pair in pairs]


def make_sources(sources: Sequence[list[int]]) -> torch.Tensor:
    """Encoded sources as the encoder reads them, (batch, source_length): END closes each, PAD fills the right.

    >>> make_sources([[5, 6], [7]])
    tensor([[5, 6, 3],
            [7, 3, 0]])
    """
    return pad([[*source, END] for source in sources])


def make_batch(pairs: Sequence[EncodedPair]) -> TranslationBatch:
    """Encoded pairs as tensors: END closes each source, BEGIN opens each target.

    >>> make_batch([([5, 6], [7])]).target.tolist()
    [[2, 7]]
    """
    return TranslationBatch(
        make_sources([source for source, _ in pairs]),
        pad([[BEGIN, *target] for _, target in pairs]),
        pad([[*target, END] for _, target in pairs]),
    )


def batches_in_order(pairs: Sequence[EncodedPair], budget: int) -> list[tuple[list[int], TranslationBatch]]:
    """Every pair once, neighbours in length together, at most `budget` ids a batch on the longer side; with the
    indices of the pairs of each batch. A pair above the budget has a batch of its own."""
    longer = [max(map(len, pair)) + 1 for pair in pairs]
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(pairs)), key=longer.__getitem__):
        if groups[-1] and (len(groups[-1]) + 1) * longer[index] > budget:
            groups.append([])
        groups[-1].append(index)
    return [(group, make_batch([pairs[index] for index in group])) for group in groups if group]
