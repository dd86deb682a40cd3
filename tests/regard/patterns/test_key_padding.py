"""Key padding: masks with holes, masks in the shapes of other libraries, and blocks by row."""

import re

import pytest
import torch

import regard as rg
from regard import patterns as p

MASK = torch.tensor([[True, False, True, True, False], [False, False, True, True, True]])
LENGTHS = torch.tensor([3, 9])
LIVE = torch.arange(9) < LENGTHS[:, None]  # (batch, k_len)


def tensors(q_len: int) -> list[torch.Tensor]:
    return [torch.randn(2, 4, length, 8) for length in (q_len, 9, 9)]


def test_a_mask_that_is_too_short_or_has_other_rows_is_refused():
    q = torch.randn(2, 1, 6, 4)
    with pytest.raises(rg.ShapeError, match="is for 5 keys and the call has 6"):
        rg.attention(q, q, q, pattern=p.KeyMask(MASK))
    with pytest.raises(rg.ShapeError, match="has 2 rows but the batch has 3"):
        rg.attention(*[torch.randn(3, 1, 5, 4)] * 3, pattern=p.KeyMask(MASK))


@pytest.mark.parametrize("given", [MASK.int(), [[True]], None, "mask"])
def test_only_booleans_are_a_mask(given):
    with pytest.raises(rg.ArgumentError, match="it needs booleans, True = may look"):
        p.KeyMask(given)


def test_a_mask_of_pairs_is_refused():
    with pytest.raises(rg.ShapeError, match=r"needs \(k_len,\) or \(batch, k_len\)"):
        p.KeyMask(MASK[:, None])


def test_no_memory_of_pairs_is_needed():
    """A plan over 65,536 keys counts its pairs from the runs of the mask."""
    mask = p.KeyMask(torch.arange(1 << 16) % 1000 < 900)
    assert (p.CausalWindow(64) & mask).count(1 << 16, 1 << 16) == pytest.approx(
        0.9 * 64 * (1 << 16), rel=0.01
    )


def test_an_offset_counts_within_a_block():
    assert p.SameBlock(4, 9) == p.SameBlock(4, 1) != p.SameBlock(4)
    assert str(p.SameBlock(4, -1)) == "same_block(4, offset=3)"
    assert p.parse("same_block(4, offset=3)") == p.SameBlock(4, -1)
    with pytest.raises(rg.ShapeError, match="holds 2 numbers but the batch has 3 rows"):
        rg.attention(*[torch.randn(3, 1, 5, 4)] * 3, pattern=p.SameBlock(2, torch.tensor([0, 1])))


def test_positions_at_a_stride_are_masked_by_every_so_many_keys():
    for mask in (MASK, MASK[:1]):
        pattern = p.KeyMask(mask)
        for residue in (0, 1):
            there = pattern.on_lattice(2, residue)
            expected = mask[:, None, None, residue::2]
            found = there.dense(3, expected.shape[-1])
            assert torch.equal(found.expand(len(mask), 1, 3, -1), expected.expand(-1, 1, 3, -1))
    varying = p.KeyMask(MASK)
    assert varying.on_lattice(2, 1) is varying.on_lattice(2, 1)  # two would be no equal values


@pytest.mark.parametrize("mask", [LIVE, LIVE[:, None, None, :]], ids=["(B, M)", "(B, 1, 1, M)"])
def test_a_key_padding_mask_is_refused_with_two_ways_out_that_agree(mask):
    q, k, v = tensors(5)
    with pytest.raises(
        rg.ShapeError, match=r"key padding of 2 rows and 9 keys.*KeySpan\(0, lengths\)"
    ) as refusal:
        rg.attention(q, k, v, pattern=p.Explicit(mask))
    way = re.search(r"KeyMask\((mask[^)]*)\)", str(refusal.value))
    assert way is not None
    named = rg.attention(q, k, v, pattern=p.KeyMask(eval(way.group(1), {"mask": mask})))
    torch.testing.assert_close(named, rg.attention(q, k, v, pattern=p.KeySpan(0, LENGTHS)))
