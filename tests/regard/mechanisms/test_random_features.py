"""Performer and random feature attention: the papers' estimates, convergence, gates, and numbers that stay finite."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import regard as rg
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.mechanisms import Performer, RandomFeature
from regard.mechanisms.draws import directions

DOUBLE = torch.empty(0, dtype=torch.float64)
both_ways = pytest.mark.parametrize("orthogonal", [True, False])


def tensors(heads: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    q = torch.randn(2, heads, 7, 5, dtype=dtype)
    k = torch.randn(2, 2, 11, 5, dtype=dtype)
    v = torch.randn(2, 2, 11, 3, dtype=dtype)
    return [q, k, v]


def gates() -> torch.Tensor:
    return torch.randn(2, 2, 11, dtype=torch.float64).sigmoid()


def features(x: torch.Tensor, count: int, seed: int, sigma: float) -> np.ndarray:
    """φ(x) of Peng et al. 2021, theorem 1, of x at unit length."""
    w = directions(seed, count, x.shape[-1], False, like=DOUBLE).numpy() / sigma
    vectors = x.numpy()
    angles = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) @ w.T
    return np.concatenate([np.sin(angles), np.cos(angles)], -1) / np.sqrt(count)


# Convergence


ESTIMATES = 600


def check_unbiased(estimates: list[torch.Tensor], exact: torch.Tensor) -> None:
    """The mean of the estimates is the exact number, within four standard errors."""
    drawn = torch.stack(estimates)
    standard_error = drawn.std(0) / math.sqrt(len(drawn))
    assert ((drawn.mean(0) - exact).abs() < 4 * standard_error).all()
    assert (drawn.std(0) > 0.01).all(), "nothing was random"


@both_ways
def test_performer_estimates_the_exponential_of_scores_without_bias(orthogonal):
    """Of short vectors: the estimates of long ones have tails that 600 of them do not show."""
    q, k = (0.3 * torch.randn(1, 1, 3, 5, dtype=torch.float64) for _ in range(2))
    estimates = []
    for seed in range(ESTIMATES):
        lifted = Performer(7, seed, orthogonal).lift(q, k, 0.8, {})
        logs = lifted.q_log[..., None] + lifted.k_log[..., None, :]
        estimates.append(lifted.q @ lifted.k.mT * logs.exp())
    check_unbiased(estimates, (0.8 * q @ k.mT).exp())


def test_random_features_estimate_the_gaussian_kernel_without_bias():
    q, k = (torch.randn(1, 1, 3, 5, dtype=torch.float64) for _ in range(2))
    estimates = []
    for seed in range(ESTIMATES):
        lifted = RandomFeature(7, seed=seed, sigma=0.9).lift(q, k, 1, {})
        estimates.append(lifted.q @ lifted.k.mT)
    cosines = normalize(q, dim=-1) @ normalize(k, dim=-1).mT
    check_unbiased(estimates, ((cosines - 1) / 0.81).exp())


# What is drawn


@pytest.mark.parametrize(
    "make",
    [lambda seed: Performer(13, seed, False), lambda seed: RandomFeature(13, True, seed, 0.7)],
)
def test_a_seed_gives_the_same_features_again_and_another_seed_others(make):
    q, k, v = tensors()
    gated = isinstance(make(seed=1), RandomFeature)
    options = {"pattern": "causal", "parameters": {"gate": gates()} if gated else None}
    first = rg.attention(q, k, v, mechanism=make(seed=1), **options)
    assert make(seed=2).redrawn(1) == make(seed=1)
    assert torch.equal(first, rg.attention(q, k, v, mechanism=make(seed=2).redrawn(1), **options))
    assert (first - rg.attention(q, k, v, mechanism=make(seed=2), **options)).abs().max() > 1e-3


@both_ways
def test_directions_are_standard_normal_and_orthogonal_in_blocks(orthogonal):
    drawn = torch.stack([directions(seed, 11, 5, orthogonal, like=DOUBLE) for seed in range(400)])
    flat = drawn.flatten()
    spread = 1 / math.sqrt(flat.numel())
    assert abs(flat.mean()) < 4 * spread
    assert abs(flat.square().mean() - 1) < 4 * math.sqrt(2) * spread
    assert abs(flat.pow(4).mean() - 3) < 4 * math.sqrt(96) * spread
    products = drawn @ drawn.mT
    squares = torch.diag_embed(products.diagonal(dim1=1, dim2=2)[:, :5])
    of_different = products[:, :5, :5] - squares
    assert (of_different.abs().max() < 1e-12) == orthogonal
    assert products[:, :5, 5:].abs().min(0).values.max() > 1e-6, "blocks are drawn apart"
    few = directions(3, 7, 5, orthogonal, like=DOUBLE)
    many = directions(3, 16, 5, orthogonal, like=DOUBLE)
    torch.testing.assert_close(few, many[:7], rtol=1e-12, atol=1e-12)


# A model that was trained with a seed meets the same directions in every version and on every machine.
WRITTEN = {
    False: [-0.8310079539204804, 1.6238054101006205, 0.8062886199371961],
    True: [-1.4109058039600575, -0.06342813679082097, 1.8992075795389147],
}


@both_ways
def test_what_a_seed_draws_is_written_down(orthogonal):
    numbers = directions(0, 3, 3, orthogonal, like=DOUBLE)[:, 0]
    written = torch.tensor(WRITTEN[orthogonal], dtype=torch.float64)
    torch.testing.assert_close(numbers, written, rtol=1e-12, atol=0)


# Numbers that stay finite


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("pattern", ["full", "causal"])
def test_performer_of_vectors_of_length_100_stays_finite(dtype, pattern):
    q, k, v = tensors(dtype=dtype)
    q = (100 * normalize(q.float(), dim=-1).to(dtype)).requires_grad_()
    k = (100 * normalize(k.float(), dim=-1).to(dtype)).requires_grad_()
    v = v.requires_grad_()
    output = rg.attention(q, k, v, pattern=pattern, mechanism=Performer(64), scale=1.0)
    output.float().square().sum().backward()
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert output.abs().max() <= v.abs().max() * 1.01, "an average is no larger than what it is of"
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_a_sum_that_is_not_positive_is_raised_to_the_smallest_that_the_true_one_can_be():
    sigma = 0.5
    least_weight = math.exp(-8)  # exp(-2 / sigma²)
    raised = 0
    q, k, v = (torch.randn(1, 1, size, 5, dtype=torch.float64) for size in (17, 2, 2))
    for seed in range(60):
        weights = features(q, 1, seed, sigma) @ features(k, 1, seed, sigma).swapaxes(-1, -2)
        sums = weights.sum(-1, keepdims=True)
        raised += (sums <= 0).sum()
        expected = weights @ v.numpy() / np.maximum(sums, 2 * least_weight)
        output = rg.attention(q, k, v, mechanism=RandomFeature(1, seed=seed, sigma=sigma))
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-9, atol=1e-10)
        assert output.abs().max() <= v.abs().max() / least_weight
    assert raised > 60 * 17 * 0.1, f"{raised} of {60 * 17} sums were not positive, too few to tell"


def test_a_sum_that_was_raised_sends_finite_gradients():
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
    for seed in range(20):
        rg.attention(q, k, v, mechanism=RandomFeature(1, seed=seed, sigma=0.2)).sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_a_vector_of_length_0_stays_0_with_a_gradient_of_0():
    q, k, v = tensors()
    q[:, :, 3] = 0
    k[:, :, 5] = 0
    q = q.requires_grad_()
    k = k.requires_grad_()
    detail = rg.attention_detail(q, k, v, mechanism=RandomFeature(4000), want="weights")
    detail.output.square().sum().backward()
    assert detail.output.isfinite().all()
    assert (q.grad[:, :, 3] == 0).all()
    assert (k.grad[:, :, 5] == 0).all()
    assert q.grad[:, :, 4].abs().min() > 0
    # To a query without direction all keys with one are alike, and nothing is the nearest.
    kernel = torch.full((11,), math.exp(-0.5), dtype=torch.float64)
    kernel[5] = 1
    torch.testing.assert_close(detail.weights[0, 0, 3], kernel / kernel.sum(), rtol=0.2, atol=0)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_only_the_direction_of_queries_and_keys_counts_for_random_feature(size):
    q, k, v = tensors(dtype=torch.float32)
    output = rg.attention(q * size, k * size, v, mechanism=RandomFeature(16))
    expected = rg.attention(q, k, v, mechanism=RandomFeature(16))
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


# Gates


def test_a_gate_of_0_forgets_everything_and_a_gate_of_1_lets_nothing_in():
    q, k, v = tensors(dtype=torch.float32)
    gate = torch.full((1, 2, 11), 0.5)
    gate[..., 6] = 0.0
    gate[..., 7:] = 1.0
    gate.requires_grad_()
    options = {
        "pattern": "causal",
        "mechanism": RandomFeature(1024, gated=True),
        "parameters": {"gate": gate},
    }
    detail = rg.attention_detail(q, k, v, want="weights", **options)
    late = detail.weights[:, :, 2:]  # the queries at 6 to 10
    assert (late[..., 6] > 0.5).all()
    assert (late.index_fill(-1, torch.tensor(6), 0).abs() < 1e-30).all()
    detail.output.sum().backward()
    assert gate.grad.isfinite().all()


@pytest.mark.each_value(pairs=[("values", "dtype")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "values",
    [[1e-8], [1e-8, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-8], [0.0, 1e-8, 0.5, 1 - 1e-8, 1.0]],
    ids=str,
)
@pytest.mark.parametrize(("q_len", "q_start"), [(263, 0), (100, 200), (100, None)])
def test_results_and_gradients_of_small_and_large_gates_are_as_exact_as_of_others(
    values, dtype, q_len, q_start
):
    keys = 263
    gates = torch.tensor(values, dtype=dtype)[torch.randint(len(values), (2, 2, keys))]
    # The first row looks at one key: a gradient of 0, whose rounding error is divided by 1 - gate.
    gates[..., 0] = 0.5
    tensors = [
        torch.randn(2, 6, q_len, 5, dtype=dtype),
        torch.randn(2, 2, keys, 5, dtype=dtype),
        torch.randn(2, 2, keys, 3, dtype=dtype),
        gates,
    ]

    def output_and_gradients(backend, dtype):
        q, k, v, gate = leaves = [x.to(dtype).requires_grad_() for x in tensors]
        options = {"pattern": "causal", "q_start": q_start, "backend": backend}
        mechanism = RandomFeature(64, gated=True)
        output = rg.attention(q, k, v, mechanism=mechanism, parameters={"gate": gate}, **options)
        return output, *torch.autograd.grad(output.square().sum(), leaves)

    roundings = keys
    if dtype == torch.float64:  # those of the exponents, which float32 computes in float64
        logarithms = gates.clamp_min(torch.finfo(dtype).tiny).log().abs()
        roundings += logarithms.sum(-1).max().item()
    bound = torch.finfo(dtype).eps * roundings
    computed = output_and_gradients("linear", dtype)
    expected = output_and_gradients("reference", torch.float64)
    for numbers, exact in zip(computed, expected, strict=True):
        error = (numbers.double() - exact).abs().max() / exact.abs().max()
        assert error <= bound, f"{error:.1e} of the largest, and roundings explain {bound:.1e}"


def test_gates_need_a_causal_pattern_and_one_number_for_each_key():
    q, k, v = tensors()
    gated = RandomFeature(13, gated=True)
    with pytest.raises(UnsupportedError, match="full is not causal"):
        rg.attention(q, k, v, mechanism=gated, parameters={"gate": gates()})
    with pytest.raises(ShapeError, match="gate"):
        rg.attention(
            q, k, v, pattern="causal", mechanism=gated, parameters={"gate": gates()[..., :10]}
        )


def test_a_scale_of_0_or_below_is_refused():
    for scale in (0.0, -1.0):
        with pytest.raises(UnsupportedError, match="give one above 0"):
            rg.attention(*tensors(), mechanism=Performer(13), scale=scale)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Performer, "features", 0),
        (Performer, "features", 2.0),
        (Performer, "seed", "a"),
        (Performer, "orthogonal", 1),
        (RandomFeature, "features", 0),
        (RandomFeature, "sigma", 0.1),
        (RandomFeature, "sigma", math.nan),
        (RandomFeature, "gated", 1),
        (RandomFeature, "seed", 0.5),
    ],
)
def test_arguments_outside_their_range_are_refused(kind, name, value):
    with pytest.raises(ArgumentError, match=f"{kind.__name__}'s {name}"):
        kind(**{name: value})
