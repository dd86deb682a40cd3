"""A layer learns the logits of its sinks, continues with them in every cache, and records their weight."""

from __future__ import annotations

import pytest
import torch

import regard as rg


def layer_with_sinks(**options) -> rg.MultiHeadAttention:
    layer = rg.MultiHeadAttention(
        dim=12, heads=4, kv_heads=2, pattern="causal & causal_window(4)", sinks=True, **options
    )
    with torch.no_grad():
        layer.sinks.copy_(torch.tensor([0.5, -1.0, 2.0, 0.1]))
    return layer.eval()


def test_sinks_begin_with_zeros_and_learn():
    layer = rg.MultiHeadAttention(dim=12, heads=4, sinks=True)
    assert layer.sinks.tolist() == [0, 0, 0, 0]
    layer(torch.randn(2, 5, 12)).square().sum().backward()
    assert (layer.sinks.grad != 0).all()
    assert "sinks=True" in repr(layer)
    assert "sinks" not in rg.MultiHeadAttention(dim=12, heads=4).state_dict()


@pytest.mark.parametrize("kind", ["dynamic", "static", "ring"])
def test_a_text_continued_with_sinks_equals_the_whole(kind):
    layer, x = layer_with_sinks(), torch.randn(2, 9, 12)
    with torch.no_grad():
        whole = layer(x)
        cache = layer.new_cache(batch=2, kind=kind, **({"capacity": 9} if kind == "static" else {}))
        parts = [layer(x[:, at : at + n], cache=cache) for at, n in ((0, 4), (4, 1), (5, 3), (8, 1))]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_the_weight_of_the_sinks_is_recorded():
    layer, x = layer_with_sinks(), torch.randn(2, 5, 12)
    with rg.record_attention(layer, want=("sink", "weights")) as recording:
        layer(x)
    detail = recording[""][0]
    torch.testing.assert_close(detail.sink + detail.weights.sum(-1), torch.ones(2, 4, 5))
    assert (detail.sink > 0.01).all()


def test_sinks_are_true_or_false():
    with pytest.raises(rg.ArgumentError, match="sinks is 4; it is True or False"):
        rg.MultiHeadAttention(dim=12, heads=4, sinks=4)
