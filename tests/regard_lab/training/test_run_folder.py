"""What a run keeps on the disk, in a folder of its own, and what a fault leaves behind."""

import errno
import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from test_run import EVERY_STEP, Scripted
from toy_training import CONFIG, CrashError, at_step, crash, make_model, seals, train_toy

from regard.errors import CheckpointError
from regard.storage.files import write_folder
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.models.storage import Checkpoints, load_model, read_checkpoints
from regard_lab.training import Validated, checkpoint, train
from regard_lab.training.checkpoint import read_training

ALWAYS = {"README.txt", "checkpoints.json", "lock", "log.jsonl", "run.json"}


def checkpoints_in(run):
    """The folders of checkpoints; there is nothing else but the files that every run has."""
    names = {path.name for path in run.iterdir()}
    assert names >= ALWAYS
    return sorted(names - ALWAYS)


def test_only_the_last_and_the_best_checkpoint_are_kept(tmp_path):
    losses = [3.0, 1.0, *[2.0] * 18]
    train_toy(tmp_path, replace(EVERY_STEP, save_every=2), Scripted(losses))
    assert checkpoints_in(tmp_path) == ["step-000002", "step-000020"]
    assert read_checkpoints(tmp_path) == Checkpoints(last="step-000020", best="step-000002")


def test_as_many_of_the_last_checkpoints_are_kept_as_are_wanted(tmp_path):
    losses = [3.0, 1.0, *[2.0] * 18]
    config = replace(EVERY_STEP, save_every=4, keep=3)
    with pytest.raises(CrashError):
        train_toy(tmp_path, config, Scripted(losses), progress=at_step(14, crash))
    (tmp_path / "step-000016").mkdir()  # complete, but no checkpoint names it: a kill came first
    train_toy(tmp_path, replace(config, keep=2), Scripted(losses[12:]), resume=True)
    assert checkpoints_in(tmp_path) == ["step-000002", "step-000016", "step-000020"]


def test_a_hook_sees_the_model_of_each_validation_in_eval_and_changes_no_bit(tmp_path):
    seen = []

    def look(model, step, folder):
        seen.append((step, folder, model.training, model(torch.tensor([[1]])).shape))
        torch.manual_seed(step)  # whatever it draws

    train_toy(tmp_path / "run", on_validation=look)
    train_toy(tmp_path / "whole")
    assert seen == [(step, tmp_path / "run", False, (1, 1, 11)) for step in (4, 8, 12)]
    assert seals(tmp_path / "run") == seals(tmp_path / "whole")


def test_the_best_model_is_the_one_that_is_loaded_with_its_files(tmp_path):
    best = {}

    def keep(event):
        if isinstance(event, Validated) and event.is_best:
            for name, tensor in model.state_dict().items():
                best[name] = tensor.clone()

    model = make_model()
    files = {"words.txt": "das Tier"}
    train(
        model,
        Scripted([3.0, 1.0, *[2.0] * 18]),
        EVERY_STEP,
        tmp_path,
        kind="toy",
        model_config={"dim": 6},
        extra_files=files,
        progress=keep,
        cpu=True,
    )
    saved = load_model(tmp_path, kind="toy")
    last = model.state_dict()
    assert (saved.config, saved.extra_files) == ({"dim": 6}, files)
    assert all(torch.equal(saved.state[name], tensor) for name, tensor in best.items())
    assert not all(torch.equal(last[name], tensor) for name, tensor in best.items())


def test_the_same_step_saved_again_after_one_more_validation_never_overwrites_the_first(tmp_path):
    """A signal stops the run at step 6 unvalidated; asked for 6 steps, the resumed run validates and saves there."""
    train_toy(tmp_path, progress=at_step(6, lambda: signal.raise_signal(signal.SIGTERM)))
    assert read_checkpoints(tmp_path).last == "step-000006"
    result = train_toy(tmp_path, replace(CONFIG, steps=6), resume=True)
    again = "step-000006-again"
    assert result.best_step == 6
    assert read_checkpoints(tmp_path) == Checkpoints(last=again, best=again)
    train_toy(tmp_path, resume=True)


# Faults


def test_no_checkpoint_is_newer_than_the_log_on_the_disk(tmp_path, monkeypatch):
    """When a checkpoint appears under its name, all that the log says up to its step has been synced."""
    synced = {}
    unsynced = []
    real_sync = os.fsync
    real_rename = os.rename

    def fsync(descriptor):
        real_sync(descriptor)
        file = os.fstat(descriptor)
        synced[file.st_ino] = file.st_size

    def rename(before, after):
        log = os.stat(tmp_path / "log.jsonl")
        name = os.path.basename(after)
        if name.startswith("step-") and synced.get(log.st_ino) != log.st_size:
            unsynced.append(name)
        real_rename(before, after)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    train_toy(tmp_path)
    assert read_checkpoints(tmp_path).last == "step-000012"
    assert unsynced == []


