"""The memory that a recurrent cell attends to, and its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from regard.arguments import of_kind
from regard.core.tensors import check_tensor
from regard.errors import ShapeError
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
        return Memory(torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2), self.live)


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
        self.score = of_kind("score", score, Score, "a score of regard.mechanisms, such as Dot() or Additive(...)")
        self.mechanism = Softmax(score.with_projected_keys())
        self.pattern = Full() if window is None else SlidingWindow(2 * window)
        self.learned = score.new_parameters(heads=1, kv_heads=1)
        # Parameters of each step, without those that `remember` has applied to the keys.
        self.needed = tuple(self.mechanism.parameter_shapes(Sizes(batch=1, heads=1, kv_heads=1, k_len=1)))

    def remember(self, states: torch.Tensor, live: KeySpan | None = None) -> Memory:
        """A memory of states (batch, length, key_dim), which are also its values."""
        check_tensor("states", states)
        if states.dim() != 3:
            raise ShapeError(f"states have shape {tuple(states.shape)}; give (batch, length, key_dim)")
        values = states[:, None]  # (batch, 1, length, key_dim)
        return Memory(self.score.project_keys(values, dict(self.learned)), values, live)

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
        options: dict[str, Any] = {"mechanism": self.mechanism}
        options["parameters"] = {name: self.learned[name] for name in self.needed}
        options["pattern"] = self.pattern if memory.live is None else self.pattern & memory.live
        if self.pattern.compares_positions:
            options["q_start"] = place
        recording = current_recording(self)
        if recording is None:
            return attention(q, memory.keys, memory.values, **options)[:, 0]  # (batch, q_len, value_dim)
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
