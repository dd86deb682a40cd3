"""Projections: a product of few rows is the product, and what others set on a projection is honoured."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune as pruning

from regard.backends.native.few_rows import product_of_few_rows
from regard.backends.native.interpreter import interpreter
from regard.errors import UnsupportedError
from regard.layers import LatentAttention, MultiHeadAttention
from regard.layers import projection as projecting
from regard.layers.projection import Projection, apply_projection, project

ROWS = [0, 1, 2, 3, 4, 5, 13, 15, 16, 17]


@pytest.mark.parametrize("out", [1, 63, 64, 131, 193])
@pytest.mark.parametrize("rows", ROWS)
def test_a_projection_is_x_times_the_matrix_plus_the_bias(rows, out):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 1, 29, generator=generator, dtype=torch.float64)
    weight = torch.randn(out, 29, generator=generator, dtype=torch.float64)
    bias = torch.randn(out, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        product = project(x, weight)
        product_and_bias = project(x, weight, bias)
    expected = (x[:, :, None] * weight).sum(-1)
    assert product.shape == (rows, 1, out)
    torch.testing.assert_close(product, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(product_and_bias, expected + bias, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_of_bfloat16_is_as_exact_as_torchs_own(rows, biased):
    x = torch.randn(rows, 31).bfloat16()
    weight = torch.randn(131, 31).bfloat16()
    bias = torch.randn(131).bfloat16() if biased else None
    with torch.no_grad():
        product = project(x, weight, bias)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert product.dtype == torch.bfloat16
    assert ((product.double() - exact).abs() <= exact.abs() / 128 + 0.02).all()


@pytest.mark.skipif(interpreter() is None, reason="only PyTorch multiplies here")
def test_few_rows_are_multiplied_by_the_library_and_only_without_gradients(monkeypatch):
    multiplied = []
    multiply = product_of_few_rows()

    def note_rows(x: torch.Tensor, *matrices: torch.Tensor) -> torch.Tensor:
        product = multiply(x, *matrices)
        multiplied.append((len(x), product is not None))
        return product

    monkeypatch.setattr(projecting, "product_of_few_rows", lambda: note_rows)
    layer = Projection(29, 131)
    for rows in ROWS:
        layer(torch.randn(rows, 29))
    assert multiplied == []
    with torch.no_grad():
        for rows in ROWS:
            layer(torch.randn(rows, 29))
    assert multiplied == [(0, False), *((rows, True) for rows in (1, 2, 3, 4, 5, 13, 15))]


def test_a_projection_learns_as_a_linear_layer_does():
    layer = Projection(7, 131).double()
    x = torch.randn(5, 7, dtype=torch.float64)
    layer(x).pow(2).sum().backward()
    expected = 2 * (x @ layer.weight.T + layer.bias)
    torch.testing.assert_close(layer.weight.grad, expected.T @ x)
    torch.testing.assert_close(layer.bias.grad, expected.sum(0))


# Warnings of torch's own quantisation.
QUANTISING = pytest.mark.filterwarnings(
    "ignore:torch.ao.quantization is deprecated", "ignore::UserWarning:torch.ao"
)


def step_by_step(layer, x):
    """The outputs of a text (batch, length, dim) that a cache continues vector by vector."""
    cache = layer.new_cache(batch=len(x))
    return torch.cat([layer(step, cache=cache) for step in x.split(1, 1)], 1)


def as_linear(layer):
    """The way out that the refusal names."""
    for part in layer.modules():
        if type(part) is Projection:
            part.__class__ = nn.Linear
    return layer


@QUANTISING
@pytest.mark.parametrize(
    "types", [None, {nn.Linear}, {Projection}, {nn.LSTM, nn.Linear}, {"1.to_q"}]
)
def test_pytorchs_dynamic_quantisation_is_refused_where_it_would_leave_projections(types):
    model = nn.Sequential(nn.Linear(64, 64), MultiHeadAttention(dim=64, heads=4)).eval()
    with pytest.raises(UnsupportedError, match=r"holds a Projection.*module.__class__ = torch"):
        torch.ao.quantization.quantize_dynamic(model, types)
    assert type(model[1].to_q) is Projection
    assert not hasattr(model[1].to_q, "qconfig")


@QUANTISING
@torch.no_grad()
def test_quantisation_of_other_types_leaves_projections_and_is_not_refused():
    model = nn.ModuleList([nn.LSTM(64, 64, batch_first=True), MultiHeadAttention(dim=64, heads=4)])
    x = torch.randn(2, 7, 64)
    expected = model[1](x)
    quantised = torch.ao.quantization.quantize_dynamic(model.eval(), {nn.LSTM})
    assert isinstance(quantised[0], torch.ao.nn.quantized.dynamic.LSTM)
    assert type(quantised[1].to_q) is Projection
    assert torch.equal(quantised[1](x), expected)


@QUANTISING
@torch.no_grad()
def test_forget_gates_are_quantised_by_the_way_out_that_the_refusal_names():
    layer = MultiHeadAttention(dim=64, heads=4, pattern="causal", forgetting=True).eval()
    x = torch.randn(2, 7, 64)
    expected = layer(x)
    quantised = torch.ao.quantization.quantize_dynamic(as_linear(layer), {nn.Linear})
    assert isinstance(quantised.to_forget, torch.ao.nn.quantized.dynamic.Linear)
    torch.testing.assert_close(quantised(x), expected, atol=0.05, rtol=0)


@QUANTISING
@torch.no_grad()
def test_quantised_projections_compute_with_and_without_a_cache():
    x = torch.randn(2, 7, 64)
    latent = {"latent_dim": 24, "rope_dim": 8, "head_dim": 20}
    for layer in (
        MultiHeadAttention(dim=64, heads=4, pattern="causal").eval(),
        LatentAttention(dim=64, heads=4, pattern="causal", **latent).eval(),
    ):
        expected = layer(x)
        quantised = torch.ao.quantization.quantize_dynamic(as_linear(layer), {nn.Linear})
        assert isinstance(quantised.to_v, torch.ao.nn.quantized.dynamic.Linear)
        torch.testing.assert_close(layer(x), expected)
        whole = quantised(x)
        torch.testing.assert_close(whole, expected, atol=0.05, rtol=0)
        assert float((whole - expected).abs().max()) > 1e-5
        torch.testing.assert_close(step_by_step(quantised, x), whole, atol=0.05, rtol=0)
    with pytest.raises(UnsupportedError, match=r"absorbed form.*form='expanded'"):
        quantised(x, form="absorbed")


class Adapter(nn.Module):
    """A linear layer beside one that is added, whose weight is that of the first, as peft has it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.added = nn.Linear(base.in_features, base.out_features, bias=False)

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.base(x) + self.added(x)


