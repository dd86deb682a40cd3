"""Every backend answers as the oracle does, in values and gradients, or refuses in the documented words."""

from __future__ import annotations

import itertools

import pytest
import torch
from cells import DTYPES, HEADS, LENGTHS, OPTIONS, PATTERNS
from comparing import Cell, Tally

from regard.kernels import BACKENDS
from regard.testing import LAYOUTS

LONG = ((300, 613), (613, 300))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_every_cell_equals_the_oracle_or_is_refused_by_name(lengths, record_property):
    tally = Tally()
    for number, (pattern, option, heads) in enumerate(itertools.product(PATTERNS, OPTIONS, HEADS)):
        layout = LAYOUTS[(number + number // len(OPTIONS)) % len(LAYOUTS)]
        dtypes = (torch.float64, DTYPES[1 + number % 2])  # the long form takes all three
        compare(Cell(pattern, option, HEADS[heads], lengths, layout, seed=number), dtypes, tally)
    report(tally, record_property)
    assert sum(tally.cells.values()) == 2 * len(PATTERNS) * len(OPTIONS) * len(HEADS) * len(BACKENDS)


@pytest.mark.parametrize("lengths", LONG)
def test_long_calls_cut_into_blocks_equal_the_oracle(lengths, record_property):
    tally = Tally()
    options = ("plain", "bias by head", "q_start", "q_start by row", "q_start far")
    for number, pattern in enumerate(PATTERNS):
        heads, option = ((2, 2), (2, 1))[number % 2], options[number % len(options)]
        compare(Cell(pattern, option, heads, lengths, LAYOUTS[number % 5], seed=number), DTYPES[:2], tally)
    report(tally, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [*LENGTHS, (1, 1), (5, 1), (17, 33)])
def test_every_cell_in_every_layout_and_dtype_equals_the_oracle(lengths, layout, record_property):
    tally = Tally()
    for number, (pattern, option, heads) in enumerate(itertools.product(PATTERNS, OPTIONS, HEADS)):
        compare(Cell(pattern, option, HEADS[heads], lengths, layout, seed=100 + number), DTYPES, tally)
    report(tally, record_property)


def compare(cell: Cell, dtypes: tuple[torch.dtype, ...], tally: Tally) -> None:
    expected = cell.expected()
    for backend, dtype in itertools.product(BACKENDS, dtypes):
        cell.compare(backend, dtype, expected, tally)


def report(tally: Tally, record_property) -> None:
    """Seen with `pytest -s`, kept in a junit file with --junitxml."""
    print(f"\n{tally}")
    for name, number in tally.record().items():
        record_property(name, number)
