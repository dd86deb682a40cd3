"""Calls for the lesson on approximations, and the errors of what cheaper mechanisms estimate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import normalize

from regard.functional import attention
from regard.mechanisms import Linformer, Mechanism
from regard.patterns.bands import Diagonals
from regard_lab.teaching.inputs import normal

HEAD_DIM = 16
SPREAD = 0.1  # standard deviation of a word's numbers around its topic's, which has length 1
NOISE = 0.5  # the same for values, whose topics have numbers of deviation 1
Parameters = Mapping[str, torch.Tensor] | None


@dataclass(frozen=True, eq=False)
class SharedKeysCall:
    """Attention with scale 1 among words: their vectors q, which are the keys too, and values v, (1, 1, words, dim)."""

    q: torch.Tensor
    v: torch.Tensor

    @property
    def k(self) -> torch.Tensor:
        return self.q

    def exact(self, mechanism: Mechanism) -> torch.Tensor:
        """The exact output that the mechanism estimates; with LSH a word does not look at itself."""
        pattern = ~Diagonals(0, 0) if mechanism.shares_keys else None
        return attention(self.q, self.k, self.v, pattern=pattern, scale=1.0)

    def estimate(self, mechanism: Mechanism, parameters: Parameters = None) -> torch.Tensor:
        """The output by a mechanism; for LSH, which brings keys to length 1, the scale is the length of the queries."""
        options: dict[str, Any] = {}
        if "scale" in mechanism.options:
            length_of_queries = float(self.q[0, 0, 0].norm())  # all have the same
            options["scale"] = length_of_queries if mechanism.shares_keys else 1.0
        return attention(
            self.q, self.k, self.v, mechanism=mechanism, parameters=parameters, **options
        )


def words_in_topics(sharpness: float, seed: int, topics: int, count: int) -> SharedKeysCall:
    """Attention among `count` words sorted by topic, whose scores are cosines times `sharpness`.

    q = k of length sqrt(sharpness), with scale 1. Words of a topic have similar values too.
    """
    words_of_topic = count // topics
    directions = normalize(normal(seed, topics, HEAD_DIM), dim=-1)
    spread = SPREAD * normal(seed + 1, count, HEAD_DIM)
    words = directions.repeat_interleave(words_of_topic, 0) + spread
    q = normalize(words, dim=-1) * math.sqrt(sharpness)

    values = normal(seed + 2, topics, HEAD_DIM)
    noise = NOISE * normal(seed + 3, count, HEAD_DIM)
    v = values.repeat_interleave(words_of_topic, 0) + noise
    return SharedKeysCall(q[None, None], v[None, None])


def means_of_neighbours(rank: int, count: int) -> tuple[Linformer, Mapping[str, torch.Tensor]]:
    """A Linformer whose mixtures are the means of neighbouring words, with its parameters."""
    members = torch.eye(rank, dtype=torch.float64).repeat_interleave(count // rank, 1)
    means = members * rank / count  # (rank, count)
    return Linformer(count, rank, "keys_and_values"), {"projection": means[None]}


def estimated_weights(
    call: SharedKeysCall, mechanism: Mechanism, parameters: Parameters = None
) -> torch.Tensor:
    """The weights, (words, words), by which a mechanism mixes the values."""
    one_hot = torch.eye(call.v.shape[2], dtype=torch.float64)[None, None]
    return SharedKeysCall(call.q, one_hot).estimate(mechanism, parameters)[0, 0]


def output_error(
    call: SharedKeysCall,
    mechanism: Mechanism,
    parameters: Parameters = None,
    *,
    seed: int,
    draws: int = 8,
) -> float:
    """The root mean square over draws of the error relative to the exact output that the mechanism estimates."""
    exact = call.exact(mechanism)
    errors = []
    for drawn in _draw_again(mechanism, seed, draws):
        error = (call.estimate(drawn, parameters) - exact).norm() / exact.norm()
        errors.append(float(error))
    return _root_mean_square(errors)


def exponential_errors(
    call: SharedKeysCall, mechanism: Any, *, seed: int, draws: int
) -> tuple[float, float]:
    """How far estimated exponentials of scores are from the true ones: of one draw, and of the mean of many draws.

    Relative to the norm of the true ones, after multiplication by the best factor, which cancels in the weights.
    """
    true = (call.q @ call.k.mT).exp()
    drawn_mechanisms = _draw_again(mechanism, seed, draws)
    estimates = [_estimated_exponentials(call, drawn) for drawn in drawn_mechanisms]

    of_one_draw = _root_mean_square([_error_of_shape(estimate, true) for estimate in estimates])
    of_their_mean = _error_of_shape(torch.stack(estimates).mean(0), true)
    return of_one_draw, of_their_mean


def slope(values: Sequence[float], counts: Sequence[int]) -> float:
    """The slope of a straight line through the values on logarithmic axes, by least squares.

    >>> round(slope([3.0, 1.5, 0.75], [1, 4, 16]), 6)
    -0.5
    """
    x = torch.tensor(counts, dtype=torch.float64).log()
    y = torch.tensor(values, dtype=torch.float64).log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def _draw_again(mechanism: Any, seed: int, draws: int) -> list[Any]:
    """The mechanism with `draws` other seeds; alone if nothing in it is random."""
    seeds = range(seed, seed + draws)
    if hasattr(mechanism, "redrawn"):
        return [mechanism.redrawn(seed) for seed in seeds]
    if hasattr(mechanism, "seed"):
        return [replace(mechanism, seed=seed) for seed in seeds]
    return [mechanism]


def _estimated_exponentials(call: SharedKeysCall, mechanism: Any) -> torch.Tensor:
    """φ(q) · φ(k) of each pair."""
    features = mechanism.lift(call.q, call.k, 1.0, {})
    logs = torch.zeros(())  # of a factor of each pair
    if features.q_log is not None:
        logs = logs + features.q_log.unsqueeze(-1)
    if features.k_log is not None:
        logs = logs + features.k_log.unsqueeze(-2)
    return features.q @ features.k.mT * logs.exp()


def _error_of_shape(estimate: torch.Tensor, true: torch.Tensor) -> float:
    """The relative error of an estimate that is multiplied by the factor with the least error."""
    factor = (estimate * true).sum() / estimate.square().sum()
    return float((factor * estimate - true).norm() / true.norm())


def _root_mean_square(numbers: list[float]) -> float:
    return math.sqrt(sum(number**2 for number in numbers) / len(numbers))
