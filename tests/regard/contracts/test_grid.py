"""Every backend agrees with the oracle in values and gradients, or refuses by a limit that it declares."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import torch
from asking import HERE, LEARNING
from cell_options import OPTIONS
from cell_patterns import PATTERNS
from cells import DTYPES, HEADS, LENGTHS
from comparing import Cell, Tally
from sampling import AXES, cells_of, every_pair, pairs, sample, whole
from small_blocks import cut

from regard.backends import BACKENDS
from regard.testing import LAYOUTS

SAMPLE = sample()
PARTS = 8
LONG = ((67, 131), (131, 67))
LONGER = ((300, 613), (613, 300))
READING = tuple(name for name in HERE if name not in LEARNING)  # cells of long calls have gradients


def test_every_two_choices_meet_in_the_sample():
    met = set().union(*map(pairs, SAMPLE))
    assert met == every_pair()
    every = len(PATTERNS) * len(OPTIONS)
    for choices in AXES.values():
        every *= len(choices)
    print(f"\n{2 * len(SAMPLE)} of {2 * every} cells, each on {len(BACKENDS)} backends; {len(met)} pairs of choices")


@pytest.mark.parametrize("part", range(PARTS))
def test_cells_of_the_sample_equal_the_oracle_or_are_refused_by_a_limit(part, record_property, monkeypatch):
    tally = Tally()
    cut(monkeypatch)
    chosen = list(enumerate(SAMPLE))[part::PARTS]
    for number, choices in chosen:
        learning, reading = cells_of(choices, seed=number)
        compare(learning, tally)
        if number % 3 == 0:
            compare(reading, tally)
    report(tally, record_property)
    compared = len(chosen) + sum(number % 3 == 0 for number, _ in chosen)
    assert sum(tally.cells.values()) == compared * len(BACKENDS)


@pytest.mark.parametrize("lengths", LONG)
def test_calls_longer_than_a_strip_equal_the_oracle_in_blocks_as_shipped(lengths, record_property):
    tally = Tally()
    for number, pattern in enumerate(PATTERNS):
        for turn, option in enumerate(("plain", ("softcap", "alibi", "dropout", "t5")[number % 4])):
            heads, dtype = ((2, 2), (2, 1))[(number + turn) % 2], DTYPES[(number + turn) % 2]
            compare(Cell(pattern, option, heads, lengths, dtype, LAYOUTS[number % 5], seed=number), tally)
    report(tally, record_property, READING)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", LONGER)
def test_long_calls_cut_into_blocks_equal_the_oracle(lengths, record_property):
    tally = Tally()
    for number, (pattern, option) in enumerate(itertools.product(PATTERNS, OPTIONS)):
        if (number + number // len(OPTIONS)) % 5 == 0:
            heads, dtype = ((2, 2), (2, 1))[number % 2], DTYPES[number // 2 % 2]
            compare(Cell(pattern, option, heads, lengths, dtype, LAYOUTS[number % 5], seed=number), tally)
    report(tally, record_property, READING)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [*LENGTHS, (1, 1), (5, 1), (17, 33)])
def test_every_cell_of_the_whole_product_equals_the_oracle(lengths, dtype, record_property, monkeypatch):
    tally = Tally()
    cut(monkeypatch)
    for number, choices in enumerate(whole(lengths, dtype)):
        for cell in cells_of(choices, seed=10_000 + number):
            compare(cell, tally)
    report(tally, record_property, READING if lengths[0] > 16 else ())
    assert sum(tally.cells.values()) == 2 * len(PATTERNS) * len(OPTIONS) * len(HEADS) * len(BACKENDS)


def compare(cell: Cell, tally: Tally, backends: Iterable[str] = BACKENDS) -> None:
    for backend in backends:
        cell.compare(backend, tally)


def report(tally: Tally, record_property, resting: tuple[str, ...] = ()) -> None:
    """Seen with `pytest -s`, kept in a junit file with --junitxml; every backend of this device computes something."""
    print(f"\n{tally}")
    for name, number in tally.record().items():
        record_property(name, number)
    idle = [name for name in HERE if name not in resting and not tally.cells[f"{name} computed"]]
    assert not idle, f"no cell was computed by {idle}"


OF_CACHES = ((7, 11), (11, 7), (1, 5), (1, 40), (16, 17))
STORAGES = (torch.bfloat16, torch.float16, torch.int8)


@pytest.mark.parametrize("turn", range(len(OF_CACHES)))
def test_half_precision_queries_read_a_cache_as_exactly_as_it_keeps(turn):
    tally = Tally()
    chosen = list(enumerate(itertools.product(PATTERNS, OPTIONS)))[turn :: len(OF_CACHES)]
    for number, (pattern, option) in chosen:
        heads = list(HEADS.values())[(number + number // 3) % 3]
        dtype, storage = (torch.bfloat16, torch.float16)[number // 2 % 2], STORAGES[number // 7 % 3]
        layout = LAYOUTS[number // 3 % len(LAYOUTS)]
        cell = Cell(
            pattern, option, heads, OF_CACHES[turn], dtype, layout, learning=False, storage=storage, seed=number
        )
        cell.compare("decode", tally)
    assert tally.cells["decode computed"] == len(chosen)
