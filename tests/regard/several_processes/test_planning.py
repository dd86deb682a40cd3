"""Counts on paper against real runs: the messages and bytes that a pattern needs exactly."""

import itertools
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch

from regard import distributed
from regard.distributed import Layout, bytes_exchanged
from regard.distributed.function import SharedRun
from regard.distributed.group import Group
from regard.distributed.needs import Needs
from regard.distributed.planning import messages
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.patterns import Causal, CausalWindow, SlidingWindow, parse
from several_processes.calls import SharedCall, on_processes

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
# as of a SharedCall
SIZES: dict[str, Any] = {
    "kv_heads": 2,
    "head_dim": 5,
    "v_dim": 3,
    "batch": 2,
    "dtype": torch.float64,
}


def observed(case: SharedCall) -> tuple[list[tuple[int, int]], int]:
    """What this process sends in a forward pass, receivers and bytes in order; and the bytes with the backward pass."""
    messages_sent: list[tuple[int, int]] = []
    start = Group.start

    def start_and_note(group: Group, sends: Any, receives: Any) -> Any:
        for receiver, x in sorted(sends.items()):
            messages_sent.append((receiver, x.nbytes))
        return start(group, sends, receives)

    with patch.object(Group, "start", start_and_note):
        bytes_of_forward, bytes_of_both = on_processes(case)["sent"]

    of_forward = []
    while sum(size for _, size in of_forward) < bytes_of_forward:
        of_forward.append(messages_sent[len(of_forward)])
    return of_forward, bytes_of_both


def planned_messages(needs: Needs, form: str) -> list[list[tuple[int, int]]]:
    """What each process is to send in a forward pass, receivers and bytes in order."""
    bytes_of_a_key = 2 * 2 * (5 + 3) * 8  # batch · kv_heads · (head_dim + v_dim) numbers of 8 bytes
    sent: list[list[tuple[int, int]]] = [[] for _ in range(needs.processes)]
    in_order = sorted(messages(needs, needs.form(form)), key=lambda m: (m.step, m.receiver))
    for message in in_order:
        sent[message.sender].append((message.receiver, message.keys * bytes_of_a_key))
    return sent


def all_observed(count: int, pattern: str) -> list[tuple[list[tuple[int, int]], int]]:
    return [observed(case_of(count, pattern, layout, form)) for layout, form in WAYS]


def case_of(count: int, pattern: str, layout: str, form: str) -> SharedCall:
    return SharedCall("messages", LENGTHS[count], {"pattern": pattern}, layout=layout, form=form)


@pytest.mark.parametrize(
    ("count", "name"), [*zip(itertools.cycle((4, 2)), PATTERNS), (4, "causal"), (4, "BigBird")]
)
def test_the_messages_and_bytes_of_a_run_are_those_of_its_plan(count, name, pools):
    pattern = PATTERNS[name]
    lengths = LENGTHS[count]
    runs = pools(count).run(all_observed, count, pattern)
    for way, (layout, form) in enumerate(WAYS):
        division = Layout(layout, lengths)
        needs = Needs(parse(pattern).canonical(), division, division, 0)
        planned = planned_messages(needs, form)
        assert [run[way][0] for run in runs] == planned, (layout, form)

        options = {**SIZES, "pattern": pattern, "layout": layout, "form": form}
        bytes_of_forward = []
        for of_process in planned:
            bytes_of_forward.append(sum(size for _, size in of_process))
        assert [*bytes_exchanged(lengths, **options).sent] == bytes_of_forward
        bytes_of_both = [run[way][1] for run in runs]
        assert [*bytes_exchanged(lengths, **options, backward=True).sent] == bytes_of_both


def graphs_of_pieces() -> list[int]:
    """How many pieces this process computes with their graphs in both passes, by a gather and by a ring."""
    counts = []
    for form in ("gather", "ring"):
        with patch.object(
            SharedRun, "compute_with_graph", autospec=True, side_effect=SharedRun.compute_with_graph
        ) as compute:
            on_processes(case_of(2, "full", "contiguous", form))
        counts.append(compute.call_count)
    return counts


