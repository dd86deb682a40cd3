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
    k_len = k.shape[2]
    v_dim = v.shape[3]
    whole = (batch, heads, q_len, k_len)
    allowed = np.broadcast_to(np.asarray(allowed), whole)
    added = np.zeros((1, 1, 1, 1)) if bias is None else np.asarray(bias, dtype=np.float64)
    bias_shape = added.shape
    added = np.broadcast_to(added, whole)
    factors = np.broadcast_to(
        np.asarray(1.0 if factors is None else factors, dtype=np.float64), whole
    )

    logits = np.full((1, 1), -np.inf) if sink is None else np.asarray(sink, dtype=np.float64)
    sink_shape = logits.shape
    logits = np.broadcast_to(logits, (batch, heads))

    output = np.zeros((batch, heads, q_len, v_dim))
    weights = np.zeros(whole)
    log_sum_exp = np.repeat(logits[..., None], q_len, axis=2)  # that of an empty row
    in_sink = (log_sum_exp > -np.inf).astype(np.float64)
    backward = grad_output is not None or grad_log_sum_exp is not None
    d_output = (
        np.zeros_like(output) if grad_output is None else np.asarray(grad_output, dtype=np.float64)
    )
    d_lse = (
        np.zeros(whole[:3])
        if grad_log_sum_exp is None
        else np.asarray(grad_log_sum_exp, dtype=np.float64)
    )
    dq = np.zeros_like(q)
    dk = np.zeros_like(k)
    dv = np.zeros_like(v)
    d_added = np.zeros(whole)
    d_sink = np.where(in_sink > 0, d_lse, 0)

    for b in range(batch):
        for h in range(heads):
            g = h * kv_heads // heads  # the key/value head of this query head
            live = allowed[b, h] & (added[b, h] != -np.inf)
            rows = np.flatnonzero(live.any(1))
            if len(rows) == 0:
                continue
            # a key that no query may look at is not read
            live, keys = (
                live[rows],
                np.flatnonzero(live.any(0)),
            )
            live = live[:, keys]
            at = np.ix_(rows, keys)
            queries = q[b, h, rows]
            keyed = k[b, g, keys]
            values = v[b, g, keys]
            factor = factors[b, h][at]
            scores = scale * (queries @ keyed.T)
            slope = np.ones_like(scores)
            if softcap is not None:
                squashed = np.tanh(scores / softcap)
                scores = softcap * squashed
                slope = 1 - squashed**2
            scores = np.where(live, scores + added[b, h][at], -np.inf)
            highest = np.maximum(scores.max(1), logits[b, h])
            exponentials = np.exp(scores - highest[:, None])
            of_sink = np.exp(logits[b, h] - highest)
            total = of_sink + exponentials.sum(1)
            w = exponentials / total[:, None]
            weights[b, h][at] = w
            in_sink[b, h, rows] = of_sink / total
            log_sum_exp[b, h, rows] = highest + np.log(total)
            output[b, h, rows] = (w * factor) @ values
            if not backward:
                continue
            d_o = d_output[b, h, rows]
            d_l = d_lse[b, h, rows]
            d_w = factor * (d_o @ values.T)
            mean = (w * d_w).sum(1)
            d_scores = w * (d_w - mean[:, None] + d_l[:, None])
            d_sink[b, h, rows] = in_sink[b, h, rows] * (d_l - mean)
            d_added[b, h][at] = d_scores
            d_scores = d_scores * slope * scale
            dq[b, h, rows] = d_scores @ keyed
            dk[b, g, keys] += d_scores.T @ queries
            dv[b, g, keys] += (w * factor).T @ d_o

    if not backward:
        return Answer(output, log_sum_exp, weights, sink=in_sink)
    d_bias = _summed_to(d_added, bias_shape)
    d_logits = _summed_to(d_sink.sum(-1), sink_shape)
    return Answer(output, log_sum_exp, weights, dq, dk, dv, d_bias, in_sink, d_logits)


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
    place = (
        (np.arange(batch)[:, None, None, None], 0x9E3779B97F4A7C15),
        (np.arange(heads)[None, :, None, None], 0xC2B2AE3D27D4EB4F),
        (rows[:, None, :, None], 0x165667B19E3779F9),
        (np.asarray(k_positions)[None, None, None, :], 0x85EBCA77C2B2AE63),
    )
    state = np.full((1, 1, 1, 1), seed % 2**64, dtype=np.uint64)
    for counter, stride in place:
        state = state + (counter.astype(np.int64) + 1).astype(np.uint64) * np.uint64(stride)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
        state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)) >= np.uint64(int(dropout * 2**53))


def _summed_to(whole: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of a broadcast input: summed over the axes along which it was repeated."""
    whole = whole.sum(tuple(range(whole.ndim - len(shape))))
    for axis, size in enumerate(shape):
        if size == 1:
            whole = whole.sum(axis, keepdims=True)
    return whole
