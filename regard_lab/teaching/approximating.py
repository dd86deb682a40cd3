"""Texts for cheaper attentions, and the errors of what these estimate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import normalize

from regard.mechanisms import Linformer, Mechanism
from regard.patterns import Full
from regard_lab.seeing.quality.candidates import AttentionCall, Candidate, Exact, exact_of, exact_results
from regard_lab.teaching.words import normal

DIM = 16  # of the head
SPREAD = 0.1  # standard deviation of a word's numbers around its topic's, which has length 1
NOISE = 0.5  # the same for values, whose topics have numbers of deviation 1
Parameters = Mapping[str, torch.Tensor] | None


def words_in_topics(sharpness: float, seed: int, topics: int, count: int) -> AttentionCall:
    """Attention among `count` words sorted by topic, whose scores are cosines times `sharpness`.

    q = k of length sqrt(sharpness), with scale 1. Words of a topic have similar values too.
    """
    centres = normalize(normal(seed, topics, DIM), dim=-1).repeat_interleave(count // topics, 0)
    x = normalize(centres + SPREAD * normal(seed + 1, count, DIM), dim=-1) * math.sqrt(sharpness)
    values = normal(seed + 2, topics, DIM).repeat_interleave(count // topics, 0) + NOISE * normal(seed + 3, count, DIM)
    return AttentionCall(x[None, None], x[None, None], values[None, None], Full(), {"scale": 1.0})


def means_of_neighbours(rank: int, count: int) -> tuple[Linformer, Mapping[str, torch.Tensor]]:
    """A Linformer whose mixtures are the means of neighbouring words, with its parameters."""
    means = torch.eye(rank, dtype=torch.float64).repeat_interleave(count // rank, 1) * rank / count
    return Linformer(count, rank, "keys_and_values"), {"projection": means[None]}


def estimated_weights(call: AttentionCall, mechanism: Mechanism, parameters: Parameters = None) -> torch.Tensor:
    """The weights, (words, words), by which a mechanism mixes the values."""
    words = call.v.shape[2]
    call = call.but(v=torch.eye(words, dtype=torch.float64)[None, None])
    return Candidate("", "", "", mechanism, parameters).call(_compared(call, mechanism)[0]).output()[0, 0]


def output_error(
    call: AttentionCall, mechanism: Mechanism, parameters: Parameters = None, *, seed: int, draws: int = 8
) -> float:
    """The root mean square over draws of the error relative to the exact output that the mechanism estimates."""
    candidate = Candidate("", "", "", mechanism, parameters)
    call, exact = _compared(call, mechanism)
    seeds = range(seed, seed + draws) if candidate.random else (seed,)
    return _root_mean_square([exact.errors(candidate.call(call, one).output())[0] for one in seeds])


def exponential_errors(call: AttentionCall, mechanism: Any, *, seed: int, draws: int) -> tuple[float, float]:
    """How far estimated exponentials of scores are from the true ones: of one draw, and of the mean of many draws.

    Relative to the norm of the true ones, after multiplication by the best factor, which cancels in the weights.
    """
    true = (call.q @ call.k.mT).exp()
    drawn = [mechanism.redrawn(seed + n) for n in range(draws)] if hasattr(mechanism, "redrawn") else [mechanism]
    estimates = [_exponentials(one, call) for one in drawn]
    return _root_mean_square([_off(one, true) for one in estimates]), _off(torch.stack(estimates).mean(0), true)


def slope(errors: Sequence[float], of: Sequence[int]) -> float:
    """The slope of a straight line through the errors on logarithmic axes, by least squares.

    >>> round(slope([3.0, 1.5, 0.75], [1, 4, 16]), 6)
    -0.5
    """
    x, y = (torch.tensor(numbers, dtype=torch.float64).log() for numbers in (of, errors))
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def _compared(call: AttentionCall, mechanism: Mechanism) -> tuple[AttentionCall, Exact]:
    """The call and its exact result; for LSH, which brings keys to length 1, the scale is the length of the queries."""
    if not mechanism.shares_keys:
        return call, exact_of(call)
    call = call.but(options={"scale": float(call.q[0, 0, 0].norm())})
    return call, exact_results(call, mechanism, {})["keys that are the queries"]


def _exponentials(mechanism: Any, call: AttentionCall) -> torch.Tensor:
    """φ(q) · φ(k) for each pair, (1, 1, words, words)."""
    features = mechanism.lift(call.q, call.k, 1.0, {})
    logs = torch.zeros(())
    for of_vectors, axis in ((features.q_log, -1), (features.k_log, -2)):
        logs = logs if of_vectors is None else logs + of_vectors.unsqueeze(axis)
    return features.q @ features.k.mT * logs.exp()


def _off(estimate: torch.Tensor, true: torch.Tensor) -> float:
    factor = (estimate * true).sum() / estimate.square().sum()
    return float((factor * estimate - true).norm() / true.norm())


def _root_mean_square(numbers: list[float]) -> float:
    return math.sqrt(sum(one**2 for one in numbers) / len(numbers))
