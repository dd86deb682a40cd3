"""The mean of checkpoints: of which, of what, and of nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_training import CONFIG, make_model, train_toy

from regard.errors import ArgumentError, CheckpointError
from regard_lab.models.storage import Checkpoints, load_model, save_model, write_checkpoints
from regard_lab.training import average_checkpoints

KEEP = replace(CONFIG, keep=4, validate_every=3)  # saved at steps 0, 3, 6, 9 and 12


def test_a_weight_is_the_mean_of_the_last_checkpoints_that_of_the_resumed_included(tmp_path):
    run = tmp_path / "run"
    train_toy(run, replace(KEEP, steps=7))
    train_toy(run, KEEP, resume=True, extra_files={})
    names = average_checkpoints(run, 3, tmp_path / "mean")
    assert names == ["step-000007", "step-000009", "step-000012"]
    mean = load_model(tmp_path / "mean", kind="toy").state
    states = [load_model(run / name).state for name in names]
    for name, tensor in mean.items():
        expected = np.mean([state[name].numpy().astype(np.float64) for state in states], axis=0)
        assert np.array_equal(tensor.numpy(), expected.astype(np.float32))
        assert not torch.equal(tensor, states[-1][name])
    make_model().load_state_dict(mean)


def write_run(run, *states, heads=(2, 2, 2)):
    """A run whose checkpoints hold these states; `heads` are the configs of their models."""
    run.mkdir()
    for step, state in enumerate(states, start=1):
        name = f"step-{step:06d}"
        config = {"heads": heads[step - 1]}
        save_model(run / name, config, state, "toy", {"words.txt": f"of {step}"})
    write_checkpoints(run, Checkpoints(name))
    return run


def test_whole_numbers_and_files_are_those_of_the_last_and_tied_weights_stay_one(tmp_path):
    def state(number):
        weight = torch.full((2,), float(number))
        return {
            "a": weight,
            "b": weight,
            "count": torch.tensor(number),
            "half": torch.tensor(number / 2).bfloat16(),
        }

    run = write_run(tmp_path / "run", state(1), state(2), state(6))
    average_checkpoints(run, 3, tmp_path / "mean")
    saved = load_model(tmp_path / "mean")
    mean = saved.state
    assert mean["a"].tolist() == [3.0, 3.0]
    assert mean["a"] is mean["b"]
    assert (int(mean["count"]), float(mean["half"])) == (6, 1.5)
    assert saved.extra_files == {"words.txt": "of 3"}


def test_a_sum_is_taken_in_float64(tmp_path):
    """In float32 the small ones would be lost beside the large one."""
    numbers = [2.0, 2.0, 2.0**25]
    states = [{"a": torch.tensor([number])} for number in numbers]
    average_checkpoints(write_run(tmp_path / "run", *states), 3, tmp_path / "mean")
    assert load_model(tmp_path / "mean").state["a"].item() == np.float32(sum(numbers) / 3)
    assert np.float32(sum(numbers) / 3) != np.float32(2.0**25 / 3)


def test_other_configs_have_no_mean(tmp_path):
    state = {"a": torch.ones(2)}
    run = write_run(tmp_path / "run", state, state, heads=(2, 1))
    with pytest.raises(CheckpointError, match="step-000001 holds a model of another config"):
        average_checkpoints(run, 2, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_more_than_there_are_is_refused_with_the_way_out(tmp_path):
    train_toy(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"the last 5 .* keeps 1 \(step-000012\).* --keep 5"):
        average_checkpoints(tmp_path / "run", 5, tmp_path / "mean")
    with pytest.raises(ArgumentError, match="the mean of 0 checkpoints"):
        average_checkpoints(tmp_path / "run", 0, tmp_path / "mean")
    with pytest.raises(CheckpointError, match="holds no run"):
        average_checkpoints(tmp_path, 1, tmp_path / "mean")
