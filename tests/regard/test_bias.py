"""ALiBi's slopes are the paper's; T5's buckets follow the rule of its code, and learn by its gradient."""

import math
from itertools import product

import numpy as np
import pytest
import torch

import regard as rg
from regard.backends.native.library import load
from regard.bias import ALiBi, Forgetting, GridRelative, T5Relative
from regard.errors import UnsupportedError
from regard.testing import make_qkv


def test_the_bias_falls_with_the_distance_on_both_sides():
    distances = torch.tensor([-3, 0, 2])
    assert ALiBi([0.5, 2]).by_distance(distances, 2).tolist() == [[-1.5, 0, -1], [-6, 0, -4]]


def test_it_is_a_value():
    assert ALiBi() == ALiBi()
    assert hash(ALiBi([1, 2])) == hash(ALiBi((1.0, 2.0)))
    assert ALiBi([1]) != ALiBi()
    assert str(ALiBi([0.5])) == "ALiBi([0.5])"


@pytest.mark.parametrize("slopes", [[float("nan")], [True], ["1"], [1, float("inf")]])
def test_a_slope_that_is_no_finite_number_is_refused(slopes):
    with pytest.raises(rg.ArgumentError, match="finite number"):
        ALiBi(slopes)


def test_another_number_of_heads_is_refused():
    q, k, v = make_qkv(heads=4, kv_heads=2)
    for count in (1, 3, 5):
        with pytest.raises(
            rg.ShapeError, match=r"slopes? and the call 4 query heads; give one for each"
        ):
            rg.attention(q, k, v, bias=ALiBi([0.5] * count))
    with pytest.raises(rg.ShapeError, match="has 2 heads and the call 4"):
        rg.attention(q, k, v, bias=T5Relative(2))


def bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The rule in words: half the buckets for each side; half of a side for single distances; the rest by logarithm."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        far = abs(distance)
    else:
        far = max(0, -distance)
    exact = buckets // 2
    if far < exact:
        return first + far
    # in float32, as T5 computes it
    share = np.log(np.float32(far) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return first + min(buckets - 1, exact + int(share * np.float32(buckets - exact)))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16), (31, 100), (4, 2000)])
def test_every_distance_falls_into_the_bucket_of_the_rule(buckets, max_distance, bidirectional):
    distances = torch.arange(-2200, 2201)
    told = T5Relative(3, buckets, max_distance, bidirectional).bucket(distances)
    assert told.tolist() == [
        bucket(d, buckets, max_distance, bidirectional) for d in distances.tolist()
    ]


def test_a_frozen_one_does_not_learn_and_may_be_fused():
    q, k, v = make_qkv()
    bias = T5Relative(6).requires_grad_(False)
    assert not bias.learns
    assert rg.plan_attention(q, k, v, bias=bias, backend="fused").backend == "fused"
    with pytest.raises(rg.UnsupportedError, match="give a bias no gradient"):
        rg.plan_attention(q, k, v, bias=T5Relative(6), backend="fused")


@pytest.mark.parametrize(
    "sizes", [{"heads": 0}, {"heads": 1, "buckets": 3}, {"heads": 1, "max_distance": 8}]
)
def test_sizes_that_leave_a_distance_no_bucket_are_refused(sizes):
    with pytest.raises(rg.ArgumentError, match="needs 1 head or more, 2 buckets"):
        T5Relative(**sizes)


def forgotten(log_forget: torch.Tensor, q_len: int) -> torch.Tensor:
    """The formula, pair by pair: (batch, heads, q_len, k_len), for queries that end with the keys."""
    k_len = log_forget.shape[-1]
    rows = [
        torch.stack([log_forget[..., j + 1 : i + 1].sum(-1) for j in range(k_len)], -1)
        for i in range(k_len - q_len, k_len)
    ]
    return torch.stack(rows, -2)


@pytest.mark.parametrize(
    ("pattern", "q_len"), [("causal", 11), ("causal_window(5)", 11), ("causal", 1)]
)
def test_forgetting_adds_the_logarithms_of_gates_between_key_and_query(pattern, q_len):
    q, k, v = (
        torch.randn(2, heads, length, 7).double()
        for heads, length in ((6, q_len), (3, 11), (3, 11))
    )
    log_forget = torch.rand(2, 6, 11).double().neg().requires_grad_()
    calls = {"formula": forgotten(log_forget, q_len), "by key": Forgetting(log_forget)}
    found = {
        name: rg.attention(q, k, v, pattern=pattern, bias=bias) for name, bias in calls.items()
    }
    torch.testing.assert_close(found["by key"], found["formula"], rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(one.sin().sum(), log_forget)[0] for one in found.values()]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)
    assert grads[0].abs().max() > 0.01 or q_len == 1
    compiled = torch.compile(
        lambda gates: rg.attention(q, k, v, pattern=pattern, bias=Forgetting(gates)),
        backend="eager",
        fullgraph=True,
    )
    torch.testing.assert_close(compiled(log_forget), found["formula"], rtol=0, atol=1e-12)


