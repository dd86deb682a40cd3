"""Statistics of the kernel: against formulas in float64, and their bits."""

import math
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

import regard as rg
from regard.backends.native.kernel import with_kernel_statistics
from regard.backends.native.library import MOST_TOP, SPAN
from regard.backends.statistics.second_pass import with_statistics
from regard.core.backend import Cost
from regard.core.call import make_problem
from regard.testing import make_qkv

from .calls import threads

OF_ROWS = ("entropy", "distance", rg.top_keys(5))
PATTERNS = (
    "full",
    "causal",
    "sliding_window(40) | global_tokens(1)",
    "strided(13) & causal",
    "causal_window(200)",
)


class StatisticsSizes(NamedTuple):
    q_len: int
    k_len: int
    heads: int
    kv_heads: int
    top: int  # how many top keys are requested


SIZES = [
    StatisticsSizes(257, 257, 4, 2, top=20),
    StatisticsSizes(33, 401, 6, 2, top=MOST_TOP),
    StatisticsSizes(3, SPAN + 777, 8, 2, top=40),
    StatisticsSizes(1, 70, 2, 2, top=1),
]
TOLERANCES = {
    "entropy": 3e-6,
    "received": 1e-5,
    "distance": 1e-3,
    "weights": 1e-6,
    "chosen_weights": 1e-6,
}


def native_detail(*qkv: torch.Tensor, **options: Any) -> rg.AttentionDetail:
    return rg.attention_detail(*qkv, backend="native", **options)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("sizes", SIZES)
def test_statistics_equal_the_formula(sizes):
    *lengths_and_heads, top = sizes
    q_len, k_len, heads, kv_heads = lengths_and_heads
    last_and_first = [q_len - 1, 0][:q_len]
    chosen = rg.weights_of(last_and_first, [heads - 1, 0])
    want = ["entropy", "received", "distance", "weights", rg.top_keys(top), chosen]
    for seed, pattern in enumerate(PATTERNS):
        qkv = make_qkv(batch=2, heads=heads, kv_heads=kv_heads, q_len=q_len, k_len=k_len, seed=seed)
        found = native_detail(*qkv, pattern=pattern, want=want)
        wide = [x.double() for x in qkv]
        expected = rg.attention_detail(*wide, pattern=pattern, want=want, backend="reference")
        for name, atol in TOLERANCES.items():
            statistic = getattr(found, name).double()
            torch.testing.assert_close(statistic, getattr(expected, name), rtol=2e-5, atol=atol)
        assert_same_keys(found, expected)

        alone = native_detail(*qkv, pattern=pattern, want=chosen)
        assert torch.equal(alone.chosen_weights, found.chosen_weights)
        assert torch.equal(alone.output, found.output)


def assert_same_keys(found: rg.AttentionDetail, expected: rg.AttentionDetail) -> None:
    """Keys are those of the formula, or others of nearly equal weight, and none stands twice."""
    keys = found.top_keys.indices
    missing = keys < 0
    assert torch.equal(missing, expected.top_keys.indices < 0)
    weights_of_keys = expected.weights.gather(-1, keys.clamp_min(0)).masked_fill(missing, 0)
    for weights in (weights_of_keys, found.top_keys.weights.double()):
        torch.testing.assert_close(weights, expected.top_keys.weights, rtol=2e-5, atol=1e-6)
    neighbours_differ = keys.sort(-1).values.diff(dim=-1) > 0
    assert (neighbours_differ | missing.sort(-1, descending=True).values[..., 1:]).all()


def test_of_equal_scores_the_first_keys_are_the_top_keys():
    q = torch.zeros(1, 1, 3, 8)
    k, v = torch.randn(2, 1, 1, 2 * SPAN + 5, 8)
    found = native_detail(q, k, v, want=rg.top_keys(20)).top_keys
    assert torch.equal(found.indices, torch.arange(20).expand(1, 1, 3, 20))
    assert torch.equal(found.weights, torch.full((1, 1, 3, 20), 1 / (2 * SPAN + 5)))


def test_more_top_keys_than_the_kernel_keeps_come_from_the_second_pass():
    qkv = [torch.randn(1, 1, size, 8) for size in (2, 700, 700)]
    want = rg.top_keys(MOST_TOP + 1)
    found = native_detail(*qkv, want=want).top_keys
    expected = rg.attention_detail(*(x.double() for x in qkv), want=want).top_keys
    torch.testing.assert_close(found.weights.double(), expected.weights, rtol=2e-5, atol=1e-6)


def test_a_query_that_is_not_finite_gives_its_own_statistics_nan_alone():
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    q[0, 0, 7, 3] = math.nan
    want = ["entropy", "distance", rg.top_keys(3)]
    found = native_detail(q, k, v, pattern="causal", want=want)
    for statistic in (found.entropy, found.distance, found.top_keys.weights.sum(-1)):
        assert statistic[0, 0, 7].isnan()
        assert int(statistic.isnan().sum()) == 1


@dataclass(frozen=True)
class CausalCase:
    """A causal call, whose rows are computed alone, in threads and continued."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pattern: str

    @classmethod
    def drawn(cls, draw: random.Random) -> "CausalCase":
        length = draw.choice([draw.randint(1, 40), draw.randint(40, 500), draw.randint(2100, 4500)])
        kv_heads = draw.randint(1, 2)
        dim = draw.choice([5, 16, 33])
        dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
        group = draw.choice([1, 4])
        heads = (kv_heads * group, kv_heads, kv_heads)
        q, k, v = (torch.randn(2, count, length, dim).to(dtype) for count in heads)
        return cls(q, k, v, f"causal & ({draw.choice(PATTERNS[1:])})")

    def statistics(self, batch: slice = slice(None), queries: slice = slice(None)) -> torch.Tensor:
        """All statistics of a call with some batch rows, and queries with the keys before their end, in one tensor."""
        q = self.q[batch, :, queries]
        keys = slice(queries.stop)
        k, v = self.k[batch, :, keys], self.v[batch, :, keys]
        found = native_detail(q, k, v, pattern=self.pattern, want=OF_ROWS)
        top = found.top_keys
        parts = found.entropy[..., None], found.distance[..., None], top.weights, top.indices
        return torch.cat([x.double() for x in parts], -1)


@pytest.mark.parametrize("seed", range(8))
def test_statistics_of_a_row_have_equal_bits_alone_in_threads_and_continued(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    case = CausalCase.drawn(draw)
    expected = case.statistics()
    assert torch.equal(case.statistics(batch=slice(1, 2)), expected[1:])

    end = draw.randint(1, case.q.shape[2])
    queries = slice(max(0, end - draw.choice([1, 20])), end)
    assert torch.equal(case.statistics(queries=queries), expected[:, :, queries])
    with threads(draw.choice([2, 3, 4])):
        in_threads = case.statistics()
    assert torch.equal(in_threads, expected)


@pytest.mark.parametrize(
    "want", ["entropy", "received", "weights", ("entropy", "received", "distance")]
)
@pytest.mark.parametrize("head_dim", [4, 64])
def test_statistics_never_cost_more_than_the_second_pass_of_another_backend(head_dim, want):
    """Else a call that asks for them could be computed by another backend, with other last bits."""
    problem = make_problem(*make_qkv(head_dim=head_dim), want=want)
    cost = Cost(flops=1e6, bytes=1e6, peak_bytes=0, pairs=10_000)
    with_kernel = with_kernel_statistics(cost, problem)
    assert cost.flops < with_kernel.flops <= with_statistics(cost, problem).flops
