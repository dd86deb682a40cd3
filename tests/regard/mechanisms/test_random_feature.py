"""Random feature attention: the paper's estimates and gates, convergence, and denominators that are not positive."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from features_in_numpy import attend, remember, unit, waves
from torch import nn

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.mechanisms import RandomFeature
from regard.mechanisms.draws import directions

DOUBLE = torch.empty(0, dtype=torch.float64)


def tensors(heads: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    shapes = (2, heads, 7, 5), (2, 2, 11, 5), (2, 2, 11, 3)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def gates() -> torch.Tensor:
    return torch.randn(2, 2, 11, dtype=torch.float64).sigmoid()


def features(q: torch.Tensor, k: torch.Tensor, count: int, seed: int, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    w = directions(seed, count, q.shape[-1], False, like=DOUBLE).numpy() / sigma
    return waves(unit(q.numpy()), w), waves(unit(k.numpy()), w)


@pytest.mark.parametrize("sigma", [1.0, 0.6])
@pytest.mark.parametrize("pattern", ["full", "causal", "causal & key_span(2, 9)", "key_span(9, 11)"])
def test_the_reference_is_the_estimate_of_the_paper(pattern, sigma):
    q, k, v = tensors()
    mechanism = RandomFeature(13, seed=5, sigma=sigma)
    found = rg.attention_detail(q, k, v, pattern=pattern, mechanism=mechanism, want="weights", backend="reference")
    i, j = np.arange(4, 11)[:, None], np.arange(11)
    allowed = (j <= i) if "causal" in pattern else (j < 99) & (i >= 0)
    if "span" in pattern:
        first, last = (2, 9) if "causal" in pattern else (9, 11)
        allowed = allowed & (j >= first) & (j < last)
    of_q, of_k = features(q, k, 13, 5, sigma)
    output, _ = attend(of_q, of_k, v.numpy(), allowed, math.exp(-2 / sigma**2))
    np.testing.assert_allclose(found.output.numpy(), output, rtol=1e-10, atol=1e-12)
    weights, _ = attend(of_q, of_k, np.broadcast_to(np.eye(11), (2, 2, 11, 11)), allowed, math.exp(-2 / sigma**2))
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("q_start", [4, 0, -3])
def test_the_gated_reference_is_the_recurrence_of_the_paper(q_start):
    q, k, v = tensors()
    gate, mechanism = gates(), RandomFeature(13, gated=True, seed=5, sigma=0.8)
    found = rg.attention(
        q, k, v, pattern="causal", mechanism=mechanism, q_start=q_start, parameters={"gate": gate}, backend="reference"
    )
    expected = remember(*features(q, k, 13, 5, 0.8), v.numpy(), gate.numpy(), q_start, math.exp(-2 / 0.64))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_padding_forgets_nothing():
    """A text padded on the left and in the middle of nowhere: the answer is that of the text alone."""
    q, k, v = tensors()
    gate, mechanism = gates(), RandomFeature(13, gated=True)
    alone = rg.attention(
        q[:, :, 2:], k[:, :, 4:9], v[:, :, 4:9],
        pattern="causal", mechanism=mechanism, q_start=2, parameters={"gate": gate[..., 4:9]},
    )  # fmt: skip
    pattern = p.Causal() & p.KeySpan(torch.tensor([4, 4]), torch.tensor([9, 9]))
    gate[..., :4], gate[..., 9:] = math.nan, math.nan
    gate.requires_grad_()
    padded = rg.attention(q, k, v, pattern=pattern, mechanism=mechanism, parameters={"gate": gate})
    torch.testing.assert_close(padded[:, :, 2:], alone, rtol=1e-10, atol=1e-12)
    padded.sum().backward()
    assert gate.grad.isfinite().all()
    assert (gate.grad[..., :4] == 0).all()
    assert (gate.grad[..., 9:] == 0).all()


def test_another_document_forgets_nothing():
    q, k, v = tensors(heads=2)
    gate, mechanism = gates(), RandomFeature(13, gated=True)
    ids = torch.arange(11) % 2
    found = rg.attention(
        q, k, v, pattern=p.Causal() & p.SameDocument(ids), mechanism=mechanism, parameters={"gate": gate}
    )
    odd = slice(1, 11, 2)  # the queries stand at 4 to 10
    alone = rg.attention(
        q[:, :, 1::2], k[:, :, odd], v[:, :, odd],
        pattern="causal", mechanism=mechanism, parameters={"gate": gate[..., odd]},
    )  # fmt: skip
    torch.testing.assert_close(found[:, :, 1::2], alone, rtol=1e-10, atol=1e-12)


def test_a_gate_of_0_forgets_everything_and_a_gate_of_1_lets_nothing_in():
    q, k, v = tensors(dtype=torch.float32)
    gate = torch.full((1, 2, 11), 0.5)
    gate[..., 6], gate[..., 7:] = 0.0, 1.0
    gate.requires_grad_()
    mechanism = RandomFeature(1024, gated=True)
    found = rg.attention_detail(
        q, k, v, pattern="causal", mechanism=mechanism, parameters={"gate": gate}, want="weights"
    )
    late = found.weights[:, :, 2:]  # the queries at 6 to 10
    assert (late[..., 6] > 0.5).all()
    assert (late.index_fill(-1, torch.tensor(6), 0).abs() < 1e-30).all()
    found.output.sum().backward()
    assert gate.grad.isfinite().all()


def test_the_kernel_is_estimated_without_bias():
    q, k = (torch.randn(1, 1, 3, 5, dtype=torch.float64) for _ in range(2))
    found = (RandomFeature(7, seed=seed, sigma=0.9).lift(q, k, 1, {}) for seed in range(600))
    drawn = torch.stack([one.q @ one.k.mT for one in found])
    exponents = (unit(q.numpy()) @ unit(k.numpy()).swapaxes(-1, -2) - 1) / 0.81
    error = drawn.mean(0) - torch.from_numpy(np.exp(exponents))
    assert (error.abs() < 4 * drawn.std(0) / math.sqrt(600)).all()
    assert (drawn.std(0) > 0.01).all(), "nothing was random"


def test_the_error_against_softmax_of_unit_vectors_falls_like_one_over_the_root_of_the_features():
    q, k, v = (torch.randn(1, 2, 16, 8, dtype=torch.float64) for _ in range(3))
    exact = rg.attention(nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1), v, scale=1.0)
    counts, errors = [16, 32, 64, 128, 256, 512, 1024], []
    for count in counts:
        mechanisms = (RandomFeature(count, seed=40 * count + draw) for draw in range(40))
        found = torch.stack([rg.attention(q, k, v, mechanism=one, backend="reference") for one in mechanisms])
        errors.append(float((found - exact).square().mean().sqrt()))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.15, f"the slope is {slope:.3f} (measured over twelve groups of seeds: -0.53 ± 0.013)"


def test_a_sum_that_is_not_positive_is_raised_to_the_smallest_that_the_true_one_can_be():
    sigma = 0.5
    q, k, v = (torch.randn(1, 1, size, 5, dtype=torch.float64) for size in (17, 2, 2))
    raised = 0
    for seed in range(60):
        of_q, of_k = features(q, k, 1, seed, sigma)
        sums = (of_q @ of_k.swapaxes(-1, -2)).sum(-1)
        raised += (sums <= 0).sum()
        found = rg.attention(q, k, v, mechanism=RandomFeature(1, seed=seed, sigma=sigma))
        expected, _ = attend(of_q, of_k, v.numpy(), np.ones((17, 2), bool), math.exp(-8))
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
    q, k = q.requires_grad_(), k.requires_grad_()
    found = rg.attention(q, k, v, mechanism=RandomFeature(4000))
    found.square().sum().backward()
    assert found.isfinite().all()
    assert (q.grad[:, :, 3] == 0).all()
    assert (k.grad[:, :, 5] == 0).all()
    assert q.grad[:, :, 4].abs().min() > 0
    torch.testing.assert_close(  # to a query without direction all keys with one are alike, and nothing is the nearest
        rg.attention_detail(q, k, v, mechanism=RandomFeature(4000), want="weights").weights[0, 0, 3],
        torch.full((11,), math.exp(-0.5)).double().index_fill(0, torch.tensor(5), 1) / (10 * math.exp(-0.5) + 1),
        rtol=0.2, atol=0,
    )  # fmt: skip


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_only_the_direction_of_queries_and_keys_counts(size):
    q, k, v = tensors(dtype=torch.float32)
    found = rg.attention(q * size, k * size, v, mechanism=RandomFeature(16))
    torch.testing.assert_close(found, rg.attention(q, k, v, mechanism=RandomFeature(16)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_stay_finite(dtype):
    q, k, v = tensors(dtype=dtype)
    for gated in (False, True):
        handed = {"gate": torch.rand(2, 2, 11).to(dtype)} if gated else None
        found = rg.attention(
            100 * q, 100 * k, v, pattern="causal", mechanism=RandomFeature(32, gated), parameters=handed
        )
        assert found.dtype == dtype
        assert found.isfinite().all()


@pytest.mark.parametrize("pattern", ["full", "causal & key_span(2, 9)"])
@pytest.mark.parametrize("along_a_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_formula(pattern, along_a_direction):
    """Along a random direction, which depends on every derivative; the slow form compares them one by one."""
    q, k, v = (x.requires_grad_() for x in tensors(heads=2))
    call = lambda *x: rg.attention(*x, pattern=pattern, mechanism=RandomFeature(13), backend="reference")  # noqa: E731
    assert torch.autograd.gradcheck(call, (q, k, v), fast_mode=along_a_direction)


@pytest.mark.parametrize("along_a_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_gate_has_the_gradient_of_the_formula(along_a_direction):
    """Along a random direction, which depends on every derivative; the slow form compares them one by one."""
    q, k, v, gate = (x.requires_grad_() for x in (*tensors(heads=2), gates()))
    mechanism = RandomFeature(13, gated=True)
    call = lambda q, k, v, gate: rg.attention(  # noqa: E731
        q, k, v, pattern="causal & key_span(2, 9)", mechanism=mechanism, parameters={"gate": gate}, backend="reference"
    )
    assert torch.autograd.gradcheck(call, (q, k, v, gate), fast_mode=along_a_direction)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "values", [[1e-8], [1e-8, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-8], [0.0, 1e-8, 0.5, 1 - 1e-8, 1.0]], ids=str
)
@pytest.mark.parametrize(("q_len", "q_start"), [(263, 0), (100, 200), (100, None)])
def test_results_and_gradients_of_small_and_large_gates_are_as_exact_as_of_others(values, dtype, q_len, q_start):
    shapes = (2, 6, q_len, 5), (2, 2, 263, 5), (2, 2, 263, 3)
    gates = torch.tensor(values, dtype=dtype)[torch.randint(len(values), (2, 2, 263))]
    gates[..., 0] = 0.5  # the first row sees one key: a gradient of 0, whose rounding error is divided by 1 - gate
    leaves = [*(torch.randn(shape, dtype=dtype) for shape in shapes), gates]

    def answers(backend, dtype):
        given = [x.to(dtype).requires_grad_() for x in leaves]
        found = rg.attention(
            *given[:3], pattern="causal", mechanism=RandomFeature(64, gated=True), q_start=q_start,
            parameters={"gate": given[3]}, backend=backend,
        )  # fmt: skip
        return found, *torch.autograd.grad(found.square().sum(), given)

    # The roundings of 263 terms; in float64 also those of the exponents, which float32 computes in float64.
    logarithms = gates.clamp_min(torch.finfo(dtype).tiny).log().abs().sum(-1).max().item()
    bound = torch.finfo(dtype).eps * (263 + (logarithms if dtype == torch.float64 else 0))
    for found, exact in zip(answers("linear", dtype), answers("reference", torch.float64), strict=True):
        error = (found.double() - exact).abs().max() / exact.abs().max()
        assert error <= bound, f"{error:.1e} of the largest, and roundings explain {bound:.1e}"


def test_a_finite_future_edit_changes_nothing():
    q, k, v = tensors()
    gate, mechanism = gates(), RandomFeature(13, gated=True)
    call = lambda: rg.attention(q, k, v, pattern="causal", mechanism=mechanism, parameters={"gate": gate})  # noqa: E731
    before = call()
    k[:, :, 8:], v[:, :, 8:], gate[..., 8:] = 30.0, -50.0, 0.01
    after = call()
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4:], after[:, :, 4:])


def test_a_seed_gives_the_same_features_again_and_another_seed_others():
    q, k, v = tensors()
    first = rg.attention(q, k, v, mechanism=RandomFeature(13, seed=1))
    assert torch.equal(first, rg.attention(q, k, v, mechanism=RandomFeature(13, seed=2).redrawn(1)))
    assert (first - rg.attention(q, k, v, mechanism=RandomFeature(13, seed=2))).abs().max() > 1e-3
    assert RandomFeature(13, True, 1, 0.7).redrawn(3) == RandomFeature(13, True, 3, 0.7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 1.0}, "has no scale"),
        ({"softcap": 5.0}, "has no softcap"),
        ({"dropout": 0.1}, "has no dropout"),
        ({"pattern": "sliding_window(4)"}, ", not "),
    ],
)
def test_what_the_paper_does_not_have_is_refused(options, words):
    q, k, v = tensors()
    with pytest.raises(UnsupportedError, match=words):
        rg.attention(q, k, v, mechanism=RandomFeature(13), **options)


@pytest.mark.parametrize("want", ["entropy", "log_sum_exp", "distance"])
def test_statistics_of_weights_that_are_all_positive_are_refused(want):
    with pytest.raises(UnsupportedError, match=f"does not compute {want}"):
        rg.attention_detail(*tensors(), mechanism=RandomFeature(13), want=want)


def test_gates_need_a_causal_pattern_and_one_number_for_each_key():
    q, k, v = tensors()
    gated = RandomFeature(13, gated=True)
    with pytest.raises(UnsupportedError, match="full is not causal"):
        rg.attention(q, k, v, mechanism=gated, parameters={"gate": gates()})
    with pytest.raises(ArgumentError, match="needs"):
        rg.attention(q, k, v, pattern="causal", mechanism=gated)
    with pytest.raises(ShapeError, match="gate"):
        rg.attention(q, k, v, pattern="causal", mechanism=gated, parameters={"gate": gates()[..., :10]})


@pytest.mark.parametrize(
    "given", [{"features": 0}, {"sigma": 0.1}, {"sigma": math.nan}, {"sigma": math.inf}, {"gated": 1}, {"seed": 0.5}]
)
def test_arguments_are_checked(given):
    with pytest.raises(ArgumentError, match=f"RandomFeature's {next(iter(given))}"):
        RandomFeature(**{"features": 8, **given})
