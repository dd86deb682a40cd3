"""PyTorch's FLOP counter counts the pairs that a pattern allows, and its profiler names calls of attention."""

from typing import Any

import pytest
import torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

import regard as rg
from regard import patterns as p

DIM = 5
V_DIM = 7
PATTERNS = [
    p.Full(),
    p.Causal() & p.CausalWindow(3),
    p.PerHead([p.Causal(), p.Full(), p.Prefix(2), p.Strided(3)]),
    p.KeySpan(0, torch.tensor([3, 11, 0])),
    p.Causal() & p.KeyMask(torch.arange(11) % 3 > 0),
    p.SameDocument(torch.arange(33).view(3, 11) // 4),
    p.Explicit(torch.rand(1, 4, 11, 11) < 0.5),
]


def tensors(learning: bool = False) -> list[torch.Tensor]:
    q = torch.randn(3, 4, 11, DIM, requires_grad=learning)
    k = torch.randn(3, 2, 11, DIM, requires_grad=learning)
    v = torch.randn(3, 2, 11, V_DIM, requires_grad=learning)
    return [q, k, v]


def counted(call: Any) -> dict[str, int]:
    """The FLOPs that a counter sees in a call, by the names of operations."""
    with FlopCounterMode(display=False) as counter:
        call()
    flops = counter.get_flop_counts().get("Global", {})
    return {str(operation): number for operation, number in flops.items()}


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("start", [None, torch.tensor([0, 2, -4])], ids=["aligned", "by row"])
def test_the_flop_counter_counts_allowed_pairs_forward_and_backward(pattern, start):
    if start is not None and pattern.of_one_call:
        return
    leaves = tensors(learning=True)
    expected = rg.attention(*leaves, pattern=pattern, q_start=start)
    expected_gradients = torch.autograd.grad(expected.sum(), leaves)
    results: list[torch.Tensor] = []

    def train() -> None:
        output = rg.attention(*leaves, pattern=pattern, q_start=start)
        results.append(output)
        results.extend(torch.autograd.grad(output.sum(), leaves))

    pairs = int(pattern.dense(11, 11, q_start=start).expand(3, 4, 11, 11).sum())
    assert counted(train) == {
        "regard.attention": 2 * pairs * (DIM + V_DIM),
        "regard.attention_backward": 2 * pairs * (3 * DIM + 2 * V_DIM),
    }
    torch.testing.assert_close(results, [expected, *expected_gradients])


def test_a_layer_is_counted_with_its_projections_and_in_autocast():
    layer = rg.MultiHeadAttention(dim=16, heads=4, pattern="causal")
    x = torch.randn(1, 7, 16)
    projections = 4 * 2 * 7 * 16 * 16
    attention = 4 * 28 * 16
    assert sum(counted(lambda: layer(x)).values()) == projections + attention
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs: list[torch.Tensor] = []
        flops = counted(lambda: outputs.append(layer(x)))
        assert sum(flops.values()) == projections + attention
        assert torch.equal(outputs[0], layer(x))


def test_what_the_counter_cannot_see_is_computed_with_a_warning():
    q, k, _ = tensors()
    with pytest.warns(
        UserWarning, match="counts only what this call computes by PyTorch's own operations"
    ):
        assert "regard.attention" not in counted(lambda: rg.attention(q, k, k, mechanism="linear"))


def test_a_counter_that_is_older_than_the_first_call_counts_it():
    """The formulas are registered when regard's functions load, and a counter copies those of its beginning."""
    q, k, v = tensors()
    with FlopCounterMode(display=False) as counter:
        del counter.flop_registry[torch.ops.regard.attention]
        rg.attention(q, k, v)
    assert counter.get_total_flops() == 2 * 3 * 4 * 11 * 11 * (DIM + V_DIM)


def test_the_profiler_names_each_call():
    q, k, v = tensors()
    with profile(acc_events=True) as profiler:  # PyTorch 2.11 warns without it
        for _ in range(3):
            rg.attention(q, k, v, pattern="causal")
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["regard::attention"] == 3
