"""A run that is killed with SIGKILL at any instant ends in the bits of one that was not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def kill_trainers(folder: Path, kills: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_trainers.py")), str(folder), str(kills), "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_harmless(found: dict[str, int], kills: int) -> None:
    assert found["kills"] >= kills
    assert found["runs"] >= 1
    assert found["identical"] == found["runs"]
    assert found["unreadable"] == 0


def test_kills_at_random_instants_change_no_bit(tmp_path):
    assert_harmless(kill_trainers(tmp_path, 6), 6)


@pytest.mark.slow
def test_150_kills_at_random_instants_change_no_bit_and_some_fall_into_saves(tmp_path):
    found = kill_trainers(tmp_path, 150)
    print(found)
    assert_harmless(found, 150)
    assert found["kills_while_saving"] >= 10
