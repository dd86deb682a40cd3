"""Second derivatives of mechanisms are true, and what has none is refused; those of softmax are the fuzzer's."""

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from asking import LEARNING, among, ask, cut
from mechanism_cells import MECHANISMS, make_call

import regard as rg
from regard import mechanisms as m
from regard.backends import flash
from regard.backends.scores import plain
from regard.backends.second_order import first_order_only
from regard.testing import make_qkv

BACKENDS = [name for name in LEARNING if name != "reference"]  # reference is plain autograd
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 5, "k_len": 7, "head_dim": 3, "v_dim": 2}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    cut(monkeypatch)
    for module, name in ((plain, "NUMBERS"), (flash, "_PIECE")):
        monkeypatch.setattr(module, name, 64)


def doubly_right(call: Any, inputs: list[torch.Tensor]) -> None:
    """The second derivative along a random direction is the difference quotient of the first one.

    First derivatives are compared with the oracle elsewhere. The direction moves every input and every gradient that
    arrives, so that one number depends on all second derivatives at once.
    """
    generator = torch.Generator().manual_seed(11)

    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, generator=generator, dtype=x.dtype)

    arriving = [like(x).requires_grad_() for x in call(*inputs)]
    moved = [*inputs, *arriving]
    weights = [like(x) for x in inputs]
    direction = [like(x) for x in moved]

    def slope(graph: bool) -> torch.Tensor:
        first = torch.autograd.grad(
            call(*inputs), inputs, arriving, create_graph=graph, materialize_grads=True
        )
        return dot(first, weights)

    def moved_by(step: float) -> float:
        with torch.no_grad():
            for x, along in zip(moved, direction, strict=True):
                x.add_(along, alpha=step)
        return slope(graph=False).item()

    second = torch.autograd.grad(slope(graph=True), moved, materialize_grads=True)
    derivative = dot(second, direction).item()
    size = dot([x.abs() for x in second], [x.abs() for x in direction]).item()
    step = 1e-5
    quotient = (moved_by(step) - moved_by(-2 * step)) / (2 * step)
    moved_by(step)
    assert abs(derivative - quotient) <= 1e-6 * (1 + size), (derivative, quotient)


def dot(tensors: Iterable[torch.Tensor], weights: Iterable[torch.Tensor]) -> torch.Tensor:
    pairs = zip(tensors, weights, strict=True)
    return torch.stack([(x * weight).sum() for x, weight in pairs]).sum()


def calls_of(name: str, causal: bool) -> list[tuple[Any, list[torch.Tensor]]]:
    """A call of each backend that computes a mechanism with gradients, and its inputs."""
    call = make_call(name, requires_grad=True, batch=1, heads=2, kv_heads=1)
    options = {**call.options, "pattern": "causal" if causal or call.always_causal else None}
    if causal and isinstance(call.mechanism, m.Linformer):
        options["pattern"] = rg.patterns.KeySpan(2, 9)
    want = ("log_sum_exp",) if "log_sum_exp" in call.mechanism.statistics else ()

    def results(backend: str, *_: torch.Tensor) -> list[torch.Tensor]:
        detail = ask(backend, *call.tensors, want=want, **options)
        if not want:
            return [detail.output]
        # A log-sum-exp of -inf has no difference.
        log_sum_exp = detail.log_sum_exp
        return [detail.output, log_sum_exp.masked_fill(~log_sum_exp.isfinite(), 0)]

    backends = among((*BACKENDS, "linear", "linformer", "lsh"), *call.tensors, **options)
    return [(partial(results, backend), call.learning) for backend in backends]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_second_derivatives_of_every_mechanism_are_true(name, causal):
    calls = calls_of(name, causal)
    assert calls
    for call, inputs in calls:
        doubly_right(call, inputs)


@pytest.mark.slow
def test_gradgradcheck_finds_the_same():
    checked = 0
    for name, causal in itertools.product(MECHANISMS, (False, True)):
        for call, inputs in calls_of(name, causal):
            torch.autograd.gradgradcheck(call, inputs, fast_mode=True)
            checked += 1
    print(f"\n{checked} calls checked")


def strided_call(backend: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k and v that learn, and their output."""
    leaves = [x.requires_grad_() for x in make_qkv(**SIZES, dtype=torch.float64)]
    return leaves, rg.attention(*leaves, pattern="strided(2, local=false)", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_is_asked_for_a_graph_has_one_even_where_none_arrives(backend):
    (q, k, _), output = strided_call(backend)
    (gradient,) = torch.autograd.grad(output.sum(), q, create_graph=True)
    assert gradient.requires_grad
    (second,) = torch.autograd.grad(gradient.square().sum(), k)
    assert second.abs().max() > 0


def test_a_plan_and_a_layer_have_second_derivatives_too():
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    layer = rg.MultiHeadAttention(
        dim=8, heads=2, kv_heads=1, pattern="causal & causal_window(3)"
    ).double()
    assert torch.autograd.gradgradcheck(layer, [x], fast_mode=True)
    q = torch.randn(1, 1, 5, 3, dtype=torch.float64, requires_grad=True)
    plan = rg.plan_attention(q, q, q, pattern="causal", backend="fused")
    assert torch.autograd.gradgradcheck(lambda x: plan.run(x, x, x), [q], fast_mode=True)


def test_a_hidden_key_that_is_not_finite_reaches_no_second_derivative():
    q, k, v = make_qkv(**SIZES, dtype=torch.float64)
    k[:, :, 5:] = torch.nan
    v[:, :, 5:] = torch.inf
    q.requires_grad_()
    output = rg.attention(q, k, v, pattern="key_span(0, 5)", backend="streamed", softcap=2.0)
    (gradient,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
    assert torch.autograd.grad(gradient.sum(), q)[0].isfinite().all()


def test_third_derivatives_are_refused_with_the_backend_that_has_them():
    for backend in BACKENDS:
        (q, _, _), output = strided_call(backend)
        (first,) = torch.autograd.grad(output.sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), q, create_graph=True)
        with pytest.raises(rg.UnsupportedError, match="backend='reference'"):
            second.sum().backward()


def test_a_backend_without_second_derivatives_refuses_their_graph():
    x = torch.randn(3, requires_grad=True)
    (output,) = first_order_only("flex", x * x)
    assert torch.equal(torch.autograd.grad(output.sum(), x, retain_graph=True)[0], 2 * x)
    with pytest.raises(rg.UnsupportedError, match="no second derivatives"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_arrive_as_a_batch_give_a_batch(backend):
    leaves, output = strided_call(backend)
    arriving = torch.randn(3, *output.shape, dtype=torch.float64)
    batched = torch.autograd.grad(
        output, leaves, arriving, is_grads_batched=True, retain_graph=True
    )
    for number, gradient in enumerate(arriving):
        expected = torch.autograd.grad(output, leaves, gradient, retain_graph=True)
        torch.testing.assert_close([x[number] for x in batched], list(expected))
