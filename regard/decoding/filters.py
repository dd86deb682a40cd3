"""Which of the next ids may be drawn, and how likely each is."""

from __future__ import annotations

import torch

from regard.arguments import plain, real
from regard.errors import ArgumentError
from regard.kinds import shown


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
