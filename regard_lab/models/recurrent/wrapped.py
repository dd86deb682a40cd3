"""Which recurrent cells an attention cell can wrap: those of torch, and modules that are called in the same way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.arguments import is_whole, shown
from regard.errors import ArgumentError, ShapeError

Recurrent = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""The state of torch's cells, (batch, hidden), or layers, (layers, batch, hidden); a pair of these for an LSTM."""

KNOWN = "nn.GRUCell, nn.LSTMCell, nn.RNNCell, or nn.GRU, nn.LSTM, nn.RNN with batch_first=True"


def checked_cell(cell: object) -> nn.Module:
    """The cell, if it can run step by step.

    Raises:
        ArgumentError: it cannot; the sentence says what a cell needs.

    >>> checked_cell(nn.Linear(4, 4))
    Traceback (most recent call last):
    regard.errors.ArgumentError: cell is a Linear, which has no input_size; give nn.GRUCell, nn.LSTMCell, nn.RNNCell, or
    nn.GRU, nn.LSTM, nn.RNN with batch_first=True, or a module with the sizes input_size and hidden_size whose call
    cell(x, state) returns the next state
    """
    own = "a module with the sizes input_size and hidden_size whose call cell(x, state) returns the next state"
    if not isinstance(cell, nn.Module):
        raise ArgumentError(f"cell is {shown(cell)}; give {KNOWN}, or {own}")
    if isinstance(cell, nn.RNNBase):
        if cell.bidirectional or not cell.batch_first:
            raise ArgumentError(f"{cell} cannot run step by step; it needs batch_first=True and one direction")
        if cell.proj_size:
            raise ArgumentError(f"{cell} projects its states to {cell.proj_size} numbers; make it without proj_size")
    for name in ("input_size", "hidden_size"):
        if not is_whole(getattr(cell, name, None)):
            raise ArgumentError(f"cell is a {type(cell).__name__}, which has no {name}; give {KNOWN}, or {own}")
    return cell


def check_recurrent(cell: nn.Module, state: Any) -> None:
    """Raise an ArgumentError or a ShapeError unless this is a state of the cell before its first step."""
    parts = state if isinstance(state, tuple) else (state,)
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise ArgumentError(f"the state is {shown(state)}; give a tensor, or a pair of tensors for an LSTM")
    kind, is_pair = type(cell).__name__, isinstance(state, tuple)
    is_lstm = isinstance(cell, nn.LSTMCell | nn.LSTM)
    if isinstance(cell, nn.RNNCellBase | nn.RNNBase) and is_pair != is_lstm:
        needs, got = ("a pair (hidden, memory)", "one tensor") if is_lstm else ("one tensor", "a pair")
        raise ArgumentError(f"the state of {kind} is {needs}, and {got} was given; give {needs}")
    axes = "(layers, batch, hidden_size)" if isinstance(cell, nn.RNNBase) else "(batch, hidden_size)"
    for part in parts:
        shape = tuple(part.shape)
        if len(shape) != axes.count(",") + 1 or shape[-1] != cell.hidden_size:
            raise ShapeError(f"the state of {kind} has shape {shape}; it needs {axes}, of size {cell.hidden_size}")


def check_returned(cell: nn.Module, before: Recurrent, after: object) -> None:
    """Raise an ArgumentError unless what a foreign cell returned is a state like the one it was given."""
    kinds = [state if isinstance(state, tuple) else (state,) for state in (before, after)]
    shapes = [[tuple(part.shape) if isinstance(part, torch.Tensor) else shown(part) for part in one] for one in kinds]
    if isinstance(before, tuple) != isinstance(after, tuple) or shapes[0] != shapes[1]:
        raise ArgumentError(
            f"{type(cell).__name__} was given a state of shape {_listed(shapes[0])} and returned {_listed(shapes[1])}; "
            f"cell(x, state) must return the next state alone, of the same shape. Wrap the cell if it returns more"
        )


def _listed(shapes: list[Any]) -> str:
    return " and ".join(map(str, shapes))
