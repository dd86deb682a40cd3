"""Lesson: one head or many: what one wide head cannot do, and what narrow heads cannot do, with constructed weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from regard.functional import attention, attention_detail, plan_attention
from regard.layers import MultiHeadAttention
from regard.layers.recording import record_attention
from regard_lab.lessons.figures import FAINT, INK, LINES, MARKS, Axes, Figure, begin, label_axes, legend_below
from regard_lab.lessons.report import read_report
from regard_lab.lessons.taught import Claim, Estimate, Lecture, Settings, Table, every
from regard_lab.lessons.words import ROUNDING, largest, normal, rounded
from regard_lab.text.translation_data import PRONOUN_COUNTS

WORDS = ("The", "cat", "sat", "on", "the", "mat")
QUERY, READ = 2, (1, 5)  # "sat" reads "cat" and "mat"
DIM, CONTENT = 16, 8  # a word is 8 numbers of content, of which 3 are a colour, and its position among 8
ORANGE, BLUE, GREY = (0.90, 0.62, 0.0), (0.0, 0.45, 0.70), (0.85, 0.85, 0.85)
SHARP = 400.0  # a score difference that leaves other words a weight of 0
HEADS = (1, 2, 4)
PASSED = 4  # numbers of content of each word, where directions are counted
LOOKS = 25.0  # the largest query in the search for the middle key
NEGLIGIBLE, EXACT = 1e-10, 1e-12
TESTS = PRONOUN_COUNTS["test"]  # sentences on which `regard compare` scores

CODE = """\
import torch
import regard as rg

q = torch.tensor([[[[1.0, 1.0]]]])  # (batch, heads, words, head_dim): one head looks at two words
k = 50 * torch.eye(2)[None, None]  # words 1 and 2
v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
print(rg.attention(q, k, v))  # their mean: exchanging the two words changes nothing
queries = torch.eye(2)[None, :, None]  # two heads, one for each word
print(rg.attention(queries, k.expand(1, 2, 2, 2), v.expand(1, 2, 2, 2)).flatten())  # both, side by side"""


def teach(settings: Settings) -> Lecture:
    """Let one and two heads read two words, count what passes, search for the middle key, and read the report."""
    report = read_report("one_head")
    words = sentence(settings.seed)
    layers = {heads: reading_layer(heads) for heads in (1, 2)}
    outputs = {heads: layer(words)[0, QUERY] for heads, layer in layers.items()}
    exchanged = {heads: layer(_exchanged(words))[0, QUERY] for heads, layer in layers.items()}
    cat, mat = (words[0, place, :CONTENT] for place in READ)
    numbers = {
        "parameters": {heads: sum(one.numel() for one in layer.parameters()) for heads, layer in layers.items()},
        "operations": {heads: _operations(heads) for heads in HEADS},
        "weights": {heads: rounded(_weights(layer, words)) for heads, layer in layers.items()},
        "colours": {heads: rounded(outputs[heads].detach().unflatten(0, (2, CONTENT))[:, :3]) for heads in layers},
        "mean": largest(outputs[1][:CONTENT] - (cat + mat) / 2) < EXACT,
        "apart": largest(outputs[2] - torch.cat([cat, mat])) < EXACT,
        "unmoved": largest(exchanged[1] - outputs[1]) < EXACT,
        "moved": round(largest(exchanged[2] - outputs[2]), 3),
        "passing": {heads: passing(heads, settings.seed) for heads in HEADS},
        "middle": _middle(settings.seed), "circle": _on_a_circle(),
        "trained": report.figures, "source": report.source,
    }  # fmt: skip
    return numbers, (
        "Splitting a layer of d numbers into h heads of d / h changes neither the number of parameters nor the "
        "operations of its matrix products. One article says that a single head sees one position. In fact it sees "
        "all positions, but returns one weighted mean of their values, from which the words cannot be separated again.",
        f"Here the weights are constructed. Every word is {CONTENT} numbers of content, among them a colour, and "
        f"its position. In “{' '.join(WORDS)}” the word “{WORDS[QUERY]}” reads the orange “{WORDS[READ[0]]}” and "
        f"the blue “{WORDS[READ[1]]}”. One head of {DIM} gives each a weight of 0.5 and returns their mean. Two "
        f"heads of {DIM // 2} read one word each and return both contents side by side.",
        "More heads are not always better. A head of one number scores keys along one line, so the key in the "
        "middle of three can never get the largest weight; with two numbers, keys on a circle can each be chosen.",
        f"Trained translators, one head or eight with equal parameters, are in a report of one seed. {report.source} "
        "Training with eight heads took more CPU time: every head has its own n × n matrix of weights, and the "
        "softmax of eight such matrices, which the backward pass reads again, takes time that is not included in the "
        "operations of the matrix products. Source: Vaswani et al. 2017, section 3.2.2; Bhojanapalli et al. 2020, "
        "section 3 (heads that are too narrow).",
    )


