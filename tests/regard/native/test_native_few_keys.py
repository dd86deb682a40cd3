"""Few queries over few keys, which the native kernel multiplies where they lie, have the bits of other calls."""

import math
import random

import pytest
import torch

import regard as rg

from .calls import AVX2, BEST

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def tensors(
    draw: random.Random, q_len: int, k_len: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v whose rows lie close together, or with gaps between them."""
    group = draw.choice([1, 2, 3])
    head_dim = draw.choice([16, 64, 80, 21, 272])
    v_dim = draw.choice([16, 64, 48, 19])
    gap = draw.choice([0, 5])

    def drawn(heads: int, length: int, dim: int) -> torch.Tensor:
        return torch.randn(2, heads, length, dim + gap, dtype=dtype)[..., :dim]

    return drawn(2 * group, q_len, head_dim), drawn(2, k_len, head_dim), drawn(2, k_len, v_dim)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int) -> torch.Tensor:
    return rg.attention(q, k, v, pattern="causal_window(41)", q_start=start, backend="native")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_query_over_few_keys_has_the_bits_of_the_same_query_among_others(dtype):
    draw = random.Random(7)
    for _ in range(60):
        k_len = draw.choice([1, 2, 4, 7, 8, 9, 15, 17, 31, 33, 47])
        q, k, v = tensors(draw, 15, k_len, dtype)
        start = k_len - 1
        among_others = attend(q, k, v, start)
        few = draw.choice([1, 2, 5])
        assert torch.equal(attend(q[:, :, :few], k, v, start), among_others[:, :, :few])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_instruction_sets_give_equal_bits_over_few_keys(native, dtype):
    draw = random.Random(11)
    for _ in range(30):
        k_len = draw.choice([1, 3, 8, 9, 29, 39])
        q, k, v = tensors(draw, draw.choice([1, 2]), k_len, dtype)
        native.handle.rg_use_instructions(BEST)
        expected = attend(q, k, v, k_len - 1)
        native.handle.rg_use_instructions(AVX2)
        assert torch.equal(attend(q, k, v, k_len - 1), expected)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("k_len", [1, 3, 8, 13])
def test_extreme_numbers_have_the_results_of_the_formula(number, k_len):
    draw = random.Random(k_len)
    for _ in range(6):
        q, k, v = tensors(draw, 1, k_len, torch.float32)
        place = draw.randrange(k_len)
        changed = draw.choice([k, v])
        changed[1, :, place, 0] = number
        expected = rg.attention(q, k, v, backend="reference")
        output = rg.attention(q, k, v, backend="native")
        torch.testing.assert_close(output, expected, equal_nan=True)


def test_a_product_below_the_least_number_leaves_no_negative_zero():
    q = torch.ones(1, 1, 1, 16)
    k = torch.ones(1, 1, 2, 16)
    k[:, :, 1] = 0.5  # its weight is exp(-2) of the other one
    v = torch.full((1, 1, 2, 16), -0.0)
    v[:, :, 1] = -1e-45
    output = rg.attention(q, k, v, backend="native")
    assert not output.any()
    assert not output.signbit().any()
