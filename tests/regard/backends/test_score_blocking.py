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
from regard.patterns.row_blocks import RunKind

MOST_PAIRS = 64  # of a block, in the tests that take `small_blocks`
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
SIDES = pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3)])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocking, "ROWS", 8)
    monkeypatch.setattr(blocking, "PAIRS", MOST_PAIRS)
    monkeypatch.setattr(blocking, "ALIGNED", 4)


def blocking_for(pattern, *, batch=3, heads=6, kv_heads=3, q_len=29, k_len=37, q_start=None):
    q = torch.zeros(batch, heads, q_len, 2)
    k = torch.zeros(batch, kv_heads, k_len, 2)
    return blocking_of(make_problem(q, k, k, pattern=pattern, q_start=q_start))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("q_start", "heads", "kv_heads"), [(8, 6, 3), (0, 4, 1), (11, 6, 3), (-9, 4, 1)]
)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_runs_hold_every_allowed_pair_once_and_whole_ones_nothing_else(
    pattern, q_start, heads, kv_heads
):
    sizes = blocking_for(pattern, q_start=q_start, heads=heads, kv_heads=kv_heads)
    allowed = p.parse(pattern).dense(29, 37, q_start=q_start)
    times_covered = torch.zeros(29, 37, dtype=torch.int64)
    for block in sizes.row_blocks((q_start, q_start)):
        rows = slice(block.rows.start, block.rows.stop)
        for run in block.runs:
            keys = slice(run.keys.start, run.keys.stop)
            times_covered[rows, keys] += 1
            assert run.kind != RunKind.WHOLE or allowed[rows, keys].all()
            assert len(block.rows) * len(run.keys) <= MOST_PAIRS
    assert times_covered.max() <= 1
    assert (times_covered[allowed] == 1).all()
    assert sizes.size().pairs == int(times_covered.sum()) * 3 * heads


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads"), [(1, 1, 1), (3, 6, 3), (2, 8, 1), (5, 4, 4)]
)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 3), (2, 2), (29, 37)])
def test_lots_hold_every_head_once_and_their_scores_fit_the_workspace(
    batch, heads, kv_heads, q_len, k_len
):
    sizes = blocking_for(
        "causal", batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, k_len=k_len
    )
    times_covered = torch.zeros(batch, kv_heads, dtype=torch.int64)
    largest_lot = 0
    for lot in sizes.lots:
        times_covered[lot.batch, lot.kv_heads] += 1
        rows = lot.batch.stop - lot.batch.start
        heads_of_lot = lot.kv_heads.stop - lot.kv_heads.start
        largest_lot = max(largest_lot, rows * heads_of_lot)
    assert (times_covered == 1).all()

    group = heads // kv_heads
    start = k_len - q_len
    largest_block = 0
    for block in sizes.row_blocks((start, start)):
        for run in block.runs:
            largest_block = max(largest_block, len(block.rows) * len(run.keys))
    assert largest_block * largest_lot * group <= sizes.largest
    assert sizes.largest <= max(MOST_PAIRS, sizes.rows * sizes.keys * group)


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (5, 1), (1, 7), (3, 7), (7, 3)])
@pytest.mark.parametrize("fitting", [1, 2, 3, 4, 11, 50])
def test_as_many_lots_are_counted_as_there_are(batch, kv_heads, fitting, monkeypatch):
    sizes = blocking_for("causal", batch=batch, heads=kv_heads, kv_heads=kv_heads)
    monkeypatch.setattr(type(sizes), "_fitting_heads", fitting)
    assert sizes.lot_count == len(sizes.lots)


@SIDES
def test_a_block_holds_the_number_of_its_distance(rows, keys):
    numbers = torch.randn(2, rows + keys + 4)
    block = spread(numbers, rows, keys)
    for i in range(rows):
        for j in range(keys):
            assert torch.equal(block[:, i, j], numbers[:, rows - 1 - i + j])


@SIDES
def test_sums_of_diagonals_are_those_of_numpy(rows, keys):
    block = torch.randn(2, rows, keys, dtype=torch.float64)
    expected = []
    for head in block.numpy():
        expected.append([np.trace(head, offset=offset) for offset in range(1 - rows, keys)])
    np.testing.assert_allclose(summed(block).numpy(), expected, rtol=0, atol=1e-13)
