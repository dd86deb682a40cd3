"""The second pass gives the same statistics and gradients as the formulas of dense weights."""

from __future__ import annotations

import itertools

import pytest
import torch
from uncached import cut, detail, plan

import regard as rg
from regard import patterns as p
from regard.bias import T5Relative
from regard.core.result import checked_wants, weights_of
from regard.testing import make_qkv

WANT = ("log_sum_exp", "entropy", "received", "distance", "weights", rg.top_keys(4), weights_of([4, 0, 7], [3, 1]))
PATTERNS = ("full", "causal", "causal_window(5)", "~causal", "causal & ~causal", p.Where(lambda i, j: (i + j) % 3 > 0))
OPTIONS = (
    {},
    {"bias": torch.randn(6, 9, 14).masked_fill(torch.rand(6, 9, 14) > 0.8, -torch.inf), "softcap": 2.0},
    {"bias": T5Relative(6, buckets=8, max_distance=9).double()},
    {"q_start": torch.tensor([5, -4]), "scale": -1.1, "dropout": 0.5, "dropout_seed": 1},
)


def statistics(backend, pattern, options, want=WANT, **sizes):
    q, k, v = make_qkv(**{"q_len": 9, "k_len": 14, "dtype": torch.float64, "requires_grad": True, **sizes})
    told = detail(q, k, v, pattern=pattern, backend=backend, want=want, **options)
    found = {name: getattr(told, name) for name in ("entropy", "received", "distance", "weights", "chosen_weights")}
    found["top"] = told.top_keys.weights
    found["log_sum_exp"] = told.log_sum_exp.masked_fill(told.log_sum_exp == -torch.inf, 0)
    return found, (q, k)


@pytest.mark.parametrize("size", [(4, 32, 4), (256, 1 << 17, 64)])
@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_it_tells_and_sends_what_the_reference_does(number, size, monkeypatch):
    cut(monkeypatch, *size)
    options = OPTIONS[number]
    learned = [options["bias"].weight] if isinstance(options.get("bias"), T5Relative) else []
    for pattern, kv_heads in itertools.product(PATTERNS, (1, 3, 6)):
        results = []
        for backend in ("reference", "streamed"):
            found, inputs = statistics(backend, pattern, options, kv_heads=kv_heads)
            generator = torch.Generator().manual_seed(1)
            pulls = (torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in found.values())
            loss = sum((x * pull).sum() for x, pull in zip(found.values(), pulls, strict=True))
            grads = torch.autograd.grad(loss, [*inputs, *learned])
            results.append(found | dict(zip(("dq", "dk", "dbias"), grads, strict=False)))
        for name, expected in results[0].items():
            torch.testing.assert_close(results[1][name], expected, rtol=1e-9, atol=1e-11, msg=f"{name} of {pattern}")


@pytest.mark.parametrize("backend", ["streamed", "fused", "reference"])
@pytest.mark.parametrize("along_a_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_are_those_of_finite_differences(backend, along_a_direction, monkeypatch):
    """Along a random direction, which depends on every derivative; the slow form compares them one by one."""
    cut(monkeypatch, 2, 8, 2)
    q, k, v = make_qkv(batch=1, heads=2, kv_heads=1, q_len=4, k_len=6, head_dim=3, v_dim=2, dtype=torch.float64)

    def every(q, k):
        want = ("entropy", "received", "distance", rg.top_keys(2), weights_of([1]))
        told = detail(q, k, v, pattern="causal", backend=backend, want=want)
        top, chosen = told.top_keys.weights, told.chosen_weights.sin()
        return told.entropy, told.received.sin(), told.distance, top, chosen

    assert torch.autograd.gradcheck(every, (q.requires_grad_(), k.requires_grad_()), fast_mode=along_a_direction)


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


def test_asking_moves_no_plan():
    for length in (16, 300):
        q, k, v = make_qkv(q_len=length, k_len=length)
        asked = plan(q, k, v, want=WANT[:5]).backend
        assert asked == plan(q, k, v).backend


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
