"""Bytes that processes send are those that the pattern needs, as `bytes_exchanged` says; windows talk to neighbours."""

from __future__ import annotations

import pytest
import torch

from regard.distributed import Layout, bytes_exchanged
from regard.distributed import function as function_of
from regard.distributed.needs import Needs
from regard.patterns import Causal, CausalWindow, SlidingWindow, parse
from several_processes.calls import Case, on_one, on_processes, together

LENGTHS = (17, 13, 0, 19)
PATTERNS = (None, "causal", "causal_window(5)", "sliding_window(8)", "causal & strided(5)",
            "sliding_window(4) | global_tokens(0, 30) | random_blocks(2, block=4, seed=1)")  # fmt: skip


def expected(case: Case, backward: bool):
    batch, _, kv_heads, head_dim, v_dim = case.sizes
    return bytes_exchanged(
        case.lengths, kv_heads=kv_heads, head_dim=head_dim, v_dim=v_dim, batch=batch, dtype=case.dtype,
        pattern=case.options["pattern"], layout=case.layout, form=case.form, backward=backward,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("form", ["ring", "gather"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_processes_send_the_bytes_that_are_predicted(pattern, form, layout, pools):
    case = Case("bytes", LENGTHS, {"pattern": pattern}, layout=layout, form=form)
    sent = [found["sent"] for found in pools(4).run(on_processes, case)]
    assert [forward for forward, _ in sent] == list(expected(case, backward=False).sent)
    assert [both for _, both in sent] == list(expected(case, backward=True).sent)


@pytest.mark.parametrize("form", ["ring", "gather"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_exactly_the_keys_that_some_query_of_another_process_sees_are_received(pattern, form):
    """Counted in the dense mask, which shares no code with the prediction."""
    layout = Layout("zigzag", LENGTHS)
    allowed = parse(pattern or "full").dense(layout.length, layout.length)
    sizes = {"kv_heads": 1, "head_dim": 1, "v_dim": 0, "dtype": torch.float64}
    traffic = bytes_exchanged(LENGTHS, **sizes, pattern=pattern, layout="zigzag", form=form)
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
