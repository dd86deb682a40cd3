"""The decode backend reads each key once in its stored dtype, and makes a mask only if one is needed."""

import math

import pytest
import torch
from asking import ask
from measuring import Largest

from regard import patterns as p
from regard.backends import decode, flash
from regard.backends.decode import Decode
from regard.core.backend import Offer, Refusal
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.tensors import Stored
from regard.layers.caches.rounding import rounded
from regard.testing import make_qkv


def plan_of(q, k, v, **options):
    return make_plan(make_problem(q, k, v, **options), {"decode": Decode()}, "decode")


def run(q, k, v, *, bias=None, **options):
    start = options.get("q_start")
    start = start if isinstance(start, torch.Tensor) else None
    return plan_of(q, k, v, bias=bias, **options).detail(q, k, v, bias=bias, q_start=start)


@pytest.fixture
def calls(monkeypatch):
    """The fused calls made: shapes of q and k, and of the mask if there is one."""
    made = []
    real = flash.forward

    def forward(q, k, v, call):
        made.append(
            (tuple(q.shape), tuple(k.shape), None if call.mask is None else tuple(call.mask.shape))
        )
        return real(q, k, v, call)

    monkeypatch.setattr(flash, "forward", forward)
    return made


WINDOW_AND_FIRST = "causal & (causal_window(8) | key_span(0, 4))"
# batch 2, 6 heads over 2, head_dim 5, 50 keys: the queries, the pattern, and the fused calls; values are the fuzzer's
CALLS = {
    "a group of heads is one matrix, and the last query needs no mask": (
        1,
        "causal",
        [(3, 50, None)],
    ),
    "a window cuts the keys and needs no mask": (1, "causal_window(8)", [(3, 8, None)]),
    "several queries need a mask for the last keys alone": (
        4,
        "causal",
        [(12, 47, None), (12, 3, (1, 1, 12, 3))],
    ),
    "first keys and a window are two pieces": (1, WINDOW_AND_FIRST, [(3, 4, None), (3, 8, None)]),
    "scattered keys are one masked piece": (
        1,
        p.Where(lambda i, j: j % 2 == 1),
        [(3, 50, (1, 1, 3, 50))],
    ),
}


@pytest.mark.parametrize(("q_len", "pattern", "expected"), CALLS.values(), ids=CALLS)
def test_a_call_is_few_fused_calls(q_len, pattern, expected, calls):
    qkv = make_qkv(batch=2, heads=6, kv_heads=2, q_len=q_len, k_len=50, v_dim=5)
    plan = plan_of(*qkv, pattern=pattern, want=("log_sum_exp",))
    plan.detail(*qkv)
    assert sorted(calls) == sorted(
        [((2, 2, rows, 5), (2, 2, keys, 5), mask) for rows, keys, mask in expected]
    )
    assert pattern != WINDOW_AND_FIRST or plan.cost.pairs == 2 * 6 * 12


class TestSplits:
    @pytest.mark.parametrize("batch", [1, 2])
    @pytest.mark.parametrize(("q_len", "pattern"), [(1, "causal"), (3, "causal"), (3, "full")])
    def test_a_long_cache_is_cut_for_idle_workers(self, calls, monkeypatch, batch, q_len, pattern):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
        q, k, v = make_qkv(
            batch=batch, heads=2, kv_heads=1, q_len=q_len, k_len=4 * 512 + 203, v_dim=5
        )
        found = run(q, k, v, pattern=pattern, want=("log_sum_exp",))
        keys = (4 * 512 + 203 - (q_len > 1 and pattern == "causal") * 2) // 4
        assert sum(call[1] == (4, 1, keys, 5) for call in calls) == batch
        expected = ask("reference", q, k, v, pattern=pattern, want=("log_sum_exp",))
        torch.testing.assert_close(found.output, expected.output)
        torch.testing.assert_close(found.log_sum_exp, expected.log_sum_exp)

    def test_parts_carry_their_share_of_the_bias(self, calls, monkeypatch):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        q, k, v = make_qkv(batch=2, heads=4, kv_heads=1, q_len=2, k_len=2000, v_dim=5)
        bias = torch.randn(2, 4, 2, 2000).masked_fill(torch.rand(2, 4, 2, 2000) < 0.3, -math.inf)
        found = run(q, k, v, bias=bias, want=("log_sum_exp",))
        assert calls[0] == ((2, 1, 8, 5), (2, 1, 1000, 5), (2, 1, 8, 1000))
        torch.testing.assert_close(found.output, ask("reference", q, k, v, bias=bias).output)

        calls.clear()
        run(*make_qkv(batch=2, heads=4, kv_heads=2, q_len=1, k_len=3000, v_dim=5))
        assert len(calls) == 1  # enough heads are not cut


