"""Settings are checked when they are made, and come back from JSON."""

import dataclasses
import json

import pytest

from regard.errors import ArgumentError
from regard_lab.training import TrainingConfig


def test_settings_come_back_from_json():
    config = TrainingConfig(steps=7, minutes=1.5, betas=(0.8, 0.9), patience=3, schedule="cosine", precision="bfloat16")
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_every_setting_is_stored():
    assert list(TrainingConfig().to_dict()) == [field.name for field in dataclasses.fields(TrainingConfig)]


def test_what_is_not_chosen_changes_nothing():
    config = TrainingConfig()
    assert (config.weight_decay, config.accumulate) == (0, 1)


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(ArgumentError, match="no training setting speed"):
        TrainingConfig.from_dict({"steps": 3, "speed": 9})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in ("steps", "accumulate", "validate_every", "save_every", "log_every", "patience")
            for value in (0, -1, 1.0, True, "3")
        ],
        *[(name, value) for name in ("warmup_steps", "seed") for value in (-1, 0.5)],
        *[
            (name, value)
            for name in ("learning_rate", "epsilon", "minutes", "gradient_clip")
            for value in (0, -1.0, float("nan"), float("inf"), "1", True)
        ],
        *[("weight_decay", value) for value in (-0.1, float("nan"), None)],
        *[("betas", value) for value in ((0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, float("nan")), 0.9)],
        ("schedule", "noam"),
        ("precision", "float16"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name, value):
    with pytest.raises(ArgumentError, match=f"{name} is"):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize("name", ["minutes", "gradient_clip", "patience"])
def test_what_may_be_off_is_off_by_none(name):
    assert getattr(TrainingConfig(**{name: None}), name) is None
