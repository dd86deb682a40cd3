"""Forward-mode derivatives and tracing: they work as with PyTorch's own operations, or are refused."""

import pytest
import torch
from torch.autograd import forward_ad

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard.testing import make_qkv

# torch's forward mode loads rules that warn of torch.jit.script
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")

CLOSE = {"atol": 1e-7, "rtol": 1e-6}
CALLS = {
    "plain": {},
    "pattern": {"pattern": p.Causal() & p.CausalWindow(4)},
    "softcap, scale and bias": {"softcap": 2.0, "scale": 0.5, "bias": b.ALiBi()},
    "dropout": {"dropout": 0.25, "dropout_seed": 1},
    "sink": {"sink": 0.5, "pattern": "causal"},
    "empty rows": {"pattern": p.KeySpan(3, 3)},
    "padding": {"pattern": p.KeySpan(0, torch.tensor([3, 5]))},
    "linear": {"mechanism": m.LinearTransformer(), "pattern": p.Causal()},
    "performer": {"mechanism": m.Performer(8)},
}


def differences(function, tensors, tangents, step=1e-6):
    """The derivative along the tangents, from two calls near by."""

    def moved(step):
        return [x + step * t for x, t in zip(tensors, tangents, strict=True)]

    return (function(*moved(step)) - function(*moved(-step))) / (2 * step)


def tangent_of(call, tensors, tangents):
    with forward_ad.dual_level():
        output = call(*map(forward_ad.make_dual, tensors, tangents))
        return forward_ad.unpack_dual(output).tangent


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_forward_mode_derivatives_are_those_of_differences(options, backend):
    tensors = [x.double() for x in make_qkv()]
    tangents = [torch.randn_like(x) for x in tensors]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return rg.attention(q, k, v, backend=backend, **options)

    expected = differences(call, tensors, tangents)
    tangent = tangent_of(call, tensors, tangents)
    if tangent is None:  # of an output of zeros
        tangent = torch.zeros_like(expected)
    torch.testing.assert_close(tangent, expected, **CLOSE)
    _, tangent = torch.func.jvp(call, tuple(tensors), tuple(tangents))
    torch.testing.assert_close(tangent, expected, **CLOSE)


@pytest.mark.parametrize("which", ["q", "k", "v", "bias", "sink"])
def test_a_tangent_of_any_tensor_counts(which):
    tensors = dict(zip("qkv", make_qkv(dtype=torch.float64), strict=True))
    tensors["bias"] = torch.randn(7, 11, dtype=torch.float64)
    tensors["sink"] = torch.randn(6, dtype=torch.float64)
    x = tensors[which]
    direction = torch.randn_like(x)

    def call(x: torch.Tensor) -> torch.Tensor:
        return rg.attention(**{**tensors, which: x})

    with torch.no_grad():
        tangent = tangent_of(call, [x], [direction])
    torch.testing.assert_close(tangent, differences(call, [x], [direction]), **CLOSE)


def test_a_backend_without_forward_mode_derivatives_says_which_has_them():
    q, k, v = make_qkv()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        sentence = "no forward-mode derivatives; only reference has"
        for backend in ("fused", "tiled", "streamed", "decode"):
            with pytest.raises(rg.UnsupportedError, match=sentence):
                rg.attention(dual, k, v, backend=backend)


def test_forward_mode_holds_no_square_of_the_length_unasked():
    q = torch.zeros(1, 1, 40_000, 1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        sentence = "only backend 'reference' .*name backend='reference'"
        with pytest.raises(rg.UnsupportedError, match=sentence):
            rg.attention(dual, q, q)


def test_inside_a_dual_level_a_call_without_tangents_is_planned_as_outside():
    q, k, v = make_qkv()
    wanted = rg.plan_attention(q, k, v)
    with forward_ad.dual_level():
        assert rg.plan_attention(q, k, v) == wanted
        assert rg.plan_attention(forward_ad.make_dual(q, q), k, v).backend == "reference"
    assert rg.plan_attention(q, k, v) == wanted


@pytest.mark.filterwarnings("ignore")  # torch warns of what it traces before it comes to the call
def test_jit_trace_is_refused_and_what_to_use_is_named():
    q, k, v = make_qkv()
    plan = rg.plan_attention(q, k, v)
    traced = [
        (rg.attention, (q, k, v)),
        (lambda q, k, v: plan.run(q, k, v), (q, k, v)),
        (lambda q, k, v: rg.attention_detail(q, k, v).output, (q, k, v)),
        (rg.MultiHeadAttention(8, 2), (torch.zeros(1, 3, 8),)),
    ]
    sentence = "torch.jit.trace.*use torch.export or torch.compile"
    for function, tensors in traced:
        with pytest.raises(rg.UnsupportedError, match=sentence):
            torch.jit.trace(function, tensors, check_trace=False)
