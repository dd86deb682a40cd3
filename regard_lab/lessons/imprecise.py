"""Lesson: sentences of the articles that are not quite exact, each computed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cmp_to_key
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
from regard_lab.lessons.figures import FAINT, LINES, Figure, begin, draw_curves, label_axes, legend_below, mark_column
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, largest, normal, rounded, seeded

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


def comparisons(length: int, seed: int) -> int:
    """Comparisons of a sort of `length` words by their buckets, drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    buckets = torch.randint(max(2, length // CHUNK), (length,), generator=generator).tolist()
    compared = []
    sorted(buckets, key=cmp_to_key(lambda one, other: compared.append(one) or one - other))
    return len(compared)


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


EXACT = 1e-12
WIDE = (0, 2)  # lines of the figure on which another line lies
WAVE_DIM = 48  # the number of components in the article's drawing
SENTENCES = (
    ("scores are scaled “by the square” of d_k", "by its square root"),
    ("the encoder's vector is the query", "the decoder's state is the query; keys and values are the encoder's"),
    (
        "linear mechanisms are “all O(n) or better”",
        "LSH sorts, strided patterns keep n√n pairs, Linformer needs fixed k",
    ),
    ("recurrent networks are “less efficient”", "beyond n = d they need fewer operations, but one after another"),
    ("one head “sees one position”", "it gives every visible position a weight above 0"),
    ("each wave is “about twice as long” as the last", "its factor is 10000^(2/d)"),
    ("the sizes of cross-attention “must match”", "only heads of q and k, and lengths of k and v, must match"),
    (
        "masking after the softmax or minus infinity before it",
        "both give the same weights, except when every visible weight rounds to 0",
    ),
)

CODE = """\
import torch
import regard as rg
from regard.positions import Sinusoidal

q, k, v = torch.randn(3, 1, 1, 6, 64).unbind(0)  # (batch, heads, length, head_dim)
by_root = rg.attention_detail(q, k, v, want=["entropy"]).entropy.mean()
by_square = rg.attention_detail(q, k, v, scale=64**-2, want=["entropy"]).entropy.mean()
print(by_root, by_square)  # by the square, all weights are equal: the entropy is log 6
angle = torch.acos(Sinusoidal(48)(torch.tensor([1]))[0, 1::2])  # of each wave, at position 1
print(angle[:3] / angle[1:4])  # neighbouring waves: 10000 ** (2 / 48)
layer = rg.MultiHeadAttention(dim=32, heads=4, context_dim=48)
print(layer(torch.randn(1, 7, 32), context=torch.randn(1, 3, 48)).shape)  # other length, other size"""


def teach(settings: Settings) -> Lecture:
    """Compute what each sentence is about: spreads, roles, counts, waves, sizes and both ways of masking."""
    seed = settings.seed
    numbers = {
        "scale": spreads(seed), "roles": roles(seed), "growth": growth(seed),
        "recurrent": recurrent(seed), "one_head": one_head(seed), "waves": waves(WAVE_DIM),
        "sizes": sizes(seed), "masks": masks(seed),
    }  # fmt: skip
    return numbers, (
        "Articles that explain attention simplify. Most of their sentences are right as they stand; the eight "
        "below are not exact. This lesson tests each of them by computation, so that a reader who implements "
        "attention from an article can see where the difference matters.",
        "The articles' formulas are right; only the sentences beside them are not exact. Sources: "
        "Vaswani et al. 2017, sections 3.2.1, 3.5 and 4, table 1; Bahdanau et al. 2015, section 3.1; Kitaev et "
        "al. 2020, section 2; Wang et al. 2020, table 1; Child et al. 2019, section 4.3.",
    )


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    scale, growth, recurrent = numbers["scale"], numbers["growth"], numbers["recurrent"]
    by = zip(
        scale["head_dim"], *(scale[name] for name in ("root", "square", "entropy_root", "entropy_square")), strict=True
    )
    lines = zip(recurrent["lengths"], recurrent["attention"], recurrent["recurrent"], strict=True)
    yield Table("The sentences", ("an article writes", "what holds"), SENTENCES)
    yield Table(
        "Spread of the scores and entropy of the weights (nats), divided by √d_k and by d_k²",
        ("d_k", "spread, √d_k", "spread, d_k²", "entropy, √d_k", "entropy, d_k²"),
        tuple((str(dim), f"{a:.3f}", f"{b:.6f}", f"{c:.3f}", f"{d:.3f}") for dim, a, b, c, d in by),
    )
    yield Table(
        "What grows with the number of words n",
        ("counted", *(f"n = {n:,}" for n in growth["lengths"]), "4 times the words"),
        tuple(
            (name, *(f"{count:,}" for count in counts), f"{counts[-1] / counts[-2]:.1f} times")
            for name, counts in growth["counts"].items()
        ),
    )
    yield Table(
        f"A self-attention and a recurrent layer, d = {recurrent['dim']}",
        ("words n", "self-attention: operations", "steps in a row", "recurrent: operations", "steps in a row"),
        tuple((f"{n:,}", f"{one:,}", "1", f"{two:,}", f"{n:,}") for n, one, two in lines),
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    yield from _claims_of_formulas(numbers)
    yield from _claims_of_costs(numbers)
    yield from _claims_of_roles(numbers)


def _claims_of_formulas(numbers: dict[str, Any]) -> Iterator[Claim]:
    scale, waves, masks = numbers["scale"], numbers["waves"], numbers["masks"]
    root, square, entropy, even = (scale[name] for name in ("root", "square", "entropy_square", "largest_entropy"))
    low, high = min(waves["ratios"]), max(waves["ratios"])
    first, last, (shortest, longest) = waves["lengths"][0], waves["lengths"][-1], waves["ends"]
    yield Claim(
        "Divided by the square root of d_k, scores have the same spread for every d_k.",
        all(abs(spread - 1) < 0.1 for spread in root),
        f"{min(root):.2f} to {max(root):.2f} for d_k {scale['head_dim'][0]} to {scale['head_dim'][-1]}",
    )
    yield Claim(
        "Divided by the square of d_k, scores vanish and all words get equal weights.",
        square[-1] < 0.01 and abs(entropy[-1] - even) < 1e-3,
        f"spread {square[-1]:.6f}, entropy {entropy[-1]:.4f} of at most {even:.4f}",
    )
    yield Claim(
        f"For d = {waves['dim']} each wave is 10000^(2/{waves['dim']}) times as long as the one before, not twice.",
        max(abs(ratio - waves["factor"]) for ratio in waves["ratios"]) < 1e-3 and high < 2,
        f"{low:.3f} to {high:.3f}; the factor is 2 for d = {waves['doubling_dim']:.1f}",
    )
    yield Claim(
        "The waves go from 2π towards 10000 · 2π.",
        abs(first / shortest - 1) < 1e-3 and 0.6 < last / longest < 1,
        f"{first:.2f} to {last:,.0f}; 10000 · 2π is {longest:,.0f}",
    )
    yield Claim(
        "Masking after the softmax and dividing by the remaining sum gives the same weights as minus infinity "
        "before it, and as regard's “causal”.",
        masks["apart"] < EXACT and masks["from_regard"] < EXACT,
        ROUNDING,
    )
    yield Claim(
        "They differ if every visible weight rounds to 0: then masking after the softmax divides 0 by 0.",
        masks["after_is_nan"] and masks["before_sums_to_1"],
        f"a masked score {masks['gap']:.0f} above the others, in float32",
    )


def _claims_of_costs(numbers: dict[str, Any]) -> Iterator[Claim]:
    counts, recurrent, rounds = numbers["growth"]["counts"], numbers["recurrent"], ROUNDS
    times = {name: count[-1] / count[-2] for name, count in counts.items()}
    linear, fixed, growing, lsh, strided, full = (times[name] for name in COUNTED)
    fewer = [n for n, one, two in zip(recurrent["lengths"], recurrent["attention"], recurrent["recurrent"], strict=True)
             if two < one]  # fmt: skip
    yield Claim(
        "For 4 times the words, linear attention and Linformer with a fixed k need 4 times the operations.",
        linear == fixed == 4,
        f"{linear:.1f} and {fixed:.1f} times",
    )
    yield Claim(
        "Linformer needs 16 times the operations if k grows with the length, like full attention.",
        growing == 16 and 15 < full < 16.5,
        f"k = n / {SHARE}: {growing:.1f} times; full: {full:.1f} times",
    )
    yield Claim(
        "Sorting for LSH needs more than 4 times the comparisons, and strided patterns about 8 times the pairs.",
        4 < lsh < 6 and 7 < strided < 9,
        f"{lsh:.2f} and {strided:.2f} times",
    )
    yield Claim(
        f"Each round of LSH costs as much as the first: {rounds} rounds compute {rounds} times the pairs.",
        abs(numbers["growth"]["rounds"] / rounds - 1) < 0.02,
        f"{numbers['growth']['rounds']:.2f} times",
    )
    yield Claim(
        "A recurrent layer needs fewer operations than self-attention for more than d words.",
        fewer == [n for n in recurrent["lengths"] if n > recurrent["dim"]],
        f"d = {recurrent['dim']}: fewer for {', '.join(f'{n:,}' for n in fewer)} words",
    )
    yield Claim(
        "Self-attention computes all words in 1 step; the recurrent layer computes one word in each step.",
        recurrent["at_once"] < EXACT and recurrent["steps"] == recurrent["lengths"],
        f"{recurrent['steps'][-1]:,} calls of the cell for {recurrent['lengths'][-1]:,} words",
    )


def _claims_of_roles(numbers: dict[str, Any]) -> Iterator[Claim]:
    roles, head, sizes = numbers["roles"], numbers["one_head"], numbers["sizes"]
    yield Claim(
        "The decoder's states are the queries: each gets one row of weights over the encoder's words.",
        roles["rows"] == roles["target"] and roles["columns"] == roles["source"],
        f"{roles['target']} × {roles['source']} weights for {roles['target']} states and {roles['source']} words",
    )
    yield Claim(
        "Replacing a state of the decoder changes only its own row; replacing a word of the encoder changes every row.",
        roles["by_state"] == [roles["changed"]] and roles["by_word"] == list(range(roles["target"])),
        f"rows {roles['by_state']} and {roles['by_word']}, counted from 0",
    )
    yield Claim(
        "One head gives every word a weight above 0.",
        head["least"] > 0 and head["counted"] == head["words"],
        f"{head['counted']} of {head['words']} words, the least {head['least']:.4f}; their entropy is "
        f"that of {head['effective']:.1f} equal weights",
    )
    yield Claim(
        "In cross-attention lengths and sizes of both sequences may differ.",
        sizes["output"] == sizes["queries"],
        f"queries {sizes['queries']} with a context {sizes['context']} give {sizes['output']}",
    )
    yield Claim(
        "The size of a head in q and k, and the length of k and v, must match: regard refuses others.",
        all(sizes["refused"].values()),
        " and ".join(sizes["refused"]),
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "Where articles are imprecise, in numbers", 11.0, 8.4)
    (scaled, grown), (spent, waved) = figure.subplots(2, 2)
    scale, growth, recurrent = (numbers[name] for name in ("scale", "growth", "recurrent"))
    curves = {"divided by √d_k": scale["root"], "divided by d_k²": scale["square"]}
    labels = "“By the square” of d_k: scores vanish", "d_k", "spread of the scores"
    draw_curves(scaled, scale["head_dim"], curves, labels, log="xy")

    curves = {name: [count / counts[0] for count in counts] for name, counts in growth["counts"].items()}
    labels = "“All O(n)”: some grow faster", "words n", f"times the count for {growth['lengths'][0]} words"
    draw_curves(grown, growth["lengths"], curves, labels, log="xy")
    for number in WIDE:
        grown.lines[number].set(linewidth=6, alpha=0.4, markersize=9)

    curves = {"self-attention: 1 step": recurrent["attention"], "recurrent: n steps in a row": recurrent["recurrent"]}
    labels = "“Less efficient”: fewer operations, more steps", "words n", "floating-point operations"
    draw_curves(spent, recurrent["lengths"], curves, labels, log="xy")
    mark_column(spent, recurrent["dim"], f"n = d = {recurrent['dim']}")
    _draw_waves(waved, numbers["waves"])


def _draw_waves(axes: Any, waves: dict[str, Any]) -> None:
    pairs = list(range(len(waves["lengths"])))
    axes.plot(pairs, waves["lengths"], color=LINES[0], marker="o", markersize=4, linewidth=1.4,
              label=f"computed: {waves['factor']:.3f} times the last")  # fmt: skip
    axes.plot(pairs, [waves["lengths"][0] * 2**pair for pair in pairs], color=LINES[1], linestyle="--", linewidth=1.4,
              label="twice the last")  # fmt: skip
    axes.axhline(waves["ends"][1], color=FAINT, linestyle=":", linewidth=1)
    axes.text(0, waves["ends"][1] * 1.25, "10000 · 2π", fontsize=8, color=FAINT)
    label_axes(axes, f"“About twice as long”: the waves of d = {waves['dim']}", "wave", "wavelength in words")
    axes.set_yscale("log")
    axes.grid(alpha=0.25)
    legend_below(axes)
