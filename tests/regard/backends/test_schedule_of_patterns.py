"""A schedule holds every allowed pair once, and its arrays hold nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import patterns as p
from regard.backends.schedule import (
    Arrays,
    RowBlock,
    Run,
    RunKind,
    Schedule,
    aligned,
    packed,
    strict_refusal,
)
from regard.core.call import make_problem
from regard.patterns.bands import Diagonals
from regard.testing import make_qkv

IDS = torch.arange(200) ** 2 // 900


def times_held(arrays: Arrays, q_len: int, k_len: int) -> torch.Tensor:
    """How often arrays hold each pair, (q_len, k_len)."""
    times = torch.zeros(q_len, k_len, dtype=torch.int64)
    for first_row, end_row, first_run, end_run in arrays.blocks.tolist():
        for start, stop, kind, place in arrays.runs[first_run:end_run].tolist():
            keys = torch.arange(start, stop)
            for row in range(first_row, end_row):
                times[row, start:stop] += held_keys(arrays, keys, kind, place, row - first_row)
    return times


def held_keys(arrays: Arrays, keys: torch.Tensor, kind: int, place: int, row: int) -> torch.Tensor:
    """Which keys of a run a row of its block may look at."""
    if kind == RunKind.WHOLE:
        return torch.ones(len(keys), dtype=torch.bool)
    if kind == RunKind.BOUNDED:
        lo = int(arrays.lo[place + row])
        hi = int(arrays.hi[place + row])
        return (keys >= lo) & (keys < hi)
    count = -(-len(keys) // 32)
    words = arrays.bits[place + row * count :][:count]
    bit = torch.arange(len(keys))
    return (words[bit // 32] >> (bit % 32)) & 1 == 1


def check_runs(block: RowBlock, dense: torch.Tensor) -> None:
    """The runs of a block ascend and are not empty, and the pairs in each are of its kind."""
    end = 0
    for run in block.runs:
        assert end <= run.keys.start < run.keys.stop
        end = run.keys.stop
        pairs = dense[block.rows.start : block.rows.stop, run.keys.start : run.keys.stop]
        if run.kind == RunKind.WHOLE:
            assert pairs.all()
        if run.kind == RunKind.BOUNDED:
            assert most_parts_without_gap(pairs) <= 1


def most_parts_without_gap(allowed: torch.Tensor) -> int:
    """The most parts without a gap that the allowed keys of a row have."""
    no_key = torch.zeros(len(allowed), 1)
    begins = allowed.int().diff(dim=-1, prepend=no_key) > 0
    return int(begins.sum(-1).max())


lengths = st.integers(1, 90)
simple = st.one_of(
    st.builds(p.SlidingWindow, st.integers(1, 30)),
    st.builds(p.CausalWindow, st.integers(1, 20)),
    st.builds(Diagonals, st.integers(-9, 40), st.integers(-30, 9)),
    st.builds(p.DilatedWindow, st.integers(2, 9), st.integers(1, 6)),
    st.builds(p.Strided, st.integers(2, 12), st.booleans()),
    st.builds(p.Fixed, st.integers(3, 9), st.integers(1, 2)),
    st.builds(p.GlobalTokens, st.sets(st.integers(0, 40), min_size=1, max_size=3)),
    st.builds(p.KeySpan, st.integers(0, 30), st.integers(20, 70)),
    st.builds(
        p.RandomBlocks, st.integers(1, 2), st.integers(5, 8), st.integers(0, 9), st.booleans()
    ),
    st.sampled_from(
        [
            p.Causal(),
            p.Full(),
            p.Prefix(19),
            p.SameDocument(IDS),
            p.Where(lambda i, j: (i * j) % 5 < 2),
        ]
    ),
)
patterns = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=150)
@given(
    patterns,
    lengths,
    lengths,
    st.none() | st.integers(-40, 60),
    st.sampled_from([(3, 1), (8, 1), (19, 1), (32, 4)]),
)
def test_any_combination_is_rebuilt_from_its_flat_arrays(pattern, q_len, k_len, q_start, sizes):
    rows, align = sizes
    schedule = Schedule.of(pattern.canonical(), q_len, k_len, q_start, rows=rows, align=align)
    dense = pattern.dense(q_len, k_len, q_start=q_start)
    arrays = schedule.arrays()
    assert torch.equal(times_held(arrays, q_len, k_len), dense.long())
    rows_of_blocks = [[first, min(first + rows, q_len)] for first in range(0, q_len, rows)]
    assert arrays.blocks[:, :2].tolist() == rows_of_blocks
    for repeated in schedule:
        for block in repeated.each():
            check_runs(block, dense)
    assert schedule.pairs >= int(dense.sum())


def test_equal_row_blocks_are_stored_once() -> None:
    schedule = Schedule.of(p.CausalWindow(256), 1_000_000, 1_000_000, rows=64)
    assert [block.times for block in schedule] == [1, 1, 1, 1, 15_621]
    assert len(schedule.arrays().blocks) == 15_625


def test_a_far_window_that_comes_into_sight_ends_a_repetition() -> None:
    pattern = (p.CausalWindow(8) | Diagonals(back=900, ahead=-896)).canonical()
    schedule = Schedule.of(pattern, 4096, 4096, rows=32)
    runs = sum(block.times * len(block.runs) for block in schedule)
    assert runs > 4096 // 32 + 90  # a block has two runs once the far window has begun


def test_positions_that_differ_by_batch_row_are_covered_together() -> None:
    allowed = torch.stack([p.Causal().dense(29, 37, q_start=start) for start in (2, 6)]).any(0)
    of_least_start = p.Causal().dense(29, 37, q_start=2)
    covered = torch.zeros(29, 37, dtype=torch.bool)
    for block in Schedule(p.Causal(), 29, 37, (2, 6), range(37), rows=8):
        rows = slice(block.rows.start, block.rows.stop)
        for run in block.runs:
            covered[rows, run.keys.start : run.keys.stop] = True
            if run.kind == RunKind.WHOLE:
                assert of_least_start[rows, run.keys.stop - 1].all()
    assert covered[allowed].all()
    assert not covered.all()


def test_row_blocks_get_fewer_rows_where_their_keys_reach_far() -> None:
    schedule = Schedule(p.Causal(), 400, 400, (0, 0), range(400), rows=128, most=6400)
    sizes = [len(block.rows) for block in schedule]
    assert max(sizes) <= 50
    assert min(sizes[:-1]) == 16
    assert sum(sizes) == 400


def test_alignment_cuts_whole_runs_and_closes_gaps() -> None:
    runs = (
        Run(range(3), RunKind.BITS),
        Run(range(3, 21), RunKind.WHOLE),
        Run(range(23, 30), RunKind.BITS),
    )
    assert aligned(RowBlock(range(5), runs), 8).runs == (
        Run(range(8), RunKind.BITS),
        Run(range(8, 21), RunKind.WHOLE),
        Run(range(23, 30), RunKind.BITS),
    )


def test_words_hold_32_keys_each() -> None:
    allowed = torch.zeros(2, 33, dtype=torch.bool)
    allowed[0, 31] = allowed[1, 32] = True
    assert packed(allowed).tolist() == [-(2**31), 0, 0, 1]


def test_batch_rows_that_start_apart_have_no_flat_arrays() -> None:
    with pytest.raises(ValueError, match="start at different positions"):
        Schedule(p.Causal(), 4, 4, (0, 1), range(4), rows=2).arrays()


def test_the_one_strict_check_compares_with_the_pairs_kept() -> None:
    q, k, v = make_qkv(q_len=64, k_len=64)
    problem = make_problem(q, k, v, pattern=p.CausalWindow(8), strict=True)
    kept = p.CausalWindow(8).count(64, 64) * 12
    assert strict_refusal(problem, 2 * kept) is None
    assert "more than twice as many" in str(strict_refusal(problem, 2 * kept + 1))
    unknown = make_problem(q, k, v, pattern=p.Where(lambda i, j: i > j), strict=True)
    assert "unknown without evaluating them" in str(strict_refusal(unknown, 1))
    assert strict_refusal(make_problem(q, k, v, pattern=p.CausalWindow(8)), 10**9) is None


def test_a_row_may_look_at_fewer_keys_than_the_pattern_reaches() -> None:
    pattern = ~(p.Strided(2, local=False) | p.KeySpan(0, 2))  # key 3 alone, and 0 to 5 are reached
    qkv = make_qkv(q_len=1, k_len=5)
    output = rg.attention(*qkv, pattern=pattern, backend="fused")
    expected = rg.attention(*qkv, pattern=pattern, backend="reference")
    torch.testing.assert_close(output, expected)
