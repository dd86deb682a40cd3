"""Folders and files appear whole or not at all; JSON is believed only when every byte of it is as written."""

import itertools
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from regard.errors import ArgumentError, CheckpointError
from regard.storage import save_tensors
from regard.storage.files import check_name, existing_folder, read_bytes, replace_file, write_folder
from regard.storage.sealed_json import check_format, parse_json, read_sealed, render_sealed

NO_SPACE = OSError(28, "No space left on device")


def writes(text: str):
    def writer(folder: Path) -> None:
        (folder / "text").write_text(text)

    return writer


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_folder_is_not_seen_before_it_is_complete_and_is_not_written_over(tmp_path):
    def writer(aside: Path) -> None:
        assert not (tmp_path / "new").exists()
        writes("whole")(aside)

    def fails(aside: Path) -> None:
        writes("half")(aside)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "new", fails)
    assert list(tmp_path.iterdir()) == []
    write_folder(tmp_path / "new", writer)
    with pytest.raises(CheckpointError, match="exists already"):
        write_folder(tmp_path / "new", writes("other"))
    assert (tmp_path / "new" / "text").read_text() == "whole"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_whichever_call_fails_the_old_folder_or_the_new_one_is_whole(tmp_path, monkeypatch, call):
    """Each system call of a replacement fails once in its turn."""
    write_folder(tmp_path / "x", writes("old"))
    real = getattr(os, call)
    sentences = []
    for turn in range(100):
        calls = itertools.count()

        def fails(*arguments, turn=turn, calls=calls):
            if next(calls) == turn:
                raise NO_SPACE
            return real(*arguments)

        monkeypatch.setattr(os, call, fails)
        try:
            write_folder(tmp_path / "x", writes("new"), replace=True)
            break
        except CheckpointError as refusal:
            sentences.append(str(refusal))
        assert (existing_folder(tmp_path / "x") / "text").read_text() in ("old", "new")
        assert [name for name in hidden(tmp_path) if "writing" in name] == []
        monkeypatch.setattr(os, call, real)
        write_folder(tmp_path / "x", writes("old"), replace=True)
    assert len(sentences) >= 2
    assert all("No space left on device" in sentence for sentence in sentences)
    assert (tmp_path / "x" / "text").read_text() == "new"
    assert hidden(tmp_path) == []


def killed_between_renames(tmp_path):
    """The name of a folder whose old content stands aside, as a kill between the two renames leaves it."""
    folder = tmp_path / "x"
    write_folder(folder, writes("old"))
    os.rename(folder, tmp_path / ".x.previous")
    return folder


def test_a_kill_between_the_two_renames_leaves_the_old_folder_readable(tmp_path):
    folder = killed_between_renames(tmp_path)
    assert (existing_folder(folder) / "text").read_text() == "old"
    write_folder(folder, writes("new"), replace=True)
    assert (existing_folder(folder) / "text").read_text() == "new"
    assert hidden(tmp_path) == []


def test_an_old_folder_that_stepped_aside_is_back_in_its_place_after_a_failure(
    tmp_path, monkeypatch
):
    """Whoever opens the folder by its own name finds it, without asking `existing_folder`."""
    folder = tmp_path / "x"
    real = os.rename
    write_folder(folder, writes("old"))

    def fails_once(before, after):
        if after == folder and "writing" in before.name:
            raise NO_SPACE
        return real(before, after)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_folder(folder, writes("new"), replace=True)
    assert (folder / "text").read_text() == "old"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("replace", [False, True])
def test_an_old_folder_left_aside_by_a_kill_is_put_back_before_anything_is_written(
    tmp_path, replace
):
    folder = killed_between_renames(tmp_path)

    def writer(aside):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError if replace else CheckpointError):
        write_folder(folder, writer, replace=replace)
    assert (folder / "text").read_text() == "old"
    assert hidden(tmp_path) == []


def test_a_file_that_cannot_be_written_keeps_its_old_content(tmp_path, monkeypatch):
    path = tmp_path / "x"
    replace_file(path, b"old")

    def full(*arguments):
        raise NO_SPACE

    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(CheckpointError, match="No space left on device"):
                replace_file(path, b"new")
        assert path.read_bytes() == b"old"
        assert hidden(tmp_path) == []


PATHS = ("..", "../x", "a/b", "/etc/passwd", "a\\b")


@pytest.mark.parametrize(
    "name", [*PATHS, "", ".", ".hidden", "a\0", "a b", "x" * 200, None, 7, "é"]
)
def test_a_name_that_could_leave_the_folder_is_refused(name):
    with pytest.raises(CheckpointError, match="names the file"):
        check_name(name, "config.json")


def test_a_file_over_its_limit_is_not_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", limit=5) == b"12345"
    with pytest.raises(CheckpointError, match="has 5 bytes"):
        read_bytes(tmp_path / "x", limit=4)


BAD_JSON = {
    "empty": b"",
    "torn": b"{",
    "UTF-16": b"\xff\xfe",
    "repeats a key": b'{"a":1,"a":2}',
    "NaN": b'{"a":NaN}',
    "infinity": b"-Infinity",
    "1e999": b"1e999",
    "open": b"[" * 100_000,
    "depth": b"[" * 100_000 + b"]" * 100_000,
    "digits": b"9" * 10_000,
    "two": b"{} {}",
}


