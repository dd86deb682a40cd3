"""Patterns are joined by & | ~, with texts too, and not by `and`, `or`, `not`, which would keep one of them alone."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard import patterns as p

ASKING = {
    "and": lambda one, other: one and other,
    "or": lambda one, other: one or other,
    "not": lambda one, _: not one,
    "if": lambda one, other: one if other else None,
    "bool": lambda one, _: bool(one),
    "any": lambda one, other: any([one, other]),
    "filter": lambda one, other: list(filter(None, [one, other])),
}
PATTERNS = [
    p.Full(),
    ~p.Full(),
    p.Causal() & p.KeySpan(0, 3),
    p.PerHead([p.Causal()]),
    p.KeySpan(0, torch.tensor([3])),
    p.Explicit(torch.ones(2, 2, dtype=torch.bool)),
]


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_a_pattern_has_no_truth_value_and_names_the_signs(ask):
    for pattern in PATTERNS:
        with pytest.raises(rg.ArgumentError, match=r"is neither true nor false.*& \| ~.*is None"):
            ask(pattern, pattern)


def test_a_text_is_read_on_either_side_of_a_sign():
    causal, window = p.Causal(), p.SlidingWindow(4)
    assert causal & "sliding_window(4)" == "sliding_window(4)" & causal == causal & window
    assert causal | "sliding_window(4)" == "sliding_window(4)" | causal == causal | window
    joined = p.Full()
    joined &= "causal | prefix(2)"
    assert joined == causal | p.Prefix(2)
    assert str("prefix(2)" & causal) == "prefix(2) & causal"


def test_a_text_that_is_no_pattern_is_refused_with_its_place():
    for join in (lambda: p.Causal() & "sliding(4)", lambda: "sliding(4)" | p.Causal()):
        with pytest.raises(
            rg.ArgumentError, match="at character 1: there is no pattern 'sliding'; did you mean 'sliding_window'"
        ):
            join()


@pytest.mark.parametrize("other", [None, 3, torch.ones(2, 2, dtype=torch.bool), ["causal"]])
def test_what_is_neither_pattern_nor_text_is_joined_with_none(other):
    for join in (lambda: p.Causal() & other, lambda: p.Causal() | other):
        with pytest.raises(TypeError):
            join()
