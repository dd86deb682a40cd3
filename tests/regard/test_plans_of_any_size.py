"""Plans from sizes alone: long calls are planned quickly, and sizes that cannot be are refused with the way out."""

import json
import time
from dataclasses import replace

import pytest
import torch

from regard.backends import BACKENDS
from regard.core.backend import Offer, short
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.problem import MOST_DIVIDED, MOST_PLANNED
from regard.core.tensors import Outline
from regard.errors import ArgumentError, UnsupportedError
from regard.patterns import Where, parse
from regard.patterns.counts import counted

# CPU seconds in which each plan is made on any machine; here it takes a tenth of a second.
GUARD = 60


def outlined(size, pattern, device="cpu", grad=True, **options):
    shape = Outline((1, 8, size, 64), torch.float32, torch.device(device), grad)
    return make_problem(shape, shape, shape, pattern=pattern, **options)


@pytest.mark.parametrize(
    "text", ["full", "causal", "sliding_window(256)", "causal_window(128)", "key_span(5, 100000)"]
)
def test_bands_are_planned_up_to_a_billion_positions(text):
    began = time.process_time()
    for device in ("cpu", "cuda"):
        problem = outlined(MOST_PLANNED, text, device, want=("entropy",))
        plan = make_plan(problem, BACKENDS, "reference")
        record = json.loads(plan.to_json())
        assert {"reference", *record["others"]} == set(BACKENDS)
        assert f"{MOST_PLANNED} queries" in str(plan)
        assert problem.kept_pairs == 8 * parse(text).count(MOST_PLANNED, MOST_PLANNED)
    assert time.process_time() - began < GUARD


def test_what_is_too_long_to_plan_is_refused_with_the_way_out():
    with pytest.raises(
        ArgumentError,
        match="is for at most 1000000000 positions: plan a shorter call, and multiply",
    ):
        outlined(MOST_PLANNED + 1, "causal")
    with pytest.raises(
        ArgumentError, match=r"no band and is divided .*; plan at most 1048576 queries"
    ):
        outlined(MOST_DIVIDED + 1, "causal | prefix(2)")
    with pytest.raises(ArgumentError, match="count fewer queries at a time"):
        parse("random_blocks(3, block=1000000000) | causal_window(3)").count(10**18, 10**18)
    with pytest.raises(ArgumentError, match="pair by pair"):
        Where(lambda q_pos, k_pos: q_pos == k_pos).count(10**12, 10**12)
    with pytest.raises(ArgumentError, match="it draws 1024 at most"):
        parse("random_blocks(100000)").count(10**8, 10**8)


@pytest.mark.parametrize(
    "text", ["causal", "sliding_window(256)", "causal_window(128) & key_span(9, 5000)"]
)
def test_the_cost_of_a_long_band_is_near_that_of_its_blocks(monkeypatch, text):
    problem = outlined(6000, text)
    monkeypatch.setattr("regard.backends.schedule.MOST_DIVIDED", 0)
    for name in ("native", "fused", "streamed"):
        true = BACKENDS[name].assess(replace(problem, outlined=False))
        about = BACKENDS[name].assess(problem)
        assert isinstance(true, Offer) == isinstance(about, Offer)
        if isinstance(true, Offer) and isinstance(about, Offer):
            assert not true.cost.estimated
            assert 0.6 <= about.cost.work_on("cpu") / true.cost.work_on("cpu") <= 1.7


@pytest.mark.parametrize(
    "text", ["causal & strided(1000003)", "strided(64, local=false)", "~lattice(64)", "lattice(6)"]
)
def test_a_count_on_lattices_is_exact_at_any_size(text):
    size = 10**18
    share_allowed = {
        "causal & strided(1000003)": 1 / 2 / 1_000_003,
        "strided(64, local=false)": 1 / 64,
        "~lattice(64)": 63 / 64,
        "lattice(6)": 1 / 6,
    }
    pairs = counted(parse(text).canonical(), size, size, 0, looks=300)
    assert pairs == pytest.approx(size**2 * share_allowed[text], rel=1e-5)
    if text == "lattice(6)":  # rows of each residue times its keys, which are as many
        sizes = [-(-(size - residue) // 6) for residue in range(6)]
        assert pairs == sum(rows**2 for rows in sizes)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("causal & fixed(7, summary=2)", 300),
        ("~strided(5) & causal", 300),
        ("strided(7)", 501),
        ("lattice(6) & same_block(24) & key_span(3, 99)", 300),
        ("lattice(5) & key_set(3..9, 77) & ~query_set(4..8)", 301),
    ],
)
@pytest.mark.parametrize("q_start", [0, 3, -20])
def test_counts_are_those_of_the_dense_mask(text, size, q_start):
    pattern = parse(text)
    dense = pattern.dense(size, size + 13, q_start=q_start)
    assert pattern.count(size, size + 13, q_start=q_start) == int(dense.sum())


def test_a_plan_from_sizes_computes_what_a_plan_of_tensors_does(monkeypatch):
    q = torch.randn(1, 2, 700, 8)
    monkeypatch.setattr("regard.backends.schedule.MOST_DIVIDED", 0)
    shape = Outline(tuple(q.shape), torch.float32, torch.device("cpu"))
    problem = make_problem(shape, shape, shape, pattern="sliding_window(16)")
    expected = make_plan(replace(problem, outlined=False), BACKENDS, "reference").run(q, q, q)
    plan = make_plan(problem, BACKENDS, "fused")
    assert json.loads(plan.to_json())["cost"]["estimated"]
    assert "about: an estimate" in str(plan)
    torch.testing.assert_close(plan.run(q, q, q), expected)


def problem(length, **options):
    x = torch.empty(1, 8, length, 64, device="meta")  # planning reads no values
    return make_problem(x, x, x, **options)


def test_memory_is_never_quadratic_unasked():
    dense = {name: BACKENDS[name] for name in ("fused", "reference")}
    with pytest.raises(
        UnsupportedError,
        match=r"would hold 103 GB at once .*dropout_seed.*name backend='reference'",
    ):
        make_plan(problem(32_768, dropout=0.1), dense)
    assert make_plan(problem(32_768, dropout=0.1), dense, "reference").backend == "reference"
    assert make_plan(problem(512, dropout=0.1), dense).backend == "reference"


@pytest.mark.parametrize(
    "options", [{"dropout": 0.1}, {"softcap": 2.0}, {"pattern": "causal & strided(512)"}]
)
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
    too_large = problem(65_536, pattern="causal_window(256)", want=("weights",))
    with pytest.raises(UnsupportedError) as refused:
        make_plan(too_large, BACKENDS)
    message = str(refused.value)
    assert "only backend" not in message

    held_bytes = {}
    for name, backend in BACKENDS.items():
        offer = backend.assess(too_large.projected)
        if isinstance(offer, Offer):
            held_bytes[name] = offer.cost.peak_bytes
    assert len(held_bytes) > 1
    least = short(min(held_bytes.values()))
    assert f"every backend that computes this would hold at least {least}B" in message
    for name in held_bytes:
        assert f"{name}: " in message
