"""Networks that connect the last word of a text to the first, and the steps that each takes, counted while it runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.arguments import count_of
from regard.layers import MultiHeadAttention
from regard_lab.seeing.palette import FAINT, INK, LINES
from regard_lab.teaching.chains import longest_chain, marked_steps, shortest_chain
from regard_lab.teaching.figures import label_axes
from regard_lab.teaching.inputs import normal, seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIM = 8  # numbers of a word
WIDTH = 3  # words that a convolution reads
Words = Sequence[torch.Tensor]  # (1, DIM) each


class RecurrentNetwork(nn.Module):
    """A gated recurrent unit, cell by cell."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.cell = seeded(seed, nn.GRUCell, DIM, DIM)

    def forward(self, words: Words) -> list[torch.Tensor]:
        state = torch.zeros_like(words[0])
        states = []
        for word in words:
            state = self.cell(word, state)
            states.append(state)
        return states

    def words_moved(self, length: int) -> list[int]:
        """How many words each step carries a signal from the first of `length` words towards the last."""
        return [0] + [1] * (length - 1)


class ConvolutionNetwork(nn.Module):
    """Causal convolutions over WIDTH words; neighbours of layer l are WIDTH^l words apart if `dilated`, else 1."""

    def __init__(self, seed: int, layers: int, dilated: bool) -> None:
        super().__init__()
        gaps = [WIDTH**layer if dilated else 1 for layer in range(layers)]
        self.words_back = [(WIDTH - 1) * gap for gap in gaps]  # that each layer looks back
        self.layers = nn.ModuleList()
        for layer, gap in enumerate(gaps):
            convolution = seeded(seed + layer, nn.Conv1d, DIM, DIM, WIDTH, dilation=gap)
            self.layers.append(convolution)

    def forward(self, words: Words) -> list[torch.Tensor]:
        x = torch.stack(list(words), -1)  # (1, DIM, length)
        for layer, back in zip(self.layers, self.words_back, strict=True):
            padded = nn.functional.pad(x, (back, 0))
            x = torch.tanh(layer(padded))
        return list(x.unbind(-1))

    def words_moved(self, length: int) -> list[int]:
        return self.words_back


class AttentionNetwork(nn.Module):
    """One causal attention layer with two heads."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layer = seeded(seed, MultiHeadAttention, DIM, 2, pattern="causal")

    def forward(self, words: Words) -> list[torch.Tensor]:
        x = torch.stack(list(words), 1)  # (1, length, DIM)
        return list(self.layer(x).unbind(1))

    def words_moved(self, length: int) -> list[int]:
        return [length - 1]


Network = RecurrentNetwork | ConvolutionNetwork | AttentionNetwork
UNITS = (nn.GRUCell, nn.Conv1d, MultiHeadAttention)  # a call of one is a step


def new_network(name: str, length: int, seed: int) -> Network:
    """The network that connects the last of `length` words to the first, convolutions with the least layers."""
    if name == "recurrent":
        return RecurrentNetwork(seed)
    if name == "attention":
        return AttentionNetwork(seed)

    dilated = name == "dilated"
    words = _random_words(length, seed)

    def connects(layers: int) -> bool:
        outputs = ConvolutionNetwork(seed, layers, dilated)(words)
        return float(_gradient_norm(outputs, words[0])) > 0

    enough = 1
    while not connects(enough):
        enough *= 2
    least = bisect_left(range(enough), True, lo=enough // 2, key=connects)
    return ConvolutionNetwork(seed, least, dilated)


def count_steps(name: str, length: int, seed: int) -> dict[str, Any]:
    """Run a network on random words, and count.

    Returns:
        `steps`: calls of cells or layers that wait for each other; `path`: calls between the first word and the last
        output; `gradient`: of the last output with respect to the first word, relative to that of the last word.
    """
    run = _run_network(name, length, seed)
    of_first = _gradient_norm(run.outputs, run.words[0])
    of_last = _gradient_norm(run.outputs, run.words[-1])
    return {
        "steps": longest_chain(run.outputs[-1]),
        "path": shortest_chain(run.outputs[-1], run.words[0]),
        "gradient": float(of_first / of_last),
    }


@dataclass(frozen=True)
class _NetworkRun:
    """A network that ran on random words.

    Args:
        words: (1, DIM) each, leaves of the graph.
        network: what ran.
        outputs: (1, DIM) each.
        calls: what each call of a cell, (1, DIM), or of a layer, of three axes, returned.
    """

    words: list[torch.Tensor]
    network: Network
    outputs: list[torch.Tensor]
    calls: list[torch.Tensor]


def _run_network(name: str, length: int, seed: int) -> _NetworkRun:
    words = _random_words(length, seed)
    network = new_network(name, length, seed)
    units = [module for module in network.modules() if isinstance(module, UNITS)]
    calls: list[torch.Tensor] = []
    with marked_steps(units, calls.append):
        outputs = network(words)
    return _NetworkRun(words, network, outputs, calls)


def _random_words(length: int, seed: int) -> list[torch.Tensor]:
    """Random words, each a leaf of its own."""
    return [word[None].clone().requires_grad_() for word in normal(seed + 1, length, DIM)]


def _gradient_norm(outputs: list[torch.Tensor], word: torch.Tensor) -> torch.Tensor:
    """The norm of the gradient of the last output's sum with respect to a word."""
    (gradient,) = torch.autograd.grad(
        outputs[-1].sum(), word, retain_graph=True, materialize_grads=True
    )
    return gradient.norm()


def draw_steps(
    axes: Axes, name: str, title: str, words: Sequence[str], number: int, seed: int
) -> None:
    """Draw a box for each word that a step of a network computes, and the path of the first word to the last output.

    The network reads a random vector for each word; `number` selects its colour, and the axes of number 0 have
    labels on the left.
    """
    length = len(words)
    run = _run_network(name, length, seed)
    _draw_boxes(axes, run, LINES[number])

    path = [0, *accumulate(run.network.words_moved(length))]
    path = [min(place, length - 1) for place in path]
    axes.plot(path, range(len(path)), color=INK, linewidth=1.6, marker="o", markersize=3.2)
    axes.axhline(0.3, color=FAINT, linewidth=0.8)

    steps = count_of(longest_chain(run.outputs[-1]), "steps")
    label_axes(axes, f"{title}\n{steps}", "", "step" if number == 0 else "")
    axes.set(xlim=(-0.7, length - 0.3), ylim=(-0.5, length + 0.7))
    axes.set_xticks(range(length), words, rotation=90)
    if number == 0:
        even = range(2, length + 1, 2)
        axes.set_yticks([0, *even], ["words", *map(str, even)])
    else:
        axes.set_yticks([], [])


def _draw_boxes(axes: Axes, run: _NetworkRun, colour: str) -> None:
    from matplotlib.patches import Rectangle

    for number, output in enumerate(run.calls):
        is_of_a_cell = output.dim() == 2  # which computes one word; a layer computes all
        computed = [number] if is_of_a_cell else range(len(run.words))
        step = longest_chain(output)
        for place in computed:
            corner = (place - 0.44, step - 0.42)
            axes.add_patch(Rectangle(corner, 0.88, 0.84, color=colour, alpha=0.45, lw=0))
