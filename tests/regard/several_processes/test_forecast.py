"""The plan on paper against real runs: messages and bytes exactly, computing by the shares of processor time."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from regard import distributed
from regard import patterns as p
from regard.distributed import Layout, Machine, bytes_exchanged, forecast, measure_machine
from regard.distributed.group import Group
from regard.distributed.needs import Needs
from regard.distributed.planning import messages
from regard.errors import ArgumentError, ShapeError
from regard.patterns import parse

PATTERNS = {
    "full": "full",
    "causal": "causal",
    "window": "causal & causal_window(9)",
    "BigBird": "sliding_window(6) | global_tokens(0, 1) | random_blocks(2, block=4, seed=1)",
}
LENGTHS = {2: (33, 31), 4: (17, 13, 0, 34)}
SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 5, "v_dim": 3}


def observed(count: int, pattern: str, layout: str, form: str) -> list[tuple[int, int]]:
    """What this process sends in a forward pass: the receiver and the bytes of each message, in order."""
    sent: list[tuple[int, int]] = []
    original = Group.start

    def noting(group: Group, sends: Any, receives: Any) -> Any:
        sent.extend((to, x.nbytes) for to, x in sorted(sends.items()))
        return original(group, sends, receives)

    length = LENGTHS[count][dist.get_rank()]
    q, k, v = torch.randn(1, 4, length, 5), torch.randn(1, 2, length, 5), torch.randn(1, 2, length, 3)
    Group.start = noting  # ty: ignore
    try:
        distributed.attention(q, k, v, dist.group.WORLD, pattern=pattern, layout=layout, form=form)
    finally:
        Group.start = original
    return sent


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("form", ["ring", "gather", "auto"])
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("count", [2, 4])
def test_the_messages_of_a_run_are_those_of_its_plan(count, name, form, layout, pools):
    pattern, divided = PATTERNS[name], Layout(layout, LENGTHS[count])
    needs = Needs(parse(pattern).canonical(), divided, divided, 0)
    sends = messages(needs, needs.form(form))
    planned: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for step in range(count):
        for rank in range(count):
            own = [one for one in sends if (one.step, one.sender) == (step, rank)]
            planned[rank] += sorted((one.receiver, one.keys * 2 * (5 + 3) * 4) for one in own)
    assert pools(count).run(observed, count, pattern, layout, form) == planned
    plan = forecast(LENGTHS[count], dtype=torch.float32, pattern=pattern, layout=layout, form=form, **SIZES)
    traffic = bytes_exchanged(
        LENGTHS[count], kv_heads=2, head_dim=5, v_dim=3, pattern=pattern, layout=layout, form=form
    )
    assert (plan.sent, plan.received) == (traffic.sent, traffic.received)
    assert list(plan.sent) == [sum(size for _, size in own) for own in planned]


def processor_seconds(pattern: str, layout: str, length: int) -> float:
    """The processor time of this process for its part of a call, at best of three."""
    q, k, v = (torch.randn(1, 4, length, 32) for _ in range(3))
    found = []
    for _ in range(3):
        began = time.process_time()
        distributed.attention(q, k, v, dist.group.WORLD, pattern=pattern, layout=layout, form="ring")
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize(("layout", "least"), [("contiguous", 3.0), ("zigzag", 0.0)])
def test_processor_time_is_divided_among_processes_as_planned(layout, least, pools):
    """Under a causal pattern: 1 : 3 : 5 : 7 with one chunk each, alike with two. Shares do not depend on other load."""
    plan = forecast([1536] * 4, heads=4, head_dim=32, dtype=torch.float32, pattern="causal", layout=layout, form="ring")
    seconds = pools(4).run(processor_seconds, "causal", layout, 1536)
    planned, measured = ([one / sum(all_of) for one in all_of] for all_of in (plan.compute, seconds))
    assert max(planned) / min(planned) >= least
    assert measured == pytest.approx(planned, abs=0.09)


def seconds_of(pattern: str, form: str, **changed: Any) -> Any:
    machine = Machine(**{"flops": 1e9, "bandwidth": 1e6, "latency": 0.0, "overhead": 0.0} | changed)
    return forecast([100] * 4, heads=1, head_dim=50, dtype=torch.float32, pattern=pattern, form=form, machine=machine)


def test_seconds_follow_from_pairs_bytes_and_the_schedule():
    """100 queries and keys: 10,000 pairs of 200 operations, 2 ms; 100 keys of 400 bytes, 40 ms."""
    ring, gather = seconds_of("full", "ring"), seconds_of("full", "gather")
    assert ring.compute == gather.compute == pytest.approx((0.008,) * 4)
    assert ring.seconds == pytest.approx((3 * 0.040 + 0.002,) * 4)  # three steps, each hides the pairs before it
    assert gather.seconds == pytest.approx((0.120 + 0.006,) * 4)
    fast = seconds_of("full", "ring", bandwidth=1e9)
    assert fast.seconds == pytest.approx((0.008,) * 4)  # 0.04 ms travel while 2 ms are computed
    assert fast.efficiency == pytest.approx(1.0)
    assert ring.waiting == pytest.approx((3 * 0.040 - 0.006,) * 4)
    late = seconds_of("full", "ring", bandwidth=1e9, latency=0.003)
    assert late.seconds == pytest.approx((3 * (0.003 + 4e-5) + 0.002,) * 4)


@pytest.mark.parametrize("form", ["ring", "gather"])
def test_the_host_prepares_each_step(form):
    """Four steps of 2 ms each: of a host that waits for its device they add up, of one that runs ahead they overlap."""
    fast = {"form": form, "bandwidth": 1e12}
    assert seconds_of("full", **fast, overhead=0.003, asynchronous=False).seconds == pytest.approx((4 * 0.005,) * 4)
    assert seconds_of("full", **fast, overhead=0.003).seconds == pytest.approx((4 * 0.003 + 0.002,) * 4)
    assert seconds_of("full", **fast, overhead=0.001).seconds == pytest.approx((0.001 + 4 * 0.002,) * 4)


def test_steps_without_keys_cost_nothing():
    """Under a window that ends in the process before, three of four steps send and compute nothing."""
    plan = seconds_of("causal_window(50)", form="ring", bandwidth=1e12, overhead=1.0)
    assert plan.seconds == pytest.approx((2.0, 2.0, 2.0, 2.0), abs=0.01)


MASK = torch.rand(2, 4, 61, 61, generator=torch.Generator().manual_seed(4)) < 0.4
DIFFERING = {
    "heads": p.PerHead([p.Causal(), p.SlidingWindow(8), p.Full(), p.Causal() & p.Strided(5)]),
    "batch rows": p.Causal() & p.KeySpan(torch.tensor([0, 9]), None),
    "both": p.Explicit(MASK),
}


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("name", DIFFERING)
def test_pairs_of_patterns_that_differ_by_head_or_batch_row_are_counted_once(name, layout):
    """As many as the dense masks of all batch rows and heads allow together."""
    pattern = DIFFERING[name]
    plan = forecast(
        (20, 41), heads=4, head_dim=3, v_dim=2, batch=2, pattern=pattern, layout=layout, machine=Machine(flops=1.0)
    )
    pairs = pattern.dense(61, 61).expand(2, 4, 61, 61).sum().item()
    assert sum(plan.compute) == pytest.approx(2 * (3 + 2) * pairs)


@pytest.mark.parametrize("pattern", [p.PerHead([p.Causal(), p.Full()]), p.Explicit(MASK)], ids=["heads", "mask"])
def test_patterns_that_do_not_fit_the_call_are_refused(pattern):
    with pytest.raises(ShapeError):
        forecast((20, 40), heads=4, head_dim=3, pattern=pattern)


def measured(**changed: Any) -> Machine:
    mine = {name: one[dist.get_rank()] if isinstance(one, list) else one for name, one in changed.items()}
    options: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 32, "length": 256, "message": 1 << 20} | mine
    return measure_machine(dist.group.WORLD, **options)


@pytest.mark.parametrize("count", [2, 4])
def test_all_processes_measure_one_machine(count, pools):
    first, *others = pools(count).run(measured)
    assert others == [first] * (count - 1)
    assert 1e7 < first.flops < 1e13
    assert 1e6 < first.bandwidth < 1e12
    assert 0 < first.latency < 1
    assert 0 <= first.overhead < 1
    assert not first.asynchronous


def test_measured_operations_are_those_of_the_pairs_of_the_pattern(pools):
    """A causal window of 4 keys computes a sixtieth of the pairs, at a far lower rate for each pair."""
    (full, _), (window, _) = (pools(2).run(partial(measured, pattern=one)) for one in ("full", "causal_window(4)"))
    assert window.flops < full.flops / 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"head_dim": [32, 64]}, "make different calls"),
        ({"heads": [4, 0]}, "heads is 0"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"message": 8}, "message is 8"),
        ({"dtype": torch.int64}, "attention takes"),
    ],
)
def test_measurements_that_cannot_be_made_are_refused_on_all_processes(changed, words, pools):
    messages = pools(2).refusals(partial(measured, **changed))
    assert all(messages)
    assert any(words in one for one in messages), messages


def test_memory_is_that_of_the_tensors():
    own = 100 * (2 * 50 * 4 + 4) + 100 * 400
    assert seconds_of("full", "ring").memory == (own + 2 * 100 * 400,) * 4
    assert seconds_of("full", "gather").memory == (own + 3 * 100 * 400,) * 4


def test_a_million_positions_are_planned_for_a_thousand_processes():
    plan = forecast([1024] * 1024, heads=64, kv_heads=8, head_dim=128, pattern="causal & causal_window(4096)")
    assert plan.form == "ring"
    assert max(plan.received) == 4095 * 8 * 256 * 2
    assert plan.received[0] == 0


def test_wrong_machines_are_refused():
    with pytest.raises(ArgumentError, match="flops is 0"):
        Machine(flops=0)
    with pytest.raises(ArgumentError, match="give a Machine"):
        forecast([4, 4], heads=1, head_dim=4, machine=3)  # ty: ignore
