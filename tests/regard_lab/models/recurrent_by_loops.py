"""Recurrent cells, scores and decoders written from the papers, one vector at a time, in NumPy."""

import numpy as np


def numbers(module):
    """Parameters of a module by name, as arrays."""
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


class CellsByLoops:
    """GRU, LSTM or tanh cells on top of each other, with the weights of one of torch's modules."""

    def __init__(self, module):
        weights = numbers(module)
        self.kind = type(module).__name__.removesuffix("Cell")
        suffixes = (
            [f"_l{layer}" for layer in range(module.num_layers)]
            if hasattr(module, "num_layers")
            else [""]
        )
        self.layers = []
        for end in suffixes:
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            self.layers.append(tuple(weights[name + end] for name in names))

    def step(self, x, states):
        """x: (size,); states: one (h, c) for each layer (c unused but by LSTM)."""
        after = []
        for layer, (h, c) in zip(self.layers, states, strict=True):
            after.append(self._layer_step(layer, x, h, c))
            x = after[-1][0]
        return after

    def _layer_step(self, weights, x, h, c):
        W, U, b, d = weights
        if self.kind == "RNN":
            return np.tanh(W @ x + b + U @ h + d), c
        if self.kind == "GRU":
            (Wr, Wz, Wn), (Ur, Uz, Un), (br, bz, bn), (dr, dz, dn) = (
                np.split(part, 3) for part in (W, U, b, d)
            )
            r = sigmoid(Wr @ x + br + Ur @ h + dr)
            z = sigmoid(Wz @ x + bz + Uz @ h + dz)
            n = np.tanh(Wn @ x + bn + r * (Un @ h + dn))
            return (1 - z) * n + z * h, c
        i, f, g, o = np.split(W @ x + b + U @ h + d, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c


def additive(learned, s, h):
    """Bahdanau et al. 2015, A.1.2: v · tanh(W s + U h)."""
    W, U, v = (learned[name][0] for name in ("query_weight", "key_weight", "energy"))
    return v @ np.tanh(W @ s + U @ h)


def dot(learned, s, h):
    return s @ h


def general(learned, s, h):
    return s @ learned["weight"][0] @ h


def concat(learned, s, h):
    return learned["energy"][0] @ np.tanh(learned["weight"][0] @ np.concatenate([s, h]))


SCORES = {"bahdanau": additive, "luong-dot": dot, "luong-general": general, "luong-concat": concat}


def context(score, learned, query, states, near=None, predicted=None):
    """Σ_j α_j h_j; near: (place, D) of local-m; predicted: D of local-p, here with weights that sum to one."""
    places = np.arange(len(states))
    energies = np.array([score(learned, query, h) for h in states])
    seen = np.ones(len(states), bool)
    if near is not None:
        seen = abs(places - near[0]) <= near[1]
    if predicted is not None:
        W = learned["centre_weight"][0]
        v = learned["centre_energy"][0]
        centre = len(states) * sigmoid(v @ np.tanh(W @ query))
        seen = abs(places - centre) <= predicted
        energies = energies - (places - centre) ** 2 / (2 * (predicted / 2) ** 2)
    if not seen.any():
        return np.zeros(states.shape[1])
    return softmax(energies[seen]) @ states[seen]
