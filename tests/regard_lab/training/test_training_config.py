"""Settings are checked when they are made; the learning rate rises to its peak and falls as it is told."""

import json

import pytest

from regard.errors import ArgumentError
from regard_lab.training import TrainingConfig
from regard_lab.training.config import learning_rate_at


def test_settings_come_back_from_json_and_an_unknown_one_is_refused_by_name():
    config = TrainingConfig(
        steps=7, minutes=1.5, betas=(0.8, 0.9), patience=3, schedule="cosine", precision="bfloat16"
    )
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ArgumentError, match="no training setting speed"):
        TrainingConfig.from_dict({"steps": 3, "speed": 9})


OUTSIDE = {
    "steps batches_per_step accumulate validate_every save_every log_every patience keep": (
        0,
        -1,
        1.5,
        True,
        "3",
        2**63,
    ),
    "warmup_steps seed": (-1, 0.5),
    "learning_rate epsilon minutes gradient_clip": (0, -1.0, float("nan"), float("inf"), "1", True),
    "weight_decay": (-0.1, float("nan"), None),
    "cooldown": (-0.1, 1.1, "all", True),
    "betas": ((0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, float("nan")), 0.9),
    "schedule precision": ("noam", 16),
}


@pytest.mark.parametrize("names", OUTSIDE)
def test_a_value_outside_its_range_is_refused_by_name(names):
    for name in names.split():
        for value in OUTSIDE[names]:
            with pytest.raises(ArgumentError, match=f"{name} is"):
                TrainingConfig(**{name: value})


def test_settings_that_never_end_are_refused():
    with pytest.raises(
        ArgumentError, match="nothing ends this training; give steps, minutes, or patience"
    ):
        TrainingConfig(steps=None)
    with pytest.raises(
        ArgumentError, match="the cosine falls to the last step, which patience does not name"
    ):
        TrainingConfig(steps=None, patience=3, schedule="cosine")


SCHEDULES = ("inverse_square_root", "cosine", "constant")


def rates(steps=100, **settings):
    config = TrainingConfig(steps=steps, **settings)
    return [learning_rate_at(config, step) for step in range(1, steps + 1)]


def test_the_default_is_the_formula_of_the_transformer_paper():
    dim = 512
    warmup = 40
    config = TrainingConfig(steps=200, learning_rate=dim**-0.5 * warmup**-0.5, warmup_steps=warmup)
    for step in range(1, 201):
        paper = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate_at(config, step) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_peak_is_reached_at_the_end_of_the_warm_up_and_never_passed(schedule):
    rates_found = rates(learning_rate=0.5, warmup_steps=10, schedule=schedule)
    assert rates_found[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert max(rates_found) == rates_found[9] == 0.5
    assert rates(steps=4, learning_rate=1.0, warmup_steps=8, schedule=schedule) == [
        0.125,
        0.25,
        0.375,
        0.5,
    ]
    assert 0.9 < rates(learning_rate=1.0, warmup_steps=0, schedule=schedule)[0] <= 1.0
    with pytest.raises(ArgumentError, match="counted from 1"):
        learning_rate_at(TrainingConfig(schedule=schedule), 0)


def test_the_cosine_is_at_half_its_peak_half_way_and_at_zero_at_the_end():
    rates_found = rates(learning_rate=1.0, warmup_steps=10, steps=110, schedule="cosine")
    assert rates_found[59] == pytest.approx(0.5)
    assert rates_found[109] == 0.0
    config = TrainingConfig(steps=110, warmup_steps=10, schedule="cosine")
    assert learning_rate_at(config, 300) == 0.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cooldown_is_a_line_to_zero_over_the_last_steps(schedule):
    plain, cooled = (
        rates(steps=100, warmup_steps=5, schedule=schedule, cooldown=cooldown)
        for cooldown in (0.0, 0.4)
    )
    assert cooled[:60] == plain[:60]
    expected = [rate * (100 - step) / 40 for step, rate in enumerate(plain[60:], 61)]
    assert cooled[60:] == pytest.approx(expected)
    assert cooled[-1] == 0.0
