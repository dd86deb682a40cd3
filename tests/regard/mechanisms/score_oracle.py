"""The scores of the papers in float64 NumPy, one query of one head at a time; no code is shared with regard."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ExpectedScores:
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


@dataclass(frozen=True)
class Options:
    """What a call gives besides its tensors; with `window`, local-p around a predicted centre."""

    scale: float = 1.0
    softcap: float | None = None
    bias: np.ndarray | float = 0.0
    window: int | None = None

    def capped(self, scores):
        scores = self.scale * scores
        if self.softcap is None:
            return scores
        return self.softcap * np.tanh(scores / self.softcap)


def keys_near_centre(q, parameters, keys, visible, window):
    """The allowed keys inside of the window, and -(j - p)² / (2 σ²) of each key, equation 10."""
    last = visible[-1] + 1
    distances = np.arange(last) - centre(q, parameters, visible)
    nearness = -(distances**2) / (2 * (window / 2) ** 2)
    keys = keys[np.abs(distances[keys]) <= window]
    return keys, nearness[keys]


def attend(name, q, k, v, parameters, allowed, options) -> ExpectedScores:
    """Attention by the formula `name`.

    allowed: booleans (batch, heads, q_len, k_len). parameters: arrays whose first axis is heads, kv_heads or 1.
    """
    batch, heads, q_len, _ = q.shape
    kv_heads, k_len = k.shape[1:3]
    bias = np.broadcast_to(options.bias, (batch, heads, q_len, k_len))
    weights = np.zeros((batch, heads, q_len, k_len))
    log_sum_exp = np.full((batch, heads, q_len), -np.inf)
    output = np.zeros((batch, heads, q_len, v.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, q_len):
        g = h * kv_heads // heads
        query = q[b, h, i]
        learned = {part: of_head(x, h, heads, kv_heads) for part, x in parameters.items()}
        keys = np.flatnonzero(allowed[b, h, i])
        nearness = 0.0
        if options.window is not None and len(keys):
            visible = np.flatnonzero(allowed[b, h].any(0))
            keys, nearness = keys_near_centre(query, learned, keys, visible, options.window)
        if not len(keys):
            continue
        scores = options.capped(FORMULAS[name](query, k[b, g, keys], learned))
        exponentials = np.exp(scores + bias[b, h, i, keys] + nearness)
        weights[b, h, i, keys] = exponentials / exponentials.sum()
        log_sum_exp[b, h, i] = np.log(exponentials.sum())
        output[b, h, i] = weights[b, h, i] @ v[b, g]
    return ExpectedScores(output, log_sum_exp, weights)
