"""Which exact attention a candidate is an estimate of, if it is not that of the call itself."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from regard.inspection.quality.call import Call, Exact
from regard.mechanisms import LSH, Mechanism, RandomFeature
from regard.patterns import Diagonals, Pattern

THIS_CALL = "the call"
ITSELF = Diagonals(0, 0)


def exact_answers(call: Call, what: Pattern | Mechanism, known: dict[str, Exact]) -> dict[str, Exact]:
    """By the words for the column "against"; those that are not `known` yet are computed and become so."""
    if isinstance(what, LSH):
        names = ["keys that are the queries"]
    elif isinstance(what, RandomFeature):
        names = [THIS_CALL, f"unit q, k; sigma {what.sigma:g}"]
    else:
        names = [THIS_CALL]
    for name in names:
        if name not in known:
            known[name] = _unit(call, what.sigma) if isinstance(what, RandomFeature) else _shared(call)
    return {name: known[name] for name in names}


def exact_of(call: Call) -> Exact:
    """Softmax attention by the cheapest backend that computes it exactly."""
    return Exact(*call.widened().with_log_sum_exp())


def _unit(call: Call, sigma: float) -> Exact:
    """The softmax of q·k / sigma² for q and k of length 1."""
    q, k = (functional.normalize(x, dim=-1) for x in (call.widened().q, call.widened().k))
    return exact_of(call.widened().but(q=q, k=k, options={"scale": sigma**-2}))


def _shared(call: Call) -> Exact:
    """Keys are the queries at length 1; who is hidden sees nobody, and nobody sees itself but who sees nobody else."""
    call = call.widened()
    call = call.but(k=functional.normalize(call.q, dim=-1))
    of_others, log_sum_exp = call.but(pattern=call.pattern & ~ITSELF).with_log_sum_exp()
    of_itself, own_score = call.but(pattern=call.pattern & ITSELF).with_log_sum_exp()
    log_sum_exp = log_sum_exp.masked_fill(own_score == -math.inf, -math.inf)
    output = torch.where((log_sum_exp == -math.inf)[..., None], of_itself, of_others)
    return Exact(output, log_sum_exp, own_score)
