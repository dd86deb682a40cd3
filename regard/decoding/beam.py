"""Several hypotheses side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from regard.decoding.hypothesis import (
    NORMALISATIONS,
    Hypothesis,
    SteppingModel,
    begin_ids,
    length_limits,
    log_probabilities,
    normalised,
)
from regard.errors import ArgumentError
from regard.text.vocabularies import END


@dataclass
class _Row:
    """One source's search: hypotheses that go on (likeliest first) and those that ended."""

    limit: int
    normalisation: str
    alpha: float
    going: list[tuple[tuple[int, ...], float]] = field(default_factory=lambda: [((), 0.0)])
    ended: list[Hypothesis] = field(default_factory=list)

    def end(self, ids: tuple[int, ...], log_probability: float, finished: bool) -> None:
        score = normalised(log_probability, len(ids) + finished, self.normalisation, self.alpha)
        self.ended.append(Hypothesis(ids, log_probability, score, finished))

    def is_settled(self, count: int) -> bool:
        """Can no hypothesis that goes on enter the best `count` any more?

        A log-probability only falls, and dividing it by the normalisation of the longest text flatters it most.
        """
        if not self.going:
            return True
        if len(self.ended) < count:
            return False
        worst = sorted(found.score for found in self.ended)[-count]
        hope = self.going[0][1]
        best = max(normalised(hope, length, self.normalisation, self.alpha) for length in (1, self.limit))
        return best <= worst


@torch.inference_mode()
def beam_search(
    model: SteppingModel,
    source: torch.Tensor,
    beam: int,
    *,
    count: int = 1,
    normalisation: str = "gnmt",
    alpha: float = 0.6,
    max_length: int | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each row, `beam` of them kept at every step.

    Args:
        model: what can `start` and `step`.
        source: ids (batch, source_length), padded with PAD.
        beam: hypotheses that go on at each step; 1 is greedy search.
        count: hypotheses returned for each row, at most `beam`.
        normalisation: how scores allow for length: "none", "average" or "gnmt"; see `normalised`.
        alpha: of "gnmt".
        max_length: the most target ids; by default twice a row's source ids and 16 more.

    Returns:
        For each row its best `count` hypotheses, the best first.

    Raises:
        ArgumentError: a beam, count or normalisation that cannot be.

    Source: Sequence to Sequence Learning, Sutskever et al. 2014, section 3.2.
    """
    if not 1 <= count <= beam:
        raise ArgumentError(f"beam={beam}, count={count}: a beam is 1 or more and finds at most as many hypotheses")
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} does not exist; there are {', '.join(NORMALISATIONS)}")
    rows = [_Row(limit, normalisation, alpha) for limit in length_limits(source, max_length)]
    if not rows:
        return []
    state = model.start(source)
    ids = begin_ids(len(rows), source.device)
    width = 1  # places of each row in the batch; all hypotheses of a row lie together
    while not all(row.is_settled(count) for row in rows):
        gains = log_probabilities(model.step(ids, state))  # (rows * width, vocab_size)
        chosen = [_advance(row, gains[at * width : (at + 1) * width], beam, count) for at, row in enumerate(rows)]
        parents = [at * width + (places[min(i, len(places) - 1)] if places else 0)
                   for at, (places, _) in enumerate(chosen) for i in range(beam)]  # fmt: skip
        last = [(following[min(i, len(following) - 1)] if following else END)
                for _, following in chosen for i in range(beam)]  # fmt: skip
        state.reorder(torch.tensor(parents, device=source.device))
        ids, width = torch.tensor(last, device=source.device), beam
    return [sorted(row.ended, key=lambda found: -found.score)[:count] for row in rows]


def _advance(row: _Row, gains: torch.Tensor, beam: int, count: int) -> tuple[list[int], list[int]]:
    """Let a row's hypotheses go one id further; answers with the place each came from and the id it got."""
    if row.is_settled(count):
        row.going = []
        return [], []
    totals = gains[: len(row.going)] + torch.tensor([[total] for _, total in row.going], device=gains.device)
    best = totals.flatten().topk(min(2 * beam, totals.numel()))  # enough even if each of `beam` of them ends
    going: list[tuple[tuple[int, ...], float]] = []
    places: list[int] = []
    following: list[int] = []
    for rank, (at, total) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True)):
        if total == -torch.inf or len(going) == beam or (beam == 1 and row.ended):
            break
        place, identifier = divmod(at, gains.shape[1])
        ids = row.going[place][0]
        if identifier == END:
            if rank < beam:
                row.end(ids, total, finished=True)
        elif len(ids) + 1 >= row.limit:
            row.end((*ids, identifier), total, finished=False)
        else:
            going.append(((*ids, identifier), total))
            places.append(place)
            following.append(identifier)
    row.going = going
    return places, following
