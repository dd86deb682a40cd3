"""Each pattern by itself, for all small sizes: its pairs are those of its formula, and its structure is theirs."""

import random

import pytest
import torch
from fuzz.meanings import LEAVES as FORMULAS
from fuzz.meanings import TENSORS, Places, build, mask_of, plain_leaf
from patterns.test_pattern_laws import certain_keys

from regard import patterns as p
from regard.errors import ArgumentError
from regard.patterns.bands import Diagonals
from regard.patterns.fixed import Summary
from regard.patterns.grid import Grid
from regard.patterns.lattices import alike_residues
from regard.patterns.position_sets import KeySet, QuerySet
from regard.patterns.strided import Lattice

LEAVES = [
    p.Compressed(4, 3),
    Diagonals(3, -1),
    p.DilatedWindow(4, 3),
    p.Fixed(6, summary=2),
    p.GlobalTokens([0, 4, 5]),
    KeySet((range(1, 3), range(6, 7))),
    KeySet(()),
    QuerySet((range(1, 3), range(6, 9))),
    *(Lattice(stride) for stride in (1, 2, 3, 4, 6)),
    *(p.SameBlock(size) for size in (1, 2, 3, 4, 6)),
    *(p.SameBlock(size, offset=size - 2) for size in (3, 4, 6, 8)),
    *(Summary(6, last) for last in range(1, 7)),
    Summary(4, 3),
    p.Strided(4),
    p.Prefix(3),
    p.RandomBlocks(2, block=3, seed=1),
    p.RandomBlocks(2, block=2, seed=1, past=True),
    p.SameDocument(torch.tensor([0, 0, 1, 1, 1, 0, 2, 2, 3])),
]
each_leaf = pytest.mark.parametrize("leaf", LEAVES, ids=str)


PLACES = ((13, 13, 0), (7, 18, 11), (17, 10, -7), (9, 11, -20), (3, 9, 30))  # q_len, k_len, q_start


@pytest.mark.parametrize("name", [name for name in FORMULAS if name not in TENSORS])
def test_a_pattern_is_its_formula(name):
    for seed in range(6):
        leaf = plain_leaf(random.Random(seed), name, 9)
        for q_len, k_len, q_start in PLACES:
            places = Places(1, 1, q_len, k_len, (q_start,))
            expected = torch.from_numpy(mask_of(leaf, places)[0, 0].copy())
            pattern = build(leaf, places)
            assert torch.equal(pattern.dense(q_len, k_len, q_start=q_start), expected), pattern
            assert pattern.count(q_len, k_len, q_start=q_start) == int(expected.sum()), pattern


def test_global_tokens_are_a_set_of_positions():
    tokens = p.GlobalTokens((0, 3))
    assert p.GlobalTokens([3, 0, 3]) == tokens == p.GlobalTokens(torch.tensor([0, 3]))
    assert p.GlobalTokens(range(3)).indices == (0, 1, 2)
    assert hash(p.GlobalTokens([3, 0])) == hash(p.GlobalTokens({0, 3}))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: p.Strided(0), "Strided's stride is 0; it needs a whole number, 1 or more"),
        (lambda: p.Strided(4, local=1), "local is 1; it is True or False"),
        (lambda: p.Fixed(4, summary=5), "the last 5 keys; a block has 4"),
        (lambda: p.DilatedWindow(2.5, 2), "size is 2.5"),
        (lambda: p.DilatedWindow(2**40, 2**40), "64 bits"),
        (lambda: p.GlobalTokens(3.5), "it needs"),
        (lambda: p.GlobalTokens([0, -1]), "is -1; it needs a whole number, 0 or more"),
        (lambda: p.GlobalTokens(range(10**12)), "more than 1000000 positions"),
        (lambda: p.RandomBlocks(0), "count is 0"),
        (lambda: p.RandomBlocks(1, seed=2**70), "64 bits"),
        (lambda: p.RandomBlocks(1, past="no"), "past is 'no'"),
    ],
)
def test_arguments_that_make_no_pattern_are_refused_with_the_number_found(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


@each_leaf
def test_segments_are_sound_and_a_single_query_is_known_where_it_can_be(leaf):
    for first in range(-5, 12, 2):
        for queries in (1, 2, 3, 5, 8):
            for k_len in (0, 1, 7, 12):
                allowed = leaf.dense(queries, k_len, q_start=first)
                full = certain_keys(leaf, allowed, first, queries)
                if queries == 1:
                    assert torch.equal(full, allowed[0]), (first, k_len)


def pairs_at_stride(leaf: p.Pattern, stride: int, row: int, q_start: int) -> str | None:
    """The pairs of 9 queries and 11 keys whose positions have the residue of a row; None where that is no pattern."""
    position = q_start + row
    residue = position % stride
    at_residue = leaf.on_lattice(stride, residue)
    if at_residue is None:
        return None
    q_len = len(range(row, 9, stride))
    k_len = len(range(residue, 11, stride))
    return str(at_residue.dense(q_len, k_len, q_start=position // stride).tolist())


@each_leaf
def test_residues_that_count_as_alike_have_equal_pairs(leaf):
    for q_start in (0, 3, -2):
        grid = Grid.whole(9, 11, q_start)
        for stride in range(2, 9):
            for rows in alike_residues(leaf, stride, grid):
                pairs = {pairs_at_stride(leaf, stride, row, q_start) for row in rows}
                assert len(pairs - {None}) < 2, (q_start, stride, rows)


def test_lattices_and_blocks_know_their_shortest_form():
    assert str(Lattice(6).on_lattice(4, 1)) == "lattice(3)"
    assert str(Lattice(6).on_lattice(6, 1)) == "full"
    assert str(p.SameBlock(6).on_lattice(3, 1)) == "same_block(2)"
    assert p.SameBlock(6).on_lattice(4, 0) is Summary(6, 1).on_lattice(4, 0) is None
    assert str(p.Strided(8).on_lattice(8, 3).canonical()) == "full"
    assert str(p.Strided(8, local=False).on_lattice(4, 3)) == "lattice(2)"


def test_far_keys_of_a_lattice_are_named_only_while_they_are_few():
    assert len(Lattice(100).segments(7, 7, 6400).some) == 64
    assert Lattice(100).segments(7, 7, 6401).some == (range(6401),)
