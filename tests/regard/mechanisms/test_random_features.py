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
    shapes = (2, heads, 7, 5), (2, 2, 11, 5), (2, 2, 11, 3)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def gates() -> torch.Tensor:
    return torch.randn(2, 2, 11, dtype=torch.float64).sigmoid()


def features(
    q: torch.Tensor, k: torch.Tensor, count: int, seed: int, sigma: float
) -> tuple[np.ndarray, np.ndarray]:
    w = directions(seed, count, q.shape[-1], False, like=DOUBLE).numpy() / sigma
    angles = [x.numpy() / np.linalg.norm(x.numpy(), axis=-1, keepdims=True) @ w.T for x in (q, k)]
    of_q, of_k = (np.concatenate([np.sin(x), np.cos(x)], -1) / np.sqrt(count) for x in angles)
    return of_q, of_k


# --- convergence ---


@pytest.mark.parametrize("kind", ["performer", "orthogonal performer", "random feature"])
def test_the_kernel_is_estimated_without_bias(kind):
    """For Performer of short vectors: the estimates of long ones have tails that 600 of them do not show."""
    size = 1.0 if kind == "random feature" else 0.3
    q, k = (torch.randn(1, 1, 3, 5, dtype=torch.float64) * size for _ in range(2))
    drawn = []
    for seed in range(600):
        if kind == "random feature":
            found = RandomFeature(7, seed=seed, sigma=0.9).lift(q, k, 1, {})
            drawn.append(found.q @ found.k.mT)
        else:
            found = Performer(7, seed, kind.startswith("orthogonal")).lift(q, k, 0.8, {})
            drawn.append(
                found.q @ found.k.mT * (found.q_log[..., None] + found.k_log[..., None, :]).exp()
            )
    drawn = torch.stack(drawn)
    cosines = normalize(q, dim=-1) @ normalize(k, dim=-1).mT
    exact = ((cosines - 1) / 0.81).exp() if kind == "random feature" else (0.8 * q @ k.mT).exp()
    assert ((drawn.mean(0) - exact).abs() < 4 * drawn.std(0) / math.sqrt(600)).all()
    assert (drawn.std(0) > 0.01).all(), "nothing was random"


# --- what is drawn ---


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
    off = products[:, :5, :5] - torch.diag_embed(products.diagonal(dim1=1, dim2=2)[:, :5])
    assert (off.abs().max() < 1e-12) == orthogonal
    assert products[:, :5, 5:].abs().min(0).values.max() > 1e-6, "blocks are drawn apart"
    few, many = (directions(3, count, 5, orthogonal, like=DOUBLE) for count in (7, 16))
    torch.testing.assert_close(few, many[:7], rtol=1e-12, atol=1e-12)


WRITTEN = {  # a model trained with a seed must meet the same directions in every version and on every machine
    False: [-0.8310079539204804, 1.6238054101006205, 0.8062886199371961],
    True: [-1.4109058039600575, -0.06342813679082097, 1.8992075795389147],
}


@both_ways
def test_what_a_seed_draws_is_written_down(orthogonal):
    found = directions(0, 3, 3, orthogonal, like=DOUBLE)[:, 0]
    torch.testing.assert_close(
        found, torch.tensor(WRITTEN[orthogonal], dtype=torch.float64), rtol=1e-12, atol=0
    )


# --- numbers that stay finite ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("pattern", ["full", "causal"])
def test_performer_of_vectors_of_length_100_stays_finite(dtype, pattern):
    q, k, v = tensors(dtype=dtype)
    q, k, v = (
        x.requires_grad_()
        for x in (*(100 * normalize(x.float(), dim=-1).to(dtype) for x in (q, k)), v)
    )
    found = rg.attention(q, k, v, pattern=pattern, mechanism=Performer(64), scale=1.0)
    found.float().square().sum().backward()
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert found.abs().max() <= v.abs().max() * 1.01, "an average is no larger than what it is of"
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_a_sum_that_is_not_positive_is_raised_to_the_smallest_that_the_true_one_can_be():
    sigma = 0.5
    raised = 0
    q, k, v = (torch.randn(1, 1, size, 5, dtype=torch.float64) for size in (17, 2, 2))
    for seed in range(60):
        of_q, of_k = features(q, k, 1, seed, sigma)
        alike = of_q @ of_k.swapaxes(-1, -2)
        raised += (alike.sum(-1) <= 0).sum()
        found = rg.attention(q, k, v, mechanism=RandomFeature(1, seed=seed, sigma=sigma))
        expected = alike @ v.numpy() / np.maximum(alike.sum(-1, keepdims=True), 2 * math.exp(-8))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-10)
        assert found.abs().max() <= math.exp(8) * v.abs().max()
    assert raised > 60 * 17 * 0.1, f"{raised} of {60 * 17} sums were not positive, too few to tell"


