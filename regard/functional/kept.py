"""The kept plans: equal calls are checked and planned once.

A call is looked up by its key. If the key is new, the call is checked and its problem is looked up; calls with equal
problems share a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from regard.backends import BACKENDS
from regard.core.backend import check_backend
from regard.core.call import LOOKUP_ERRORS, Call
from regard.core.hidden import CallGrid, looks_sound
from regard.core.newest import Newest
from regard.core.plan import Plan, make_plan, make_plan_of_shapes
from regard.core.problem import PER_ROW, Problem
from regard.core.result import Result
from regard.core.shaped import has_no_values
from regard.core.tensors import Stored
from regard.functional.repeated import REPEATED
from regard.functional.structures import READS_ROW_KEYS, StructurePlans
from regard.patterns import Pattern, as_pattern

# A plan with the grid that all calls of one key share, None where it differs.
PlanOfKey = tuple[Plan, CallGrid | None]


class PlannedStep(NamedTuple):
    """What computes the steps of decoding: calls that differ only in k_len and in the positions of their queries.

    growing: returns what such calls have in common, for the compiled library; None where only Python computes them.
    keys: the numbers of keys for which this step was chosen.
    """

    run: Callable[[Call], Result | None]
    growing: Callable[[Call], Any] | None = None
    keys: range = range(0)


class Kept(NamedTuple):
    """What computes a call: a step of decoding, or a plan with its grid, if that is the same in all such calls.

    pattern: given if the plan reads the keys of each batch row from the call's pattern; None if it has its own.
    """

    step: PlannedStep | None = None
    plan: Plan | None = None
    grid: CallGrid | None = None
    pattern: Pattern | None = None


class KeptPlans:
    """The plans of earlier calls, each with the grid that all calls with its key share.

    calls: by the key of a call.
    unequal: likewise, for patterns that are equal only to themselves; few, since a kept plan keeps their tensors alive.
    problems: by problem and backend. Calls whose keys differ share a plan, such as those with a pattern or its text.
    steps: by the key of a step of decoding, what computes it for every k_len between two powers of two.
    steps_of_layers: likewise those with a bias, for layers that share a mask; by a key that is cheaper to compute.
    structures: by the structure of a pattern; calls that differ only in their padding share such a plan.

    Nothing is kept of a call whose key is None, nor of explicit masks. A plan is written into a table when it is
    complete, so an exception at any line leaves a table without it.
    """

    def __init__(self) -> None:
        self.calls: Newest[PlanOfKey] = Newest(512)
        self.unequal: Newest[PlanOfKey] = Newest(16)
        self.problems: Newest[Plan] = Newest(512)
        self.steps: Newest[PlannedStep] = Newest(512)
        self.steps_of_layers: Newest[Any] = Newest(64)
        self.structures = StructurePlans()

    def forget(self) -> None:
        self.structures.forget()
        REPEATED.forget()
        for table in (self.calls, self.unequal, self.problems, self.steps, self.steps_of_layers):
            table.clear()

    def output_by_structure(self, call: Call, is_unknown: bool = False) -> torch.Tensor | None:
        """The output of a call by the plan of its pattern's structure; None if it needs a plan of its own.

        `is_unknown`: whether the compiled library was asked, and does not know such calls yet.
        """
        structure = self.structures.find(call)
        if structure is None:
            return None
        result = structure.compute(call)
        if result is None:
            return None
        if is_unknown:
            REPEATED.keep_by_row(call, structure)
        elif REPEATED.repeat is None:
            REPEATED.open()
        return result.output

    def find(self, call: Call) -> PlanOfKey | None:
        """The plan of an equal call, or None.

        Every call passes here, so an empty table is not searched: that would hash the pattern again.
        """
        try:
            key = call.key()
            known = self.calls.get(key)
            if known is None and self.unequal:
                known = self.unequal.get(key)
        except LOOKUP_ERRORS:
            return None
        return known

    def plan(self, call: Call) -> tuple[Plan, CallGrid | None, bool]:
        """The plan of a call in plain numbers, its grid, and whether the plan was made for it, since none was kept."""
        key = None
        known = None
        try:
            key = call.key()
            known = self.calls.get(key) or self.unequal.get(key)
        except LOOKUP_ERRORS:
            pass
        if known is not None:
            plan, call_grid = known
            return plan, call_grid, False

        problem = call.problem()
        backend = call.backend
        if self.structures.find(call) is not None:
            backend = READS_ROW_KEYS
        if has_no_values(call.q, call.k, call.v):
            return make_plan_of_shapes(problem, BACKENDS, backend), None, True
        by_value = problem.pattern.by_value
        check_backend(backend, BACKENDS)
        plan = self.problems.get((problem, backend)) if by_value else None
        if plan is None:
            plan = make_plan(problem, BACKENDS, backend)
            REPEATED.open()
            if by_value:
                self.problems.keep((problem, backend), plan)
        call_grid, lasts = plan.grid_of(call)
        if key is not None and not isinstance(call.q_start, torch.Tensor):
            lasting_grid = call_grid if lasts else None
            if by_value:
                self.calls.keep(key, (plan, lasting_grid))
            elif problem.pattern.structured:
                self.unequal.keep(key, (plan, lasting_grid))
        return plan, call_grid, True

    def step(self, call: Call, is_unknown: bool = False) -> torch.Tensor | None:
        """The output of a step of decoding if a kept plan is valid for its k_len too, else None.

        `is_unknown`: whether the compiled library was asked, and does not know such calls yet.

        While decoding, k_len grows by one each call. The first call of a kind is planned, as is the second with another
        k_len. Then the shortest and the longest k_len between two powers of two are planned; if both choose one
        backend, it computes every length between. The last lines repeat `_output_of_step`, since each layer of each
        step passes here.
        """
        try:
            key = call.step_key()
            step = self.steps.get(key)
        except LOOKUP_ERRORS:
            return None
        if key is None:
            return None
        if step is None:
            self.steps.keep(key, _seen_once)
            return None
        if step is _seen_once:
            step = self.steps.keep(key, _step_of(call) or _planned_each)
        if is_unknown and step.growing is not None:
            REPEATED.keep_growing(call, step.growing, step.keys)
        result = step.run(call)
        if result is None or not looks_sound(result):
            return None
        return result.output

    def kept(self, call: Call) -> Kept | None:
        """What computes this call for other tensors of the same shapes; None if that is not kept."""
        structure = self.structures.find(call)
        if structure is not None:
            pattern = as_pattern(call.pattern) if structure.serves(call) else None
            return (
                None
                if pattern is None
                else Kept(None, structure.plan, structure.grid_of(call), pattern)
            )
        known = self.find(call)
        if known is not None:
            plan, grid = known
            return Kept(plan=plan, grid=grid)
        try:
            step = self.steps.get(call.step_key())
        except LOOKUP_ERRORS:
            return None
        if step is None or step is _seen_once or step is _planned_each:
            return None
        return Kept(step=step)

    def computing(self, call: Call) -> Callable[[Call], torch.Tensor | None] | None:
        """A function that computes this call for other tensors of the same shapes; None if its plan is not kept.

        The function returns None for a call that needs a plan of its own.
        """
        kept = self.kept(call)
        if kept is None:
            return None
        if kept.pattern is not None:
            return self.output_by_structure
        if kept.step is not None:
            return partial(_output_of_step, kept.step.run)
        plan = kept.plan
        assert plan is not None
        return lambda call: plan.compute(call, kept.grid).output


def _output_of_step(run: Callable[[Call], Result | None], call: Call) -> torch.Tensor | None:
    """The output of a step; None where it is not finite, or needs a plan."""
    result = run(call)
    if result is None or not looks_sound(result):
        return None
    return result.output


PLANS = KeptPlans()


def _needs_a_plan(call: Call) -> Result | None:
    """No result: these calls are not computed as steps, but by plans."""


_seen_once = PlannedStep(_needs_a_plan)  # stands for the step of a call that was seen once
_planned_each = PlannedStep(
    _needs_a_plan, keys=range(1)
)  # each k_len of such a call needs its own plan


def _step_of(call: Call) -> PlannedStep | None:
    """What computes calls like this one for every k_len between two powers of two, if one backend is best for all."""
    if call.cast() is not call:
        return None
    problem = call.in_numbers().problem()
    has_dropped = isinstance(call.k, Stored) and call.k.first
    if problem.q_start is PER_ROW or has_dropped:
        run = make_plan(problem, BACKENDS, call.backend).steps
        return None if run is None else PlannedStep(run)
    lengths = lengths_with(problem.k_len)
    shortest = _with_keys(problem, lengths[0], call.backend)
    longest = _with_keys(problem, lengths[-1], call.backend)
    if shortest.backend != longest.backend or shortest.steps is None:
        return None
    return PlannedStep(shortest.steps, shortest.growing, lengths)


def lengths_with(k_len: int) -> range:
    """The lengths between two powers of two among which this one is."""
    power = 1 << k_len.bit_length()
    return range(power // 2, power)


def _with_keys(problem: Problem, k_len: int, backend: str) -> Plan:
    """The plan of the same problem with `k_len` keys, the last of which is at the last query."""
    changed = replace(problem, k_len=k_len, q_start=k_len - problem.q_len)
    return make_plan(changed, BACKENDS, backend)
