"""A layer that continues a text with any cache computes what it computes of the whole text at once."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_cases import split_heads

import regard as rg
from regard.layers import MultiHeadAttention
from regard.patterns import Causal, Explicit, Full, KeySpan, PerHead, RandomBlocks
from regard.positions import Rotary

WINDOW = 6
KINDS = {"dynamic": None, "static": 24, "ring": WINDOW - 1, "paged": None}


def layer_of(
    dtype: torch.dtype = torch.float64, pattern: str = f"causal_window({WINDOW})"
) -> MultiHeadAttention:
    """Its output is the joined heads themselves, so that an error of attention is seen as it is."""
    torch.manual_seed(3)
    layer = MultiHeadAttention(dim=24, heads=4, kv_heads=2, pattern=pattern, positions=Rotary())
    layer.to(dtype).eval()
    with torch.no_grad():
        layer.to_output.weight.copy_(torch.eye(24))
        layer.to_output.bias.zero_()
    return layer


def continued(layer, x, cuts, cache, **options) -> torch.Tensor:
    parts = [layer(x[:, start:stop], cache=cache, **options) for start, stop in pairwise(cuts)]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_continuing_equals_the_whole_at_once(kind, data):
    layer = layer_of()
    length = data.draw(st.sampled_from([WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 24]))
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, length - 1)))), length]
    padding_on_the_left = {"pattern": KeySpan(torch.tensor([0, 4]))}
    options = data.draw(st.sampled_from([{}, padding_on_the_left]))
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(2, length, 24, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        cache = layer.new_cache(2, kind, capacity=KINDS[kind])
        output = continued(layer, x, cuts, cache, **options)
        assert (output - layer(x, **options)).abs().max() <= 1e-12
    assert cache.length == length


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("cuts", [range(25), (0, 7, 8, 24)])
def test_a_narrow_cache_stays_within_the_bound_it_states(kind, dtype, cuts):
    """With every score moved by at most d, a weight moves by a factor of at most e^(2 d)."""
    layer = layer_of()
    x = torch.randn(2, 24, 24, dtype=torch.float64)
    with torch.no_grad():
        q = layer._rotate(split_heads(layer.to_q(x), 4), 0)
        k = layer._rotate(split_heads(layer.to_k(x), 2), 0)
        v = split_heads(layer.to_v(x), 2)
        output = continued(layer, x, cuts, layer.new_cache(2, kind, KINDS[kind], dtype))
        error = (output - layer(x)).abs().max()
    rounding = {"bfloat16": 1 / 256, "float16": 1 / 2048, "int8": 1 / 254 + 2**-24}[dtype]
    score_error = 6**-0.5 * q.abs().sum(-1).max() * k.abs().max() * rounding
    bound = v.abs().max() * (rounding + torch.expm1(2 * score_error))
    assert 0 < error <= bound
    assert error <= 40 * rounding  # the bound leaves room for more than rounding


def test_a_ring_refuses_what_looks_further_back_than_it_holds():
    layer = layer_of(pattern="causal")
    x = torch.randn(1, 9, 24, dtype=torch.float64)
    cache = layer.new_cache(1, "ring", capacity=4)
    with torch.no_grad():
        continued(layer, x, range(6), cache)
        with pytest.raises(
            rg.ArgumentError,
            match="keys from position 0 on are needed, and this cache holds those from 1",
        ):
            layer(x[:, 5:6], cache=cache)
        assert cache.length == 5
        layer(x[:, 5:6], cache=cache, pattern="causal_window(5)")


@pytest.mark.parametrize("kind", KINDS)
def test_training_through_a_cache_gives_the_gradients_of_the_whole(kind):
    layer = layer_of()
    x = torch.randn(1, 14, 24, dtype=torch.float64)
    weights = list(layer.parameters())
    cache = layer.new_cache(1, kind, KINDS[kind])
    output = continued(layer, x, (0, 5, 6, 13, 14), cache)
    grads = torch.autograd.grad(output.square().sum(), weights)
    expected = torch.autograd.grad(layer(x).square().sum(), weights)
    torch.testing.assert_close(grads, expected, rtol=0, atol=1e-12)


BY_LENGTH = r"depends on the number of keys.*past=True"
OF_ONE_CALL = {
    "alone": (RandomBlocks(1, block=2, seed=3), BY_LENGTH),
    "in an alternative": (Causal() & (KeySpan(0, 1) | RandomBlocks(1, block=2)), BY_LENGTH),
    "negated": (~RandomBlocks(1, block=2), BY_LENGTH),
    "of one head": (PerHead([Causal(), Causal(), Causal(), RandomBlocks(1, block=2)]), BY_LENGTH),
    "mask": (
        PerHead([Full()] * 3 + [Explicit(torch.ones(5, 5, dtype=torch.bool))]),
        "for the rows of one call",
    ),
}


@pytest.mark.parametrize("name", OF_ONE_CALL)
def test_patterns_of_one_length_are_refused_with_a_cache_and_leave_it_as_it_was(name):
    pattern, words = OF_ONE_CALL[name]
    layer = layer_of()
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    with torch.no_grad():
        for kind, capacity in KINDS.items():
            cache = layer.new_cache(1, kind, capacity)
            layer(x[:, :2], cache=cache)
            with pytest.raises(rg.UnsupportedError, match=words):
                layer(x[:, 2:], cache=cache, pattern=pattern)
            assert cache.length == 2
        layer(x, pattern=pattern)  # at once it means one thing


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (
            (3, 2, 1, 6),
            r"^batch is 3 in k \(3, 2, 1, 6\), and the cache has 2; make the cache with new_cache\(batch=3\)$",
        ),
        ((2, 4, 1, 6), "^kv_heads is 4 in k .* and the cache has 2; make the cache with the layer"),
        ((2, 2, 1, 5), "^head_dim is 5 in k .* and the cache has 6"),
        (
            (2, 2, 6),
            r"^k has shape \(2, 2, 6\); append takes \(batch, kv_heads, added, head_dim\)$",
        ),
    ],
)
def test_entries_of_another_size_are_refused_by_the_axis_that_differs(shape, words):
    cache = rg.MultiHeadAttention(dim=24, heads=4, kv_heads=2).new_cache(batch=2)
    with pytest.raises(rg.ShapeError, match=words):
        cache.append(torch.ones(shape), torch.ones(shape))


def test_a_ring_is_as_long_as_the_layer_looks_back():
    assert layer_of().new_cache(1, "ring").capacity == WINDOW - 1
    with pytest.raises(rg.ArgumentError, match="has no limit"):
        layer_of(pattern="causal").new_cache(1, "ring")