def test_a_sum_that_was_raised_sends_finite_gradients():
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
    for seed in range(20):
        rg.attention(q, k, v, mechanism=RandomFeature(1, seed=seed, sigma=0.2)).sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_a_vector_of_length_0_stays_0_with_a_gradient_of_0():
    q, k, v = tensors()
    q[:, :, 3], k[:, :, 5] = 0, 0
    q = q.requires_grad_()
    k = k.requires_grad_()
    found = rg.attention_detail(q, k, v, mechanism=RandomFeature(4000), want="weights")
    found.output.square().sum().backward()
    assert found.output.isfinite().all()
    assert (q.grad[:, :, 3] == 0).all()
    assert (k.grad[:, :, 5] == 0).all()
    assert q.grad[:, :, 4].abs().min() > 0
    # To a query without direction all keys with one are alike, and nothing is the nearest.
    least = math.exp(-0.5)
    expected = torch.full((11,), least).double().index_fill(0, torch.tensor(5), 1) / (
        10 * least + 1
    )
    torch.testing.assert_close(found.weights[0, 0, 3], expected, rtol=0.2, atol=0)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_only_the_direction_of_queries_and_keys_counts_for_random_feature(size):
    q, k, v = tensors(dtype=torch.float32)
    found = rg.attention(q * size, k * size, v, mechanism=RandomFeature(16))
    torch.testing.assert_close(
        found, rg.attention(q, k, v, mechanism=RandomFeature(16)), rtol=1e-4, atol=1e-5
    )


# --- gates ---


def test_a_gate_of_0_forgets_everything_and_a_gate_of_1_lets_nothing_in():
    q, k, v = tensors(dtype=torch.float32)
    gate = torch.full((1, 2, 11), 0.5)
    gate[..., 6], gate[..., 7:] = 0.0, 1.0
    gate.requires_grad_()
    options = {
        "pattern": "causal",
        "mechanism": RandomFeature(1024, gated=True),
        "parameters": {"gate": gate},
    }
    found = rg.attention_detail(q, k, v, want="weights", **options)
    late = found.weights[:, :, 2:]  # the queries at 6 to 10
    assert (late[..., 6] > 0.5).all()
    assert (late.index_fill(-1, torch.tensor(6), 0).abs() < 1e-30).all()
    found.output.sum().backward()
    assert gate.grad.isfinite().all()


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
    shapes = (2, 6, q_len, 5), (2, 2, 263, 5), (2, 2, 263, 3)
    gates = torch.tensor(values, dtype=dtype)[torch.randint(len(values), (2, 2, 263))]
    gates[..., 0] = (
        0.5  # the first row sees one key: a gradient of 0, whose rounding error is divided by 1 - gate
    )
    leaves = [*(torch.randn(shape, dtype=dtype) for shape in shapes), gates]

    def results(backend, dtype):
        given = [x.to(dtype).requires_grad_() for x in leaves]
        found = rg.attention(
            *given[:3],
            pattern="causal",
            mechanism=RandomFeature(64, gated=True),
            q_start=q_start,
            parameters={"gate": given[3]},
            backend=backend,
        )
        return found, *torch.autograd.grad(found.square().sum(), given)

    # The roundings of 263 terms; in float64 also those of the exponents, which float32 computes in float64.
    logarithms = gates.clamp_min(torch.finfo(dtype).tiny).log().abs().sum(-1).max().item()
    bound = torch.finfo(dtype).eps * (263 + (logarithms if dtype == torch.float64 else 0))
    for found, exact in zip(
        results("linear", dtype), results("reference", torch.float64), strict=True
    ):
        error = (found.double() - exact).abs().max() / exact.abs().max()
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


def test_arguments_are_checked():
    for scale in (0.0, -1.0):
        with pytest.raises(UnsupportedError, match="give one above 0"):
            rg.attention(*tensors(), mechanism=Performer(13), scale=scale)
    wrong = {
        Performer: ({"features": 0}, {"features": 2.0}, {"seed": "a"}, {"orthogonal": 1}),
        RandomFeature: (
            {"features": 0},
            {"sigma": 0.1},
            {"sigma": math.nan},
            {"gated": 1},
            {"seed": 0.5},
        ),
    }
    for kind, given in wrong.items():
        for one in given:
            with pytest.raises(ArgumentError, match=f"{kind.__name__}'s {next(iter(one))}"):
                kind(**one)
