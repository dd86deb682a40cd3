"""What guards a session: signals ask first and insist second; the lock of a folder never waits."""

import errno
import os
import signal
import threading

import pytest
from toy_training import CrashError, crash, train_toy

from regard.errors import CheckpointError
from regard_lab.training.checkpoint import folder_lock
from regard_lab.training.interruption import Interruption


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)]
)
def test_the_first_signal_asks_and_the_second_raises(first, second):
    with Interruption() as interruption:
        assert not interruption.requested
        signal.raise_signal(first)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


def test_handlers_are_put_back_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(CrashError), Interruption():
        crash()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_trains_without_handlers():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with Interruption() as interruption:
            seen.extend([signal.getsignal(signal.SIGINT), interruption.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "is not a plain file"),
        (os.mkdir, "cannot be opened"),
        (lambda lock: lock.symlink_to("mine"), "cannot be opened"),
    ],
)
def test_a_pipe_a_folder_or_a_link_in_its_place_is_refused_and_waits_for_nobody(
    tmp_path, make, reason
):
    (tmp_path / "mine").write_text("kept")
    make(tmp_path / "lock")
    with pytest.raises(CheckpointError, match=f"lock {reason}"), folder_lock(tmp_path):
        pytest.fail("it locks nothing, and a link may point to a person's file")
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_lock_that_is_held_names_its_owner_and_is_let_go(tmp_path):
    with folder_lock(tmp_path):
        with (
            pytest.raises(CheckpointError, match=f"trained by process {os.getpid()}; wait"),
            folder_lock(tmp_path),
        ):
            pytest.fail("it was locked already")
        (tmp_path / "lock").write_bytes(b"\xff\xfe12")  # is quoted as far as it is text
        with pytest.raises(CheckpointError, match="trained by process ��12; wait"):
            train_toy(tmp_path)
    (tmp_path / "lock").write_text("999999999\n")  # of a process that died
    train_toy(tmp_path)


@pytest.mark.parametrize(
    ("call", "number", "words"),
    [
        ("os.write", errno.ENOSPC, "written: No space left on device"),
        ("os.ftruncate", errno.ENOSPC, "written: No space left on device"),
        ("fcntl.flock", errno.ENOLCK, "locked: No locks available"),
    ],
)
def test_a_full_disk_or_one_without_locks_is_told_and_not_taken_for_a_trainer(
    tmp_path, monkeypatch, call, number, words
):
    def fails(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(call, fails)
    with pytest.raises(CheckpointError, match=f"lock cannot be {words}"), folder_lock(tmp_path):
        pytest.fail("nothing was locked")
