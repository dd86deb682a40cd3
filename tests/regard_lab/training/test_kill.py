"""A run that is killed with SIGKILL at any instant ends in the bits of one that was not."""

import pytest
from kill_trainers import kill_trainers


def assert_harmless(found: dict[str, int], kills: int) -> None:
    assert found["kills"] >= kills
    assert found["runs"] >= 1
    assert found["identical"] == found["runs"]
    assert found["unreadable"] == 0


def test_kills_at_random_instants_change_no_bit(tmp_path):
    assert_harmless(kill_trainers(tmp_path, 4, 0), 4)


@pytest.mark.slow
def test_150_kills_at_random_instants_change_no_bit_and_some_fall_into_saves(tmp_path):
    found = kill_trainers(tmp_path, 150, 0)
    print(found)
    assert_harmless(found, 150)
    assert found["kills_while_saving"] >= 10
