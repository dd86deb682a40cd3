"""doctor's examination: right backends pass, wrong ones are caught, refusals keep their reason."""

import json
from functools import partial

import pytest

from regard.backends import BACKENDS
from regard.core.backend import Cost, Offer, Refusal
from regard.core.result import Result
from regard.testing.health import PROBES
from regard_lab.bench import health
from regard_lab.bench.health import WORKS, examine
from regard_lab.bench.report import describe_health


class Spoiled:
    """The reference, with something wrong."""

    name = "spoiled"

    def __init__(self, change, refuses_gradients=False):
        self.change, self.refuses_gradients = change, refuses_gradients

    def assess(self, problem):
        if self.refuses_gradients and problem.needs_grad:
            return Refusal("it sends no gradients")
        return Offer(Cost(1, 1, 1, 1), partial(self.run, BACKENDS["reference"].assess(problem)))

    def run(self, offer, operands):
        return Result(self.change(offer.run(operands).output, operands))


def keep_the_reference_alone(monkeypatch):
    for name in BACKENDS.keys() - {"reference"}:
        monkeypatch.delitem(BACKENDS, name)


def examined(monkeypatch, backend):
    """The health of the reference and of one more backend, and what was found of that one."""
    keep_the_reference_alone(monkeypatch)
    monkeypatch.setitem(BACKENDS, "spoiled", backend)
    answer = examine()
    return answer, next(finding for finding in answer.findings if finding.backend == "spoiled")


@pytest.fixture(scope="module")
def sound():
    return examine()


def test_every_backend_here_is_sound(sound):
    assert sound.sound
    assert [finding.backend for finding in sound.findings if finding.device == "cpu"] == list(
        BACKENDS
    )
    reference = next(finding for finding in sound.findings if finding.backend == "reference")
    problems = {probe.name for probe in PROBES}
    assert set(reference.errors) == problems | WORKS.keys() == set(reference.gradients)
    for finding in sound.findings:
        told = finding.errors.keys() | finding.refused.keys()
        assert told - WORKS.keys() in (problems, set())
        assert told


def test_wrong_values_are_caught(monkeypatch):
    answer, spoiled = examined(monkeypatch, Spoiled(lambda output, operands: output * 1.001))
    assert not answer.sound
    assert "the error of output" in spoiled.wrong["full"]
    assert any("WRONG full" in line for line in describe_health(answer))


def test_wrong_gradients_are_caught(monkeypatch):
    change = lambda output, operands: output + 1e-3 * (operands.k.sum() - operands.k.sum().detach())  # noqa: E731
    answer, spoiled = examined(monkeypatch, Spoiled(change))
    assert not answer.sound
    assert "the error of dk" in spoiled.wrong["full"]


def test_an_exception_is_wrong_and_not_fatal(monkeypatch):
    def change(output, operands):
        raise RuntimeError("no such instruction")

    _, spoiled = examined(monkeypatch, Spoiled(change))
    assert spoiled.status == "wrong"
    assert spoiled.wrong["causal"] == "RuntimeError: no such instruction"


def test_a_backend_that_refuses_everything_is_no_mistake(monkeypatch):
    class Refusing:
        name = "refusing"

        def assess(self, problem):
            return Refusal("it is tired")

    answer, spoiled = examined(monkeypatch, Refusing())
    assert answer.sound
    assert spoiled.status == "refused"
    assert spoiled.refused == {probe.name: "it is tired" for probe in PROBES}


def test_json_and_lines_name_what_is_missing(sound, monkeypatch):
    record = json.loads(sound.to_json())
    assert record["sound"] is True
    assert {"torch", "python", "regard", "threads"} <= record["environment"].keys()
    keep_the_reference_alone(monkeypatch)
    monkeypatch.setattr(health, "package_version", lambda name: None)
    lines = describe_health(examine())
    assert any("transformers is missing" in line and "[bench]'" in line for line in lines)
