"""A training without a number of steps: planned from the time used, or ended by patience and a cooldown after it."""

from dataclasses import replace

import pytest
from toy_training import CONFIG, CrashError, at_step, crash, log_without_times, seals, train_toy

import regard_lab.training.clock as clock_module
from regard_lab.training import StepDone, Validated, read_log
from regard_lab.training.checkpoint import read_training

TIMED = replace(
    CONFIG,
    steps=None,
    minutes=10.0,
    schedule="constant",
    cooldown=0.5,
    validate_every=None,
    save_every=None,
    log_every=10,
)


class Machine:
    """A clock that moves with the events of a training: so many seconds for each step and validation."""

    def __init__(self, monkeypatch, step: float, validation: float = 0.0):
        self.now = 1000.0
        self.step = step
        self.validation = validation
        monkeypatch.setattr(clock_module, "monotonic", lambda: self.now)

    def __call__(self, event):
        if isinstance(event, StepDone):
            self.now += self.step
        if isinstance(event, Validated):
            self.now += self.validation


def rates(run):
    lines = of_kind("training", run)
    return {line["step"]: line["learning_rate"] for line in lines}


def of_kind(kind, run):
    """The lines of a kind in the log of a run."""
    return [line for line in read_log(run / "log.jsonl") if line["kind"] == kind]


def test_minutes_alone_end_with_the_last_validation_and_a_rate_near_zero(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, step=2.0, validation=15.0)
    result = train_toy(tmp_path, TIMED, progress=machine)
    assert result.stopped == "minutes"
    assert 580 <= result.wall_seconds <= 602
    assert 200 <= result.steps <= 240  # 600 seconds, less ten or eleven validations, by two seconds
    rate_of_step = rates(tmp_path)
    assert max(rate_of_step.values()) == CONFIG.learning_rate
    assert rate_of_step[max(rate_of_step)] < 0.25 * CONFIG.learning_rate
    validations = of_kind("validation", tmp_path)
    assert 9 <= len(validations) <= 13
    assert validations[-1]["step"] == result.steps


def test_the_cooldown_is_reached_on_a_machine_that_becomes_slower(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, step=1.0)

    def slower(event):
        machine.step = 4.0 if machine.now > 1250 else 1.0
        machine(event)

    result = train_toy(tmp_path, TIMED, progress=slower)
    assert 590 <= result.wall_seconds <= 604
    rate_of_step = rates(tmp_path)
    assert rate_of_step[max(rate_of_step)] < 0.25 * CONFIG.learning_rate


def test_a_crash_changes_no_bit_where_each_step_takes_as_long_as_before(tmp_path, monkeypatch):
    """The plan is in the checkpoint. The lost steps are done again within the same time, here on a clock of our own."""
    machine = Machine(monkeypatch, step=20.0)
    train_toy(tmp_path / "whole", TIMED, progress=machine)
    slow = Machine(monkeypatch, step=20.0)
    stop = at_step(17, crash)
    with pytest.raises(CrashError):
        train_toy(tmp_path / "resumed", TIMED, progress=lambda event: (slow(event), stop(event)))
    train_toy(tmp_path / "resumed", TIMED, progress=slow, resume=True)
    assert seals(tmp_path / "whole") == seals(tmp_path / "resumed")
    assert log_without_times(tmp_path / "whole") == log_without_times(tmp_path / "resumed")


def test_more_minutes_continue_a_run_that_ended(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, step=10.0)
    first = train_toy(tmp_path, TIMED, progress=machine)
    again = train_toy(tmp_path, TIMED, progress=machine, resume=True)
    assert (again.steps, again.stopped) == (first.steps, "minutes")
    more = replace(TIMED, minutes=15.0)
    longer = train_toy(tmp_path, more, progress=machine, resume=True)
    assert longer.steps > 1.3 * first.steps


def test_after_patience_comes_the_cooldown_and_then_the_end(tmp_path):
    patient = replace(
        TIMED,
        minutes=None,
        patience=2,
        validate_every=5,
        learning_rate=0.3,
        cooldown=0.5,
        log_every=1,
    )
    result = train_toy(tmp_path, patient)
    assert result.stopped == "patience"
    state = read_training(tmp_path / f"step-{result.steps:06d}")["state"]
    assert result.steps == state["last_step"] == 2 * state["cooling_from"]
    rate_of_step = rates(tmp_path)
    assert rate_of_step[state["cooling_from"]] == 0.3
    assert rate_of_step[result.steps] == 0.0
