"""One id after another: the likeliest, or one drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.opening import OURS, Over, SpecialIds, admitted, check_search, length_limits, open_texts
from regard.decoding.sampling import Sampling
from regard.models.state import Writer

GREEDY = Sampling(temperature=0)


def greedy_search(
    model: Writer[Any], texts: torch.Tensor, max_length: int | None = None, special: SpecialIds = OURS
) -> list[Hypothesis]:
    """One hypothesis for each row, each id the likeliest after those before it.

    Args:
        model: what can `start` and `step`.
        texts: ids (batch, length), padded with PAD: sources to be translated, or prompts to be continued.
        max_length: the most new ids; by default twice a row's ids and 16 more.
        special: the ids that mean something.

    Returns:
        Hypotheses, one a row; their score is their log-probability.
    """
    check_search(special, None)
    return write(model, texts, length_limits(texts, max_length), GREEDY, special=special)


@torch.inference_mode()
def write(
    model: Writer[Any],
    texts: torch.Tensor,
    limits: Sequence[int],
    sampling: Sampling,
    *,
    count: int = 1,
    rows: Sequence[int] | None = None,
    over: Over | None = None,
    special: SpecialIds = OURS,
) -> list[Hypothesis]:
    """`count` texts for each row, one id after another; what is done leaves the batch.

    Args:
        model, texts, special: as for `greedy_search`.
        limits: the most new ids of each row.
        sampling: how an id is chosen.
        rows: the number of each row in its draws; 0, 1, ... by default.
        over: asked after each id whether its text is over; the rows it hears of are row · count + number of the text.

    Returns:
        Hypotheses, those of one row together; their log-probability, and score, is the model's own: without
        temperature and filters.
    """
    if not len(texts):
        return []
    state, scores = open_texts(model, texts, special)
    if count > 1:
        each = torch.arange(len(texts), device=texts.device).repeat_interleave(count)
        state.reorder(each)
        scores = scores[each]
    rows = range(len(texts)) if rows is None else rows
    numbers = torch.tensor([row + (copy << 32) for row in rows for copy in range(count)])
    written: list[list[int]] = [[] for _ in numbers]
    totals = [0.0] * len(written)
    finished = [False] * len(written)
    going = list(range(len(written)))
    while going:
        scores, total = admitted(scores, special)
        ids = sampling.choose(scores, numbers[going], len(written[going[0]]))
        gains = (scores.gather(-1, ids[:, None]) - total)[:, 0]
        staying = []
        for at, (row, chosen, gain) in enumerate(zip(going, ids.tolist(), gains.tolist(), strict=True)):
            totals[row] += gain
            if chosen == special.end:
                finished[row] = True
                continue
            written[row].append(chosen)
            finished[row] = over is not None and over(row, written[row])
            if not finished[row] and len(written[row]) < limits[row // count]:
                staying.append(at)
        if len(staying) < len(going):
            index = torch.tensor(staying, dtype=torch.int64, device=ids.device)
            going = [going[at] for at in staying]
            ids = ids[index]
            if going:
                state.reorder(index)
        if going:
            scores = model.step(ids, state)
    return [
        Hypothesis(tuple(found), total, total, done)
        for found, total, done in zip(written, totals, finished, strict=True)
    ]
