"""Beam search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from regard.arguments import whole
from regard.errors import ArgumentError
from regard_lab.decoding.search import (
    OURS,
    Hypothesis,
    Keeping,
    Over,
    SpecialIds,
    admitted,
    check_normalisation,
    check_search,
    length_limits,
    likeliest,
    normalised,
    open_texts,
)
from regard_lab.models.state import Writer

WIDEST = 1 << 16  # largest beam
Going = tuple[tuple[int, ...], float]  # ids and log-probability of an unfinished hypothesis


@dataclass
class _Row:
    """The search for one text: its unfinished hypotheses, the most likely first, and its finished ones."""

    number: int
    limit: int
    beam: int
    count: int
    normalisation: str
    alpha: float
    going: list[Going] = field(default_factory=lambda: [((), 0.0)])
    ended: list[Hypothesis] = field(default_factory=list)

    def end(self, ids: tuple[int, ...], log_probability: float, length: int, finished: bool) -> None:
        score = normalised(log_probability, length, self.normalisation, self.alpha)
        self.ended.append(Hypothesis(ids, log_probability, score, finished))

    def best(self) -> list[Hypothesis]:
        return sorted(self.ended, key=lambda hypothesis: -hypothesis.score)[: self.count]

    def is_settled(self) -> bool:
        """Whether no unfinished hypothesis can still become one of the best `count`.

        A log-probability only decreases, so its best possible score is that at the shortest or the longest length.
        """
        if not self.going or (self.beam == 1 and self.ended):  # a beam of 1 is greedy search
            return True
        if len(self.ended) < self.count:
            return False
        likeliest = self.going[0][1]
        bound = max(normalised(likeliest, length, self.normalisation, self.alpha) for length in (1, self.limit))
        return bound <= self.best()[-1].score

    def advance(self, candidates: list[tuple[int, int, float]], special: SpecialIds, over: Over | None) -> list[int]:
        """Extend the hypotheses by one id.

        Args:
            candidates: (place of a hypothesis, its next id, the new log-probability), the most likely first.

        Returns:
            For each unfinished hypothesis, the place of the hypothesis it extends.
        """
        before, self.going = self.going, []
        places: list[int] = []
        for rank, (place, identifier, total) in enumerate(candidates):
            if total == -torch.inf or len(self.going) == self.beam:
                break
            ids = before[place][0]
            if identifier == special.end:
                if rank < self.beam:
                    self.end(ids, total, len(ids) + 1, finished=True)
                continue
            ids = (*ids, identifier)
            if over is not None and over(self.number, ids):
                if rank < self.beam:
                    self.end(ids, total, len(ids), finished=True)
            elif len(ids) >= self.limit:
                self.end(ids, total, len(ids), finished=False)
            else:
                self.going.append((ids, total))
                places.append(place)
        return places


@torch.inference_mode()
def beam_search(
    model: Writer[Any],
    source: torch.Tensor,
    beam: int,
    *,
    count: int = 1,
    normalisation: str = "gnmt",
    alpha: float = 0.6,
    max_length: int | None = None,
    over: Over | None = None,
    special: SpecialIds = OURS,
    cache: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
) -> list[list[Hypothesis]]:
    """Beam search: the best hypotheses for each batch row, of `beam` kept at every step.

    A batch row is finished, and leaves the batch, when no unfinished hypothesis can become one of its best `count`.

    Args:
        model: a model with `start` and `step`.
        source: ids (batch, length), padded with PAD: sources to translate, or prompts to continue.
        beam: number of hypotheses kept at each step; 1 is greedy search.
        count: number of hypotheses returned for each batch row, at most `beam`.
        normalisation: length normalisation of scores: "none", "average" or "gnmt"; see `normalised`.
        alpha: exponent of "gnmt".
        max_length: the most new ids; by default twice the ids of the batch row plus 16.
        over: function of (batch row, ids) that returns True to end a text.
        special: ids with a special meaning.
        cache, cache_dtype: how keys and values are stored, as for `generate`; in a "paged" cache beams share pages.

    Returns:
        For each batch row its best `count` hypotheses, the best first.

    Raises:
        ArgumentError: an invalid beam, count or normalisation.

    Source: Sequence to Sequence Learning, Sutskever et al. 2014, section 3.2.
    """
    check_search(special, over)
    beam, count = whole("beam", beam), whole("count", count)
    if not 1 <= beam <= WIDEST:
        raise ArgumentError(f"beam is {beam}; it is a whole number from 1 to {WIDEST:,}")
    if not 1 <= count <= beam:
        raise ArgumentError(f"count is {count} and beam is {beam}; count is 1 or more, and at most beam")
    check_normalisation(normalisation, alpha)
    limits = length_limits(source, max_length)
    rows = [_Row(number, limit, beam, count, normalisation, alpha) for number, limit in enumerate(limits)]
    if not rows:
        return []
    state, scores = open_texts(model, source, special, Keeping(cache, cache_dtype), max(limits))
    searched, width = rows, 1  # each text has `width` neighbouring places in the batch
    while True:
        candidates = _candidates(*admitted(scores, special), [row.going for row in searched], width, beam)
        came_from = [row.advance(best, special, over) for row, best in zip(searched, candidates, strict=True)]
        parents: list[int] = []  # the place in the batch that each hypothesis extends
        for at, (row, places) in enumerate(zip(searched, came_from, strict=True)):
            if not row.is_settled():
                parents += [at * width + place for place in _filled(places, beam)]
        searched, width = [row for row in searched if not row.is_settled()], beam
        if not searched:
            return [row.best() for row in rows]
        state.reorder(torch.tensor(parents, device=source.device))
        last = [ids[-1] for row in searched for ids, _ in _filled(row.going, beam)]
        scores = model.step(torch.tensor(last, device=source.device), state)


def _candidates(
    scores: torch.Tensor, total: torch.Tensor, going: list[list[Going]], width: int, beam: int
) -> list[list[tuple[int, int, float]]]:
    """For each text its 2 · beam most likely continuations: enough even if `beam` of them end.

    Only the best continuations of each hypothesis can be among the best of all, so the vocabulary is read once.
    """
    best, identifiers = likeliest(scores, 2 * beam)  # (rows * width, kept)
    before = [[so_far for _, so_far in row] + [-torch.inf] * (width - len(row)) for row in going]
    totals = torch.tensor(before, dtype=torch.float64, device=scores.device)  # (rows, width)
    gains = best.double() - total.double()
    kept = gains.shape[-1]
    sums = (totals[..., None] + gains.view(-1, width, kept)).flatten(1)  # (rows, width * kept)
    chosen = sums.topk(min(2 * beam, sums.shape[-1]))
    ids = identifiers.view(len(sums), -1).gather(1, chosen.indices)
    columns = zip(chosen.indices.tolist(), ids.tolist(), chosen.values.tolist(), strict=True)
    return [[(at // kept, i, so_far) for at, i, so_far in zip(*row, strict=True)] for row in columns]


def _filled(entries: list[Any], size: int) -> list[Any]:
    """The entries, with the last one repeated up to `size`."""
    return entries + entries[-1:] * (size - len(entries))