def test_forgetting_over_a_long_text_keeps_its_digits():
    q, k, v = torch.randn(3, 1, 1, 8_192, 8).double().unbind(0)
    log_forget = torch.full((1, 1, 8_192), math.log(0.9))
    exact = rg.attention(q, k, v, pattern="causal", bias=Forgetting(log_forget))
    found = rg.attention(
        q.float(), k.float(), v.float(), pattern="causal", bias=Forgetting(log_forget)
    )
    ends = Forgetting(log_forget).by_key()[0, 0, 0, [0, -1]]
    assert ends[0] == -ends[1]  # numbers around 0 have the most digits
    assert (
        found - exact
    ).abs().max() < 4e-4  # scores up to 432 apart are rounded to 2**-15, weights by as much


@pytest.mark.parametrize(("backend", "q_len"), [("fused", 37), ("decode", 1), ("native", 37)])
def test_a_bias_in_float32_is_not_rounded_to_the_bfloat16_of_the_queries(backend, q_len):
    if backend == "native" and isinstance(reason := load(), str):
        pytest.skip(reason)
    q, k, v = (torch.randn(2, 3, length, 16).bfloat16() for length in (q_len, 37, 37))
    bias = 1000 + torch.rand(37)
    wide = [x.double() for x in (q, k, v)]
    exact = rg.attention(*wide, pattern="causal", bias=bias.double(), backend="reference")
    found = rg.attention(q, k, v, pattern="causal", bias=bias, backend=backend)
    # rounded, bias would be 1000 for all
    torch.testing.assert_close(found.double(), exact, rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "pattern full looks ahead"),
        ({"pattern": "causal", "sink": 0.0}, "which a sink does not allow"),
        ({"pattern": "causal", "want": "log_sum_exp"}, "which log_sum_exp does not allow"),
    ],
)
def test_forgetting_refuses_what_would_need_the_number_of_each_row(options, words):
    x = torch.zeros(1, 1, 3, 4)
    bias = Forgetting(torch.zeros(1, 1, 3))
    ways = [rg.attention_detail, rg.plan_attention] + [rg.attention] * ("want" not in options)
    for way in ways:
        more = {"want": "weights"} if way is rg.attention_detail else {}
        with pytest.raises(rg.UnsupportedError, match=words):
            way(x, x, x, bias=bias, **more | options)
    with pytest.raises(rg.ShapeError, match="logarithms of gates"):
        Forgetting(torch.zeros(3))
    with pytest.raises(rg.ShapeError, match="does not broadcast"):
        rg.attention(x, x, x, pattern="causal", bias=Forgetting(torch.zeros(1, 1, 5)))


class TestGridRelative:
    """Against the offsets of cells, pair by pair."""

    @pytest.mark.parametrize(
        ("shape", "window", "causal"),
        [((5, 7), (3, 4), False), ((3, 6), 3, False), ((4, 5, 3), (4, 3, 2), True)],
    )
    def test_values_and_gradients_are_those_of_the_offsets(self, shape, window, causal):
        torch.manual_seed(2)
        pattern = rg.patterns.Neighbourhood(shape, window, causal=causal)
        bias = GridRelative(6, shape, window).double()
        cells = torch.tensor([*product(*map(range, shape))])
        wide = torch.tensor(pattern.window)
        table = bias.weight.detach().view(*(2 * wide - 1), 6).clone().requires_grad_()
        offset = (cells - cells[:, None] + wide - 1).unbind(-1)
        near = torch.stack(
            [(one >= 0) & (one < 2 * w - 1) for one, w in zip(offset, wide, strict=True)]
        ).all(0)
        numbers = table[tuple(torch.where(near, one, 0) for one in offset)].permute(2, 0, 1) * near
        torch.testing.assert_close(bias.pairs(), numbers)
        q, k, v = make_qkv(
            batch=2,
            heads=6,
            kv_heads=3,
            q_len=len(cells),
            k_len=len(cells),
            head_dim=5,
            v_dim=3,
            dtype=torch.float64,
        )
        found = rg.attention(q, k, v, pattern=pattern, bias=bias)
        mask = pattern.dense(len(cells), len(cells))
        expected = (
            (q @ k.repeat_interleave(2, 1).mT / 5**0.5 + numbers)
            .masked_fill(~mask, -torch.inf)
            .softmax(-1)
        ) @ v.repeat_interleave(2, 1)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        grad = torch.randn_like(found)
        [mine], [theirs] = (
            torch.autograd.grad(found, bias.weight, grad),
            torch.autograd.grad(expected, table, grad),
        )
        torch.testing.assert_close(mine.view_as(theirs), theirs, atol=1e-12, rtol=0)
        with torch.no_grad():
            assert isinstance(load(), str) or rg.plan_attention(
                q, k, v, pattern=pattern, bias=bias, backend="native"
            )

    @pytest.mark.parametrize(
        ("shape", "window", "pattern"),
        [
            ((5, 7), 3, "full"),
            ((5, 7), 3, "neighbourhood((7, 5), 3)"),
            ((5, 7), 3, "neighbourhood((5, 7), (3, 4))"),
            ((7, 7), 5, "neighbourhood((7, 7), 5)"),
            ((5, 7), 3, "neighbourhood((5, 7), 3) | prefix(1)"),
        ],
    )
    def test_pairs_whose_offsets_a_distance_does_not_give_are_refused(self, shape, window, pattern):
        n = shape[0] * shape[1]
        with pytest.raises(UnsupportedError, match=r"give bias.pairs\(\)"):
            rg.attention(
                *torch.randn(3, 1, 2, n, 4), pattern=pattern, bias=GridRelative(2, shape, window)
            )
