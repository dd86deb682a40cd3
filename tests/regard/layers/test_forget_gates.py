"""Forget gates of the layer, against the Forgetting Transformer's formula, and what caches keep of them."""

import pytest
import torch
from layer_cases import EXACT, HEADS, KV_HEADS, make_layer, texts

import regard as rg
from regard import patterns as p
from regard.layers import MultiHeadAttention
from regard.layers.caches import Cache, load_cache, new_cache

DIM = 16
FORGETTING = {"forgetting": True, "pattern": "causal", "positions": None, "dim": DIM}


@torch.no_grad()
def forgetful_layer(**options) -> MultiHeadAttention:
    """A layer whose gates differ much from key to key."""
    layer = make_layer(**FORGETTING | options)
    layer.to_forget.weight.mul_(4)
    return layer


def formula(layer: MultiHeadAttention, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """The heads one query at a time, with the gates between each key and the query multiplied."""
    q = layer.to_q(x).unflatten(-1, (HEADS, -1))  # (batch, length, heads, head_dim)
    k = layer.to_k(x).unflatten(-1, (KV_HEADS, -1))
    v = layer.to_v(x).unflatten(-1, (KV_HEADS, -1))
    logits = x @ layer.to_forget.weight.T + layer.to_forget.bias
    gates = 1 / (1 + (-logits).exp())  # (batch, length, heads)

    output = torch.zeros_like(q)
    for head in range(HEADS):
        kv_head = head // (HEADS // KV_HEADS)
        for i in range(x.shape[1]):
            keys = slice(0, i + 1)
            not_forgotten = [gates[:, j + 1 : i + 1, head].prod(1) for j in range(i + 1)]
            scores = (q[:, i, None, head] * k[:, keys, kv_head]).sum(-1) / 2
            weights = scores.exp() * torch.stack(not_forgotten, 1) * allowed[i, keys]
            total = (weights[..., None] * v[:, keys, kv_head]).sum(1)
            output[:, i, head] = total / weights.sum(1, keepdim=True)
    return layer.to_output(output.flatten(2))


def gradient(layer: MultiHeadAttention, output: torch.Tensor) -> torch.Tensor:
    (grad,) = torch.autograd.grad(output.sin().sum(), layer.to_forget.weight)
    return grad


@pytest.mark.parametrize(
    "pattern", ["causal", "causal_window(4)", "causal_window(3) | (causal & prefix(2))"]
)
def test_forget_gates_are_their_formula_and_every_cache_keeps_them(pattern):
    layer = forgetful_layer(pattern=pattern)
    x = texts(2, 11, DIM)
    output = layer(x)
    expected = formula(layer, x, p.parse(pattern).dense(11, 11))
    expected_grad = gradient(layer, expected)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(layer, output), expected_grad, rtol=0, atol=1e-12)

    options_by_kind = {"dynamic": {}, "static": {"capacity": 11}, "paged": {}}
    if "window" in pattern:
        options_by_kind["ring"] = {"first_entries": 2 if "prefix" in pattern else 0}
    for kind, options in options_by_kind.items():
        for learns in (True, False):
            cache = layer.new_cache(2, kind, **options)
            with torch.set_grad_enabled(learns):
                parts = [layer(part, cache=cache) for part in x.split([5, 0, 1, 1, 4], 1)]
            continued = torch.cat(parts, 1)
            torch.testing.assert_close(continued, output, rtol=0, atol=1e-10, msg=kind)
            if learns:
                grad = gradient(layer, continued)
                torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-10, msg=kind)


