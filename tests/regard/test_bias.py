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
    sentence = "slopes? and the call 4 query heads; give one for each"
    for count in (1, 3, 5):
        with pytest.raises(rg.ShapeError, match=sentence):
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
    distances = range(-2200, 2201)
    rule = (buckets, max_distance, bidirectional)
    result = T5Relative(3, *rule).bucket(torch.tensor(distances))
    assert result.tolist() == [bucket(distance, *rule) for distance in distances]


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
    rows = []
    for i in range(k_len - q_len, k_len):
        sums = [log_forget[..., j + 1 : i + 1].sum(-1) for j in range(k_len)]
        rows.append(torch.stack(sums, -1))
    return torch.stack(rows, -2)


@pytest.mark.parametrize(
    ("pattern", "q_len"), [("causal", 11), ("causal_window(5)", 11), ("causal", 1)]
)
def test_forgetting_adds_the_logarithms_of_gates_between_key_and_query(pattern, q_len):
    sizes = {"q_len": q_len, "k_len": 11, "head_dim": 7, "v_dim": 7}
    q, k, v = make_qkv(dtype=torch.float64, **sizes)
    log_forget = torch.rand(2, 6, 11).double().neg().requires_grad_()

    def attend(log_forget: torch.Tensor) -> torch.Tensor:
        return rg.attention(q, k, v, pattern=pattern, bias=Forgetting(log_forget))

    output = attend(log_forget)
    expected = rg.attention(q, k, v, pattern=pattern, bias=forgotten(log_forget, q_len))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(output.sin().sum(), log_forget)
    (expected_gradient,) = torch.autograd.grad(expected.sin().sum(), log_forget)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)
    assert expected_gradient.abs().max() > 0.01 or q_len == 1
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(log_forget), expected, rtol=0, atol=1e-12)


def test_forgetting_over_a_long_text_keeps_its_digits():
    qkv = torch.randn(3, 1, 1, 8_192, 8)
    bias = Forgetting(torch.full((1, 1, 8_192), math.log(0.9)))
    exact = rg.attention(*qkv.double(), pattern="causal", bias=bias)
    output = rg.attention(*qkv, pattern="causal", bias=bias)
    ends = bias.by_key()[0, 0, 0, [0, -1]]
    assert ends[0] == -ends[1]  # numbers around 0 have the most digits
    # Scores up to 432 apart are rounded to 2**-15, weights by as much.
    assert (output - exact).abs().max() < 4e-4


@pytest.mark.parametrize(("backend", "q_len"), [("fused", 37), ("decode", 1), ("native", 37)])
def test_a_bias_in_float32_is_not_rounded_to_the_bfloat16_of_the_queries(backend, q_len):
    if backend == "native" and isinstance(reason := load(), str):
        pytest.skip(reason)
    qkv = [torch.randn(2, 3, length, 16).bfloat16() for length in (q_len, 37, 37)]
    bias = 1000 + torch.rand(37)  # rounded, it would be 1000 for all
    in_float64 = [x.double() for x in qkv]
    exact = rg.attention(*in_float64, pattern="causal", bias=bias.double(), backend="reference")
    output = rg.attention(*qkv, pattern="causal", bias=bias, backend=backend)
    torch.testing.assert_close(output.double(), exact, rtol=2**-6, atol=2**-8)


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
    options = {"bias": Forgetting(torch.zeros(1, 1, 3)), **options}
    with pytest.raises(rg.UnsupportedError, match=words):
        rg.attention_detail(x, x, x, **{"want": "weights", **options})
    with pytest.raises(rg.UnsupportedError, match=words):
        rg.plan_attention(x, x, x, **options)
    if "want" not in options:
        with pytest.raises(rg.UnsupportedError, match=words):
            rg.attention(x, x, x, **options)


def test_forgetting_refuses_other_shapes():
    x = torch.zeros(1, 1, 3, 4)
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
        cells = torch.tensor([*product(*map(range, shape))])  # (cells, axes)
        sizes = torch.tensor(pattern.window)
        table = bias.weight.detach().view(*(2 * sizes - 1), 6).clone().requires_grad_()
        rows = cells - cells[:, None] + sizes - 1  # of the table: (cells, cells, axes)
        near = ((rows >= 0) & (rows < 2 * sizes - 1)).all(-1)
        index = torch.where(near[..., None], rows, 0).unbind(-1)
        numbers = table[index].permute(2, 0, 1) * near
        torch.testing.assert_close(bias.pairs(), numbers)

        length = len(cells)
        q, k, v = make_qkv(q_len=length, k_len=length, v_dim=3, dtype=torch.float64)
        output = rg.attention(q, k, v, pattern=pattern, bias=bias)
        scores = q @ k.repeat_interleave(2, 1).mT / 5**0.5 + numbers
        masked = scores.masked_fill(~pattern.dense(length, length), -torch.inf)
        expected = masked.softmax(-1) @ v.repeat_interleave(2, 1)
        torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)
        grad = torch.randn_like(output)
        (gradient,) = torch.autograd.grad(output, bias.weight, grad)
        (of_table,) = torch.autograd.grad(expected, table, grad)
        torch.testing.assert_close(gradient.view_as(of_table), of_table, atol=1e-12, rtol=0)
        if not isinstance(load(), str):
            with torch.no_grad():
                assert rg.plan_attention(q, k, v, pattern=pattern, bias=bias, backend="native")

    def test_images_of_another_shape_have_the_same_parameter(self):
        bias = GridRelative(2, (5, 7), 3)
        other = bias.on((6, 11))
        assert other.weight is bias.weight
        assert tuple(other.pairs().shape) == (2, 66, 66)
        assert tuple(bias.pairs().shape) == (2, 35, 35)
        right_of_first = other.pairs()[:, 0, 1]
        torch.testing.assert_close(right_of_first, bias.pairs()[:, 0, 1])

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
        qkv = torch.randn(3, 1, 2, shape[0] * shape[1], 4)
        bias = GridRelative(2, shape, window)
        with pytest.raises(UnsupportedError, match=r"give bias.pairs\(\)"):
            rg.attention(*qkv, pattern=pattern, bias=bias)
