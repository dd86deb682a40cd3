"""A pattern with tensors, written as text and list for a compiled graph, reads back to the same pairs."""

import torch
from hypothesis import given
from pattern_expressions import joined, readable

from regard.functional.compiled import _steady
from regard.patterns import CausalWindow, KeyMask, Pattern, Prefix, SameDocument
from regard.patterns.text import read_together, written_apart

LENGTH = 9
IDS = SameDocument(torch.arange(LENGTH) // 4)
LIVE = KeyMask(torch.arange(LENGTH) % 3 > 0)


def same_after_reading(pattern: Pattern) -> bool:
    text, tensors = written_apart(pattern, _steady)
    again = read_together(text, tensors)
    return torch.equal(*(one.dense(LENGTH, LENGTH) for one in (again, pattern)))


def test_either_inside_both_keeps_its_parentheses():
    streaming = CausalWindow(4) | Prefix(2)
    for pattern in (CausalWindow(5) & IDS & streaming, ~streaming & IDS, (IDS | streaming) & LIVE, ~(IDS & streaming)):
        assert same_after_reading(pattern), str(pattern)


@given(joined(readable), joined(readable))
def test_every_expression_reads_back(one, other):
    for pattern in (one & IDS & other, (one | LIVE) & other, ~(one & IDS) | other, one & ~(other | IDS)):
        assert same_after_reading(pattern), str(pattern)