def check_goes_on(
    layer: MultiHeadAttention, x: torch.Tensor, cache: Cache, to: int, held: torch.Tensor
) -> None:
    """Up to this position the outputs are those of the whole text with the keys that are not held hidden."""
    batch = len(x)
    start = cache.length
    allowed = torch.zeros(batch, KV_HEADS, to, dtype=torch.bool)
    allowed[..., start:] = True
    allowed.scatter_(-1, held.expand(batch, KV_HEADS, -1), True)
    by_head = allowed.repeat_interleave(HEADS // KV_HEADS, 1)
    mask = p.Explicit(by_head[:, :, None].expand(batch, HEADS, to, to))

    steps = [layer(x[:, place : place + 1], cache=cache) for place in range(start, to)]
    whole = layer(x[:, :to], pattern=mask & p.Causal())
    torch.testing.assert_close(torch.cat(steps, 1), whole[:, start:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
@torch.no_grad()
def test_forget_gates_outlive_crops_reorders_files_and_dropped_keys(kind, tmp_path):
    layer = forgetful_layer()
    x = texts(2, 70, DIM)
    cache = layer.new_cache(2, kind, capacity=90 if kind == "static" else None)
    layer(texts(2, 5, DIM), cache=cache)
    cache.crop(0)
    layer(x, cache=cache)
    cache.crop(66)
    cache.reorder(torch.tensor([1, 0, 1]))
    cache.save(tmp_path / "cache")
    cache = load_cache(tmp_path / "cache")
    x = torch.cat([x[[1, 0, 1], :66], texts(3, 10, DIM)], 1)
    check_goes_on(layer, x, cache, 68, torch.arange(66))

    without_last = torch.tensor([0, 3, 4, 7, 60, 64, 66])
    cache.keep(without_last)
    before = cache.positions
    with pytest.raises(rg.UnsupportedError, match=r"crop\(50\): keep\(\) dropped entry 49"):
        cache.crop(50)
    with pytest.raises(rg.UnsupportedError, match="summed along the text"):
        cache.keep(torch.tensor([66]), after=5)
    assert torch.equal(cache.positions, before)
    check_goes_on(layer, x, cache, 70, without_last)

    last_in_some_heads = torch.tensor(
        [[[0, 3, 69], [0, 4, 7]], [[0, 3, 4], [3, 66, 69]], [[4, 7, 68], [60, 64, 68]]]
    )
    cache.keep(last_in_some_heads)
    check_goes_on(layer, x, cache, 73, last_in_some_heads)
    with pytest.raises(rg.UnsupportedError, match="dropped entry 69"):
        cache.crop(70)
    cache.crop(72)
    cache.keep(torch.tensor([70, 71]))
    cache.crop(71)
    check_goes_on(layer, x, cache, 74, torch.tensor([70]))


@torch.no_grad()
def test_a_nan_reaches_the_queries_that_look_at_it_and_not_by_forget_gates():
    layer = forgetful_layer(pattern="causal_window(3)")
    x = texts(1, 11, DIM)
    padding = p.KeySpan(2, 9)
    clean = layer(x, pattern=padding)
    x[:, [0, 1, 9, 10]] = torch.nan
    padded = layer(x, pattern=padding)
    torch.testing.assert_close(padded[:, 2:9], clean[:, 2:9], **EXACT)
    x[:, 4] = torch.nan
    is_nan = layer(x, pattern=padding)[:, 2:9].isnan().any(-1)
    assert is_nan.tolist() == [[False, False, True, True, True, False, False]]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@torch.no_grad()
def test_forget_gates_are_rounded_neither_by_a_cache_nor_by_autocast(dtype):
    layer = forgetful_layer().float()
    x = texts(1, 300, DIM).float()
    exact = layer(x)
    cache = layer.new_cache(1, dtype=dtype)
    continued = torch.cat([layer(part, cache=cache) for part in x.split(100, 1)], 1)
    with torch.autocast("cpu"):
        cast = layer(x)
    for output in (continued, cast):  # with rounded gates these are off by 0.1 and more
        assert (output - exact).abs().max() < 0.02


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_layer(**FORGETTING, sinks=True), "without sinks=True"),
        (lambda: make_layer(**FORGETTING, mechanism="linear"), "use it without linear"),
        (
            lambda: make_layer(**FORGETTING, chooser=rg.layers.MoBA(2, 2)),
            "needs a layer with no forgetting",
        ),
        (lambda: forgetful_layer()(texts(1, 3, DIM), bias=torch.zeros(3, 3)), "so leave bias out"),
        (
            lambda: forgetful_layer()(texts(1, 3, DIM), texts(1, 3, DIM)),
            "forgetting are for self-attention",
        ),
        (lambda: forgetful_layer(pattern=None)(texts(1, 3, DIM)), "pattern full looks ahead"),
        (
            lambda: forgetful_layer().new_cache(1).append(*torch.zeros(2, 1, 2, 1, 4).double()),
            r"takes \(1, 4, 1\) numbers",
        ),
        (
            lambda: forgetful_layer()(
                texts(1, 3, DIM), cache=new_cache("dynamic", 1, 2, 4, dtype="float64")
            ),
            "takes none",
        ),
    ],
)
def test_what_forget_gates_do_not_go_with_is_refused(call, words):
    with pytest.raises(rg.RegardError, match=words):
        call()
