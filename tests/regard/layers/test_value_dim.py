"""`value_dim`: values of another size than queries and keys, in every form of the layer."""

import math

import pytest
import torch

import regard as rg
from regard.layers import MultiHeadAttention
from regard.mechanisms import LinearTransformer
from regard.positions import Rotary

EXACT = {"rtol": 0, "atol": 1e-12}


def make_layer(**options) -> MultiHeadAttention:
    torch.manual_seed(3)
    given = {"dim": 7, "heads": 6, "kv_heads": 2, "head_dim": 4, "value_dim": 5, **options}
    return MultiHeadAttention(**given).double()


def vectors(length: int, dim: int = 7, seed: int = 5) -> torch.Tensor:
    return torch.randn(2, length, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_pairs(layer: MultiHeadAttention, x: torch.Tensor, c: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """The layer's output, one head and one query at a time, from its four matrices."""
    joined = []
    for head in range(layer.heads):
        own = head // (layer.heads // layer.kv_heads)
        q = x @ layer.to_q.weight.unflatten(0, (layer.heads, 4))[head].T + layer.to_q.bias.view(layer.heads, 4)[head]
        k = c @ layer.to_k.weight.unflatten(0, (layer.kv_heads, 4))[own].T + layer.to_k.bias.view(-1, 4)[own]
        v = c @ layer.to_v.weight.unflatten(0, (layer.kv_heads, 5))[own].T + layer.to_v.bias.view(-1, 5)[own]
        rows = []
        for i in range(x.shape[1]):
            stop = i + 1 if causal else c.shape[1]
            scores = (k[:, :stop] @ q[:, i, :, None]) / math.sqrt(4)
            rows.append((scores.softmax(1) * v[:, :stop]).sum(1))
        joined.append(torch.stack(rows, 1))
    return torch.cat(joined, -1) @ layer.to_output.weight.T + layer.to_output.bias


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_equals_its_formula_with_gradients(causal):
    layer = make_layer(pattern="causal" if causal else None)
    x, found = vectors(9), []
    for compute in (lambda: layer(x), lambda: by_pairs(layer, x, x, causal)):
        layer.zero_grad()
        y = compute()
        y.sin().sum().backward()
        found.append([y.detach(), *(weight.grad for weight in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_cross_attention_equals_its_formula():
    layer = make_layer(context_dim=11)
    x, context = vectors(3), vectors(8, 11, seed=6)
    torch.testing.assert_close(layer(x, context), by_pairs(layer, x, context), **EXACT)
    torch.testing.assert_close(layer(x, layer.project_context(context)), layer(x, context), **EXACT)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("dynamic", {}), ("static", {"capacity": 12}), ("ring", {"capacity": 12}), ("dynamic", {"dtype": torch.bfloat16}),
     ("dynamic", {"dtype": "int8"}), ("state", {})],
)  # fmt: skip
def test_every_cache_continues_it(kind, options):
    of_state = {"mechanism": LinearTransformer(), "pattern": "causal"}
    of_keys = {"pattern": "causal_window(12)", "positions": Rotary()}
    layer, x = make_layer(**(of_state if kind == "state" else of_keys)), vectors(10)
    with torch.no_grad():
        cache = layer.new_cache(batch=2, kind=kind, **options)
        found = torch.cat([layer(part, cache=cache) for part in x.split([4, 1, 2, 3], 1)], 1)
        bound = 0.05 if "dtype" in options else 1e-12
        torch.testing.assert_close(found, layer(x), rtol=0, atol=bound)


@pytest.mark.parametrize("size", [0, 2.5])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(rg.RegardError, match="value_dim"):
        make_layer(value_dim=size)
