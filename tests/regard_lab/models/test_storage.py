"""A saved model comes back whole, of the right kind, or not at all."""

import errno
import hashlib
import json
import os
import resource
from pathlib import Path

import pytest
import torch

from regard.errors import ArgumentError, CheckpointError
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.models import storage
from regard_lab.models.storage import (
    Checkpoints,
    load_model,
    read_checkpoints,
    save_model,
    write_checkpoints,
)

TOKENISER = '{"words": ["das", "Tier", "überquerte"]}'


def save(folder: Path, value: float = 1.0) -> Path:
    state = {"weight": torch.full((2, 3), value), "bias": torch.zeros(3)}
    save_model(folder, {"dim": 3, "value": value}, state, "toy", {"tokeniser.json": TOKENISER})
    return folder


def value_of(folder: Path) -> float:
    """The one number that everything in the folder must agree on."""
    stored = load_model(folder, kind="toy")
    assert stored.extra_files == {"tokeniser.json": TOKENISER}
    assert torch.equal(stored.state["weight"], torch.full((2, 3), stored.config["value"]))
    return stored.config["value"]


def edit(path: Path, **changes: object) -> None:
    """Change a sealed file and seal it again, as only an author of files can."""
    path.write_bytes(render_sealed(read_sealed(path) | changes))


def test_tied_weights_load_strictly_into_the_module(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.output = (
                torch.nn.Embedding(5, 2),
                torch.nn.Linear(2, 5, bias=False),
            )
            self.output.weight = self.embedding.weight

    first = Tied()
    second = Tied()
    save_model(tmp_path / "m", {}, first.state_dict(), "tied")
    second.load_state_dict(load_model(tmp_path / "m").state, strict=True)
    assert torch.equal(first.output.weight, second.embedding.weight)


def test_a_saved_model_comes_back_and_replaces_a_saved_model(tmp_path):
    stored = load_model(save(tmp_path / "m"), kind="toy")
    assert (stored.config, stored.kind) == ({"dim": 3, "value": 1.0}, "toy")
    assert stored.state.keys() == {"weight", "bias"}
    save(tmp_path / "m", 2.0)
    assert value_of(tmp_path / "m") == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    with pytest.raises(CheckpointError, match="kind 'toy', and this call needs 'translator'"):
        load_model(tmp_path / "m", kind="translator")


def test_an_empty_folder_is_filled_and_one_with_anything_else_is_never_replaced(tmp_path):
    (tmp_path / "m").mkdir()
    assert value_of(save(tmp_path / "m")) == 1.0
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        save(tmp_path / "m", 2.0)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"thesis\.txt"):
        save(tmp_path / "home")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="file"):
        save(tmp_path / "file")
    assert (tmp_path / "home" / "thesis.txt").read_text() == "mine"
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "tokeniser.json"])
def test_every_damage_to_any_file_is_refused(tmp_path, name):
    path = save(tmp_path / "m") / name
    whole = path.read_bytes()
    flips = [
        whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(0, len(whole), 5)
    ]
    for data in [*flips, b"", whole[:-1], whole + b" "]:
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="m"):
            load_model(tmp_path / "m")
    path.unlink()
    with pytest.raises(CheckpointError):
        load_model(tmp_path / "m")
    (tmp_path / "elsewhere").write_bytes(whole)
    path.symlink_to(tmp_path / "elsewhere")  # which is not followed
    with pytest.raises(CheckpointError, match="symbolic link"):
        load_model(tmp_path / "m")


def test_weights_of_another_model_another_format_and_one_that_only_equals_the_number_are_refused(
    tmp_path,
):
    save(tmp_path / "a", 1.0)
    os.replace(
        save(tmp_path / "b", 2.0) / "weights.safetensors", tmp_path / "a" / "weights.safetensors"
    )
    with pytest.raises(CheckpointError, match="other tensors"):
        load_model(tmp_path / "a")
    for format in (2, True, 1.0, "1"):
        edit(save(tmp_path / "m") / "config.json", format=format)
        with pytest.raises(CheckpointError, match=f"format {format}; this version reads format 1"):
            load_model(tmp_path / "m")
        edit(tmp_path / "m" / "config.json", format=1)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/b", "..", ".x"])
