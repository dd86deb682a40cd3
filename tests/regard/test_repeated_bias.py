"""Steps with a bias that one function of C computes: it reads the numbers of each call, and leaves others to Python."""

import math
import random
import resource
from typing import Any

import pytest
import torch
from repeated_calls import by_python, interruptions_of, is_without_python
from torch import Tensor

import regard as rg
from regard.backends.native.kept_calls import kept_calls
from regard.core.call import Call
from regard.functional.repeated import PLACE_OF_BIAS, options_of

pytestmark = [
    pytest.mark.skipif(kept_calls() is None, reason="only Python computes calls here"),
    pytest.mark.usefixtures("fresh_plans"),
]
BATCH, HEADS, DIM = 3, 4, 16
WARMING = (35, 36, 37)  # the first length is planned, the second is a step, the third is kept


def vectors(
    k_len: int, q_len: int = 1, dtype: torch.dtype = torch.float32, batch: int = BATCH
) -> Any:
    q = torch.randn(batch, HEADS, q_len, DIM, dtype=dtype)
    k = torch.randn(batch, 2, k_len, DIM, dtype=dtype)
    return q, k, torch.randn(batch, 2, k_len, 11, dtype=dtype)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def by_head(q_len: int, k_len: int) -> Tensor:
    return torch.randn(1, HEADS, q_len, k_len)


# Biases of a call, by how they lie.
KINDS: dict[str, Any] = {
    "by head": by_head,
    "by batch row and head": lambda q_len, k_len: torch.randn(BATCH, HEADS, q_len, k_len),
    "by batch row and key": lambda q_len, k_len: torch.randn(BATCH, 1, 1, k_len),
    "one for all keys": lambda q_len, k_len: torch.randn(1, HEADS, q_len, 1),
    "heads last, as T5 makes it": lambda q_len, k_len: torch.randn(1, q_len, k_len, HEADS).permute(
        0, 3, 1, 2
    ),
    "the end of a longer one": lambda q_len, k_len: by_head(q_len + 5, k_len + 2)[:, :, 5:, 2:],
    "every second number": lambda q_len, k_len: by_head(2 * q_len, 2 * k_len)[:, :, ::2, ::2],
    "one row for all": lambda q_len, k_len: by_head(1, k_len).expand(BATCH, HEADS, q_len, k_len),
}


