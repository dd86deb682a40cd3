"""The statistics that a call can return besides its output, and the result that contains them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from regard.arguments import shown, whole
from regard.errors import ArgumentError, RegardError


@dataclass(frozen=True)
class TopKeys:
    """The `count` keys with the largest weights of each query."""

    count: int

    def __str__(self) -> str:
        return f"top_keys({self.count})"


@dataclass(frozen=True)
class WeightsOf:
    """The weights of some rows and heads."""

    rows: tuple[int, ...]
    heads: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"weights_of(rows={list(self.rows)}, heads={'all' if self.heads is None else list(self.heads)})"

    def check(self, heads: int, q_len: int) -> None:
        """Raise an ArgumentError unless a call of these sizes has all of the rows and heads."""
        _check_places("row", self.rows, q_len)
        _check_places("head", self.heads or (), heads)


def _check_places(name: str, places: tuple[int, ...], size: int) -> None:
    for place in places:
        if not 0 <= place < size:
            raise ArgumentError(
                f"weights_of requests {name} {place}; this call has {name}s 0 to {size - 1}"
            )


RequestT = TypeVar("RequestT", TopKeys, WeightsOf)
Want = str | TopKeys | WeightsOf
_NUMBERS = r"\[([0-9]{1,18}(?:, *[0-9]{1,18})*)\]"
_WRITTEN = re.compile(
    rf"top_keys\(([0-9]{{1,18}})\)|weights_of\(rows={_NUMBERS}(?:, *heads={_NUMBERS})?\)"
)
NAMES = ("log_sum_exp", "entropy", "received", "distance", "sink", "weights")


def top_keys(count: int) -> TopKeys:
    """Request the `count` largest weights of each query; missing ones have index -1 and weight 0.

    >>> print(top_keys(8))
    top_keys(8)
    """
    return TopKeys(whole("top_keys' count", count, 1))


def weights_of(rows: Iterable[int], heads: Iterable[int] | None = None) -> WeightsOf:
    """Request the weights of some queries only.

    Args:
        rows: which queries of the call, counted from 0.
        heads: which query heads; all by default.

    >>> print(weights_of(rows=[0, 5], heads=[3]))
    weights_of(rows=[0, 5], heads=[3])
    """
    chosen_heads = None if heads is None else _places("heads", heads)
    return WeightsOf(_places("rows", rows), chosen_heads)


def _places(name: str, numbers: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(numbers, Iterable):
        raise ArgumentError(
            f"weights_of({name}={shown(numbers)}): name them as a list of whole numbers"
        )
    places = tuple(whole(f"one of weights_of's {name}", number, 0) for number in numbers)
    if not places:
        raise ArgumentError(f"weights_of({name}=[]) requests nothing; name at least one")
    if len(set(places)) < len(places):
        raise ArgumentError(f"weights_of({name}={list(places)}) names one twice; name each once")
    return places


def checked_wants(want: Iterable[Want] | Want) -> tuple[Want, ...]:
    """The requested statistics, each once; an unknown one is refused with the names of all.

    A statistic may be given as its text too.

    >>> checked_wants("top_keys(8)")
    (TopKeys(count=8),)
    """
    is_single = isinstance(want, str | TopKeys | WeightsOf) or hasattr(want, "dtype")
    listed: Any = want
    if is_single or not isinstance(want, Iterable):
        listed = (want,)
    statistics: dict[Any, None] = {}  # in their order
    for statistic in listed:
        if isinstance(statistic, str):
            statistic = _read(statistic)
        is_known = isinstance(statistic, str) and statistic in NAMES
        if not is_known and not isinstance(statistic, TopKeys | WeightsOf):
            raise ArgumentError(
                f"want={shown(statistic)} is no statistic; there are {', '.join(NAMES)}, top_keys(n) and "
                f"weights_of(rows, heads)"
            )
        statistics[statistic] = None
    for kind, name in ((TopKeys, "top_keys"), (WeightsOf, "weights_of")):
        if sum(isinstance(statistic, kind) for statistic in statistics) > 1:
            raise ArgumentError(f"want holds {name} twice; request all that is needed in one")
    return tuple(statistics)


def _read(text: str) -> Want:
    """`top_keys(8)` and `weights_of(rows=[0, 5], heads=[3])` as they are written in Python; any other text as it is."""
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        return text
    count, rows, heads = match.groups()
    if count is not None:
        return top_keys(int(count))
    chosen_heads = None if heads is None else map(int, heads.split(","))
    return weights_of(map(int, rows.split(",")), chosen_heads)


def as_text(wants: tuple[Want, ...]) -> str:
    """The requested statistics as text.

    >>> as_text(("entropy", top_keys(3))), as_text(())
    ('entropy, top_keys(3)', 'the output alone')
    """
    return ", ".join(map(str, wants)) or "the output alone"


def requested(kind: type[RequestT], wants: tuple[Want, ...]) -> RequestT | None:
    """The requested statistic of this kind, if there is one."""
    for want in wants:
        if isinstance(want, kind):
            return want
    return None


@dataclass(frozen=True)
class TopKeysFound:
    """indices: (batch, heads, q_len, count), -1 where there are fewer keys; weights: likewise, 0 there."""

    indices: torch.Tensor
    weights: torch.Tensor


class Result(NamedTuple):
    """What a backend returns; statistics that were not requested are None.

    output: (batch, heads, q_len, v_dim), log_sum_exp, entropy, distance and sink: (batch, heads, q_len),
    received: (batch, heads, keys), weights: (batch, heads, q_len, keys), chosen_weights: likewise of chosen rows.
    sound: whether all numbers of the output are finite; None if the backend did not look.
    """

    output: torch.Tensor
    log_sum_exp: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    received: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    top_keys: TopKeysFound | None = None
    distance: torch.Tensor | None = None
    chosen_weights: torch.Tensor | None = None
    sink: torch.Tensor | None = None
    sound: bool | None = None

    def on_all_keys(self, keys: range, k_len: int) -> Result:
        """The result with statistics of the keys in `keys` widened to all keys, with zeros for the others."""
        if len(keys) == k_len:
            return self
        missing = keys.start, k_len - keys.stop
        top = self.top_keys
        if top is not None:
            indices = torch.where(top.indices < 0, top.indices, top.indices + keys.start)
            top = TopKeysFound(indices, top.weights)
        return self._replace(
            received=_padded(self.received, missing),
            weights=_padded(self.weights, missing),
            top_keys=top,
            chosen_weights=_padded(self.chosen_weights, missing),
        )


def _padded(statistic: torch.Tensor | None, missing: tuple[int, int]) -> torch.Tensor | None:
    """A statistic by key with zeros for the keys that are missing before and after."""
    return None if statistic is None else torch.nn.functional.pad(statistic, missing)


class Statistics:
    """Output and statistics of one call; reading a statistic that was not requested raises."""

    def __init__(self, result: Result, want: tuple[Want, ...]) -> None:
        self._result = result
        self.statistics = as_text(want)

    @property
    def output(self) -> torch.Tensor:
        """(batch, heads, q_len, v_dim), in q's dtype."""
        return self._result.output

    @property
    def log_sum_exp(self) -> torch.Tensor:
        """Logarithm of the sum of exponentiated scores, (batch, heads, q_len); -inf for an empty row."""
        return self._read("log_sum_exp")

    @property
    def entropy(self) -> torch.Tensor:
        """Entropy of each row of weights in nats, (batch, heads, q_len); 0 for an empty row."""
        return self._read("entropy")

    @property
    def received(self) -> torch.Tensor:
        """Sum of the weights that each key received over the queries, (batch, heads, k_len)."""
        return self._read("received")

    @property
    def distance(self) -> torch.Tensor:
        """Mean of |k_pos - q_pos| under each row of weights, (batch, heads, q_len); 0 for an empty row."""
        return self._read("distance")

    @property
    def sink(self) -> torch.Tensor:
        """Weight of the sink, 1 minus the sum of the weights, (batch, heads, q_len); 0 in a call without a sink."""
        return self._read("sink")

    @property
    def weights(self) -> torch.Tensor:
        """Weights before dropout, (batch, heads, q_len, k_len)."""
        return self._read("weights")

    @property
    def chosen_weights(self) -> torch.Tensor:
        """Weights of the rows and heads named in `weights_of`, in that order: (batch, heads, rows, k_len)."""
        return self._read("chosen_weights")

    @property
    def top_keys(self) -> TopKeysFound:
        """The keys with the largest weights of each query, and those weights."""
        return self._read("top_keys")

    def _read(self, name: str) -> Any:
        statistic = getattr(self._result, name)
        if statistic is None:
            wanted = "weights_of" if name == "chosen_weights" else name
            raise RegardError(
                f"{wanted} was not requested; add it to want= (requested: {self.statistics})"
            )
        return statistic
