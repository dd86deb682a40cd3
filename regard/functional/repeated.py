"""Warm calls: those that repeat an earlier one with other tensors.

The compiled library looks such a call up and checks it. Where the kernel alone computes it, no code of Python runs.
Where it needs gradients or another backend, its kept plan is called. A call that the library does not know takes the
usual way, with the same bits. So does a call that PyTorch must see: inside a transform, or under a profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from regard.backends.native.interpreter import UNKNOWN
from regard.backends.native.kept_calls import KeptCalls, kept_calls
from regard.core.call import Call
from regard.core.hidden import CallGrid
from regard.core.plan import Plan
from regard.functional.structures import StructurePlan
from regard.patterns import Pattern

__all__ = ["PLACE_OF_BIAS", "REPEATED", "UNKNOWN", "options_of"]

PLACE_OF_BIAS = 2  # in `options_of`


class RepeatedCalls:
    """Calls that have a kept plan, and may be repeated by the compiled library.

    repeat: as `KeptCalls` describes it; None until the first plan is made, and where there is no library.
    """

    def __init__(self) -> None:
        self.repeat: Callable[..., Any] | None = None
        self._calls: KeptCalls | None = None

    def open(self) -> None:
        """Load the function that repeats calls, if there is one."""
        self._calls = kept_calls()
        if self._calls is not None:
            self.repeat = self._calls.repeat

    def keep(self, call: Call, plan: Plan, call_grid: CallGrid | None) -> None:
        """Keep a call that `repeat` does not know, and whose plan is kept. One with a bias is only kept as a step."""
        if self._calls is None or not plan.problem.pattern.by_value or call.bias is not None:
            return
        arguments = (call.q, call.k, call.v, *options_of(call))
        repeatable = plan.repeatable(call, call_grid)
        if repeatable is None:
            again = partial(_output, call._replace(**_NO_TENSORS), plan, call_grid)
            self._calls.keep_function(arguments, again)
            return
        self._calls.keep(
            arguments,
            repeatable.struct,
            repeatable.must_be_sound,
            repeatable.first_key,
            repeatable.first_value,
        )

    def keep_growing(self, call: Call, growing: Callable[[Call], Any], keys: range) -> None:
        """Keep a step that `repeat` does not know, for all steps like it with any number of keys in `keys`."""
        if self._calls is None:
            return
        common = growing(call)
        if common is None:
            return
        if call.bias is not None:  # its class stands for it, as the library expects
            call = call._replace(bias=torch.Tensor)  # ty: ignore[invalid-argument-type]
        self._calls.keep_growing((call.q, call.k, call.v, *options_of(call)), common, keys)

    def keep_by_row(self, call: Call, structure: StructurePlan) -> None:
        """Keep a call that `repeat` does not know, for all whose patterns differ in the keys of batch rows only."""
        if self._calls is None or call.bias is not None:
            return
        pattern = call.pattern
        assert isinstance(pattern, Pattern)
        row_keys = pattern.row_keys
        assert row_keys is not None
        of_structure = call._replace(pattern=row_keys.structure)  # ty: ignore[invalid-argument-type]
        arguments = (call.q, call.k, call.v, *options_of(of_structure))
        repeatable = structure.plan.repeatable(call, structure.grid_of(call), pattern)
        if repeatable is None:
            again: Callable[..., torch.Tensor | None]
            if structure.plan.takes_tensors_alone:
                again = partial(_output_of_tensors, structure)
            else:
                again = partial(_output_by_row, call._replace(**_NO_TENSORS), structure)
            self._calls.keep_function(arguments, again, keys_by_row=True)
        else:
            self._calls.keep_by_row(arguments, repeatable.struct, row_keys.window)

    def forget(self) -> None:
        if self._calls is not None:
            self._calls.forget()


# What differs between calls that a kept function computes.
_NO_TENSORS: dict[str, Any] = dict.fromkeys(("q", "k", "v", "pattern", "q_start"))


def _output(
    common: Call,
    plan: Plan,
    call_grid: CallGrid | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Any,
    q_start: int | None,
) -> torch.Tensor:
    """The output of a call by its kept plan."""
    call = common._replace(q=q, k=k, v=v, pattern=pattern, q_start=q_start)
    return plan.compute(call, call_grid).output


def _output_by_row(
    common: Call,
    structure: StructurePlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Any,
    q_start: int | None,
) -> torch.Tensor | None:
    """The output of a call by the plan of its pattern's structure; None if it needs a plan of its own."""
    call = common._replace(q=q, k=k, v=v, pattern=pattern, q_start=q_start)
    result = structure.compute(call)
    return None if result is None else result.output


def _output_of_tensors(
    structure: StructurePlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pattern: Any,
    q_start: int | None,
) -> torch.Tensor | None:
    """What `_output_by_row` returns, where the plan takes q, k and v as they are."""
    result = structure.compute_tensors(q, k, v, pattern, q_start)
    return None if result is None else result.output


def options_of(call: Call) -> tuple[Any, ...]:
    """The arguments of `repeat` after q, k and v."""
    return (
        call.pattern,
        call.mechanism,
        call.bias,
        call.parameters,
        call.dropout_seed,
        call.sink,
        call.q_start,
        call.softcap,
        call.scale,
        call.dropout,
        call.strict,
        call.backend,
        call.precise,
    )


REPEATED = RepeatedCalls()
