"""A step of a layer that is simple has the bits of the general way, and whoever looks into its projections sees it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from regard import record_attention
from regard.errors import ShapeError
from regard.layers import Difference, MoBA, MultiHeadAttention, ValueResidual, multi_head
from regard.layers.multi_head import is_simple
from regard.layers.projection import Projection

SIMPLE: list[dict[str, Any]] = [
    {},
    {"kv_heads": 2, "positions": "rotary"},
    {"pattern": "causal_window(3)", "softcap": 5.0, "scale": 0.3},
    {"head_dim": 6, "value_dim": 10, "projection_bias": False},
]
NOT_SIMPLE: list[dict[str, Any]] = [
    {"sinks": True},
    {"qk_norm": True},
    {"output_gate": True},
    {"forgetting": True},
    {"differential": Difference(0.3)},
    {"chooser": MoBA(block=4, top=2)},
    {"mechanism": "softmax(additive(6, 6, 5))"},
]
CACHES: list[dict[str, Any]] = [
    {},
    {"kind": "static", "capacity": 13},
    {"kind": "ring", "capacity": 12},
    {"kind": "paged"},
    {"dtype": "int8"},
]


def new_layer(**options: Any) -> MultiHeadAttention:
    torch.manual_seed(5)
    layer = MultiHeadAttention(24, 4, **{"pattern": "causal", **options})
    for parameter in layer.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return layer.eval()


def steps(layer: MultiHeadAttention, cache: Any) -> torch.Tensor:
    """The outputs of a text of 11 vectors in calls of 5, 1, 1 and 4."""
    x = torch.randn(3, 11, 24, generator=torch.Generator().manual_seed(7))
    return torch.cat([layer(part, cache=cache) for part in x.split([5, 1, 1, 4], 1)], 1)


def continued(layer: MultiHeadAttention, cache: dict[str, Any]) -> torch.Tensor:
    return steps(layer, layer.new_cache(3, **cache))


@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("options", SIMPLE, ids=str)
def test_a_simple_step_has_the_bits_of_the_general_way(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], cache: dict[str, Any]
) -> None:
    layer = new_layer(**options)
    assert is_simple(layer)
    with torch.no_grad():
        simple = continued(layer, cache)
        monkeypatch.setattr(multi_head, "is_simple", lambda layer: False)
        assert torch.equal(simple, continued(layer, cache))


def test_a_simple_step_has_the_gradients_of_the_general_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = new_layer(positions="rotary")
    gradients = torch.autograd.grad(continued(layer, {}).square().sum(), [*layer.parameters()])
    monkeypatch.setattr(multi_head, "is_simple", lambda layer: False)
    general = torch.autograd.grad(continued(layer, {}).square().sum(), [*layer.parameters()])
    assert all(map(torch.equal, gradients, general))


@pytest.mark.parametrize("options", NOT_SIMPLE, ids=str)
def test_a_layer_with_another_part_is_not_simple(options: dict[str, Any]) -> None:
    assert not is_simple(new_layer(**options))


class WithDoubledKeys(MultiHeadAttention):
    """A layer of someone else, whose keys are twice as long."""

    def _project_keys(self, *arguments: Any) -> torch.Tensor:
        return super()._project_keys(*arguments) * 2


def test_what_a_derived_layer_changes_is_computed() -> None:
    layer = WithDoubledKeys(24, 4, pattern="causal")
    x = torch.randn(3, 11, 24, generator=torch.Generator().manual_seed(7))
    torch.testing.assert_close(continued(layer, {}), layer(x))


def test_a_layer_for_contexts_of_another_size_refuses_a_step_without_one() -> None:
    layer = new_layer(context_dim=10)
    with pytest.raises(ShapeError, match="it needs a context"):
        continued(layer, {})


def test_a_part_that_is_set_later_counts() -> None:
    layer = new_layer()
    layer.sinks = nn.Parameter(torch.ones(4))
    assert not is_simple(layer)
    assert not is_simple(new_layer(value_residual=ValueResidual()))


def hooks_of_the_projection(layer: Any, see: Callable[..., None]) -> Any:
    return layer.to_k.register_forward_hook(see)


def hooks_before_the_projection(layer: Any, see: Callable[..., None]) -> Any:
    return layer.to_output.register_forward_pre_hook(see)


def hooks_of_all_modules(layer: Any, see: Callable[..., None]) -> Any:
    def see_projections(module: nn.Module, *_: Any) -> None:
        if module is layer.to_v:
            see()

    return nn.modules.module.register_module_forward_hook(see_projections)


@pytest.mark.parametrize(
    "watch", [hooks_of_the_projection, hooks_before_the_projection, hooks_of_all_modules]
)
def test_hooks_of_projections_are_called_in_every_step(watch: Callable[..., Any]) -> None:
    layer = new_layer()
    seen = []
    hook = watch(layer, lambda *_: seen.append(1))
    continued(layer, {})
    hook.remove()
    assert len(seen) == 4
    continued(layer, {})
    assert len(seen) == 4


def test_a_backward_hook_of_a_projection_is_called() -> None:
    layer = new_layer()
    seen = []
    layer.to_q.register_full_backward_hook(lambda *_: seen.append(1))
    x = torch.randn(3, 1, 24, requires_grad=True)  # PyTorch warns where no input needs a gradient
    layer(x, cache=layer.new_cache(3)).sum().backward()
    assert len(seen) == 1


def test_an_adapter_in_place_of_a_projection_and_a_forward_of_its_own_count() -> None:
    class Doubled(Projection):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    layer = new_layer()
    with torch.no_grad():
        before = continued(layer, {})
        layer.to_output.__class__ = Doubled
        assert torch.equal(continued(layer, {}), 2 * before)
        layer.to_output.__class__ = Projection
        layer.to_output.forward = lambda x: Projection.forward(layer.to_output, x) * 3
        assert torch.equal(continued(layer, {}), 3 * before)


def test_a_recorded_step_is_recorded() -> None:
    layer = new_layer()
    with torch.no_grad():
        expected = continued(layer, {})
        with record_attention(layer) as recording:
            assert torch.equal(continued(layer, {}), expected)
    assert len(recording[""]) == 4


def test_weights_that_change_count_in_the_next_step() -> None:
    layer = new_layer()
    cache = layer.new_cache(3)
    x = torch.randn(3, 1, 24)
    with torch.no_grad():
        before = layer(x, cache=cache)
        cache.crop(0)
        layer.to_v.weight.data.copy_(2 * layer.to_v.weight)
        layer.to_v.bias.data.copy_(2 * layer.to_v.bias)
        after = layer(x, cache=cache)
        torch.testing.assert_close(after, layer(x))
    assert not torch.allclose(after, before)
