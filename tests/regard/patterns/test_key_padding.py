"""Key padding: masks with holes, masks in the shapes of other libraries, and blocks by row."""

import re

import pytest
import torch

import regard as rg
from regard import patterns as p

MASK = torch.tensor([[True, False, True, True, False], [False, False, True, True, True]])
LENGTHS = torch.tensor([3, 9])
UNPADDED = torch.arange(9) < LENGTHS[:, None]  # (batch, k_len)


@pytest.mark.parametrize(
    ("batch", "length", "pattern", "words"),
    [
        (2, 6, p.KeyMask(MASK), "is for 5 keys and the call has 6"),
        (3, 5, p.KeyMask(MASK), "has 2 rows but the batch has 3"),
        (
            3,
            5,
            p.SameBlock(2, torch.tensor([0, 1])),
            "holds 2 numbers but the batch has 3 rows",
        ),
    ],
)
def test_what_is_for_other_keys_or_batch_rows_is_refused(batch, length, pattern, words):
    x = torch.randn(batch, 1, length, 4)
    with pytest.raises(rg.ShapeError, match=words):
        rg.attention(x, x, x, pattern=pattern)


@pytest.mark.parametrize("mask", [MASK.int(), [[True]], None, "mask"])
def test_only_booleans_are_a_mask(mask):
    with pytest.raises(rg.ArgumentError, match="it needs booleans, True = may look"):
        p.KeyMask(mask)


def test_a_mask_of_pairs_is_refused():
    with pytest.raises(rg.ShapeError, match=r"needs \(k_len,\) or \(batch, k_len\)"):
        p.KeyMask(MASK[:, None])


def test_no_memory_of_pairs_is_needed():
    """Pairs of 65,536 keys are counted from the runs of the mask."""
    length = 1 << 16
    mask = p.KeyMask(torch.arange(length) % 1000 < 900)
    count = (p.CausalWindow(64) & mask).count(length, length)
    assert count == pytest.approx(0.9 * 64 * length, rel=0.01)


def test_an_offset_counts_within_a_block():
    assert p.SameBlock(4, 9) == p.SameBlock(4, 1) != p.SameBlock(4)
    assert str(p.SameBlock(4, -1)) == "same_block(4, offset=3)"
    assert p.parse("same_block(4, offset=3)") == p.SameBlock(4, -1)


@pytest.mark.parametrize("residue", [0, 1])
@pytest.mark.parametrize("mask", [MASK, MASK[:1]], ids=["two rows", "one row"])
def test_at_every_second_position_every_second_key_is_masked(mask, residue):
    pattern = p.KeyMask(mask)
    at_residue = pattern.on_lattice(2, residue)
    expected = mask[:, residue::2]
    dense = at_residue.dense(3, expected.shape[1])
    assert torch.equal(
        dense.expand(len(mask), 1, 3, -1), expected[:, None, None].expand(-1, 1, 3, -1)
    )
    if len(mask) > 1:
        assert pattern.on_lattice(2, residue) is at_residue  # two would be no equal values


@pytest.mark.parametrize(
    "mask", [UNPADDED, UNPADDED[:, None, None, :]], ids=["(B, M)", "(B, 1, 1, M)"]
)
def test_a_key_padding_mask_is_refused_with_two_ways_out_that_agree(mask):
    qkv = [torch.randn(2, 4, length, 8) for length in (5, 9, 9)]
    words = r"key padding of 2 rows and 9 keys.*KeySpan\(0, lengths\)"
    with pytest.raises(rg.ShapeError, match=words) as refusal:
        rg.attention(*qkv, pattern=p.Explicit(mask))
    way_out = re.search(r"KeyMask\((mask[^)]*)\)", str(refusal.value))
    assert way_out is not None
    by_mask = p.KeyMask(eval(way_out.group(1), {"mask": mask}))
    by_lengths = p.KeySpan(0, LENGTHS)
    torch.testing.assert_close(
        rg.attention(*qkv, pattern=by_mask), rg.attention(*qkv, pattern=by_lengths)
    )
