"""Several hypotheses side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from regard.arguments import whole
from regard.decoding.search import (
    OURS,
    Hypothesis,
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
from regard.errors import ArgumentError
from regard.models.state import Writer

WIDEST = 1 << 16  # hypotheses of a beam
Going = tuple[tuple[int, ...], float]  # ids of a hypothesis, and the logarithm of their probability


@dataclass
class _Row:
    """One text's search: hypotheses that go on (likeliest first) and those that ended."""

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
        return sorted(self.ended, key=lambda found: -found.score)[: self.count]

    def is_settled(self) -> bool:
        """Can no hypothesis that goes on enter the best `count` any more?

        A log-probability only falls, and dividing it by the normalisation of the longest text flatters it most.
        """
        if not self.going or (self.beam == 1 and self.ended):  # a beam of 1 is greedy search
            return True
        if len(self.ended) < self.count:
            return False
        hope = self.going[0][1]
        flattered = max(normalised(hope, length, self.normalisation, self.alpha) for length in (1, self.limit))
        return flattered <= self.best()[-1].score

    def advance(self, candidates: list[tuple[int, int, float]], special: SpecialIds, over: Over | None) -> list[int]:
        """Let the hypotheses go one id further.

        Args:
            candidates: the likeliest first: the place of the hypothesis that goes on, its next id, and what the
                logarithm of the probability is then.

        Returns:
            The place that each hypothesis which goes on came from.
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
) -> list[list[Hypothesis]]:
    """The best hypotheses for each row, `beam` of them kept at every step.

    A row is searched until no hypothesis that goes on can enter its best `count`, and then leaves the batch.

    Args:
        model: what can `start` and `step`.
        source: ids (batch, length), padded with PAD: sources to be translated, or prompts to be continued.
        beam: hypotheses that go on at each step; 1 is greedy search.
        count: hypotheses returned for each row, at most `beam`.
        normalisation: how scores allow for length: "none", "average" or "gnmt"; see `normalised`.
        alpha: of "gnmt".
        max_length: the most new ids; by default twice a row's ids and 16 more.
        over: is the text of a row, with these ids, over?
        special: the ids that mean something.

    Returns:
        For each row its best `count` hypotheses, the best first.

    Raises:
        ArgumentError: a beam, count or normalisation that cannot be.

    Source: Sequence to Sequence Learning, Sutskever et al. 2014, section 3.2.
    """
    check_search(special, over)
    beam, count = whole("beam", beam), whole("count", count)
    if not 1 <= count <= beam <= WIDEST:
        raise ArgumentError(f"beam={beam}, count={count}: a beam is 1 to {WIDEST} and finds at most as many hypotheses")
    check_normalisation(normalisation, alpha)
    limits = length_limits(source, max_length)
    rows = [_Row(number, limit, beam, count, normalisation, alpha) for number, limit in enumerate(limits)]
    if not rows:
        return []
    state, scores = open_texts(model, source, special)
    searched, width = rows, 1  # each row has `width` places in the batch, side by side
    while True:
        candidates = _candidates(*admitted(scores, special), [row.going for row in searched], width, beam)
        came_from = [row.advance(found, special, over) for row, found in zip(searched, candidates, strict=True)]
        parents: list[int] = []  # which place of the batch each goes on from
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
    """For each row the likeliest continuations of its hypotheses, 2 · beam: enough even if `beam` of them end.

    Only the best of each hypothesis can be among the best of all, so the vocabulary is looked through once.
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


def _filled(found: list[Any], size: int) -> list[Any]:
    """A list as long as `size`, its last entry repeated."""
    return found + found[-1:] * (size - len(found))
