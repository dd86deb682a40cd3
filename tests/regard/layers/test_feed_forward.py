"""The feed-forward network with gates and without, and its projections: a product of few rows is the product."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.layers import FeedForward, MultiHeadAttention, Projection, project
from regard.layers import feed_forward as module
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


ROWS = [0, 1, 2, 3, 4, 5, 13, 15, 16, 17]


@pytest.mark.parametrize("out", [1, 63, 64, 131, 193])
@pytest.mark.parametrize("rows", ROWS)
def test_a_projection_is_x_times_the_matrix_plus_the_bias(rows, out):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 1, 29, generator=generator, dtype=torch.float64)
    weight = torch.randn(out, 29, generator=generator, dtype=torch.float64)
    bias = torch.randn(out, generator=generator, dtype=torch.float64)
    expected = (x[:, :, None] * weight).sum(-1)
    with torch.no_grad():
        found = project(x, weight)
        assert found.shape == (rows, 1, out)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(project(x, weight, bias), expected + bias, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("biased", [False, True])
def test_of_bfloat16_it_is_as_exact_as_torchs_own(rows, biased):
    x = torch.randn(rows, 31).bfloat16()
    weight = torch.randn(131, 31).bfloat16()
    bias = torch.randn(131).bfloat16()
    bias = bias if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    with torch.no_grad():
        found = project(x, weight, bias)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - exact).abs() <= exact.abs() / 128 + 0.02).all()


def test_few_rows_go_block_by_block_and_only_without_gradients(monkeypatch):
    taken = []
    plain = module._by_blocks
    monkeypatch.setattr(
        module, "_by_blocks", lambda *given: taken.append(len(given[0])) or plain(*given)
    )
    layer = Projection(7, 131)
    for rows in ROWS:
        layer(torch.randn(rows, 7))
    assert taken == []
    with torch.no_grad():
        for rows in ROWS:
            layer(torch.randn(rows, 7))
    assert taken == [4, 5, 13, 15]


def test_it_learns_as_a_linear_layer_does():
    layer = Projection(7, 131).double()
    x = torch.randn(5, 7, dtype=torch.float64)
    layer(x).pow(2).sum().backward()
    expected = 2 * (x @ layer.weight.T + layer.bias)
    torch.testing.assert_close(layer.weight.grad, expected.T @ x)
    torch.testing.assert_close(layer.bias.grad, expected.sum(0))


@pytest.mark.filterwarnings(
    "ignore:torch.ao.quantization is deprecated", "ignore::UserWarning:torch.ao"
)  # torch's own
def test_pytorchs_dynamic_quantisation_replaces_it_once_it_is_a_linear_layer_as_its_docstring_says():
    quantize = torch.ao.quantization.quantize_dynamic
    layer = MultiHeadAttention(dim=64, heads=4, pattern="causal").eval()
    x = torch.randn(2, 7, 64)
    for types in ({nn.Linear}, {Projection}):
        assert all(
            type(one) is Projection
            for one in quantize(layer, types).children()
            if hasattr(one, "weight")
        )
    expected = layer(x)
    for one in layer.modules():
        if type(one) is Projection:
            one.__class__ = nn.Linear
    quantised = quantize(layer, {nn.Linear})
    assert isinstance(quantised.to_q, torch.ao.nn.quantized.dynamic.Linear)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(quantised(x), expected, atol=0.05, rtol=0)
