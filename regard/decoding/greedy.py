"""The likeliest next id, again and again."""

from __future__ import annotations

import torch

from regard.decoding.hypothesis import Hypothesis, SteppingModel, begin_ids, length_limits, log_probabilities
from regard.text.vocabularies import END


@torch.inference_mode()
def greedy_search(model: SteppingModel, source: torch.Tensor, max_length: int | None = None) -> list[Hypothesis]:
    """One hypothesis for each row, each id the likeliest after those before it.

    Args:
        model: what can `start` and `step`.
        source: ids (batch, source_length), padded with PAD.
        max_length: the most target ids; by default twice a row's source ids and 16 more.

    Returns:
        Hypotheses, one a row; their score is their log-probability.
    """
    limits = length_limits(source, max_length)
    state = model.start(source)
    rows: list[list[int]] = [[] for _ in limits]
    totals = [0.0] * len(rows)
    open_rows = set(range(len(rows)))
    ids = begin_ids(len(rows), source.device)
    while open_rows:
        best = log_probabilities(model.step(ids, state)).max(-1)
        ids = best.indices
        chosen, gains = ids.tolist(), best.values.tolist()
        for row in sorted(open_rows):
            rows[row].append(chosen[row])
            totals[row] += gains[row]
            if chosen[row] == END or len(rows[row]) >= limits[row]:
                open_rows.remove(row)
    return [_hypothesis(found, total) for found, total in zip(rows, totals, strict=True)]


def _hypothesis(ids: list[int], log_probability: float) -> Hypothesis:
    finished = bool(ids) and ids[-1] == END
    return Hypothesis(tuple(ids[:-1] if finished else ids), log_probability, log_probability, finished)
