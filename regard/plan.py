"""The decision which backend computes a problem: frozen, printable, and made without reading any value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from regard.autocast import cast, is_casting
from regard.bias import Bias
from regard.combination import checked_parameters
from regard.detail import AttentionDetail, Result
from regard.errors import ArgumentError, UnsupportedError
from regard.kinds import shown
from regard.mechanisms import Softmax
from regard.non_finite import contained, hides_pairs, looks_sound
from regard.offer import Backend, Cost, Offer, Refusal, check_backend, short
from regard.operands import Operands, Place, place_of, prepare, reachable_keys
from regard.problem import PER_ROW, RELATIVE, Problem, learns
from regard.shaped import NAME as SHAPES
from regard.shaped import has_no_values, offer_of_shapes, shapes_of
from regard.shapes import check_tensor, refuse_layout, refuse_tracing
from regard.stored import Stored

UNASKED_BYTES = 4 * 2**30  # beside the tensors; more than this, and than they are large, only by name: no surprises
FORWARD_MODE = "reference"  # the one backend whose every line PyTorch can differentiate forwards
_SOFTMAX = Softmax()


@dataclass(frozen=True)
class Plan:
    """The backend chosen for one problem, with its cost and why each other backend was not."""

    problem: Problem
    backend: str
    cost: Cost
    others: tuple[tuple[str, Cost | Refusal], ...]
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
    ) -> torch.Tensor:
        """The output, (batch, heads, q_len, v_dim) in q's dtype, of tensors like those the plan was made for.

        A bias, a tensor of q_start and a mechanism's parameters are handed over again: a plan keeps no values.
        """
        return self._result(q, k, v, bias, q_start, dropout_seed, parameters).output

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
    ) -> AttentionDetail:
        """The output and the statistics that the plan was made with."""
        given = {"bias": bias, "q_start": q_start, "dropout_seed": dropout_seed, "parameters": parameters}
        return AttentionDetail(self.result(q, k, v, **given), self)

    def result(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        *,
        bias: torch.Tensor | Bias | None = None,
        q_start: torch.Tensor | None = None,
        dropout_seed: int | None = None,
        parameters: Mapping[str, torch.Tensor] | None = None,
    ) -> Result:
        """What `detail` shows, as plain tensors."""
        found = self._result(q, k, v, bias, q_start, dropout_seed, parameters)
        return found.on_all_keys(self.keys, self.problem.k_len)

    @property
    def asked(self) -> str:
        """The statistics asked for, in words."""
        return ", ".join(map(str, self.problem.want)) or "the output alone"

    def to_json(self) -> str:
        """The plan as JSON text: backend, costs, reasons and the share of pairs computed; what is estimated says so."""
        kept = self.problem.kept
        return json.dumps(
            {
                "problem": str(self.problem),
                "asked": [str(want) for want in self.problem.want],
                "backend": self.backend,
                "cost": _cost_record(self.cost),
                "share_of_pairs_computed": self.share_of_pairs_computed,
                "pairs_kept": None if kept is None else kept.pairs,
                "pairs_kept_estimated": kept is not None and not kept.exact,
                "others": {name: _verdict_record(verdict) for name, verdict in self.others},
            }
        )

    @property
    def share_of_pairs_computed(self) -> float:
        """Pairs computed over all pairs, 0 to 1."""
        return self.cost.pairs / self.problem.pairs if self.problem.pairs else 0.0

    def __str__(self) -> str:
        kept = self.problem.kept
        about = "about " if self.cost.estimated else ""
        share = f"{about}{_percent(self.share_of_pairs_computed)} of pairs computed"
        if kept is not None and self.problem.pairs:
            share += f", {'' if kept.exact else 'about '}{_percent(kept.pairs / self.problem.pairs)} kept"
        lines = [f"{self.problem}", f"  {self.backend}: {self.cost}; {share}"]
        for name, verdict in self.others:
            lines.append(f"  {name} {'refused' if isinstance(verdict, Refusal) else 'dearer'}: {verdict}")
        if any("about " in line for line in lines[1:]):
            lines.append("  about: estimated from a sample of the row blocks, as there are too many to look at each")
        return "\n".join(lines)

    def _result(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        bias: torch.Tensor | Bias | None,
        q_start: torch.Tensor | None,
        dropout_seed: int | None,
        parameters: Mapping[str, torch.Tensor] | None,
    ) -> Result:
        if torch.compiler.is_compiling():
            raise UnsupportedError(
                "a plan is not followed inside torch.compile, where attention itself is compiled; call attention "
                "there, or follow the plan outside, where this works"
            )
        refuse_tracing()
        casting = isinstance(q, torch.Tensor) and is_casting(q.device.type)
        if casting:
            q, k, v, bias = cast(q, k, v, bias)
        place = self._place(q, k, v, bias, q_start)
        handed: dict[str, torch.Tensor] = {}
        if self.problem.mechanism != _SOFTMAX or parameters is not None:
            handed = checked_parameters(self.problem.mechanism, self.problem.sizes, parameters, q)
        if place is None:
            return shapes_of(self.problem, len(self.keys), q, k, v, bias, *handed.values())
        operands = prepare(self.problem, place, q, k, v, bias, dropout_seed)
        if handed:
            operands = replace(operands, parameters=self._at_keys(handed))
        if not casting:
            return self._computed(operands)
        with torch.autocast(q.device.type, enabled=False):  # the backend alone decides in what it computes
            return self._computed(operands)

    def _computed(self, operands: Operands) -> Result:
        compute = lambda operands: self._offer.run(self._entering(operands))  # noqa: E731
        result, dtype = compute(operands), self.problem.dtype
        if self._hides_pairs and not looks_sound(result):
            result = contained(self.problem, operands, result, compute)
        return result if result.output.dtype == dtype else replace(result, output=result.output.to(dtype))

    @cached_property
    def _adds_gradients(self) -> bool:
        """Does a half type get its gradient in parts that may cancel, by the output and by statistics?"""
        problem = self.problem
        half, learning = problem.dtype.itemsize == 2, problem.needs_grad or problem.bias_learns
        return half and learning and bool(set(problem.want) - {"log_sum_exp"})

    @cached_property
    def _hides_pairs(self) -> bool:
        return hides_pairs(self.problem, self.keys)

    def _at_keys(self, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those that have a number for each key, cut to the keys that can be reached."""
        here, by_key = slice(self.keys.start, self.keys.stop), self.problem.mechanism.by_key
        return {name: x[..., here] if name in by_key else x for name, x in parameters.items()}

    def _entering(self, operands: Operands) -> Operands:
        """The tensors as the backend meets them: widened unless it reads what is stored, and projected by a score."""
        mechanism = self.problem.mechanism
        if not isinstance(mechanism, Softmax) or not mechanism.score.projects:
            operands = operands if self._offer.takes_stored else operands.widened()
            return operands.in_float32() if self._adds_gradients else operands
        wide = self.problem.lowered.dtype
        operands = replace(operands, q=operands.q.to(wide)).widened()
        q, k, left = mechanism.score.project(operands.q, operands.k.to(wide), operands.parameters)
        return replace(operands, q=q, k=k, v=operands.v.to(wide), parameters=left)

    def _place(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        bias: torch.Tensor | Bias | None,
        q_start: torch.Tensor | None,
    ) -> Place | None:
        """Where the tensors stand, after a check that they are what the plan was made for; what passed passes again.

        None for tensors without values.
        """
        if has_no_values(q, k, v):
            self._check(q, k, v, bias, q_start)
            return None
        plain = q_start is None and not isinstance(bias, Bias)
        try:
            given = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device)
            if plain and bias is not None:
                given = (*given, bias.shape, learns(bias))
            place = self._places.get(given) if plain else None
        except (AttributeError, RuntimeError):  # something is no tensor, or has no such shape: the checks say what
            place = None
        if place is None:
            self._check(q, k, v, bias, q_start)
            place = place_of(self.problem, self.keys, q_start, q.device)
            if plain and place.lasting:
                self._places[given] = place
        return place

    @cached_property
    def _places(self) -> dict[tuple[Any, ...], Place]:
        return {}

    def _check(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        bias: torch.Tensor | Bias | None,
        q_start: torch.Tensor | None,
    ) -> None:
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
        if q_start is not None and not isinstance(q_start, torch.Tensor):
            raise ArgumentError(f"q_start is {shown(q_start)}; this plan was made for an int64 tensor (batch,)")
        if q_start is not None and (q_start.dtype != torch.int64 or tuple(q_start.shape) != (planned.batch,)):
            raise ArgumentError(
                f"this plan was made for q_start as int64 ({planned.batch},) and was given {q_start.dtype} "
                f"{tuple(q_start.shape)}; give one position for each batch row"
            )


