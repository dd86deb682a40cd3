"""Recurrent cells with attention to a memory: Bahdanau's attends before its state update, Luong's after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from regard.arguments import of_kind, shown, whole
from regard.core.tensors import check_tensor
from regard.errors import ArgumentError, ShapeError
from regard.functional import attention, attention_detail
from regard.layers.recording import RecordedLayer, current_recording
from regard.mechanisms import Softmax
from regard.mechanisms.base import Sizes
from regard.mechanisms.scores import Score
from regard.patterns import Full, KeySpan, SlidingWindow
from regard.reprs import brief


@brief
@dataclass(frozen=True)
class Memory:
    """States to attend to, with their projected keys.

    keys: (batch, 1, length, key_dim), the same tensor as `values` if the score does not project keys.
    values: (batch, 1, length, value_dim).
    live: the states that are not padding; None for all.
    """

    keys: torch.Tensor
    values: torch.Tensor
    live: KeySpan | None = None

    @property
    def length(self) -> int:
        return self.values.shape[2]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.keys is self.values else self.keys.nbytes)

    def reorder(self, index: torch.Tensor) -> Memory:
        """The memory whose batch row i is batch row `index[i]` of this one."""
        index = index.to(self.values.device)
        values = self.values.index_select(0, index)
        keys = values if self.keys is self.values else self.keys.index_select(0, index)
        live = self.live
        if live is not None:
            assert isinstance(live.stop, torch.Tensor)
            live = KeySpan(live.start, live.stop[index.to(live.stop.device)])
        return Memory(keys, values, live)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Memory:
        """The memory with one more state: keys (batch, 1, 1, key_dim), values (batch, 1, 1, value_dim)."""
        keys = torch.cat([self.keys, keys], 2)
        values = torch.cat([self.values, values], 2)
        return Memory(keys, values, self.live)


class MemoryAttention(RecordedLayer):
    """Attention with one head from the states of a recurrent cell to a memory; only the score has parameters.

        c_t = Σ_j softmax_j(score(h_t, key_j)) value_j

    Args:
        score: the score of a query and a key.
        window: the largest distance of an allowed state from the query's position (Luong's local-m); None for all.

    >>> from regard.mechanisms import Additive
    >>> attention = MemoryAttention(Additive(query_dim=6, key_dim=4, hidden=8))
    >>> memory = attention.remember(torch.zeros(2, 5, 4))
    >>> attention(torch.zeros(2, 1, 6), memory).shape
    torch.Size([2, 1, 4])
    """

    def __init__(self, score: Score, window: int | None = None) -> None:
        super().__init__()
        needs = "a score of regard.mechanisms, such as Dot() or Additive(...)"
        self.score = of_kind("score", score, Score, needs)
        self.mechanism = Softmax(score.with_projected_keys())
        self.pattern = Full() if window is None else SlidingWindow(2 * window)
        self.learned = score.new_parameters(heads=1, kv_heads=1)
        # Parameters of each step, without those that `remember` has applied to the keys.
        sizes = Sizes(batch=1, heads=1, kv_heads=1, k_len=1)
        self.needed = tuple(self.mechanism.parameter_shapes(sizes))

    def remember(self, states: torch.Tensor, live: KeySpan | None = None) -> Memory:
        """A memory of states (batch, length, key_dim), which are also its values."""
        check_tensor("states", states)
        if states.dim() != 3:
            raise ShapeError(
                f"states have shape {tuple(states.shape)}; give (batch, length, key_dim)"
            )
        values = states[:, None]  # (batch, 1, length, key_dim)
        keys = self.score.project_keys(values, dict(self.learned))
        return Memory(keys, values, live)

    def forward(self, queries: torch.Tensor, memory: Memory, place: int = 0) -> torch.Tensor:
        """The context vector of each query.

        Args:
            queries: (batch, q_len, query_dim).
            memory: made by `remember`.
            place: position of the first query, for a window.

        Returns:
            (batch, q_len, value_dim).
        """
        of_kind("memory", memory, Memory, "what `remember` returns for the states to attend to")
        q = queries[:, None]  # (batch, 1, q_len, query_dim)
        options: dict[str, Any] = {
            "mechanism": self.mechanism,
            "parameters": {name: self.learned[name] for name in self.needed},
            "pattern": self.pattern if memory.live is None else self.pattern & memory.live,
        }
        if self.pattern.compares_positions:
            options["q_start"] = place

        recording = current_recording(self)
        if recording is None:
            contexts = attention(q, memory.keys, memory.values, **options)
            return contexts[:, 0]  # (batch, q_len, value_dim)
        detail = attention_detail(q, memory.keys, memory.values, want=recording.want, **options)
        recording.add(self, detail)
        return detail.output[:, 0]

    def extra_repr(self) -> str:
        return f"{self.score}, pattern={str(self.pattern)!r}"


class OneVector(torch.nn.Module):
    """A replacement for attention: a memory of one vector, returned for every query."""

    def remember(self, states: torch.Tensor, live: KeySpan | None = None) -> Memory:
        """A memory of states (batch, 1, dim)."""
        values = states[:, None]  # (batch, 1, 1, dim)
        return Memory(values, values, live)

    def forward(self, queries: torch.Tensor, memory: Memory, place: int = 0) -> torch.Tensor:
        """The vector for each query (batch, q_len, ·): (batch, q_len, dim)."""
        return memory.values[:, 0].expand(-1, queries.shape[1], -1)


Recurrent = Any
"""The state of torch's cells, (batch, hidden), or layers, (layers, batch, hidden); a pair of these for an LSTM.

