"""A folder with a person's own files is refused by name; a run of ours, complete or begun, is not."""

import dataclasses
import json
import os

import pytest
from toy_training import CONFIG, CrashError, at_step, crash, seals, train_toy

from regard.errors import CheckpointError, NotFoundError
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.training.recipes.run_folder import read_test

SHORT = dataclasses.replace(CONFIG, steps=1)
OWN = {"settings.json": b'{"mine": 1}', "test.jsonl": b"mine", "curves.png": b"mine", "run.json": b'{"mine": 1}'}


@pytest.mark.parametrize("name", [*OWN, "lock.txt", "checkpoints.json", "notes/"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_own_files_is_refused_by_name_and_stays_as_it_was(tmp_path, monkeypatch, name, resume):
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(OWN.get(name, b"mine"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=rf"\. holds {name.rstrip('/')} and no run of regard"):
        train_toy(".", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == [name.rstrip("/")]


def test_files_that_only_have_the_names_of_a_run_make_no_run(tmp_path):
    for name in ("README.txt", "checkpoints.json", "lock", "log.jsonl", "run.json", "settings.json"):
        (tmp_path / name).write_text('{"format": 1, "sessions": []}')
    with pytest.raises(CheckpointError, match="and no run of regard"):
        train_toy(tmp_path, resume=True)


def test_a_run_beside_own_notes_goes_on(tmp_path):
    with pytest.raises(CrashError):
        train_toy(tmp_path, progress=at_step(5, crash))
    (tmp_path / "notes.txt").write_text("mine")
    train_toy(tmp_path, resume=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_fresh_run_that_ended_before_any_of_its_files_begins_anew(tmp_path, monkeypatch):
    """Each write of a file before the first checkpoint is the last in its turn; then the run begins as a new one."""
    real = os.replace
    train_toy(tmp_path / "whole", SHORT)
    for writes in range(3):
        run, left = tmp_path / str(writes), writes

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
    with pytest.raises(CheckpointError, match=r"no thing of regard .*does not match its own SHA-256"):
        check_ours(tmp_path, {"mark.json": read_sealed}, "thing")
    with pytest.raises(CheckpointError, match="new or an empty folder"):
        check_ours(tmp_path, {}, "thing")


def test_a_model_without_a_test_split_says_which_file_has_one(tmp_path):
    with pytest.raises(NotFoundError, match=r"name a file of pairs .*made from a run is evaluated on its test\.jsonl$"):
        read_test(tmp_path)
