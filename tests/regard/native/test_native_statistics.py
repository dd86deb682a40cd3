"""Statistics of the kernel: against formulas in float64, and their bits."""

import math
import random
from typing import Any

import pytest
import torch

import regard as rg
from regard.backends.native.kernel import with_kernel_statistics
from regard.backends.native.library import MOST_TOP, SPAN
from regard.backends.statistics.second_pass import with_statistics
from regard.core.backend import Cost
from regard.core.call import make_problem
from regard.core.result import Result
from regard.testing import make_qkv

OF_ROWS = ("entropy", "distance", rg.top_keys(5))
PATTERNS = (
    "full",
    "causal",
    "sliding_window(40) | global_tokens(1)",
    "strided(13) & causal",
    "causal_window(200)",
)
# (q_len, k_len, heads, kv_heads), and how many top keys
SIZES = [
    ((257, 257, 4, 2), 20),
    ((33, 401, 6, 2), MOST_TOP),
    ((3, SPAN + 777, 8, 2), 40),
    ((1, 70, 2, 2), 1),
]


@pytest.mark.parametrize("instructions", [0, 2])
@pytest.mark.parametrize(("sizes", "top"), SIZES)
def test_statistics_equal_the_formula(native, sizes, top, instructions):
    native.handle.rg_use_instructions(instructions)
    q_len, k_len, heads, kv_heads = sizes
    for number, text in enumerate(PATTERNS):
        q, k, v = make_qkv(
            batch=2,
            heads=heads,
            kv_heads=kv_heads,
            q_len=q_len,
            k_len=k_len,
            dtype=torch.float32,
            seed=number,
        )
        last = [q_len - 1] if q_len == 1 else [q_len - 1, 0]
        want = [
            "entropy",
            "received",
            "distance",
            "weights",
            rg.top_keys(top),
            rg.weights_of(last, [heads - 1]),
        ]
        found = rg.attention_detail(q, k, v, pattern=text, want=want, backend="native")
        wide = (x.double() for x in (q, k, v))
        expected = rg.attention_detail(*wide, pattern=text, want=want, backend="reference")
        for name, atol in (
            ("entropy", 3e-6),
            ("received", 1e-5),
            ("distance", 1e-3),
            ("weights", 1e-6),
            ("chosen_weights", 1e-6),
        ):
            one, other = (getattr(detail, name).double() for detail in (found, expected))
            torch.testing.assert_close(one, other, rtol=2e-5, atol=atol)
        _same_keys(found.top_keys, expected)
        alone = rg.attention_detail(
            q, k, v, pattern=text, want=rg.weights_of(last, [heads - 1]), backend="native"
        )
        assert torch.equal(alone.chosen_weights, found.chosen_weights)
        assert torch.equal(alone.output, found.output)


def _same_keys(found: Any, expected: rg.AttentionDetail) -> None:
    """Keys are those of the formula, or others of nearly equal weight."""
    keys = found.indices
    right = expected.top_keys
    assert ((keys < 0) == (right.indices < 0)).all()
    own = expected.weights.gather(-1, keys.clamp_min(0)).masked_fill(keys < 0, 0)
    for weights in (own, found.weights.double()):
        torch.testing.assert_close(weights, right.weights, rtol=2e-5, atol=1e-6)
    assert all(
        len(set(row[row >= 0])) == int((row >= 0).sum()) for row in keys.flatten(0, 2).numpy()[:50]
    )


def test_of_equal_scores_the_first_keys_are_the_top_keys():
    q = torch.zeros(1, 1, 3, 8)
    k = torch.randn(1, 1, 2 * SPAN + 5, 8)
    v = torch.randn(1, 1, 2 * SPAN + 5, 8)
    found = rg.attention_detail(q, k, v, want=rg.top_keys(20), backend="native").top_keys
    assert torch.equal(found.indices, torch.arange(20).expand(1, 1, 3, 20))
    assert torch.equal(found.weights, torch.full((1, 1, 3, 20), 1 / (2 * SPAN + 5)))


