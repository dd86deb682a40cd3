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
    return [
        torch.randn(3, h, 11, size, requires_grad=learning)
        for h, size in ((4, DIM), (2, DIM), (2, V_DIM))
    ]


def counted(call: Any) -> dict[str, int]:
    with FlopCounterMode(display=False) as counter:
        call()
    return {
        str(name): number for name, number in counter.get_flop_counts().get("Global", {}).items()
    }


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("start", [None, torch.tensor([0, 2, -4])], ids=["aligned", "by row"])
def test_the_flop_counter_counts_allowed_pairs_forward_and_backward(pattern, start):
    if start is not None and pattern.of_one_call:
        return
    given = tensors(learning=True)
    output = rg.attention(*given, pattern=pattern, q_start=start)
    wanted = torch.autograd.grad(output.sum(), given)
    found: list[torch.Tensor] = []

    def train() -> None:
        found.append(rg.attention(*given, pattern=pattern, q_start=start))
        found.extend(torch.autograd.grad(found[0].sum(), given))

    pairs = int(pattern.dense(11, 11, q_start=start).expand(3, 4, 11, 11).sum())
    assert counted(train) == {
        "regard.attention": 2 * pairs * (DIM + V_DIM),
        "regard.attention_backward": 2 * pairs * (3 * DIM + 2 * V_DIM),
    }
    torch.testing.assert_close(found, [output, *wanted])


def test_a_layer_is_counted_with_its_projections_and_in_autocast():
    layer = rg.MultiHeadAttention(dim=16, heads=4, pattern="causal")
    x = torch.randn(1, 7, 16)
    projections = 4 * 2 * 7 * 16 * 16
    assert sum(counted(lambda: layer(x)).values()) == projections + 4 * 28 * 16
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found: list[torch.Tensor] = []
        assert sum(counted(lambda: found.append(layer(x))).values()) == projections + 4 * 28 * 16
        assert torch.equal(found[0], layer(x))


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
    with profile(acc_events=True) as seen:  # PyTorch 2.11 warns without it
        for _ in range(3):
            rg.attention(q, k, v, pattern="causal")
    assert {one.key: one.count for one in seen.key_averages()}["regard::attention"] == 3
