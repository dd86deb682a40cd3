"""Networks that connect the last word of a text to the first, and the steps that each takes, counted while it runs.

Autograd records which result was computed from which. A step is marked after each call of a unit, such as a cell or a
layer, so the longest path through the graph is the number of calls that had to wait for each other, and the shortest
path to an input is the number of units between this input and the output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.arguments import count_of
from regard.layers import MultiHeadAttention
from regard_lab.seeing.canvas import FAINT, INK, LINES
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
    ...     after, beside = layer(layer(torch.ones(2))), layer(torch.ones(2))
    >>> longest_chain(after + beside)
    2
    """
    length = _through_graph(output, lambda lengths: max(lengths, default=0), lambda node: 0)
    assert length is not None
    return length


def shortest_chain(output: torch.Tensor, leaf: torch.Tensor) -> int | None:
    """The smallest number of marked steps between a leaf of the graph and the output; None if they are not connected.

    >>> layer, x = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    >>> with marked_steps([layer]):
    ...     output = layer(layer(x)) + layer(x)
    >>> shortest_chain(output, x)
    1
    """
    return _through_graph(
        output,
        lambda lengths: min(lengths, default=None),
        lambda node: 0 if _variable(node) is leaf else None,
    )


def _through_graph(
    output: torch.Tensor,
    choose: Callable[[list[int]], int | None],
    of_leaf: Callable[[Any], int | None],
) -> int | None:
    """Steps from the output to the leaves, where `choose` chooses among the ways of a node; without recursion."""
    lengths: dict[Any, int | None] = {}
    waiting: list[Any] = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [earlier for earlier, _ in node.next_functions if earlier is not None]
        missing = [earlier for earlier in before if earlier not in lengths]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if _variable(node) is not None:
            lengths[node] = of_leaf(node)
        else:
            length = choose(
                [length for earlier in before if (length := lengths[earlier]) is not None]
            )
            lengths[node] = (
                None if length is None else length + isinstance(node, _Step._backward_cls)
            )
    return lengths[output.grad_fn]


def _variable(node: Any) -> torch.Tensor | None:
    """The leaf whose gradient the node adds up; None for another node."""
    return getattr(node, "variable", None)


DIM = 8
WIDTH = 3
Words = Sequence[torch.Tensor]


class Recurrent(nn.Module):
    """A gated recurrent unit, cell by cell."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.cell = seeded(seed, nn.GRUCell, DIM, DIM)

    def forward(self, words: Words) -> list[torch.Tensor]:
        states = [torch.zeros_like(words[0])]
        for word in words:
            states.append(self.cell(word, states[-1]))
        return states[1:]


class Convolutions(nn.Module):
    """Causal convolutions over WIDTH words; neighbours of layer l are WIDTH^l words apart if `dilated`, else 1."""

    def __init__(self, seed: int, layers: int, dilated: bool) -> None:
        super().__init__()
        apart = [WIDTH**layer if dilated else 1 for layer in range(layers)]
        self.layers = nn.ModuleList(
            seeded(seed + layer, nn.Conv1d, DIM, DIM, WIDTH, dilation=gap)
            for layer, gap in enumerate(apart)
        )
        self.back = [(WIDTH - 1) * gap for gap in apart]

    def forward(self, words: Words) -> list[torch.Tensor]:
        x = torch.stack(list(words), -1)  # (1, DIM, length)
        for layer, back in zip(self.layers, self.back, strict=True):
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

    def connects(layers: int) -> bool:
        words = _leaves(length, seed)
        return float(_gradient(Convolutions(seed, layers, name == "dilated")(words), words[0])) > 0

    enough = 1
    while not connects(enough):
        enough *= 2
    layers = bisect_left(range(enough), True, lo=enough // 2, key=connects)
    return Convolutions(seed, layers, name == "dilated")


def count_steps(name: str, length: int, seed: int) -> dict[str, Any]:
    """Run a network on random words, and count.

    Returns:
        `steps`: calls of cells or layers that wait for each other; `path`: calls between the first word and the last
        output; `gradient`: of the last output with respect to the first word, relative to that of the last word.
    """
    words, _, outputs, _ = _run(name, length, seed)
    gradient = float(_gradient(outputs, words[0]) / _gradient(outputs, words[-1]))
    return {
        "steps": longest_chain(outputs[-1]),
        "path": shortest_chain(outputs[-1], words[0]),
        "gradient": gradient,
    }


def boxes_of(name: str, length: int, seed: int) -> dict[str, Any]:
    """What a network computes in which step.

    Returns:
        `steps`: their number; `boxes`: of each call, its step and its first and last word; `moves`: how many words
        each step carries a signal from the first word.
    """
    _, made, outputs, calls = _run(name, length, seed)
    boxes = [
        [
            longest_chain(call),
            *((at, at) if call.dim() == 2 else (0, length - 1)),
        ]  # a cell computes one word
        for at, call in enumerate(calls)
    ]
    moves = [0] + [1] * (length - 1) if isinstance(made, Recurrent) else [length - 1]
    moves = made.back if isinstance(made, Convolutions) else moves
    return {"steps": longest_chain(outputs[-1]), "boxes": boxes, "moves": moves}


def _run(
    name: str, length: int, seed: int
) -> tuple[list[torch.Tensor], nn.Module, list[torch.Tensor], list[Any]]:
    """Words, network, outputs, and what each call of a cell or layer returned."""
    words = _leaves(length, seed)
    made = network(name, length, seed)
    calls: list[torch.Tensor] = []
    with marked_steps([unit for unit in made.modules() if isinstance(unit, UNITS)], calls.append):
        outputs = made(words)
    return words, made, outputs, calls


def _leaves(length: int, seed: int) -> list[torch.Tensor]:
    """Random words, each a leaf of its own."""
    return [word[None].clone().requires_grad_() for word in normal(seed + 1, length, DIM)]


def _gradient(outputs: list[torch.Tensor], word: torch.Tensor) -> torch.Tensor:
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
    from matplotlib.patches import Rectangle

    drawn = boxes_of(name, len(words), seed)
    for step, first, last in drawn["boxes"]:
        for place in range(first, last + 1):
            axes.add_patch(
                Rectangle(
                    (place - 0.44, step - 0.42), 0.88, 0.84, color=LINES[number], alpha=0.45, lw=0
                )
            )
    way = [min(place, len(words) - 1) for place in [0, *accumulate(drawn["moves"])]]
    axes.plot(way, range(len(way)), color=INK, linewidth=1.6, marker="o", markersize=3.2)
    axes.axhline(0.3, color=FAINT, linewidth=0.8)
    label_axes(
        axes, f"{title}\n{count_of(drawn['steps'], 'steps')}", "", "step" if number == 0 else ""
    )
    axes.set(xlim=(-0.7, len(words) - 0.3), ylim=(-0.5, len(words) + 0.7))
    axes.set_xticks(range(len(words)), words, rotation=90)
    labels = ["words", *map(str, range(2, len(words) + 1, 2))] if number == 0 else []
    axes.set_yticks(range(0, len(words) + 1, 2) if labels else [], labels)
