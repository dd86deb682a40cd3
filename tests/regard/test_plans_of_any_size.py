"""A plan costs what its text is long: any size up to 10^18 is answered, and an estimate says that it is one."""

import json
import time
from dataclasses import replace

import pytest
import torch

from regard.backends import BACKENDS
from regard.core import problem as problems
from regard.core.backend import Offer
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.tensors import Outline
from regard.errors import ArgumentError, RegardError
from regard.mechanisms import LSH, LinearTransformer, Linformer
from regard.patterns import Causal, Where, parse, survey
from regard.patterns.counts import counted

GUARD = 60  # CPU seconds in which each answers on any machine; here it takes a tenth of a second

PATTERNS = [
    "full",
    "causal",
    "sliding_window(256)",
    "causal_window(128)",
    "sliding_window(256) | global_tokens(0)",
    "causal & fixed(64)",
    "causal & strided(64)",
    "strided(1001)",
    "random_blocks(3, block=BLOCK)",
    "causal & (sliding_window(64) | random_blocks(3, block=BLOCK, past=true))",
    "dilated_window(9, 5) | prefix(100)",
    "prefix(100)",
    "key_span(5, 100000)",
    "diagonals(7, all)",
    "same_block(64) | key_span(100, 1000)",
    "query_set(5..7000) | key_set(1, 8..1000)",
    "per_head(causal, full, causal_window(3), fixed(64), strided(7), query_set(5), same_block(9), lattice(3) & causal)",
    "~strided(64)",
    "summary(77, 3) & causal",
    "lattice(6)",
]


def outlined(size, pattern, device="cpu", grad=True, **options):
    shape = Outline((1, 8, size, 64), torch.float32, torch.device(device), grad)
    return make_problem(shape, shape, shape, pattern=pattern, **options)


@pytest.fixture
def few_looks(monkeypatch):
    monkeypatch.setattr(problems, "LOOKS", 64)
    monkeypatch.setattr(survey, "SAMPLE", 32)


@pytest.mark.parametrize("text", PATTERNS)
def test_every_backend_answers_about_every_kind_of_pattern(few_looks, text):
    pattern, size = text.replace("BLOCK", str(10**9)), 10**18
    began = time.process_time()
    for device in ("cpu", "cuda"):
        problem = outlined(size, pattern, device, want=("entropy",))
        plan = make_plan(problem, BACKENDS, "reference")
        record = json.loads(plan.to_json())
        assert {"reference", *record["others"]} == set(BACKENDS)
        assert f"{size} queries" in str(plan)
    assert time.process_time() - began < GUARD


@pytest.mark.parametrize("text", PATTERNS)
def test_an_estimate_is_near_the_exact_cost(monkeypatch, text):
    problem = outlined(6000, text.replace("BLOCK", "64"))
    exact = replace(problem, outlined=False)
    monkeypatch.setattr(problems, "LOOKS", 0)
    for name in ("native", "fused", "tiled", "streamed"):
        true, about = BACKENDS[name].assess(exact), BACKENDS[name].assess(problem)
        assert isinstance(true, Offer) == isinstance(about, Offer)
        if isinstance(true, Offer) and isinstance(about, Offer):
            assert not true.cost.estimated
            assert 0.75 <= about.cost.pairs / true.cost.pairs <= 1.33
    if (kept := problem.kept) is not None:
        assert kept.pairs == pytest.approx(exact.kept_pairs, rel=0.03)


