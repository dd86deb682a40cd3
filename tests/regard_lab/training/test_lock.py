"""The lock of a run: what is in its place, or a full disk, ends in a sentence and never waits."""

import errno
import os

import pytest

from regard.errors import CheckpointError
from regard_lab.training.checkpoint import folder_lock


def test_a_pipe_in_its_place_is_refused_and_waits_for_nobody(tmp_path):
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(CheckpointError, match="lock is not a plain file"), folder_lock(tmp_path):
        pytest.fail("a pipe locks nothing")


def test_a_folder_or_a_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(CheckpointError, match="lock cannot be opened"), folder_lock(tmp_path):
        pytest.fail("a folder locks nothing")
    (tmp_path / "lock").rmdir()
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="lock cannot be opened"), folder_lock(tmp_path):
        pytest.fail("a link may point to a person's file")
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize("call", ["write", "ftruncate"])
def test_a_full_disk_is_told_in_a_sentence(tmp_path, monkeypatch, call):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with (
        pytest.raises(CheckpointError, match="lock cannot be written: No space left on device"),
        folder_lock(tmp_path),
    ):
        pytest.fail("the lock was not written")


def test_a_file_system_without_locks_is_not_taken_for_another_trainer(tmp_path, monkeypatch):
    import fcntl

    def without(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(CheckpointError, match="cannot be locked: No locks available"), folder_lock(tmp_path):
        pytest.fail("nothing was locked")


def test_an_owner_that_is_no_text_is_quoted_as_far_as_it_is(tmp_path):
    with folder_lock(tmp_path):
        (tmp_path / "lock").write_bytes(b"\xff\xfe12")
        with pytest.raises(CheckpointError, match="is being trained by process ��12; wait"), folder_lock(tmp_path):
            pytest.fail("it was locked already")
