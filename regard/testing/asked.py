"""The oracle as it is asked: its arguments are checked here, because the oracle imports nothing from regard."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.arguments import is_whole, plain, real, whole
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
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
    grad_output: ArrayLike | None = None,
    grad_log_sum_exp: ArrayLike | None = None,
) -> Answer:
    """Attention and, given the gradient of a loss by its output, the gradients by its inputs.

        s = cap(scale q·k) + bias,   w = softmax over the allowed keys,   output = Σ w · factor · v

    Args:
        q: (batch, heads, q_len, head_dim).
        k: (batch, kv_heads, k_len, head_dim).
        v: (batch, kv_heads, k_len, v_dim).
        allowed: booleans that broadcast to (batch, heads, q_len, k_len); True = may look.
        scale: multiplies the dot products.
        softcap: scores become softcap · tanh(scores / softcap).
        bias: four axes that broadcast to (batch, heads, q_len, k_len); -inf hides a pair.
        factors: what each weight is multiplied with after the softmax, as dropout does; likewise broadcast.
        grad_output: (batch, heads, q_len, v_dim).
        grad_log_sum_exp: (batch, heads, q_len).

    >>> one = np.ones((1, 1, 2, 1))
    >>> answer(one, one, one, np.tri(2, dtype=bool), scale=1.0).weights[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    q, k, v = numbers("q", q), numbers("k", k), numbers("v", v)
    shape, v_dim = _weights_shape(q, k, v), v.shape[3]
    scale, softcap = real("scale", scale), None if softcap is None else real("softcap", softcap)
    if softcap is not None and softcap <= 0:
        raise ArgumentError(f"softcap is {softcap}; it is a number above 0, or None for none")
    allowed = _booleans("allowed", allowed)
    _broadcast("allowed", allowed, shape)
    given = {"bias": bias, "factors": factors, "grad_output": grad_output, "grad_log_sum_exp": grad_log_sum_exp}
    arrays = {name: None if value is None else numbers(name, value) for name, value in given.items()}
    for name in ("bias", "factors"):
        if (array := arrays[name]) is not None:
            _broadcast(name, array, shape)
    for name, wanted in (("grad_output", (*shape[:3], v_dim)), ("grad_log_sum_exp", shape[:3])):
        if (array := arrays[name]) is not None and array.shape != wanted:
            raise ShapeError(f"{name} has shape {array.shape}; it needs {wanted}")
    return oracle.answer(q, k, v, allowed, scale=scale, softcap=softcap, **arrays)


def kept_weights(
    dropout: float, seed: int, batch: int, heads: int, q_positions: ArrayLike, k_positions: ArrayLike
) -> NDArray[np.bool_]:
    """Which weights dropout keeps, (batch, heads, q_len, k_len): SplitMix64's finaliser over the pair's place.

    state = mix(state + (counter + 1) · constant) for batch row, head, query and key position, from state = seed.

    Args:
        q_positions: (q_len,) or (batch, q_len).
        k_positions: (k_len,).

    >>> kept_weights(0.5, 7, 2, 3, np.arange(4), np.arange(5)).shape
    (2, 3, 4, 5)
    """
    batch, heads = whole("batch", batch, 0), whole("heads", heads, 0)
    dropout, seed = real("dropout", dropout), plain("seed", seed)
    if not 0 <= dropout <= 1:
        raise ArgumentError(f"dropout is {dropout}; it is a share from 0 to 1")
    if not is_whole(seed):
        raise ArgumentError(f"seed is {shown(seed)}; it needs a whole number")
    rows, keys = _positions("q_positions", q_positions, 2), _positions("k_positions", k_positions, 1)
    _broadcast("q_positions", rows, (batch, rows.shape[-1]))
    return oracle.kept_weights(dropout, seed, batch, heads, rows, keys)


def numbers(name: str, value: ArrayLike) -> Array:
    """The value as an array of float64, if it holds numbers."""
    try:
        if value is not None and np.asarray(value).dtype.kind not in "SU":
            return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ArgumentError(f"{name} is {shown(value)}; it needs numbers that NumPy reads, of a tensor x.detach().cpu()")


def _weights_shape(q: Array, k: Array, v: Array) -> tuple[int, int, int, int]:
    """(batch, heads, q_len, k_len), if q, k and v fit each other."""
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
        if (found := np.asarray(value)).dtype == np.bool_:
            return found
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ArgumentError(f"{name} is {shown(value)}; it needs booleans, True where a query may look")


def _positions(name: str, value: ArrayLike, most_axes: int) -> NDArray[np.int64]:
    found = numbers(name, value)
    exact = np.asarray(value)
    if not 1 <= found.ndim <= most_axes or (found.size and exact.dtype.kind not in "iu"):
        raise ArgumentError(f"{name} is {shown(value)}; it needs whole numbers, one for each position")
    return exact.astype(np.int64)


def _broadcast(name: str, value: NDArray[Any], shape: tuple[int, ...]) -> None:
    try:
        np.broadcast_to(value, shape)
    except ValueError:
        raise ShapeError(f"{name} has shape {value.shape}; it needs one that broadcasts to {shape}") from None
