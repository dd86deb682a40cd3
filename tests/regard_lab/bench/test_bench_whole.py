"""Whole layers and models in a contest: the same outputs, or a record that says why not."""

import pytest
import torch

from regard_lab.bench.running import hold, relative_error
from regard_lab.bench.whole import WHOLE_CASES, Side, WholeContest
from regard_lab.bench.work import Case

ONES = torch.ones(3, 5)


def side(name, output, **options):
    return Side(name, lambda: lambda: output, **options)


def held(*sides):
    contest = WholeContest("label", "work", sides, 0.01)
    case = Case("case", "Case", (contest,), (contest,))
    return hold(case, contest, quick=True, tell=lambda line: None)


def test_sides_with_equal_outputs_are_timed_and_others_are_wrong():
    record = held(
        side("regard", ONES),
        side("equal", ONES + 0.005),
        side("other", ONES + 0.02),
        side("shorter", ONES[1:]),
        side("own", ONES + 7, note="weights of its own"),
    )
    assert record["ours"] == "regard"
    statuses = {name: contender["status"] for name, contender in record["contenders"].items()}
    assert statuses == {
        "regard": "measured",
        "equal": "measured",
        "other": "wrong",
        "shorter": "wrong",
        "own": "measured",
    }
    assert record["contenders"]["equal"]["cpu"]["median"] >= 0
    assert "cpu" not in record["contenders"]["other"]
    assert record["contenders"]["own"]["notes"] == ["weights of its own"]


def test_a_missing_package_is_named_and_a_failure_has_its_reason():
    def fails():
        raise ValueError("no such model")

    record = held(
        side("regard", ONES), side("absent", ONES, package="no_such_package"), Side("fails", fails)
    )
    assert (
        record["contenders"]["absent"]["reason"] == "the package no_such_package is not installed"
    )
    assert record["contenders"]["fails"]["reason"] == "ValueError: no such model"


def test_an_error_is_relative_to_the_largest_number_and_nan_is_no_small_error():
    assert relative_error(torch.tensor([3.0, 8.0]), torch.tensor([4.0, 8.0])) == 0.125
    assert relative_error(torch.tensor([torch.nan]), ONES[0, :1]) == torch.inf


def test_labels_tell_the_whole_contests_of_a_case_apart():
    for case in WHOLE_CASES.values():
        labels = [contest.label for contest in case.contests]
        assert len(set(labels)) == len(labels)
        assert set(case.quick) <= set(case.contests)


@pytest.mark.parametrize("name", ["layer-step", "training", "translating"])
def test_what_needs_no_other_package_is_computed(name):
    (contest,) = WHOLE_CASES[name].quick
    outputs = [contender.prepare()() for contender in contest.sides if not contender.package]
    assert all(output.isfinite().all() for output in outputs)
    if name == "layer-step":
        assert relative_error(*outputs) < contest.largest_error
