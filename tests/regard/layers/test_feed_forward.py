"""The feed-forward network, with gates and without."""

import math

import pytest
import torch

from regard.layers import FeedForward
from regard.layers.feed_forward import ACTIVATIONS

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}
GATES = {"swiglu": "silu", "geglu": "gelu"}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.no_grad()
def test_each_activation_is_its_formula(activation, bias):
    part = FeedForward(5, 7, activation, bias=bias).double()
    x = torch.randn(2, 3, 5, dtype=torch.float64)

    def linear(layer, x):
        return x @ layer.weight.T + (layer.bias if bias else 0)

    gated = activation in GATES
    activate = FORMULAS[GATES.get(activation, activation)]
    hidden = linear(part.gate if gated else part.widen, x).apply_(activate)
    if gated:
        hidden = hidden * linear(part.widen, x)
    torch.testing.assert_close(part(x), linear(part.narrow, hidden), rtol=0, atol=1e-13)
    assert all(
        (layer.bias is not None) == bias
        for layer in part.children()
        if isinstance(layer, torch.nn.Linear)
    )
