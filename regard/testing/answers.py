"""The oracle with checked arguments, and the budget of rounding errors a result may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from regard.arguments import a_string, is_whole, of_kind, plain, real, shown, whole
from regard.core.tensors import DTYPES, check_tensor
from regard.errors import ArgumentError, ShapeError
from regard.reprs import brief
from regard.testing import oracle
from regard.testing.oracle import Answer, Array


def answer(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    allowed: ArrayLike,
    *,
    scale: float,
    softcap: float | None = None,
    bias: ArrayLike | None = None,
    factors: ArrayLike | None = None,
    sink: ArrayLike | None = None,
    grad_output: ArrayLike | None = None,
    grad_log_sum_exp: ArrayLike | None = None,
) -> Answer:
    """The reference result of attention and, if `grad_output` is given, its gradients.

        s = cap(scale q·k) + bias,   w = exp(s) / (exp(sink) + Σ exp(s)) over the allowed keys,   output = Σ w factor v

    Args:
        q: (batch, heads, q_len, head_dim).
        k: (batch, kv_heads, k_len, head_dim).
        v: (batch, kv_heads, k_len, v_dim).
        allowed: booleans that broadcast to (batch, heads, q_len, k_len); True = allowed.
        scale: multiplies the dot products.
        softcap: scores become softcap · tanh(scores / softcap).
        bias: four axes that broadcast to (batch, heads, q_len, k_len); -inf masks a pair.
        factors: multiply the weights after the softmax, as dropout does; broadcast likewise.
        sink: broadcasts to (batch, heads); -inf, which adds nothing to the sum, by default.
        grad_output: gradient of the loss by the output, (batch, heads, q_len, v_dim).
        grad_log_sum_exp: gradient of the loss by the log-sum-exp, (batch, heads, q_len).

    >>> one = np.ones((1, 1, 2, 1))
    >>> answer(one, one, one, np.tri(2, dtype=bool), scale=1.0).weights[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    q, k, v = numbers("q", q), numbers("k", k), numbers("v", v)
    shape, v_dim = _weights_shape(q, k, v), v.shape[3]
    scale, softcap = real("scale", scale), None if softcap is None else real("softcap", softcap)
    if softcap is not None and softcap <= 0:
        raise ArgumentError(f"softcap is {softcap}; give a number above 0, or None")
    allowed = _booleans("allowed", allowed)
    _broadcast("allowed", allowed, shape)
    given = {
        "bias": bias,
        "factors": factors,
        "sink": sink,
        "grad_output": grad_output,
        "grad_log_sum_exp": grad_log_sum_exp,
    }
    arrays = {name: None if value is None else numbers(name, value) for name, value in given.items()}
    for name in ("bias", "factors"):
        if (array := arrays[name]) is not None:
            _broadcast(name, array, shape)
    if arrays["sink"] is not None:
        _broadcast("sink", arrays["sink"], shape[:2])
    for name, wanted in (("grad_output", (*shape[:3], v_dim)), ("grad_log_sum_exp", shape[:3])):
        if (array := arrays[name]) is not None and array.shape != wanted:
            raise ShapeError(f"{name} has shape {array.shape}; it needs {wanted}")
    return oracle.answer(q, k, v, allowed, scale=scale, softcap=softcap, **arrays)


def kept_weights(
    dropout: float, seed: int, batch: int, heads: int, q_positions: ArrayLike, k_positions: ArrayLike
) -> NDArray[np.bool_]:
    """Which weights dropout keeps, (batch, heads, q_len, k_len), by SplitMix64's finaliser.

    Starting from state = seed, each of batch row, head, query position and key position i updates it:
    state = mix(state + (i + 1) · constant).

    Args:
        q_positions: (q_len,) or (batch, q_len).
        k_positions: (k_len,).

    >>> kept_weights(0.5, 7, 2, 3, np.arange(4), np.arange(5)).shape
    (2, 3, 4, 5)
    """
    batch, heads = whole("batch", batch, 0), whole("heads", heads, 0)
    dropout, seed = real("dropout", dropout), plain("seed", seed)
    if not 0 <= dropout <= 1:
        raise ArgumentError(f"dropout is {dropout}; give a share from 0 to 1")
    if not is_whole(seed):
        raise ArgumentError(f"seed is {shown(seed)}; give an integer")
    rows, keys = _positions("q_positions", q_positions, 2), _positions("k_positions", k_positions, 1)
    _broadcast("q_positions", rows, (batch, rows.shape[-1]))
    return oracle.kept_weights(dropout, seed, batch, heads, rows, keys)


def numbers(name: str, value: ArrayLike) -> Array:
    """The value as a float64 array; an ArgumentError unless it holds numbers."""
    try:
        if value is not None and np.asarray(value).dtype.kind not in "SU":
            return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ArgumentError(f"{name} is {shown(value)}; give numbers that NumPy reads; for a tensor, x.detach().cpu()")


def _weights_shape(q: Array, k: Array, v: Array) -> tuple[int, int, int, int]:
    """(batch, heads, q_len, k_len); a ShapeError unless q, k and v fit."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ShapeError(f"{name} has shape {x.shape}; it needs four axes: (batch, heads, length, dim)")
    (batch, heads, q_len, head_dim), kv_heads = q.shape, k.shape[1]
    fits = k.shape[0] == batch and k.shape[3] == head_dim and v.shape[:3] == k.shape[:3]
    if not fits or not kv_heads or heads % kv_heads:
        raise ShapeError(
            f"q {q.shape}, k {k.shape} and v {v.shape} do not fit: q and k share batch and head_dim, k and v all but "
            f"the last axis, and heads are a multiple of kv_heads"
        )
    return batch, heads, q_len, k.shape[2]


def _booleans(name: str, value: ArrayLike) -> NDArray[np.bool_]:
    try:
        if (array := np.asarray(value)).dtype == np.bool_:
            return array
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ArgumentError(f"{name} is {shown(value)}; give booleans, True for allowed pairs")


def _positions(name: str, value: ArrayLike, most_axes: int) -> NDArray[np.int64]:
    array = numbers(name, value)
    exact = np.asarray(value)
    if not 1 <= array.ndim <= most_axes or (array.size and exact.dtype.kind not in "iu"):
        raise ArgumentError(f"{name} is {shown(value)}; give integers, one for each position")
    return exact.astype(np.int64)


def _broadcast(name: str, value: NDArray[Any], shape: tuple[int, ...]) -> None:
    try:
        np.broadcast_to(value, shape)
    except ValueError:
        raise ShapeError(f"{name} has shape {value.shape}; give one that broadcasts to {shape}") from None


@brief
@dataclass(frozen=True)
class Budget:
    """Bounds on the rounding error of outputs and gradients.

    With Q, K the largest norms of a row of q and k, B the largest |bias| plus the largest |sink|,
    D the largest |grad · v| of any pair, R the most weight that one key (or one entry of bias or sink) receives over
    all queries, and
    L = 1 + |scale| Q K + B (how far rounding moves a weight, in units of eps), errors stay below
    eps(result) · max|result| + eps(computing) times

        output  L max|v|        log_sum_exp  L        dq  2 L D |scale| K
        dv  L R max|grad|       dk  2 L D |scale| Q R        dbias, dsink  2 L D R

    where eps(computing) is that of float32 for half dtypes and float32, and twice that of float64 for float64, because
    the expected numbers are rounded in float64 too. Hardware that multiplies bfloat16 rounds the weights and the bias
    to bfloat16 first, which adds the same once more with eps(bfloat16) and
    L = 1 + B.

    >>> q = torch.ones(1, 1, 1, 4)
    >>> Budget.of(q, q, q, torch.float32, scale=0.5).bound("output", np.ones(1)) == 4 * torch.finfo(torch.float32).eps
    True
    """

    rounding: float
    units: dict[str, float]

    @classmethod
    def of(
        cls,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dtype: torch.dtype,
        *,
        scale: float,
        bias: torch.Tensor | None = None,
        sink: torch.Tensor | float | None = None,
        grad_output: torch.Tensor | None = None,
        dropout: float = 0.0,
        answer: Answer | None = None,
    ) -> Budget:
        """The budget of a call; bounds on gradients need the oracle's answer."""
        _check(dtype, q=q, k=k, v=v, bias=bias, grad_output=grad_output)
        of_kind("answer", answer, (Answer, type(None)), "the oracle's Answer, or None")
        scale, dropout = real("scale", scale), real("dropout", dropout)
        if not 0 <= dropout < 1:
            raise ArgumentError(f"dropout is {dropout}; give 0 or more, below 1")
        grown = 1 / (1 - dropout)
        largest_bias = 0.0 if bias is None else _largest(torch.where(bias.isfinite(), bias, 0))
        if sink is not None:
            logits = numbers("sink", sink.detach().cpu() if isinstance(sink, torch.Tensor) else sink)
            largest_bias += _largest(torch.from_numpy(logits).nan_to_num(neginf=0))
        computing = torch.promote_types(dtype, torch.float32)
        eps = torch.finfo(computing).eps * (2 if computing == torch.float64 else 1)  # the oracle rounds too
        score = (1 + abs(scale) * _norm(q) * _norm(k) + largest_bias) * eps
        if dtype == torch.bfloat16:
            score += (1 + largest_bias) * torch.finfo(dtype).eps
        units = {"output": score * _largest(v) * grown, "log_sum_exp": score}
        if grad_output is not None and answer is not None:
            repeated = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1).double()
            pull = 2 * score * grown * _largest(grad_output.double() @ repeated.mT)
            received = max(1.0, _most(answer.weights.sum(2)) * q.shape[1] / k.shape[1])
            units |= {
                "dq": pull * abs(scale) * _norm(k),
                "dk": pull * abs(scale) * _norm(q) * received,
                "dv": score * grown * _largest(grad_output) * received,
            }
            if bias is not None:
                axes = tuple(axis for axis, size in enumerate((1,) * (4 - bias.dim()) + tuple(bias.shape)) if size == 1)
                units["dbias"] = pull * max(1.0, _most(answer.weights.sum(axes)))
            if isinstance(sink, torch.Tensor) and answer.sink is not None:
                shape = (1,) * (2 - sink.dim()) + tuple(sink.shape)
                axes = tuple(axis for axis, size in enumerate((*shape, 1)) if size == 1)
                units["dsink"] = pull * max(1.0, _most(answer.sink.sum(axes)))
        return cls(torch.finfo(dtype).eps, units)

    def bound(self, name: str, expected: Array) -> float:
        """The largest error that the result `name` may have when the oracle's is `expected`."""
        if a_string("name", name) not in self.units:
            raise ArgumentError(f"name is {name!r}; this budget has bounds for {', '.join(self.units)}")
        expected = numbers("expected", expected)
        finite = expected[np.isfinite(expected)]
        return self.units[name] + self.rounding * _most(np.abs(finite))

    def share(self, name: str, found: torch.Tensor, expected: Array) -> float:
        """The largest error over its bound: at most 1 is within the budget; inf if only one result is finite."""
        check_tensor("found", found)
        expected, allowed = numbers("expected", expected), self.bound(name, expected)
        if found.numel() != expected.size:
            raise ShapeError(f"found has shape {tuple(found.shape)} and expected {expected.shape}; they need one size")
        got = found.detach().double().cpu().numpy().reshape(expected.shape)
        equal = got == expected  # infinities included
        if equal.all():
            return 0.0
        gap = np.abs(got[~equal] - expected[~equal]).max()
        return float(gap / allowed) if np.isfinite(gap) else float("inf")


def _check(dtype: torch.dtype, **named: Any) -> None:
    """Raise a RegardError unless the given tensors are dense and fit."""
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype is {shown(dtype)}; it needs one of {', '.join(map(str, DTYPES))}")
    for name, tensor in named.items():
        if tensor is not None or name in ("q", "k", "v"):
            check_tensor(name, tensor)
            if name != "bias" and tensor.dim() != 4:
                raise ShapeError(f"{name} has shape {tuple(tensor.shape)}; it needs four axes")


def _norm(x: torch.Tensor) -> float:
    return float(x.detach().double().norm(dim=-1).max()) if x.numel() else 0.0


def _largest(x: torch.Tensor) -> float:
    return float(x.detach().double().abs().max()) if x.numel() else 0.0


def _most(x: Array) -> float:
    return float(np.max(x)) if x.size else 0.0
