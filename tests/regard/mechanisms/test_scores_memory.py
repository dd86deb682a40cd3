"""The tanh of all pairs is never in memory at once, and a plan knows what it would cost where it is."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import regard as rg
from regard import mechanisms as m

LENGTH, DIM, HIDDEN = 2048, 128, 32
MECHANISM = m.Softmax(m.Additive(DIM, DIM, DIM))


class Largest(TorchDispatchMode):
    """The largest tensor that any operation hands back, in numbers really held."""

    held = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in tree_iter(found):
            if isinstance(x, torch.Tensor):
                self.held = max(self.held, x.untyped_storage().nbytes() // x.element_size())
        return found


def largest(length: int, backend: str, **options) -> int:
    q, k, v = (torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3))
    mechanism = m.Softmax(m.Additive(16, 16, 64))
    parameters = dict(mechanism.new_parameters())
    with Largest() as seen:
        found = rg.attention_detail(q, k, v, mechanism=mechanism, parameters=parameters, backend=backend, **options)
        (found.output.sum() + found.entropy.sum()).backward()
    return seen.held


def test_no_tensor_grows_with_the_pairs_forward_backward_or_in_statistics():
    assert largest(512, "streamed", want="entropy") <= 1 << 17
    assert largest(128, "reference", want="entropy") >= 128 * 128 * 64  # the measure sees what the formula holds


@pytest.mark.parametrize("learns", [False, True])
def test_the_plan_prefers_streaming_and_knows_what_the_formula_would_hold(learns):
    q, k, v = (torch.randn(1, 1, LENGTH, DIM, requires_grad=learns) for _ in range(3))
    parameters = {name: x.detach() for name, x in MECHANISM.new_parameters().items()}
    plan = rg.plan_attention(q, k, v, mechanism=MECHANISM, parameters=parameters)
    assert plan.backend == "streamed"
    assert plan.cost.peak_bytes <= 64 * 2**20
    formula = dict(plan.others)["reference"]
    assert formula.peak_bytes >= 4 * LENGTH * LENGTH * DIM
