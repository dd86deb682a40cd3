"""The output of an attention call together with what was asked about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.plan import Plan


@dataclass(frozen=True)
class TopKeysFound:
    """indices: (batch, heads, q_len, count), -1 where there are fewer keys; weights: likewise, 0 there."""

    indices: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Result:
    """What a backend hands back; statistics that were not asked for are None.

    output: (batch, heads, q_len, v_dim), log_sum_exp, entropy and distance: (batch, heads, q_len),
    received: (batch, heads, keys), weights: (batch, heads, q_len, keys), chosen_weights: likewise of chosen rows.
    """

    output: torch.Tensor
    log_sum_exp: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    received: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    top_keys: TopKeysFound | None = None
    distance: torch.Tensor | None = None
    chosen_weights: torch.Tensor | None = None

    def on_all_keys(self, keys: range, k_len: int) -> Result:
        """Statistics counted over `keys`, put back where those keys stand among all."""
        if len(keys) == k_len:
            return self
        before, after = keys.start, k_len - keys.stop
        pad = lambda found: None if found is None else torch.nn.functional.pad(found, (before, after))  # noqa: E731
        top = self.top_keys
        if top is not None:
            top = TopKeysFound(torch.where(top.indices < 0, top.indices, top.indices + before), top.weights)
        return replace(
            self, received=pad(self.received), weights=pad(self.weights), top_keys=top,
            chosen_weights=pad(self.chosen_weights),
        )  # fmt: skip


class AttentionDetail:
    """Output, plan and statistics of one call; a statistic that was not asked for raises instead of being None."""

    def __init__(self, result: Result, plan: Plan) -> None:
        self._result = result
        self.plan = plan

    @property
    def output(self) -> torch.Tensor:
        """(batch, heads, q_len, v_dim), in q's dtype."""
        return self._result.output

    @property
    def log_sum_exp(self) -> torch.Tensor:
        """Logarithm of the sum of exponentiated scores, (batch, heads, q_len); -inf for a row with no key."""
        return self._asked("log_sum_exp")

    @property
    def entropy(self) -> torch.Tensor:
        """Entropy of each row of weights in nats, (batch, heads, q_len); 0 for a row with no key."""
        return self._asked("entropy")

    @property
    def received(self) -> torch.Tensor:
        """Sum of the weights that each key received over the queries, (batch, heads, k_len)."""
        return self._asked("received")

    @property
    def distance(self) -> torch.Tensor:
        """Mean of |k_pos - q_pos| under each row of weights, (batch, heads, q_len); 0 for a row with no key."""
        return self._asked("distance")

    @property
    def weights(self) -> torch.Tensor:
        """Weights before dropout, (batch, heads, q_len, k_len)."""
        return self._asked("weights")

    @property
    def chosen_weights(self) -> torch.Tensor:
        """Those of the rows and heads named in `weights_of`, in that order: (batch, heads named, rows named, k_len)."""
        return self._asked("chosen_weights")

    @property
    def top_keys(self) -> TopKeysFound:
        """The keys with the largest weights of each query, and those weights."""
        return self._asked("top_keys")

    def _asked(self, name: str) -> Any:
        found = getattr(self._result, name)
        if found is None:
            name = "weights_of" if name == "chosen_weights" else name
            raise RegardError(f"{name} was not asked for; add it to want= (asked: {self.plan.asked})")
        return found

    def __repr__(self) -> str:
        return f"AttentionDetail(output {tuple(self.output.shape)}, {self.plan.asked}, by {self.plan.backend})"
