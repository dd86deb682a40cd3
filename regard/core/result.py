"""The statistics that a call can return besides its output, and the result that contains them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from regard.arguments import count_of, is_whole, plain, shown, whole
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
        for name, asked, size in (("row", self.rows, q_len), ("head", self.heads or (), heads)):
            for one in asked:
                if not 0 <= one < size:
                    raise ArgumentError(f"weights_of requests {name} {one}; this call has {name}s 0 to {size - 1}")


Kind = TypeVar("Kind", TopKeys, WeightsOf)
Want = str | TopKeys | WeightsOf
DIGITS = 18  # of a number in a text
NAMES = ("log_sum_exp", "entropy", "received", "distance", "sink", "weights")


def top_keys(count: int) -> TopKeys:
    """Request the `count` largest weights of each query; missing ones have index -1 and weight 0.

    >>> print(top_keys(8))
    top_keys(8)
    """
    count = plain("top_keys' count", count)
    if not is_whole(count) or count < 1:
        raise ArgumentError(f"top_keys({shown(count)}): the number of keys is 1 or more")
    return TopKeys(whole("top_keys' count", count))


def weights_of(rows: Iterable[int], heads: Iterable[int] | None = None) -> WeightsOf:
    """Request the weights of some queries only.

    Args:
        rows: which queries of the call, counted from 0.
        heads: which query heads; all by default.

    >>> print(weights_of(rows=[0, 5], heads=[3]))
    weights_of(rows=[0, 5], heads=[3])
    """
    chosen = {"rows": _places("rows", rows), "heads": None if heads is None else _places("heads", heads)}
    for name, asked in chosen.items():
        if asked is not None and len(set(asked)) < len(asked):
            raise ArgumentError(f"weights_of({name}={list(asked)}) names one twice; name each once")
        if asked == ():
            raise ArgumentError(f"weights_of({name}=[]) requests nothing; name at least one")
    return WeightsOf(chosen["rows"] or (), chosen["heads"])


def _places(name: str, asked: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(asked, Iterable):
        raise ArgumentError(f"weights_of({name}={shown(asked)}): name them as a list of whole numbers")
    places = tuple(plain(f"one of weights_of's {name}", one) for one in asked)
    for one in places:
        if not is_whole(one) or one < 0:
            raise ArgumentError(f"weights_of({name}=...) holds {shown(one)}; each is a whole number from 0 on")
    return tuple(map(int, places))


def checked_wants(want: Iterable[Want] | Want) -> tuple[Want, ...]:
    """The requested statistics, each once; an unknown one is refused with the names of all.

    A statistic may be given as its text too.

    >>> checked_wants("top_keys(8)")
    (TopKeys(count=8),)
    """
    single = isinstance(want, str | TopKeys | WeightsOf) or not isinstance(want, Iterable) or hasattr(want, "dtype")
    asked: tuple[Any, ...] = (want,) if single else tuple(want)
    asked = tuple(_read(one) if isinstance(one, str) else one for one in asked)
    for one in asked:
        if not isinstance(one, TopKeys | WeightsOf) and not (isinstance(one, str) and one in NAMES):
            raise ArgumentError(
                f"want={shown(one)} is no statistic; there are {', '.join(NAMES)}, top_keys(n) and "
                f"weights_of(rows, heads)"
            )
    for kind, advice in (
        (TopKeys, "top_keys twice; request the larger number"),
        (WeightsOf, "weights_of twice; request it"),
    ):
        if sum(isinstance(one, kind) for one in dict.fromkeys(asked)) > 1:
            raise ArgumentError(f"want holds {advice} once")
    return tuple(dict.fromkeys(asked))


def _read(text: str) -> Want:
    """`top_keys(8)` and `weights_of(rows=[0, 5], heads=[3])` as they are written in Python; any other text as it is."""
    if (counted := re.fullmatch(r"top_keys\(([0-9]+)\)", text.strip())) is not None:
        return top_keys(_number("top_keys", counted[1]))
    if (chosen := re.fullmatch(r"weights_of\(rows=\[(.*?)\](?:, *heads=\[(.*?)\])?\)", text.strip())) is not None:
        return weights_of(_numbers(chosen[1]), None if chosen[2] is None else _numbers(chosen[2]))
    return text


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ArgumentError(f"weights_of is given [{text}]; rows and heads are whole numbers, such as [0, 5]")
    return [_number("weights_of", word) for word in words]


def _number(asked: str, word: str) -> int:
    if len(word) > DIGITS:
        raise ArgumentError(
            f"{asked} is given a number of {count_of(len(word), 'digits')}; it counts up to "
            f"{count_of(DIGITS, 'digits')}"
        )
    return int(word)


def as_text(wants: tuple[Want, ...]) -> str:
    """The requested statistics as text.

    >>> as_text(("entropy", top_keys(3))), as_text(())
    ('entropy, top_keys(3)', 'the output alone')
    """
    return ", ".join(map(str, wants)) or "the output alone"


def asked_for(kind: type[Kind], wants: tuple[Want, ...]) -> Kind | None:
    """The requested statistic of this kind, if there is one."""
    return next((want for want in wants if isinstance(want, kind)), None)


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
        before, after = keys.start, k_len - keys.stop
        pad = lambda x: None if x is None else torch.nn.functional.pad(x, (before, after))  # noqa: E731
        top = self.top_keys
        if top is not None:
            top = TopKeysFound(torch.where(top.indices < 0, top.indices, top.indices + before), top.weights)
        return self._replace(
            received=pad(self.received), weights=pad(self.weights), top_keys=top,
            chosen_weights=pad(self.chosen_weights),
        )  # fmt: skip


class Statistics:
    """Output and statistics of one call; reading a statistic that was not requested raises."""

    def __init__(self, result: Result, asked: str) -> None:
        self._result = result
        self.asked = asked

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
        found = getattr(self._result, name)
        if found is None:
            name = "weights_of" if name == "chosen_weights" else name
            raise RegardError(f"{name} was not requested; add it to want= (requested: {self.asked})")
        return found