def sentence(seed: int) -> torch.Tensor:
    """The words as vectors, (1, length, DIM): colour, more content, and a 1 at their position."""
    colours = [GREY] * len(WORDS)
    colours[READ[0]], colours[READ[1]] = ORANGE, BLUE
    more = normal(seed, len(WORDS), CONTENT - 3)
    places = torch.eye(DIM - CONTENT, dtype=torch.float64)[: len(WORDS)]
    return torch.cat([torch.tensor(colours, dtype=torch.float64), more, places], -1)[None]


def reading_layer(heads: int) -> MultiHeadAttention:
    """A layer in which "sat" reads "cat" and "mat": with one head both, with two heads each with its own."""
    layer = MultiHeadAttention(DIM, heads, projection_bias=False).double()
    head_dim = DIM // heads
    q, k, v = (torch.zeros(heads, head_dim, DIM, dtype=torch.float64) for _ in range(3))
    for head in range(heads):
        for place in READ if heads == 1 else READ[head : head + 1]:
            q[head, place, CONTENT + QUERY] = SHARP
        k[head, : DIM - CONTENT, CONTENT:] = torch.eye(DIM - CONTENT)
        v[head, :CONTENT, :CONTENT] = torch.eye(CONTENT)
    for projection, weight in ((layer.to_q, q), (layer.to_k, k), (layer.to_v, v)):
        assert projection is not None
        projection.weight.data = weight.flatten(0, 1)
    layer.to_output.weight.data = torch.eye(DIM, dtype=torch.float64)
    return layer


def passing(heads: int, seed: int) -> int:
    """The rank of the map from the contents of all words to one output, with random weights of attention."""
    length, head_dim = 2 * max(HEADS), DIM // heads
    q, k = (normal(seed + at, 1, heads, length, head_dim) for at in (1, 2))
    to_v = normal(seed + 3, heads, PASSED, head_dim)

    def output(contents: torch.Tensor) -> torch.Tensor:  # (length, PASSED) -> (DIM,)
        return attention(q, k, (contents @ to_v)[None])[0, :, 0].flatten()

    jacobian = torch.autograd.functional.jacobian(output, normal(seed + 4, length, PASSED)).flatten(1)
    sizes = torch.linalg.svdvals(jacobian)
    return int((sizes > NEGLIGIBLE * sizes[0]).sum())


def _exchanged(words: torch.Tensor) -> torch.Tensor:
    """The sentence with the contents of both read words exchanged."""
    changed, (one, other) = words.clone(), READ
    changed[0, [one, other], :CONTENT] = words[0, [other, one], :CONTENT]
    return changed


def _weights(layer: MultiHeadAttention, words: torch.Tensor) -> torch.Tensor:
    """Weights of the query word, (heads, length)."""
    with record_attention(layer) as recording:
        layer(words)
    return recording[""][0].weights[0, :, QUERY].detach()


