"""`regard approximation` reads q, k and v from a file and says what `regard_lab.seeing.approximation` finds."""

import json

import pytest
import torch
from safetensors.torch import save_file
from test_commands import regard

from regard.storage import save_tensors
from regard_lab.seeing import approximation


@pytest.fixture
def tensors():
    return {name: torch.randn(1, 2, 96, 8) for name in "qkv"}


@pytest.mark.parametrize("save", [lambda tensors, path: save_file(tensors, path),
                                  lambda tensors, path: save_tensors(path, tensors)])  # fmt: skip
def test_json_is_that_of_the_function_but_for_times(tensors, tmp_path, save):
    save(tensors, tmp_path / "a.safetensors")
    options = ["--pattern", "causal", "--candidate", "strided(8)", "--candidate", "random_blocks(2, block=8)"]
    answer = regard(
        "approximation", tmp_path / "a.safetensors", *options, "--seeds", "3", "--tolerance", "0.5", "--json"
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    expected = json.loads(
        approximation(
            *tensors.values(), pattern="causal", mechanisms=["strided(8)", "random_blocks(2, block=8)"],
            seeds=range(3), tolerance=0.5,
        ).to_json()
    )  # fmt: skip
    for one, two in zip(found["rows"], expected["rows"], strict=True):
        for name in ("name", "error", "spread", "worst_row", "mass", "bytes", "backend"):
            assert one[name] == two[name]
    assert (found["tolerance"], found["seeds"]) == (0.5, 3)


def test_the_table_is_printed_and_the_picture_drawn(tensors, tmp_path):
    save_file(tensors, tmp_path / "a.safetensors")
    answer = regard("approximation", tmp_path / "a.safetensors", "--candidate", "strided(8)", "--plot",
                    tmp_path / "a.png")  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "strided(8)" in answer.stdout.decode()
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"


def test_a_mechanism_is_a_candidate_by_its_text(tensors, tmp_path):
    save_file(tensors, tmp_path / "a.safetensors")
    given = ["--pattern", "causal", "--candidate", "performer(features=8)", "--candidate", "linear", "--seeds", "1"]
    answer = regard("approximation", tmp_path / "a.safetensors", *given, "--json")
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)["rows"]
    assert [row["name"] for row in rows] == ["performer(8, seed=0)", "linear_transformer(elu_plus_one)"]
    assert [row["backend"] for row in rows] == ["linear", "linear"]


def write_text(path):
    path.write_text("not tensors")


def save_three(path):
    save_file({name: torch.ones(1, 1, 4, 2) for name in "qkv"}, path)


@pytest.mark.parametrize(
    ("write", "options", "code", "words"),
    [
        (
            save_three,
            ["--candidate", "perfomer(8)"],
            2,
            "'perfomer' is neither a pattern nor a mechanism; did you mean",
        ),
        (lambda path: None, [], 2, "does not exist"),
        (write_text, [], 1, "cannot be read as safetensors"),
        (lambda path: save_file({"q": torch.ones(1), "x": torch.ones(1)}, path), [], 2, "holds q, x and lacks k, v"),
        (lambda path: save_file({name: torch.ones(3) for name in "qkv"}, path), [], 1, "q"),
        (write_text, ["--plot", "a.svg"], 2, "ends in .png"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, write, options, code, words):
    write(tmp_path / "a.safetensors")
    answer = regard("approximation", tmp_path / "a.safetensors", *options)
    assert answer.returncode == code
    lines = answer.stderr.decode().strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
