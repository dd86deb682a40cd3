"""The reference result of attention, in float64 NumPy, one head of one batch row at a time.

It shares no code with regard. The caller passes the allowed pairs as an array from an independent formula, so that
an error in a pattern cannot cancel out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """Outputs, weights before dropout and, if requested, gradients.

    output: (batch, heads, q_len, v_dim).
    log_sum_exp: (batch, heads, q_len).
    weights: (batch, heads, q_len, k_len).
    sink: the weight of the sink, (batch, heads, q_len).
    dq, dk, dv, dbias, dsink: of the shapes of q, k, v, bias and sink.
    """

    output: Array
    log_sum_exp: Array
    weights: Array
    dq: Array | None = None
    dk: Array | None = None
    dv: Array | None = None
    dbias: Array | None = None
    sink: Array | None = None
    dsink: Array | None = None


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
    """The reference result of attention and, if a gradient is given, its gradients.

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
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    batch, heads, q_len, _ = q.shape
    kv_heads = k.shape[1]
    all_rows = (batch, heads, q_len)
    all_pairs = (*all_rows, k.shape[2])

    bias = _array_or(bias, np.zeros((1, 1, 1, 1)))
    sink = _array_or(sink, np.full((1, 1), -np.inf))
    added = np.broadcast_to(bias, all_pairs)
    sinks = np.broadcast_to(sink, (batch, heads))
    factors = np.broadcast_to(_array_or(factors, np.ones(())), all_pairs)
    allowed = np.broadcast_to(np.asarray(allowed), all_pairs) & (added != -np.inf)

    # These are the results of empty rows, until a row is found to have keys.
    output = np.zeros((*all_rows, v.shape[3]))
    weights = np.zeros(all_pairs)
    log_sum_exp = np.repeat(sinks[..., None], q_len, axis=2)
    sink_weights = (log_sum_exp > -np.inf).astype(np.float64)

    backward = grad_output is not None or grad_log_sum_exp is not None
    grad_output = _array_or(grad_output, np.zeros_like(output))
    grad_log_sum_exp = _array_or(grad_log_sum_exp, np.zeros(all_rows))
    dq = np.zeros_like(q)
    dk = np.zeros_like(k)
    dv = np.zeros_like(v)
    d_added = np.zeros(all_pairs)
    d_sinks = np.where(sink_weights > 0, grad_log_sum_exp, 0)  # (batch, heads, q_len)

    for b, h in np.ndindex(batch, heads):
        g = h * kv_heads // heads  # the key/value head of this query head
        rows = np.flatnonzero(allowed[b, h].any(1))
        keys = np.flatnonzero(allowed[b, h].any(0))  # a key that no query may look at is not read
        if len(rows) == 0:
            continue
        pairs = np.ix_(rows, keys)
        head = _Head(
            q=q[b, h, rows],
            k=k[b, g, keys],
            v=v[b, g, keys],
            allowed=allowed[b, h][pairs],
            bias=added[b, h][pairs],
            factors=factors[b, h][pairs],
            sink=sinks[b, h],
            scale=scale,
            softcap=softcap,
        )
        softmax = head.softmax()
        output[b, h, rows] = (softmax.weights * head.factors) @ head.v
        weights[b, h][pairs] = softmax.weights
        sink_weights[b, h, rows] = softmax.sink
        log_sum_exp[b, h, rows] = softmax.log_sum_exp
        if not backward:
            continue
        d_weights = head.factors * (grad_output[b, h, rows] @ head.v.T)
        mean = (softmax.weights * d_weights).sum(1)
        d_row = grad_log_sum_exp[b, h, rows]
        d_scores = softmax.weights * (d_weights - mean[:, None] + d_row[:, None])
        d_sinks[b, h, rows] = softmax.sink * (d_row - mean)
        d_added[b, h][pairs] = d_scores
        d_products = d_scores * softmax.slope * scale
        dq[b, h, rows] = d_products @ head.k
        dk[b, g, keys] += d_products.T @ head.q
        dv[b, g, keys] += (softmax.weights * head.factors).T @ grad_output[b, h, rows]

    if not backward:
        return Answer(output, log_sum_exp, weights, sink=sink_weights)
    d_bias = _summed_to(d_added, bias.shape)
    d_sink = _summed_to(d_sinks.sum(-1), sink.shape)
    return Answer(output, log_sum_exp, weights, dq, dk, dv, d_bias, sink_weights, d_sink)


def _array_or(numbers: ArrayLike | None, default: Array) -> Array:
    return default if numbers is None else np.asarray(numbers, dtype=np.float64)


@dataclass(frozen=True)
class _Head:
    """The rows and keys of one head that have an allowed pair."""

    q: Array  # (rows, head_dim)
    k: Array  # (keys, head_dim)
    v: Array  # (keys, v_dim)
    allowed: NDArray[np.bool_]  # (rows, keys), as the next two
    bias: Array
    factors: Array
    sink: float
    scale: float
    softcap: float | None

    def softmax(self) -> _Softmax:
        scores = self.scale * (self.q @ self.k.T)
        slope = np.ones_like(scores)
        if self.softcap is not None:
            squashed = np.tanh(scores / self.softcap)
            scores = self.softcap * squashed
            slope = 1 - squashed**2
        scores = np.where(self.allowed, scores + self.bias, -np.inf)

        highest = np.maximum(scores.max(1), self.sink)
        exponentials = np.exp(scores - highest[:, None])
        of_sink = np.exp(self.sink - highest)
        total = of_sink + exponentials.sum(1)
        weights = exponentials / total[:, None]
        return _Softmax(weights, of_sink / total, highest + np.log(total), slope)


@dataclass(frozen=True)
class _Softmax:
    """`slope` is the derivative of the capped scores by the scores, (rows, keys)."""

    weights: Array  # (rows, keys)
    sink: Array  # (rows,)
    log_sum_exp: Array  # (rows,)
    slope: Array  # (rows, keys)


def kept_weights(
    dropout: float,
    seed: int,
    batch: int,
    heads: int,
    q_positions: ArrayLike,
    k_positions: ArrayLike,
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
    rows = np.broadcast_to(np.asarray(q_positions), (batch, np.shape(q_positions)[-1]))
    counters = (
        (np.arange(batch)[:, None, None, None], 0x9E3779B97F4A7C15),
        (np.arange(heads)[None, :, None, None], 0xC2B2AE3D27D4EB4F),
        (rows[:, None, :, None], 0x165667B19E3779F9),
        (np.asarray(k_positions)[None, None, None, :], 0x85EBCA77C2B2AE63),
    )
    state = np.full((1, 1, 1, 1), seed % 2**64, dtype=np.uint64)
    for counter, stride in counters:
        state = state + (counter.astype(np.int64) + 1).astype(np.uint64) * np.uint64(stride)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
        state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)) >= np.uint64(int(dropout * 2**53))


def _summed_to(gradient: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of a broadcast input: summed over the axes along which it was repeated."""
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    for axis, size in enumerate(shape):
        if size == 1:
            gradient = gradient.sum(axis, keepdims=True)
    return gradient
