"""The Long Short-Term Memory-Network, an LSTM that attends to its own past."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from regard.arguments import of_kind, whole
from regard.core.tensors import check_tensor
from regard.errors import ShapeError
from regard.mechanisms.scores import Additive
from regard.reprs import brief
from regard_lab.models.recurrent.cells import Memory, MemoryAttention


@brief
@dataclass(frozen=True)
class Tapes:
    """The hidden states and memories of a text so far, and the last summary h~, (batch, hidden)."""

    memory: Memory
    summary: torch.Tensor

    @property
    def hidden(self) -> torch.Tensor:
        """The hidden tape, (batch, length, hidden)."""
        hidden, _ = self.memory.values[:, 0].chunk(2, -1)
        return hidden

    @property
    def memories(self) -> torch.Tensor:
        """The memory tape, (batch, length, hidden)."""
        _, memories = self.memory.values[:, 0].chunk(2, -1)
        return memories

    @property
    def length(self) -> int:
        return self.memory.length

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + self.summary.nbytes

    def reorder(self, index: torch.Tensor) -> Tapes:
        """The tapes whose batch row i is batch row `index[i]` of these."""
        summary = self.summary.index_select(0, index.to(self.summary.device))
        return Tapes(self.memory.reorder(index), summary)


class LongShortTermMemoryNetwork(nn.Module):
    """The LSTMN: an LSTM whose previous state is replaced by attention over all its earlier states.

        a_i = v · tanh(W_h h_i + W_x x_t + W_h~ h~_{t-1}),   s = softmax(a) over i < t
        [h~_t; c~_t] = Σ_i s_i [h_i; c_i]
        i, f, o = σ(W [h~_t; x_t] + b),   ĉ = tanh(W [h~_t; x_t] + b),   each with rows of its own
        c_t = f ∘ c~_t + i ∘ ĉ,   h_t = o ∘ tanh(c_t)

    The score is `Additive` of the query [x_t; h~_{t-1}] and the key h_i; the values are both tapes concatenated. At the
    first step h~ and c~ are zeros.

    Args:
        dim: size of the inputs.
        hidden: size of h and c, and of the hidden layer of the score.

    Source: Long Short-Term Memory-Networks for Machine Reading, Cheng et al. 2016, the section Long Short-Term
    Memory-Network.

    >>> network = LongShortTermMemoryNetwork(dim=5, hidden=6)
    >>> outputs, tapes = network(torch.zeros(2, 3, 5))
    >>> more, tapes = network(torch.zeros(2, 4, 5), tapes)
    >>> more.shape, tapes.length
    (torch.Size([2, 4, 6]), 7)
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        dim = whole("dim", dim, 1)
        hidden = whole("hidden", hidden, 1)
        self.dim = dim
        self.hidden = hidden
        score = Additive(query_dim=dim + hidden, key_dim=hidden, hidden=hidden)
        self.attention = MemoryAttention(score)
        self.gates = nn.Linear(hidden + dim, 4 * hidden)

    def begin(self, batch: int) -> Tapes:
        """Empty tapes for `batch` texts."""
        batch = whole("batch", batch, 0)
        weight = self.gates.weight
        keys = weight.new_zeros(batch, 1, 0, self.hidden)
        values = weight.new_zeros(batch, 1, 0, 2 * self.hidden)
        return Tapes(Memory(keys, values), weight.new_zeros(batch, self.hidden))

    def forward(self, x: torch.Tensor, state: Tapes | None = None) -> tuple[torch.Tensor, Tapes]:
        """Read inputs, continuing from earlier tapes.

        Args:
            x: (batch, length, dim).
            state: the tapes of earlier inputs; empty by default.

        Returns:
            The states h_t, (batch, length, hidden), and the tapes after them.
        """
        check_tensor("x", x)
        if state is not None:
            of_kind("state", state, Tapes, "the tapes that an earlier call returned, or None")
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise ShapeError(f"x has shape {tuple(x.shape)}; give (batch, length, {self.dim})")
        tapes = self.begin(len(x)) if state is None else state
        outputs = []
        for x_t in x.unbind(1):
            h, tapes = self._step(x_t, tapes)
            outputs.append(h)
        if not outputs:
            return x.new_zeros(len(x), 0, self.hidden), tapes
        return torch.stack(outputs, 1), tapes

    def _step(self, x: torch.Tensor, tapes: Tapes) -> tuple[torch.Tensor, Tapes]:
        query = torch.cat([x, tapes.summary], -1)  # (batch, dim + hidden)
        context = self.attention(query[:, None], tapes.memory)[:, 0]  # (batch, 2 * hidden)
        summary, past = context.chunk(2, -1)
        i, f, o, new = self.gates(torch.cat([summary, x], -1)).chunk(4, -1)
        c = f.sigmoid() * past + i.sigmoid() * new.tanh()  # (batch, hidden)
        h = o.sigmoid() * c.tanh()
        keys = self.attention.remember(h[:, None]).keys  # (batch, 1, 1, hidden)
        values = torch.cat([h, c], -1)[:, None, None]  # (batch, 1, 1, 2 * hidden)
        return h, Tapes(tapes.memory.append(keys, values), summary)
