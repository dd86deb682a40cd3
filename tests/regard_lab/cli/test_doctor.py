"""`regard doctor` shows every backend, and fails if one is wrong."""

import json
from dataclasses import replace

from test_commands import regard

from regard.backends import BACKENDS
from regard.backends.native.library import load
from regard.core.backend import Refusal


class Negative:
    """The reference with its sign turned, where no gradient is asked."""

    name = "negative"

    def assess(self, problem):
        offer = BACKENDS["reference"].assess(problem)
        if problem.needs_grad:
            return Refusal("it sends no gradients")
        return replace(offer, run=lambda operands: (found := offer.run(operands))._replace(output=-found.output))


def test_doctor_shows_versions_backends_and_packages():
    answer = regard("doctor")
    assert answer.returncode == 0, answer.stderr
    text = answer.stdout.decode()
    for name in BACKENDS:
        assert f"  {name} on cpu: " in text
    for word in ("torch", "Python", "thread", "numpy"):
        assert word in text


def test_doctor_answers_with_json():
    record = json.loads(regard("doctor", "--json").stdout)
    found = {backend["backend"]: backend["status"] for backend in record["backends"] if backend["device"] == "cpu"}
    assert found.keys() == BACKENDS.keys()
    assert set(found.values()) <= {"ok", "refused"}
    assert found["reference"] == "ok"
    assert all(found[name] == "ok" for name in ("linear", "linformer", "lsh"))
    assert {name for name, status in found.items() if status == "refused"} == {
        "flex",
        *(["native"] if isinstance(load(), str) else []),
    }


def test_doctor_fails_where_a_backend_is_wrong(monkeypatch):
    monkeypatch.setitem(BACKENDS, "negative", Negative())
    for option in ([], ["--json"]):
        answer = regard("doctor", *option)
        assert answer.returncode == 1
        assert "wrong answers from negative" in answer.stderr.decode().splitlines()[-1]