def _operations(heads: int) -> float:
    x = torch.zeros(1, heads, 64, DIM // heads)
    return plan_attention(x, x, x).cost.flops


def _middle(seed: int) -> dict[str, Any]:
    """Weights of three keys of one number by query, and how often the middle key has the largest weight."""
    queries = torch.linspace(-LOOKS, LOOKS, 201, dtype=torch.float64)
    keys = torch.cat([torch.tensor([[-1.0, 0.1, 1.0]], dtype=torch.float64), normal(seed, 50, 3).sort(-1).values])
    many = len(keys)
    weights = attention_detail(
        queries.expand(many, 1, -1)[..., None],
        keys[:, None, :, None],
        keys[:, None, :, None],
        scale=1.0,
        want=["weights"],
    ).weights[:, 0]  # (many, queries, 3)
    won = weights[..., 1] > torch.maximum(weights[..., 0], weights[..., 2]) + EXACT
    near = (queries.abs() <= 5).nonzero().flatten()
    return {
        "won": int(won.sum()), "tried": won.numel(), "queries": rounded(queries[near]),
        "weights": rounded(weights[0, near].mT),
    }  # fmt: skip


def _on_a_circle() -> list[float]:
    """With keys of two numbers on a circle: the weight of each key for the query in its direction."""
    turns = torch.arange(6, dtype=torch.float64) * math.tau / 6
    keys = torch.stack([turns.cos(), turns.sin()], -1)[None, None]
    detail = attention_detail(LOOKS * keys, keys, keys, scale=1.0, want=["weights"])
    return rounded(detail.weights[0, 0].diagonal())


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    names = ("one head of 16", "two heads of 8: first", "two heads of 8: second")
    weights = [*numbers["weights"][1], *numbers["weights"][2]]
    one, many = numbers["trained"]["heads"][1], numbers["trained"]["heads"][0]
    yield Table(
        f"Weights of “{WORDS[QUERY]}”",
        ("", *WORDS),
        tuple((name, *(f"{value:.2f}" for value in row)) for name, row in zip(names, weights, strict=True)),
    )
    yield Table(
        f"How many separate facts about {2 * max(HEADS)} words ({PASSED} numbers each) fit into one output",
        ("heads", "head_dim", "separate facts"),
        tuple((str(heads), str(DIM // heads), str(numbers["passing"][heads])) for heads in HEADS),
    )
    yield Table(
        "Trained translators with equal parameters, one seed, from the report",
        ("heads", "parameters", "translated without a mistake", "CPU seconds of training"),
        tuple(
            (heads, f"{row['parameters']:,}", f"{row['exact_match']:.3f}", f"{row['cpu_seconds']:.0f}")
            for heads, row in (("1", one), ("8", many))
        ),
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    (single,), passes, middle = numbers["weights"][1], numbers["passing"], numbers["middle"]
    many, one = numbers["trained"]["heads"]
    right = [Estimate.share(row["exact_match"], TESTS) for row in (many, one)]
    cost = numbers["operations"]
    yield Claim(
        "The number of heads changes neither the parameters of a layer nor the operations of its matrix products.",
        len(set(numbers["parameters"].values())) == 1 and len(set(cost.values())) == 1,
        f"{numbers['parameters'][1]:,} parameters with 1 and 2 heads; {cost[1]:,.0f} operations for 64 words with "
        f"1, 2 and 4",
    )
    yield Claim(
        "One head can attend to two words at once.",
        all(abs(single[place] - 0.5) < 1e-3 for place in READ),
        f"“{WORDS[READ[0]]}” {single[READ[0]]:.2f} and “{WORDS[READ[1]]}” {single[READ[1]]:.2f}",
    )
    yield Claim(
        "It returns their mean, so exchanging the two words does not change its output.",
        numbers["mean"] and numbers["unmoved"],
        ROUNDING,
    )
    yield Claim(
        "Two heads of half the size return both words, and notice the exchange.",
        numbers["apart"] and numbers["moved"] > 0.1,
        f"both contents {ROUNDING}; the exchange moves the output by {numbers['moved']:.2f}",
    )
    yield Claim(
        "With random weights too, each head passes one mixture of the words, so more heads pass more facts.",
        all(passes[heads] == heads * PASSED for heads in HEADS),
        f"{', '.join(str(passes[heads]) for heads in HEADS)} facts with {', '.join(map(str, HEADS))} heads",
    )
    yield Claim(
        "A head of one number never gives the middle of three keys the largest weight.",
        middle["won"] == 0,
        f"{middle['won']} of {middle['tried']:,} queries",
    )
    yield Claim(
        "A head of two numbers can choose each of six keys.",
        min(numbers["circle"]) > 0.99,
        f"weights of at least {min(numbers['circle']):.4f}",
    )
    yield Claim(
        "The trained translator with eight heads makes fewer mistakes than the one with one head.",
        every(right[0].above(right[1]), many["parameters"] == one["parameters"]),
        f"{right[0]} and {right[1]} of {TESTS} sentences are right, in the report",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "One head mixes two words, two heads keep them apart", 12.6, 4.6)
    one, two, narrow = figure.subplots(1, 3, width_ratios=(1, 1, 1.05))
    _draw_reading(one, numbers["weights"][1], numbers["colours"][1][:1])
    one.set_title(f"One head of {DIM}", fontsize=10, color=INK)
    _draw_reading(two, numbers["weights"][2], numbers["colours"][2])
    two.set_title(f"Two heads of {DIM // 2}, as many parameters", fontsize=10, color=INK)
    for number, (label, weights) in enumerate(
        zip(("lowest key", "middle key", "highest key"), numbers["middle"]["weights"], strict=True)
    ):
        narrow.plot(numbers["middle"]["queries"], weights, color=LINES[number], marker=MARKS[number], markevery=8,
                    markersize=5, linewidth=2.4 if number == 1 else 1.4, label=label)  # fmt: skip
    label_axes(narrow, "A head of one number cannot choose the middle", "query", "weight of three keys")
    narrow.grid(alpha=0.25)
    narrow.set_ylim(0, 1)
    legend_below(narrow, columns=3)


def _draw_reading(axes: Axes, weights: list[list[float]], colours: list[list[float]]) -> None:
    """Words below, outputs of the heads above, lines as thick as the weights."""
    from matplotlib.patches import Rectangle

    shown = [GREY] * len(WORDS)
    shown[READ[0]], shown[READ[1]] = ORANGE, BLUE
    for place, (word, colour) in enumerate(zip(WORDS, shown, strict=True)):
        axes.add_patch(Rectangle((place - 0.4, 0), 0.8, 0.5, facecolor=colour, edgecolor=INK, linewidth=0.6))
        axes.text(place, -0.12, word, ha="center", va="top", fontsize=10,
                  fontweight="bold" if place == QUERY else "normal", color=INK)  # fmt: skip
    middle = (len(WORDS) - 1) / 2
    for head, (row, colour) in enumerate(zip(weights, colours, strict=True)):
        centre = middle + 1.2 * (head - (len(colours) - 1) / 2)
        axes.add_patch(
            Rectangle((centre - 0.5, 2.3), 1.0, 0.62, facecolor=[min(max(value, 0.0), 1.0) for value in colour],
                      edgecolor=INK, linewidth=0.9)
        )  # fmt: skip
        for place, weight in enumerate(row):
            if weight > 0.01:
                axes.plot([place, centre], [0.5, 2.3], color=FAINT, linewidth=4 * weight)
                share = 0.35
                axes.text(place + share * (centre - place) + 0.2, 0.5 + share * 1.8, f"{weight:.1f}", fontsize=9,
                          color=INK, ha="left", va="center")  # fmt: skip
    axes.text(middle, 3.05, f"what “{WORDS[QUERY]}” receives", ha="center", va="bottom", fontsize=9, color=INK)
    axes.set(xlim=(-0.7, len(WORDS) - 0.3), ylim=(-0.55, 3.4))
    axes.set_axis_off()
