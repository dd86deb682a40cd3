"""What every search has: a state of the model for its texts, log-probabilities of next ids, and hypotheses."""

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch

from regard.arguments import of_kind, shown
from regard.backends.native.program import Beam, Choice, Written
from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.reprs import brief
from regard_lab.decoding.options import SearchOptions, SpecialIds, StopFunction
from regard_lab.decoding.sampling import log_total
from regard_lab.models.state import State, Writer


@brief
@dataclass(frozen=True)
class Hypothesis:
    """The result of a search: ids without BEGIN and END, their log-probability, and the score used for ranking.

    `finished` is True if END or a stop ended the text, and False if the length limit did. `gains` are the
    log-probabilities of the ids, and of END where that ended the text; their sum is the log-probability of the text.
    `calls` are those of the model where ids were speculated, else 0.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool
    gains: tuple[float, ...] = ()
    calls: int = 0


def check_search(texts: torch.Tensor, special: SpecialIds, over: StopFunction | None) -> None:
    """Raise an ArgumentError for texts, special ids or a stop function that a search cannot use."""
    of_kind("special", special, SpecialIds, "a SpecialIds")
    if over is not None and not callable(over):
        raise ArgumentError(f"over is {shown(over)}; give a function of a batch row and its ids")
    if not isinstance(texts, torch.Tensor) or texts.dim() != 2:
        raise ArgumentError(
            f"texts are {shown(texts)}; give an int64 tensor of ids (batch, length)"
        )


def start_search(
    model: Writer[Any],
    texts: torch.Tensor,
    options: SearchOptions,
    special: SpecialIds,
    max_new_ids: int,
) -> tuple[State, torch.Tensor]:
    """The state for texts (batch, length) that get at most so many new ids, and the logits of each first new id."""
    state, logits, begin = begin_search(model, texts, options, special, max_new_ids)
    return state, model.step(begin, state) if logits is None else logits


def begin_search(
    model: Writer[Any],
    texts: torch.Tensor,
    options: SearchOptions,
    special: SpecialIds,
    max_new_ids: int,
) -> tuple[State, torch.Tensor | None, torch.Tensor]:
    """The state for texts (batch, length), their first logits, and the ids (batch,) that they start with.

    A state that has read a prompt holds the logits as `next_scores`. Otherwise they are None, and the model has not
    read the ids yet, which are `special.begin`.
    """
    for name in ("start", "step"):
        if not callable(getattr(model, name, None)):
            raise ArgumentError(f"model is {shown(model)}; give a model with `start` and `step`")

    state = new_state(model, texts, options, max_new_ids)
    logits = getattr(state, "next_scores", None)
    if logits is not None:
        logits = logits.clone()  # a search modifies its logits in place
    begin = torch.full((len(texts),), special.begin, dtype=torch.int64, device=texts.device)
    return state, logits, begin


def new_state(
    model: Writer[Any], texts: torch.Tensor, options: SearchOptions, max_new_ids: int
) -> Any:
    """The state of a model for texts, with the cache and the storage dtype of the options.

    Raises:
        UnsupportedError: a cache was named, and the model has none.
    """
    if options.cache is None and options.cache_dtype is None:
        return model.start(texts)

    start: Any = model.start
    if not {"cache", "capacity", "dtype"} <= set(inspect.signature(start).parameters):
        asked = f"cache={options.cache!r}"
        if options.cache is None:
            asked = f"cache_dtype={options.cache_dtype!r}"
        raise UnsupportedError(
            f"{type(model).__name__} stores no keys and values of its texts in a cache, so {asked} has no meaning "
            f"for it; leave it out"
        )
    settings: dict[str, Any] = {"dtype": options.cache_dtype}
    if options.cache == "static":
        settings["capacity"] = texts.shape[1] + max_new_ids
    return start(texts, options.cache, **settings)


def continue_texts(
    model: Writer[Any],
    ids: torch.Tensor,
    state: Any,
    special: SpecialIds,
    steps: int,
    beam: Beam | None = None,
) -> tuple[Written, torch.Tensor | None] | None:
    """Let a model append `ids` (batch,) and choose those after them, if it can; it stops before a text may end.

    Args:
        model: one with `start` and `step`.
        ids, state: as for `step`.
        special: ids with a special meaning.
        steps: the most steps.
        beam: of a beam search, its hypotheses.

    Returns:
        What was written, and the logits (batch, vocab_size) after it where they are known. None where the model has to
        be asked for the next step.
    """
    # of its class, since an object that stands for a model may count or change its steps
    continue_by_itself = getattr(type(model), "continue_texts", None)
    if continue_by_itself is None or steps < 1:
        return None
    never = torch.tensor(special.never, dtype=torch.int64, device="cpu")
    return continue_by_itself(model, ids, state, Choice(steps, never, special.end, beam))


def exclude_never(logits: torch.Tensor, special: SpecialIds) -> tuple[torch.Tensor, torch.Tensor]:
    """Set the logits (batch, vocab_size) of ids in `special.never` to -inf, and compute their log-sum-exp (batch, 1).

    The difference of the two gives log-probabilities. Logits of float32 or float64 are changed in place, since they may
    be large.

    Raises:
        RegardError: a logit is NaN or inf, or no id is left.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if special.never:
        never = torch.tensor(special.never, device=logits.device)
        logits.index_fill_(1, never, -torch.inf)
    log_sum_exp = log_total(logits)
    # It is not finite if a logit is NaN or inf, or all are -inf.
    if not all(map(math.isfinite, log_sum_exp.flatten().tolist())):
        raise RegardError(
            "the model's logits are not finite, so no id can be chosen; its weights may be damaged"
        )
    return logits, log_sum_exp
