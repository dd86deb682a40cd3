"""Layers inside torch.compile: dropout whose backward pass is computed again, caches, masks of numbers."""

from __future__ import annotations

import gc
import sys
from functools import partial

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._functorch import config
from torch.autograd import graph
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import regard as rg

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()


DROPPING = rg.MultiHeadAttention(dim=6, heads=2, pattern="causal", dropout=0.5)


def twice(x: torch.Tensor) -> torch.Tensor:
    return DROPPING(DROPPING(x)).square().sum()


def in_a_region(x: torch.Tensor) -> torch.Tensor:
    with graph.region_activation_memory_budget(0.0):
        return twice(x)


def keeping_products(_, operation, *args, **options):
    return (
        CheckpointPolicy.MUST_SAVE if operation is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE
    )


def checkpointed(x: torch.Tensor, **options) -> torch.Tensor:
    for _ in range(2):
        x = checkpoint(DROPPING, x, use_reentrant=False, **options)
    return x.square().sum()


def of_the_same_draws(function) -> list[torch.Tensor]:
    torch.manual_seed(7)
    x = torch.arange(42.0).view(1, 7, 6).sin().requires_grad_()
    output = function(x)
    return [output, *torch.autograd.grad(output, (x, *DROPPING.parameters()))]


SAVING = {
    "a small budget": (0.1, twice, {}),
    "no budget": (0.0, twice, {}),
    "checkpoints": (1.0, checkpointed, {}),
    "checkpoints that keep products": (
        1.0, checkpointed, {"context_fn": partial(create_selective_checkpoint_contexts, keeping_products)},
    ),
}  # fmt: skip


if hasattr(graph, "region_activation_memory_budget"):  # newer than torch 2.11
    SAVING["a region without a budget"] = (1.0, in_a_region, {})


@pytest.mark.parametrize(("budget", "function", "options"), SAVING.values(), ids=SAVING)
def test_a_backward_pass_that_computes_again_has_the_dropout_of_the_forward_pass(budget, function, options):
    with config.patch(activation_memory_budget=budget):
        compiled = torch.compile(partial(function, **options), fullgraph=True, backend="aot_eager_decomp_partition")
        found = of_the_same_draws(compiled)
    for one, other in zip(found, of_the_same_draws(twice), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_inductor_has_the_dropout_of_the_uncompiled_layer_in_both_passes():
    with config.patch(activation_memory_budget=0.0):
        found = of_the_same_draws(torch.compile(twice, fullgraph=True))
    for one, other in zip(found, of_the_same_draws(twice), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_equal_calls_in_one_graph_draw_different_seeds():
    x = torch.ones(1, 1, 3, 64)

    def function(x):
        return [rg.attention(x, x, x, dropout=0.5) for _ in range(2)]

    one, other = torch.compile(function, fullgraph=True, backend="aot_eager_decomp_partition")(x)
    assert not torch.equal(one, other)


STEPPING = rg.MultiHeadAttention(dim=6, heads=2, head_dim=4, pattern="causal", positions="rotary").eval()


def in_steps(layer, kind: str, **options: int) -> torch.Tensor:
    """The output of seven vectors in three calls with a cache."""
    cache, x = STEPPING.new_cache(1, kind, **options), torch.arange(42.0).view(1, 7, 6).sin()
    return torch.cat([layer(x[:, start:stop], cache=cache) for start, stop in ((0, 3), (3, 4), (4, 7))], 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_one_graph_continues_a_static_cache(mode):
    with mode():
        found = in_steps(torch.compile(STEPPING, fullgraph=True, backend="aot_eager"), "static", capacity=11)
        torch.testing.assert_close(found, STEPPING(torch.arange(42.0).view(1, 7, 6).sin()))


@torch.no_grad()
def test_pages_are_taken_and_freed_outside_of_every_graph(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    found = in_steps(torch.compile(STEPPING, backend="aot_eager"), "paged")
    torch.testing.assert_close(found, STEPPING(torch.arange(42.0).view(1, 7, 6).sin()))
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match=r"PagedCache\.append is not compiled"):
        in_steps(torch.compile(STEPPING, fullgraph=True, backend="aot_eager"), "paged")
    gc.collect()
    assert not unraisable
