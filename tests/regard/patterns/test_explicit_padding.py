"""Key padding masks in the shapes that other libraries take: the refusal names calls that work."""

from __future__ import annotations

import re

import pytest
import torch

import regard as rg
from regard import patterns as p

LENGTHS = torch.tensor([3, 9])
MASK = torch.arange(9) < LENGTHS[:, None]  # (batch, k_len)


@pytest.mark.parametrize("mask", [MASK, MASK[:, None, None, :]], ids=["(B, M)", "(B, 1, 1, M)"])
def test_a_key_padding_mask_is_refused_with_two_ways_out_that_agree(mask):
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)
    with pytest.raises(rg.ShapeError, match=r"key padding of 2 rows and 9 keys.*KeySpan\(0, lengths\)") as refusal:
        rg.attention(q, k, v, pattern=p.Explicit(mask))
    way = re.search(r"KeyMask\((mask[^)]*)\)", str(refusal.value))
    assert way is not None
    named = rg.attention(q, k, v, pattern=p.KeyMask(eval(way.group(1), {"mask": mask})))
    torch.testing.assert_close(named, rg.attention(q, k, v, pattern=p.KeySpan(0, LENGTHS)))


def test_a_single_query_takes_the_mask_with_four_axes_as_it_is():
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)
    found = rg.attention(q, k, v, pattern=p.Explicit(MASK[:, None, None, :]))
    torch.testing.assert_close(found, rg.attention(q, k, v, pattern=p.KeySpan(0, LENGTHS)))


def test_a_mask_of_another_size_is_refused_with_both_sizes():
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)
    with pytest.raises(rg.ShapeError, match=r"is for \(3, 9\) queries and keys; this call has \(5, 9\)"):
        rg.attention(q, k, v, pattern=p.Explicit(torch.ones(3, 9, dtype=torch.bool)))
