"""Lesson: linear attention. (Q' K'ᵀ) V = Q' (K'ᵀ V): the same result at different cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.arguments import count_of
from regard.functional import attention
from regard.layers.caches import RecurrentState
from regard.mechanisms import LinearTransformer
from regard.patterns import Causal
from regard_lab.lessons.figures import Figure, begin, draw_curves, mark_column
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, embedded, largest, milliseconds, normal, words_of

TEXT = "The animal did not cross the street because it was too tired."
DIM = 64
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
EXACT = 1e-12
ORDERS = {"left": "(Q' K'ᵀ) V: a weight for every pair", "right": "Q' (K'ᵀ V): one matrix for all words"}

CODE = """\
import torch
import regard as rg
from regard.mechanisms import EluPlusOne, LinearTransformer

q, k, v = torch.randn(3, 1, 1, 1000, 64).double().unbind(0)  # (batch, heads, length, head_dim)
phi_q, phi_k = EluPlusOne()(q), EluPlusOne()(k)
weights = phi_q @ phi_k.mT  # 1000 x 1000; LinearTransformer never computes this matrix
pairs = (weights @ v) / weights.sum(-1, keepdim=True)
print((rg.attention(q, k, v, mechanism=LinearTransformer()) - pairs).abs().max())"""


def teach(settings: Settings) -> Lecture:
    """Compute both orders on the sentence, count operations and time by length, and decode with sums."""
    words = words_of(settings.text, TEXT)
    q, k, v = _projected(words, settings.seed)
    by_pairs, by_sums = multiplied(q, k, v, "left"), multiplied(q, k, v, "right")
    ours = attention(q, k, v, mechanism=LinearTransformer())
    softmax = attention(q, k, v)
    numbers = {
        "words": len(words), "dim": DIM, "lengths": list(LENGTHS),
        "operations": {order: [_counted(length, order) for length in LENGTHS] for order in ORDERS},
        "same": largest(by_pairs - by_sums) < EXACT,
        "regard": largest(by_sums - ours) < EXACT,
        "continued": largest(_continued(q, k, v) - multiplied(q, k, v, "left", causal=True)) < EXACT,
        "state_bytes": [_state_after(length).nbytes for length in (len(words), 1000)],
        "from_softmax": round(float((ours - softmax).norm() / softmax.norm()), 3),
        "measured": {"milliseconds": _times(settings.seed)},
    }  # fmt: skip
    return numbers, (
        "softmax(Q Kᵀ) V cannot be computed in another order, because the softmax needs the score of every pair. "
        "If the weight of a pair is a product of features, φ(q) · φ(k), the matrix product is associative: "
        "(Q' K'ᵀ) V = Q' (K'ᵀ V), where Q' = φ(Q) and K' = φ(K).",
        f"The left side needs n × n weights; the right side needs one matrix of {DIM} × {DIM} numbers for any length: "
        "4 n² d operations become 4 n d². Both cost the same if n = d. The tables count slightly more, 2 n² (2 d + 1) "
        "and 4 n d (d + 1): one more column gives the sums of weights by which the rows are divided. In the causal "
        "form K'ᵀ V is a sum over the earlier words, so this sum is enough to continue a text.",
        "The result is not softmax attention: φ(x) = elu(x) + 1 is not exp, so the model is a different one and "
        "must be trained with this attention. Source: Katharopoulos et al. 2020, equations 4 to 7.",
    )


def multiplied(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, order: str, causal: bool = False) -> torch.Tensor:
    """φ(Q) φ(K)ᵀ V, each row divided by its sum of weights; `order` "left" is (Q' K'ᵀ) V, "right" is Q' (K'ᵀ V)."""
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the column of ones gives the sum of weights
    if order == "left":
        weights = q @ k.mT  # (…, length, length)
        joined = (weights.where(Causal().dense(*weights.shape[-2:]), 0.0) if causal else weights) @ v
    else:
        joined = q @ (k.mT @ v)  # (…, dim, dim + 1) within the brackets
    return joined[..., :-1] / joined[..., -1:]


def _projected(words: tuple[str, ...], seed: int) -> list[torch.Tensor]:
    matrices = normal(seed + 1, 3, DIM, DIM) / math.sqrt(DIM)
    return [(embedded(words, DIM, seed) @ matrix)[:, None] for matrix in matrices]


def _counted(length: int, order: str) -> int:
    """Floating-point operations of the matrix products, as torch counts them while they run."""
    q, k, v = torch.zeros(3, 1, 1, length, DIM).unbind(0)
    with FlopCounterMode(display=False) as counter:
        multiplied(q, k, v, order)
    return counter.get_total_flops()


def _continued(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The outputs word by word, from sums over the earlier words."""
    state = RecurrentState(LinearTransformer(), 1, 1, DIM, dtype=torch.float64)
    steps = zip(*(x.split(1, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([state.attend(*step, pattern="causal") for step in steps], 2)


def _state_after(length: int) -> RecurrentState:
    state = RecurrentState(LinearTransformer(), 1, 1, DIM)
    state.attend(*torch.ones(3, 1, 1, length, DIM).unbind(0), pattern="causal")
    return state


def _times(seed: int) -> dict[str, list[float]]:
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for length in LENGTHS:
        operands = normal(seed, 3, 1, 1, length, DIM).float().unbind(0)
        calls |= {(order, length): partial(multiplied, *operands, order) for order in ORDERS}
    times = milliseconds(calls)
    return {order: [times[order, length] for length in LENGTHS] for order in ORDERS}


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    left, right = (numbers["operations"][order] for order in ORDERS)
    spent = (numbers["measured"]["milliseconds"][order] for order in ORDERS)
    yield Table(
        f"Operations of the matrix products, one head of {DIM}",
        ("words n", "(Q' K'ᵀ) V", "Q' (K'ᵀ V)", "left / right"),
        tuple(
            (f"{n:,}", f"{one:,}", f"{two:,}", f"{one / two:.2f}")
            for n, one, two in zip(LENGTHS, left, right, strict=True)
        ),
    )
    yield Table(
        "CPU time, 1 thread, milliseconds",
        ("words n", "(Q' K'ᵀ) V", "Q' (K'ᵀ V)"),
        tuple((f"{n:,}", f"{one:.2f}", f"{two:.2f}") for n, one, two in zip(LENGTHS, *spent, strict=True)),
        measured=True,
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    left, right = (numbers["operations"][order] for order in ORDERS)
    at = LENGTHS.index(DIM)
    few, many = numbers["state_bytes"]
    yield Claim("Both orders give the same result on the sentence.", numbers["same"], ROUNDING)
    yield Claim("regard's LinearTransformer() gives it too.", numbers["regard"], ROUNDING)
    yield Claim(
        "Twice as many words cost 4 times the operations in the left order, and 2 times in the right order.",
        all(two == 4 * one for one, two in pairwise(left)) and all(two == 2 * one for one, two in pairwise(right)),
        f"{left[0]:,} and {right[0]:,} for {LENGTHS[0]} words, {left[-1]:,} and {right[-1]:,} for {LENGTHS[-1]:,}",
    )
    yield Claim(
        "The costs are equal within 1% if the length is head_dim.",
        abs(left[at] / right[at] - 1) < 0.01,
        f"{left[at]:,} and {right[at]:,} operations for {DIM} words",
    )
    yield Claim("Decoding word by word from sums gives the same causal result.", numbers["continued"], ROUNDING)
    yield Claim(
        "These sums do not grow with the text.",
        few == many,
        f"{count_of(few, 'bytes', ',')} after {count_of(numbers['words'], 'words')} and after 1,000",
    )
    yield Claim(
        "The result differs from softmax attention.",
        numbers["from_softmax"] > 0.05,
        f"relative difference of the outputs {numbers['from_softmax']:.3f}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "The same product in two orders", 10.0, 4.6)
    counted, timed = figure.subplots(1, 2)
    for axes, values, title, unit in (
        (counted, numbers["operations"], "Counted", "floating-point operations"),
        (timed, numbers["measured"]["milliseconds"], "Measured here", "milliseconds of CPU time, 1 thread"),
    ):
        curves = {label: values[order] for order, label in ORDERS.items()}
        draw_curves(axes, LENGTHS, curves, (title, "words n", unit), log="xy", columns=1)
    mark_column(counted, DIM, f"n = head_dim = {DIM}")
