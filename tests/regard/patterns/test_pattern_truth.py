"""Each pattern against its formula in the contract, written again in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError
from regard.patterns import (
    Causal,
    CausalWindow,
    Diagonals,
    DilatedWindow,
    Fixed,
    GlobalTokens,
    KeySet,
    Lattice,
    Pattern,
    Prefix,
    QuerySet,
    RandomBlocks,
    SameBlock,
    SlidingWindow,
    Strided,
    Summary,
)

FORMULAS: list[tuple[Pattern, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    (Causal(), lambda i, j: j <= i),
    (SlidingWindow(7), lambda i, j: np.abs(i - j) <= 3),
    (CausalWindow(3), lambda i, j: (i - j >= 0) & (i - j < 3)),
    (Diagonals(3, -1), lambda i, j: (j - i >= -3) & (j - i <= -1)),
    (Diagonals(None, 2), lambda i, j: j - i <= 2),
    (GlobalTokens([4, 0, 4]), lambda i, j: np.isin(i, [0, 4]) | np.isin(j, [0, 4])),
    (GlobalTokens(range(2, 9)), lambda i, j: np.isin(i, range(2, 9)) | np.isin(j, range(2, 9))),
    (GlobalTokens([]), lambda i, j: (i > j) & (i < j)),
    (KeySet((range(1, 3), range(7, 8))), lambda i, j: np.isin(j, [1, 2, 7]) & (i == i)),
    (QuerySet((range(1, 3), range(7, 8))), lambda i, j: np.isin(i, [1, 2, 7]) & (j == j)),
    (Strided(4), lambda i, j: (np.abs(i - j) < 4) | (np.mod(i - j, 4) == 0)),
    (Strided(5, local=False), lambda i, j: np.mod(i - j, 5) == 0),
    (Lattice(3), lambda i, j: np.mod(i - j, 3) == 0),
    (SameBlock(4), lambda i, j: np.floor(i / 4) == np.floor(j / 4)),
    (Summary(4, 2), lambda i, j: np.isin(np.mod(j, 4), [2, 3]) & (i == i)),
    (Fixed(4), lambda i, j: (np.floor(i / 4) == np.floor(j / 4)) | (np.mod(j, 4) == 3)),
    (Fixed(4, summary=2), lambda i, j: (np.floor(i / 4) == np.floor(j / 4)) | np.isin(np.mod(j, 4), [2, 3])),
    (Fixed(6, summary=1, local=False), lambda i, j: (np.mod(j, 6) == 5) & (i == i)),
    (DilatedWindow(4, 3), lambda i, j: (np.mod(i - j, 3) == 0) & (np.abs(i - j) <= 6)),
    (DilatedWindow(5, 2), lambda i, j: (np.mod(i - j, 2) == 0) & (np.abs(i - j) <= 4)),
    (Prefix(3), lambda i, j: (j < 3) & (i == i)),
]


@pytest.mark.parametrize(
    ("q_len", "k_len", "q_start"), [(13, 13, 0), (7, 18, 11), (17, 10, -7), (9, 11, -20), (3, 9, 30)]
)
@pytest.mark.parametrize(("pattern", "formula"), FORMULAS, ids=[str(pattern) for pattern, _ in FORMULAS])
def test_a_pattern_is_its_formula(pattern, formula, q_len, k_len, q_start):
    queries, keys = np.arange(q_start, q_start + q_len)[:, None], np.arange(k_len)
    truth = torch.from_numpy(formula(queries, keys))
    assert torch.equal(pattern.dense(q_len, k_len, q_start=q_start), truth)
    assert pattern.count(q_len, k_len, q_start=q_start) == int(truth.sum())


def test_global_tokens_are_a_set_of_positions():
    assert GlobalTokens([3, 0, 3]) == GlobalTokens((0, 3)) == GlobalTokens(torch.tensor([0, 3]))
    assert GlobalTokens(range(3)).indices == (0, 1, 2)
    assert hash(GlobalTokens([3, 0])) == hash(GlobalTokens({0, 3}))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Strided(0), "Strided's stride is 0; it needs a whole number, 1 or more"),
        (lambda: Strided(4, local=1), "local is 1; it is True or False"),
        (lambda: Fixed(4, summary=5), "the last 5 keys; a block has 4"),
        (lambda: Fixed(4, summary=0), "is 0; it needs a whole number, 1 or more"),
        (lambda: DilatedWindow(2.5, 2), "size is 2.5"),
        (lambda: DilatedWindow(4, True), "dilation is True"),
        (lambda: DilatedWindow(2**40, 2**40), "64 bits"),
        (lambda: Prefix(-1), "length is -1; it needs a whole number, 0 or more"),
        (lambda: GlobalTokens(-3), "-3"),
        (lambda: GlobalTokens(3.5), "it needs"),
        (lambda: GlobalTokens([0, -1]), "is -1; it needs a whole number, 0 or more"),
        (lambda: GlobalTokens([True]), "is True"),
        (lambda: GlobalTokens(range(10**12)), "more than 1000000 positions"),
        (lambda: RandomBlocks(0), "count is 0"),
        (lambda: RandomBlocks(1, block=0), "block is 0"),
        (lambda: RandomBlocks(1, seed=2**70), "64 bits"),
        (lambda: RandomBlocks(1, past="no"), "past is 'no'"),
        (lambda: Lattice(-2), "stride is -2"),
        (lambda: SameBlock(0), "size is 0"),
    ],
)
def test_arguments_that_make_no_pattern_are_refused_with_the_number_found(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
