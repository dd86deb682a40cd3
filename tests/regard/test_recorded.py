"""torch.func inside torch.compile, and make_fx and AOTAutograd: right numbers, or a sentence."""

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import regard as rg
from regard.testing import make_qkv

Q, K, V = make_qkv(
    batch=1, heads=2, kv_heads=2, q_len=3, k_len=5, head_dim=7, v_dim=7, dtype=torch.float64
)
MANY = torch.stack([Q, 2 * Q, Q - 1])
LAYER = rg.MultiHeadAttention(dim=6, heads=2, pattern="causal").double()
PARAMETERS = {name: x.detach() for name, x in LAYER.named_parameters()}


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()


def loss(q: torch.Tensor) -> torch.Tensor:
    return rg.attention(q, K, V, pattern="causal").square().sum()


def gradient(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(rg.attention(x, x, x, pattern="causal").square().sum(), x)[0]


def of_layer(scale: torch.Tensor) -> torch.Tensor:
    scaled = {name: scale * x for name, x in PARAMETERS.items()}
    x = torch.ones(1, 3, 6, dtype=torch.float64).cumsum(1)
    return functional_call(LAYER, scaled, (x,)).square().sum()


TRANSFORMED = {
    "grad": (grad(loss), Q),
    "vmap": (vmap(loss), MANY),
    "vmap of grad of a layer": (
        vmap(grad(of_layer)),
        torch.tensor([1.0, -0.3, 2.0], dtype=torch.float64),
    ),
    "jvp": (lambda q: jvp(loss, (q,), (q.flip(2),))[1], Q),
    "hessian": (hessian(loss), Q),
}


@pytest.mark.parametrize(("function", "x"), TRANSFORMED.values(), ids=TRANSFORMED)
def test_a_transform_inside_torch_compile_is_exact_outside_of_the_graph(function, x):
    compiled = torch.compile(function, backend="aot_eager")
    torch.testing.assert_close(compiled(x), function(x), atol=0, rtol=0)


@pytest.mark.parametrize(
    "function", [grad(loss), lambda q: jvp(loss, (q,), (q,))[1]], ids=["grad", "jvp"]
)
def test_one_graph_with_a_transform_is_refused_by_name(function):
    with pytest.raises(Unsupported, match=r"inside torch\.func or forward_ad is not compiled"):
        torch.compile(function, fullgraph=True, backend="aot_eager")(Q)


def test_a_tangent_from_outside_of_a_compiled_function_is_not_lost():
    compiled = torch.compile(loss, backend="aot_eager")
    with forward_ad.dual_level():
        output = compiled(forward_ad.make_dual(Q, Q.flip(2)))
        tangent = forward_ad.unpack_dual(output).tangent
    _, expected = jvp(loss, (Q,), (Q.flip(2),))
    torch.testing.assert_close(tangent, expected)


@pytest.mark.parametrize("before_autograd", [False, True])
def test_make_fx_records_attention_as_one_operation_that_computes_other_numbers_too(
    before_autograd,
):
    loss(Q)  # a kept plan is not used while make_fx records
    graph = make_fx(loss, pre_dispatch=before_autograd)(Q)
    assert torch.ops.regard.attention.default in [node.target for node in graph.graph.nodes]
    torch.testing.assert_close(graph(Q - 1), loss(Q - 1), atol=0, rtol=0)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_the_gradients_of_attention(mode):
    graph = make_fx(gradient, tracing_mode=mode)(Q)
    torch.testing.assert_close(graph(Q - 1), gradient(Q - 1), atol=0, rtol=0)


def test_make_fx_refuses_what_it_would_not_see():
    plan = rg.plan_attention(Q, K, V)
    for function in (lambda q: plan.run(q, K, V), lambda q: rg.attention_detail(q, K, V).output):
        with pytest.raises(rg.UnsupportedError, match="make_fx records PyTorch's operations"):
            make_fx(function)(Q)
    with pytest.raises(rg.UnsupportedError, match="nor recorded by make_fx"):
        make_fx(grad(loss))(Q)
