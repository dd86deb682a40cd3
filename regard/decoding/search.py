"""What all searches share: hypotheses, special ids, first scores, length limits and the most likely ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.arguments import real, whole
from regard.errors import ArgumentError, RegardError
from regard.kinds import each, shown
from regard.models.state import State, Writer
from regard.text.vocabularies import BEGIN, END, PAD, UNKNOWN

LARGEST_ALPHA = 30  # a longer text, to this power, is still a float
NORMALISATIONS = ("none", "average", "gnmt")


@dataclass(frozen=True)
class Hypothesis:
    """Ids of a text without BEGIN and END, the logarithm of their probability, and the score it is ranked by.

    `finished` says whether END or a stop closed it, or the limit of its length cut it off.
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
    real("log_probability", log_probability)
    whole("length", length, 0)
    check_normalisation(normalisation, alpha)
    if normalisation == "none":
        return log_probability
    if normalisation == "average":
        return log_probability / max(1, length)
    return log_probability / ((5 + length) / 6) ** alpha


def check_normalisation(normalisation: str, alpha: float) -> None:
    """Raise an ArgumentError for a normalisation that does not exist, or an alpha that is no small number."""
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} does not exist; there are {', '.join(NORMALISATIONS)}")
    if abs(real("alpha", alpha)) > LARGEST_ALPHA:
        raise ArgumentError(f"alpha is {alpha}; it is a power, from -{LARGEST_ALPHA} to {LARGEST_ALPHA}")


BLOCK = 128  # ids, of which the largest score is looked at first
NEAR = 1 << 18  # scores that stay near a core while they are summed up


def likeliest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest scores of each row, the largest first, and where they stand.

    The largest of all stand in the blocks with the largest maxima, so that all but these are read once and no more.

    Args:
        scores: (batch, vocab_size), without NaN.
        count: at least 1; as many as there are where there are fewer.

    Returns:
        Scores and ids, both (batch, count).

    >>> likeliest(torch.tensor([[1.0, 5.0, 3.0]]), 2)[1].tolist()
    [[1, 2]]
    """
    blocks = scores.shape[1] // BLOCK
    if blocks <= 2 * count:
        return _largest(scores, min(count, scores.shape[1]))
    whole, rest = scores[:, : blocks * BLOCK], scores[:, blocks * BLOCK :]
    each = whole.unflatten(1, (blocks, BLOCK))
    best = _largest(each.amax(-1), count)[1]  # the blocks, (batch, count)
    inside = each.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)
    values, at = _largest(torch.cat([inside, rest], 1), count)
    ids = best.gather(1, (at // BLOCK).clamp(max=count - 1)) * BLOCK + at % BLOCK
    return values, torch.where(at < count * BLOCK, ids, at + (blocks - count) * BLOCK)


def log_total(scores: torch.Tensor) -> torch.Tensor:
    """log Σ exp(scores) of each row, (batch, 1), a few rows at a time."""
    rows = max(1, NEAR // max(1, scores.shape[1]))
    return torch.cat([part.logsumexp(-1, keepdim=True) for part in scores.split(rows)])


def _largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = scores.max(-1, keepdim=True) if count == 1 else scores.topk(count)  # a third of the time, and the first
    return found.values, found.indices


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
