"""A function of positions hides its structure: a plan says so, and a wasteful one warns."""

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import WastedPairsWarning

NEAR = p.Where(lambda i, j: (i - j).abs() < 3)
TWO_OF_THREE = p.Where(lambda i, j: (i - j).abs() % 3 > 0)


def plan_of(length: int, pattern: p.Pattern) -> rg.Plan:
    x = torch.zeros(1, 1, length, 4)
    return rg.plan_attention(x, x, x, pattern=pattern)


def test_a_plan_names_the_share_of_pairs_that_a_function_keeps():
    expected = "keeps an estimated 7.7% of its pairs, and 100.0% are computed"
    assert expected in str(plan_of(64, NEAR))


def test_a_function_that_keeps_few_of_many_pairs_is_warned_of():
    with pytest.warns(WastedPairsWarning, match="keeps an estimated 0.1%"):
        plan_of(4096, NEAR)
    assert "keeps an" not in str(plan_of(4096, TWO_OF_THREE))
