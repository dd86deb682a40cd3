"""What the lesson `imprecise` counts and computes, one function for each sentence of the articles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import ShapeError
from regard.functional import attention, attention_detail, plan_attention
from regard.layers import MultiHeadAttention
from regard.mechanisms import LSH, LinearTransformer, Linformer, Mechanism
from regard.mechanisms.base import Sizes
from regard.patterns import Causal, Strided
from regard.positions import Sinusoidal
from regard_lab.lessons.words import largest, normal, rounded, seeded

HEAD_DIMS = (4, 16, 64, 256)
HEADS, WORDS = 48, 12  # heads whose results are averaged; words of a sentence
LENGTHS = (64, 256, 1024, 4096)
RANK, SHARE, CHUNK, ROUNDS = 16, 4, 16, 8
DIM = 64  # of the recurrent layer and of the attention beside it
STEPS = (16, 32, 64, 128, 256, 512)
TARGET, SOURCE, CHANGED = 3, 5, 1
GAP = 200.0  # exp(-200) is 0 in float32
COUNTED = (
    "linear attention: operations", f"Linformer, k = {RANK}: pairs", f"Linformer, k = n / {SHARE}: pairs",
    "LSH: comparisons of a sort", "strided, s = √n, causal: pairs", "full, causal: pairs",
)  # fmt: skip


def spreads(seed: int) -> dict[str, Any]:
    """Spread of the scores and entropy of the weights, divided by the square root and by the square of d_k."""
    columns: dict[str, list[float]] = {name: [] for name in ("root", "square", "entropy_root", "entropy_square")}
    for dim in HEAD_DIMS:
        q, k = normal(seed, 2, 1, HEADS, WORDS, dim).unbind(0)  # (1, heads, words, head_dim)
        for name, scale in (("root", dim**-0.5), ("square", dim**-2.0)):
            detail = attention_detail(q, k, k, scale=scale, want=["entropy"])
            columns[name].append(round(float((q @ k.mT * scale).std()), 6))
            columns[f"entropy_{name}"].append(round(float(detail.entropy.mean()), 6))
    return {"head_dim": list(HEAD_DIMS), "largest_entropy": round(math.log(WORDS), 6), **columns}


def roles(seed: int) -> dict[str, Any]:
    """Weights of decoder states over encoder words, and the rows that move if a state or a word is replaced."""
    states, words, other = (normal(seed + at, 1, 1, size, 8) for at, size in enumerate((TARGET, SOURCE, 1)))
    weights = attention_detail(states, words, words, want=["weights"]).weights[0, 0]  # (target, source)
    other_states, other_words = states.clone(), words.clone()
    other_states[:, :, CHANGED], other_words[:, :, CHANGED] = other[:, :, 0], other[:, :, 0]
    by_state = attention_detail(other_states, words, words, want=["weights"]).weights[0, 0]
    by_word = attention_detail(states, other_words, other_words, want=["weights"]).weights[0, 0]
    return {
        "target": TARGET, "source": SOURCE, "rows": weights.shape[0], "columns": weights.shape[1], "changed": CHANGED,
        "by_state": _moved(by_state, weights), "by_word": _moved(by_word, weights),
    }  # fmt: skip


def _moved(one: torch.Tensor, other: torch.Tensor) -> list[int]:
    """The rows in which two tensors differ by more than rounding."""
    return ((one - other).abs().amax(-1) > 1e-6).nonzero().flatten().tolist()


def growth(seed: int) -> dict[str, Any]:
    """Operations, pairs and comparisons by length, as regard's plans and patterns count them."""
    counting: tuple[Callable[[int], int], ...] = (
        lambda n: _planned(LinearTransformer(), n, "flops"),
        lambda n: _planned(Linformer(n, RANK), n, "pairs"),
        lambda n: _planned(Linformer(n, n // SHARE), n, "pairs"),
        lambda n: comparisons(n, seed),
        lambda n: (Strided(math.isqrt(n)) & Causal()).count(n, n),
        lambda n: Causal().count(n, n),
    )
    longest = LENGTHS[-1]
    pairs = [
        _planned(LSH(chunk=CHUNK, buckets=longest // CHUNK, rounds=rounds), longest, "pairs") for rounds in (1, ROUNDS)
    ]
    counts = {name: [count(n) for n in LENGTHS] for name, count in zip(COUNTED, counting, strict=True)}
    return {"lengths": list(LENGTHS), "counts": counts, "rounds": round(pairs[1] / pairs[0], 4)}


def _planned(mechanism: Mechanism, length: int, what: str) -> int:
    """The "flops" or "pairs" of the plan for one head of a sequence."""
    x = torch.zeros(1, 1, length, 16)
    shapes = mechanism.parameter_shapes(Sizes(1, 1, 1, length))
    parameters = {name: torch.zeros(shape) for name, shape in shapes.items()}
    plan = plan_attention(x, x, x, mechanism=mechanism, parameters=parameters or None)
    return round(json.loads(plan.to_json())["cost"][what])


class _Bucket:
    """A number of a bucket that counts how often it is compared."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: _Bucket) -> bool:
        _Bucket.compared += 1
        return self.number < other.number


def comparisons(length: int, seed: int) -> int:
    """Comparisons of a sort of `length` words by their buckets, drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    buckets = torch.randint(max(2, length // CHUNK), (length,), generator=generator).tolist()
    _Bucket.compared = 0
    sorted(map(_Bucket, buckets))
    return _Bucket.compared


def recurrent(seed: int) -> dict[str, Any]:
    """Operations of both layers by length, the calls of the recurrent cell, and attention word by word."""
    q, k, v = normal(seed, 3, 1, 1, WORDS, DIM).unbind(0)
    one_by_one = torch.cat([attention(row, k, v) for row in q.split(1, dim=2)], 2)
    x = torch.zeros(STEPS[-1], DIM)
    matrices = torch.zeros(2, DIM, DIM)
    read = [_counted(lambda n=n: run_cell(x[:n], *matrices)) for n in STEPS]
    return {
        "dim": DIM, "lengths": list(STEPS), "steps": [steps for _, steps in read],
        "attention": [_counted(lambda n=n: (x[:n] @ x[:n].mT) @ x[:n])[0] for n in STEPS],
        "recurrent": [operations for operations, _ in read],
        "at_once": largest(attention(q, k, v) - one_by_one),
    }  # fmt: skip


def run_cell(x: torch.Tensor, read: torch.Tensor, keep: torch.Tensor) -> int:
    """The steps of h_t = tanh(x_t W + h_{t-1} U) over x (length, dim); each step needs the one before."""
    h, steps = x.new_zeros(1, x.shape[1]), 0
    for row in x.split(1):
        h, steps = torch.tanh(row @ read + h @ keep), steps + 1
    return steps


def _counted(call: Callable[[], Any]) -> tuple[int, Any]:
    """Floating-point operations of the matrix products of a call, and what it returns."""
    with FlopCounterMode(display=False) as counter:
        result = call()
    return counter.get_total_flops(), result


def one_head(seed: int) -> dict[str, Any]:
    """The weights of one head for one word: how many are above 0, and the exponential of their entropy."""
    q, k = normal(seed, 2, 1, 1, WORDS, DIM).unbind(0)
    detail = attention_detail(q, k, k, want=["weights", "entropy"])
    row = detail.weights[0, 0, 0]
    return {
        "words": WORDS, "counted": int((row > 0).sum()), "least": round(float(row.min()), 6),
        "effective": round(float(detail.entropy[0, 0, 0].exp()), 4),
    }  # fmt: skip


def waves(dim: int) -> dict[str, Any]:
    """Wavelengths of sinusoidal positions in words, and the factor from each to the next."""
    sine, cosine = Sinusoidal(dim)(torch.tensor([1])).double()[0].unflatten(0, (-1, 2)).unbind(-1)
    lengths = 2 * math.pi / torch.atan2(sine, cosine)
    return {
        "dim": dim, "lengths": rounded(lengths, 2), "ratios": rounded(lengths[1:] / lengths[:-1]),
        "factor": round(10_000 ** (2 / dim), 4), "doubling_dim": round(2 * math.log(10_000) / math.log(2), 2),
        "ends": [round(2 * math.pi, 4), round(10_000 * 2 * math.pi, 1)],
    }  # fmt: skip


def sizes(seed: int) -> dict[str, Any]:
    """Cross-attention of sequences that differ in length and size, and the calls that regard refuses."""
    layer = seeded(seed, MultiHeadAttention, 32, 4, context_dim=48)
    x, context = normal(seed, 1, 7, 32), normal(seed + 1, 1, 3, 48)
    q, k = normal(seed, 1, 1, 7, 8), normal(seed, 1, 1, 3, 8)
    return {
        "queries": list(x.shape), "context": list(context.shape), "output": list(layer(x, context=context).shape),
        "refused": {
            "q of size 8 and k of size 6": _refused(q, k[..., :6], k),
            "3 keys and 2 values": _refused(q, k, k[:, :, :2]),
        },
    }  # fmt: skip


def _refused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    try:
        attention(q, k, v)
    except ShapeError:
        return True
    return False


def masks(seed: int) -> dict[str, Any]:
    """Both ways of the causal mask on the same scores, and on scores of which a masked one is far above the others."""
    q, k = normal(seed, 2, 1, 1, WORDS, DIM).unbind(0)
    scores = q @ k.mT / math.sqrt(DIM)
    detail = attention_detail(q, k, k, pattern="causal", want=["weights"])
    far = torch.zeros(2, 2)
    far[0, 1] = GAP  # the second word is masked for the first
    after, before = masked_after(far)[0], masked_before(far)[0]
    return {
        "apart": largest(masked_after(scores) - masked_before(scores)), "gap": GAP,
        "from_regard": largest(masked_before(scores) - detail.weights),
        "after_is_nan": bool(after.isnan().any()), "before_sums_to_1": abs(float(before.sum()) - 1) < 1e-6,
    }  # fmt: skip


def masked_after(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over all words, later words set to 0, each row divided by its sum."""
    weights = scores.softmax(-1).tril()
    return weights / weights.sum(-1, keepdim=True)


def masked_before(scores: torch.Tensor) -> torch.Tensor:
    """Minus infinity for later words, then softmax."""
    length = scores.shape[-1]
    return scores.masked_fill(~Causal().dense(length, length), -torch.inf).softmax(-1)
