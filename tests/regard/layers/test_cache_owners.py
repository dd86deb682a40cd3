"""A cache belongs to the layer that wrote to it first: a second layer is refused, unless sharing was asked for."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch

import regard as rg
from regard.errors import ArgumentError
from regard.layers import LatentAttention
from regard.layers.caches import RecurrentState, load_cache

BATCH = 3
LENGTH = 7
DIM = 10
HEADS = 2
KINDS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"capacity": 29},
    "ring": {"capacity": 29},
    "paged": {},
    "int8": {"dtype": "int8"},
    "state": {},
}


def stack(kind: str, depth: int = 3) -> list[rg.MultiHeadAttention]:
    torch.manual_seed(5)
    options = {"pattern": "causal"}
    if kind == "state":
        options["mechanism"] = "linear_transformer"
    return [rg.MultiHeadAttention(DIM, HEADS, **options).double() for _ in range(depth)]


def cache_of(layer: rg.MultiHeadAttention, kind: str, **options: Any) -> Any:
    name = "dynamic" if kind == "int8" else kind
    return layer.new_cache(BATCH, name, **KINDS[kind], **options)


def inputs(length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(BATCH, length, DIM, dtype=torch.float64, generator=generator)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_layer_is_refused_with_the_way_and_changes_nothing(kind):
    first, second, _ = stack(kind)
    cache = cache_of(first, kind)
    untouched = cache_of(first, kind)
    x = inputs()
    hidden = first(x, cache=cache)
    first(x, cache=untouched)
    way_out = r"caches = \[block\.attn\.new_cache\(batch\) for block in"
    with pytest.raises(ArgumentError, match=f"of another layer.*{way_out}"):
        second(hidden, cache=cache)
    assert cache.length == LENGTH
    assert torch.equal(first(x[:, :1], cache=cache), first(x[:, :1], cache=untouched))


def test_a_second_layer_of_latents_is_refused_too():
    sizes = {"head_dim": 5, "latent_dim": 3, "rope_dim": 2}
    first, second = (LatentAttention(DIM, HEADS, **sizes, pattern="causal") for _ in range(2))
    x = inputs().float()
    cache = first.new_cache(BATCH)
    hidden = first(x, cache=cache)
    with pytest.raises(ArgumentError, match="of another layer"):
        second(hidden, cache=cache)
    assert cache.length == LENGTH


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_were_asked_to_share_may_write_to_one_cache(kind):
    first, second, _ = stack(kind)
    cache = cache_of(first, kind, shared=True)
    for layer in (first, second, first):
        layer(inputs(), cache=cache)
    assert cache.length == 3 * LENGTH


@pytest.mark.parametrize("kind", KINDS)
def test_a_reordered_or_cropped_cache_keeps_its_owner_and_an_emptied_one_goes_to_the_next(kind):
    first, second, third = stack(kind)
    cache = cache_of(first, kind)
    first(inputs(), cache=cache)
    cache.reorder(torch.tensor([2, 0, 1]))
    if kind != "state":
        cache.crop(5)
    length = 7 if kind == "state" else 5
    with pytest.raises(ArgumentError, match=f"holds {length} positions of another layer"):
        second(inputs(), cache=cache)
    cache.crop(0)
    second(inputs(), cache=cache)
    with pytest.raises(ArgumentError, match="of another layer"):
        third(inputs(), cache=cache)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_belong_to_the_layer_that_continues_them(kind, tmp_path):
    first, second, _ = stack(kind)
    cache = cache_of(first, kind)
    first(inputs(), cache=cache)
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    if kind == "state":
        loaded = RecurrentState.load(path, first.mechanism.declared)
    else:
        loaded = load_cache(path)
    copied_layer, copied = copy.deepcopy((first, cache))
    expected = first(inputs(1), cache=cache)
    for free in (loaded, copied):
        assert torch.equal(copied_layer(inputs(1), cache=free), expected)
        with pytest.raises(ArgumentError, match="of another layer"):
            second(inputs(1), cache=free)
    for free in (copy.copy(copied), pickle.loads(pickle.dumps(copied))):
        first(inputs(1), cache=free)
        with pytest.raises(ArgumentError, match="of another layer"):
            copied_layer(inputs(1), cache=free)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_call_gives_a_cache_no_owner(kind):
    first, second, _ = stack(kind)
    cache = cache_of(first, kind)
    first(inputs(), cache=cache)
    free = copy.copy(cache)
    mask = rg.patterns.Explicit(torch.ones(7, 7).bool())
    with pytest.raises(rg.RegardError):
        second(inputs(), cache=free, pattern=mask)
    with pytest.raises(rg.RegardError):
        second(inputs(), cache=free, bias=torch.zeros(1, 5, 1, 1, dtype=torch.float64))
    assert torch.equal(first(inputs(1), cache=free), first(inputs(1), cache=cache))


def test_a_cache_does_not_keep_its_layer_alive_and_goes_to_the_next_one():
    first, second, _ = stack("dynamic")
    cache = first.new_cache(BATCH)
    gone = weakref.ref(first)
    first(inputs(), cache=cache)
    del first
    gc.collect()
    assert gone() is None
    second(inputs(), cache=cache)
    assert cache.length == 2 * LENGTH


def test_wrapped_and_compiled_layers_are_the_layer_that_they_wrap():
    layers = stack("dynamic")
    x = inputs()
    torch._dynamo.reset()
    compiled = [torch.compile(layer, backend="eager") for layer in layers]
    caches = [layer.new_cache(BATCH, "static", 29) for layer in layers]
    expected = x
    for layer in layers:
        expected = layer(expected)
    outputs = []
    for hidden, stack_now in zip(x.split((3, 1, 3), 1), (compiled, layers, compiled), strict=True):
        for layer, cache in zip(stack_now, caches, strict=True):
            hidden = layer(hidden, cache=cache)
        outputs.append(hidden)
    assert (torch.cat(outputs, 1) - expected).abs().max() < 1e-12
    with pytest.raises(ArgumentError, match="of another layer"):
        compiled[1](x, cache=caches[0])
