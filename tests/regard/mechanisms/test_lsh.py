"""LSH attention is what the Reformer's paper says, causal without a look ahead, and reproducible."""

from typing import Any

import lsh_by_loops as loops
import numpy as np
import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import lsh as fast
from regard.mechanisms.draws import directions

EXACT = {"rtol": 1e-10, "atol": 1e-10}
both = pytest.mark.parametrize("backend", ["reference", "lsh"])
directed = pytest.mark.parametrize("causal", [False, True])


def texts(
    length: int, head_dim: int = 5, requires_grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries that are keys (2, 3, length, head_dim) and values (2, 3, length, 7)."""
    shapes = (2, 3, length, head_dim), (2, 3, length, 7)
    x, v = (
        torch.randn(shape, dtype=torch.float64, requires_grad=requires_grad) for shape in shapes
    )
    return x, v


def rotations(mechanism: m.LSH, head_dim: int) -> list[np.ndarray]:
    half = mechanism.buckets // 2
    drawn = directions(
        mechanism.seed,
        mechanism.rounds * half,
        head_dim,
        False,
        torch.empty(0, dtype=torch.float64),
    )
    return [drawn[r * half : (r + 1) * half].T.numpy() for r in range(mechanism.rounds)]


def attend(
    x: torch.Tensor, v: torch.Tensor, mechanism: m.LSH, pattern: Any = None, **options: Any
) -> torch.Tensor:
    return rg.attention(x, x, v, mechanism=mechanism, pattern=pattern, **options)


@both
@directed
@pytest.mark.parametrize(
    ("length", "chunk", "buckets", "rounds"),
    [(23, 3, 4, 1), (29, 4, 2, 3), (31, 1, 6, 2), (41, 5, 8, 3), (17, 2, 2, 2)],
)
def test_the_answer_is_that_of_plain_loops(backend, causal, length, chunk, buckets, rounds):
    mechanism = m.LSH(chunk, buckets, rounds, seed=length)
    x, v = texts(length)
    starts = [0, 5]
    stops = [length, length - 2]
    pattern = p.KeySpan(torch.tensor(starts), torch.tensor(stops)) & (
        p.Causal() if causal else p.Full()
    )
    found = rg.attention_detail(
        x, x, v, mechanism=mechanism, pattern=pattern, backend=backend, scale=0.7
    )
    for row in range(2):
        live = [starts[row] <= i < stops[row] for i in range(length)]
        for head in range(3):
            one = x[row, head].numpy()
            values = v[row, head].numpy()
            sees = loops.seen(one, rotations(mechanism, 5), chunk, causal, live)
            output, log_sum_exp = loops.attend(one, values, sees, 0.7)
            np.testing.assert_allclose(found.output[row, head], output, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(
                found.log_sum_exp[row, head], log_sum_exp, rtol=1e-10, atol=1e-10
            )


@both
def test_a_bucket_that_is_full_does_not_reach_into_the_next(backend):
    """All but the last key in one bucket, the last in the other, whichever of the two comes first."""
    direction = torch.randn(5, dtype=torch.float64)
    v = torch.randn(1, 1, 8, 7, dtype=torch.float64)
    for first in (direction, -direction):
        x = torch.stack([first] * 7 + [-first])[None, None]
        for pattern in ("causal", "full"):
            output = attend(x, v, m.LSH(chunk=3, buckets=2, rounds=2), pattern, backend=backend)
            torch.testing.assert_close(output[0, 0, 7], v[0, 0, 7], **EXACT)


@both
def test_queries_that_are_not_the_keys_are_refused(backend):
    x, v = texts(11)
    other = x.clone()
    equal = rg.attention(other, x, v, mechanism=m.LSH(2), backend=backend)
    assert torch.equal(attend(x, v, m.LSH(2), backend=backend), equal)
    other[1, 2, 4, 0] += 1e-9
    with pytest.raises(
        rg.ArgumentError, match=r"1 of 66 vectors of q are not k's.*pass the same tensor"
    ):
        rg.attention(other, x, v, mechanism=m.LSH(2), backend=backend)
    with pytest.raises(rg.ArgumentError, match="pass the same tensor"):
        # by default these are the last four
        rg.attention(x[:, :, :4], x, v, mechanism=m.LSH(2), backend=backend)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"chunk": 0}, "chunk is 0"),
        ({"buckets": 7}, "buckets is 7.*even"),
        ({"buckets": 0}, "buckets is 0"),
        ({"buckets": (4, 3)}, "buckets is .*even"),
        ({"rounds": True}, "rounds is True"),
        ({"seed": 0.5}, "seed is 0.5"),
    ],
)
def test_numbers_outside_their_range_are_refused(numbers, words):
    with pytest.raises(rg.ArgumentError, match=words):
        m.LSH(**numbers)


def test_buckets_that_are_a_product_are_hashed_factor_by_factor():
    mechanism = m.LSH(chunk=5, buckets=(4, 6), rounds=3, seed=2)
    x = torch.randn(2, 3, 41, 7, dtype=torch.float64)
    rotations = directions(2, 3 * (2 + 3), 7, orthogonal=False, like=x).split(5)
    found = mechanism.bucket(x)
    for number, R in enumerate(rotations):
        digits = [torch.cat([x @ one.mT, -x @ one.mT], -1).argmax(-1) for one in (R[:2], R[2:])]
        assert torch.equal(found[:, :, number], digits[0] * 6 + digits[1])
    assert mechanism.bucket_count == 24
    assert int(found.max()) < 24


# --- the fast form equals the formula, in values and gradients, in linear memory ---

SIZES = [(13, 3, 4, 2), (37, 5, 2, 4), (29, 1, 6, 2), (61, 8, 4, 3), (61, 5, (4, 6), 2)]


def patterns(length: int) -> list[p.Pattern]:
    short, nobody = ([3, 0], [length, 4]), ([5, 2], [5, length])  # of each batch row
    spans = [
        p.KeySpan(2, length - 3),
        *(p.KeySpan(*map(torch.tensor, ends)) for ends in (short, nobody)),
    ]
    return [p.Full(), p.Causal(), *spans, *(p.Causal() & span for span in spans)]


def told(
    backend: str, q: torch.Tensor, x: torch.Tensor, v: torch.Tensor, **options
) -> list[torch.Tensor]:
    """Output and log-sum-exp, and what both send to x and v."""
    detail = rg.attention_detail(q, x, v, backend=backend, scale=1.3, **options)
    live = detail.log_sum_exp.isfinite()
    sums = detail.log_sum_exp.where(live, 0)
    pull = torch.linspace(-1, 1, detail.output.numel(), dtype=torch.float64).view(
        detail.output.shape
    )
    loss = (detail.output * pull).sum() + (sums * sums).sum()
    sent = torch.autograd.grad(loss, (x, v), allow_unused=True, materialize_grads=True)
    return [detail.output, sums, live.double(), *sent]


@pytest.mark.parametrize(("length", "chunk", "buckets", "number"), SIZES)
def test_values_and_gradients_equal_the_formula(monkeypatch, length, chunk, buckets, number):
    monkeypatch.setattr(fast, "MOST_PAIRS", 200)
    mechanism, (x, v) = (
        m.LSH(chunk, buckets, number, seed=length),
        texts(length, requires_grad=True),
    )
    for pattern in patterns(length):
        options = {"mechanism": mechanism, "pattern": pattern}
        for found, expected in zip(
            told("lsh", x, x, v, **options), told("reference", x, x, v, **options), strict=True
        ):
            torch.testing.assert_close(
                found, expected, **EXACT, msg=lambda text, pattern=pattern: f"{pattern}: {text}"
            )


@pytest.mark.parametrize("rows", [1, 3, 11, 23])
def test_some_queries_equal_their_rows_of_the_whole(rows):
    """The last, some in the middle, and others for each batch row."""
    mechanism, (x, v) = m.LSH(4, 4, 3), texts(31, requires_grad=True)
    starts = torch.tensor([5, 2])
    by_row = torch.stack([x[row, :, at : at + rows] for row, at in enumerate(starts.tolist())])
    for pattern in patterns(31):
        for q, start in ((x[:, :, -rows:], None), (x[:, :, 4 : 4 + rows], 4), (by_row, starts)):
            options = {"mechanism": mechanism, "pattern": pattern, "q_start": start}
            expected = told("reference", q, x, v, **options)
            for one, other in zip(told("lsh", q, x, v, **options), expected, strict=True):
                torch.testing.assert_close(
                    one, other, **EXACT, msg=lambda text, pattern=pattern: f"{pattern}: {text}"
                )
    whole = rg.attention(x, x, v, mechanism=mechanism, pattern="causal", backend="lsh")
    last = rg.attention(x[:, :, -rows:], x, v, mechanism=mechanism, pattern="causal", backend="lsh")
    torch.testing.assert_close(last, whole[:, :, -rows:], **EXACT)


@both
def test_equal_tensors_apart_share_the_gradient_of_one(backend):
    x, v = texts(29, requires_grad=True)
    q = x.detach().clone().requires_grad_()
    k = x.detach().clone().requires_grad_()
    options = {"mechanism": m.LSH(4, 4, 2), "pattern": "causal", "backend": backend}
    (one,) = torch.autograd.grad(rg.attention(x, x, v, **options).square().sum(), x)
    of_q, of_k = torch.autograd.grad(rg.attention(q, k, v, **options).square().sum(), (q, k))
    assert of_q.any()
    assert of_k.any()
    torch.testing.assert_close(of_q + of_k, one, **EXACT)


@both
def test_a_vector_of_zeros_has_a_finite_gradient(backend):
    x, v = texts(29, requires_grad=True)
    with torch.no_grad():
        x[:, :, ::3] = 0
    output = rg.attention(x, x, v, mechanism=m.LSH(4, 4, 2), pattern="causal", backend=backend)
    (sent,) = torch.autograd.grad(output.square().sum(), x)
    assert sent.abs().max() < 100


def test_the_pairs_computed_grow_with_the_length():
    mechanism = m.LSH(chunk=32, buckets=16, rounds=3)
    pairs = []
    for length in (1024, 2048, 4096):
        x = torch.randn(1, 1, length, 8)
        plan = rg.plan_attention(x, x, x, mechanism=mechanism, pattern="causal", strict=True)
        assert plan.backend == "lsh"
        pairs.append(plan.cost.pairs)
    assert pairs[2] / pairs[1] == pytest.approx(2, rel=0.01)
    assert pairs[1] < 1024**2


def test_other_statistics_are_left_to_the_formula():
    x, v = texts(29)
    with pytest.raises(
        rg.UnsupportedError, match="does not compute the weights, which entropy needs"
    ):
        rg.attention_detail(x, x, v, mechanism=m.LSH(4), want="entropy", backend="lsh")
    assert (
        rg.attention_detail(x, x, v, mechanism=m.LSH(4), want="entropy").plan.backend == "reference"
    )