@pytest.mark.parametrize("call", ["fsync", "rename", "replace"])
def test_a_save_that_fails_keeps_the_checkpoint_before_it_and_resumes_to_the_same_bits(
    tmp_path, monkeypatch, call
):
    train_toy(tmp_path / "whole")
    run = tmp_path / "run"
    real = getattr(os, call)

    def break_the_disk():
        def fails(*arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, call, fails)

    with pytest.raises(CheckpointError, match="No space left on device"):
        train_toy(run, progress=at_step(5, break_the_disk))
    monkeypatch.setattr(os, call, real)
    assert read_checkpoints(run).last == "step-000004"
    assert checkpoints_in(run) == ["step-000004"]
    assert read_training(run / "step-000004")["state"]["step"] == 4
    train_toy(run, resume=True)
    assert seals(run) == seals(tmp_path / "whole")


def test_what_a_kill_left_of_a_checkpoint_is_removed(tmp_path):
    with pytest.raises(CrashError):
        train_toy(tmp_path, progress=at_step(5, crash))
    for leftover in (".step-000005.writing-12ab34cd", "step-000006"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "config.json").write_text("torn")
    train_toy(tmp_path, resume=True)
    assert checkpoints_in(tmp_path) == ["step-000012"]


def test_a_model_that_is_called_the_best_is_on_the_disk_already(tmp_path):
    """A kill right after the event loses nothing that was said."""
    said = []

    def look(event):
        if isinstance(event, Validated) and event.is_best:
            said.append((event.step, read_checkpoints(tmp_path).best))

    losses = [3.0, 2.0, 2.5, 1.0, *[2.0] * 16]
    config = replace(EVERY_STEP, save_every=7)
    train_toy(tmp_path, config, Scripted(losses), progress=look)
    assert said == [(step, f"step-{step:06d}") for step in (1, 2, 4)]


def test_what_is_not_needed_is_removed_before_there_is_need_of_room(tmp_path, monkeypatch):
    """A kill left a whole checkpoint that no file names; a disk that is nearly full has room again."""
    config = replace(EVERY_STEP, save_every=4)
    train_toy(tmp_path, config, Scripted([1.0] * 20))
    (tmp_path / "step-000099").mkdir()
    seen = []

    def write_and_look(folder, content):
        seen.append(checkpoints_in(tmp_path))
        write_folder(folder, content)

    monkeypatch.setattr(checkpoint, "write_folder", write_and_look)
    train_toy(tmp_path, replace(config, steps=24), Scripted([1.0] * 30), resume=True)
    assert seen
    assert all("step-000099" not in names for names in seen)


SHORT = replace(CONFIG, steps=1)
OWN = {
    "settings.json": b'{"mine": 1}',
    "test.jsonl": b"mine",
    "curves.png": b"mine",
    "run.json": b'{"mine": 1}',
}


@pytest.mark.parametrize("name", ["settings.json", "run.json", "checkpoints.json", "notes/"])
def test_a_folder_with_own_files_is_refused_by_name_and_stays_as_it_was(
    tmp_path, monkeypatch, name
):
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(OWN.get(name, b"mine"))
    monkeypatch.chdir(tmp_path)
    for resume in (False, True):
        reason = rf"\. holds {name.rstrip('/')} and no run of regard"
        with pytest.raises(CheckpointError, match=reason):
            train_toy(".", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == [name.rstrip("/")]


def test_a_fresh_run_that_ended_before_any_of_its_files_begins_anew(tmp_path, monkeypatch):
    """Each write of a file before the first checkpoint is the last in its turn; then the run begins as a new one."""
    real = os.replace
    train_toy(tmp_path / "whole", SHORT)
    for writes in range(3):
        run = tmp_path / str(writes)
        left = writes

        def ends(*paths):
            nonlocal left
            left -= 1
            if left < 0:
                raise CrashError
            real(*paths)

        monkeypatch.setattr(os, "replace", ends)
        with pytest.raises(CrashError):
            train_toy(run, SHORT)
        monkeypatch.setattr(os, "replace", real)
        (run / ".run.json.writing-0123abcd").write_text("what a kill leaves")
        assert not list(run.glob("step-*"))
        train_toy(run, SHORT)
        assert seals(run) == seals(tmp_path / "whole")


def test_a_mark_counts_by_what_it_holds_and_damage_is_told(tmp_path):
    (tmp_path / "mark.json").write_bytes(render_sealed({"one": 1}))
    check_ours(tmp_path, {"mark.json": read_sealed}, "thing")
    (tmp_path / "mark.json").write_text(json.dumps({"one": 1, "sha256": "0" * 64}))
    damaged = r"no thing of regard .*does not match its own SHA-256"
    with pytest.raises(CheckpointError, match=damaged):
        check_ours(tmp_path, {"mark.json": read_sealed}, "thing")
    with pytest.raises(CheckpointError, match="new or an empty folder"):
        check_ours(tmp_path, {}, "thing")
