"""The structure of each leaf by itself, for all small sizes: random expressions seldom meet a leaf alone."""

from __future__ import annotations

import pytest
import torch

from regard.patterns import (
    Diagonals,
    DilatedWindow,
    Fixed,
    GlobalTokens,
    Grid,
    KeySet,
    Lattice,
    Prefix,
    QuerySet,
    RandomBlocks,
    SameBlock,
    SameDocument,
    Strided,
    Summary,
)
from regard.patterns.drawing import learned
from regard.patterns.lattices import alike_residues

LEAVES = [
    Diagonals(3, -1),
    DilatedWindow(4, 3),
    Fixed(6, summary=2),
    GlobalTokens([0, 4, 5]),
    KeySet((range(1, 3), range(6, 7))),
    KeySet(()),
    QuerySet((range(1, 3), range(6, 9))),
    *(Lattice(stride) for stride in (1, 2, 3, 4, 6)),
    *(SameBlock(size) for size in (1, 2, 3, 4, 6)),
    *(SameBlock(size, offset=size - 2) for size in (3, 4, 6, 8)),
    *(Summary(6, last) for last in range(1, 7)),
    Summary(4, 3),
    Strided(4),
    Prefix(3),
    RandomBlocks(2, block=3, seed=1),
    RandomBlocks(2, block=2, seed=1, past=True),
    SameDocument(torch.tensor([0, 0, 1, 1, 1, 0, 2, 2, 3])),
]
each_leaf = pytest.mark.parametrize("leaf", LEAVES, ids=str)


@each_leaf
def test_segments_are_sound_and_a_single_query_is_known_where_it_can_be(leaf):
    for first in range(-5, 12, 2):
        for queries in (1, 2, 3, 5, 8):
            for k_len in (0, 1, 7, 12):
                truth = leaf.dense(queries, k_len, q_start=first)
                found = leaf.segments(first, first + queries - 1, k_len)
                full, some = (
                    torch.tensor([any(key in one for one in ranges) for key in range(k_len)], dtype=torch.bool)
                    for ranges in (found.full, found.some)
                )
                assert not (full & ~truth.all(0)).any(), (first, queries, k_len)
                assert not (truth.any(0) & ~some).any(), (first, queries, k_len)
                assert all(0 <= one.start < one.stop <= k_len for one in (*found.full, *found.some))
                if queries == 1:
                    assert torch.equal(full, truth[0]), (first, k_len)


@each_leaf
def test_on_every_lattice_that_it_knows_it_is_itself(leaf):
    rows, keys = torch.arange(-2, 7)[:, None], torch.arange(8)
    for stride in range(1, 9):
        for residue in range(stride):
            found = leaf.on_lattice(stride, residue)
            if found is not None:
                there = leaf.allows(rows * stride + residue, keys * stride + residue)
                assert bool((found.allows(rows, keys) == there).all()), (stride, residue)


@each_leaf
@pytest.mark.parametrize("q_start", [0, 3, -2])
def test_residues_that_count_as_alike_have_equal_pairs(leaf, q_start):
    for stride in range(2, 9):
        for rows in alike_residues(leaf, stride, Grid.whole(9, 11, q_start)):
            found = set()
            for row in rows:
                residue = (q_start + row) % stride
                if (there := leaf.on_lattice(stride, residue)) is not None:
                    first, sizes = (
                        (q_start + row) // stride,
                        (len(range(row, 9, stride)), len(range(residue, 11, stride))),
                    )
                    found.add(str(there.dense(*sizes, q_start=first).tolist()))
            assert len(found) < 2, (stride, rows)


@each_leaf
def test_reach_is_no_less_than_what_a_stack_learns_from(leaf):
    length = 24
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    for layers in (1, 2, 4):
        reach, joined = leaf.reach(layers), learned(leaf, length, length, layers)
        assert reach.back is None or -int(ahead[joined].min()) <= reach.back
        assert reach.ahead is None or int(ahead[joined].max()) <= reach.ahead


def test_lattices_and_blocks_know_their_shortest_form():
    assert str(Lattice(6).on_lattice(4, 1)) == "lattice(3)"
    assert str(Lattice(6).on_lattice(6, 1)) == "full"
    assert str(SameBlock(6).on_lattice(3, 1)) == "same_block(2)"
    assert SameBlock(6).on_lattice(4, 0) is None
    assert Summary(6, 1).on_lattice(4, 0) is None
    assert str(Strided(8).on_lattice(8, 3).canonical()) == "full"
    assert str(Strided(8, local=False).on_lattice(4, 3)) == "lattice(2)"


def test_far_keys_of_a_lattice_are_named_only_while_they_are_few():
    assert len(Lattice(100).segments(7, 7, 6400).some) == 64
    assert Lattice(100).segments(7, 7, 6401).some == (range(6401),)
