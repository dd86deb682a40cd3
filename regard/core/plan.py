"""Plans: the backend chosen for a problem, its cost, the cost or refusal of every other, and how it is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from regard.arguments import shown
from regard.bias import Bias
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.call import UNKNOWN, Call
from regard.core.combination import checked_parameters
from regard.core.hidden import Place, contained, lasting_place, looks_sound, masks_pairs, place_of, prepare
from regard.core.problem import PER_ROW, RELATIVE, Problem, check_planned_sink, learns
from regard.core.result import Result, Statistics, as_text
from regard.core.shaped import has_no_values, shapes_of
from regard.core.tensors import Stored, check_tensor, refuse_layout, refuse_tracing
from regard.errors import ArgumentError, UnsupportedError
from regard.mechanisms import Softmax

_SOFTMAX = Softmax()


@dataclass(frozen=True)
class Plan:
    """The backend chosen for one problem, with its cost and why each other backend was not.

    others: the cost of every other backend by its name, or the reason why it refused.
    """

    problem: Problem
    backend: str
    cost: Cost
    others: tuple[tuple[str, Cost | Refusal], ...] = field(repr=False, compare=False)
    keys: range
    _offer: Offer = field(repr=False, compare=False)

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

        A bias, a sink, a tensor of q_start and a mechanism's parameters are given again: a plan keeps no values.
        """
        return self.result_of(Call(q, k, v, bias, parameters, dropout_seed, sink, q_start=q_start)).output

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
        return AttentionDetail(
            self.result_of(Call(q, k, v, bias, parameters, dropout_seed, sink, q_start=q_start)), self
        )

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
        try:
            place = self._places.get(key := call.key())
        except UNKNOWN:
            place = key = None
        return self._checked_result(call, key) if place is None else self.compute(call, place)

    def compute(self, call: Call, place: Place | None) -> Result:
        """Output and statistics of a call that is known to fit the plan; `place` is None where none was kept."""
        problem = self.problem
        if place is None:
            place = place_of(problem, self.keys, call.q_start, call.q.device)
        operands = prepare(problem, place, call)
        if self._has_parameters or call.parameters is not None:
            operands = operands._replace(parameters=self._parameters_of(call))
        as_prepared = self._enter_as_prepared and not isinstance(call.k, Stored) and not isinstance(call.v, Stored)
        result = self._offer.run(operands if as_prepared else self._entering(operands))
        if self._masks_pairs and not looks_sound(result):
            result = contained(problem, operands, result, self._computed)
        if result.output.dtype != problem.dtype:
            result = result._replace(output=result.output.to(problem.dtype))
        return result.on_all_keys(self.keys, problem.k_len) if problem.want else result

    @property
    def steps(self) -> Callable[[Call], Result | None] | None:
        """A function for calls that differ from this plan's in k_len and q_start only; None where there is none."""
        return self._offer.steps

    def lasting_place(self, call: Call) -> Place | None:
        """The place of every call with the key of this one, or None where it differs between calls."""
        return lasting_place(self.problem, place_of(self.problem, self.keys, None, call.q.device), call)

    @property
    def asked(self) -> str:
        """The requested statistics as text."""
        return as_text(self.problem.want)

    def to_json(self) -> str:
        """The plan as JSON text: backend, costs, reasons and the share of pairs computed; what is estimated says so."""
        kept = self.problem.kept_pairs
        return json.dumps(
            {
                "problem": str(self.problem),
                "asked": [str(want) for want in self.problem.want],
                "backend": self.backend,
                "cost": _cost_record(self.cost),
                "widened_to_float32": self._adds_gradients,
                "share_of_pairs_computed": self.share_of_pairs_computed,
                "pairs_kept": kept,
                "others": {name: self._verdict_record(verdict) for name, verdict in self.others},
            }
        )

    @property
    def share_of_pairs_computed(self) -> float:
        """Pairs computed over all pairs, 0 to 1."""
        return self.cost.pairs / self.problem.pairs if self.problem.pairs else 0.0

    def __str__(self) -> str:
        kept = self.problem.kept_pairs
        about = "about " if self.cost.estimated else ""
        share = f"{about}{_percent(self.share_of_pairs_computed)} of pairs computed"
        if kept is not None and self.problem.pairs:
            share += f", {_percent(kept / self.problem.pairs)} kept"
        lines = [f"{self.problem}", f"  {self.backend} chosen: {self.cost}; {share}"]
        if self._adds_gradients:
            lines.append(
                "  computed in float32: q, k and v are widened, since gradients of sinks and statistics come in parts "
                "that would be rounded; the output and gradients are rounded once"
            )
        for name, verdict in self.others:
            lines.append(
                f"  {name} refused: {verdict}"
                if isinstance(verdict, Refusal)
                else f"  {name}, {self._times(verdict):.3g}x the estimated time: {verdict}"
            )
        if any("about " in line for line in lines[1:]):
            lines.append("  about: an estimate, since there are too many row blocks to count them all")
        return "\n".join(lines)

    def _times(self, cost: Cost) -> float:
        """The estimated time of another backend, as a multiple of that of the chosen one."""
        chosen = self.cost.work_on(self.problem.device)
        return cost.work_on(self.problem.device) / chosen if chosen else 1.0

    def _verdict_record(self, verdict: Cost | Refusal) -> dict[str, Any]:
        if isinstance(verdict, Refusal):
            return {"refused": verdict.reason}
        return {"cost": _cost_record(verdict), "times_the_estimated_time": self._times(verdict)}

    def __repr__(self) -> str:
        return f"Plan({self.backend!r} for {self.problem})"

    def _checked_result(self, call: Call, key: Hashable | None) -> Result:
        """The result of a call whose key is not known, or that autocast changes."""
        refuse_tracing()
        if (cast := call.cast()) is not call:
            with torch.autocast(cast.q.device.type, enabled=False):  # the backend chooses in what it computes
                return self.result_of(cast)
        self._check(call)
        if has_no_values(call.q, call.k, call.v):
            tensors = (call.q, call.k, call.v, call.bias, call.sink, *self._checked_parameters(call).values())
            return shapes_of(self.problem, len(self.keys), *tensors).on_all_keys(self.keys, self.problem.k_len)
        call = call.in_memory()
        place = place_of(self.problem, self.keys, call.q_start, call.q.device)
        if key is not None and (lasting := lasting_place(self.problem, place, call)) is not None:
            place = self._places[key] = lasting
        return self.compute(call, place)

    def _computed(self, operands: Operands) -> Result:
        return self._offer.run(self._entering(operands))

    @cached_property
    def _places(self) -> dict[Hashable, Place]:
        return {}

    @cached_property
    def _adds_gradients(self) -> bool:
        """Whether half-precision gradients of output and statistics are added, whose parts may cancel.

        With a sink, the gradient of the output without it is such a part, and that of the sink is a sum over outputs.
        """
        problem = self.problem
        half, learning = problem.dtype.itemsize == 2, problem.needs_grad or problem.bias_learns
        parts = problem.sink is not None or bool(set(problem.want) - {"log_sum_exp"})
        return half and (problem.sink_learns or (learning and parts))

    @cached_property
    def _masks_pairs(self) -> bool:
        return masks_pairs(self.problem, self.keys)

    @cached_property
    def _has_parameters(self) -> bool:
        return self.problem.mechanism != _SOFTMAX

    @cached_property
    def _enter_as_prepared(self) -> bool:
        """Whether the backend takes plain tensors as `prepare` returns them."""
        mechanism = self.problem.mechanism
        return not self._adds_gradients and not mechanism.projects

    def _checked_parameters(self, call: Call) -> dict[str, torch.Tensor]:
        return checked_parameters(self.problem.mechanism, self.problem.sizes, call.parameters, call.q)

    def _parameters_of(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors of the mechanism; those that have a number for each key are cut to the reachable keys."""
        here, by_key = slice(self.keys.start, self.keys.stop), self.problem.mechanism.by_key
        return {name: x[..., here] if name in by_key else x for name, x in self._checked_parameters(call).items()}

    def _entering(self, operands: Operands) -> Operands:
        """The operands as the backend takes them: widened unless it reads stored keys, and projected by the score."""
        mechanism = self.problem.mechanism
        if not mechanism.projects:
            operands = operands if self._offer.takes_stored else operands.widened()
            return operands.in_float32() if self._adds_gradients else operands
        wide = self.problem.lowered.dtype
        operands = operands._replace(q=operands.q.to(wide)).widened()
        q, k, left = mechanism.project(operands.q, operands.k.to(wide), operands.parameters)
        return operands._replace(q=q, k=k, v=operands.v.to(wide), parameters=left)

    def _check(self, call: Call) -> None:
        """Raise unless the tensors of a call are what the plan was made for."""
        q, k, v, bias, q_start, sink = call.q, call.k, call.v, call.bias, call.q_start, call.sink
        planned = self.problem
        shapes = {
            "q": (q, (planned.batch, planned.heads, planned.q_len, planned.head_dim), planned.dtype),
            "k": (k, (planned.batch, planned.kv_heads, planned.k_len, planned.key_dim), planned.storage),
            "v": (v, (planned.batch, planned.kv_heads, planned.k_len, planned.v_dim), planned.storage),
        }
        for name, (tensor, shape, dtype) in shapes.items():
            check_tensor(name, tensor)
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device.type != planned.device:
                raise ArgumentError(
                    f"this plan was made for {name} {shape} {dtype} on {planned.device} and was given "
                    f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}; make a plan for these tensors"
                )
        for name, given, wanted in (
            ("bias", bias is not None, planned.bias is not None),
            ("q_start", q_start is not None, planned.q_start is PER_ROW),
            ("sink", sink is not None, planned.sink is not None),
        ):
            if wanted and not given:
                raise ArgumentError(f"this plan was made with a tensor as {name}; hand it to run({name}=...) again")
            if given and not wanted:
                raise ArgumentError(f"this plan was made without a tensor as {name}; plan again with it")
        if bias is not None and not isinstance(bias, torch.Tensor | Bias):
            raise ArgumentError(f"bias is {shown(bias)}; this plan needs the tensor or the bias that it was made with")
        if bias is not None:
            if isinstance(bias, torch.Tensor):
                refuse_layout("bias", bias)
            shape = RELATIVE if isinstance(bias, Bias) else (1,) * (4 - bias.dim()) + tuple(bias.shape)
            if shape != planned.bias or (learns(bias) and not planned.bias_learns):
                learning = {True: "that learns", False: "that does not learn"}
                raise ArgumentError(
                    f"this plan was made for a bias {planned.bias} {learning[planned.bias_learns]} and was given "
                    f"{tuple(getattr(bias, 'shape', shape))} {learning[learns(bias)]}; make a plan for it"
                )
        if sink is not None:
            check_planned_sink(planned, sink, q)
        if q_start is not None and not isinstance(q_start, torch.Tensor):
            raise ArgumentError(f"q_start is {shown(q_start)}; this plan was made for an int64 tensor (batch,)")
        if q_start is not None and (q_start.dtype != torch.int64 or tuple(q_start.shape) != (planned.batch,)):
            raise ArgumentError(
                f"this plan was made for q_start as int64 ({planned.batch},) and was given {q_start.dtype} "
                f"{tuple(q_start.shape)}; give one position for each batch row"
            )


class AttentionDetail(Statistics):
    """Output, plan and statistics of one call; reading a statistic that was not requested raises."""

    def __init__(self, result: Result, plan: Plan) -> None:
        super().__init__(result, plan.asked)
        self.plan = plan

    def __repr__(self) -> str:
        return f"AttentionDetail(output {tuple(self.output.shape)}, {self.asked}, by {self.plan.backend})"


def _percent(share: float) -> str:
    """A share as a percentage; a small one with three digits."""
    return f"{share:.1%}" if share >= 0.001 or share == 0 else f"{100 * share:.3g}%"


def _cost_record(cost: Cost) -> dict[str, Any]:
    return {
        "flops": cost.flops, "bytes": cost.bytes, "peak_bytes": cost.peak_bytes, "pairs": cost.pairs,
        "estimated": cost.estimated,
    }  # fmt: skip
