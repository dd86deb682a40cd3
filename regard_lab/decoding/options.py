"""The options of a search: one object, which goes from a command through a translator or generator to the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from regard.arguments import count_of, each, of_kind, one_of, real, whole
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.decoding.constraints import FREE, Constraints
from regard_lab.text.vocabularies import BEGIN, END, NEVER_WRITTEN, PAD

LARGEST_BEAM = 1 << 16
LARGEST_ALPHA = 30  # the normalisation of any text stays a finite float
NORMALISATIONS = ("none", "average", "gnmt")
# The constraints that are options of all texts of a call.
RULES = ("min_length", "no_repeat", "repetition_penalty")

# Whether a text is over, given its number and all its ids so far; called after each new id except END. The number is
# the batch row of a beam, else batch row · count + number of the sample.
StopFunction = Callable[[int, Sequence[int]], bool]


@brief
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search continues texts: how many it keeps, how it ranks them, how long they are and how keys are stored.

    Args:
        beam: hypotheses kept at each step; 1 takes the most likely id each time, or draws it.
        count: texts for each batch row: the best of a beam, or independent samples.
        normalisation: length normalisation of the scores of a beam: "none", "average" or "gnmt"; see `normalised`.
        alpha: exponent of "gnmt".
        max_tokens: the most new ids; None for twice the ids of the batch row plus 16.
        cache: kind of cache, as `new_cache` of a layer has it: "dynamic", "static", "ring", "paged" or "state"; None
            for the model's own choice. The room of a static cache is that of the text and the new ids. Beams share the
            pages of a "paged" one.
        cache_dtype: storage dtype of keys and values, such as "int8" or torch.bfloat16; None for that of the weights.
        constraints: what texts begin with, and which ids they may not have.

    Raises:
        ArgumentError: other values.

    >>> SearchOptions(beam=4, normalisation="average").score(-6.0, 3)
    -2.0
    """

    beam: int = 1
    count: int = 1
    normalisation: str = "gnmt"
    alpha: float = 0.6
    max_tokens: int | None = None
    cache: str | None = None
    cache_dtype: torch.dtype | str | None = None
    constraints: Constraints = FREE

    def __post_init__(self) -> None:
        needs = f"a whole number from 1 to {LARGEST_BEAM:,}"
        object.__setattr__(self, "beam", whole("beam", self.beam, 1, LARGEST_BEAM, needs=needs))
        object.__setattr__(self, "count", whole("count", self.count, 1))
        check_normalisation(self.normalisation, self.alpha)
        object.__setattr__(self, "alpha", real("alpha", self.alpha))
        if self.max_tokens is not None:
            max_tokens = whole("the most ids", self.max_tokens)
            if max_tokens < 1:
                raise ArgumentError(f"the limit is {count_of(max_tokens, 'ids')}; give 1 or more")
            object.__setattr__(self, "max_tokens", max_tokens)
        of_kind("constraints", self.constraints, Constraints, "a Constraints")

    def score(self, log_prob: float, length: int) -> float:
        """The score by which a hypothesis of `length` ids, including END, is ranked."""
        return normalised(log_prob, length, self.normalisation, self.alpha)

    def length_limits(self, texts: torch.Tensor) -> list[int]:
        """The most new ids of each text (batch, length).

        By default they depend on the text alone, so that it has the same limit in any batch.
        """
        if self.max_tokens is None:
            limits = [2 * length + 16 for length in (texts != PAD).sum(1).tolist()]
        else:
            limits = [self.max_tokens] * len(texts)
        return self.constraints.limits(limits, self.max_tokens is not None)

    def to_dict(self) -> dict[str, Any]:
        """Every option by its name, with those of the constraints but the prefixes of single texts."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        constraints = values.pop("constraints")
        return values | {name: getattr(constraints, name) for name in RULES}


def with_options(options: SearchOptions, changes: Mapping[str, Any]) -> SearchOptions:
    """The options with other values of some, given by name, among them those of the constraints.

    >>> with_options(SearchOptions(), {"beam": 3, "min_length": 5}).constraints.min_length
    5
    """
    rules = {name: value for name, value in changes.items() if name in RULES}
    others = {name: value for name, value in changes.items() if name not in RULES}
    options = replace(options, **others)
    if rules:
        options = replace(options, constraints=replace(options.constraints, **rules))
    return options


def normalised(
    log_probability: float, length: int, normalisation: str, alpha: float = 0.6
) -> float:
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
    one_of("normalisation", normalisation, NORMALISATIONS)
    if abs(real("alpha", alpha)) > LARGEST_ALPHA:
        raise ArgumentError(
            f"alpha is {alpha}; it is an exponent from -{LARGEST_ALPHA} to {LARGEST_ALPHA}"
        )


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
    never: tuple[int, ...] = NEVER_WRITTEN

    def __post_init__(self) -> None:
        never = each("never", self.never, "a tuple of ids")
        never = tuple(whole("an id of never", identifier, 0) for identifier in never)
        object.__setattr__(self, "begin", whole("begin", self.begin, 0))
        if self.end is not None:
            object.__setattr__(self, "end", whole("end", self.end, 0))
        object.__setattr__(self, "never", never)


DEFAULT_IDS = SpecialIds()
