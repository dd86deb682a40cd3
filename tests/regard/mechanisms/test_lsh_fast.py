"""The fast form of LSH attention equals its formula, in values and gradients, in linear memory."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import lsh as rounds

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SIZES = [(13, 3, 4, 2), (37, 5, 2, 4), (29, 1, 6, 2), (61, 8, 4, 3)]


def texts(length: int, requires_grad: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries that are keys (2, 3, length, 5) and values (2, 3, length, 7)."""
    shapes = (2, 3, length, 5), (2, 3, length, 7)
    x, v = (torch.randn(shape, dtype=torch.float64, requires_grad=requires_grad) for shape in shapes)
    return x, v


def patterns(length: int) -> list[p.Pattern]:
    short, nobody = ([3, 0], [length, 4]), ([5, 2], [5, length])  # of each batch row
    spans = [p.KeySpan(2, length - 3), *(p.KeySpan(*map(torch.tensor, ends)) for ends in (short, nobody))]
    return [p.Full(), p.Causal(), *spans, *(p.Causal() & span for span in spans)]


def told(backend: str, q: torch.Tensor, x: torch.Tensor, v: torch.Tensor, **options) -> list[torch.Tensor]:
    """Output and log-sum-exp, and what both send to x and v."""
    detail = rg.attention_detail(q, x, v, backend=backend, scale=1.3, **options)
    live = detail.log_sum_exp.isfinite()
    sums = detail.log_sum_exp.where(live, 0)
    pull = torch.linspace(-1, 1, detail.output.numel(), dtype=torch.float64).view(detail.output.shape)
    loss = (detail.output * pull).sum() + (sums * sums).sum()
    sent = torch.autograd.grad(loss, (x, v), allow_unused=True, materialize_grads=True)
    return [detail.output, sums, live.double(), *sent]


@pytest.mark.parametrize("block", [200, rounds.BLOCK])
@pytest.mark.parametrize(("length", "chunk", "buckets", "number"), SIZES)
def test_values_and_gradients_equal_the_formula(monkeypatch, block, length, chunk, buckets, number):
    monkeypatch.setattr(rounds, "BLOCK", block)
    mechanism, (x, v) = m.LSH(chunk, buckets, number, seed=length), texts(length)
    for pattern in patterns(length):
        options = {"mechanism": mechanism, "pattern": pattern}
        for found, expected in zip(told("lsh", x, x, v, **options), told("reference", x, x, v, **options), strict=True):
            torch.testing.assert_close(found, expected, **EXACT, msg=lambda text: f"{pattern}: {text}")  # noqa: B023


@pytest.mark.parametrize("rows", [1, 3, 11, 23])
def test_some_queries_equal_their_rows_of_the_whole(rows):
    """The last, some in the middle, and others for each batch row."""
    mechanism, (x, v) = m.LSH(4, 4, 3), texts(31)
    starts = torch.tensor([5, 2])
    by_row = torch.stack([x[row, :, at : at + rows] for row, at in enumerate(starts.tolist())])
    for pattern in patterns(31):
        for q, start in ((x[:, :, -rows:], None), (x[:, :, 4 : 4 + rows], 4), (by_row, starts)):
            options = {"mechanism": mechanism, "pattern": pattern, "q_start": start}
            expected = told("reference", q, x, v, **options)
            for one, other in zip(told("lsh", q, x, v, **options), expected, strict=True):
                torch.testing.assert_close(one, other, **EXACT, msg=lambda text: f"{pattern}: {text}")  # noqa: B023
    whole = rg.attention(x, x, v, mechanism=mechanism, pattern="causal", backend="lsh")
    last = rg.attention(x[:, :, -rows:], x, v, mechanism=mechanism, pattern="causal", backend="lsh")
    torch.testing.assert_close(last, whole[:, :, -rows:], **EXACT)


@pytest.mark.parametrize("backend", ["reference", "lsh"])
def test_queries_that_stand_before_the_first_key_are_zeros_with_zero_gradient(backend):
    x, v = texts(13)
    for pattern in (p.Full(), p.Causal()):
        q = torch.cat([torch.full((2, 3, 3, 5), torch.nan, dtype=torch.float64), x], 2).detach().requires_grad_()
        output = rg.attention(q, x, v, mechanism=m.LSH(3, 4), pattern=pattern, backend=backend)
        whole = rg.attention(x, x, v, mechanism=m.LSH(3, 4), pattern=pattern, backend=backend)
        torch.testing.assert_close(output[:, :, 3:], whole, **EXACT)
        (sent,) = torch.autograd.grad(output.sum(), q)
        assert not output[:, :, :3].any()
        assert not sent[:, :, :3].any()
        assert sent.isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "lsh"])
@pytest.mark.parametrize("pattern", ["full", "causal"])
@pytest.mark.parametrize("along_a_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_function(backend, pattern, along_a_direction):
    """By finite differences, too small to carry a key over the border of its bucket; all at once along a random
    direction, and one by one in the slow form."""
    x, v = (torch.randn(1, 2, 17, size, dtype=torch.float64, requires_grad=True) for size in (3, 2))
    mechanism = m.LSH(3, 4, 2)
    assert torch.autograd.gradcheck(
        lambda x, v: rg.attention(x, x, v, mechanism=mechanism, pattern=pattern, backend=backend),
        (x, v),
        fast_mode=along_a_direction,
    )


@pytest.mark.parametrize("backend", ["reference", "lsh"])
def test_equal_tensors_apart_share_the_gradient_of_one(backend):
    x, v = texts(29)
    q, k = x.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
    options = {"mechanism": m.LSH(4, 4, 2), "pattern": "causal", "backend": backend}
    (one,) = torch.autograd.grad(rg.attention(x, x, v, **options).square().sum(), x)
    of_q, of_k = torch.autograd.grad(rg.attention(q, k, v, **options).square().sum(), (q, k))
    assert of_q.any()
    assert of_k.any()
    torch.testing.assert_close(of_q + of_k, one, **EXACT)


@pytest.mark.parametrize("backend", ["reference", "lsh"])
def test_a_vector_of_zeros_has_a_finite_gradient(backend):
    x, v = texts(29)
    with torch.no_grad():
        x[:, :, ::3] = 0
    output = rg.attention(x, x, v, mechanism=m.LSH(4, 4, 2), pattern="causal", backend=backend)
    (sent,) = torch.autograd.grad(output.square().sum(), x)
    assert sent.abs().max() < 100


def test_the_pairs_computed_grow_with_the_length():
    mechanism, pairs = m.LSH(chunk=32, buckets=16, rounds=3), []
    for length in (1024, 2048, 4096):
        x = torch.randn(1, 1, length, 8)
        plan = rg.plan_attention(x, x, x, mechanism=mechanism, pattern="causal", strict=True)
        assert plan.backend == "lsh"
        pairs.append(plan.cost.pairs)
    assert pairs[2] / pairs[1] == pytest.approx(2, rel=0.01)
    assert pairs[1] < 1024**2


def test_other_statistics_are_left_to_the_formula():
    x, v = texts(29, requires_grad=False)
    with pytest.raises(rg.UnsupportedError, match="does not compute the weights, which entropy needs"):
        rg.attention_detail(x, x, v, mechanism=m.LSH(4), want="entropy", backend="lsh")
    assert rg.attention_detail(x, x, v, mechanism=m.LSH(4), want="entropy").plan.backend == "reference"
