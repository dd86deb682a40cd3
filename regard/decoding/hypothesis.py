"""What a search finds and how it is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from regard.errors import ArgumentError, RegardError
from regard.text.vocabularies import BEGIN, PAD, UNKNOWN

NORMALISATIONS = ("none", "average", "gnmt")
_NEVER = (PAD, UNKNOWN, BEGIN)  # no text holds them


class SteppingModel(Protocol):
    """What a search asks of a model; TranslationTransformer is one."""

    def start(self, source: torch.Tensor) -> Any:
        """A state for sources (batch, source_length); it can `reorder(index)`."""
        ...

    def step(self, ids: torch.Tensor, state: Any) -> torch.Tensor:
        """Scores (batch, vocab_size) of what follows ids (batch,); the state moves on."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """Target ids without BEGIN and END, the logarithm of their probability, and the score it is ranked by.

    `finished` says whether END closed it, or the limit of its length cut it off.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


def normalised(log_probability: float, length: int, normalisation: str, alpha: float = 0.6) -> float:
    """The score of a hypothesis of `length` ids, END included.

    none: log p;   average: log p / length;   gnmt: log p / ((5 + length) / 6)^alpha

    Source of gnmt: Google's Neural Machine Translation System, Wu et al. 2016, equation 14.

    >>> round(normalised(-6.0, 7, "gnmt", alpha=1.0), 6)
    -3.0
    """
    if normalisation == "none":
        return log_probability
    if normalisation == "average":
        return log_probability / max(1, length)
    if normalisation == "gnmt":
        return log_probability / ((5 + length) / 6) ** alpha
    raise ArgumentError(f"normalisation={normalisation!r} does not exist; there are {', '.join(NORMALISATIONS)}")


def length_limits(source: torch.Tensor, max_length: int | None) -> list[int]:
    """How many target ids each row may get: twice its living source ids and 16 more, or `max_length` for all.

    A row's limit is its own, so that what stands beside it in a batch changes nothing.
    """
    if max_length is None:
        return [2 * int(living) + 16 for living in (source != PAD).sum(1)]
    if max_length < 1:
        raise ArgumentError(f"max_length is {max_length}; a translation may have 1 id or more")
    return [max_length] * len(source)


def log_probabilities(scores: torch.Tensor) -> torch.Tensor:
    """Logarithms of the probabilities of the next ids, (batch, vocab_size); those that no text holds get none.

    Raises:
        RegardError: scores that are not numbers.
    """
    if not bool(scores.isfinite().all()):
        raise RegardError(
            "the model's scores are not finite, so nothing can be chosen by them; its weights are damaged"
        )
    scores = scores.float().clone()
    scores[:, list(_NEVER)] = -torch.inf
    return scores.log_softmax(-1)


def begin_ids(rows: int, device: torch.device) -> torch.Tensor:
    return torch.full((rows,), BEGIN, dtype=torch.int64, device=device)
