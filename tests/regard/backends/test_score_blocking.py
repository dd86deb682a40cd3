"""Row blocks hold every allowed pair once, in runs that fit the cache; lots hold every head once; sums of diagonals are
the transpose of numbers by distance."""

import numpy as np
import pytest
import torch

from regard import patterns as p
from regard.backends.scores import blocking
from regard.backends.scores.blocking import blocking_of
from regard.backends.scores.blocks import spread, summed
from regard.core.call import make_problem
from regard.patterns.row_blocks import Kind

PATTERNS = (
    "full",
    "causal",
    "causal_window(5)",
    "sliding_window(9)",
    "key_span(3, 31)",
    "~causal",
    "~sliding_window(6)",
    "causal & (causal_window(3) | key_span(0, 4))",
    "causal & ~causal",
    "random_blocks(12, block=1, seed=1)",
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(blocking, "ROWS", 8)
    monkeypatch.setattr(blocking, "PAIRS", 64)
    monkeypatch.setattr(blocking, "ALIGNED", 4)


def blocking_for(pattern, *, batch=3, heads=6, kv_heads=3, q_len=29, k_len=37, q_start=None):
    q = torch.zeros(batch, heads, q_len, 2)
    k = torch.zeros(batch, kv_heads, k_len, 2)
    return blocking_of(make_problem(q, k, k, pattern=pattern, q_start=q_start))


@pytest.mark.parametrize(("q_start", "kv_heads"), [(None, 3), (0, 1), (11, 3), (-9, 1)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_runs_hold_every_allowed_pair_once_and_whole_ones_nothing_else(
    pattern, q_start, kv_heads, small
):
    heads = 4 if kv_heads == 1 else 6
    sizes = blocking_for(pattern, q_start=q_start, heads=heads, kv_heads=kv_heads)
    start = 8 if q_start is None else q_start
    allowed = p.parse(pattern).dense(29, 37, q_start=q_start)
    times_covered = torch.zeros(29, 37, dtype=torch.int64)
    for block in sizes.row_blocks((start, start)):
        rows = slice(block.rows.start, block.rows.stop)
        for run in block.runs:
            keys = slice(run.keys.start, run.keys.stop)
            times_covered[rows, keys] += 1
            assert run.kind != Kind.WHOLE or allowed[rows, keys].all()
            assert len(block.rows) * len(run.keys) <= 64
    assert times_covered.max() <= 1
    assert (times_covered[allowed] == 1).all()
    assert sizes.size().pairs == int(times_covered.sum()) * 3 * heads


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 6, 3), (2, 8, 1), (5, 4, 4)])
@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (29, 37)])
def test_lots_hold_every_head_once_and_fit(sizes, lengths, small):
    batch, heads, kv_heads = sizes
    q_len, k_len = lengths
    blocks = blocking_for(
        "full", batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, k_len=k_len
    )
    times_covered = torch.zeros(batch, kv_heads, dtype=torch.int64)
    for lot in blocks.lots:
        times_covered[lot.batch, lot.kv_heads] += 1
    assert (times_covered == 1).all()
    assert blocks.largest <= max(64, blocks.rows * blocks.keys * heads // kv_heads)


def test_a_score_block_is_never_larger_than_the_workspace(small):
    sizes = blocking_for("causal")
    largest = 0
    for block in sizes.row_blocks((8, 8)):
        for run in block.runs:
            largest = max(largest, len(block.rows) * len(run.keys))
    units = 0
    for lot in sizes.lots:
        rows = lot.batch.stop - lot.batch.start
        kv_heads = lot.kv_heads.stop - lot.kv_heads.start
        units = max(units, rows * kv_heads)
    assert largest * units * 2 <= sizes.largest


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (5, 1), (1, 7), (3, 7), (7, 3)])
@pytest.mark.parametrize("fitting", [1, 2, 3, 4, 11, 50])
def test_as_many_lots_are_counted_as_there_are(batch, kv_heads, fitting, monkeypatch):
    sizes = blocking_for("causal", batch=batch, heads=kv_heads, kv_heads=kv_heads)
    monkeypatch.setattr(type(sizes), "_fitting_heads", fitting)
    assert sizes.lot_count == len(sizes.lots)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3)])
def test_a_block_holds_the_number_of_its_distance(rows, keys):
    numbers = torch.randn(2, rows + keys + 4)
    block = spread(numbers, rows, keys)
    for i in range(rows):
        for j in range(keys):
            assert torch.equal(block[:, i, j], numbers[:, rows - 1 - i + j])


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3)])
def test_sums_of_diagonals_are_those_of_numpy(rows, keys):
    block = torch.randn(2, rows, keys, dtype=torch.float64)
    expected = []
    for head in block.numpy():
        expected.append([np.trace(head, offset=offset) for offset in range(1 - rows, keys)])
    np.testing.assert_allclose(summed(block).numpy(), expected, rtol=0, atol=1e-13)
