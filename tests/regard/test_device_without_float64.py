"""On the GPU of a Mac there is no float64: public calls compute there what they compute on the CPU, or refuse by a
sentence. No such GPU is here, so a device stands in for it that refuses what the real one refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAM = HERE / "calls_without_float64.py"
# Calls that are refused there, with a word of the sentence.
REFUSALS: dict[str, str] = {"cache with forget gates": "which lazy does not have; use device 'cpu'"}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    paths = os.pathsep.join(map(str, (HERE, HERE.parent)))
    # The kernel would read memory of the CPU.
    environment = {**os.environ, "PYTHONPATH": paths, "REGARD_NATIVE": "off"}
    command = [sys.executable, "-W", "ignore", str(PROGRAM)]
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_calls_layers_caches_and_mechanisms_need_no_float64_on_the_device(verdicts):
    assert len(verdicts) > 70
    assert "mechanism softmax" in verdicts
    failed = {name: reason for name, reason in verdicts.items() if reason}
    assert failed.keys() == REFUSALS.keys(), failed
    for name, sentence in REFUSALS.items():
        assert sentence in failed[name]


def test_the_stand_in_notices_float64(verdicts):
    assert verdicts["negative control"] == ""
