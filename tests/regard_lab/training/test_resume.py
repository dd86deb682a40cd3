"""A run that stopped in any way and was resumed is, bit for bit, the run that never stopped."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kill_trainers import kill_trainers
from toy_training import (
    CONFIG,
    CrashError,
    ToyTask,
    at_step,
    crash,
    log_without_times,
    make_model,
    seals,
    train_toy,
)

from regard.errors import CheckpointError
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.models.storage import load_model, read_checkpoints
from regard_lab.training import Started, read_log, read_run, train
from regard_lab.training.checkpoint import read_training
from regard_lab.training.config import learning_rate_at


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted")
    train_toy(run)
    return run


def state_of(run: Path) -> dict:
    state = read_training(run / read_checkpoints(run).last)["state"]
    return {name: value for name, value in state.items() if not name.endswith("seconds")}


def assert_equal_runs(run: Path, expected: Path) -> None:
    assert seals(run) == seals(expected)
    assert state_of(run) == state_of(expected)
    assert log_without_times(run) == log_without_times(expected)


@pytest.mark.parametrize("step", [1, 4, 6, 11, 12])
def test_a_crash_after_any_step_changes_no_bit(tmp_path, uninterrupted, step):
    with pytest.raises(CrashError):
        train_toy(tmp_path, progress=at_step(step, crash))
    assert train_toy(tmp_path, resume=True).steps == 12
    assert_equal_runs(tmp_path, uninterrupted)


@pytest.mark.parametrize(
    ("number", "step", "validated"), [(signal.SIGTERM, 4, True), (signal.SIGINT, 2, False)]
)
def test_a_signal_saves_at_once_without_a_validation_and_changes_no_bit(
    tmp_path, uninterrupted, number, step, validated
):
    result = train_toy(tmp_path, progress=at_step(step, lambda: signal.raise_signal(number)))
    assert (result.stopped, result.steps) == ("interrupted", step)
    assert (result.valid_loss is not None) == validated
    assert state_of(tmp_path)["step"] == step
    assert train_toy(tmp_path, resume=True).stopped == "steps"
    assert_equal_runs(tmp_path, uninterrupted)


def test_these_equalities_would_see_another_dropout_or_seed_and_the_last_model_is_the_one_in_memory(
    tmp_path, uninterrupted
):
    """Else the equalities above would say nothing about random numbers."""
    model = make_model(dropout=0.0)
    train(model, ToyTask(), CONFIG, tmp_path, kind="toy", cpu=True)
    assert seals(tmp_path) != seals(uninterrupted)
    last = load_model(tmp_path / read_checkpoints(tmp_path).last, kind="toy").state
    assert all(torch.equal(tensor, last[name]) for name, tensor in model.state_dict().items())
    other_seed = tmp_path / "other"
    train_toy(other_seed, replace(CONFIG, seed=1))
    assert seals(other_seed) != seals(uninterrupted)


def test_validating_and_saving_more_often_changes_no_weight(tmp_path, uninterrupted):
    train_toy(tmp_path, replace(CONFIG, validate_every=1, save_every=1))
    assert seals(tmp_path) == seals(uninterrupted)


def test_a_run_tells_its_settings_and_how_far_it_came(tmp_path):
    result = train_toy(tmp_path, replace(CONFIG, minutes=9.0))
    summary = read_run(tmp_path)
    assert summary.config == replace(CONFIG, minutes=9.0)
    assert summary.data == ToyTask().fingerprint()
    assert (summary.step, summary.tokens) == (result.steps, result.tokens)
    assert (summary.best_step, summary.best_loss) == (result.best_step, result.valid_loss)


# Refusals


def test_a_folder_with_a_run_is_refused_without_resume(tmp_path):
    train_toy(tmp_path)
    before = seals(tmp_path)
    reason = r"already holds a run \(step-000012\).*resume=True.*another folder"
    with pytest.raises(CheckpointError, match=reason):
        train_toy(tmp_path)
    assert seals(tmp_path) == before


def test_every_difference_is_listed_and_the_run_kept(tmp_path):
    train_toy(tmp_path, model_config={"dim": 6}, extra_files={"words.txt": "a b"})
    before = seals(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        train(
            make_model(torch.float64),
            ToyTask(size=4, name="other"),
            replace(CONFIG, learning_rate=0.5, batches_per_step=1),
            tmp_path,
            kind="game",
            model_config={"dim": 6, "layers": 2},
            extra_files={"words.txt": "a c"},
            resume=True,
            cpu=True,
        )
    for phrase in (
        "training.learning_rate was 0.01, now 0.5",
        "training.batches_per_step was 2, now 1",
        "model.kind was toy, now game",
        "model.config.layers was absent, now 2",
        "model.tensors.0.weight was float32 (11, 6), now float64 (11, 6)",
        "files.words.txt was",
        "data.name was toy, now other",
        "data.size was 8, now 4",
    ):
        assert phrase in str(caught.value)
    assert seals(tmp_path) == before


def test_how_long_to_train_and_what_to_keep_may_change_and_counts_are_those_of_all_sessions(
    tmp_path,
):
    first = train_toy(tmp_path, replace(CONFIG, steps=6))
    changes = {"steps": 14, "minutes": 5.0, "patience": 9, "keep": 2}
    second = train_toy(tmp_path, replace(CONFIG, **changes), resume=True)
    for name in ("cpu_seconds", "wall_seconds", "tokens"):
        assert getattr(second, name) > getattr(first, name) > 0
    assert second.steps == 14


def test_the_cosine_ends_with_the_steps_and_does_not_allow_others(tmp_path):
    cosine = replace(CONFIG, schedule="cosine")
    train_toy(tmp_path, cosine)
    with pytest.raises(CheckpointError, match=r"training\.steps was 12, now 14"):
        train_toy(tmp_path, replace(cosine, steps=14), resume=True)


def test_a_run_that_has_cooled_down_goes_on_at_the_rate_of_its_new_number_of_steps(tmp_path):
    cooled = replace(CONFIG, cooldown=0.5)
    train_toy(tmp_path, cooled)
    longer = replace(cooled, steps=24)
    train_toy(tmp_path, longer, resume=True)
    lines = read_log(tmp_path / "log.jsonl")
    rates = {line["step"]: line["learning_rate"] for line in lines if "tokens" in line}
    assert rates[12] == 0.0
    assert all(rates[step] == learning_rate_at(longer, step) for step in range(14, 25, 2))
    assert rates[14] > rates[22] > rates[24] == 0.0


def test_another_number_of_threads_is_told_and_not_refused(tmp_path):
    train_toy(tmp_path)
    events = []
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        train_toy(tmp_path, resume=True, progress=events.append)
    finally:
        torch.set_num_threads(threads)
    (started,) = [event for event in events if isinstance(event, Started)]
    assert started.notes == (f"threads was {threads}, now {threads + 1}",)


def test_a_damaged_checkpoint_is_refused_and_not_deleted(tmp_path):
    train_toy(tmp_path)
    for name in ("training.json", "optimiser.safetensors", "weights.safetensors", "config.json"):
        path = tmp_path / "step-000012" / name
        whole = path.read_bytes()
        data = whole[:-20] + bytes([whole[-20] ^ 4]) + whole[-19:]
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            train_toy(tmp_path, resume=True)
        assert path.read_bytes() == data
        path.write_bytes(whole)


def test_kills_at_random_instants_change_no_bit(tmp_path):
    counts = kill_trainers(tmp_path, 2, 0)  # hundreds in the long tier
    assert counts["kills"] >= 2
    assert counts["identical"] == counts["runs"] >= 1
    assert counts["unreadable"] == 0


def test_a_run_of_an_earlier_version_goes_on_with_the_batches_of_its_steps(tmp_path, uninterrupted):
    """Its setting `accumulate` said how many batches a step reads."""
    train_toy(tmp_path, progress=at_step(6, lambda: signal.raise_signal(signal.SIGTERM)))
    folder = tmp_path / read_checkpoints(tmp_path).last
    content = read_sealed(folder / "training.json")
    for settings in (content["config"], content["fingerprint"]["training"]):
        del settings["accumulate"]
        settings["accumulate"] = settings.pop("batches_per_step")
    (folder / "training.json").write_bytes(render_sealed(content))
    assert read_run(tmp_path).config == CONFIG
    assert train_toy(tmp_path, resume=True).stopped == "steps"
    assert seals(tmp_path) == seals(uninterrupted)