def make_plan(problem: Problem, backends: dict[str, Backend], backend: str = "auto") -> Plan:
    """Ask every backend, take the cheapest, or the named one.

    Raises:
        UnsupportedError: no backend, or not the named one, computes this problem; with every reason.
    """
    check_backend(backend, backends)
    lowered = problem.lowered
    verdicts = {name: _verdict(name, one, lowered) for name, one in backends.items()}
    offers = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, Offer)}
    if backend != "auto" and backend not in offers:
        raise UnsupportedError(
            f"backend {backend!r} does not compute this call: {verdicts[backend]}; use backend='auto' for one that does"
        )
    if not offers:
        reasons = "; ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())
        raise UnsupportedError(f"nothing computes {problem}: {reasons}")
    answers = {one: answer.cost if isinstance(answer, Offer) else answer for one, answer in verdicts.items()}
    most = max(UNASKED_BYTES, 4 * problem.nbytes)
    dearness = lambda one: (offers[one].cost.peak_bytes > most, offers[one].cost.work_on(problem.device))  # noqa: E731
    name = min(offers, key=dearness) if backend == "auto" else backend
    cost = offers[name].cost
    if backend == "auto" and cost.peak_bytes > most:
        reasons = "; ".join(f"{other}: {answer}" for other, answer in answers.items() if other != name)
        raise UnsupportedError(
            f"{problem}: only backend {name!r} computes this, and it would hold "
            f"{short(cost.peak_bytes)}B at once ({reasons}); name backend={name!r} to allow it"
        )
    others = tuple((other, answer) for other, answer in answers.items() if other != name)
    return Plan(problem, name, cost, others, reachable_keys(problem), offers[name])


def _percent(share: float) -> str:
    """A share in words, a small one in three digits."""
    return f"{share:.1%}" if share >= 0.001 or share == 0 else f"{100 * share:.3g}%"


def make_plan_of_shapes(problem: Problem, backends: dict[str, Backend], backend: str = "auto") -> Plan:
    """The plan of tensors without values, which computes nothing."""
    check_backend(backend, backends)
    offer = offer_of_shapes()
    return Plan(problem, SHAPES, offer.cost, (), range(problem.k_len), offer)


def _verdict(name: str, backend: Backend, problem: Problem) -> Offer | Refusal:
    if problem.forward_mode and name != FORWARD_MODE:
        return Refusal(f"it has no forward-mode derivatives; {FORWARD_MODE} has")
    return backend.assess(problem)


def _cost_record(cost: Cost) -> dict[str, Any]:
    return {
        "flops": cost.flops, "bytes": cost.bytes, "peak_bytes": cost.peak_bytes, "pairs": cost.pairs,
        "estimated": cost.estimated,
    }  # fmt: skip


def _verdict_record(verdict: Cost | Refusal) -> dict[str, Any]:
    if isinstance(verdict, Refusal):
        return {"refused": verdict.reason}
    return {"dearer": _cost_record(verdict)}
