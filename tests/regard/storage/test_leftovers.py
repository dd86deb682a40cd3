"""A writer removes what killed writers of the same file left, and nothing else; errors name what people gave."""

import os
import signal
from pathlib import Path

import pytest

from regard.errors import CheckpointError
from regard.storage import save_tensors
from regard.storage.files import replace_file, write_folder


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


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_what_a_killed_writer_left_is_removed(tmp_path):
    for write in (replace_file, write_folder):
        if not (child := os.fork()):
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
