"""Random calls of everything equal formulas in float64: some here, 20,000 in `make test-long`."""

import functools

import pytest

from . import judging
from .__main__ import main
from .cases import draw_case, name_of
from .meanings import LEAVES
from .mechanisms import KINDS, MechanismCase, draw_mechanism, judge_mechanism
from .running import Tally, case_of, run

CASES = 150
PARTS = 6
CASES_OF_LONG_TEST = 20_000


def judged(seeds: range) -> Tally:
    tally = Tally()
    for _ in run(seeds, tally):
        pass
    print(f"\n{tally}")
    assert not tally.off, "\n".join(map(str, tally.off))
    return tally


@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls_equal_the_formulas_on_every_backend_that_takes_them(part):
    tally = judged(range(part * CASES // PARTS, (part + 1) * CASES // PARTS))
    for backend in ("auto", "reference", "streamed", "fused", "decode"):
        assert tally.counts[backend, "right"] > 2, f"{backend} computes hardly anything"


@functools.cache
def drawn() -> list[MechanismCase]:
    return [draw_mechanism(seed) for seed in range(1200)]


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS))
def test_calls_of_a_mechanism_equal_its_formula(kind):
    """Values, gradients, second derivatives and continued states of the first calls of this kind."""
    cases = [case for case in drawn() if case.kind == kind][:8]
    count = 0
    for case in cases:
        for verdict in judge_mechanism(case):
            count += 1
            assert verdict.outcome != "off", (str(case), verdict)
    assert count > 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_twenty_thousand_random_calls_equal_the_formulas(part):
    size = CASES_OF_LONG_TEST // 20
    judged(range(part * size, (part + 1) * size))


def test_every_pattern_bias_statistic_and_option_occurs_in_the_first_seeds():
    drawn = [draw_case(seed) for seed in range(CASES)]
    leaves = set()
    statistics = set()
    for case in drawn:
        leaves |= case.pattern.leaves()
        statistics |= set(map(name_of, case.want))
    assert leaves == set(LEAVES)
    of_rows = {"log_sum_exp", "entropy", "received", "distance", "sink"}
    assert statistics == of_rows | {"weights", "top_keys", "weights_of"}
    assert {case.bias.kind for case in drawn if case.bias} == {"tensor", "alibi", "slopes", "t5"}
    options = "dtype layouts hidden blocks softcap scale grad_layout spelled second sink stored"
    for name in options.split():
        assert len({getattr(case, name) for case in drawn}) > 1, name


def test_a_seed_is_one_case_however_often_it_is_asked_for():
    assert [str(case_of(seed)) for seed in range(40)] == [str(case_of(seed)) for seed in range(40)]
    assert judging.judge(draw_case(12)) == judging.judge(draw_case(12))


def test_the_command_counts_by_backend_and_says_where_to_go_on(capsys):
    assert main(["--cases", "6", "--from", "30"]) == 0
    printed = capsys.readouterr().out
    assert "6 cases, 0 off" in printed
    assert "next: --from 36" in printed
    assert "reference" in printed
