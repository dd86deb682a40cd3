"""The decode backend reads each key once in its stored dtype, and makes a mask only if one is needed."""

import math
from typing import NamedTuple

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

Shape = tuple[int, ...]


class FusedShapes(NamedTuple):
    """The shapes of q and k in a fused call, and of its mask if there is one."""

    q: Shape
    k: Shape
    mask: Shape | None = None


def plan_of(q, k, v, **options):
    return make_plan(make_problem(q, k, v, **options), {"decode": Decode()}, "decode")


@pytest.fixture
def fused_calls(monkeypatch):
    calls = []
    compute = flash.forward

    def forward(q, k, v, call):
        mask = None if call.mask is None else tuple(call.mask.shape)
        calls.append(FusedShapes(tuple(q.shape), tuple(k.shape), mask))
        return compute(q, k, v, call)

    monkeypatch.setattr(flash, "forward", forward)
    return calls


WINDOW_AND_FIRST = "causal & (causal_window(8) | key_span(0, 4))"
# The queries and the pattern of a call with 50 keys; rows, keys and mask of its fused calls. Values are the fuzzer's.
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
        [(12, 3, (1, 1, 12, 3)), (12, 47, None)],
    ),
    "first keys and a window are two pieces": (1, WINDOW_AND_FIRST, [(3, 4, None), (3, 8, None)]),
    "scattered keys are one masked piece": (
        1,
        p.Where(lambda i, j: j % 2 == 1),
        [(3, 50, (1, 1, 3, 50))],
    ),
}


@pytest.mark.parametrize(("q_len", "pattern", "expected"), CALLS.values(), ids=CALLS)
def test_a_call_is_few_fused_calls(q_len, pattern, expected, fused_calls):
    qkv = make_qkv(batch=2, heads=6, kv_heads=2, q_len=q_len, k_len=50, v_dim=5)
    plan_of(*qkv, pattern=pattern, want=("log_sum_exp",)).detail(*qkv)
    shapes = [FusedShapes((2, 2, rows, 5), (2, 2, keys, 5), mask) for rows, keys, mask in expected]
    assert sorted(fused_calls, key=lambda call: call.k) == shapes


def test_two_pieces_cost_the_pairs_of_both():
    qkv = make_qkv(batch=2, heads=6, kv_heads=2, q_len=1, k_len=50)
    assert plan_of(*qkv, pattern=WINDOW_AND_FIRST).cost.pairs == 2 * 6 * (4 + 8)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("q_len", "pattern"), [(1, "causal"), (3, "causal"), (3, "full")])
def test_a_long_cache_is_cut_for_idle_workers(fused_calls, monkeypatch, batch, q_len, pattern):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    k_len = 4 * 512 + 203
    qkv = make_qkv(batch=batch, heads=2, kv_heads=1, q_len=q_len, k_len=k_len, v_dim=5)
    options = {"pattern": pattern, "want": ("log_sum_exp",)}
    found = plan_of(*qkv, **options).detail(*qkv)

    masked_keys = 2 if q_len > 1 and pattern == "causal" else 0
    part = (4, 1, (k_len - masked_keys) // 4, 5)
    assert sum(call.k == part for call in fused_calls) == batch
    expected = ask("reference", *qkv, **options)
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.log_sum_exp, expected.log_sum_exp)


def test_parts_of_a_cache_carry_their_share_of_the_bias(fused_calls, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    qkv = make_qkv(batch=2, heads=4, kv_heads=1, q_len=2, k_len=2000, v_dim=5)
    bias = torch.randn(2, 4, 2, 2000).masked_fill(torch.rand(2, 4, 2, 2000) < 0.3, -math.inf)
    found = plan_of(*qkv, bias=bias, want=("log_sum_exp",)).detail(*qkv, bias=bias)
    assert fused_calls[0] == ((2, 1, 8, 5), (2, 1, 1000, 5), (2, 1, 8, 1000))
    torch.testing.assert_close(found.output, ask("reference", *qkv, bias=bias).output)


def test_a_cache_of_enough_heads_is_not_cut(fused_calls, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    qkv = make_qkv(batch=2, heads=4, kv_heads=2, q_len=1, k_len=3000, v_dim=5)
    plan_of(*qkv).detail(*qkv)
    assert len(fused_calls) == 1


@pytest.mark.parametrize("fast", [True, False])
def test_keys_in_bfloat16_are_read_by_the_fused_operation_on_every_processor(
    fast, fused_calls, monkeypatch
):
    monkeypatch.setattr(flash, "_BFLOAT16", fast)
    qkv = make_qkv(heads=6, kv_heads=2, q_len=1, k_len=700, dtype=torch.bfloat16)
    output = plan_of(*qkv, pattern="causal").run(*qkv)
    assert [call[:2] for call in fused_calls] == [((2, 2, 3, 5), tuple(qkv[1].shape))]
    wide = [x.double() for x in qkv]
    expected = plan_of(*wide, pattern="causal").run(*wide)
    assert (output.double() - expected).abs().max() < 2**-7 * expected.abs().max()


def test_a_cache_is_never_widened_whole(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # each thread has a workspace
    q, *vectors = make_qkv(
        batch=1, heads=4, kv_heads=2, q_len=1, k_len=6_000, head_dim=64, v_dim=64
    )
    k, v = (Stored(x.bfloat16()) for x in vectors)
    plan = plan_of(q, k, v, pattern="causal")
    with Largest(torch.float32) as largest:
        plan.run(q, k, v)
    assert largest.held <= decode.WORKSPACE < k.numbers.numel() / 3
    assert plan.cost.bytes < 3 * k.numbers.nbytes


def test_keys_of_a_ring_are_found_by_their_positions_and_not_by_their_slots():
    q, k, v = make_qkv(heads=6, kv_heads=3, q_len=1, k_len=40)
    ring = [Stored(x[:, :, 30:].contiguous(), first=30) for x in (k, v)]
    expected = ask("reference", q, k, v, pattern="causal_window(6)").output
    found = plan_of(q, *ring, pattern="causal_window(6)").run(q, *ring)
    torch.testing.assert_close(found, expected)


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
    q, *vectors = make_qkv(batch=1, heads=8, kv_heads=2, q_len=1, k_len=5000, head_dim=64, v_dim=64)
    costs = []
    for dtype in (torch.int8, torch.bfloat16, torch.float32):
        k, v = (Stored(*rounded("x", x, dtype)) for x in vectors)
        offer = Decode().assess(make_problem(q, k, v))
        assert isinstance(offer, Offer)
        costs.append(offer.cost.bytes)
    assert costs == sorted(set(costs))
