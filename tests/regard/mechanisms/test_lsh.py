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
BATCH = 2
HEADS = 3
HEAD_DIM = 5
VALUE_DIM = 7
both_backends = pytest.mark.parametrize("backend", ["reference", "lsh"])


def texts(length: int, requires_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries that are keys, and values."""
    options = {"dtype": torch.float64, "requires_grad": requires_grad}
    x = torch.randn(BATCH, HEADS, length, HEAD_DIM, **options)
    v = torch.randn(BATCH, HEADS, length, VALUE_DIM, **options)
    return x, v


def rotations(mechanism: m.LSH) -> list[np.ndarray]:
    """R of each round, (HEAD_DIM, buckets / 2)."""
    half = mechanism.buckets // 2
    like = torch.empty(0, dtype=torch.float64)
    count = mechanism.rounds * half
    rows = directions(mechanism.seed, count, HEAD_DIM, orthogonal=False, like=like)
    return [of_round.T.numpy() for of_round in rows.split(half)]


def attend(
    x: torch.Tensor, v: torch.Tensor, mechanism: m.LSH, pattern: Any = None, **options: Any
) -> torch.Tensor:
    return rg.attention(x, x, v, mechanism=mechanism, pattern=pattern, **options)


@both_backends
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "chunk", "buckets", "rounds"),
    [(23, 3, 4, 1), (29, 4, 2, 3), (31, 1, 6, 2), (41, 5, 8, 3), (17, 2, 2, 2)],
)
def test_the_output_is_that_of_plain_loops(backend, causal, length, chunk, buckets, rounds):
    mechanism = m.LSH(chunk, buckets, rounds, seed=length)
    x, v = texts(length)
    starts = [0, 5]
    stops = [length, length - 2]
    pattern = p.KeySpan(torch.tensor(starts), torch.tensor(stops))
    if causal:
        pattern = pattern & p.Causal()
    detail = rg.attention_detail(
        x, x, v, mechanism=mechanism, pattern=pattern, backend=backend, scale=0.7
    )
    for row in range(BATCH):
        is_visible = [starts[row] <= i < stops[row] for i in range(length)]
        for head in range(HEADS):
            vectors = x[row, head].numpy()
            values = v[row, head].numpy()
            keys = loops.allowed_keys(vectors, rotations(mechanism), chunk, causal, is_visible)
            output, log_sum_exp = loops.attend(vectors, values, keys, 0.7)
            np.testing.assert_allclose(detail.output[row, head], output, **EXACT)
            np.testing.assert_allclose(detail.log_sum_exp[row, head], log_sum_exp, **EXACT)


@both_backends
def test_a_bucket_that_is_full_does_not_reach_into_the_next(backend):
    """All but the last key in one bucket, the last in the other, whichever of the two comes first."""
    direction = torch.randn(5, dtype=torch.float64)
    v = torch.randn(1, 1, 8, 7, dtype=torch.float64)
    for first in (direction, -direction):
        x = torch.stack([first] * 7 + [-first])[None, None]
        for pattern in ("causal", "full"):
            output = attend(x, v, m.LSH(chunk=3, buckets=2, rounds=2), pattern, backend=backend)
            torch.testing.assert_close(output[0, 0, 7], v[0, 0, 7], **EXACT)


@both_backends
def test_queries_that_are_not_the_keys_are_refused(backend):
    x, v = texts(11)
    options = {"mechanism": m.LSH(2), "backend": backend}
    q = x.clone()
    assert torch.equal(rg.attention(x, x, v, **options), rg.attention(q, x, v, **options))
    q[1, 2, 4, 0] += 1e-9
    with pytest.raises(
        rg.ArgumentError, match=r"1 of 66 vectors of q are not k's.*pass the same tensor"
    ):
        rg.attention(q, x, v, **options)
    with pytest.raises(rg.ArgumentError, match="pass the same tensor"):
        # Without q_start these four would be the last ones.
        rg.attention(x[:, :, :4], x, v, **options)


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
    by_round = directions(2, 3 * (2 + 3), 7, orthogonal=False, like=x).split(5)
    buckets = mechanism.bucket(x)
    for number, R in enumerate(by_round):
        of_four = torch.cat([x @ R[:2].mT, -x @ R[:2].mT], -1).argmax(-1)
        of_six = torch.cat([x @ R[2:].mT, -x @ R[2:].mT], -1).argmax(-1)
        assert torch.equal(buckets[:, :, number], of_four * 6 + of_six)
    assert mechanism.bucket_count == 24
    assert int(buckets.max()) < 24


# The fast form equals the formula, in values and gradients, in linear memory

SIZES = [(13, 3, 4, 2), (37, 5, 2, 4), (29, 1, 6, 2), (61, 8, 4, 3), (61, 5, (4, 6), 2)]


def patterns(length: int) -> list[p.Pattern]:
    """All that LSH takes; in one the first batch row, in another some rows of both look at no key."""
    spans = [
        p.KeySpan(2, length - 3),
        p.KeySpan(torch.tensor([3, 0]), torch.tensor([length, 4])),
        p.KeySpan(torch.tensor([5, 2]), torch.tensor([5, length])),
    ]
    causal_spans = [p.Causal() & span for span in spans]
    return [p.Full(), p.Causal(), *spans, *causal_spans]


def outputs_and_gradients(
    backend: str, q: torch.Tensor, x: torch.Tensor, v: torch.Tensor, **options: Any
) -> dict[str, torch.Tensor]:
    """Output and log-sum-exp, and the gradients of x and v through both."""
    detail = rg.attention_detail(q, x, v, backend=backend, scale=1.3, **options)
    has_keys = detail.log_sum_exp.isfinite()
    log_sum_exp = detail.log_sum_exp.where(has_keys, 0)
    slopes = torch.linspace(-1, 1, detail.output.numel(), dtype=torch.float64)
    loss = (detail.output * slopes.view(detail.output.shape)).sum() + log_sum_exp.square().sum()
    grad_x, grad_v = torch.autograd.grad(loss, (x, v), allow_unused=True, materialize_grads=True)
    return {
        "output": detail.output,
        "log_sum_exp": log_sum_exp,
        "rows with keys": has_keys.double(),
        "gradient of x": grad_x,
        "gradient of v": grad_v,
    }


def check_equals_formula(q: torch.Tensor, x: torch.Tensor, v: torch.Tensor, **options: Any) -> None:
    computed = outputs_and_gradients("lsh", q, x, v, **options)
    expected = outputs_and_gradients("reference", q, x, v, **options)
    for name, tensor in computed.items():
        place = f"{name} of {options['pattern']}"
        torch.testing.assert_close(
            tensor, expected[name], **EXACT, msg=lambda text, place=place: f"{place}: {text}"
        )


@pytest.mark.parametrize(("length", "chunk", "buckets", "rounds"), SIZES)
def test_values_and_gradients_equal_the_formula(monkeypatch, length, chunk, buckets, rounds):
    monkeypatch.setattr(fast, "MOST_PAIRS", 200)
    mechanism = m.LSH(chunk, buckets, rounds, seed=length)
    x, v = texts(length, requires_grad=True)
    for pattern in patterns(length):
        check_equals_formula(x, x, v, mechanism=mechanism, pattern=pattern)


@pytest.mark.parametrize("rows", [1, 3, 11, 23])
def test_some_queries_equal_their_rows_of_the_whole(rows):
    """The last, some in the middle, and others for each batch row."""
    mechanism = m.LSH(4, 4, 3)
    x, v = texts(31, requires_grad=True)
    last_rows = x[:, :, -rows:]
    middle_rows = x[:, :, 4 : 4 + rows]
    rows_of_each = torch.stack([x[0, :, 5 : 5 + rows], x[1, :, 2 : 2 + rows]])
    for pattern in patterns(31):
        options = {"mechanism": mechanism, "pattern": pattern}
        check_equals_formula(last_rows, x, v, **options, q_start=None)
        check_equals_formula(middle_rows, x, v, **options, q_start=4)
        check_equals_formula(rows_of_each, x, v, **options, q_start=torch.tensor([5, 2]))

    whole = attend(x, v, mechanism, "causal", backend="lsh")
    last = rg.attention(last_rows, x, v, mechanism=mechanism, pattern="causal", backend="lsh")
    torch.testing.assert_close(last, whole[:, :, -rows:], **EXACT)


@both_backends
def test_equal_tensors_apart_share_the_gradient_of_one(backend):
    x, v = texts(29, requires_grad=True)
    q = x.detach().clone().requires_grad_()
    k = x.detach().clone().requires_grad_()
    options = {"mechanism": m.LSH(4, 4, 2), "pattern": "causal", "backend": backend}
    (grad_x,) = torch.autograd.grad(rg.attention(x, x, v, **options).square().sum(), x)
    grad_q, grad_k = torch.autograd.grad(rg.attention(q, k, v, **options).square().sum(), (q, k))
    assert grad_q.any()
    assert grad_k.any()
    torch.testing.assert_close(grad_q + grad_k, grad_x, **EXACT)


@both_backends
def test_a_vector_of_zeros_has_a_finite_gradient(backend):
    x, v = texts(29, requires_grad=True)
    with torch.no_grad():
        x[:, :, ::3] = 0
    output = attend(x, v, m.LSH(4, 4, 2), "causal", backend=backend)
    (grad,) = torch.autograd.grad(output.square().sum(), x)
    assert grad.abs().max() < 100


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
    options = {"mechanism": m.LSH(4), "want": "entropy"}
    with pytest.raises(
        rg.UnsupportedError, match="does not compute the weights, which entropy needs"
    ):
        rg.attention_detail(x, x, v, **options, backend="lsh")
    assert rg.attention_detail(x, x, v, **options).plan.backend == "reference"
