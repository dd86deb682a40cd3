"""Erasure: the fall of the log odds when one word at a time is replaced by the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from regard.inspection.lenses.contrast import Contrast
from regard.inspection.lenses.passes import SIDES, Batch, Explained, in_batches, is_word, run, run_erased
from regard.inspection.lenses.record import WordScores


class Erased(NamedTuple):
    """The ids of one side of a batch row that are replaced."""

    row: int
    side: str
    places: tuple[int, ...]


@torch.no_grad()
def erasure_scores(
    model: Explained, contrasts: Sequence[Contrast], *, sides: Sequence[str] = SIDES
) -> list[WordScores]:
    """The log odds minus those without each word, one word at a time.

        score_w = f(x) - f(x with the embeddings of w replaced by the baseline)

    BEGIN and END are not replaced; their relevance is 0.

    Source: Visualizing and Understanding Convolutional Networks, Zeiler and Fergus 2014, section 4.2 (occlusion);
    Understanding Neural Networks through Representation Erasure, Li et al. 2016.
    """
    results: dict[int, WordScores] = {}
    for group in in_batches(contrasts):
        chosen = [contrasts[index] for index in group]
        batch = Batch.of_contrasts(chosen, model.embedding.weight.device)
        odds = run(model, batch).tolist()
        wanted = [one for row, contrast in enumerate(chosen) for one in _each_word(row, contrast, sides)]
        after = iter(erased(model, batch, wanted).tolist())
        for row, (index, contrast) in enumerate(zip(group, chosen, strict=True)):
            source, written = (
                tuple(odds[row] - next(after) for _ in words) if side in sides else ()
                for side, words in zip(SIDES, (contrast.source_words, contrast.written_words), strict=True)
            )
            results[index] = WordScores(source=source, written=written, passes=1 + len(source) + len(written))
    return [results[index] for index in range(len(contrasts))]


def _each_word(row: int, contrast: Contrast, sides: Sequence[str]) -> Iterator[Erased]:
    for side, words in zip(SIDES, (contrast.source_words, contrast.written_words), strict=True):
        if side in sides:
            yield from (Erased(row, side, tuple(places)) for _, places in words)


def erased(model: Explained, batch: Batch, wanted: Sequence[Erased]) -> torch.Tensor:
    """The log odds (len(wanted),) of batch rows, each without some words."""
    masks = {}
    for side in SIDES:
        ids = batch.side(side)
        if ids is None:
            continue
        mask = torch.zeros(len(wanted), ids.shape[1], dtype=torch.bool)
        for number, one in enumerate(wanted):
            if one.side == side:
                mask[number, list(one.places)] = True
        masks[side] = mask.to(ids.device) & is_word(ids)[[one.row for one in wanted]]
    index = torch.tensor([one.row for one in wanted], device=batch.written.device)
    return run_erased(model, batch, index, masks.get("source"), masks["written"])
