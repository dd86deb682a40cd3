"""Scores, scales and queries near the ends of float32: what overflows is the score, never a query on the way to it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import regard as rg
from regard.backends import BACKENDS
from regard.patterns import ChosenKeys
from regard.testing import make_qkv
from regard.testing.oracle import answer

NAMES = ["auto", *BACKENDS]
CAP = 5.0
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def backends_for(*qkv: torch.Tensor, **options: Any) -> Iterator[str]:
    """Every backend that computes a call."""
    for name in NAMES:
        try:
            rg.attention(*qkv, backend=name, **options)
        except rg.UnsupportedError:
            continue
        yield name


def output_and_gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, **options: Any
) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    output = rg.attention(*leaves, **options)
    return [output, *torch.autograd.grad(output, leaves, grad)]


def right_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, scale: float
) -> list[torch.Tensor]:
    """Output and gradients of a causal call with a softcap, in float64."""
    query_row = torch.arange(q.shape[2])[:, None]
    allowed = torch.arange(k.shape[2]) <= query_row + k.shape[2] - q.shape[2]
    arrays = [x.double().numpy() for x in (q, k, v)]
    found = answer(
        *arrays,
        allowed.numpy(),
        scale=scale,
        softcap=CAP,
        grad_output=grad.double().numpy(),
    )
    return [torch.from_numpy(x) for x in (found.output, found.dq, found.dk, found.dv)]


@pytest.mark.each_value(pairs=[("q_len", "dtype")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("q_len", [1, 7, 23])
@pytest.mark.parametrize("scale", [1e38, -1e38, 3e36])
def test_a_softcap_makes_scores_beyond_the_range_finite_and_their_gradients_0(scale, q_len, dtype):
    q, k, v = make_qkv(q_len=q_len, k_len=29, head_dim=19, dtype=dtype)
    grad = torch.ones(*q.shape[:3], v.shape[3], dtype=dtype)
    expected = right_results(q, k, v, grad, scale)
    assert not expected[1].any()
    options = {"pattern": "causal", "scale": scale, "softcap": CAP}

    for name in backends_for(q, k, v, **options):
        output = rg.attention(q, k, v, backend=name, **options)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(
            output.double(), expected[0], atol=tolerance, rtol=tolerance, msg=name
        )
        try:
            found = output_and_gradients(q, k, v, grad, backend=name, **options)
        except rg.UnsupportedError:
            continue
        for result, right in zip(found, expected, strict=True):
            size = 1 + right.abs().max()
            assert (result.double() - right).abs().max() < tolerance * size, name


@pytest.mark.each_value(pairs=[("q_len", "pattern")])
@pytest.mark.parametrize("softcap", [None, 1e4])
@pytest.mark.parametrize("pattern", ["full", "chosen"])
@pytest.mark.parametrize("q_len", [1, 7, 31])
def test_a_query_times_the_scale_may_be_beyond_the_range_if_the_score_is_not(
    q_len, pattern, softcap
):
    """The same scores with the scale in the query are the same call."""
    q, k, v = make_qkv(q_len=q_len, k_len=37, head_dim=16, v_dim=16)
    if pattern == "chosen":
        # The lists of a row are its own, so that they are read one row at a time.
        keys = torch.arange(11) * 3 + torch.arange(q_len)[:, None] % 5
        pattern = ChosenKeys(keys.expand(2, 3, q_len, 11))
    grad = torch.ones_like(q)
    far_q = q * 2.0**100
    near_k = k * 2.0**-110
    assert not (far_q * 2.0**30).isfinite().all()

    for name in backends_for(q, k, v, pattern=pattern, softcap=softcap):
        options = {"pattern": pattern, "softcap": softcap, "backend": name}
        near = rg.attention(q, k, v, scale=2.0**20, **options)
        far = rg.attention(far_q, near_k, v, scale=2.0**30, **options)
        assert torch.equal(near, far), name
        try:
            of_near = output_and_gradients(q, k, v, grad, scale=2.0**20, **options)
        except rg.UnsupportedError:
            continue
        of_far = output_and_gradients(far_q, near_k, v, grad, scale=2.0**30, **options)
        # Weights are 0 and 1 here, so most gradients of scores are 0, which a query of inf would make NaN.
        for result, right in zip(of_far, of_near, strict=True):
            assert torch.equal(result.isfinite(), right.isfinite()), name
        assert torch.equal(of_far[0], of_near[0]), name
        assert torch.equal(of_far[3], of_near[3]), name


@pytest.mark.parametrize("want", ["received", "weights", "entropy", "log_sum_exp", "distance"])
def test_statistics_of_scores_beyond_the_range_are_those_of_the_capped_ones(want):
    q, k, v = make_qkv(q_len=13, k_len=29, head_dim=19)
    options = {"pattern": "causal", "scale": 1e38, "softcap": CAP, "want": want}
    expected = getattr(rg.attention_detail(q, k, v, backend="reference", **options), want)
    assert expected.isfinite().all()
    for name in ("auto", "native", "streamed"):
        try:
            found = getattr(rg.attention_detail(q, k, v, backend=name, **options), want)
        except rg.UnsupportedError:  # where there is no kernel
            assert name == "native"
            continue
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5, msg=name)


def test_scores_that_are_sums_of_tanh_are_capped_beyond_the_range_too():
    q, k, v = make_qkv(heads=2, kv_heads=2, q_len=7, k_len=11, head_dim=5)
    mechanism = rg.mechanisms.Softmax(rg.mechanisms.Additive(5, 5, 5))
    torch.manual_seed(0)
    parameters = {
        "query_weight": torch.randn(1, 5, 5),
        "key_weight": torch.randn(1, 5, 5),
        "energy": 5 * torch.randn(1, 5),
    }
    grad = torch.ones(*q.shape[:3], v.shape[3])
    options = {
        "mechanism": mechanism,
        "parameters": parameters,
        "scale": 1e38,
        "softcap": CAP,
        "pattern": "causal",
    }
    expected = output_and_gradients(q, k, v, grad, backend="reference", **options)
    assert all(x.isfinite().all() for x in expected)
    found = output_and_gradients(q, k, v, grad, backend="streamed", **options)
    for result, right in zip(found, expected, strict=True):
        torch.testing.assert_close(result, right, atol=1e-5, rtol=1e-5)


def test_second_derivatives_of_capped_scores_beyond_the_range_are_0():
    q, k, v = (x.requires_grad_() for x in make_qkv(q_len=7, k_len=11))
    for name in backends_for(q, k, v, softcap=CAP, scale=1e38):
        output = rg.attention(q, k, v, softcap=CAP, scale=1e38, backend=name)
        (dq,) = torch.autograd.grad(output.sum(), q, create_graph=True)
        second = torch.autograd.grad((dq * dq).sum(), (q, k))
        assert not torch.cat([x.flatten() for x in (dq, *second)]).any(), name


def test_a_lowered_program_caps_scores_beyond_the_range():
    class Capped(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return rg.attention(q, k, v, pattern="causal", softcap=CAP, scale=1e38)

    qkv = make_qkv(q_len=7, k_len=11)
    program = torch.export.export(Capped(), qkv).run_decompositions()
    torch.testing.assert_close(program.module()(*qkv), Capped()(*qkv), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("option", "number", "bounds"),
    [
        ("scale", 1e39, "±1e\\+38"),
        ("scale", -2e38, "±1e\\+38"),
        ("softcap", 1e31, "1e-30 to 1e\\+30"),
        ("softcap", 1e-31, "1e-30 to 1e\\+30"),
    ],
)
def test_a_scale_or_softcap_that_float32_cannot_hold_is_refused(option, number, bounds):
    with pytest.raises(rg.ArgumentError, match=f"{option} is .*{bounds}"):
        rg.attention(*make_qkv(), **{option: number})


def test_the_ends_of_the_allowed_softcaps_are_computed_rightly():
    for dtype in (*DTYPES, torch.float64):
        q, k, v = make_qkv(dtype=dtype)
        uncapped = rg.attention(q, k, v, backend="reference")
        mean = v.mean(2, keepdim=True).repeat_interleave(2, 1).expand(uncapped.shape)
        tolerance = TOLERANCES.get(dtype, 1e-9)
        for name in backends_for(q, k, v, softcap=CAP):
            for softcap, right in ((1e30, uncapped), (1e-30, mean)):
                found = rg.attention(q, k, v, softcap=softcap, backend=name)
                torch.testing.assert_close(
                    found, right, atol=tolerance, rtol=tolerance, msg=f"{name} {softcap}"
                )


def test_a_scale_of_float64_may_be_larger():
    q, k, v = make_qkv(dtype=torch.float64)
    for name in backends_for(q, k, v, softcap=CAP):
        output = rg.attention(q, k, v, scale=1e307, softcap=CAP, backend=name)
        assert output.isfinite().all(), name
    with pytest.raises(rg.ArgumentError, match="computed in float64"):
        rg.attention(q, k, v, scale=1e308)