def add_adapter(layer, name):
    setattr(layer, name, Adapter(getattr(layer, name)))


def add_hook(layer, name):
    getattr(layer, name).register_forward_hook(lambda module, args, output: 2 * output)


def add_pre_hook(layer, name):
    getattr(layer, name).register_forward_pre_hook(lambda module, args: (2 * args[0],))


def set_forward(layer, name):
    projection = getattr(layer, name)
    projection.forward = lambda x: 3 * Projection.forward(projection, x)


def prune(layer, name):
    """Its mask is applied in each call, to a weight that was trained since."""
    pruning.l1_unstructured(getattr(layer, name), "weight", 0.5)
    getattr(layer, name).weight_orig.data.mul_(2)


def normalise_with_hooks(layer, name):
    torch.nn.utils.weight_norm(getattr(layer, name))
    getattr(layer, name).weight_g.data.mul_(2)


def normalise(layer, name):
    torch.nn.utils.parametrizations.weight_norm(getattr(layer, name))
    getattr(layer, name).parametrizations.weight.original0.data.mul_(2)


def normalise_spectrum(layer, name):
    torch.nn.utils.parametrizations.spectral_norm(getattr(layer, name))


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


def parametrise(layer, name):
    torch.nn.utils.parametrize.register_parametrization(getattr(layer, name), "weight", Halved())


def replace_parameter(layer, name):
    """By a tensor, as DataParallel and FSDP do for the time of a call."""
    linear = getattr(layer, name)
    weight = linear.weight.detach() * 2
    del linear.weight
    linear.weight = weight


CHANGES = [
    add_adapter,
    add_hook,
    add_pre_hook,
    set_forward,
    prune,
    normalise_with_hooks,
    normalise,
    normalise_spectrum,
    parametrise,
    replace_parameter,
]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["to_q", "to_k", "to_v", "to_output"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@torch.no_grad()
def test_what_is_set_on_a_projection_is_honoured_whatever_form_computes(change, name):
    """Step by step with a cache, where latents would be absorbed, and at once, expanded."""
    x = torch.randn(1, 5, 12)
    latent = {"latent_dim": 7, "rope_dim": 4, "head_dim": 5}
    for layer in (
        MultiHeadAttention(dim=12, heads=3, pattern="causal").eval(),
        LatentAttention(dim=12, heads=3, pattern="causal", **latent).eval(),
    ):
        plain = layer(x)
        change(layer, name)
        layer.eval()
        options = {"form": "expanded"} if isinstance(layer, LatentAttention) else {}
        whole = layer(x, **options)
        assert float((whole - plain).abs().max()) > 1e-4
        torch.testing.assert_close(step_by_step(layer, x), whole, atol=1e-5, rtol=1e-4)


def test_a_projection_that_was_compiled_is_called_as_it_was_compiled():
    linear = Projection(3, 5)
    linear.compile(backend=lambda graph, _: lambda *inputs: [x * 2 for x in graph(*inputs)])
    x = torch.randn(2, 3)
    torch.testing.assert_close(apply_projection(linear, x), linear.forward(x) * 2)
    torch._dynamo.reset()