def test_more_top_keys_than_the_kernel_keeps_come_from_the_second_pass():
    q, k, v = (torch.randn(1, 1, size, 8) for size in (2, 700, 700))
    found = rg.attention_detail(q, k, v, want=rg.top_keys(MOST_TOP + 1), backend="native").top_keys
    expected = rg.attention_detail(
        *(x.double() for x in (q, k, v)), want=rg.top_keys(MOST_TOP + 1)
    ).top_keys
    torch.testing.assert_close(found.weights.double(), expected.weights, rtol=2e-5, atol=1e-6)


def test_a_query_that_is_not_finite_gives_its_own_statistics_nan_alone():
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    q[0, 0, 7, 3] = math.nan
    want = ["entropy", "distance", rg.top_keys(3)]
    found = rg.attention_detail(q, k, v, pattern="causal", want=want, backend="native")
    for statistic in (found.entropy, found.distance, found.top_keys.weights.sum(-1)):
        assert statistic[0, 0, 7].isnan()
        assert int(statistic.isnan().sum()) == 1


def detail(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: str, want: Any) -> Result:
    return rg.attention_detail(q, k, v, pattern=pattern, want=want, backend="native")


def numbers(found: Result, rows: slice = slice(None)) -> torch.Tensor:
    """All statistics of some rows in one tensor."""
    top = found.top_keys
    parts = found.entropy[..., None], found.distance[..., None], top.weights, top.indices.double()
    return torch.cat([x.double() for x in parts], -1)[:, :, rows]


def make(draw: random.Random, number: int) -> tuple[list[torch.Tensor], str]:
    torch.manual_seed(number)
    length = draw.choice([draw.randint(1, 40), draw.randint(40, 500), draw.randint(2100, 4500)])
    kv_heads = draw.randint(1, 2)
    dim = draw.choice([5, 16, 33])
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
    shapes = (kv_heads * draw.choice([1, 4]), kv_heads, kv_heads)
    return [torch.randn(2, heads, length, dim).to(dtype) for heads in shapes], draw.choice(
        PATTERNS[1:]
    )


@pytest.mark.parametrize("number", range(8))
def test_statistics_of_a_row_have_equal_bits_alone_in_threads_and_continued(number):
    draw = random.Random(number)
    (q, k, v), pattern = make(draw, number)
    if "global" in pattern:
        pattern = f"({pattern}) & causal"
    found = detail(q, k, v, pattern, OF_ROWS)
    alone = detail(q[1:], k[1:], v[1:], pattern, OF_ROWS)
    assert torch.equal(numbers(alone), numbers(found)[1:])
    end = draw.randint(1, q.shape[2])
    first = max(0, end - draw.choice([1, 20]))
    part = detail(q[:, :, first:end], k[:, :, :end], v[:, :, :end], pattern, OF_ROWS)
    assert torch.equal(numbers(part), numbers(found, slice(first, end)))
    torch.set_num_threads(draw.choice([2, 3, 4]))
    many = detail(q, k, v, pattern, OF_ROWS)
    torch.set_num_threads(1)
    assert torch.equal(numbers(many), numbers(found))


@pytest.mark.parametrize(
    "want", ["entropy", "received", "weights", ("entropy", "received", "distance")]
)
@pytest.mark.parametrize("head_dim", [4, 64])
def test_statistics_never_cost_more_than_the_second_pass_of_another_backend(head_dim, want):
    """Else a call that asks for them could be computed by another backend, with other last bits."""
    q, k, v = make_qkv(head_dim=head_dim)
    problem = make_problem(q, k, v, want=want)
    cost = Cost(flops=1e6, bytes=1e6, peak_bytes=0, pairs=10_000)
    assert (
        cost.flops
        < with_kernel_statistics(cost, problem).flops
        <= with_statistics(cost, problem).flops
    )