def test_a_listed_file_outside_the_folder_is_not_opened(tmp_path, name):
    save(tmp_path / "m")
    (tmp_path / "secret").write_text("secret")
    files = read_sealed(tmp_path / "m" / "config.json")["files"]
    files[name] = hashlib.sha256(b"secret").hexdigest()
    edit(tmp_path / "m" / "config.json", files=files)
    with pytest.raises(CheckpointError, match="names the file"):
        load_model(tmp_path / "m")


def test_a_config_of_another_shape_and_an_extra_file_that_is_no_text_are_refused(tmp_path):
    files = read_sealed(save(tmp_path / "m") / "config.json")["files"]
    wrong = (
        {"kind": 7},
        {"config": []},
        {"files": None},
        {"files": {}},
        {"files": {"weights.safetensors": None}},
    )
    for number, changes in enumerate(wrong):
        edit(save(tmp_path / f"m{number}") / "config.json", **changes)
        with pytest.raises(CheckpointError):
            load_model(tmp_path / f"m{number}")
    edit(
        save(tmp_path / "n") / "config.json",
        files=files | {"tokeniser.json": hashlib.sha256(b"\xff").hexdigest()},
    )
    (tmp_path / "n" / "tokeniser.json").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="UTF-8"):
        load_model(tmp_path / "n")


def test_a_config_that_json_cannot_hold_leaves_the_old_model(tmp_path):
    save(tmp_path / "m")
    with pytest.raises(ArgumentError, match="JSON"):
        save_model(tmp_path / "m", {"rate": float("nan")}, {}, "toy")
    with pytest.raises(ArgumentError, match="reserved"):
        save_model(tmp_path / "m", {}, {}, "toy", {"config.json": ""})
    deep: dict = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(ArgumentError, match="JSON"):
        save_model(tmp_path / "m", deep, {}, "toy")
    assert value_of(tmp_path / "m") == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_write_that_fails_at_any_byte_leaves_the_old_model(tmp_path):
    """The system itself refuses to let files grow over each limit in turn."""
    save(tmp_path / "m", 1.0)
    largest = max(path.stat().st_size for path in (tmp_path / "m").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = 0
    for limit in range(0, largest, 17):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(CheckpointError) as caught:
                save(tmp_path / "m", 2.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        refused += 1
        assert caught.value.__cause__.errno == errno.EFBIG
        assert value_of(tmp_path / "m") == 1.0
        assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert refused >= 20


def test_a_run_is_read_as_its_best_model_and_without_one_as_its_last(tmp_path):
    save(tmp_path / "step-000001", 1.0)
    save(tmp_path / "step-000002", 2.0)
    write_checkpoints(tmp_path, Checkpoints(last="step-000002"))
    assert value_of(tmp_path) == 2.0
    write_checkpoints(tmp_path, Checkpoints(last="step-000002", best="step-000001"))
    assert value_of(tmp_path) == 1.0


def test_a_run_that_moves_on_while_it_is_read_gives_its_newer_model(tmp_path, monkeypatch):
    save(tmp_path / "step-000002", 2.0)
    write_checkpoints(tmp_path, Checkpoints(last="step-000001"))
    real = storage._load

    def move_on(folder, kind):
        write_checkpoints(tmp_path, Checkpoints(last="step-000002"))
        return real(folder, kind)

    monkeypatch.setattr(storage, "_load", move_on)
    assert value_of(tmp_path) == 2.0


def test_checkpoints_outside_the_run_and_links_are_refused(tmp_path):
    for name in ("..", "../m", "/tmp", "", None, 7):
        (tmp_path / "checkpoints.json").write_bytes(
            render_sealed({"format": 1, "last": name, "best": None})
        )
        with pytest.raises(CheckpointError):
            read_checkpoints(tmp_path)
    save(tmp_path / "elsewhere")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step-000001").symlink_to(tmp_path / "elsewhere")
    write_checkpoints(tmp_path / "run", Checkpoints(last="step-000001"))
    with pytest.raises(CheckpointError, match="symbolic link"):
        load_model(tmp_path / "run")


def test_no_pickle_is_opened_whatever_the_files_hold(tmp_path):
    """The folder of a model whose files are all torch archives under our names."""
    (tmp_path / "m").mkdir()
    for name in ("config.json", "weights.safetensors"):
        torch.save({"x": torch.ones(1)}, tmp_path / "m" / name)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(CheckpointError, match="not written by regard"):
        load_model(tmp_path / "m")
