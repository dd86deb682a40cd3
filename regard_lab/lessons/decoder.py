"""Lesson: one pass of a decoder trains every position at once, and writing still goes word by word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from regard.arguments import count_of
from regard_lab.lessons.figures import FAINT, LINES, Axes, Figure, begin, draw_cells, draw_map, scale_beside
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, largest, rounded, seeded, watch, words_of
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text.vocabularies import BEGIN

TEXT = "the quick brown fox jumps over the lazy dog"
DIM, HEADS, LAYERS = 32, 4, 2
PASSES, RATE = 60, 0.01  # of the training; the rate falls to 0
EXACT = 1e-9

CODE = """\
import torch
from regard_lab.models import LanguageConfig, LanguageModel

model = LanguageModel(LanguageConfig(vocab_size=10, dim=32, heads=4)).double().eval()
ids = torch.tensor([[2, 5, 6, 7, 8]])
at_once = model(ids)[0]  # the scores after each word, in one pass
one_by_one = torch.stack([model(ids[:, :stop])[0, -1] for stop in range(1, 6)])
print((at_once - one_by_one).abs().max())"""


def teach(settings: Settings) -> Lecture:
    """Compare one pass with one pass for each prefix and with a cache; train on one sentence."""
    words = words_of(settings.text, TEXT)
    vocabulary = ("<begin>", *sorted(set(words)))
    ids = torch.tensor([[BEGIN, *(BEGIN + vocabulary.index(word) for word in words)]])
    read, wanted = ids[:, :-1], ids[0, 1:]
    model = new_model(BEGIN + len(vocabulary), settings.seed)
    with torch.no_grad():
        at_once = model(read)[0]  # (length, vocabulary)
        prefixes = torch.stack([model(read[:, :stop])[0, -1] for stop in range(1, read.shape[1] + 1)])
    edited = ids.clone()
    edited[0, -2] = BEGIN if int(ids[0, -2]) != BEGIN else int(wanted[-1])
    numbers: dict[str, Any] = {
        "words": list(words), "vocabulary": list(vocabulary),
        "prefixes": largest(at_once - prefixes) < EXACT, "cached": largest(at_once - _cached(model, read)) < EXACT,
        "gradients": _gradients(model, read, wanted) < EXACT,
        "passes": _count(model, read), "moved": _moved(model, read, edited[:, :-1]),
    }  # fmt: skip
    numbers |= _train(model, read, wanted)
    return numbers, (
        "After each word, a decoder computes a distribution of the next word. In training the whole sentence is "
        "known: one pass computes the distributions at all positions, and each is compared with the word that "
        "follows. The causal mask makes this valid, because no position can look at the word that it predicts. A "
        "sentence of n words gives n training examples in one pass.",
        "In generation the next word depends on the words chosen before, so words are written one by one. A cache "
        "keeps the keys and values of earlier words, so each step computes one position; the results are the same "
        "as in one pass.",
        f"Here a small decoder is trained on one sentence for {PASSES} passes. Source: Attention Is All "
        f"You Need, Vaswani et al. 2017, section 3.2.3.",
    )


def new_model(vocab_size: int, seed: int) -> LanguageModel:
    """A decoder with weights drawn from the seed."""
    config = LanguageConfig(vocab_size=vocab_size, dim=DIM, heads=HEADS, layers=LAYERS, positions="learned")
    return seeded(seed, LanguageModel, config).eval()


def _cached(model: LanguageModel, read: torch.Tensor) -> torch.Tensor:
    """The logits (length, vocabulary) when words are appended one by one to a cache."""
    with torch.no_grad():
        state = model.start(read[:, :1])
        scores = [state.next_scores, *(model.step(read[:, place], state) for place in range(1, read.shape[1]))]
    return torch.cat([one for one in scores if one is not None])


def _gradients(model: LanguageModel, read: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference of the gradient of one pass from the sum of the gradients of one pass for each prefix."""

    def gradient(loss: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, list(model.parameters())))

    at_once = gradient(F.cross_entropy(model(read)[0], wanted, reduction="sum"))
    one_by_one = [torch.zeros_like(one) for one in at_once]
    for stop in range(1, read.shape[1] + 1):
        part = gradient(F.cross_entropy(model(read[:, :stop])[0, -1:], wanted[stop - 1 : stop], reduction="sum"))
        one_by_one = [one + more for one, more in zip(one_by_one, part, strict=True)]
    return max(largest(one - other) for one, other in zip(at_once, one_by_one, strict=True))


def _count(model: LanguageModel, read: torch.Tensor) -> dict[str, dict[str, int]]:
    """Passes one after the other and positions computed, for training and for writing with and without a cache."""
    first = {"layer": model.get_submodule("blocks.0")}

    def prefixes() -> None:
        for stop in range(1, read.shape[1] + 1):
            model(read[:, :stop])

    counts = {}
    calls = {"training": lambda: model(read), "writing": lambda: _cached(model, read), "without a cache": prefixes}
    for name, call in calls.items():
        seen = watch(first, call)["layer"]
        counts[name] = {"passes": seen.calls, "positions": sum(x.shape[1] for x in seen.inputs)}
    return counts


def _moved(model: LanguageModel, read: torch.Tensor, edited: torch.Tensor) -> list[float]:
    """How far the logits at each position move, (length,), when the last word that is read is another one."""
    with torch.no_grad():
        return rounded((model(edited) - model(read))[0].norm(dim=-1), 12)


