"""A step of a simple layer by one program has the numbers of its parts, and whoever looks at the parts sees them."""

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from measuring import NotedOperations
from program_steps import assert_close, note_computed
from torch import Tensor, nn

from regard import record_attention
from regard.backends.native.library import load
from regard.layers import MultiHeadAttention
from regard.layers.step_program import MOST_ROWS, StepProgram
from regard.positions import Rotary

pytestmark = pytest.mark.skipif(
    isinstance(load(), str), reason="the compiled library computes programs"
)

COMPUTED: list[dict[str, Any]] = [
    {"pattern": "causal"},
    {"pattern": "causal", "kv_heads": 2, "positions": "rotary", "value_dim": 5},
    {"pattern": "causal_window(4)", "positions": "rotary", "projection_bias": False},
    {"pattern": "causal", "scale": 0.2, "softcap": 3.0},
    {"pattern": "full"},
]
LEFT_TO_PYTORCH: list[dict[str, Any]] = [
    {"pattern": "causal", "positions": Rotary(dims=2)},
    {"pattern": "causal", "positions": Rotary(pairs="neighbours")},
    {"pattern": "causal", "backend": "reference"},
    {"pattern": "causal_window(2) | (causal & prefix(2))"},
    {"pattern": "causal", "qk_norm": True},
    {"pattern": "causal", "sinks": True},
]


def layer_of(**options: Any) -> MultiHeadAttention:
    torch.manual_seed(5)
    return MultiHeadAttention(dim=24, heads=4, **options).eval()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return note_computed(monkeypatch, StepProgram, "run")


class LayerPair:
    """A layer and its float64 copy, which no program computes, with a cache for each."""

    def __init__(self, layer: MultiHeadAttention, batch: int = 3, **cache: Any) -> None:
        self.layer = layer
        self.exact = copy.deepcopy(layer).double()
        self.batch = batch
        self.cache = layer.new_cache(batch, **cache)
        self.other = self.exact.new_cache(batch, **cache)

    def step(self, length: int = 1) -> Tensor:
        x = torch.randn(self.batch, length, 24)
        output = self.layer(x, cache=self.cache)
        expected = self.exact(x.double(), cache=self.other)
        assert_close(output, expected)
        assert self.cache.length == self.other.length
        return output


@pytest.mark.parametrize("options", COMPUTED, ids=str)
@pytest.mark.parametrize(
    "cache", [{}, {"kind": "static", "capacity": 60}, {"kind": "ring", "capacity": 50}], ids=str
)
@torch.no_grad()
def test_steps_have_the_numbers_of_the_parts(
    options: dict[str, Any], cache: dict[str, Any], computed: list[bool]
) -> None:
    pair = LayerPair(layer_of(**options), **cache)
    pair.step(length=5)
    for _ in range(20):
        pair.step()
    for changed in (pair.cache, pair.other):
        changed.reorder(torch.tensor([2, 0, 0]))
    for _ in range(5):
        pair.step()
    pair.step(length=3)
    pair.step()
    assert computed == [True] * 26
    assert not pair.cache.refuse_other(pair.layer)


@pytest.mark.parametrize("options", LEFT_TO_PYTORCH, ids=str)
@torch.no_grad()
def test_other_layers_are_left_to_pytorch(options: dict[str, Any], computed: list[bool]) -> None:
    pair = LayerPair(layer_of(**options))
    for _ in range(3):
        pair.step()
    assert computed == []


@torch.no_grad()
def test_other_inputs_and_caches_are_left_to_pytorch(computed: list[bool]) -> None:
    layer = layer_of(pattern="causal")
    layer(torch.randn(3, 1, 24), cache=layer.new_cache(3, dtype="int8"))
    layer(torch.randn(3, 1, 24), cache=layer.new_cache(3, "paged"))
    layer(torch.randn(MOST_ROWS + 1, 1, 24), cache=layer.new_cache(MOST_ROWS + 1))
    layer(torch.randn(0, 1, 24), cache=layer.new_cache(0))
    layer(torch.randn(24, 1, 3).permute(2, 1, 0), cache=layer.new_cache(3))
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(3, 1, 24), cache=layer.new_cache(3, dtype=torch.bfloat16))
    with torch.enable_grad():
        layer(torch.randn(3, 1, 24), cache=layer.new_cache(3)).sum().backward()
    layer.bfloat16()
    layer(torch.randn(3, 1, 24).bfloat16(), cache=layer.new_cache(3))
    assert computed == []


