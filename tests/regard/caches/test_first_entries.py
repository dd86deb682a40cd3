"""Rings that keep the first entries of a text beside the last ones."""

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.caches import RingCache, load_cache, new_cache

WINDOW = p.CausalWindow(7) | (p.Causal() & p.Prefix(3))


def layer_of(**options) -> rg.MultiHeadAttention:
    torch.manual_seed(2)
    return rg.MultiHeadAttention(
        24, 4, kv_heads=2, pattern=WINDOW, positions="rotary", **options
    ).double()


def continued(layer, x, cache, sizes) -> torch.Tensor:
    return torch.cat([layer(part, cache=cache) for part in x.split(sizes, 1)], 1)


@pytest.mark.parametrize("backend", ["auto", "fused", "reference"])
@pytest.mark.parametrize("sizes", [[1] * 71, [2, 1, 1, 40, 1, 5, 1, 20]])
def test_a_window_with_first_keys_goes_on_as_the_whole_text(sizes, backend):
    layer = layer_of(backend=backend)
    x = torch.randn(2, 71, 24).double()
    cache = layer.new_cache(2, "ring", first_entries=3)
    assert repr(cache).endswith("capacity=6, first_entries=3)")
    with torch.no_grad():
        torch.testing.assert_close(continued(layer, x, cache, sizes), layer(x), rtol=0, atol=1e-12)
    assert cache.length == 71
    assert cache.keys.numbers.shape[2] == 9
    # keys and values of 2 rows, 2 heads, room for 3 + 6 + 16
    assert cache.nbytes == 2 * 2 * 2 * 6 * 25 * 8


def test_gradients_go_through_the_first_entries():
    layer = layer_of()
    x = torch.randn(1, 40, 24).double()
    outputs = (
        continued(layer, x, layer.new_cache(1, "ring", first_entries=3), [9, 1, 20, 1, 9]),
        layer(x),
    )
    gradient, expected = (
        torch.autograd.grad(output.square().sum(), layer.to_k.weight)[0] for output in outputs
    )
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


def test_latents_and_int8_keep_first_entries_too(tmp_path):
    torch.manual_seed(4)
    options = {"latent_dim": 8, "rope_dim": 4, "head_dim": 8, "pattern": WINDOW}
    layer = rg.LatentAttention(16, 2, **options).double()
    x = torch.randn(1, 50, 16).double()
    with torch.no_grad():
        for form in ("absorbed", "expanded"):
            cache = layer.new_cache(1, "ring", first_entries=3)
            parts = [layer(part, cache=cache, form=form) for part in x.split([30, 1, 19], 1)]
            torch.testing.assert_close(torch.cat(parts, 1), layer(x), rtol=0, atol=1e-12)
        layer = layer_of()
        x = torch.randn(2, 50, 24).double()
        small = layer.new_cache(2, "ring", dtype="int8", first_entries=3)
        continued(layer, x[:, :45], small, [9] * 5)
        small.reorder(torch.tensor([1, 0]))
        small.save(tmp_path / "ring.safetensors")
        again = load_cache(tmp_path / "ring.safetensors")
        assert repr(again) == repr(small)
        whole = layer(x[[1, 0]])[:, 45:]
        for cache in (small, again):
            torch.testing.assert_close(
                continued(layer, x[[1, 0], 45:], cache, [1] * 5), whole, rtol=0, atol=0.02
            )


def test_crop_keeps_first_entries_or_ends_behind_what_was_dropped():
    layer = layer_of()
    x = torch.randn(1, 60, 24).double()
    with torch.no_grad():
        cache = layer.new_cache(1, "ring", 12, first_entries=3)
        continued(layer, x, cache, [1] * 60)
        cache.crop(57)
        torch.testing.assert_close(
            layer(x[:, 57:], cache=cache), layer(x)[:, 57:], rtol=0, atol=1e-12
        )
        with pytest.raises(ArgumentError, match=r"crop\(20\): this cache holds entries 0 to 2 and"):
            cache.crop(20)
        cache.crop(2)
        torch.testing.assert_close(
            layer(x[:, 2:9], cache=cache), layer(x[:, :9])[:, 2:], rtol=0, atol=1e-12
        )


def test_what_would_count_dropped_positions_is_refused_and_leaves_the_cache():
    layer = layer_of()
    x = torch.randn(1, 60, 24).double()
    cache = layer.new_cache(1, "ring", first_entries=3)
    with torch.no_grad():
        continued(layer, x, cache, [59, 1])
        before = cache.keys.numbers.clone()
        keys, values = cache.keys, cache.values
        q = torch.randn(1, 4, 1, 6).double()
        for options, message in (
            (
                {"pattern": "causal"},
                "may look at keys that this cache dropped: it holds the first 3",
            ),
            ({"pattern": WINDOW | p.Prefix(4)}, "may look at keys that this cache dropped"),
            (
                {"pattern": WINDOW & p.SameDocument(torch.zeros(60, dtype=torch.int64))},
                "this cache dropped",
            ),
            ({"pattern": WINDOW, "bias": torch.zeros(60).double()}, "bias counts positions"),
            ({"pattern": WINDOW, "dropout": 0.5}, "dropout counts positions"),
        ):
            with pytest.raises(UnsupportedError, match=message):
                rg.attention(q, keys, values, **options)
        with pytest.raises(UnsupportedError, match="received counts positions"):
            rg.attention_detail(q, keys, values, pattern=WINDOW, want="received")
        with pytest.raises(UnsupportedError, match="bias counts positions"):
            layer(x[:, :1], cache=cache, bias=rg.bias.ALiBi())
        assert cache.length == 60
        assert torch.equal(cache.keys.numbers, before)
    with pytest.raises(ArgumentError, match="a dynamic cache keeps all"):
        new_cache("dynamic", 1, 2, 4, first_entries=4)
    with pytest.raises(ArgumentError, match="first"):
        RingCache(1, 2, 4, capacity=4, first_entries=-1)
