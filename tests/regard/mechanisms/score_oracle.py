"""The scores of the papers in float64 NumPy, one query of one head at a time; no code is shared with regard."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Expected:
    """output (batch, heads, q_len, v_dim), log_sum_exp (batch, heads, q_len), weights (batch, heads, q_len, k_len)."""

    output: np.ndarray
    log_sum_exp: np.ndarray
    weights: np.ndarray


def dot(q, keys, own):
    """Luong et al. 2015, section 3.1: h_tᵀ h_s."""
    return keys @ q


def general(q, keys, own):
    """Luong et al. 2015, section 3.1: h_tᵀ W h_s."""
    return np.array([q @ own["weight"] @ key for key in keys])


def concat(q, keys, own):
    """Luong et al. 2015, section 3.1: vᵀ tanh(W [h_t; h_s])."""
    return np.array(
        [own["energy"] @ np.tanh(own["weight"] @ np.concatenate([q, key])) for key in keys]
    )


def additive(q, keys, own):
    """Bahdanau et al. 2015, appendix A.1.2: vᵀ tanh(W s + U h)."""
    return np.array(
        [own["energy"] @ np.tanh(own["query_weight"] @ q + own["key_weight"] @ key) for key in keys]
    )


FORMULAS = {"dot": dot, "general": general, "concat": concat, "additive": additive}


def centre(q, own, live):
    """Luong et al. 2015, equation 9: S · sigmoid(v_pᵀ tanh(W_p h_t)), counted from the first live key."""
    z = own["centre_energy"] @ np.tanh(own["centre_weight"] @ q)
    return live[0] + (live[-1] + 1 - live[0]) / (1 + np.exp(-z))


def attend(
    name, q, k, v, parameters, seen, *, scale=1.0, softcap=None, bias=0.0, window=None
) -> Expected:
    """Attention by the formula `name`; with `window`, local-p around a predicted centre.

    seen: booleans (batch, heads, q_len, k_len). parameters: arrays whose first axis is heads, kv_heads or 1.
    """
    (batch, heads, q_len, _), (kv_heads, k_len) = q.shape, k.shape[1:3]
    bias = np.broadcast_to(bias, (batch, heads, q_len, k_len))
    weights = np.zeros((batch, heads, q_len, k_len))
    log_sum_exp = np.full((batch, heads, q_len), -np.inf)
    output = np.zeros((batch, heads, q_len, v.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, q_len):
        g = h * kv_heads // heads
        own = {one: x[{1: 0, heads: h, kv_heads: g}[len(x)]] for one, x in parameters.items()}
        keys = np.flatnonzero(seen[b, h, i])
        live = np.flatnonzero(seen[b, h].any(0))
        near = np.zeros(k_len)
        if window is not None and len(live):
            p = centre(q[b, h, i], own, live)
            keys = keys[np.abs(keys - p) <= window]
            near = -((np.arange(k_len) - p) ** 2) / (2 * (window / 2) ** 2)
        if not len(keys):
            continue
        scores = scale * FORMULAS[name](q[b, h, i], k[b, g, keys], own)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        exponentials = np.exp(scores + bias[b, h, i, keys] + near[keys])
        weights[b, h, i, keys] = exponentials / exponentials.sum()
        log_sum_exp[b, h, i] = np.log(exponentials.sum())
        output[b, h, i] = weights[b, h, i] @ v[b, g]
    return Expected(output, log_sum_exp, weights)
