"""Counts units that must run one after the other, such as cells or layers, in the graph that autograd records.

Autograd records which result was computed from which. A step is marked after each call of a unit, so the longest path
through the graph is the number of calls that had to wait for each other, and the shortest path to an input is the
number of units between this input and the output.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
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

    hooks = [unit.register_forward_hook(mark) for unit in units]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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
        output, lambda lengths: min(lengths, default=None), lambda node: 0 if _variable(node) is leaf else None
    )


def _through_graph(
    output: torch.Tensor, choose: Callable[[list[int]], int | None], of_leaf: Callable[[Any], int | None]
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
            length = choose([length for earlier in before if (length := lengths[earlier]) is not None])
            lengths[node] = None if length is None else length + isinstance(node, _Step._backward_cls)
    return lengths[output.grad_fn]


def _variable(node: Any) -> torch.Tensor | None:
    """The leaf whose gradient the node adds up; None for another node."""
    return getattr(node, "variable", None)
