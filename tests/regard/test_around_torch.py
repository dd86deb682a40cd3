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

CALLS = {
    "plain": {},
    "pattern": {"pattern": p.Causal() & p.CausalWindow(4)},
    "options": {
        "softcap": 2.0,
        "dropout": 0.25,
        "dropout_seed": 1,
        "bias": b.ALiBi(),
        "scale": 0.5,
    },
    "sink": {"sink": 0.5, "pattern": "causal"},
    "empty rows": {"pattern": p.KeySpan(3, 3)},
    "padding": {"pattern": p.KeySpan(0, torch.tensor([3, 5]))},
    "linear": {"mechanism": m.LinearTransformer(), "pattern": p.Causal()},
    "performer": {"mechanism": m.Performer(8)},
}


def differences(function, tensors, tangents, step=1e-6):
    """The derivative along the tangents, from two calls near by."""
    ahead, behind = (
        [x + sign * step * t for x, t in zip(tensors, tangents, strict=True)] for sign in (1, -1)
    )
    return (function(*ahead) - function(*behind)) / (2 * step)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_forward_mode_derivatives_are_those_of_differences(options, backend):
    tensors = [x.double() for x in make_qkv()]
    tangents = [torch.randn_like(x) for x in tensors]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return rg.attention(q, k, v, backend=backend, **options)

    wanted = differences(call, tensors, tangents)
    with forward_ad.dual_level():
        output = call(*(forward_ad.make_dual(x, t) for x, t in zip(tensors, tangents, strict=True)))
        found = forward_ad.unpack_dual(output).tangent
    torch.testing.assert_close(
        torch.zeros_like(wanted) if found is None else found, wanted, atol=1e-7, rtol=1e-6
    )
    torch.testing.assert_close(
        torch.func.jvp(call, tuple(tensors), tuple(tangents))[1], wanted, atol=1e-7, rtol=1e-6
    )


@pytest.mark.parametrize("which", ["q", "k", "v", "bias", "sink"])
def test_a_tangent_of_any_tensor_counts(which):
    tensors = dict(zip(("q", "k", "v"), (x.double() for x in make_qkv()), strict=True))
    tensors |= {
        "bias": torch.randn(7, 11, dtype=torch.float64),
        "sink": torch.randn(6, dtype=torch.float64),
    }
    tangent = torch.randn_like(tensors[which])

    def call(x: torch.Tensor) -> torch.Tensor:
        return rg.attention(**{**tensors, which: x})

    with torch.no_grad(), forward_ad.dual_level():
        found = forward_ad.unpack_dual(call(forward_ad.make_dual(tensors[which], tangent))).tangent
    torch.testing.assert_close(
        found, differences(call, [tensors[which]], [tangent]), atol=1e-7, rtol=1e-6
    )


def test_a_backend_without_forward_mode_derivatives_says_which_has_them():
    q, k, v = make_qkv()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        for backend in ("fused", "tiled", "streamed", "decode"):
            with pytest.raises(
                rg.UnsupportedError, match="no forward-mode derivatives; only reference has"
            ):
                rg.attention(dual, k, v, backend=backend)


def test_forward_mode_holds_no_square_of_the_length_unasked():
    q = torch.zeros(1, 1, 40_000, 1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        with pytest.raises(
            rg.UnsupportedError, match=r"only backend 'reference' .*name backend='reference'"
        ):
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
    layer = rg.MultiHeadAttention(8, 2)
    plan = rg.plan_attention(q, k, v)
    for function, tensors in (
        (rg.attention, (q, k, v)),
        (lambda q, k, v: plan.run(q, k, v), (q, k, v)),
        (lambda q, k, v: rg.attention_detail(q, k, v).output, (q, k, v)),
        (layer, (torch.zeros(1, 3, 8),)),
    ):
        with pytest.raises(
            rg.UnsupportedError, match=r"torch.jit.trace.*use torch.export or torch.compile"
        ):
            torch.jit.trace(function, tensors, check_trace=False)
