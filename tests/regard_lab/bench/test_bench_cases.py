"""The table of cases is sound: labels tell contests apart, and promises name contenders that are there."""

import pytest

from regard.errors import ArgumentError, RegardError
from regard_lab.bench.cases import CASES, CUDA_CASES, cases_on, contests_of, find_contest
from regard_lab.bench.measuring import call_apart
from regard_lab.bench.peers import PEERS
from regard_lab.bench.running import memory_of


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [True, False])
def test_labels_tell_the_contests_of_a_case_apart(quick, device):
    for name, case in cases_on(device).items():
        labels = [contest.label for contest in contests_of(case, quick=quick)]
        assert labels, name
        assert len(labels) == len(set(labels)), name


def test_names_in_a_contest_are_those_of_its_contenders():
    cases = (*CASES.values(), *CUDA_CASES.values())
    for contest in dict.fromkeys(one for case in cases for one in (*case.contests, *case.quick)):
        names = [one.name for one in contest.contenders]
        assert len(names) == len(set(names)), contest
        assert contest.contenders[0].plan is not None, f"the first is regard: {contest}"
        assert {promise.ours for promise in contest.promises} <= set(names), contest
        assert {promise.other for promise in contest.promises} <= {"", *names}, contest
        assert set(contest.memory) <= set(names), contest
        assert all(one.plan is not None or PEERS[one.name] == one for one in contest.contenders), contest


def test_every_case_of_a_device_is_computed_there():
    for device in ("cpu", "cuda"):
        works = [contest.work for case in cases_on(device).values() for contest in case.contests]
        assert {work.device for work in works} == {device}


def test_a_contest_is_found_by_its_names():
    contest = find_contest("overhead", "16 queries, 4 heads", quick=True, device="cuda")
    assert contest.work.device == "cuda"
    with pytest.raises(ArgumentError, match="has no contest 'x'"):
        find_contest("overhead", "x", quick=True, device="cpu")
    with pytest.raises(ArgumentError, match="no case is called 'x'"):
        find_contest("x", "x", quick=True, device="cpu")


def test_memory_of_another_process_is_more_than_the_output_and_less_than_a_matrix():
    contest = find_contest("memory", "n=16384", quick=True, device="cpu")
    asked = {"case": "memory", "label": "n=16384", "contender": "regard"}
    used = call_apart(memory_of, "regard", **asked, quick=True, device="cpu")
    output = contest.work.tensor_bytes // 4
    assert output < used < 16384 * 16384


def test_the_memory_of_an_unknown_contest_is_refused():
    with pytest.raises(RegardError, match="has no contest 'nothing'"):
        memory_of("memory", "nothing", "regard", quick=True, device="cpu")
