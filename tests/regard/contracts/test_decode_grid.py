"""Half-precision queries against a cache of any storage: only decode reads it without rounding it to their dtype."""

from __future__ import annotations

import itertools

import pytest
import torch
from cell_options import OPTIONS
from cell_patterns import PATTERNS
from cells import HEADS
from comparing import Cell, Tally

from regard.testing import LAYOUTS

LENGTHS = ((7, 11), (11, 7), (1, 5), (1, 40), (16, 17))
STORAGES = (torch.bfloat16, torch.float16, torch.int8)


@pytest.mark.parametrize("turn", range(len(LENGTHS)))
def test_half_precision_queries_read_a_cache_as_exactly_as_it_keeps(turn):
    tally = Tally()
    chosen = list(enumerate(itertools.product(PATTERNS, OPTIONS)))[turn :: len(LENGTHS)]
    for number, (pattern, option) in chosen:
        heads = list(HEADS.values())[(number + number // 3) % 3]
        dtype, storage = (torch.bfloat16, torch.float16)[number // 2 % 2], STORAGES[number // 7 % 3]
        layout = LAYOUTS[number // 3 % len(LAYOUTS)]
        cell = Cell(pattern, option, heads, LENGTHS[turn], dtype, layout, learning=False, storage=storage, seed=number)
        cell.compare("decode", tally)
    assert tally.cells["decode computed"] == len(chosen)
