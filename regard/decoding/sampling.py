"""Sampling of the next id: the filters and the draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import plain, real, whole
from regard.decoding.search import likeliest
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.patterns.hashing import draw


def filtered_probabilities(
    scores: torch.Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> torch.Tensor:
    """Probabilities of the next ids, in this order: temperature, then top-k, top-p and min-p.

        p = softmax(scores / temperature), where every filter leaves out ids and the others share what they had

    Args:
        scores: (batch, vocab_size).
        temperature: above 1 evens the probabilities out, below 1 sharpens them; 0 leaves the likeliest alone.
        top_k: keeps the k likeliest, and those as likely as the last of them.
        top_p: keeps the likeliest that together reach p, so that at least one stays.
        min_p: keeps those at least p times as likely as the likeliest.

    Returns:
        (batch, vocab_size), in float32 at least; each row adds up to 1.

    Raises:
        ArgumentError: settings that cannot be.

    Source: top-k, Hierarchical Neural Story Generation, Fan et al. 2018, section 5.1; top-p, The Curious Case of Neural
    Text Degeneration, Holtzman et al. 2020, section 3.1; min-p, Turning Up the Heat, Nguyen et al. 2024, section 3.

    >>> filtered_probabilities(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_k=2)
    tensor([[0.6250, 0.3750, 0.0000]])
    """
    check_filters(temperature, top_k, top_p, min_p)
    check_scores(scores)
    temperature = real("temperature", temperature)  # torch divides by no whole number beyond 64 bits
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if is_greedy(temperature):
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1)
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature  # at most 0, so that no temperature overflows
    if top_k is not None:
        least = scores.topk(min(top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p is not None and top_p < 1:
        scores = scores.masked_fill(~_nucleus(scores, top_p), -torch.inf)
    probabilities = scores.softmax(-1)
    if min_p:
        unlikely = probabilities < min_p * probabilities.amax(-1, keepdim=True)
        probabilities = scores.masked_fill(unlikely, -torch.inf).softmax(-1)
    return probabilities


def check_scores(scores: torch.Tensor) -> None:
    """Raise an ArgumentError for what are no scores (batch, vocab_size)."""
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2 or not scores.shape[1]:
        raise ArgumentError(f"scores are {shown(scores)}; they are a tensor (batch, vocab_size) of real numbers")
    if not (scores.is_floating_point() or scores.dtype == torch.int64):
        raise ArgumentError(f"scores are {shown(scores)}; they are a tensor (batch, vocab_size) of real numbers")


def is_greedy(temperature: float) -> bool:
    """Is it 0, or too near for float32 to divide by?"""
    return temperature < torch.finfo(torch.float32).tiny


def check_filters(temperature: float, top_k: int | None, top_p: float | None, min_p: float | None) -> None:
    """Raise an ArgumentError for settings that cannot be."""
    for name, number in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        if number is not None or name == "temperature":
            real(name, number)
    if not 0 <= temperature < float("inf"):
        raise ArgumentError(f"temperature is {temperature}; it is 0 for the likeliest id, or a number above 0")
    top_k = plain("top_k", top_k)
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ArgumentError(f"top_k is {top_k}; it keeps 1 id or more, and None keeps all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ArgumentError(f"top_p is {top_p}; it is a probability above 0 and at most 1")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ArgumentError(f"min_p is {min_p}; it is a share from 0 to 1 of the likeliest id's probability")


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Where the likeliest ids stand that together reach `top_p`; of equally likely ones the first."""
    ordered = scores.sort(dim=-1, descending=True, stable=True)
    likely = ordered.values.softmax(-1)
    before = likely.cumsum(-1) - likely  # how much the likelier ones have together
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, ordered.indices, before < top_p)


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
