"""Softmax with sinks, from softmax without them.

A sink is a logit of each head in the denominator of the softmax. With z = log_sum_exp - sink of a row,

    output · σ(z)        weights · σ(z)        log_sum_exp - log σ(z)        sink's weight σ(-z)

`with_sinks` gives this to every backend that computes the log-sum-exp; the reference computes its own formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import torch

from regard.backends.statistics.second_pass import compute_statistics, with_statistics
from regard.core.backend import Backend, Offer, Operands, Refusal
from regard.core.call import Call
from regard.core.hidden import prepared_sink
from regard.core.problem import Problem
from regard.core.result import Result

BackendClass = TypeVar("BackendClass", bound=type[Backend])


def with_sinks(kind: BackendClass) -> BackendClass:
    """A class of backends that also offers to compute problems with sinks: it computes them without, then rescales."""
    assess_without_sinks = kind.assess

    @wraps(assess_without_sinks)
    def assess(self: Any, problem: Problem) -> Offer | Refusal:
        if problem.sink is None and "sink" not in problem.want:
            return assess_without_sinks(self, problem)
        offer = assess_without_sinks(self, _without_sink(problem))
        if isinstance(offer, Refusal):
            return offer

        second_pass = _of_second_pass(problem)
        steps = None
        if offer.steps is not None and not problem.sink_learns:
            steps = partial(_run_step, offer.steps)
        return replace(
            offer,
            cost=with_statistics(offer.cost, second_pass),
            run=partial(_run, problem, second_pass, offer.run),
            steps=steps,
            repeatable=None,
            growing=None,
        )

    kind.assess = assess  # ty: ignore[invalid-assignment]
    return kind


def _without_sink(problem: Problem) -> Problem:
    """The problem whose output and log-sum-exp are rescaled."""
    without = replace(problem, sink=None, sink_learns=False, want=("log_sum_exp",))
    if not _rounds_once(problem):
        return without
    storage = torch.float32 if problem.storage == problem.dtype else problem.storage
    return replace(without, dtype=torch.float32, storage=storage)


def _of_second_pass(problem: Problem) -> Problem:
    """The problem with the statistics that are computed from the scores once more."""
    return replace(
        problem,
        needs_grad=problem.needs_grad or problem.sink_learns,
        want=tuple(want for want in problem.want if want not in ("log_sum_exp", "sink")),
    )


def _rounds_once(problem: Problem) -> bool:
    """Whether the output is rounded to half precision after the sinks alone, from one in float32."""
    if problem.sink is None or problem.dtype.itemsize > 2:
        return False
    return problem.precise or (problem.dtype == torch.float16 and problem.device == "cpu")


def _run(
    problem: Problem,
    second_pass: Problem,
    compute: Callable[[Operands], Result],
    operands: Operands,
) -> Result:
    """The result with sinks; `second_pass` wants the statistics that are computed from the scores once more."""
    dtype = operands.q.dtype
    if _rounds_once(problem):
        operands = operands.in_float32().widened()
    without_sink = compute(operands)
    assert without_sink.log_sum_exp is not None
    learning = without_sink.log_sum_exp.requires_grad or problem.sink_learns
    if not problem.want and not learning:
        return Result(_rescaled(without_sink, operands.sink, dtype))

    rows = rows_with_sinks(without_sink.log_sum_exp, operands.sink)
    output = without_sink.output
    if operands.sink is not None:
        output = (output * rows.share[..., None]).to(dtype)
    statistics: dict[str, Any] = {}
    if second_pass.want:
        statistics = compute_statistics(second_pass, operands, rows.of_keys)
    if "log_sum_exp" in problem.want:
        statistics["log_sum_exp"] = rows.log_sum_exp
    if "sink" in problem.want:
        statistics["sink"] = rows.sink
    # An output that is finite may still have gradients that are not, which the backend says.
    sound = False if without_sink.sound is False else None
    return Result(output, **statistics, sound=sound)


def _run_step(compute: Callable[[Call], Result | None], call: Call) -> Result | None:
    """The output of a step, whose backend reads q in any dtype and writes that of its problem."""
    without_sink = compute(call)
    if without_sink is None:
        return None
    sink = None if call.sink is None else prepared_sink(call.sink, call.q)
    return Result(_rescaled(without_sink, sink, call.q.dtype))


def _rescaled(without_sink: Result, sink: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """The output in a dtype with sinks, in few operations and without a gradient; see `rows_with_sinks` for float64."""
    if sink is None:
        return without_sink.output
    log_sum_exp = without_sink.log_sum_exp
    assert log_sum_exp is not None
    precise = log_sum_exp.double() if log_sum_exp.is_cpu else log_sum_exp
    # NaN in an empty row whose logit is -inf.
    share = (precise - sink).sigmoid_().nan_to_num_(0.0)
    return (without_sink.output * share.to(log_sum_exp.dtype).unsqueeze_(-1)).to(dtype)


class SinkRows(NamedTuple):
    """What a sink changes in each row, (batch, heads, q_len).

    share: the sum of the weights. log_sum_exp: with the sink. of_keys: the same, but -inf for an empty row.
    sink: the weight of the sink.
    """

    share: torch.Tensor
    log_sum_exp: torch.Tensor
    of_keys: torch.Tensor
    sink: torch.Tensor


def rows_with_sinks(log_sum_exp: torch.Tensor, sink: torch.Tensor | None) -> SinkRows:
    """The rows of a call from the log-sum-exp of its keys; without a sink, or with one of -inf, nothing changes.

    On the CPU this is computed in float64 and then rounded: PyTorch's vectorised and scalar code round alike then, so
    that a row has the same bits wherever it stands.
    """
    empty = log_sum_exp == -math.inf
    if sink is None:
        return SinkRows(
            share=torch.ones_like(log_sum_exp).masked_fill(empty, 0),
            log_sum_exp=log_sum_exp,
            of_keys=log_sum_exp,
            sink=torch.zeros_like(log_sum_exp),
        )

    dtype = log_sum_exp.dtype
    if log_sum_exp.is_cpu:
        log_sum_exp = log_sum_exp.double()
        sink = sink.double()
    keys = log_sum_exp.masked_fill(empty, 0)
    z = keys - sink
    share = _sigmoid(z).masked_fill(empty, 0)

    # keys + sink by log1p: on neither side does a first or second derivative cancel, also beside a sink of -inf.
    # masked_fill and not clamp: PyTorch 2.15 changed the gradient of clamp at 0.
    below = z.masked_fill(z > 0, 0)
    above = z.masked_fill(z < 0, 0)
    both = torch.where(z > 0, keys + (-above).exp().log1p(), sink + below.exp().log1p())
    with_sink = torch.where(empty, sink, both)
    of_keys = with_sink.masked_fill(empty, -math.inf)
    weight = torch.where(empty, (sink > -math.inf).to(z.dtype), _sigmoid(-z))
    return SinkRows(share.to(dtype), with_sink.to(dtype), of_keys.to(dtype), weight.to(dtype))


def _sigmoid(z: torch.Tensor) -> torch.Tensor:
    """σ(z), whose gradient σ(z) σ(-z) is exact where σ(z) is close to 1: torch computes it as σ(z) (1 - σ(z))."""
    return torch.where(z > 0, 1 - (-z).sigmoid(), z.sigmoid())
