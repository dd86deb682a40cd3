"""How many steps of a computation have to wait for each other, counted in the graph that autograd keeps.

Autograd records which result was computed from which. A step is marked after each call of a unit, such as a cell or a
layer, so the longest path through the graph is the number of calls that had to wait for each other, and the shortest
path to an input is the number of units between this input and the output.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


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
            waiting += unknown  # the node's turn comes again after theirs
            continue

        waiting.pop()
        leaf = getattr(node, "variable", None)  # of a node that adds up the gradient of a leaf
        if leaf is not None:
            lengths[node] = length_at(leaf)
            continue

        lengths_of_inputs = [lengths[earlier] for earlier in inputs]
        chains = [length for length in lengths_of_inputs if length is not None]
        if not chains:
            lengths[node] = None
        elif isinstance(node, _Step._backward_cls):
            lengths[node] = choose(chains) + 1
        else:
            lengths[node] = choose(chains)
    return lengths[output.grad_fn]
