"""A run that is killed with SIGKILL at any instant ends in the bits of one that was not."""

from kill_trainers import kill_trainers


def assert_harmless(found: dict[str, int], kills: int) -> None:
    assert found["kills"] >= kills
    assert found["runs"] >= 1
    assert found["identical"] == found["runs"]
    assert found["unreadable"] == 0


def test_kills_at_random_instants_change_no_bit(tmp_path):
    assert_harmless(kill_trainers(tmp_path, 4, 0), 4)
