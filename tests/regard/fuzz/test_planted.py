"""Faults planted in regard are found: a fuzzer that finds nothing must be one that would have."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from regard.backends import dropout
from regard.backends import streamed as streamed
from regard.core import call, plan
from regard.functional.kept import PLANS
from regard.patterns import CausalWindow
from regard.patterns.band import Band

from .judging import judge
from .running import case_of, judged, verdicts_of

WITHIN = 400  # seeds


def replacing(owner: Any, name: str, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Puts what `change` makes of an attribute in its place."""
    return lambda patch: patch.setattr(owner, name, change(getattr(owner, name)))


def plant_causal_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CausalWindow, "band", lambda self: Band(left=self.size, right=0))
    patch.setattr(CausalWindow, "allows", lambda self, i, j: (j <= i) & (i - j <= self.size))


plant_no_softcap = replacing(call, "checked_softcap", lambda right: lambda softcap: None)


def plant_swapped_heads(patch: pytest.MonkeyPatch) -> None:
    """Query head h reads key/value head h % kv_heads."""
    right = plan.prepare

    def wrong(problem: Any, place: Any, call: Any) -> Any:
        operands = right(problem, place, call)
        if problem.group == 1 or not isinstance(operands.k, torch.Tensor):
            return operands
        turned = [h % problem.kv_heads for h in range(0, problem.heads, problem.group)]
        return operands._replace(k=operands.k[:, turned], v=operands.v[:, turned])

    patch.setattr(plan, "prepare", wrong)


class _Constant(torch.autograd.Function):
    """The same tensor, whose gradient is a constant to whoever differentiates it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # ty: ignore[invalid-method-override]
        return grad.detach()


def plant_constant_gradient(patch: pytest.MonkeyPatch) -> None:
    """Queries have right gradients that silently have none themselves."""
    right = plan.prepare

    def wrong(*given: Any) -> Any:
        operands = right(*given)
        return operands._replace(q=_Constant.apply(operands.q))

    patch.setattr(plan, "prepare", wrong)


def _leaves(*kinds: str) -> Callable[[Any], bool]:
    return lambda case: bool(case.pattern.leaves() & set(kinds))


Concerns = Callable[[Any], bool]
# Each fault, what puts it in place, and the calls that meet it; it cannot change the others, which are not computed.
FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Concerns]] = {
    "a causal window is one key wider, in structure and pairs": (plant_causal_window, _leaves("causal_window")),
    "query head h reads key/value head h % kv_heads": (
        plant_swapped_heads, lambda case: 1 < case.kv_heads < case.heads,
    ),
    "hidden keys reach the backends as they are": (
        replacing(plan, "grid_of_call", lambda right: lambda *given: replace(right(*given), hidden=None)),
        lambda case: bool(getattr(case, "hidden", "")),
    ),
    "the backward pass of streamed forgets the sum over the row, which most of the gradient cancels with": (
        replacing(streamed, "_backward", lambda right: lambda a, b, c, d, x, *rest: right(a, b, c, d, 0 * x, *rest)),
        lambda case: bool(case.learners),
    ),
    "the hash of dropout leaves the head out": (
        replacing(dropout, "_STRIDES", lambda right: (right[0], 0, *right[2:])),
        lambda case: getattr(case, "dropout", 0) > 0,
    ),
    "queries have right gradients that silently have none themselves": (
        plant_constant_gradient,
        lambda case: case.second and case.seed % 2 == 1 and {"q", "k"} <= set(case.learners),
    ),
}  # fmt: skip


def _forget() -> None:
    """Plans of equal calls are kept, and must not go from before a fault to after it."""
    PLANS.forget()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_within_a_few_hundred_seeds(fault):
    plant, concerns = FAULTS[fault]
    for seed in range(WITHIN):
        case = case_of(seed)
        if not concerns(case):
            continue
        before = {one.backend: one.outcome for one in verdicts_of(case)}
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            _forget()
            wrong = [one for one in verdicts_of(case) if one.outcome == "off" and before.get(one.backend) != "off"]
        _forget()
        if wrong:
            print(f"{fault} by seed {seed}, {wrong[0].backend}: {wrong[0].reason[:160]}")
            return
    raise AssertionError(f"{fault!r} was not found in {WITHIN} seeds")


def test_a_case_that_is_off_is_made_smaller_and_says_how_to_see_it_again():
    with pytest.MonkeyPatch.context() as patch:
        plant_no_softcap(patch)
        offs = (judged(seed)[1] for seed in range(WITHIN) if getattr(case_of(seed), "softcap", None))
        off = next(one for one in offs if one is not None)
    _forget()
    assert f"--from {off.seed}" in str(off)
    assert off.smaller.softcap is not None
    assert off.smaller.k_len <= off.case.k_len
    assert str(off.smaller.pattern) == "full"
    assert all(one.outcome != "off" for one in judge(off.smaller))
