"""What all searches share: hypotheses, special ids, first logits, length limits and the most likely ids."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.arguments import count_of, each, real, shown, suggest, whole
from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.reprs import brief
from regard_lab.models.state import State, Writer
from regard_lab.text.vocabularies import BEGIN, END, PAD, UNKNOWN

LARGEST_ALPHA = 30  # the normalisation of any text stays a finite float
NORMALISATIONS = ("none", "average", "gnmt")


@brief
@dataclass(frozen=True)
class Hypothesis:
    """The result of a search: ids without BEGIN and END, their log-probability, and the score used for ranking.

    `finished` is True if END or a stop ended the text, and False if the length limit did.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


def normalised(log_probability: float, length: int, normalisation: str, alpha: float = 0.6) -> float:
    """The length-normalised score of a hypothesis of `length` ids, including END.

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
    """Raise an ArgumentError for an unknown normalisation or an alpha that is too large."""
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} does not exist; {suggest(normalisation, NORMALISATIONS)}")
    if abs(real("alpha", alpha)) > LARGEST_ALPHA:
        raise ArgumentError(f"alpha is {alpha}; it is an exponent from -{LARGEST_ALPHA} to {LARGEST_ALPHA}")


BLOCK = 128  # ids per block, for the largest score of each block
CACHED = 1 << 18  # scores that fit in a core's cache while they are summed


def likeliest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest logits of each batch row, the largest first, and their ids.

    They lie in the blocks with the largest maxima, so every other block is read only once.

    Args:
        scores: logits (batch, vocab_size), without NaN.
        count: at least 1; a smaller vocabulary returns fewer.

    Returns:
        Logits and ids, both (batch, count).

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
    """log Σ exp(scores) of each batch row, (batch, 1), computed for a few rows at a time."""
    rows = max(1, CACHED // max(1, scores.shape[1]))
    return torch.cat([part.logsumexp(-1, keepdim=True) for part in scores.split(rows)])


def _largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    # max takes a third of topk's time, and returns the first of equal scores
    best = scores.max(-1, keepdim=True) if count == 1 else scores.topk(count)
    return best.values, best.indices


# Whether the text of this batch row, given all its ids so far, is over; called after each new id except END.
Over = Callable[[int, Sequence[int]], bool]


@brief
@dataclass(frozen=True)
class SpecialIds:
    """Ids with a special meaning in a search; the defaults are those of regard's tokenisers.

    Args:
        begin: first id of a text that a model writes from the start, such as a translation.
        end: id that ends a text; None for a model without one.
        never: ids that are never chosen.
    """

    begin: int = BEGIN
    end: int | None = END
    never: tuple[int, ...] = (PAD, UNKNOWN, BEGIN)

    def __post_init__(self) -> None:
        checked = {
            "begin": whole("begin", self.begin, 0),
            "end": None if self.end is None else whole("end", self.end, 0),
            "never": tuple(whole("an id of never", one, 0) for one in each("never", self.never, "a tuple of ids")),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


OURS = SpecialIds()


def check_search(special: SpecialIds, over: Over | None) -> None:
    """Raise an ArgumentError unless `special` is a SpecialIds and `over` a function or None."""
    if not isinstance(special, SpecialIds):
        raise ArgumentError(f"special is {shown(special)}; give a SpecialIds")
    if over is not None and not callable(over):
        raise ArgumentError(f"over is {shown(over)}; give a function of a batch row and its ids")


@brief
@dataclass(frozen=True)
class Keeping:
    """How a search stores keys and values: the kind of cache and its storage dtype, as `new_cache` of a layer takes
    them; None for the model's own choice."""

    cache: str | None = None
    dtype: torch.dtype | str | None = None

    def start(self, model: Writer[Any], texts: torch.Tensor, most: int) -> Any:
        """The state of a model for texts that get `most` new ids.

        Raises:
            UnsupportedError: the model takes no such options, or has no cache of this kind.
        """
        if self.cache is None and self.dtype is None:
            return model.start(texts)
        start: Any = model.start
        if not {"cache", "capacity", "dtype"} <= set(inspect.signature(start).parameters):
            given = f"cache={self.cache!r}" if self.cache is not None else f"cache_dtype={self.dtype!r}"
            raise UnsupportedError(
                f"{type(model).__name__} stores no keys and values of its texts in a cache, so {given} has no meaning "
                f"for it; leave it out"
            )
        capacity = {"capacity": texts.shape[1] + most} if self.cache == "static" else {}
        return start(texts, self.cache, dtype=self.dtype, **capacity)


OWN = Keeping()  # what the model chooses


def open_texts(
    model: Writer[Any], texts: torch.Tensor, special: SpecialIds, keeping: Keeping, most: int
) -> tuple[State, torch.Tensor]:
    """Start a search: the state for texts (batch, length), and the logits of each first new id.

    A state that has read a prompt holds these logits as `next_scores`; otherwise the text starts with `special.begin`.
    """
    for name in ("start", "step"):
        if not callable(getattr(model, name, None)):
            raise ArgumentError(f"model is {shown(model)}; give a model with `start` and `step`")
    state = keeping.start(model, texts, most)
    scores = getattr(state, "next_scores", None)
    if scores is None:
        begin = torch.full((len(texts),), special.begin, dtype=torch.int64, device=texts.device)
        return state, model.step(begin, state)
    return state, scores.clone()  # a search modifies its logits in place


def admitted(scores: torch.Tensor, special: SpecialIds) -> tuple[torch.Tensor, torch.Tensor]:
    """Set the logits (batch, vocab_size) of ids in `special.never` to -inf, and compute their log-sum-exp (batch, 1).

    The difference of the two gives log-probabilities. Logits of float32 or float64 are changed in place, since they may
    be large.

    Raises:
        RegardError: logits that are not finite.
    """
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if special.never:
        scores[:, list(special.never)] = -torch.inf
    total = log_total(scores)  # not finite if a logit is NaN or inf, or all are -inf
    if not bool(total.isfinite().all()):
        raise RegardError("the model's logits are not finite, so no id can be chosen; its weights may be damaged")
    return scores, total


def length_limits(texts: torch.Tensor, most: int | None) -> list[int]:
    """The most new ids of each batch row: `most`, or by default twice its ids without padding plus 16.

    The limit depends on the row alone, so a text has the same limit in any batch.
    """
    if not isinstance(texts, torch.Tensor) or texts.dim() != 2:
        raise ArgumentError(f"texts are {shown(texts)}; give an int64 tensor of ids (batch, length)")
    if most is None:
        return [2 * length + 16 for length in (texts != PAD).sum(1).tolist()]
    if whole("the most ids", most) < 1:
        raise ArgumentError(f"the limit is {count_of(most, 'ids')}; give 1 or more")
    return [most] * len(texts)
