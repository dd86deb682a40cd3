"""Plans on paper against real runs: the messages and bytes that a pattern needs exactly, computing by its pairs."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from regard import distributed
from regard import patterns as p
from regard.distributed import Layout, Machine, bytes_exchanged, forecast, measure_machine
from regard.distributed import function as function_of
from regard.distributed.group import Group
from regard.distributed.needs import Needs
from regard.distributed.planning import messages
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.patterns import Causal, CausalWindow, SlidingWindow, parse
from several_processes.calls import Case, on_one, on_processes, together

LENGTHS = {2: (33, 31), 4: (17, 13, 0, 19)}
PATTERNS = {
    "full": "full",
    "causal": "causal",
    "window": "causal_window(5)",
    "two sides": "sliding_window(8)",
    "strided": "causal & strided(5)",
    "BigBird": "sliding_window(4) | global_tokens(0, 30) | random_blocks(2, block=4, seed=1)",
}
WAYS = [*itertools.product(("contiguous", "zigzag"), ("ring", "gather", "auto"))]
SIZES: dict[str, Any] = {"kv_heads": 2, "head_dim": 5, "v_dim": 3, "batch": 2, "dtype": torch.float64}  # as of a Case


def observed(case: Case) -> tuple[list[tuple[int, int]], int]:
    """What this process sends in a forward pass, receivers and bytes in order; and the bytes with the backward pass."""
    sent: list[tuple[int, int]] = []
    original = Group.start

    def noting(group: Group, sends: Any, receives: Any) -> Any:
        sent.extend((to, x.nbytes) for to, x in sorted(sends.items()))
        return original(group, sends, receives)

    Group.start = noting  # ty: ignore
    try:
        forward, both = on_processes(case)["sent"]
    finally:
        Group.start = original
    count = next(at for at in range(len(sent) + 1) if sum(size for _, size in sent[:at]) == forward)
    return sent[:count], both


def all_observed(count: int, pattern: str) -> list[tuple[list[tuple[int, int]], int]]:
    return [observed(case_of(count, pattern, layout, form)) for layout, form in WAYS]


def case_of(count: int, pattern: str, layout: str, form: str) -> Case:
    return Case("messages", LENGTHS[count], {"pattern": pattern}, layout=layout, form=form)


@pytest.mark.parametrize(("count", "name"), [*zip(itertools.cycle((4, 2)), PATTERNS), (4, "causal"), (4, "BigBird")])
def test_the_messages_and_bytes_of_a_run_are_those_of_its_plan(count, name, pools):
    pattern, lengths = PATTERNS[name], LENGTHS[count]
    found = pools(count).run(all_observed, count, pattern)
    for at, (layout, form) in enumerate(WAYS):
        divided = Layout(layout, lengths)
        needs = Needs(parse(pattern).canonical(), divided, divided, 0)
        planned: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for _, group in itertools.groupby(messages(needs, needs.form(form)), key=lambda one: one.step):
            for one in sorted(group, key=lambda one: one.receiver):
                planned[one.sender].append((one.receiver, one.keys * 2 * 2 * (5 + 3) * 8))
        assert [of_process[at][0] for of_process in found] == planned, (layout, form)
        options = {**SIZES, "pattern": pattern, "layout": layout, "form": form}
        traffic, plan = bytes_exchanged(lengths, **options), forecast(lengths, heads=4, **options)
        assert plan.sent == traffic.sent == tuple(sum(size for _, size in own) for own in planned)
        assert plan.received == traffic.received
        assert bytes_exchanged(lengths, **options, backward=True).sent == tuple(own[at][1] for own in found)


@pytest.mark.parametrize("form", ["ring", "gather"])
@pytest.mark.parametrize("pattern", PATTERNS.values())
def test_exactly_the_keys_that_some_query_of_another_process_sees_are_received(pattern, form):
    """Counted in the dense mask, which shares no code with the prediction."""
    layout = Layout("zigzag", LENGTHS[4])
    allowed = parse(pattern).dense(layout.length, layout.length)
    sizes = {"kv_heads": 1, "head_dim": 1, "v_dim": 0, "dtype": torch.float64}
    traffic = bytes_exchanged(LENGTHS[4], **sizes, pattern=pattern, layout="zigzag", form=form)
    for rank, received in enumerate(traffic.received):
        seen = allowed[layout.positions(rank)].any(0)
        seen[layout.positions(rank)] = False
        assert received == 8 * int(seen.sum())


def test_a_window_talks_to_its_neighbours_alone():
    layout = Layout("contiguous", (1000,) * 8)
    of_window = Needs(CausalWindow(512), layout, layout, 0)
    pairs = {(to, by) for to in range(8) for by in range(8) if to != by and of_window.count(to, by)}
    assert pairs == {(rank + 1, rank) for rank in range(7)}
    assert all(of_window.count(to, by) == 511 for to, by in pairs)
    both = Needs(SlidingWindow(512), layout, layout, 0)
    assert all(bool(both.count(to, by)) == (abs(to - by) == 1) for to in range(8) for by in range(8) if to != by)


def test_a_ring_passes_on_and_zigzag_balances_causal_pairs():
    even = Layout("contiguous", (1000,) * 4)
    causal = Needs(Causal(), even, even, 0)
    assert [causal.sender(3, source, "ring") for source in range(3)] == [2, 2, 2]  # all from the one before
    pairs = {}
    for name in ("contiguous", "zigzag"):
        chunks = Layout(name, (1000,) * 4).chunks
        pairs[name] = [
            sum(Causal().count(len(rows), 4000, q_start=rows.start) for rows in chunks[rank]) for rank in range(4)
        ]
    assert max(pairs["contiguous"]) > 6 * min(pairs["contiguous"])
    assert max(pairs["zigzag"]) < 1.01 * min(pairs["zigzag"])


def without_share(log_sum_exp: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(log_sum_exp)


def on_processes_without_rescaling(case: Case):
    """Planted: the backward pass gives every piece the whole gradient."""
    plain, function_of.share = function_of.share, without_share
    try:
        return on_processes(case)
    finally:
        function_of.share = plain


def test_a_backward_pass_without_the_rescaling_of_pieces_would_be_seen(pools):
    case = Case("planted", (9, 8), {"pattern": "causal"})
    one = on_one(case)
    sound = together(case, pools(2).run(on_processes, case))
    planted = together(case, pools(2).run(on_processes_without_rescaling, case))
    assert (sound["dv"] - one["dv"]).abs().max() < 1e-10
    assert (planted["dv"] - one["dv"]).abs().max() > 0.01


def test_ranges_that_are_read_back_are_the_rows_that_see_some_key():
    layout = Layout("contiguous", (5000, 5000))
    needs = Needs(CausalWindow(100), layout, layout, 0)
    rows = needs.rows_that_see(range(5000, 10000), range(4901, 5000))
    assert rows.start == 5000
    assert 5099 <= rows.stop <= 5099 + 64


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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"head_dim": [32, 64]}, "make different calls"),
        ({"message": 8}, "message is 8"),
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


def test_long_sequences_are_planned_for_hundreds_of_processes():
    plan = forecast([1024] * 256, heads=64, kv_heads=8, head_dim=128, pattern="causal & causal_window(4096)")
    assert plan.form == "ring"
    assert max(plan.received) == 4095 * 8 * 256 * 2
    assert plan.received[0] == 0


def test_what_cannot_be_planned_is_refused():
    sizes = {"kv_heads": 1, "head_dim": 4}
    for call, words in (
        (partial(bytes_exchanged, [4, 4], **sizes, form="state"), "exchanges sums of a fixed size and no keys"),
        (partial(bytes_exchanged, [4, 4], **sizes, k_lengths=[4] * 3), "lengths are those of 2 processes and k_len"),
        (partial(forecast, [4, 4], heads=1, head_dim=4, machine=3), "give a Machine"),
        (partial(Machine, latency=-1), "latency is -1; it needs a finite number, 0 or more"),
        (partial(Layout, "contiguous", (3, -1)), "0 or more"),
        (partial(distributed.part, torch.zeros(6), Layout("contiguous", (4, 3)), 0, dim=0), "the layout divides 7"),
    ):
        with pytest.raises((ArgumentError, ShapeError, UnsupportedError), match=words):
            call()