The state of other cells: tensors (batch, ...), alone or in nested tuples, lists and dicts.
"""

KNOWN = (
    "nn.GRUCell, nn.LSTMCell, nn.RNNCell, or nn.GRU, nn.LSTM, nn.RNN with batch_first=True, or a module whose call "
    "cell(x, state) returns the next state"
)


def checked_cell(cell: Any) -> nn.Module:
    """The cell, if it can run step by step.

    >>> checked_cell(nn.Linear(4, 4))
    Traceback (most recent call last):
    regard.errors.ArgumentError: cell is a Linear, which cannot be called as cell(x, state); it needs nn.GRUCell,
    nn.LSTMCell, nn.RNNCell, or nn.GRU, nn.LSTM, nn.RNN with batch_first=True, or a module whose call cell(x, state)
    returns the next state
    """
    of_kind("cell", cell, nn.Module, KNOWN)
    if isinstance(cell, nn.RNNBase):
        if cell.bidirectional or not cell.batch_first:
            raise ArgumentError(
                f"{cell} cannot run step by step; it needs batch_first=True and one direction"
            )
        if cell.proj_size:
            raise ArgumentError(
                f"{cell} projects its states to {cell.proj_size} numbers; make it without proj_size"
            )
    try:
        inspect.signature(cell.forward).bind("x", "state")
    except TypeError:
        kind = type(cell).__name__
        raise ArgumentError(
            f"cell is a {kind}, which cannot be called as cell(x, state); it needs {KNOWN}"
        ) from None
    return cell


def check_recurrent(cell: nn.Module, state: Any) -> None:
    """Raise an ArgumentError or a ShapeError unless this is a state of the cell before its first step."""
    parts = tree_leaves(state)
    if not parts or not all(isinstance(part, torch.Tensor) and part.dim() for part in parts):
        raise ArgumentError(
            f"the state is {shown(state)}; give a tensor, a pair of tensors for an LSTM, or for a cell of your own "
            f"tensors (batch, ...) in tuples, lists and dicts"
        )
    if isinstance(cell, nn.RNNCellBase | nn.RNNBase):
        _check_state_of_torch(cell, state, parts)
    elif len({len(part) for part in parts}) > 1:
        raise ShapeError(
            f"the state of {type(cell).__name__} has tensors of shapes {_shapes(state)}; their first axis must be the "
            f"batch"
        )


def _check_state_of_torch(
    cell: nn.RNNCellBase | nn.RNNBase, state: Any, parts: list[torch.Tensor]
) -> None:
    """Raise an ArgumentError or a ShapeError unless this is a state of one of torch's cells or layers."""
    kind = type(cell).__name__
    is_pair = isinstance(state, tuple) and len(state) == 2
    is_lstm = isinstance(cell, nn.LSTMCell | nn.LSTM)
    if is_pair != is_lstm or len(parts) != 1 + is_lstm:
        needs = "a pair (hidden, memory)" if is_lstm else "one tensor"
        got = "a pair" if is_pair else shown(state)
        if isinstance(state, torch.Tensor):
            got = "one tensor"
        raise ArgumentError(f"the state of {kind} is {needs}, and {got} was given; give {needs}")

    axes = ["batch", "hidden_size"]
    if isinstance(cell, nn.RNNBase):
        axes = ["layers", *axes]
    for part in parts:
        shape = tuple(part.shape)
        if len(shape) != len(axes) or shape[-1] != cell.hidden_size:
            raise ShapeError(
                f"the state of {kind} has shape {shape}; it needs ({', '.join(axes)}), of size {cell.hidden_size}"
            )