@pytest.mark.parametrize("data", BAD_JSON.values(), ids=BAD_JSON)
def test_json_that_is_not_strict_is_refused(data):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        parse_json(data, "config.json")


CONTENT = {"format": 1, "é": [1, 2.5, None, True], "config": {"heads": 8, "text": "a\nb"}}


def test_sealed_json_comes_back(tmp_path):
    (tmp_path / "x").write_bytes(render_sealed(CONTENT))
    assert read_sealed(tmp_path / "x") == CONTENT


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_flipped_bits_of_each_byte_and_every_truncation_of_sealed_json_are_refused(tmp_path, bits):
    path = tmp_path / "x"
    whole = render_sealed(CONTENT)
    damaged = [whole[:length] for length in range(0, len(whole), 3)] + [whole + b" ", b" " + whole]
    for place in range(len(whole)):
        for bit in range(bits):
            changed = whole[place] ^ 1 << (place + bit) % 8
            damaged.append(whole[:place] + bytes([changed]) + whole[place + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="x"):
            read_sealed(path)


@pytest.mark.parametrize("content", [{"a": float("nan")}, {"a": {1, 2}}, {"a": "\ud800"}])
def test_what_json_cannot_hold_is_refused_before_it_is_written(content):
    with pytest.raises(ArgumentError, match="JSON"):
        render_sealed(content)


@pytest.mark.parametrize("version", [True, 1.0, "1", 2, None, [1]])
def test_only_the_whole_number_of_a_format_is_that_format(version):
    with pytest.raises(CheckpointError, match="this version reads format 1"):
        check_format({"format": version}, 1, "config.json")


# What killed writers left


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["*", "x[0-9]"])
def test_a_file_name_is_never_read_as_a_glob(tmp_path, name):
    for other in (".a.writing-0123abcd", ".x1.writing-0123abcd", ".any.writing-0123abcd"):
        (tmp_path / other).write_text("another file's")
    before = names(tmp_path)
    replace_file(tmp_path / name, b"new")
    write_folder(tmp_path / f"{name}{name}", lambda aside: None)
    assert names(tmp_path) == before | {name, f"{name}{name}"}


def test_the_leftover_of_a_name_that_only_begins_alike_stays(tmp_path):
    other = tmp_path / ".x.writing-notes.writing-0123abcd"  # of the file `x.writing-notes`
    other.write_text("another file's")
    (tmp_path / ".x.writing-notes").write_text("no writer's")
    replace_file(tmp_path / "x", b"new")
    assert names(tmp_path) == {"x", other.name, ".x.writing-notes"}


def test_what_a_living_writer_is_writing_is_not_removed(tmp_path):
    """A second writer of the same file or folder comes and goes while the first still writes."""

    def write_slowly(file):
        replace_file(tmp_path / "x", b"second")
        file.write(b"first")

    replace_file(tmp_path / "x", write_slowly)
    assert (tmp_path / "x").read_bytes() == b"first"

    def fill_slowly(aside):
        write_folder(tmp_path / "y", lambda other: None)
        (aside / "text").write_text("first")

    write_folder(tmp_path / "y", fill_slowly, replace=True)
    assert (tmp_path / "y" / "text").read_text() == "first"
    assert names(tmp_path) == {"x", "y"}


def test_a_writer_that_meets_another_one_leaves_no_descriptor_open(tmp_path):
    def open_descriptors() -> list[int]:
        descriptors = []
        for descriptor in range(1000):
            with suppress(OSError):
                os.fstat(descriptor)
                descriptors.append(descriptor)
        return descriptors

    def write_beside(file):
        replace_file(tmp_path / "x", b"second")
        file.write(b"first")

    before = open_descriptors()
    replace_file(tmp_path / "x", write_beside)
    assert open_descriptors() == before


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_what_a_killed_writer_left_is_removed(tmp_path):
    for write in (replace_file, write_folder):
        child = os.fork()
        if child == 0:
            write(tmp_path / "x", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        os.waitpid(child, 0)
        assert len(names(tmp_path)) == 1, write
        replace_file(tmp_path / "x", b"new")
        assert names(tmp_path) == {"x"}
        (tmp_path / "x").unlink()


def test_an_error_names_the_path_that_was_given(tmp_path, monkeypatch):
    def write(aside):
        save_tensors(aside / "weights.safetensors", {}, {"regard_seal": "taken"})

    def cannot(aside):
        (aside / "weights.safetensors").mkdir()
        replace_file(aside / "weights.safetensors", b"")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"^model/weights.safetensors could not be saved"):
        write_folder(Path("model"), cannot)
    with pytest.raises(ValueError, match="taken"):
        write_folder(Path("model"), write)
    Path("folder").mkdir()
    with pytest.raises(CheckpointError, match=r"^folder could not be saved: Is a directory"):
        replace_file(Path("folder"), b"")
    assert names(tmp_path) == {"folder"}