def warm(kind: Any, q_len: int, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    for k_len in WARMING:
        bias = kind(q_len, k_len).to(sum_dtype(dtype))
        rg.attention(*vectors(k_len, q_len, dtype), bias=bias, **options)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
@pytest.mark.parametrize("name", KINDS)
def test_a_step_with_a_bias_has_the_bits_of_python(name, dtype):
    draw = random.Random(7)
    for q_len in (1, 3):
        for pattern in ("causal", None):
            warm(KINDS[name], q_len, dtype, pattern=pattern)
            for _ in range(4):
                k_len = draw.randint(33, 63)
                bias = KINDS[name](q_len, k_len).to(sum_dtype(dtype))
                bias[:1, :, :1, k_len // 2 : k_len // 2 + 1] = -math.inf
                qkv = vectors(k_len, q_len, dtype)
                options = {"pattern": pattern, "q_start": draw.choice([None, k_len - q_len])}
                expected = by_python(*qkv, bias=bias, **options)
                assert torch.equal(rg.attention(*qkv, bias=bias, **options), expected)
                fresh = vectors(k_len, q_len, dtype)
                assert is_without_python(*fresh, bias=bias.clone(), **options)


def test_the_numbers_of_a_bias_are_read_in_each_call():
    warm(by_head, 1)
    qkv = vectors(41)
    bias = by_head(1, 41)
    first = rg.attention(*qkv, bias=bias)
    bias += torch.randn_like(bias)
    changed = rg.attention(*qkv, bias=bias)
    assert not torch.equal(changed, first)
    assert torch.equal(changed, by_python(*qkv, bias=bias))


def test_calls_with_and_without_a_bias_are_told_apart():
    warm(by_head, 1)
    for k_len in WARMING:
        rg.attention(*vectors(k_len))
    qkv = vectors(41)
    bias = by_head(1, 41)
    assert torch.equal(rg.attention(*qkv), by_python(*qkv))
    assert torch.equal(rg.attention(*qkv, bias=bias), by_python(*qkv, bias=bias))


LEFT_TO_PYTHON: dict[str, Any] = {
    "of three axes": lambda: torch.randn(HEADS, 1, 41),
    # As float32 these would be zeros too, which nobody could tell from them by the output.
    "of a half dtype": lambda: torch.zeros(1, HEADS, 1, 82, dtype=torch.bfloat16)[..., :41],
    "by a parameter": lambda: torch.nn.Parameter(by_head(1, 41), requires_grad=False),
    "by distance": lambda: rg.bias.ALiBi(),
}


@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_a_bias_of_another_kind_is_left_to_python(name):
    warm(by_head, 1)
    qkv = vectors(41)
    bias = LEFT_TO_PYTHON[name]()
    assert not is_without_python(*qkv, bias=bias)
    assert torch.equal(rg.attention(*qkv, bias=bias), by_python(*qkv, bias=bias))


def test_a_bias_that_learns_gets_its_gradient():
    warm(by_head, 1)
    qkv = vectors(41)
    bias = by_head(1, 41).requires_grad_()
    output = rg.attention(*qkv, bias=bias)
    (gradient,) = torch.autograd.grad(output.sum(), bias)
    assert gradient.abs().max() > 0
    with torch.no_grad():
        assert torch.equal(rg.attention(*qkv, bias=bias), output)
        assert is_without_python(*qkv, bias=bias)


@pytest.mark.parametrize(
    "shape", [(1, HEADS, 1, 40), (1, 3, 1, 41), (2, HEADS, 1, 41), (1, HEADS, 2, 41)]
)
def test_a_bias_that_does_not_broadcast_is_refused_after_one_that_does(shape):
    warm(by_head, 1)
    with pytest.raises(rg.ShapeError, match="does not broadcast"):
        rg.attention(*vectors(41), bias=torch.zeros(shape))


def test_a_negated_bias_and_one_that_is_nan_are_answered_as_python_answers():
    warm(by_head, 1)
    qkv = vectors(41)
    negated = torch._neg_view(by_head(1, 41))
    assert torch.equal(rg.attention(*qkv, bias=negated), by_python(*qkv, bias=negated))
    bias = by_head(1, 41)
    bias[0, 1, 0, 5] = math.nan
    output = rg.attention(*qkv, bias=bias)
    assert torch.equal(output.isnan(), by_python(*qkv, bias=bias).isnan())
    assert output[:, 1].isnan().all()
    assert not output[:, 0].isnan().any()


def test_a_key_that_a_bias_hides_changes_nothing_though_it_is_nan():
    warm(by_head, 1)
    q, k, v = vectors(41)
    bias = by_head(1, 41)
    bias[..., 5] = -math.inf
    expected = rg.attention(q, k, v, bias=bias)
    k[:, :, 5] = math.nan
    v[:, :, 5] = math.inf
    assert torch.equal(rg.attention(q, k, v, bias=bias), expected)


@pytest.mark.parametrize("batch", [64, 65])
def test_many_batch_rows_with_a_bias_have_the_bits_of_python(batch):
    for k_len in WARMING:
        rg.attention(*vectors(k_len, batch=batch), bias=torch.randn(batch, 1, 1, k_len))
    qkv = vectors(41, batch=batch)
    bias = torch.randn(batch, 1, 1, 41)
    assert torch.equal(rg.attention(*qkv, bias=bias), by_python(*qkv, bias=bias))
    assert is_without_python(*qkv, bias=bias) == (batch <= 64)


def test_calls_with_a_bias_after_interruptions_have_the_same_bits():
    warm(KINDS["heads last, as T5 makes it"], 1)
    qkv = vectors(41)
    bias = KINDS["heads last, as T5 makes it"](1, 41)
    expected = by_python(*qkv, bias=bias)
    found = interruptions_of(
        lambda: rg.attention(*qkv, bias=bias), expected, after=0.003, seconds=0.5
    )
    assert found > 20


def test_memory_does_not_grow_over_100000_biases_that_are_copied():
    warm(KINDS["every second number"], 1)
    qkv = vectors(41)
    bias = KINDS["every second number"](1, 41)
    assert is_without_python(*qkv, bias=bias)
    for _ in range(10_000):
        rg.attention(*qkv, bias=bias)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100_000):
        rg.attention(*qkv, bias=bias)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * 1024  # KiB


def test_the_bias_has_its_place_among_the_options():
    q, k, v = vectors(5)
    bias = by_head(1, 5)
    assert options_of(Call(q, k, v, bias))[PLACE_OF_BIAS] is bias