def check_returned(cell: nn.Module, before: Recurrent, after: object) -> None:
    """Raise an ArgumentError unless what a foreign cell returned is a state like the one it was given."""
    given = _shapes(before)
    returned = _shapes(after)
    if tree_structure(before) != tree_structure(after) or given != returned:
        raise ArgumentError(
            f"{type(cell).__name__} was given a state of shape {given} and returned {returned}; cell(x, state) must "
            f"return the next state alone, of the same shape. Wrap the cell if it returns more"
        )


def _shapes(state: object) -> str:
    shapes = []
    for part in tree_leaves(state):
        is_tensor = isinstance(part, torch.Tensor)
        shapes.append(str(tuple(part.shape)) if is_tensor else shown(part))
    return " and ".join(shapes)


def _is_plain(state: Recurrent) -> bool:
    """Is this a tensor (batch, hidden), or a pair of them?"""
    parts = state if isinstance(state, tuple) else (state,)
    return len(parts) <= 2 and all(map(_is_matrix, parts))


def _is_matrix(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 2


BEGUN = "the CellState that `begin` or an earlier step returned"


def top(state: Recurrent) -> torch.Tensor:
    """The hidden state, (batch, hidden): the state itself, or the first of a pair; of torch's layers the topmost."""
    hidden = state[0] if isinstance(state, tuple) else state
    return hidden[-1] if hidden.dim() == 3 else hidden


@brief
@dataclass(frozen=True)
class CellState:
    """The state of an attention cell between two steps.

    recurrent: the state of the wrapped cell.
    fed: what is joined to the input of the next step, (batch, ·); None for nothing.
    place: the number of steps.
    batch_axis: the axis of the batch in the tensors of `recurrent`, 1 for torch's layers.
    """

    recurrent: Recurrent
    fed: torch.Tensor | None = None
    place: int = 0
    batch_axis: int = 0

    @property
    def nbytes(self) -> int:
        parts = tree_leaves((self.recurrent, self.fed))
        return sum(part.nbytes for part in parts if part is not None)

    def reorder(self, index: torch.Tensor) -> CellState:
        """The state whose batch row i is batch row `index[i]` of this one."""

        def select_rows(part: torch.Tensor) -> torch.Tensor:
            return part.index_select(self.batch_axis, index.to(part.device))

        fed = self.fed
        if fed is not None:
            fed = fed.index_select(0, index.to(fed.device))
        return replace(self, recurrent=tree_map(select_rows, self.recurrent), fed=fed)

    def after(
        self, recurrent: Recurrent, fed: torch.Tensor | None = None, steps: int = 1
    ) -> CellState:
        """The state after more steps."""
        return replace(self, recurrent=recurrent, fed=fed, place=self.place + steps)


class AttentionCell(nn.Module):
    """Base class of recurrent cells that attend to a memory at each step.

    Args:
        cell: nn.GRUCell, nn.LSTMCell or nn.RNNCell; or nn.GRU, nn.LSTM or nn.RNN with batch_first=True. Its input is x,
            joined with the vectors that the subclass adds. A module of your own is called as `cell(x, state)` and
            returns the next state: tensors (batch, ...), alone or in nested tuples, lists and dicts.
        attention: the attention to the memory.
        hidden: a function of the wrapped cell's state that returns the tensor (batch, hidden_size) which attends and is
            put out. By default the state itself, or the first of a pair, and of torch's layers the topmost; a state
            of your own that is neither needs this function.

    Raises:
        ArgumentError: a cell that cannot run step by step.
    """

    def __init__(
        self,
        cell: nn.Module,
        attention: MemoryAttention | OneVector,
        *,
        hidden: Callable[[Recurrent], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        needs = "a MemoryAttention, made from a score such as Dot() or Additive(...)"
        self.attention = of_kind("attention", attention, (MemoryAttention, OneVector), needs)
        self.cell: nn.Module = checked_cell(cell)
        self.hidden = top if hidden is None else hidden
        self.hidden_dim: int | None = getattr(cell, "hidden_size", None)

    def begin(self, recurrent: Recurrent) -> CellState:
        """The state before the first step, given the state of the wrapped cell.

        Raises:
            ArgumentError, ShapeError: a state that the wrapped cell does not have, or whose hidden state is not known.
        """
        check_recurrent(self.cell, recurrent)
        kind = type(self.cell).__name__
        is_layered = isinstance(self.cell, nn.RNNBase)
        if self.hidden is top and not is_layered and not _is_plain(recurrent):
            raise ArgumentError(
                f"the state of {kind} has tensors of shapes {_shapes(recurrent)}; say which one is the query, "
                f"as in {type(self).__name__}(..., hidden=lambda state: state[-1][0])"
            )
        hidden = self.hidden(recurrent)
        size = self.hidden_dim
        if not _is_matrix(hidden) or (size and hidden.shape[1] != size):
            needs = f"(batch, {size or 'hidden_size'})"
            raise ShapeError(
                f"the query from the state of {kind} has shape {_shapes(hidden)}; it needs {needs}"
            )
        return CellState(recurrent, batch_axis=int(is_layered))

    def forward(
        self, x: torch.Tensor, state: CellState, memory: Memory
    ) -> tuple[torch.Tensor, CellState]:
        """One step: x (batch, x_dim) -> output (batch, output_dim), and the state after it."""
        raise NotImplementedError

    def sequence(
        self, xs: torch.Tensor, state: CellState, memory: Memory
    ) -> tuple[torch.Tensor, CellState]:
        """Many steps: xs (batch, length, x_dim) -> outputs (batch, length, output_dim), and the state after them."""
        outputs = []
        for x in xs.unbind(1):
            output, state = self(x, state, memory)
            outputs.append(output)
        return torch.stack(outputs, 1), state

    def _advance(self, x: torch.Tensor, recurrent: Recurrent) -> Recurrent:
        # A cell of a user's own need not say it.
        size = getattr(self.cell, "input_size", x.shape[-1])
        if x.shape[-1] != size:
            raise ShapeError(
                f"x and what is joined to it have {x.shape[-1]} numbers, and {self.cell} takes {size}; "
                f"make it with input_size={x.shape[-1]}"
            )
        if isinstance(self.cell, nn.RNNBase):
            return self.cell(x[:, None], recurrent)[1]
        after = self.cell(x, recurrent)
        if not isinstance(self.cell, nn.RNNCellBase):
            check_returned(self.cell, recurrent, after)
        return after

    @property
    def _returns_every_hidden(self) -> bool:
        """Is this one of torch's layers, which computes the hidden states of all steps in one call?"""
        return isinstance(self.cell, nn.RNNBase) and self.hidden is top

    def _attend(self, query: torch.Tensor, memory: Memory, place: int) -> torch.Tensor:
        return self.attention(query[:, None], memory, place)[:, 0]  # (batch, memory_dim)


class BahdanauCell(AttentionCell):
    """Bahdanau's cell: attends with the previous state, then updates it with the context; its output is [s_t; c_t].

        c_t = Σ_j softmax_j(score(s_{t-1}, h_j)) h_j
        s_t = f(s_{t-1}, [y_{t-1}; c_t])

    The wrapped cell reads x and c_t concatenated, which gives each a matrix of its own. torch's GRU applies its reset
    after the matrix, r ∘ (U s), where the paper has U (r ∘ s), and its z is the paper's 1 - z.

    Source: Neural Machine Translation by Jointly Learning to Align and Translate, Bahdanau et al. 2015, section 3.1,
    equations 4 to 6, and appendix A.2.2.

    >>> from regard.mechanisms import Additive
    >>> cell = BahdanauCell(nn.GRUCell(5 + 4, 6), MemoryAttention(Additive(query_dim=6, key_dim=4, hidden=6)))
    >>> memory = cell.attention.remember(torch.zeros(2, 7, 4))
    >>> output, state = cell(torch.zeros(2, 5), cell.begin(torch.zeros(2, 6)), memory)
    >>> output.shape
    torch.Size([2, 10])
    """

    def forward(
        self, x: torch.Tensor, state: CellState, memory: Memory
    ) -> tuple[torch.Tensor, CellState]:
        of_kind("state", state, CellState, BEGUN)
        context = self._attend(self.hidden(state.recurrent), memory, state.place)
        recurrent = self._advance(torch.cat([x, context], -1), state.recurrent)
        return torch.cat([self.hidden(recurrent), context], -1), state.after(recurrent)


class FixedVectorCell(BahdanauCell):
    """The decoder without attention: the same source vector c at each step; its output is [s_t; c].

        s_t = f(s_{t-1}, [y_{t-1}; c])

    Source: Learning Phrase Representations using RNN Encoder-Decoder, Cho et al. 2014, section 2.2.
    """

    def __init__(
        self, cell: nn.Module, *, hidden: Callable[[Recurrent], torch.Tensor] | None = None
    ) -> None:
        super().__init__(cell, OneVector(), hidden=hidden)

    def sequence(
        self, xs: torch.Tensor, state: CellState, memory: Memory
    ) -> tuple[torch.Tensor, CellState]:
        of_kind("state", state, CellState, BEGUN)
        if not self._returns_every_hidden:
            return super().sequence(xs, state, memory)
        contexts = self.attention(xs, memory)  # (batch, length, memory_dim)
        hidden, recurrent = self.cell(torch.cat([xs, contexts], -1), state.recurrent)
        return torch.cat([hidden, contexts], -1), state.after(recurrent, steps=xs.shape[1])


class LuongCell(AttentionCell):
    """Luong's cell: updates the state, then attends with it; its output is the attentional vector h~_t.

        h_t = f(h_{t-1}, y_{t-1}),  or  f(h_{t-1}, [y_{t-1}; h~_{t-1}])  with input feeding
        c_t = Σ_j softmax_j(score(h_t, h_j)) h_j
        h~_t = tanh(W_c [c_t; h_t])

    Args:
        cell, attention, hidden: as for AttentionCell.
        memory_dim: size of c_t.
        output_dim: size of h~_t.
        hidden_dim: size of h_t; by default the `hidden_size` of the cell.
        input_feeding: whether h~_t is joined to the next step's input.

    Raises:
        ArgumentError: also a cell without `hidden_size`, and no `hidden_dim`.

    Source: Effective Approaches to Attention-based Neural Machine Translation, Luong et al. 2015, equation 5;
    input feeding: section 3.3.

    >>> from regard.mechanisms import General
    >>> attention = MemoryAttention(General(query_dim=6, key_dim=4))
    >>> cell = LuongCell(nn.LSTMCell(5 + 7, 6), attention, memory_dim=4, output_dim=7, input_feeding=True)
    >>> start = cell.begin((torch.zeros(2, 6), torch.zeros(2, 6)))
    >>> cell(torch.zeros(2, 5), start, attention.remember(torch.zeros(2, 3, 4)))[0].shape
    torch.Size([2, 7])
    """

    def __init__(
        self,
        cell: nn.Module,
        attention: MemoryAttention,
        *,
        memory_dim: int,
        output_dim: int,
        hidden_dim: int | None = None,
        input_feeding: bool = False,
        hidden: Callable[[Recurrent], torch.Tensor] | None = None,
    ) -> None:
        super().__init__(cell, attention, hidden=hidden)
        if hidden_dim is not None:
            self.hidden_dim = hidden_dim
        if self.hidden_dim is None:
            raise ArgumentError(
                f"a {type(cell).__name__} has no hidden_size; give hidden_dim, the size of what attends"
            )
        combined_dim = memory_dim + whole("hidden_dim", self.hidden_dim, 1)
        self.combine = nn.Linear(combined_dim, output_dim, bias=False)
        self.input_feeding = input_feeding

    def begin(self, recurrent: Recurrent) -> CellState:
        state = super().begin(recurrent)
        if not self.input_feeding:
            return state
        hidden = self.hidden(recurrent)
        return replace(state, fed=hidden.new_zeros(len(hidden), self.combine.out_features))

    def forward(
        self, x: torch.Tensor, state: CellState, memory: Memory
    ) -> tuple[torch.Tensor, CellState]:
        of_kind("state", state, CellState, BEGUN)
        x = x if state.fed is None else torch.cat([x, state.fed], -1)
        recurrent = self._advance(x, state.recurrent)
        hidden = self.hidden(recurrent)
        context = self._attend(hidden, memory, state.place)
        output = self._combine(context, hidden)
        return output, state.after(recurrent, output if self.input_feeding else None)

    def sequence(
        self, xs: torch.Tensor, state: CellState, memory: Memory
    ) -> tuple[torch.Tensor, CellState]:
        of_kind("state", state, CellState, BEGUN)
        if self.input_feeding or not self._returns_every_hidden:
            return super().sequence(xs, state, memory)
        # Steps do not depend on the attention of earlier steps.
        hidden, recurrent = self.cell(xs, state.recurrent)
        contexts = self.attention(hidden, memory, state.place)  # (batch, length, memory_dim)
        return self._combine(contexts, hidden), state.after(recurrent, steps=xs.shape[1])

    def _combine(self, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The attentional vector h~."""
        return torch.tanh(self.combine(torch.cat([context, hidden], -1)))
