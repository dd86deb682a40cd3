"""Plans: the backend chosen for a problem, its cost, the cost or refusal of every other, and how it is run."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from regard.bias import Bias
from regard.core.backend import (
    Backend,
    Cost,
    Offer,
    Operands,
    Refusal,
    Relative,
    check_backend,
    short,
)
from regard.core.call import LOOKUP_ERRORS, Call
from regard.core.hidden import (
    CallGrid,
    contained,
    grid_of_call,
    lasting_grid,
    looks_sound,
    masks_pairs,
    prepare,
)
from regard.core.layout import refusal_as_given, swapped
from regard.core.problem import PER_ROW, Problem, checked_parameters
from regard.core.result import Result, Statistics, as_text
from regard.core.shaped import has_no_values, shapes_of
from regard.core.tensors import HALF, HEADS_FIRST, Stored, check_tensor, refuse_tracing
from regard.errors import ArgumentError, ShapeError, UnsupportedError, WastedPairsWarning
from regard.mechanisms import Softmax
from regard.patterns import Pattern
from regard.patterns.counts import least_pairs
from regard.patterns.grid import Grid

# A backend that needs more memory beside the tensors, and more than 4 times the tensors, runs only if it is named.
UNASKED_BYTES = 4 * 2**30
# The one backend that consists of operations with forward-mode derivatives.
FORWARD_MODE = "reference"
SHAPES = "shapes"  # the backend of plans of tensors without values, which compute nothing
SAMPLED = 16  # blocks of rows, from which the kept pairs of a function are estimated
SAMPLED_ROWS = 4  # of such a block
WORTH_A_WARNING = 1 << 24  # pairs; fewer are computed in a short time
_SOFTMAX = Softmax()


@dataclass(frozen=True)
class Repeatable:
    """A call that a compiled library repeats with other tensors of the same layout.

    must_be_sound: whether an output that is not finite is computed again by the plan.
    first_key, first_value: how many bytes behind the first number of k and v the first number is that is read.
    """

    struct: Any
    must_be_sound: bool
    first_key: int
    first_value: int


@dataclass(frozen=True)
class Plan:
    """The backend chosen for one problem, with its cost and why each other backend was not."""

    problem: Problem
    backend: str
    cost: Cost
    _others: tuple[tuple[str, Any], ...] = field(repr=False, compare=False)
    keys: range
    _offer: Offer = field(repr=False, compare=False)
    layout: str = HEADS_FIRST  # of the tensors that `run` takes and returns

    @cached_property
    def others(self) -> tuple[tuple[str, Cost | Refusal], ...]:
        """The cost of every other backend by its name, or the reason why it refused."""
        others = []
        for name, verdict in self._others:
            if callable(verdict):  # it was not needed until now
                verdict = verdict()
            others.append((name, verdict.cost))
        return tuple(others)

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        *,
        bias: torch.Tensor | Bias | None = None,
        q_start: torch.Tensor | None = None,
        dropout_seed: int | None = None,
        parameters: Mapping[str, torch.Tensor] | None = None,
        sink: float | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The output, (batch, heads, q_len, v_dim) in q's dtype, of tensors like those the plan was made for.

        A bias, a sink, a tensor of q_start and a mechanism's parameters are given again: a plan keeps no values. A plan
        made with layout="bnhd" takes and returns that order of axes.
        """
        call = Call(q, k, v, bias, parameters, dropout_seed, sink, q_start=q_start)
        return self._result_in_layout(call).output

    def detail(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        *,
        bias: torch.Tensor | Bias | None = None,
        q_start: torch.Tensor | None = None,
        dropout_seed: int | None = None,
        parameters: Mapping[str, torch.Tensor] | None = None,
        sink: float | torch.Tensor | None = None,
    ) -> AttentionDetail:
        """The output and the statistics that the plan was made with."""
        call = Call(q, k, v, bias, parameters, dropout_seed, sink, q_start=q_start)
        return AttentionDetail(self._result_in_layout(call), self)

    def _result_in_layout(self, call: Call) -> Result:
        """Output and statistics of a call whose q, k and v have the plan's layout; the output has it too."""
        if self.layout == HEADS_FIRST:
            return self.result_of(call)
        result = self.result_of(
            call._replace(q=swapped(call.q), k=swapped(call.k), v=swapped(call.v))
        )
        return result._replace(output=swapped(result.output))

    def result_of(self, call: Call) -> Result:
        """Output and statistics of a call, after a check that its tensors are like those the plan was made for.

        Only the tensors, dropout_seed and q_start of the call are read; the other options are those of the plan.
        Tensors that passed the check once are recognised by the key of their call.
        """
        if torch.compiler.is_compiling():
            raise UnsupportedError(
                "a plan cannot be run inside torch.compile, where attention itself is compiled; call attention "
                "there, or run the plan outside"
            )
        key = None
        call_grid = None
        try:
            key = call.key()
            call_grid = self._grids.get(key)
        except LOOKUP_ERRORS:
            pass
        if call_grid is not None:
            return self.compute(call, call_grid)

        refuse_tracing()
        cast = call.cast()
        if cast is not call:
            # The tensors are cast here, so autocast must change nothing below.
            with torch.autocast(cast.q.device.type, enabled=False):
                return self.result_of(cast)
        self._check(call)
        if not has_no_values(call.q, call.k, call.v):
            call_grid, lasts = self.grid_of(call)
            if lasts and key is not None:
                self._grids[key] = call_grid
        return self.compute_first(call, call_grid)

    def compute_first(self, call: Call, call_grid: CallGrid | None) -> Result:
        """Output and statistics of the first call with its key, which fits the plan.

        Its tensors may have no values, or numbers that are not in their memory.
        """
        if has_no_values(call.q, call.k, call.v):
            parameters = self._checked_parameters(call)
            others = (call.k, call.v, call.bias, call.sink, *parameters.values())
            shapes = shapes_of(self.problem, len(self.keys), call.q, *others)
            return shapes.on_all_keys(self.keys, self.problem.k_len)
        return self.compute(call.in_memory(), call_grid)

    def compute(self, call: Call, call_grid: CallGrid | None) -> Result:
        """Output and statistics of a call that is known to fit the plan; `call_grid` is None where none was kept."""
        problem = self.problem
        if call_grid is None:
            call_grid = grid_of_call(problem, self.keys, call.q_start, call.q.device)
        operands = prepare(problem, call_grid, call)
        if self._has_parameters or call.parameters is not None:
            operands = operands._replace(parameters=self._parameters_of(call))
        is_stored = isinstance(call.k, Stored) or isinstance(call.v, Stored)
        if is_stored or not self._takes_prepared:
            result = self._run_backend(operands)
        else:
            result = self._offer.run(operands)
        if self._masks_pairs and not looks_sound(result):
            result = contained(problem, operands, result, self._run_backend)
        if result.output.dtype != problem.dtype:
            result = result._replace(output=result.output.to(problem.dtype))
        return result.on_all_keys(self.keys, problem.k_len) if problem.want else result

    def repeatable(
        self, call: Call, call_grid: CallGrid | None, pattern: Pattern | None = None
    ) -> Repeatable | None:
        """What equal calls have in common that a compiled library computes; None if only Python computes them.

        `pattern`: given where the calls share no more than its structure.
        """
        if self._offer.repeatable is None or call_grid is None or call_grid.hidden is not None:
            return None
        if self._has_parameters or not self._takes_prepared:
            return None
        if self.problem.dropout:  # to prepare such a call would draw a seed that no call uses
            return None
        if not type(call.q) is type(call.k) is type(call.v) is torch.Tensor:
            return None
        operands = prepare(self.problem, call_grid, call)
        if pattern is not None:
            operands = operands._replace(pattern=pattern)
        struct = self._offer.repeatable(operands)
        if struct is None:
            return None
        return Repeatable(
            struct,
            must_be_sound=self._masks_pairs,
            first_key=operands.k.data_ptr() - call.k.data_ptr(),
            first_value=operands.v.data_ptr() - call.v.data_ptr(),
        )

    def operands_of_layers(self, call: Call, call_grid: CallGrid | None) -> Operands | None:
        """The operands of a call, if those of later calls like it differ only in their tensors.

        None where each call has to prepare its tensors: cut, zeroed, drawn or widened.
        """
        problem = self.problem
        if call_grid is None or call_grid.hidden is not None or not problem.checks_hidden_after:
            return None
        if problem.dropout or self._has_parameters or not self._takes_prepared:
            return None
        if len(call_grid.grid.keys) != call.k.shape[2] or isinstance(call_grid.bias, Relative):
            return None
        return prepare(problem, call_grid, call)

    @property
    def takes_tensors_alone(self) -> bool:
        """Whether a backend needs nothing but q, k and v, unchanged: no bias, sink, dropout or parameters."""
        problem = self.problem
        has_more = problem.bias is not None or problem.sink is not None or problem.dropout
        return self._takes_prepared and not self._has_parameters and not has_more

    def run_operands(self, operands: Operands) -> Result:
        """The backend's result, unchecked, for operands that it takes as they are."""
        result = self._offer.run(operands)
        if result.output.dtype != self.problem.dtype:
            result = result._replace(output=result.output.to(self.problem.dtype))
        return result

    @property
    def takes_row_keys(self) -> bool:
        """Whether it computes calls whose batch rows have other keys than the problem's pattern."""
        return self._offer.takes_row_keys

    def compute_row_keys(self, call: Call, pattern: Pattern, call_grid: CallGrid) -> Result:
        """The backend's result, unchecked, for a call that differs from the plan only in the keys of its batch rows."""
        operands = prepare(self.problem, call_grid, call)._replace(pattern=pattern)
        result = self._run_backend(operands)
        if result.output.dtype != self.problem.dtype:
            result = result._replace(output=result.output.to(self.problem.dtype))
        return result

    @property
    def steps(self) -> Callable[[Call], Result | None] | None:
        """A function for calls that differ from this plan's in k_len and q_start only; None where there is none."""
        return self._offer.steps

    @property
    def growing(self) -> Callable[[Call], Any] | None:
        """As in the backend's offer: what calls of `steps` have in common; None where only Python computes them."""
        return self._offer.growing

    def grid_of(self, call: Call) -> tuple[CallGrid, bool]:
        """The grid of a call, and whether every call with its key has the same."""
        call_grid = grid_of_call(self.problem, self.keys, call.q_start, call.q.device)
        lasting = lasting_grid(self.problem, call_grid, call)
        if lasting is None:
            return call_grid, False
        return lasting, True

    @property
    def statistics(self) -> str:
        """The requested statistics as text."""
        return as_text(self.problem.want)

    def to_json(self) -> str:
        """The plan as JSON text: backend, costs, reasons and the share of pairs computed; estimates are marked."""
        others: dict[str, dict[str, Any]] = {}
        for name, verdict in self.others:
            if isinstance(verdict, Refusal):
                others[name] = {"refused": verdict.reason}
                continue
            others[name] = {
                "cost": _cost_record(verdict),
                "times_the_estimated_time": self._times(verdict),
            }
        return json.dumps(
            {
                "problem": str(self.problem),
                "statistics": [str(want) for want in self.problem.want],
                "backend": self.backend,
                "layout": self.layout,
                "cost": _cost_record(self.cost),
                "widened_to_float32": self._adds_gradients,
                "share_of_pairs_computed": self.share_of_pairs_computed,
                "pairs_kept": self.problem.kept_pairs,
                "others": others,
            }
        )

    @property
    def share_of_pairs_computed(self) -> float:
        """Pairs computed over all pairs, 0 to 1."""
        if not self.problem.pairs:
            return 0.0
        return self.cost.pairs / self.problem.pairs

    @cached_property
    def kept_by_function(self) -> float | None:
        """The share of pairs that a pattern with a function keeps, estimated from 64 rows; None for other patterns."""
        problem = self.problem
        pattern = problem.pattern
        q_len = problem.q_len
        if pattern.by_numbers or pattern.structured:
            return None
        if problem.q_start is PER_ROW or problem.empty or problem.outlined:
            return None

        grid = Grid.whole(q_len, problem.k_len, problem.q_start, problem.device)
        last_row = max(0, q_len - SAMPLED_ROWS)
        first_rows = {block * last_row // (SAMPLED - 1) for block in range(SAMPLED)}
        shares = []
        for row in first_rows:
            block = grid.block(range(row, min(row + SAMPLED_ROWS, q_len)), grid.keys)
            shares.append(pattern.evaluate(block).float().mean())
        return float(torch.stack(shares).mean())

    @property
    def _wasted(self) -> str | None:
        """A sentence where more than twice as many pairs are computed as a function keeps; else None."""
        share_kept = self.kept_by_function
        if share_kept is None or self.cost.pairs <= 2 * share_kept * self.problem.pairs:
            return None
        return (
            f"{self.problem.pattern} keeps an estimated {_percent(share_kept)} of its pairs, and "
            f"{_percent(self.share_of_pairs_computed)} are computed, since a function does not show which; a pattern "
            f"that does, such as SlidingWindow, Neighbourhood or ChosenBlocks, leaves the others out"
        )

    def __str__(self) -> str:
        kept_pairs = self.problem.kept_pairs
        about = "about " if self.cost.estimated else ""
        share = f"{about}{_percent(self.share_of_pairs_computed)} of pairs computed"
        if kept_pairs is not None and self.problem.pairs:
            share += f", {_percent(kept_pairs / self.problem.pairs)} kept"
        lines = [f"{self.problem}", f"  {self.backend} chosen: {self.cost}; {share}"]
        if self._wasted is not None:
            lines.append(f"  {self._wasted}")
        if self._adds_gradients:
            lines.append(
                "  computed in float32: q, k and v are widened, since gradients of sinks and statistics come in parts "
                "that would be rounded; the output and gradients are rounded once"
            )
        for name, verdict in self.others:
            if isinstance(verdict, Refusal):
                lines.append(f"  {name} refused: {verdict}")
            else:
                times = f"{self._times(verdict):.3g}x the estimated time"
                lines.append(f"  {name}, {times}: {verdict}")
        costs = [self.cost, *(verdict for _, verdict in self.others)]
        assumed = {cost.assumed for cost in costs if isinstance(cost, Cost) and cost.assumed}
        for instructions in sorted(assumed):
            lines.append(
                f"  not measured: how fast the kernel is on a processor with {instructions} is assumed; "
                "`regard bench --costs` measures it and prints what to send"
            )
        if any("about " in line for line in lines[1:]):
            lines.append("  about: an estimate, since counting all pairs would take too long")
        return "\n".join(lines)

    def _times(self, cost: Cost) -> float:
        """The estimated time of another backend, as a multiple of that of the chosen one."""
        chosen = self.cost.work_on(self.problem.device)
        return cost.work_on(self.problem.device) / chosen if chosen else 1.0

    def __repr__(self) -> str:
        return f"Plan({self.backend!r} for {self.problem})"

    @cached_property
    def _grids(self) -> dict[Hashable, CallGrid]:
        """The grids of calls that passed the check, by their keys."""
        return {}

    @cached_property
    def _adds_gradients(self) -> bool:
        """Whether half-precision gradients of output and statistics are added, whose parts may cancel.

        With a sink, the gradient of the output without it is such a part, and that of the sink is a sum over outputs.
        """
        problem = self.problem
        half = problem.dtype.itemsize == 2
        learning = problem.needs_grad or problem.bias_learns
        parts = problem.sink is not None or bool(set(problem.want) - {"log_sum_exp"})
        return half and (problem.sink_learns or (learning and parts))

    @cached_property
    def _masks_pairs(self) -> bool:
        return masks_pairs(self.problem, self.keys)

    @cached_property
    def _has_parameters(self) -> bool:
        return self.problem.mechanism != _SOFTMAX

    @cached_property
    def _takes_prepared(self) -> bool:
        """Whether the backend takes plain tensors as `prepare` returns them."""
        return not self._adds_gradients and not self.problem.mechanism.projects

    def _checked_parameters(self, call: Call) -> dict[str, torch.Tensor]:
        return checked_parameters(
            self.problem.mechanism, self.problem.sizes, call.parameters, call.q
        )

    def _parameters_of(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors of the mechanism; those that have a number for each key are cut to the reachable keys."""
        parameters = self._checked_parameters(call)
        for name in self.problem.mechanism.by_key & parameters.keys():
            parameters[name] = parameters[name][:, :, self.keys.start : self.keys.stop]
        return parameters

    def _run_backend(self, operands: Operands) -> Result:
        """The result of operands that are first changed to what the backend takes."""
        return self._offer.run(self._operands_of_backend(operands))

    def _operands_of_backend(self, operands: Operands) -> Operands:
        """The operands widened unless the backend reads stored keys, and projected by the score."""
        mechanism = self.problem.mechanism
        if not mechanism.projects:
            if not self._offer.takes_stored:
                operands = operands.widened()
            if self._adds_gradients:
                operands = operands.in_float32()
            return operands
        dtype = self.problem.projected.dtype
        operands = operands._replace(q=operands.q.to(dtype)).widened()
        q, k, parameters = mechanism.project(operands.q, operands.k.to(dtype), operands.parameters)
        return operands._replace(q=q, k=k, v=operands.v.to(dtype), parameters=parameters)

    def _check(self, call: Call) -> None:
        """Raise unless the tensors of a call are what the plan was made for."""
        planned = self.problem
        _check_presence("bias", call.bias, planned.bias is not None)
        _check_presence("sink", call.sink, planned.sink is not None)
        _check_presence("q_start", call.q_start, planned.q_start is PER_ROW)
        for name in ("q", "k", "v"):
            check_tensor(name, getattr(call, name))
        try:
            properties = call.of_tensors(planned.mechanism)
        except ShapeError as error:
            if self.layout != HEADS_FIRST:
                tensors = swapped(call.q), swapped(call.k), swapped(call.v)
                error = refusal_as_given(error, self.layout, *tensors, planned.mechanism)
            raise ArgumentError(
                f"this plan was made for other tensors, {planned}: {error}"
            ) from None
        if call.q_start is None:
            properties["q_start"] = planned.q_start
        properties.setdefault("value_group", 1)
        for name in ("bias_learns", "sink_learns"):
            properties[name] = properties[name] or getattr(planned, name)

        made_for = []
        differing = []
        for name, value in properties.items():
            if value != getattr(planned, name):
                made_for.append(f"{name} {getattr(planned, name)}")
                differing.append(f"{name} {value}")
        if differing:
            raise ArgumentError(
                f"this plan was made for {', '.join(made_for)} and was given {', '.join(differing)}; make a plan for "
                f"these tensors"
            )


def _check_presence(name: str, argument: Any, is_needed: bool) -> None:
    """Raise unless an argument is given to a plan that was made with it, and only to such a plan."""
    if argument is not None and not is_needed:
        raise ArgumentError(f"this plan was made without a tensor as {name}; plan again with it")
    if argument is None and is_needed:
        raise ArgumentError(
            f"this plan was made with a tensor as {name}; hand it to run({name}=...) again"
        )


class AttentionDetail(Statistics):
    """Output, plan and statistics of one call; reading a statistic that was not requested raises."""

    def __init__(self, result: Result, plan: Plan) -> None:
        super().__init__(result, plan.problem.want)
        self.plan = plan

    def __repr__(self) -> str:
        return f"AttentionDetail(output {tuple(self.output.shape)}, {self.statistics}, by {self.plan.backend})"


def make_plan(problem: Problem, backends: dict[str, Backend], backend: str = "auto") -> Plan:
    """The plan with the cheapest backend for a problem, or with the named one."""
    check_backend(backend, backends)
    most = max(UNASKED_BYTES, 4 * problem.nbytes)
    verdicts = _verdicts(problem.projected, backends, backend, most)
    name = backend
    if backend == "auto":
        name = _cheapest(problem, verdicts, most)
    offer = verdicts[name]
    if isinstance(offer, Refusal):
        raise UnsupportedError(
            f"backend {backend!r} does not compute this call: {offer}; use backend='auto' for one that does"
        )

    del verdicts[name]
    others = tuple(verdicts.items())
    plan = Plan(problem, name, offer.cost, others, problem.reachable_keys, offer)
    if plan.cost.pairs >= WORTH_A_WARNING:
        wasted = plan._wasted
        if wasted is not None:
            warnings.warn(wasted, WastedPairsWarning, stacklevel=2)
    return plan


def _cheapest(problem: Problem, verdicts: dict[str, Any], most: float) -> str:
    """The backend whose offer costs least, of those that need no more memory than `most` bytes."""
    offers: dict[str, Offer] = {}
    expenses: dict[str, tuple[bool, float]] = {}
    for name, verdict in verdicts.items():
        if isinstance(verdict, Offer):
            cost = verdict.cost
            offers[name] = verdict
            expenses[name] = cost.peak_bytes > most, cost.work_on(problem.device)
    if not offers:
        raise UnsupportedError(f"no backend computes {problem}: {_listed(verdicts)}")

    name = min(expenses, key=expenses.__getitem__)
    if offers[name].cost.peak_bytes > most:
        raise UnsupportedError(
            f"{problem}: {_too_large(offers, verdicts)}; name backend={name!r} to allow it"
        )
    return name


def _verdicts(
    problem: Problem, backends: dict[str, Backend], chosen: str, most: float
) -> dict[str, Any]:
    """The verdict of each backend; a function that returns it for those that cannot be chosen."""
    verdicts: dict[str, Any] = {}
    for name in backends:
        verdicts[name] = partial(_verdict, name, backends[name], problem)
    if chosen != "auto":
        verdicts[chosen] = verdicts[chosen]()
        return verdicts

    cheapest = math.inf
    least = least_work(problem)
    for name in backends:
        verdict = verdicts[name]()
        verdicts[name] = verdict
        if isinstance(verdict, Offer) and verdict.cost.peak_bytes <= most:
            cheapest = min(cheapest, verdict.cost.work_on(problem.device))
            if verdict.unrivalled or least > cheapest:
                break
    return verdicts


def _verdict(name: str, backend: Backend, problem: Problem) -> Offer | Refusal:
    if problem.forward_mode and name != FORWARD_MODE:
        return Refusal(f"it has no forward-mode derivatives; only {FORWARD_MODE} has")
    if problem.precise and problem.dtype in HALF and not backend.precise:
        return Refusal(f"precise=True, and it may round weights to {problem.dtype}")
    return backend.assess(problem)


def least_work(problem: Problem) -> float:
    """The least work expected of a backend that computes each pair, at the pace of the fused operations.

    In calls of very few pairs a backend can need less; a test compares the choice with an assessment of every backend.

    It counts the products of the kept pairs, of unions those of their largest part, the queries and outputs, and where
    the pattern is a band the keys that it reaches.
    """
    start = problem.q_start
    if problem.not_dot_product is not None or start is PER_ROW or problem.empty:
        return 0.0
    heads = problem.batch * problem.heads
    dims = problem.head_dim + problem.v_dim
    pairs = heads * least_pairs(problem.pattern, start, problem.q_len, problem.k_len)
    keys = 0
    if problem.pattern.known_band is not None:
        keys = problem.batch * problem.kv_heads * len(problem.reachable_keys)
    flops = 2 * pairs * dims
    row_bytes = heads * problem.q_len * problem.dtype.itemsize
    moved = (row_bytes + keys * problem.storage.itemsize) * dims
    if problem.needs_grad:
        flops *= 3.5
        moved *= 2.5
    return Cost(flops, moved, 0, pairs).work_on(problem.device)


def _listed(verdicts: Mapping[str, Any]) -> str:
    """The cost or refusal of each backend."""
    return "; ".join(f"{name}: {verdict.cost}" for name, verdict in verdicts.items())


def _too_large(offers: dict[str, Offer], verdicts: dict[str, Any]) -> str:
    """That every offer needs more memory than is used unasked, with the cost or refusal of each backend."""
    least = min(offer.cost.peak_bytes for offer in offers.values())
    if len(offers) > 1:
        return f"every backend that computes this would hold at least {short(least)}B at once ({_listed(verdicts)})"
    (name,) = offers
    refusals = {name: verdict for name, verdict in verdicts.items() if name not in offers}
    return f"only backend {name!r} computes this, and it would hold {short(least)}B at once ({_listed(refusals)})"


def make_plan_of_shapes(
    problem: Problem, backends: dict[str, Backend], backend: str = "auto"
) -> Plan:
    """The plan of tensors without values, which computes nothing."""
    check_backend(backend, backends)
    offer = Offer(Cost(0, 0, 0, 0, calls=0), _refuse_values)
    return Plan(problem, SHAPES, offer.cost, (), range(problem.k_len), offer)


def _refuse_values(operands: Operands) -> Result:
    raise UnsupportedError(
        "this plan was made for tensors without values, so it computes nothing; make a new plan for these tensors"
    )


def _percent(share: float) -> str:
    """A share as a percentage; a small one with three digits."""
    if 0 < share < 0.001:
        return f"{100 * share:.3g}%"
    return f"{share:.1%}"


def _cost_record(cost: Cost) -> dict[str, Any]:
    names = ("flops", "bytes", "peak_bytes", "pairs", "estimated")
    return {name: getattr(cost, name) for name in names}
