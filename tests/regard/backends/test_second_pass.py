"""The second pass gives the same statistics and gradients as the formulas of dense weights."""

from __future__ import annotations

import pytest
import torch
from uncached import cut, detail

import regard as rg
from regard.core.result import checked_wants, weights_of
from regard.testing import make_qkv

WANT = ("log_sum_exp", "entropy", "received", "distance", "weights", rg.top_keys(4), weights_of([4, 0, 7], [3, 1]))


def test_top_keys_are_found_across_tiles_and_groups(monkeypatch):
    """Many keys, so that they are dealt out to groups, and several tiles, so that the largest meet."""
    q, k, v = make_qkv(batch=1, heads=2, kv_heads=1, q_len=300, k_len=2500)
    top, whole = (
        detail(q, k, v, pattern="causal", backend=backend, want=(rg.top_keys(8), "weights"))
        for backend in ("streamed", "reference")
    )
    torch.testing.assert_close(top.top_keys.weights, whole.top_keys.weights)
    torch.testing.assert_close(top.weights.gather(-1, top.top_keys.indices), top.top_keys.weights)
    assert top.top_keys.indices.sort(-1).values.diff(dim=-1).min() > 0  # no key twice


def test_fewer_keys_than_asked_for_are_padded():
    x = torch.zeros(1, 1, 2, 4)
    top = detail(x, x, x, pattern="causal", backend="streamed", want=rg.top_keys(5)).top_keys
    assert top.indices[0, 0, 0].tolist() == [0, -1, -1, -1, -1]
    assert top.weights[0, 0, 1].tolist() == [0.5, 0.5, 0, 0, 0]


class TestWeightsOf:
    def test_rows_and_heads_come_in_the_order_asked_and_stand_at_all_keys(self, monkeypatch):
        cut(monkeypatch, 4, 32, 4)
        q, k, v = make_qkv(q_len=9, k_len=14)
        everything = detail(q, k, v, pattern="causal_window(3)", want="weights", backend="reference").weights
        for backend in ("streamed", "fused", "reference"):
            for heads in ((5, 0, 2), None):
                want = weights_of(rows=[8, 2, 3], heads=heads)
                found = detail(q, k, v, pattern="causal_window(3)", want=want, backend=backend)
                chosen = everything[:, list(heads or range(6))][:, :, [8, 2, 3]]
                torch.testing.assert_close(found.chosen_weights, chosen)

    def test_blocks_without_a_chosen_row_are_not_computed(self, monkeypatch):
        cut(monkeypatch, 4, 32, 4)
        q, k, v = make_qkv(q_len=9, k_len=14)
        computed = []
        from regard.backends.scores.blocks import Scores

        plain = Scores.compute
        monkeypatch.setattr(Scores, "compute", lambda *a, **b: computed.append(a[1].rows) or plain(*a, **b))
        detail(q, k, v, want=weights_of([2, 3], heads=[0]), backend="fused")
        assert set(computed) == {range(2, 4)}

    @pytest.mark.parametrize("backend", ["streamed", "fused", "reference"])
    @pytest.mark.parametrize(("asked", "words"), [({"rows": [7]}, "row 7"), ({"rows": [0], "heads": [6]}, "head 6")])
    def test_a_row_or_head_that_is_not_there_is_refused(self, asked, words, backend):
        q, k, v = make_qkv()
        with pytest.raises(rg.ArgumentError, match=f"requests {words}"):
            detail(q, k, v, want=weights_of(**asked), backend=backend)

    @pytest.mark.parametrize("rows", [[], [-1], [1, 1], [True], ["a"], [1.0]])
    def test_a_list_that_names_no_rows_is_refused(self, rows):
        with pytest.raises(rg.ArgumentError, match="weights_of"):
            weights_of(rows)

    def test_it_is_asked_for_once(self):
        with pytest.raises(rg.ArgumentError, match="weights_of twice"):
            checked_wants([weights_of([1]), weights_of([2])])


def test_distance_is_the_mean_distance_however_far_out_the_positions_are():
    q, k = torch.zeros(1, 1, 2, 4, dtype=torch.float64), torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    for backend in ("streamed", "fused", "reference"):
        far = detail(q, k, k, q_start=2**40, want="distance", backend=backend).distance
        assert far[0, 0].tolist() == pytest.approx([2**40 - 1, 2**40], rel=1e-15)
        near = detail(q, k, k, q_start=1, want="distance", backend=backend).distance
        assert near[0, 0].tolist() == pytest.approx([2 / 3, 1])


@pytest.mark.parametrize("want", ["chosen", "chosen among others"])
def test_a_bias_that_learns_by_chosen_weights_alone_gets_zeros_elsewhere(want):
    """Its gradient is made of the blocks of chosen rows; what stands elsewhere must not be left as it was found."""
    q, k, v = make_qkv(batch=1, heads=1, kv_heads=1, q_len=7, k_len=11, dtype=torch.float64)
    asked = (rg.weights_of(rows=[1], heads=[0]), *(() if want == "chosen" else ("entropy",)))
    found = []
    for backend in ("reference", "streamed"):
        bias = torch.randn(7, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        detail = rg.attention_detail(q, k, v, bias=bias, want=asked, backend=backend)
        found += torch.autograd.grad(detail.chosen_weights[..., :3].sum(), bias)
    torch.testing.assert_close(*found)