def count_operations(step: Callable[[], Any], layer: MultiHeadAttention) -> None:
    with NotedOperations() as operations:
        step()
    assert len(operations.names) > 5


def record(step: Callable[[], Any], layer: MultiHeadAttention) -> None:
    with record_attention(layer) as recording:
        step()
    assert recording


def hook_a_projection(step: Callable[[], Any], layer: MultiHeadAttention) -> None:
    called: list[Any] = []
    hook = layer.to_output.register_forward_hook(lambda module, *_: called.append(module))
    step()
    hook.remove()
    assert called == [layer.to_output]


def hook_all_modules(step: Callable[[], Any], layer: MultiHeadAttention) -> None:
    called: list[Any] = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
    step()
    hook.remove()
    assert called.count(layer.to_q) == 1


@pytest.mark.parametrize("look", [count_operations, record, hook_a_projection, hook_all_modules])
@torch.no_grad()
def test_whoever_looks_at_the_parts_sees_them(
    look: Callable[[Callable[[], Any], MultiHeadAttention], None], computed: list[bool]
) -> None:
    pair = LayerPair(layer_of(pattern="causal", positions="rotary"))
    pair.step()
    look(pair.step, pair.layer)
    pair.step()
    assert computed == [True, True]


@torch.no_grad()
def test_what_changes_in_a_layer_counts_at_once(computed: list[bool]) -> None:
    pair = LayerPair(layer_of(pattern="causal"))
    pair.step()
    for layer in (pair.layer, pair.exact):
        layer.to_q.weight.data.copy_(layer.to_q.weight * 0.5)
    pair.step()
    for layer in (pair.layer, pair.exact):
        layer.to_k.weight.data = layer.to_k.weight.data * 0.5
    pair.step()
    for layer in (pair.layer, pair.exact):
        layer.to_v.weight = nn.Parameter(layer.to_v.weight * 0.5)
    pair.step()
    for layer in (pair.layer, pair.exact):
        layer.options["scale"] = 0.3
    pair.step()
    assert computed == [True] * 5
    for layer in (pair.layer, pair.exact):
        projection = nn.Linear(24, 24).to(layer.to_output.weight.dtype)
        nn.init.ones_(projection.weight)
        nn.init.zeros_(projection.bias)
        layer.to_output = projection
    pair.step()
    assert computed == [True] * 5


@torch.no_grad()
def test_dropout_in_training_is_left_to_pytorch(computed: list[bool]) -> None:
    layer = layer_of(pattern="causal", dropout=0.5).train()
    layer(torch.randn(3, 1, 24), cache=layer.new_cache(3))
    assert computed == []
    layer.eval()
    layer(torch.randn(3, 1, 24), cache=layer.new_cache(3))
    assert computed == [True]


@torch.no_grad()
def test_a_step_with_nan_is_computed_by_the_parts_and_the_cache_goes_on(
    computed: list[bool],
) -> None:
    pair = LayerPair(layer_of(pattern="causal"))
    pair.step()
    kept = copy.copy(pair.cache)
    x = torch.randn(3, 1, 24)
    x[1, 0, 3] = torch.nan
    assert pair.layer(x, cache=kept).isnan().any(-1).flatten().tolist() == [False, True, False]
    for _ in range(20):
        pair.step()
    assert computed == [True, False] + [True] * 20


@torch.no_grad()
def test_threads_that_share_a_layer_write_their_own_texts() -> None:
    layer = layer_of(pattern="causal", positions="rotary")
    vectors = torch.randn(4, 60, 1, 24)
    expected = []
    for rows in vectors:
        cache = layer.new_cache(1)
        expected.append(torch.cat([layer(x[None], cache=cache) for x in rows]))
    found: dict[int, Tensor] = {}

    def write(number: int) -> None:
        with torch.no_grad():
            cache = layer.new_cache(1)
            found[number] = torch.cat([layer(x[None], cache=cache) for x in vectors[number]])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert torch.equal(found[number], expected[number])


@torch.no_grad()
def test_nothing_that_is_kept_holds_a_layer_or_the_entries_of_a_cache() -> None:
    layer = layer_of(pattern="causal")
    cache = layer.new_cache(2)
    layer(torch.randn(2, 1, 24), cache=cache)
    entries = weakref.ref(cache._held.planes["k"])
    copied = copy.deepcopy(layer)
    del cache
    gc.collect()
    assert entries() is None
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None
    assert copied(torch.randn(2, 1, 24), cache=copied.new_cache(2)).shape == (2, 1, 24)
