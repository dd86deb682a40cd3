"""The table of cases is sound: labels tell contests apart, and promises name contenders that are there."""

import pytest

from regard_lab.bench import peers
from regard_lab.bench.cases import CASES, CUDA_CASES, cases_on, contests_of
from regard_lab.bench.work import Contender

PEERS = [peer for peer in vars(peers).values() if isinstance(peer, Contender)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [True, False])
def test_labels_tell_the_contests_of_a_case_apart(quick, device):
    for name, case in cases_on(device).items():
        labels = [contest.label for contest in contests_of(case, quick=quick)]
        assert labels, name
        assert len(labels) == len(set(labels)), name


def test_names_in_a_contest_are_those_of_its_contenders():
    cases = (*CASES.values(), *CUDA_CASES.values())
    contests = {}
    for case in cases:
        contests |= dict.fromkeys((*case.contests, *case.quick))
    for contest in contests:
        names = [contender.name for contender in contest.contenders]
        assert len(names) == len(set(names)), contest
        assert contest.contenders[0].plan is not None, f"the first is regard: {contest}"
        for promise in contest.promises:
            assert {promise.ours, promise.other} <= set(names), contest
        for contender in contest.contenders:
            assert contender.plan is not None or contender in PEERS, contest


def test_every_case_of_a_device_is_computed_there():
    for device in ("cpu", "cuda"):
        devices = set()
        for case in cases_on(device).values():
            for contest in case.contests:
                devices.add(getattr(contest, "device", None) or contest.work.device)
        assert devices == {device}
