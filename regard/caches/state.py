"""A text so far as sums of constant size, for mechanisms whose weights are products of features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch

from regard.arguments import whole
from regard.caches.given import check_rows, checked_device, checked_path
from regard.caches.summed import Positions, Summed, add, read, write
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.kernels.linear.sight import live_keys
from regard.kinds import shown
from regard.mechanisms.base import Mechanism, joined
from regard.mechanisms.features import Kernelised
from regard.patterns import Causal, Grid, KeySpan, Pattern
from regard.problem import Problem, make_problem


class RecurrentState:
    """Continues causal attention by features in constant memory: it keeps sums over the keys, not the keys.

        S_i = S_{i-1} + φ(k_i) [v_i, 1]ᵀ,   [numerator, denominator]_i = φ(q_i) S_i

    Continuing a text equals computing it at once. Where gradients are recorded they reach back through every call;
    under `torch.no_grad()` a call forgets how its numbers came about. `copy.copy(state)` is another state at the same
    place: nothing is changed in place.

    Args:
        mechanism: one of features, such as LinearTransformer().
        batch: texts that are continued side by side.
        kv_heads: key/value heads.
        head_dim: size of a key.
        v_dim: size of a value; head_dim by default.
        dtype: of the sums, float32 or float64: narrower ones would stop counting after a few hundred keys.
        device: where.

    Raises:
        UnsupportedError: a mechanism whose past is no sum.
        ArgumentError: a dtype or size outside of these.

    Source: Transformers are RNNs, Katharopoulos et al. 2020, equations 16 to 20.

    >>> from regard.mechanisms import LinearTransformer
    >>> state = RecurrentState(LinearTransformer(), batch=1, kv_heads=2, head_dim=4)
    >>> for _ in range(3):
    ...     output = state.attend(torch.ones(1, 8, 1, 4), torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> state.length, output.shape, state.nbytes
    (3, torch.Size([1, 8, 1, 4]), 160)
    """

    def __init__(
        self,
        mechanism: Mechanism,
        batch: int,
        kv_heads: int,
        head_dim: int,
        v_dim: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(mechanism, Kernelised):
            name = str(mechanism) if isinstance(mechanism, Mechanism) else shown(mechanism)
            raise UnsupportedError(
                f"{name} cannot be continued in constant memory; a state keeps sums of features, as of "
                f"LinearTransformer, Performer and RandomFeature: use regard.caches.new_cache"
            )
        batch, kv_heads, head_dim = whole("batch", batch), whole("kv_heads", kv_heads), whole("head_dim", head_dim)
        v_dim = head_dim if v_dim is None else whole("v_dim", v_dim)
        if dtype not in (torch.float32, torch.float64) or min(batch, kv_heads - 1, head_dim - 1, v_dim) < 0:
            raise ArgumentError(
                f"batch {batch}, kv_heads {kv_heads}, head_dim {head_dim}, v_dim {v_dim}, dtype {shown(dtype)}: "
                f"kv_heads and head_dim are 1 or more, none is below 0, and sums are float32 or float64"
            )
        self.mechanism, self.dtype, self.device = mechanism, dtype, checked_device(device)
        self._sizes = {"batch": batch, "kv_heads": kv_heads, "head_dim": head_dim, "v_dim": v_dim}
        self._length = 0
        self._summed: Summed | None = None

    @property
    def length(self) -> int:
        """Positions so far, which is the position of the next one."""
        return self._length

    @property
    def batch(self) -> int:
        """Texts side by side."""
        return self._sizes["batch"]

    @property
    def nbytes(self) -> int:
        """Bytes held, the same from the first position on."""
        return sum(x.nbytes for x in self._summed.tensors.values()) if self._summed else 0

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        pattern: Pattern | str | None = None,
        scale: float | None = None,
        parameters: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Take in the next positions, and return what their queries are told, causally.

        Args:
            q: queries (batch, heads, added, head_dim).
            k: keys (batch, kv_heads, added, head_dim).
            v: values (batch, kv_heads, added, v_dim).
            pattern: causal, which None stands for, & key_span by positions counted from the first call.
            scale: as for `attention`, the same in every call.
            parameters: as for `attention`, for these keys.

        Returns:
            (batch, heads, added, v_dim) in q's dtype.

        Raises:
            ShapeError: tensors that do not fit this state, or would be rounded.
            UnsupportedError: another pattern, or an option that the mechanism does not have.
            After any of them the state is as it was.
        """
        asked = "causal" if pattern is None else pattern
        problem = make_problem(
            q, k, v, pattern=asked, mechanism=self.mechanism, scale=scale, parameters=parameters
        )  # every check
        self._check(q, problem)
        added, start = problem.k_len, self._length
        if not added:
            return q.new_zeros(*q.shape[:3], problem.v_dim)
        grid = Grid(added, start + added, start, range(added), range(start, start + added), q.device)
        wide = (x if x.dtype == self.dtype else x.to(self.dtype) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            new = Positions(*wide, live=live_keys(problem.pattern, grid))
            output, self._summed = add(self.mechanism, self._summed, new, problem.scale, parameters or {})
        self._length += added
        return output.to(q.dtype)

    def crop(self, length: int) -> None:
        """Forget everything (`length` 0) or nothing; a sum cannot be taken apart.

        Raises:
            UnsupportedError: any other length.
        """
        length = whole("the length to crop to", length)
        if length not in (0, self._length):
            raise UnsupportedError(
                f"crop({length}): {self._length} positions are summed up, and no sum of fewer is kept; crop to 0, or "
                f"keep copy.copy(state) where you may want to return to"
            )
        if not length:
            self._length, self._summed = 0, None

    def reorder(self, index: torch.Tensor) -> None:
        """Row i becomes what row `index[i]` was; index: integers (new batch,), as beams need it."""
        check_rows(index, self.batch, "state")
        if self._summed is not None:
            self._summed = self._summed.mapped(lambda x: x.index_select(0, index.to(x.device)))
        self._sizes = {**self._sizes, "batch": len(index)}

    def save(self, path: str | Path) -> None:
        """Write the sums to one safetensors file, in one instant, so that every changed bit is noticed.

        Raises:
            CheckpointError: it could not be written; an old file is unchanged.
        """
        write(checked_path(path), self.mechanism, {**self._sizes, "length": self._length}, self._summed)

    @classmethod
    def load(cls, path: str | Path, mechanism: Mechanism, device: torch.device | str = "cpu") -> Self:
        """A state of this mechanism as `save` wrote it.

        Raises:
            CheckpointError: missing, damaged, of another mechanism, or no state.
        """
        state = cls(mechanism, 1, 1, 1, device=device)
        state._sizes, state._summed = read(checked_path(path), state.mechanism)
        state._length = state._sizes.pop("length")
        if state._summed is not None:
            state.dtype = state._summed.total.dtype
            state._summed = state._summed.mapped(lambda x: x.to(device))
        return state

    def _check(self, q: torch.Tensor, problem: Problem) -> None:
        parts = joined(problem.pattern)
        if Causal() not in parts or any(not isinstance(part, Causal | KeySpan) for part in parts):
            raise UnsupportedError(f"a state is continued by causal, also & key_span, and not by {problem.pattern}")
        if problem.q_len != problem.k_len:
            raise ShapeError(
                f"{problem.q_len} queries but {problem.k_len} keys; a state takes a query and a key for each position"
            )
        for name, size in self._sizes.items():
            if getattr(problem, name) != size:
                raise ShapeError(f"{name} is {getattr(problem, name)} in this call and {size} in this state")
        if q.device.type != self.device.type or torch.promote_types(q.dtype, self.dtype) != self.dtype:
            raise ShapeError(
                f"q is {q.dtype} on {q.device} and this state {self.dtype} on {self.device}; make one with "
                f"dtype={torch.promote_types(q.dtype, self.dtype)}, device={q.device.type!r}"
            )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in {**self._sizes, "length": self._length}.items())
        return f"RecurrentState({self.mechanism}, {sizes}, {str(self.dtype).removeprefix('torch.')})"
