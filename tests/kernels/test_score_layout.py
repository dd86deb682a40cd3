"""Strips and tiles cover every pair that may be seen, once; parts cover every head, once."""

from __future__ import annotations

import time

import pytest
import torch

from regard import patterns as p
from regard.core.call import make_problem
from regard.kernels.scores import layout as layout_room
from regard.kernels.scores.layout import lay_out

PATTERNS = (
    "full", "causal", "causal_window(5)", "sliding_window(9)", "key_span(3, 31)", "~causal", "~sliding_window(6)",
    "causal & (causal_window(3) | key_span(0, 4))", "causal & ~causal", "random_blocks(12, block=1, seed=1)",
)  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(layout_room, "ROWS", 8)
    monkeypatch.setattr(layout_room, "PAIRS", 64)
    monkeypatch.setattr(layout_room, "ALIGNED", 4)


def layout(pattern, *, batch=3, heads=6, kv_heads=3, q_len=29, k_len=37, q_start=None):
    q, k = torch.zeros(batch, heads, q_len, 2), torch.zeros(batch, kv_heads, k_len, 2)
    return lay_out(make_problem(q, k, k, pattern=pattern, q_start=q_start))


@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("q_start", [None, 0, 11, -9])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_tiles_hold_every_allowed_pair_once_and_whole_ones_nothing_else(pattern, q_start, kv_heads, small):
    found = layout(pattern, q_start=q_start, heads=4 if kv_heads == 1 else 6, kv_heads=kv_heads)
    start = 8 if q_start is None else q_start
    allowed = p.parse(pattern).dense(29, 37, q_start=q_start)
    met = torch.zeros(29, 37, dtype=torch.int64)
    for strip in found.strips((start, start)):
        for tile in strip.tiles:
            here = slice(strip.rows.start, strip.rows.stop), slice(tile.keys.start, tile.keys.stop)
            met[here] += 1
            assert not tile.whole or allowed[here].all()
            assert len(strip.rows) * len(tile.keys) <= 64
    assert met.max() <= 1
    assert (met[allowed] == 1).all()
    assert found.size().pairs == int(met.sum()) * 3 * (4 if kv_heads == 1 else 6)


def test_starts_that_differ_by_row_are_covered_together(small):
    allowed = torch.stack([p.Causal().dense(29, 37, q_start=start) for start in (2, 6)]).any(0)
    met = torch.zeros(29, 37, dtype=torch.bool)
    for strip in layout("causal").strips((2, 6)):
        for tile in strip.tiles:
            met[strip.rows.start : strip.rows.stop, tile.keys.start : tile.keys.stop] = True
    assert met[allowed].all()
    assert not met.all()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 6, 3), (2, 8, 1), (5, 4, 4)])
@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (29, 37)])
def test_parts_hold_every_head_once_and_fit(sizes, lengths, small):
    batch, heads, kv_heads = sizes
    found = layout("full", batch=batch, heads=heads, kv_heads=kv_heads, q_len=lengths[0], k_len=lengths[1])
    met = torch.zeros(batch, kv_heads, dtype=torch.int64)
    for part in found.parts:
        met[part.batch, part.kv_heads] += 1
    assert (met == 1).all()
    assert found.largest <= max(64, found.rows * found.keys * heads // kv_heads)


def test_a_part_is_never_larger_than_the_workspace(small):
    found = layout("causal")
    largest = max(len(strip.rows) * len(tile.keys) for strip in found.strips((8, 8)) for tile in strip.tiles)
    units = max((one.batch.stop - one.batch.start) * (one.kv_heads.stop - one.kv_heads.start) for one in found.parts)
    assert largest * units * 2 <= found.largest


def test_a_million_positions_are_laid_out_at_once():
    before = time.process_time()
    x = torch.zeros(1, 1, 1, 1).expand(1, 1, 1_000_000, 1)
    found = lay_out(make_problem(x, x, x, pattern="causal & causal_window(512)"))
    pairs = found.size().pairs
    assert time.process_time() - before < 30  # a guard: to look at every pair would take hours
    assert 512e6 < pairs < 3 * 512e6