@pytest.mark.parametrize(
    "text", ["causal & strided(1000003)", "strided(64, local=false)", "~lattice(64)", "lattice(6)"]
)
def test_a_count_on_lattices_is_exact_at_any_size(text):
    pattern, size = parse(text), 10**18
    stride = {"causal & strided(1000003)": 1000003, "lattice(6)": 6}.get(text, 64)
    found = counted(pattern.canonical(), size, size, 0, looks=300)
    assert found.exact
    if text == "lattice(6)":  # rows of each residue times the keys of it
        sizes = [-(-(size - residue) // 6) for residue in range(6)]
        assert found.pairs == sum(one * one for one in sizes)
    assert found.pairs == pytest.approx(
        {"~lattice(64)": size**2 * 63 / 64, "causal & strided(1000003)": size**2 / 2 / stride}.get(
            text, size**2 / stride
        ),
        rel=1e-5,
    )


@pytest.mark.parametrize(("text", "size"), [("causal & fixed(7, summary=2)", 300), ("~strided(5) & causal", 300),
                                            ("strided(7)", 501), ("lattice(6) & same_block(24) & key_span(3, 99)", 300),
                                            ("lattice(5) & key_set(3..9, 77) & ~query_set(4..8)", 301)])  # fmt: skip
@pytest.mark.parametrize("q_start", [0, 3, -20])
def test_counts_are_those_of_the_dense_mask(text, size, q_start):
    pattern = parse(text)
    dense = pattern.dense(size, size + 13, q_start=q_start)
    assert pattern.count(size, size + 13, q_start=q_start) == int(dense.sum())


def test_a_count_that_cannot_be_exact_is_refused_in_words():
    with pytest.raises(ArgumentError, match="count fewer queries at a time"):
        (parse("random_blocks(3, block=1000000000) | causal_window(3)")).count(10**18, 10**18)
    with pytest.raises(ArgumentError, match="pair by pair"):
        Where(lambda q_pos, k_pos: q_pos == k_pos).count(10**12, 10**12)


def test_blocks_that_cannot_be_drawn_among_are_refused_in_words():
    with pytest.raises(ArgumentError, match="draws among 2147483648 at most"):
        make_plan(outlined(10**12, "random_blocks(3)"), BACKENDS)
    with pytest.raises(ArgumentError, match="it draws 1024 at most"):
        parse("random_blocks(100000)").count(10**8, 10**8)


@pytest.mark.parametrize("mechanism", [LSH(), LinearTransformer(), Linformer(length=10**18, rank=8)])
def test_mechanisms_answer_at_any_size(mechanism):
    problem = replace(outlined(10**18, Causal()), mechanism=mechanism)
    for backend in BACKENDS.values():
        assert backend.assess(problem) is not None


def test_an_estimate_says_so_and_an_exact_plan_does_not():
    pattern = "sliding_window(256) | random_blocks(3, block=256)"
    plan = make_plan(outlined(10**7, pattern, grad=False), BACKENDS)
    record = json.loads(plan.to_json())
    assert record["cost"]["estimated"] is True
    assert record["pairs_kept_estimated"] is True
    assert "an estimate from a sample of the row blocks" in str(plan)
    small = make_plan(outlined(4096, pattern, grad=False), BACKENDS)
    assert json.loads(small.to_json())["cost"]["estimated"] is False
    assert "about" not in str(small)


def test_a_call_that_will_be_run_is_never_estimated(monkeypatch):
    monkeypatch.setattr(problems, "LOOKS", 0)
    q = torch.zeros(1, 1, 3000, 8)
    problem = make_problem(q, q, q, pattern="sliding_window(64) | global_tokens(0)")
    for backend in BACKENDS.values():
        verdict = backend.assess(problem)
        assert not isinstance(verdict, Offer) or not verdict.cost.estimated


def test_what_was_estimated_is_lowered_when_it_is_run(monkeypatch):
    pattern = "sliding_window(16) | global_tokens(0)"
    q = torch.randn(1, 2, 700, 8)
    monkeypatch.setattr(problems, "LOOKS", 0)
    shape = Outline(tuple(q.shape), torch.float32, torch.device("cpu"))
    problem = make_problem(shape, shape, shape, pattern=pattern)
    expected = make_plan(replace(problem, outlined=False), BACKENDS, "reference").run(q, q, q)
    for name in ("fused", "tiled"):
        plan = make_plan(problem, BACKENDS, name)
        assert plan.cost.estimated
        torch.testing.assert_close(plan.run(q, q, q), expected)


def test_strict_counts_are_answered_at_any_size(few_looks):
    for text in ("causal", "sliding_window(256) | global_tokens(0)", "per_head(" + ", ".join(["causal"] * 8) + ")"):
        problem = outlined(10**12, text, strict=True)
        for backend in BACKENDS.values():
            assert backend.assess(problem) is not None
    with pytest.raises(RegardError):
        make_plan(outlined(10**18, "where", strict=True), BACKENDS)
