"""Differences between runs are named by where they are; a run's folder states what it is and where it ran."""

import json
import platform
from dataclasses import replace

import pytest
import torch
from toy_training import CONFIG, CrashError, ToyTask, at_step, crash, train_toy

from regard.errors import ArgumentError
from regard_lab.training import TrainingConfig
from regard_lab.training.identity import README_FILE, RUN_FILE, differences, fingerprint


def test_each_difference_is_one_phrase():
    before = {"a": {"b": 1, "c": 2, "d": {"e": 3}}}
    after = {"a": {"b": 9, "c": 2}, "f": 4}
    assert differences(before, after) == [
        "a.b was 1, now 9",
        "a.d was {'e': 3}, now absent",
        "f was absent, now 4",
    ]


@pytest.mark.parametrize("value", [object(), float("nan"), torch.ones(1)])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(ArgumentError, match="JSON"):
        fingerprint(torch.nn.Linear(2, 1), "toy", {}, {}, {"x": value}, TrainingConfig(), 1)


def test_every_file_of_a_run_is_explained_and_an_explanation_of_ones_own_stays(tmp_path):
    train_toy(tmp_path)
    said = (tmp_path / README_FILE).read_text()
    for path in tmp_path.iterdir():
        name = "step-*/" if path.is_dir() else path.name
        assert name == README_FILE or f"\n{name}\n    " in said, name
    (tmp_path / README_FILE).write_text("mine")
    train_toy(tmp_path, resume=True)
    assert (tmp_path / README_FILE).read_text() == "mine"


def test_a_run_tells_its_model_settings_data_and_each_session(tmp_path):
    with pytest.raises(CrashError):
        train_toy(tmp_path, model_config={"dim": 6}, progress=at_step(5, crash))
    longer = replace(CONFIG, minutes=9.0)
    train_toy(tmp_path, longer, model_config={"dim": 6}, resume=True)
    told = json.loads((tmp_path / RUN_FILE).read_text())
    assert (told["kind"], told["model"], told["training"]) == ("toy", {"dim": 6}, longer.to_dict())
    assert told["data"] == ToyTask().fingerprint()
    assert [session["after_step"] for session in told["sessions"]] == [0, 4]
    for session in told["sessions"]:
        assert session["torch"] == torch.__version__
        assert (session["python"], session["processes"]) == (platform.python_version(), 1)
        assert session["processor"]
        assert platform.node() not in json.dumps(session)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"sessions": 1}', b"\xff"])
def test_nothing_depends_on_what_people_make_of_it(tmp_path, content):
    train_toy(tmp_path)
    (tmp_path / RUN_FILE).write_bytes(content)
    train_toy(tmp_path, resume=True)
    assert len(json.loads((tmp_path / RUN_FILE).read_text())["sessions"]) == 1
