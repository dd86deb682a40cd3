"""Row blocks hold every allowed pair once, in runs that fit the cache; lots hold every head once."""

from __future__ import annotations

import time

import pytest
import torch

from regard import patterns as p
from regard.backends.scores import blocking
from regard.backends.scores.blocking import blocking_of
from regard.core.call import make_problem
from regard.patterns.row_blocks import Kind

PATTERNS = (
    "full", "causal", "causal_window(5)", "sliding_window(9)", "key_span(3, 31)", "~causal", "~sliding_window(6)",
    "causal & (causal_window(3) | key_span(0, 4))", "causal & ~causal", "random_blocks(12, block=1, seed=1)",
)  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(blocking, "ROWS", 8)
    monkeypatch.setattr(blocking, "PAIRS", 64)
    monkeypatch.setattr(blocking, "ALIGNED", 4)


def cut(pattern, *, batch=3, heads=6, kv_heads=3, q_len=29, k_len=37, q_start=None):
    q, k = torch.zeros(batch, heads, q_len, 2), torch.zeros(batch, kv_heads, k_len, 2)
    return blocking_of(make_problem(q, k, k, pattern=pattern, q_start=q_start))


@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("q_start", [None, 0, 11, -9])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_runs_hold_every_allowed_pair_once_and_whole_ones_nothing_else(pattern, q_start, kv_heads, small):
    found = cut(pattern, q_start=q_start, heads=4 if kv_heads == 1 else 6, kv_heads=kv_heads)
    start = 8 if q_start is None else q_start
    allowed = p.parse(pattern).dense(29, 37, q_start=q_start)
    met = torch.zeros(29, 37, dtype=torch.int64)
    for block in found.row_blocks((start, start)):
        for run in block.runs:
            here = slice(block.rows.start, block.rows.stop), slice(run.keys.start, run.keys.stop)
            met[here] += 1
            assert run.kind != Kind.WHOLE or allowed[here].all()
            assert len(block.rows) * len(run.keys) <= 64
    assert met.max() <= 1
    assert (met[allowed] == 1).all()
    assert found.size().pairs == int(met.sum()) * 3 * (4 if kv_heads == 1 else 6)


def test_starts_that_differ_by_row_are_covered_together(small):
    allowed = torch.stack([p.Causal().dense(29, 37, q_start=start) for start in (2, 6)]).any(0)
    met = torch.zeros(29, 37, dtype=torch.bool)
    for block in cut("causal").row_blocks((2, 6)):
        for run in block.runs:
            met[block.rows.start : block.rows.stop, run.keys.start : run.keys.stop] = True
    assert met[allowed].all()
    assert not met.all()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 6, 3), (2, 8, 1), (5, 4, 4)])
@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (29, 37)])
def test_lots_hold_every_head_once_and_fit(sizes, lengths, small):
    batch, heads, kv_heads = sizes
    found = cut("full", batch=batch, heads=heads, kv_heads=kv_heads, q_len=lengths[0], k_len=lengths[1])
    met = torch.zeros(batch, kv_heads, dtype=torch.int64)
    for lot in found.lots:
        met[lot.batch, lot.kv_heads] += 1
    assert (met == 1).all()
    assert found.largest <= max(64, found.rows * found.keys * heads // kv_heads)


def test_a_score_block_is_never_larger_than_the_workspace(small):
    found = cut("causal")
    largest = max(len(block.rows) * len(run.keys) for block in found.row_blocks((8, 8)) for run in block.runs)
    units = max((one.batch.stop - one.batch.start) * (one.kv_heads.stop - one.kv_heads.start) for one in found.lots)
    assert largest * units * 2 <= found.largest


def test_a_million_positions_are_cut_at_once():
    before = time.process_time()
    x = torch.zeros(1, 1, 1, 1).expand(1, 1, 1_000_000, 1)
    found = blocking_of(make_problem(x, x, x, pattern="causal & causal_window(512)"))
    pairs = found.size().pairs
    assert time.process_time() - before < 30  # a guard: to look at every pair would take hours
    assert 512e6 < pairs < 3 * 512e6


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (5, 1), (1, 7), (3, 7), (7, 3)])
@pytest.mark.parametrize("fitting", [1, 2, 3, 4, 11, 50])
def test_as_many_lots_are_counted_as_there_are(batch, kv_heads, fitting, monkeypatch):
    found = cut("causal", batch=batch, heads=kv_heads, kv_heads=kv_heads)
    monkeypatch.setattr(type(found), "_fitting", fitting)
    assert found.lot_count == len(found.lots)