def test_the_graph_of_each_piece_is_made_once_in_both_passes(pools):
    of_own_and_other_keys = 2
    assert pools(2).run(graphs_of_pieces) == [[of_own_and_other_keys] * 2] * 2


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
    pairs = [*itertools.permutations(range(8), 2)]  # who needs keys, and who holds them

    back = Needs(CausalWindow(512), layout, layout, 0)
    counts = {pair: back.count(*pair) for pair in pairs if back.count(*pair)}
    assert counts == {(rank + 1, rank): 511 for rank in range(7)}

    on_both_sides = Needs(SlidingWindow(512), layout, layout, 0)
    for target, source in pairs:
        assert bool(on_both_sides.count(target, source)) == (abs(target - source) == 1)


def test_a_ring_passes_on_and_zigzag_balances_causal_pairs():
    even = Layout("contiguous", (1000,) * 4)
    causal = Needs(Causal(), even, even, 0)
    all_from_the_process_before = [2, 2, 2]
    assert [causal.sender(3, source, "ring") for source in range(3)] == all_from_the_process_before

    def pairs_of(chunks: tuple[range, ...]) -> int:
        return sum(Causal().count(len(rows), 4000, q_start=rows.start) for rows in chunks)

    pairs = {}
    for name in ("contiguous", "zigzag"):
        pairs[name] = [pairs_of(chunks) for chunks in Layout(name, (1000,) * 4).chunks]
    assert max(pairs["contiguous"]) > 6 * min(pairs["contiguous"])
    assert max(pairs["zigzag"]) < 1.01 * min(pairs["zigzag"])


def test_auto_is_a_ring_where_a_process_fetches_more_than_half_of_what_it_holds():
    even = Layout("contiguous", (1000,) * 4)
    assert Needs(Causal(), even, even, 0).form("auto") == "ring"  # the last one fetches 3,000
    assert Needs(CausalWindow(502), even, even, 0).form("auto") == "ring"
    assert Needs(CausalWindow(501), even, even, 0).form("auto") == "gather"


def test_the_position_of_the_first_query_says_which_keys_are_exchanged():
    call = partial(bytes_exchanged, (5, 3, 7), **SIZES, k_lengths=(11, 13, 17), pattern="causal")
    bytes_of_a_key = 2 * 2 * (5 + 3) * 8  # of both batch rows
    # The queries stand at 0..4, 5..7 and 8..14, and the keys of processes begin at 0, 11 and 24.
    assert call(q_start=0).received == (0, 8 * bytes_of_a_key, (11 + 4) * bytes_of_a_key)
    assert call(q_start=41 - 15) == call()
    assert call().received == (
        (13 + 7) * bytes_of_a_key,
        (11 + 10) * bytes_of_a_key,
        24 * bytes_of_a_key,
    )


def test_ranges_that_are_read_back_are_the_rows_that_see_some_key():
    layout = Layout("contiguous", (5000, 5000))
    needs = Needs(CausalWindow(100), layout, layout, 0)
    rows = needs.rows_that_see(range(5000, 10000), range(4901, 5000))
    assert rows.start == 5000
    assert 5099 <= rows.stop <= 5099 + 64


def test_where_batch_rows_begin_at_positions_of_their_own_all_rows_and_keys_are_read():
    layout = Layout("contiguous", (1000, 1000))
    needs = Needs(Causal(), layout, layout, torch.tensor([0, 3]))
    rows = range(1000, 2000)
    keys = range(1500, 1600)
    assert needs.rows_that_see(rows, keys) == rows
    assert needs.keys_near(range(10), keys) == keys


def test_what_cannot_be_planned_is_refused():
    sizes = {"kv_heads": 1, "head_dim": 4}
    for call, words in (
        (
            partial(bytes_exchanged, [4, 4], **sizes, form="state"),
            "exchanges sums of a fixed size and no keys",
        ),
        (
            partial(bytes_exchanged, [4, 4], **sizes, k_lengths=[4] * 3),
            "lengths are those of 2 processes and k_len",
        ),
        (
            partial(bytes_exchanged, [4, 4], **sizes, dtype=torch.int64),
            "dtype is torch.int64; attention takes",
        ),
        (partial(Layout, "contiguous", (3, -1)), "0 or more"),
        (
            partial(distributed.shard, torch.zeros(6), Layout("contiguous", (4, 3)), 0, dim=0),
            "the layout divides 7",
        ),
    ):
        with pytest.raises((ArgumentError, ShapeError, UnsupportedError), match=words):
            call()
