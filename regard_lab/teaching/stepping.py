"""Networks that connect the last word of a text to the first, and the steps that each takes, counted while it runs.

Autograd records which result was computed from which. A step is marked after each call of a unit, such as a cell or a
layer, so the longest path through the graph is the number of calls that had to wait for each other, and the shortest
path to an input is the number of units between this input and the output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.arguments import count_of
from regard.layers import MultiHeadAttention
from regard_lab.seeing.palette import FAINT, INK, LINES
from regard_lab.teaching.figures import label_axes
from regard_lab.teaching.words import normal, seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Step(torch.autograd.Function):
    """Leaves a tensor unchanged, and is a node of the graph that can be counted."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@contextmanager
def marked_steps(
    units: Iterable[nn.Module], then: Callable[[torch.Tensor], None] = lambda output: None
) -> Generator[None]:
    """While the `with` block runs, mark a step after each call of a unit; `then` is called with each marked output."""

    def mark(unit: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        marked = _Step.apply(output)
        then(marked)
        return marked

    with ExitStack() as hooks:
        for unit in units:
            hooks.enter_context(unit.register_forward_hook(mark))
        yield


def longest_chain(output: torch.Tensor) -> int:
    """The largest number of marked steps of which each needs the result of another before it.

    >>> layer = nn.Linear(2, 2)
    >>> with marked_steps([layer]):
    ...     after = layer(layer(torch.ones(2)))
    ...     beside = layer(torch.ones(2))
    >>> longest_chain(after + beside)
    2
    """
    length = _chain(output, max, lambda leaf: 0)
    assert length is not None  # each leaf has a length
    return length


def shortest_chain(output: torch.Tensor, leaf: torch.Tensor) -> int | None:
    """The smallest number of marked steps between a leaf of the graph and the output; None if they are not connected.

    >>> layer = nn.Linear(2, 2)
    >>> x = torch.ones(2, requires_grad=True)
    >>> with marked_steps([layer]):
    ...     output = layer(layer(x)) + layer(x)
    >>> shortest_chain(output, x)
    1
    """
    return _chain(output, min, lambda end: 0 if end is leaf else None)


def _chain(
    output: torch.Tensor,
    choose: Callable[[list[int]], int],
    length_at: Callable[[torch.Tensor], int | None],
) -> int | None:
    """The number of marked steps from leaves to the output.

    `length_at` is the number at a leaf, None where no chain begins. `choose` chooses among the inputs of a node. A loop
    in place of recursion: a chain may have more nodes than Python has frames.
    """
    lengths: dict[Any, int | None] = {}
    waiting: list[Any] = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        inputs = [earlier for earlier, _ in node.next_functions if earlier is not None]
        unknown = [earlier for earlier in inputs if earlier not in lengths]
        if unknown:
            waiting += unknown
            continue

        waiting.pop()
        leaf = getattr(node, "variable", None)  # of a node that adds up the gradient of a leaf
        if leaf is not None:
            lengths[node] = length_at(leaf)
            continue

        lengths_of_inputs = [lengths[earlier] for earlier in inputs]
        known = [length for length in lengths_of_inputs if length is not None]
        if not known:
            lengths[node] = None
        elif isinstance(node, _Step._backward_cls):
            lengths[node] = choose(known) + 1
        else:
            lengths[node] = choose(known)
    return lengths[output.grad_fn]


DIM = 8  # numbers of a word
WIDTH = 3  # words that a convolution reads
Words = Sequence[torch.Tensor]  # (1, DIM) each


class Recurrent(nn.Module):
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


class Convolutions(nn.Module):
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
            x = torch.tanh(layer(nn.functional.pad(x, (back, 0))))
        return list(x.unbind(-1))


class Attention(nn.Module):
    """One causal attention layer with two heads."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layer = seeded(seed, MultiHeadAttention, DIM, 2, pattern="causal")

    def forward(self, words: Words) -> list[torch.Tensor]:
        return list(self.layer(torch.stack(list(words), 1)).unbind(1))


UNITS = (nn.GRUCell, nn.Conv1d, MultiHeadAttention)


def network(name: str, length: int, seed: int) -> nn.Module:
    """The network that connects the last of `length` words to the first, convolutions with the least layers."""
    if name == "recurrent":
        return Recurrent(seed)
    if name == "attention":
        return Attention(seed)

    dilated = name == "dilated"
    words = _random_words(length, seed)

    def connects(layers: int) -> bool:
        outputs = Convolutions(seed, layers, dilated)(words)
        return float(_gradient_norm(outputs, words[0])) > 0

    enough = 1
    while not connects(enough):
        enough *= 2
    least = bisect_left(range(enough), True, lo=enough // 2, key=connects)
    return Convolutions(seed, least, dilated)


def count_steps(name: str, length: int, seed: int) -> dict[str, Any]:
    """Run a network on random words, and count.

    Returns:
        `steps`: calls of cells or layers that wait for each other; `path`: calls between the first word and the last
        output; `gradient`: of the last output with respect to the first word, relative to that of the last word.
    """
    run = _run(name, length, seed)
    of_first = _gradient_norm(run.outputs, run.words[0])
    of_last = _gradient_norm(run.outputs, run.words[-1])
    return {
        "steps": longest_chain(run.outputs[-1]),
        "path": shortest_chain(run.outputs[-1], run.words[0]),
        "gradient": float(of_first / of_last),
    }


@dataclass(frozen=True)
class _Run:
    """A network that ran on random words.

    Args:
        words: (1, DIM) each, leaves of the graph.
        network: what ran.
        outputs: (1, DIM) each.
        calls: what each call of a cell, (1, DIM), or of a layer, of three axes, returned.
    """

    words: list[torch.Tensor]
    network: nn.Module
    outputs: list[torch.Tensor]
    calls: list[torch.Tensor]


def _run(name: str, length: int, seed: int) -> _Run:
    words = _random_words(length, seed)
    made = network(name, length, seed)
    units = [module for module in made.modules() if isinstance(module, UNITS)]
    calls: list[torch.Tensor] = []
    with marked_steps(units, calls.append):
        outputs = made(words)
    return _Run(words, made, outputs, calls)


def _random_words(length: int, seed: int) -> list[torch.Tensor]:
    """Random words, each a leaf of its own."""
    return [word[None].clone().requires_grad_() for word in normal(seed + 1, length, DIM)]


def _gradient_norm(outputs: list[torch.Tensor], word: torch.Tensor) -> torch.Tensor:
    """The norm of the gradient of the last output's sum with respect to a word."""
    (gradient,) = torch.autograd.grad(
        outputs[-1].sum(), word, retain_graph=True, materialize_grads=True
    )
    return gradient.norm()


def _words_moved(made: nn.Module, length: int) -> list[int]:
    """How many words each step carries a signal from the first word towards the last."""
    if isinstance(made, Recurrent):
        return [0] + [1] * (length - 1)
    if isinstance(made, Convolutions):
        return made.words_back
    return [length - 1]


def draw_steps(
    axes: Axes, name: str, title: str, words: Sequence[str], number: int, seed: int
) -> None:
    """Draw a box for each word that a step of a network computes, and the path of the first word to the last output.

    The network reads a random vector for each word; `number` selects its colour, and the axes of number 0 have
    labels on the left.
    """
    from matplotlib.patches import Rectangle

    length = len(words)
    run = _run(name, length, seed)

    style: dict[str, Any] = {"color": LINES[number], "alpha": 0.45, "lw": 0}
    for call, output in enumerate(run.calls):
        step = longest_chain(output)
        computed = [call] if output.dim() == 2 else range(length)  # a cell computes one word
        for place in computed:
            axes.add_patch(Rectangle((place - 0.44, step - 0.42), 0.88, 0.84, **style))

    path = [0, *accumulate(_words_moved(run.network, length))]
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
