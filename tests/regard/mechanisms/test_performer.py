"""Performer: the paper's estimate, its convergence to softmax attention, and numbers that stay finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from features_in_numpy import attend, positive

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, UnsupportedError
from regard.mechanisms import Performer
from regard.mechanisms.draws import directions

DOUBLE = torch.empty(0, dtype=torch.float64)
POSITIONS = np.arange(4, 11)[:, None], np.arange(11)  # seven queries whose ends align with eleven keys


def tensors(size: float = 1.0, heads: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    shapes = (2, heads, 7, 5), (2, 2, 11, 5), (2, 2, 11, 3)
    return [torch.randn(shape, dtype=dtype) * factor for shape, factor in zip(shapes, (size, size, 1), strict=True)]


def allowed(name: str) -> np.ndarray:
    i, j = POSITIONS
    documents = np.arange(11) // 4
    return {
        "full": j < 99,
        "causal": j <= i,
        "causal & key_span(2, 9)": (j <= i) & (j >= 2) & (j < 9),
        "key_span(9, 11)": (j >= 9) & (i >= 0),
        "causal & documents": (j <= i) & (documents[i] == documents[j]),
    }[name]


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("name", ["full", "causal", "causal & key_span(2, 9)", "key_span(9, 11)", "causal & documents"])
def test_the_reference_is_the_estimate_of_the_paper(name, scale, orthogonal):
    q, k, v = tensors()
    mechanism = Performer(13, seed=5, orthogonal=orthogonal)
    pattern = p.Causal() & p.SameDocument(torch.arange(11) // 4) if "documents" in name else name
    want = ["log_sum_exp", "weights", "entropy"]
    found = rg.attention_detail(
        q, k, v, pattern=pattern, mechanism=mechanism, scale=scale, want=want, backend="reference"
    )

    omega = directions(5, 13, 5, orthogonal, like=DOUBLE).numpy()
    root = math.sqrt(5**-0.5 if scale is None else scale)
    of_q, of_k = (positive(root * x.numpy(), omega) for x in (q, k))
    output, sums = attend(of_q, of_k, v.numpy(), allowed(name))
    np.testing.assert_allclose(found.output.numpy(), output, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.log_sum_exp.numpy(), np.log(sums), rtol=1e-10)
    weights, _ = attend(of_q, of_k, np.broadcast_to(np.eye(11), (2, 2, 11, 11)), allowed(name))
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.entropy.numpy(), -(weights * np.log(weights + 1e-300)).sum(-1), atol=1e-9)


def kernel(mechanism: Performer, q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """φ(q)·φ(k), (batch, heads, q_len, k_len)."""
    found = mechanism.lift(q, k, scale, {})
    return found.q @ found.k.mT * (found.q_log[..., None] + found.k_log[..., None, :]).exp()


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_kernel_is_estimated_without_bias(orthogonal):
    """Of short vectors: the estimates of long ones have tails that 600 of them do not show."""
    q, k = (torch.randn(1, 1, 3, 5, dtype=torch.float64) * 0.3 for _ in range(2))
    drawn = torch.stack([kernel(Performer(7, seed, orthogonal), q, k, 0.8) for seed in range(600)])
    error = drawn.mean(0) - (0.8 * q @ k.mT).exp()
    assert (error.abs() < 4 * drawn.std(0) / math.sqrt(600)).all()
    assert (drawn.std(0) > 0.01).all(), "nothing was random"


def test_directions_at_right_angles_have_a_smaller_error():
    q, k = (torch.randn(1, 1, 5, 8, dtype=torch.float64) * 0.25 for _ in range(2))
    exact = (8**-0.5 * q @ k.mT).exp()

    def error(orthogonal):
        drawn = [kernel(Performer(8, seed, orthogonal), q, k, 8**-0.5) for seed in range(600)]
        return (torch.stack(drawn) - exact).square().mean()

    assert error(orthogonal=True) < 0.97 * error(orthogonal=False)  # over six groups of seeds 0.89 ± 0.02


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_error_against_softmax_falls_like_one_over_the_root_of_the_features(orthogonal):
    q, k, v = (torch.randn(1, 2, 16, 8, dtype=torch.float64) * size for size in (0.3, 0.3, 1.0))
    exact = rg.attention(q, k, v)
    counts, errors = [16, 32, 64, 128, 256, 512, 1024], []
    for count in counts:
        mechanisms = (Performer(count, 40 * count + draw, orthogonal) for draw in range(40))
        found = torch.stack([rg.attention(q, k, v, mechanism=one, backend="reference") for one in mechanisms])
        errors.append(float((found - exact).square().mean().sqrt()))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.15, f"the slope is {slope:.3f} (measured over twelve groups of seeds: -0.495 ± 0.01)"


def test_a_seed_gives_the_same_features_again_and_another_seed_others():
    q, k, v = tensors()
    first = rg.attention(q, k, v, mechanism=Performer(13, seed=1))
    assert torch.equal(first, rg.attention(q, k, v, mechanism=Performer(13, seed=2).redrawn(1)))
    assert Performer(13, seed=2).redrawn(1) == Performer(13, seed=1)
    assert (first - rg.attention(q, k, v, mechanism=Performer(13, seed=1).redrawn(2))).abs().max() > 1e-3


def test_the_redrawn_mechanism_keeps_everything_but_its_seed():
    assert Performer(13, 1, orthogonal=False).redrawn(7) == Performer(13, 7, orthogonal=False)


def test_drawing_leaves_the_generators_of_torch_alone():
    before = torch.get_rng_state()
    directions(12345, 17, 5, True, like=DOUBLE)
    assert torch.equal(before, torch.get_rng_state())


def test_features_first_drawn_in_inference_serve_training():
    q, k, v = (x.requires_grad_() for x in tensors())
    with torch.inference_mode():
        rg.attention(q, k, v, mechanism=Performer(13, seed=4321))
    rg.attention(q, k, v, mechanism=Performer(13, seed=4321)).sum().backward()
    assert q.grad.isfinite().all()


def test_directions_are_standard_normal_and_orthogonal_in_blocks():
    for orthogonal in (True, False):
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


def test_more_directions_begin_with_the_same_ones():
    for orthogonal in (True, False):
        few, many = (directions(3, count, 5, orthogonal, like=DOUBLE) for count in (7, 16))
        torch.testing.assert_close(few, many[:7], rtol=1e-12, atol=1e-12)


def test_what_a_seed_draws_is_written_down():
    """A model trained with a seed must meet the same directions in every version and on every machine."""
    found = directions(0, 3, 3, False, like=DOUBLE)[:, 0]
    torch.testing.assert_close(found, torch.tensor(INDEPENDENT, dtype=torch.float64), rtol=1e-12, atol=0)
    found = directions(0, 3, 3, True, like=DOUBLE)[:, 0]
    torch.testing.assert_close(found, torch.tensor(ORTHOGONAL, dtype=torch.float64), rtol=1e-12, atol=0)


INDEPENDENT = [-0.8310079539204804, 1.6238054101006205, 0.8062886199371961]
ORTHOGONAL = [-1.4109058039600575, -0.06342813679082097, 1.8992075795389147]


@pytest.mark.parametrize("pattern", ["full", "causal & key_span(2, 9)"])
@pytest.mark.parametrize("along_a_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_formula(pattern, along_a_direction):
    """Along a random direction, which depends on every derivative; the slow form compares them one by one."""
    q, k, v = (x.requires_grad_() for x in tensors(heads=2))
    call = lambda *x: rg.attention(*x, pattern=pattern, mechanism=Performer(13), backend="reference")  # noqa: E731
    assert torch.autograd.gradcheck(call, (q, k, v), fast_mode=along_a_direction)

    def tell(q, k):
        options = {"pattern": pattern, "mechanism": Performer(13), "backend": "reference"}
        return rg.attention_detail(q, k, v, want="log_sum_exp", **options).log_sum_exp

    assert torch.autograd.gradcheck(tell, (q, k), fast_mode=along_a_direction)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("pattern", ["full", "causal"])
def test_vectors_of_length_100_stay_finite(dtype, pattern):
    q, k, v = tensors(dtype=dtype)
    q, k = (100 * torch.nn.functional.normalize(x.float(), dim=-1).to(dtype) for x in (q, k))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    found = rg.attention(q, k, v, pattern=pattern, mechanism=Performer(64), scale=1.0)
    found.float().square().sum().backward()
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert found.abs().max() <= v.abs().max() * 1.01, "an average is no larger than what it is of"
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_a_finite_future_edit_changes_nothing():
    q, k, v = tensors()
    before = rg.attention(q, k, v, pattern="causal", mechanism=Performer(13))
    k[:, :, 8:] = 30.0
    v[:, :, 8:] = -50.0
    after = rg.attention(q, k, v, pattern="causal", mechanism=Performer(13))
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4:], after[:, :, 4:])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0.0}, "give one above 0"),
        ({"scale": -1.0}, "give one above 0"),
        ({"softcap": 5.0}, "has no softcap"),
        ({"bias": torch.zeros(7, 11)}, "has no bias"),
        ({"dropout": 0.1}, "has no dropout"),
        ({"pattern": "sliding_window(4)"}, ", not "),
    ],
)
def test_what_the_paper_does_not_have_is_refused(options, words):
    q, k, v = tensors(dtype=torch.float32)
    with pytest.raises(UnsupportedError, match=words):
        rg.attention(q, k, v, mechanism=Performer(13), **options)


@pytest.mark.parametrize("given", [{"features": 0}, {"features": 2.0}, {"seed": "a"}, {"orthogonal": 1}])
def test_arguments_are_checked(given):
    with pytest.raises(ArgumentError, match=f"Performer's {next(iter(given))}"):
        Performer(**given)
