"""What every search does first, and with each model's scores: the two things that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.arguments import whole
from regard.decoding.likeliest import log_total
from regard.errors import ArgumentError, RegardError
from regard.kinds import each, shown
from regard.models.state import State, Writer
from regard.text.vocabularies import BEGIN, END, PAD, UNKNOWN

# Is the text of this row, with all its ids so far, over? Asked once for each id that did not end it.
Over = Callable[[int, Sequence[int]], bool]


@dataclass(frozen=True)
class SpecialIds:
    """The ids that mean something to a search; those of regard's tokenisers unless given.

    Args:
        begin: opens a text that a model begins to write, such as a translation.
        end: closes a text; None for a model that never ends one.
        never: what no text holds, so that no search chooses it.
    """

    begin: int = BEGIN
    end: int | None = END
    never: tuple[int, ...] = (PAD, UNKNOWN, BEGIN)

    def __post_init__(self) -> None:
        found = {
            "begin": whole("begin", self.begin, 0),
            "end": None if self.end is None else whole("end", self.end, 0),
            "never": tuple(whole("an id of never", one, 0) for one in each("never", self.never, "a tuple of ids")),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)


OURS = SpecialIds()


def check_search(special: SpecialIds, over: Over | None) -> None:
    """Raise an ArgumentError where a search is given another kind of object."""
    if not isinstance(special, SpecialIds):
        raise ArgumentError(f"special is {shown(special)}; it needs SpecialIds")
    if over is not None and not callable(over):
        raise ArgumentError(f"over is {shown(over)}; it needs a function of a row and its ids")


def open_texts(model: Writer[Any], texts: torch.Tensor, special: SpecialIds) -> tuple[State, torch.Tensor]:
    """The state from which texts (batch, length) are continued or translated, and the scores of each first id.

    A state that has read a prompt holds them as `next_scores`; any other text begins with `special.begin`.
    """
    for name in ("start", "step"):
        if not callable(getattr(model, name, None)):
            raise ArgumentError(f"model is {shown(model)}; it needs a model that can `start` and `step`")
    state = model.start(texts)
    scores = getattr(state, "next_scores", None)
    if scores is None:
        begin = torch.full((len(texts),), special.begin, dtype=torch.int64, device=texts.device)
        return state, model.step(begin, state)
    return state, scores.clone()  # a search writes into scores, and these are the state's


def admitted(scores: torch.Tensor, special: SpecialIds) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (batch, vocab_size) in which ids that no text holds have -inf, and the logarithm (batch, 1) of what the
    exponents of a row add up to: scores less that are log-probabilities.

    Scores of at least float32 are written to in place, for they are a step's own and may be large.

    Raises:
        RegardError: scores that are not numbers.
    """
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if special.never:
        scores[:, list(special.never)] = -torch.inf
    total = log_total(scores)  # NaN or infinite where one score is, or all are -inf
    if not bool(total.isfinite().all()):
        raise RegardError(
            "the model's scores are not finite, so nothing can be chosen by them; its weights are damaged"
        )
    return scores, total


def length_limits(texts: torch.Tensor, most: int | None) -> list[int]:
    """How many ids each row may get: twice its living source ids and 16 more, or `most` for all.

    A row's limit is its own, so that what stands beside it in a batch changes nothing.
    """
    if not isinstance(texts, torch.Tensor) or texts.dim() != 2:
        raise ArgumentError(f"texts are {shown(texts)}; they are an int64 tensor of ids (batch, length)")
    if most is None:
        return [2 * living + 16 for living in (texts != PAD).sum(1).tolist()]
    if whole("the most ids", most) < 1:
        raise ArgumentError(f"a text of at most {most} ids was asked for; it may have 1 or more")
    return [most] * len(texts)
