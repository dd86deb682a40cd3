"""Caches round each vector as their docstring says: compared with NumPy, number by number."""

import numpy as np
import pytest
import torch

import regard as rg
from regard.layers.caches import new_cache
from regard.layers.caches.rounding import rounded

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INT8_ERROR = (
    1 / 254 + 2**-24
)  # of the largest magnitude of a vector, as the docstring of Cache says


def vectors(dtype: torch.dtype, size: float = 1.0) -> torch.Tensor:
    """Vectors (2, 3, 11, 7) whose largest magnitudes differ, most of them by a negative number."""
    generator = torch.Generator().manual_seed(5)
    numbers = torch.rand(2, 3, 11, 7, generator=generator, dtype=torch.float64) * 1.5 - 1
    sizes = 1 + torch.arange(66, dtype=torch.float64).view(2, 3, 11, 1) / 7
    return (size * numbers * sizes / 11).to(dtype)


def stored_as_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers, scales = rounded("x", x, torch.int8)
    assert scales is not None
    assert (numbers.dtype, numbers.shape) == (torch.int8, x.shape)
    assert (scales.dtype, scales.shape) == (torch.float32, (*x.shape[:-1], 1))
    return numbers, scales


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_int8_numbers_and_scales_are_those_of_each_vector_alone(dtype):
    x = vectors(dtype)
    numbers, scales = stored_as_int8(x)
    exact = x.double().numpy()
    wide = exact if dtype == torch.float64 else exact.astype(np.float32)
    largest = np.abs(wide).max(-1, keepdims=True)
    expected_scales = (largest / wide.dtype.type(127)).astype(np.float32)
    assert np.array_equal(scales.numpy(), expected_scales)
    assert np.array_equal(numbers.numpy(), np.rint(wide / expected_scales).astype(np.int8))
    assert (numbers.abs().amax(-1) == 127).all()  # all levels are used


@pytest.mark.parametrize("size", [1e4, 1.0, 1e-3, 2e-4, 1e-5, 1e-6, 1e-30])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_error_of_int8_is_within_its_bound_for_vectors_of_any_size(dtype, size):
    x = vectors(dtype, size)
    numbers, scales = stored_as_int8(x)
    error = (numbers.double() * scales.double() - x.double()).abs()
    largest = x.double().abs().amax(-1, keepdim=True)
    assert (error <= INT8_ERROR * largest).all()


def test_halves_are_rounded_to_even_numbers():
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5])
    numbers, _ = stored_as_int8(x[None, None, None] / 8)
    assert numbers.flatten().tolist() == [127, 0, 2, 2, 0, -2, -126]


def test_a_vector_of_zeros_has_a_scale_by_which_it_stays_zero():
    numbers, scales = stored_as_int8(torch.zeros(1, 2, 3, 5))
    assert not numbers.any()
    assert (scales > 0).all()
    assert scales.isfinite().all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_pass_through_the_rounding_to_a_floating_point_dtype(dtype):
    x = vectors(torch.float32).requires_grad_()
    numbers, scales = rounded("x", x, getattr(torch, dtype))
    assert scales is None
    assert torch.equal(numbers.detach(), x.detach().to(getattr(torch, dtype)))
    numbers.float().sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_tensors_without_numbers_are_rounded_too(dtype):
    x = torch.empty(1, 2, 3, 5, device="meta")
    keys, _ = new_cache("dynamic", 1, 2, 5, dtype=dtype, device="meta").append(x, x)
    assert (keys.shape, keys.dtype) == (x.shape, getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_a_number_out_of_reach_is_named_by_its_magnitude_and_the_dtype_of_the_cache(dtype):
    x = torch.full((1, 1, 1, 4), 3.0, dtype=torch.float64)
    x[..., 1] = -1e300
    words = rf"x reaches 1e\+300, too large for a cache of torch\.{dtype}; use a wider dtype"
    with pytest.raises(rg.ArgumentError, match=words):
        rounded("x", x, getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_numbers_that_are_int8_already_are_refused(dtype):
    x = torch.ones(1, 1, 1, 4, dtype=torch.int8)
    cache = new_cache("dynamic", 1, 1, 4, dtype=dtype)
    words = r"k has dtype torch\.int8; a cache takes floating-point numbers"
    with pytest.raises(rg.ShapeError, match=words):
        cache.append(x, x)
