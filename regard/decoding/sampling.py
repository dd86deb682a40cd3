"""How the next id is chosen where texts are written one id after another: drawn, or the likeliest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import whole
from regard.decoding.filters import check_filters, check_scores, filtered_probabilities, is_greedy
from regard.decoding.likeliest import likeliest
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.patterns.counting import draw


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of a draw; `filtered_probabilities` says what they mean.

    Args:
        temperature: 0 for no draw at all: the likeliest id.
        top_k, top_p, min_p: which ids may be drawn; None for all.
        seed: the number drawn for a text's next id is a function of (seed, row of the text, ids written so far): the
            same on every device, and whatever stands beside it in a batch.

    Raises:
        ArgumentError: settings that cannot be.

    >>> Sampling(temperature=0.8, top_p=0.9, seed=7).is_greedy
    False
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_filters(self.temperature, self.top_k, self.top_p, self.min_p)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed is {self.seed!r}; it is a whole number from 0 to 2**63 - 1")

    @property
    def is_greedy(self) -> bool:
        return is_greedy(self.temperature)

    def choose(self, scores: torch.Tensor, rows: torch.Tensor, place: int) -> torch.Tensor:
        """The next id of each text.

        Args:
            scores: (batch, vocab_size).
            rows: int64 (batch,), the number of each text.
            place: how many ids each of them has got already.

        Returns:
            Ids (batch,).
        """
        check_scores(scores)
        whole("place", place, 0)
        if not isinstance(rows, torch.Tensor) or rows.shape != scores.shape[:1] or rows.dtype != torch.int64:
            raise ArgumentError(f"rows are {shown(rows)}; they are an int64 tensor, a number for each row of scores")
        if self.is_greedy:
            return likeliest(scores, 1)[1][:, 0]
        likely = filtered_probabilities(
            scores, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p
        )
        below = likely.double().cumsum(-1)  # (batch, vocab_size)
        wanted = uniform(self.seed, rows, place).to(below.device)[:, None] * below[:, -1:]
        return torch.searchsorted(below, wanted, right=True)[:, 0]  # the first id that reaches beyond


def uniform(seed: int, rows: torch.Tensor, place: int) -> torch.Tensor:
    """A number in [0, 1) for each of the rows (batch,), of 52 random bits, so that its product stays below too."""
    rows = rows.cpu()
    high = draw(seed, rows, 2 * place, torch.tensor(2**31))
    low = draw(seed, rows, 2 * place + 1, torch.tensor(2**21))
    return (high * 2**21 + low).double() / 2**52
