"""The scores of the papers in float64 NumPy, one query of one head at a time; no code is shared with regard."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Expected:
    """output (batch, heads, q_len, v_dim), log_sum_exp (batch, heads, q_len), weights (batch, heads, q_len, k_len)."""

    output: np.ndarray
    log_sum_exp: np.ndarray
    weights: np.ndarray


def dot(q, keys, parameters):
    """Luong et al. 2015, section 3.1: h_tᵀ h_s."""
    return keys @ q


def general(q, keys, parameters):
    """Luong et al. 2015, section 3.1: h_tᵀ W h_s."""
    return np.array([q @ parameters["weight"] @ key for key in keys])


def concat(q, keys, parameters):
    """Luong et al. 2015, section 3.1: vᵀ tanh(W [h_t; h_s])."""
    scores = []
    for key in keys:
        hidden = np.tanh(parameters["weight"] @ np.concatenate([q, key]))
        scores.append(parameters["energy"] @ hidden)
    return np.array(scores)


def additive(q, keys, parameters):
    """Bahdanau et al. 2015, appendix A.1.2: vᵀ tanh(W s + U h)."""
    scores = []
    for key in keys:
        hidden = np.tanh(parameters["query_weight"] @ q + parameters["key_weight"] @ key)
        scores.append(parameters["energy"] @ hidden)
    return np.array(scores)


FORMULAS = {"dot": dot, "general": general, "concat": concat, "additive": additive}


def centre(q, parameters, visible):
    """Luong et al. 2015, equation 9: S · sigmoid(v_pᵀ tanh(W_p h_t)), counted from the first visible key."""
    z = parameters["centre_energy"] @ np.tanh(parameters["centre_weight"] @ q)
    count = visible[-1] + 1 - visible[0]
    return visible[0] + count / (1 + np.exp(-z))


def of_head(x, head, heads, kv_heads):
    """The entry of a head in an array whose first axis is heads, kv_heads or 1."""
    if len(x) == 1:
        return x[0]
    return x[head] if len(x) == heads else x[head * kv_heads // heads]


def attend(
    name, q, k, v, parameters, allowed, *, scale=1.0, softcap=None, bias=0.0, window=None
) -> Expected:
    """Attention by the formula `name`; with `window`, local-p around a predicted centre.

    allowed: booleans (batch, heads, q_len, k_len). parameters: arrays whose first axis is heads, kv_heads or 1.
    """
    batch, heads, q_len, _ = q.shape
    kv_heads, k_len = k.shape[1:3]
    bias = np.broadcast_to(bias, (batch, heads, q_len, k_len))
    weights = np.zeros((batch, heads, q_len, k_len))
    log_sum_exp = np.full((batch, heads, q_len), -np.inf)
    output = np.zeros((batch, heads, q_len, v.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, q_len):
        g = h * kv_heads // heads
        own = {name: of_head(x, h, heads, kv_heads) for name, x in parameters.items()}
        keys = np.flatnonzero(allowed[b, h, i])
        visible = np.flatnonzero(allowed[b, h].any(0))
        nearness = np.zeros(k_len)
        if window is not None and len(visible):
            distances = np.arange(k_len) - centre(q[b, h, i], own, visible)
            keys = keys[np.abs(distances[keys]) <= window]
            nearness = -(distances**2) / (2 * (window / 2) ** 2)
        if not len(keys):
            continue
        scores = scale * FORMULAS[name](q[b, h, i], k[b, g, keys], own)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        exponentials = np.exp(scores + bias[b, h, i, keys] + nearness[keys])
        weights[b, h, i, keys] = exponentials / exponentials.sum()
        log_sum_exp[b, h, i] = np.log(exponentials.sum())
        output[b, h, i] = weights[b, h, i] @ v[b, g]
    return Expected(output, log_sum_exp, weights)
