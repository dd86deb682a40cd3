"""Erasure: the fall of the log odds when one word at a time is replaced by the baseline."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.inspection.lenses.contrast import Contrast
from regard.inspection.lenses.passes import SIDES, Batch, Explained, in_batches, is_word, run, run_erased
from regard.inspection.lenses.record import WordScores


@torch.no_grad()
def erasure_scores(
    model: Explained, contrasts: Sequence[Contrast], *, sides: Sequence[str] = SIDES
) -> list[WordScores]:
    """The log odds minus those without each word, one word at a time.

        score_w = f(x) - f(x with the embeddings of w replaced by the baseline)

    BEGIN and END are not replaced; their score is 0.

    Source: Visualizing and Understanding Convolutional Networks, Zeiler and Fergus 2014, section 4.2 (occlusion);
    Understanding Neural Networks through Representation Erasure, Li et al. 2016.
    """
    results: dict[int, WordScores] = {}
    for group in in_batches(contrasts):
        chosen = [contrasts[index] for index in group]
        batch = Batch.of_contrasts(chosen, model.embedding.weight.device)
        odds = run(model, batch)
        for row, (index, contrast) in enumerate(zip(group, chosen, strict=True)):
            results[index] = _scores_of_row(model, batch, row, contrast, float(odds[row]), sides)
    return [results[index] for index in range(len(contrasts))]


def erased(
    model: Explained, batch: Batch, row: int, source: Sequence[Sequence[int]], written: Sequence[Sequence[int]]
) -> torch.Tensor:
    """The log odds (len(source) + len(written),) of a batch row, each time without some ids.

    Args:
        model: in eval mode.
        batch: the contrasts.
        row: the row that is changed.
        source, written: for each time, the places that are replaced.
    """
    count = len(source) + len(written)
    of_source = None if batch.source is None else _mask(batch.source[row], source, 0, count)
    of_written = _mask(batch.written[row], written, len(source), count)
    return run_erased(model, batch, torch.full((count,), row, device=of_written.device), of_source, of_written)


def _mask(ids: torch.Tensor, replaced: Sequence[Sequence[int]], first: int, count: int) -> torch.Tensor:
    """Bool (count, length), True for the words among the replaced places; those of time i are in row first + i."""
    mask = torch.zeros(count, len(ids), dtype=torch.bool, device=ids.device)
    for number, places in enumerate(replaced):
        mask[first + number, list(places)] = True
    return mask & is_word(ids)


def _scores_of_row(
    model: Explained, batch: Batch, row: int, contrast: Contrast, odds: float, sides: Sequence[str]
) -> WordScores:
    source = [list(places) for _, places in contrast.source_words] if "source" in sides else []
    written = [list(places) for _, places in contrast.written_words] if "written" in sides else []
    falls = (odds - erased(model, batch, row, source, written)).tolist()
    return WordScores(source=tuple(falls[: len(source)]), written=tuple(falls[len(source) :]), passes=1 + len(falls))
