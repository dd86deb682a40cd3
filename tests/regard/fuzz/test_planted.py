"""Faults planted in regard are found: a fuzzer that finds nothing must be one that would have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from regard import bias
from regard.backends import dropout
from regard.backends import streamed as streamed
from regard.backends.statistics import second_pass as observe
from regard.core import call, plan
from regard.functional.kept import PLANS
from regard.patterns import CausalWindow, KeySpan, RandomBlocks, SlidingWindow
from regard.patterns.band import Band

from .judging import judge
from .running import case_of, judged, verdicts_of

WITHIN = 400  # seeds


def plant_window(patch: pytest.MonkeyPatch) -> None:
    """The structure of a window is one key wider than its pairs."""
    patch.setattr(SlidingWindow, "band", lambda self: Band(left=self.size // 2 + 1, right=self.size // 2))


def plant_causal_window(patch: pytest.MonkeyPatch) -> None:
    """A causal window that is one key wider, in everything that it tells."""
    patch.setattr(CausalWindow, "band", lambda self: Band(left=self.size, right=0))
    patch.setattr(CausalWindow, "allows", lambda self, i, j: (j <= i) & (i - j <= self.size))


def plant_no_softcap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(call, "checked_softcap", lambda softcap: None)


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


def plant_hidden_keys(patch: pytest.MonkeyPatch) -> None:
    """Hidden keys reach the backends as they are."""
    right = plan.grid_of_call
    patch.setattr(plan, "grid_of_call", lambda *given: replace(right(*given), hidden=None))


def plant_gradient(patch: pytest.MonkeyPatch) -> None:
    """The backward pass of streamed forgets the gradient that comes in by log-sum-exp."""
    right = streamed._backward
    patch.setattr(streamed, "_backward", lambda a, b, c, by_lse, *rest: right(a, b, c, None, *rest))


def plant_row_sums(patch: pytest.MonkeyPatch) -> None:
    """The backward pass of streamed forgets the sum over the row, which most of the gradient cancels with."""
    right = streamed._backward
    patch.setattr(streamed, "_backward", lambda a, b, c, d, output, *rest: right(a, b, c, d, 0 * output, *rest))


def plant_dropout(patch: pytest.MonkeyPatch) -> None:
    """The hash leaves the head out."""
    first, _, *rest = dropout._STRIDES
    patch.setattr(dropout, "_STRIDES", (first, 0, *rest))


def plant_slopes(patch: pytest.MonkeyPatch) -> None:
    """ALiBi's slopes are those of the next power of two where the number of heads is none."""
    patch.setattr(bias, "series", lambda heads: tuple(2.0 ** (-8 * (h + 1) / max(1, heads)) for h in range(heads)))


def plant_span(patch: pytest.MonkeyPatch) -> None:
    """One live key too many in every row of the batch that has an end of its own."""
    patch.setattr(KeySpan, "allows", _span_with_its_end)


def _span_with_its_end(self: KeySpan, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    ends = [x.view(-1, 1, 1, 1) if isinstance(x, torch.Tensor) else x for x in (self.start, self.stop)]
    live = torch.broadcast_tensors(i, j)[1] >= ends[0]
    return live if ends[1] is None else live & (j <= ends[1])


def plant_negative_blocks(patch: pytest.MonkeyPatch) -> None:
    """Positions before 0 are cut into blocks towards 0."""

    def wrong(self: RandomBlocks, i: torch.Tensor, j: torch.Tensor, k_len: int) -> torch.Tensor:
        return right(self, torch.where(i < 0, i + self.block - 1, i), j, k_len)

    right = RandomBlocks._allows
    patch.setattr(RandomBlocks, "_allows", wrong)


def plant_entropy(patch: pytest.MonkeyPatch) -> None:
    """Entropy in bits."""
    right = observe._entropy
    patch.setattr(observe, "_entropy", lambda weights: right(weights) / 0.6931471805599453)


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


def _blocks_before_0(case: Any) -> bool:
    return bool(case.pattern.leaves() & {"random_blocks", "random_past"}) and min(case.places.start) < 0


Concerns = Callable[[Any], bool]
# Each fault and the calls that meet it; the others are not computed, since it cannot change them.
FAULTS: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Concerns], ...] = (
    (plant_window, _leaves("sliding_window")),
    (plant_causal_window, _leaves("causal_window")),
    (plant_no_softcap, lambda case: getattr(case, "softcap", None) is not None),
    (plant_swapped_heads, lambda case: 1 < case.kv_heads < case.heads),
    (plant_hidden_keys, lambda case: bool(getattr(case, "hidden", ""))),
    (plant_gradient, lambda case: "log_sum_exp" in getattr(case, "pulled", ())),
    (plant_row_sums, lambda case: bool(case.learners)),
    (plant_dropout, lambda case: getattr(case, "dropout", 0) > 0),
    (plant_slopes, lambda case: getattr(getattr(case, "bias", None), "kind", "") == "alibi"),
    (plant_span, _leaves("spans_by_row")),
    (plant_negative_blocks, _blocks_before_0),
    (plant_constant_gradient, lambda case: case.second and case.seed % 2 == 1 and {"q", "k"} <= set(case.learners)),
    (plant_entropy, lambda case: "entropy" in getattr(case, "want", ())),
)


def _forget() -> None:
    """Plans of equal calls are kept, and must not go from before a fault to after it."""
    PLANS.forget()


@pytest.mark.parametrize(("plant", "concerns"), FAULTS, ids=[plant.__name__[6:] for plant, _ in FAULTS])
def test_a_planted_fault_is_found_within_a_few_hundred_seeds(plant, concerns):
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
            print(f"{plant.__name__} by seed {seed}, {wrong[0].backend}: {wrong[0].reason[:160]}")
            return
    raise AssertionError(f"{plant.__name__} was not found in {WITHIN} seeds")


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