class TestStorage:
    @pytest.mark.parametrize("fast", [True, False])
    def test_keys_in_bfloat16_are_read_by_the_fused_operation_on_every_processor(
        self, fast, calls, monkeypatch
    ):
        monkeypatch.setattr(flash, "_BFLOAT16", fast)
        q, k, v = (x.bfloat16() for x in make_qkv(heads=6, kv_heads=2, q_len=1, k_len=700))
        output = run(q, k, v, pattern="causal").output
        assert [(q_shape, k_shape) for q_shape, k_shape, _ in calls] == [
            ((2, 2, 3, 5), tuple(k.shape))
        ]
        expected = run(*(x.double() for x in (q, k, v)), pattern="causal").output
        assert (output.double() - expected).abs().max() < 2**-7 * expected.abs().max()

    def test_a_cache_is_never_widened_whole(self, monkeypatch):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # each thread has a workspace
        q, k, v = make_qkv(
            batch=1, heads=4, kv_heads=2, q_len=1, k_len=6_000, head_dim=64, v_dim=64
        )
        k = Stored(k.bfloat16())
        v = Stored(v.bfloat16())
        plan = plan_of(q, k, v, pattern="causal")
        with Largest(torch.float32) as seen:
            plan.run(q, k, v)
        assert seen.held <= decode.WORKSPACE < k.numbers.numel() / 3
        assert plan.cost.bytes < 3 * k.numbers.nbytes

    def test_a_ring_hands_over_positions_and_not_slots(self):
        q, k, v = make_qkv(heads=6, kv_heads=3, q_len=1, k_len=40)
        held = [Stored(x[:, :, 30:].contiguous(), first=30) for x in (k, v)]
        expected = ask("reference", q, k, v, pattern="causal_window(6)")
        found = run(q, *held, pattern="causal_window(6)")
        torch.testing.assert_close(found.output, expected.output)


@pytest.mark.parametrize(
    ("sizes", "options", "reason"),
    [
        ({"q_len": 17, "k_len": 20}, {}, "at most 16 queries, and there are 17"),
        ({"q_len": 1, "k_len": 0}, {}, "nothing to compute"),
        ({"q_len": 1, "requires_grad": True}, {}, "it has no gradient"),
        ({"q_len": 1}, {"bias": torch.zeros(11, requires_grad=True)}, "it has no gradient"),
        (
            {"q_len": 1, "k_len": 90},
            {"strict": True, "pattern": p.Strided(9, local=False)},
            "more than twice as many",
        ),
        (
            {"q_len": 1},
            {"strict": True, "pattern": p.Where(lambda i, j: j < i)},
            "unknown without evaluating them",
        ),
    ],
)
def test_it_refuses_in_words(sizes, options, reason):
    verdict = Decode().assess(make_problem(*make_qkv(**sizes), **options))
    assert isinstance(verdict, Refusal)
    assert reason in verdict.reason


def test_a_narrower_cache_costs_less():
    q, k, v = make_qkv(batch=1, heads=8, kv_heads=2, q_len=1, k_len=5000, head_dim=64, v_dim=64)
    costs = []
    for dtype in (torch.int8, torch.bfloat16, torch.float32):
        offer = Decode().assess(
            make_problem(q, Stored(*rounded("k", k, dtype)), Stored(*rounded("v", v, dtype)))
        )
        assert isinstance(offer, Offer)
        costs.append(offer.cost.bytes)
    assert costs == sorted(costs)
