"""What a plan says that a call costs: by the batch, the heads and the dtype, as counted, and never less than needed."""

from contextlib import suppress

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.core.call import make_problem
from regard.core.problem import Problem

BACKENDS = ("reference", "fused", "tiled", "streamed", "decode", "native", "linear")
CALLS = {
    "full": {},
    "causal": {"pattern": "causal"},
    "window": {"pattern": p.CausalWindow(64)},
    "scattered": {"pattern": "causal & (sliding_window(33) | global_tokens(0) | strided(64))"},
    "linear": {"mechanism": m.LinearTransformer()},
    "causal linear": {"mechanism": m.LinearTransformer(), "pattern": "causal"},
}


def drawn(batch: int = 3, kv_heads: int = 2, q_len: int = 311, dtype: torch.dtype = torch.float32):
    """q, k and v; three query heads share one of keys."""
    torch.manual_seed(0)
    q = torch.randn(batch, 3 * kv_heads, q_len, 20, dtype=dtype)
    k = torch.randn(batch, kv_heads, 311, 20, dtype=dtype)
    v = torch.randn(batch, kv_heads, 311, 12, dtype=dtype)
    return q, k, v


def plans(name: str, **sizes) -> dict[str, rg.Plan]:
    """The plans of the backends that take a call."""
    plans = {}
    for backend in BACKENDS:
        with suppress(rg.RegardError):
            plans[backend] = rg.plan_attention(*drawn(**sizes), backend=backend, **CALLS[name])
    return plans


@pytest.mark.parametrize("q_len", [311, 1])
@pytest.mark.parametrize("name", CALLS)
def test_twice_the_rows_or_heads_or_bytes_of_a_number_cost_twice_as_much(name, q_len):
    single = plans(name, q_len=q_len)
    more_rows = plans(name, q_len=q_len, batch=6)
    more_heads = plans(name, q_len=q_len, kv_heads=4)
    wider_numbers = plans(name, q_len=q_len, dtype=torch.float64)
    assert len(single) >= 2
    for backend, plan in single.items():
        cost = plan.cost
        for twice in (more_rows[backend].cost, more_heads[backend].cost):
            assert twice.flops == 2 * cost.flops, backend
            assert twice.pairs == 2 * cost.pairs, backend
            # A mask is shared by rows and heads.
            assert twice.bytes == pytest.approx(2 * cost.bytes, rel=0.02), backend
        wide = wider_numbers[backend].cost
        assert wide.bytes == 2 * cost.bytes, backend
        assert (wide.pairs, wide.calls) == (cost.pairs, cost.calls), backend


@pytest.mark.parametrize("name", CALLS)
def test_the_operations_of_the_formula_are_those_that_pytorch_counts(name):
    q, k, v = drawn()
    plan = rg.plan_attention(q, k, v, backend="reference", **CALLS[name])
    with FlopCounterMode(display=False) as counter:
        plan.run(q, k, v)
    counted = counter.get_total_flops()
    assert 0.8 * counted <= plan.cost.flops <= 1.25 * counted


@pytest.mark.parametrize("name", ["causal", "window", "scattered"])
def test_every_kept_pair_is_computed(name):
    for backend, plan in plans(name).items():
        assert plan.problem.kept_pairs <= plan.cost.pairs <= plan.problem.pairs, backend
        assert plan.cost.flops >= 2 * (20 + 12) * plan.problem.kept_pairs, backend


def test_the_bytes_of_a_problem_are_those_of_its_tensors_and_the_output():
    for sizes in ({}, {"batch": 5, "dtype": torch.float64}, {"q_len": 7}):
        q, k, v = drawn(**sizes)
        problem: Problem = make_problem(q, k, v)
        assert problem.nbytes == sum(x.nbytes for x in (q, k, v, rg.attention(q, k, v)))


# Of the kernel: whole panels of keys, and gradients


def plan_of(pattern, length, **options):
    q = torch.zeros(1, 2, length, 16, **options)
    return rg.plan_attention(q, q.detach(), q.detach(), pattern=pattern, backend="native")


@pytest.fixture
def built():
    try:
        rg.plan_attention(*(torch.zeros(1, 1, 4, 4) for _ in "qkv"), backend="native")
    except rg.UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("built")
def test_keys_far_apart_cost_whole_panels():
    """Four keys of each 64 are computed as whole panels, each once."""
    alone = plan_of("causal & fixed(64, summary=4, local=false)", 512)
    all_keys = plan_of("causal", 512)
    kept = alone.problem.kept_pairs
    assert alone.cost.pairs >= 4 * kept  # a panel has 16 keys or more
    assert alone.cost.pairs <= all_keys.cost.pairs * 1.2


@pytest.mark.usefixtures("built")
def test_gradients_move_more_bytes():
    learning = plan_of("causal", 64, requires_grad=True)
    assert learning.cost.bytes > 2 * plan_of("causal", 64).cost.bytes
