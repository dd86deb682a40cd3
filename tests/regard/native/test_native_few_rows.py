"""Products and rotations of a few rows by functions of C: their numbers, their bits, and what is left to PyTorch."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measuring import NotedFunctions, NotedOperations
from torch import Tensor, nn
from torch.autograd import forward_ad

from regard.backends.native import few_rows
from regard.backends.native.few_rows import FEW_ROWS
from regard.backends.native.interpreter import interpreter
from regard.layers.projection import project
from regard.layers.rotation import rotate_heads
from regard.positions import POSITIONS_OF_KEPT_TABLE, Rotary

from .calls import AVX2, BEST

pytestmark = pytest.mark.skipif(interpreter() is None, reason="only PyTorch computes here")
SIZES = (1, 2, 5, 15, 16, 17, 31, 32, 33, 67, 101, 130)


def product(x: Any, weight: Any, bias: Any = None) -> Any:
    function = few_rows.product_of_few_rows()
    assert function is not None
    return function(x, weight, bias)


def rotation(*arguments: Any) -> Any:
    function = few_rows.rotation_of_heads()
    assert function is not None
    return function(*arguments)


@torch.no_grad()
def test_products_have_the_numbers_and_shapes_of_linear() -> None:
    draw = random.Random(2)
    for _ in range(200):
        inner, outer = draw.choice(SIZES), draw.choice(SIZES)
        shape = draw.choice([(), (1,), (3,), (FEW_ROWS,), (2, 3), (5, 1), (2, 1, 4), (1, 2, 2, 2)])
        x = torch.randn(*shape, inner)
        weight = nn.Parameter(torch.randn(outer, inner))
        bias = draw.choice([None, torch.randn(outer), nn.Parameter(torch.randn(outer))])
        found = product(x, weight, bias)
        expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        assert found.shape == expected.shape
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-6 * inner)


@torch.no_grad()
def test_a_row_has_the_bits_that_it_has_alone_with_any_threads_and_registers(native: Any) -> None:
    draw = random.Random(3)
    for _ in range(12):
        inner, outer = draw.choice([(33, 67), (130, 16), (900, 1211), (1201, 2400)])
        x, weight, bias = (
            torch.randn(FEW_ROWS, inner),
            torch.randn(outer, inner),
            torch.randn(outer),
        )
        together = product(x, weight, bias)
        for row in range(FEW_ROWS):
            assert torch.equal(product(x[row], weight, bias), together[row])
        native.handle.rg_use_instructions(AVX2)
        assert torch.equal(product(x, weight, bias), together)
        native.handle.rg_use_instructions(BEST)
        torch.set_num_threads(3)
        try:
            assert torch.equal(product(x, weight, bias), together)
        finally:
            torch.set_num_threads(1)


@torch.no_grad()
def test_nan_and_infinity_stay_in_their_rows_and_columns() -> None:
    x, weight = torch.randn(3, 37), torch.randn(21, 37)
    x[1, 36] = torch.nan
    weight[20, 0] = torch.inf
    found = product(x, weight)
    assert torch.equal(found.isfinite(), F.linear(x, weight).isfinite())


@torch.no_grad()
def test_sums_of_exponentials_are_those_of_pytorch() -> None:
    sum_exponentials = few_rows.log_sum_exp_of_few_rows()
    assert sum_exponentials is not None
    draw = random.Random(7)
    for _ in range(100):
        x = torch.randn(draw.choice([1, 3, 7]), draw.choice([*SIZES, 1318])) * draw.choice([1, 40])
        x += draw.choice([0, -1000, 1e30])
        if draw.random() < 0.3:
            x[0, draw.randrange(x.shape[1])] = draw.choice([torch.nan, torch.inf, -torch.inf])
        if draw.random() < 0.1:
            x[-1] = -torch.inf
        expected = x.double().logsumexp(-1, keepdim=True)
        found = sum_exponentials(x)
        torch.testing.assert_close(found.double(), expected, rtol=3e-7, atol=3e-6, equal_nan=True)
    assert sum_exponentials(torch.randn(3, 8).double()) is None
    assert sum_exponentials(torch.randn(3, 8)[:, ::2]) is None
    assert sum_exponentials(torch.randn(3, 70_000)) is None
    assert sum_exponentials(torch.randn(3)) is None
    with torch.enable_grad():
        assert sum_exponentials(torch.randn(3, 8, requires_grad=True)) is None


class Subclass(Tensor):
    pass


WATCHED: dict[str, Callable[[], Any]] = {
    "a mode of operations": NotedOperations,
    "a mode of functions": NotedFunctions,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "derivatives": torch.enable_grad,
    "forward mode": forward_ad.dual_level,
}


@pytest.mark.parametrize("name", WATCHED)
@torch.no_grad()
def test_whoever_looks_at_pytorch_sees_its_operations(name: str) -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    heads = torch.randn(1, 2, 1, 8)
    table = torch.randn(5, 8)
    assert product(x, weight) is not None
    assert rotation(heads, table, table, 0, False) is not None
    with WATCHED[name]():
        assert product(x, weight) is None
        assert rotation(heads, table, table, 0, False) is None


@torch.no_grad()
def test_transforms_are_left_to_pytorch() -> None:
    weight = torch.randn(4, 8)
    answers: list[Any] = []

    def row(x: Tensor) -> Tensor:
        answers.append(product(x, weight))
        return x

    torch.func.vmap(row)(torch.randn(3, 8))
    assert answers == [None]


X, WEIGHT, BIAS = torch.randn(2, 8), torch.randn(4, 8), torch.randn(4)
OTHERS: dict[str, tuple[Any, ...]] = {
    "float64": (X.double(), WEIGHT.double(), BIAS.double()),
    "mixed": (X, WEIGHT.double(), BIAS),
    "integers": (X.int(), WEIGHT, BIAS),
    "strided rows": (torch.randn(2, 9)[:, :8], WEIGHT, BIAS),
    "strided weight": (X, torch.randn(8, 4).t(), BIAS),
    "more rows": (torch.randn(FEW_ROWS + 1, 8), WEIGHT, BIAS),
    "no rows": (torch.randn(0, 8), WEIGHT, BIAS),
    "other sizes": (torch.randn(2, 7), WEIGHT, BIAS),
    "other bias": (X, WEIGHT, torch.randn(5)),
    "a bias of one number": (X, WEIGHT, torch.randn(1)),
    "three axes": (X, WEIGHT[None], BIAS),
    "a number": (torch.tensor(1.0), WEIGHT, BIAS),
    "subclass": (X.as_subclass(Subclass), WEIGHT, BIAS),
    "subclass of weights": (X, WEIGHT.as_subclass(Subclass), BIAS),
    "negated view": (torch._neg_view(X), WEIGHT, BIAS),
    "negated weight": (X, torch._neg_view(WEIGHT), BIAS),
    "meta": (X.to("meta"), WEIGHT.to("meta"), None),
    "no tensor": (X, None, BIAS),
    "text": ("x", WEIGHT, BIAS),
}


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_other_arguments_are_left_to_pytorch(name: str) -> None:
    assert product(X, WEIGHT, BIAS) is not None
    assert product(*OTHERS[name]) is None
    assert few_rows.product_of_few_rows()(X, WEIGHT) is None  # ty: ignore[call-non-callable]


@torch.no_grad()
def test_rotated_heads_have_the_bits_of_pytorch() -> None:
    draw = random.Random(5)
    for _ in range(100):
        batch, heads, length = (
            draw.choice([1, 3]),
            draw.choice([1, 2, 5]),
            draw.choice([1, 2, 7, 301]),
        )
        dim = draw.choice([2, 6, 16, 64])
        x = torch.randn(batch, length, heads, dim).transpose(1, 2)
        if draw.random() < 0.3:
            x = x.contiguous()
        rotary = Rotary(base=draw.choice([10_000.0, 500.0]))
        start = draw.choice([0, 1, 100, POSITIONS_OF_KEPT_TABLE - 1, POSITIONS_OF_KEPT_TABLE, 4321])
        expected = rotary.rotate_from(x, start)
        found = rotate_heads(rotary, x, start)
        assert torch.equal(found, expected)
        for size, stride, expected_stride in zip(
            x.shape, found.stride(), expected.stride(), strict=True
        ):
            assert size == 1 or stride == expected_stride


@torch.no_grad()
def test_rotations_have_the_same_bits_with_any_number_of_threads() -> None:
    x = torch.randn(3, 5, 211, 64)
    expected = Rotary().rotate_from(x, 3)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            assert torch.equal(rotate_heads(Rotary(), x, 3), expected)
    finally:
        torch.set_num_threads(threads)


LEARNED: dict[str, Callable[[], Tensor]] = {
    "as a layer makes them": lambda: torch.randn(3, 7, 5, 16).transpose(1, 2),
    "dense": lambda: torch.randn(3, 5, 7, 16),
    "behind the kept positions": lambda: torch.randn(1, 2, POSITIONS_OF_KEPT_TABLE + 1, 8),
    "float64": lambda: torch.randn(3, 5, 7, 16).double(),
    "bfloat16": lambda: torch.randn(3, 5, 7, 16).bfloat16(),
}


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_rotations_have_the_bits_of_pytorch(name: str) -> None:
    x = LEARNED[name]().requires_grad_()
    grad = torch.randn_like(x)
    found = rotate_heads(Rotary(), x, 2)
    expected = Rotary().rotate_from(x, 2)
    assert torch.equal(found, expected)
    (found_gradient,) = torch.autograd.grad(found, x, grad)
    (expected_gradient,) = torch.autograd.grad(expected, x, grad)
    assert torch.equal(found_gradient, expected_gradient)


def test_a_rotation_that_learns_is_one_function() -> None:
    x = torch.randn(3, 5, 7, 16, requires_grad=True)
    function: Any = rotate_heads(Rotary(), x, 2).grad_fn
    assert "Rotated" in function.name()
    assert "Rotated" not in Rotary().rotate_from(x, 2).grad_fn.name()  # ty: ignore[unresolved-attribute]


def test_rotations_have_second_derivatives_batches_of_gradients_and_tangents() -> None:
    x = torch.randn(1, 2, 3, 8, requires_grad=True)

    def output(heads: Tensor) -> Tensor:
        return rotate_heads(Rotary(), heads, 2).sin()

    def expected(heads: Tensor) -> Tensor:
        return Rotary().rotate_from(heads, 2).sin()

    hessian = torch.autograd.functional.hessian
    found = hessian(lambda heads: output(heads).sum(), x)
    assert torch.allclose(found, hessian(lambda heads: expected(heads).sum(), x))
    transformed = torch.func.grad(lambda heads: output(heads).sum())(x)
    assert torch.allclose(transformed, torch.func.grad(lambda heads: expected(heads).sum())(x))
    grads = torch.randn(4, *x.shape)
    batches = [
        torch.autograd.grad(function(x), x, grads, is_grads_batched=True)[0]
        for function in (output, expected)
    ]
    assert torch.allclose(*batches)
    tangents = torch.randn_like(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangents)
        found = forward_ad.unpack_dual(output(dual)).tangent
        assert torch.allclose(found, forward_ad.unpack_dual(expected(dual)).tangent)


@torch.no_grad()
def test_other_rotations_are_those_of_pytorch() -> None:
    x = torch.randn(2, 3, 4, 8)
    for rotary in (Rotary(dims=4), Rotary(pairs="neighbours"), Rotary(scaling="linear(2)")):
        assert torch.equal(rotate_heads(rotary, x, 5), rotary.rotate_from(x, 5))
    for other in (x.double(), x.bfloat16(), torch.randn(2, 3, 8, 8).mT):
        assert torch.equal(rotate_heads(Rotary(), other, 5), Rotary().rotate_from(other, 5))
    cos = torch.randn(5, 8)
    assert rotation(x, cos, cos, 1, False) is not None
    for arguments in (
        (x, cos, cos, 2),
        (x, cos, cos, -1),
        (x, cos[:, :4], cos, 0),
        (x, cos, cos, 2**70),
        (x, cos, cos, 0.0),
    ):
        assert rotation(*arguments, False) is None
        assert rotation(*arguments) is None


def test_gradients_go_through_projections_and_rotations() -> None:
    x = torch.randn(2, 8, requires_grad=True)
    weight = nn.Parameter(torch.randn(4, 8))
    project(x, weight).sum().backward()
    assert torch.allclose(x.grad, weight.sum(0).expand(2, 8))  # ty: ignore[invalid-argument-type]
    heads = torch.randn(1, 2, 1, 8, requires_grad=True)
    rotate_heads(Rotary(), heads, 3).sum().backward()
    assert heads.grad is not None


def test_outputs_are_ordinary_tensors_and_memory_stays() -> None:
    x, weight = torch.randn(3, 64), torch.randn(32, 64)
    with torch.inference_mode():
        assert product(x, weight).is_inference()
    with torch.no_grad():
        output = product(x, weight)
        assert not output.is_inference()
        assert output.untyped_storage().resizable()
