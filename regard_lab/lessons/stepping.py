"""Networks that connect the last word of a text to the first, and the steps that each takes, counted while it runs.

Each network takes a list of words, (1, DIM) each, and returns a list of outputs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.layers import MultiHeadAttention
from regard_lab.lessons.chains import longest_chain, marked_steps, shortest_chain
from regard_lab.lessons.words import normal, seeded

DIM, WIDTH = 8, 3
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
            seeded(seed + layer, nn.Conv1d, DIM, DIM, WIDTH, dilation=gap) for layer, gap in enumerate(apart)
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
        "steps": longest_chain(outputs[-1]), "path": shortest_chain(outputs[-1], words[0]), "gradient": gradient
    }  # fmt: skip


def boxes_of(name: str, length: int, seed: int) -> dict[str, Any]:
    """What a network computes in which step.

    Returns:
        `steps`: their number; `boxes`: of each call, its step and its first and last word; `moves`: how many words
        each step carries a signal from the first word.
    """
    _, made, outputs, calls = _run(name, length, seed)
    boxes = [
        [longest_chain(call), *((at, at) if call.dim() == 2 else (0, length - 1))]  # a cell computes one word
        for at, call in enumerate(calls)
    ]
    return {"steps": longest_chain(outputs[-1]), "boxes": boxes, "moves": _moves(made, length)}


def _run(name: str, length: int, seed: int) -> tuple[list[torch.Tensor], nn.Module, list[torch.Tensor], list[Any]]:
    """Words, network, outputs, and what each call of a cell or layer returned."""
    words, made = _leaves(length, seed), network(name, length, seed)
    calls: list[torch.Tensor] = []
    with marked_steps([unit for unit in made.modules() if isinstance(unit, UNITS)], calls.append):
        outputs = made(words)
    return words, made, outputs, calls


def _leaves(length: int, seed: int) -> list[torch.Tensor]:
    """Random words, each a leaf of its own."""
    return [word[None].clone().requires_grad_() for word in normal(seed + 1, length, DIM)]


def _gradient(outputs: list[torch.Tensor], word: torch.Tensor) -> torch.Tensor:
    """The norm of the gradient of the last output's sum with respect to a word."""
    (gradient,) = torch.autograd.grad(outputs[-1].sum(), word, retain_graph=True, materialize_grads=True)
    return gradient.norm()


def _moves(made: nn.Module, length: int) -> list[int]:
    if isinstance(made, Convolutions):
        return made.back
    return [0] + [1] * (length - 1) if isinstance(made, Recurrent) else [length - 1]