def _train(model: LanguageModel, read: torch.Tensor, wanted: torch.Tensor) -> dict[str, Any]:
    """The distributions before and after training, (length, vocabulary), and at how many positions they are right."""
    right, chances, parameters = [], [], list(model.parameters())
    for number in range(PASSES + 1):
        scores = model(read)[0]
        right.append(int((scores.argmax(-1) == wanted).sum()))
        if number in (0, PASSES):
            chances.append(rounded(scores[:, BEGIN:].softmax(-1), 9))
        gradients = torch.autograd.grad(F.cross_entropy(scores, wanted), parameters)
        with torch.no_grad():  # gradient descent in which the numbers of every matrix move by RATE on average
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= RATE * (1 - number / PASSES) * gradient / gradient.square().mean().sqrt().clamp(min=1e-30)
    return {"right": right, "before": chances[0], "after": chances[1]}


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    words = numbers["words"]
    rows = tuple((name, str(one["passes"]), str(one["positions"])) for name, one in numbers["passes"].items())
    chances = tuple(
        (" ".join(["<begin>", *words[:place]][-3:]), word, f"{early[at]:.2f}", f"{late[at]:.2f}")
        for place, word in enumerate(words)
        for early, late, at in [(numbers["before"][place], numbers["after"][place], numbers["vocabulary"].index(word))]
    )
    yield Table(
        f"The first layer, for {count_of(len(words), 'words')}",
        ("", "passes, one after the other", "positions"),
        rows,
    )
    yield Table(
        f"Probability of the next word, before and after {PASSES} passes",
        ("after (the last three words)", "next word", "before", "after"),
        chances,
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    count, passes, right, moved = len(numbers["words"]), numbers["passes"], numbers["right"], numbers["moved"]
    without = passes["without a cache"]["positions"]
    yield Claim(
        "At every position, one pass gives the same logits as a pass over only the words up to there.",
        numbers["prefixes"],
        f"{count_of(count, 'positions')}, {ROUNDING}",
    )
    yield Claim("Word by word with a cache, the logits are the same.", numbers["cached"], ROUNDING)
    yield Claim(
        "The gradient of one pass is the sum of those of one pass for each word.",
        numbers["gradients"],
        f"all parameters, {ROUNDING}",
    )
    yield Claim(
        "Training takes one pass for all words; writing takes one pass for each word.",
        passes["training"] == {"passes": 1, "positions": count}
        and passes["writing"] == {"passes": count, "positions": count}
        and without == count * (count + 1) // 2,
        f"1 pass against {count}; without a cache {count_of(without, 'positions')} instead of {count}",
    )
    yield Claim(
        "Replacing the last word changes no earlier logits.",
        max([*moved[:-1], 0.0]) < EXACT < moved[-1],
        f"the logits after it change by {moved[-1]:.2f}, all others not at all except for rounding",
    )
    yield Claim(
        "All positions learn at once: after training, each predicts its next word.",
        right[-1] == count,
        f"{right[0]} of {count} before, {right[-1]} after {count_of(PASSES, 'passes')}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    words, vocabulary = numbers["words"], numbers["vocabulary"][1:]
    side = min(max(5.2, 0.2 * len(words)), 9.0)
    begin(figure, f"One sentence: {len(words)} training examples in one pass", 2 * side + 2.6, side + 1.2)
    left, right = figure.subplots(1, 2)
    _draw_examples(left, words, side)
    after = torch.tensor(numbers["after"])[:, 1:]
    rows = [_read_so_far(words[:place]) for place in range(len(words))]
    image = draw_map(right, after, rows, vocabulary, cell=side / len(words))
    for place, word in enumerate(words):
        at = vocabulary.index(word)
        right.plot(at, place, marker="o", markersize=min(9.0, 90 / len(words)), color="none", markeredgecolor=LINES[1])
    right.set_ylabel("after", fontsize=9.5)
    right.set_xlabel(
        "The distribution of the next word after training, from all words read\ncircle: the true next word",
        fontsize=9.5,
    )
    scale_beside(figure, image, right, "probability")


def _read_so_far(words: list[str]) -> str:
    """The end of what the model has read: two rows may end in the same word.

    >>> _read_so_far([]), _read_so_far(["over"]), _read_so_far(["jumps", "over", "the"])
    ('<begin>', '<begin> over', '… over the')
    """
    read = ["<begin>", *words]
    return "… " * (len(read) > 2) + " ".join(read[-2:])


def _draw_examples(axes: Axes, words: list[str], side: float) -> None:
    """A row for each training example: the words that it reads, and the word that it predicts."""
    count = len(words)
    cells = torch.ones(count, count + 1).tril().long()
    cells += 2 * torch.eye(count, count + 1).roll(1, 1).long()
    draw_cells(axes, cells, ("white", "#c9ced6", "#c9ced6", LINES[1]), "auto")
    longest = max(7, *map(len, words))
    size = min(9.0, 62 * side / (count + 1) / (0.62 * longest)) if count <= 12 else min(7.0, 40 * side / count)
    for row in range(count):
        for column, word in enumerate(["<begin>", *words][: row + 2]):
            ahead = column == row + 1
            if count <= 12:
                axes.text(column, row, word, ha="center", va="center", fontsize=size, parse_math=False)
            elif ahead:
                axes.text(column + 0.8, row, word, ha="left", va="center", fontsize=size, parse_math=False)
    axes.set_xlabel("A row for each position\ngrey: the words it reads; coloured: the word it predicts", fontsize=9.5)
    axes.spines[:].set_color(FAINT)
