"""Faults that users found, put back one at a time: each makes a test fail by name.

`python tests/test_found_faults.py` plants each of them and runs its test, which has to fail.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


class Fault(NamedTuple):
    """What was wrong, how it is put back, and the test that then fails."""

    plant: Callable[[pytest.MonkeyPatch], None]
    test: str


def keep_half_written_structs(patch: pytest.MonkeyPatch) -> None:
    """A plan keeps its struct after an exception and while a call computes with it."""
    from native.test_native_interrupted import keep_half_written_structs

    keep_half_written_structs(patch)


def look_at_the_output_alone(patch: pytest.MonkeyPatch) -> None:
    """Keys that a bias hides are looked for only if the output is not finite."""
    patch.setattr("regard.core.hidden.without_masked", lambda problem, operands: operands)


FAULTS = {
    "1 a call that stops half way poisons the next": Fault(
        keep_half_written_structs,
        "tests/native/test_native_interrupted.py::test_calls_after_an_interrupted_one_return_the_same_bits[forward]",
    ),
    "2 a call inside a call": Fault(
        keep_half_written_structs,
        "tests/native/test_native_interrupted.py::test_a_call_inside_a_call_changes_neither[forward]",
    ),
    "3 NaN gradients through a key that a bias masks": Fault(
        look_at_the_output_alone,
        "tests/contracts/test_hidden_by_bias.py::test_in_half_types_a_key_hidden_by_a_bias_changes_no_bit",
    ),
}


def outcomes() -> dict[str, str]:
    """How the test of each fault ends without it and with it, such as "passed, failed"."""
    results = {}
    for name, (plant, test) in FAULTS.items():
        ends = []
        for planted in (False, True):
            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
                if planted:
                    plant(patch)
                code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(ROOT / test)])
            ends.append({0: "passed", 1: "failed"}.get(int(code), f"ended with {int(code)}"))
        results[name] = ", ".join(ends)
    return results


def test_a_test_fails_for_every_fault_that_is_put_back():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == dict.fromkeys(FAULTS, "passed, failed")


if __name__ == "__main__":
    print(json.dumps(outcomes()))
