"""The oracle is checked against triple loops in pure Python, finite differences and sums computed by hand."""

import math
import random

import numpy as np
import pytest

from regard.testing import answer, kept_weights


def by_triple_loops(q, k, v, allowed, scale, softcap, bias):
    """Lists of numbers only; q[b][h][i][c] and so on."""
    out, lse = [], []
    for b in range(len(q)):
        for h in range(len(q[b])):
            g = h // (len(q[b]) // len(k[b]))
            for i in range(len(q[b][h])):
                scores = []
                for j in range(len(k[b][g])):
                    s = scale * sum(x * y for x, y in zip(q[b][h][i], k[b][g][j], strict=True))
                    s = softcap * math.tanh(s / softcap) if softcap else s
                    scores.append(s + bias[b][h][i][j] if allowed[b][h][i][j] else -math.inf)
                total = math.fsum(math.exp(s) for s in scores)
                lse.append(math.log(total) if total else -math.inf)
                weights = [math.exp(s) / total if total else 0.0 for s in scores]
                columns = range(len(v[b][g][0]) if v[b][g] else 0)
                out.append([math.fsum(w * v[b][g][j][c] for j, w in enumerate(weights)) for c in columns])
    return out, lse


def small_case(seed: int):
    draw = random.Random(seed)
    numbers = np.random.default_rng(seed)
    kv_heads, group = draw.choice([(1, 1), (1, 3), (2, 2), (3, 1)])
    b, h, i, j, d, e = draw.choice([1, 2]), kv_heads * group, draw.choice([1, 3]), draw.choice([1, 2, 4]), 2, 3
    q, k, v = (numbers.normal(size=s) for s in ((b, h, i, d), (b, kv_heads, j, d), (b, kv_heads, j, e)))
    options = {
        "scale": draw.choice([0.5, -1.0, 0.0]), "softcap": draw.choice([None, 0.7]),
        "bias": numbers.normal(size=(b, h, i, j)) * draw.choice([0, 1]),
    }  # fmt: skip
    return q, k, v, numbers.random((b, h, i, j)) < 0.7, options, numbers


@pytest.mark.parametrize("block", range(10))
def test_values_equal_triple_loops(block):
    for seed in range(200 * block, 200 * block + 200):
        q, k, v, allowed, options, _ = small_case(seed)
        found = answer(q, k, v, allowed, **options)
        lists = (x.tolist() for x in (q, k, v, allowed))
        output, lse = by_triple_loops(*lists, options["scale"], options["softcap"], options["bias"].tolist())
        np.testing.assert_allclose(found.output.reshape(len(output), -1), output, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found.log_sum_exp.ravel(), lse, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", range(40))
def test_gradients_equal_finite_differences(seed):
    q, k, v, allowed, options, numbers = small_case(seed)
    options["factors"] = (numbers.random(allowed.shape) < 0.8) / 0.8
    grads = {"grad_output": numbers.normal(size=(*q.shape[:3], v.shape[3]))}
    seen = answer(q, k, v, allowed, **options).log_sum_exp > -np.inf
    grads["grad_log_sum_exp"] = numbers.normal(size=seen.shape)
    found = answer(q, k, v, allowed, **options, **grads)

    def loss() -> float:
        now = answer(q, k, v, allowed, **options)
        return (now.output * grads["grad_output"]).sum() + (now.log_sum_exp * grads["grad_log_sum_exp"])[seen].sum()

    for x, gradient in ((q, found.dq), (k, found.dk), (v, found.dv), (options["bias"], found.dbias)):
        for place in numbers.integers(0, x.size, size=4):
            kept, step = x.flat[place], 1e-6
            x.flat[place] = kept + step
            above = loss()
            x.flat[place] = kept - step
            below = loss()
            x.flat[place] = kept
            assert gradient.flat[place] == pytest.approx((above - below) / (2 * step), rel=2e-5, abs=2e-7)


def test_the_gradient_of_a_broadcast_bias_has_its_shape():
    q, k, v, allowed, _options, numbers = small_case(2)
    whole = answer(q, k, v, allowed, scale=1.0, grad_output=numbers.normal(size=(*q.shape[:3], 3)))
    assert whole.dbias.shape == (1, 1, 1, 1)
    np.testing.assert_allclose(whole.dbias, 0, atol=1e-12)  # the same number on every score changes nothing


def test_kept_weights_are_the_splitmix_of_steele_by_hand():
    def scramble(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    strides = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63
    kept = kept_weights(0.5, 123, 2, 3, np.arange(-2, 3), np.arange(4))
    for place in np.ndindex(kept.shape):
        state = 123
        for counter, stride in zip((place[0], place[1], place[2] - 2, place[3]), strides, strict=True):
            state = scramble((state + (counter + 1) * stride) % 2**64)
        assert kept[place] == (state >> 11 >= 2**52)
