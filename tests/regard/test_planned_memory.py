"""Memory is planned before it is taken, and what would be quadratic is refused unless it was named."""

from __future__ import annotations

import pytest
import torch

from regard.backends import BACKENDS
from regard.core.backend import Offer, short
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.errors import UnsupportedError


def problem(length, **options):
    x = torch.empty(1, 8, length, 64, device="meta")  # planning reads no values
    return make_problem(x, x, x, **options)


def test_memory_is_never_quadratic_unasked():
    dense = {name: BACKENDS[name] for name in ("fused", "reference")}
    with pytest.raises(UnsupportedError, match=r"would hold 103 GB at once .*dropout_seed.*name backend='reference'"):
        make_plan(problem(32_768, dropout=0.1), dense)
    assert make_plan(problem(32_768, dropout=0.1), dense, "reference").backend == "reference"
    assert make_plan(problem(512, dropout=0.1), dense).backend == "reference"


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"softcap": 2.0}, {"pattern": "causal & strided(512)"}])
def test_no_option_needs_quadratic_memory(options):
    plan = make_plan(problem(32_768, **options), BACKENDS)
    assert plan.backend != "reference"
    assert plan.cost.peak_bytes < 2**28


def test_a_long_window_is_planned_in_linear_memory():
    q = torch.empty(1, 1, 1, 64).expand(1, 8, 65_536, 64)
    plan = make_plan(make_problem(q, q, q, pattern="causal & causal_window(512)"), BACKENDS)
    assert plan.cost.peak_bytes <= 4 * 8 * 65_536 * 64 * 4  # q, k, v and the output
    assert plan.share_of_pairs_computed < 0.02


def test_a_refusal_for_memory_names_the_least_that_any_backend_would_hold():
    """Of several backends that are too large none is said to be the only one."""
    with pytest.raises(UnsupportedError) as refused:
        make_plan(problem(65_536, pattern="causal_window(256)", want=("weights",)), BACKENDS)
    assert "only backend" not in str(refused.value)
    offers = {name: backend.assess(refused_problem()) for name, backend in BACKENDS.items()}
    holding = {name: offer.cost.peak_bytes for name, offer in offers.items() if isinstance(offer, Offer)}
    assert len(holding) > 1
    assert f"every backend that computes this would hold at least {short(min(holding.values()))}B" in str(refused.value)
    for name in holding:
        assert f"{name}: " in str(refused.value)


def refused_problem():
    return problem(65_536, pattern="causal_window(256)", want=("weights",)).projected
