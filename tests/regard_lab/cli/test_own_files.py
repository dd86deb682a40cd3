"""No command writes into a folder with a person's own files, nor calls a destroyed model done."""

import pytest
from test_commands import regard

from regard_lab.models.storage import load_model, save_model

OWN = {"settings.json": "{}", "test.jsonl": "mine", "curves.png": "mine", "asked.json": "{}", "bench.json": "{}"}
COMMANDS = {
    "train translation": ["--data", "pronouns"],
    "train language-model": ["--data", "pronouns"],
    "train masked-words": ["--data", "pronouns"],
    "train classifier": ["--data", "labels.tsv"],
    "train translation --resume": [],
    "demo": ["--steps", 1],
    "compare": ["--data", "pronouns", "--models", "none"],
    "compare --resume": ["--data", "pronouns"],
    "bench": ["overhead", "--quick"],
    "bench complexity": ["softmax", "--quick"],
    "convert kv-heads": ["nowhere", "--kv-heads", 1],
    "convert kv-heads --uptrain-steps 1": ["nowhere", "--kv-heads", 1, "--text", "text.txt"],
}


@pytest.mark.parametrize("own", [*OWN, "notes.txt"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_with_own_files_is_refused_by_name(tmp_path, monkeypatch, command, own):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / own).write_text(OWN.get(own, "mine"))
    monkeypatch.chdir(tmp_path / "here")
    answer = regard(*command.split(), *COMMANDS[command], "--out", ".")
    said = answer.stderr.decode()
    assert answer.returncode == 2, said
    assert said.startswith("regard: .") or "convert" in command, said
    assert own in said or "convert" in command
    assert {path.name: path.read_text() for path in (tmp_path / "here").iterdir()} == {own: OWN.get(own, "mine")}


def test_a_model_is_saved_over_no_own_file(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        save_model(tmp_path, {}, {}, kind="toy")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("rate", ["1e308", "1e30"])
def test_a_learning_rate_that_destroys_the_model_ends_in_a_sentence(tmp_path, rate):
    (tmp_path / "pairs.tsv").write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(90)))
    size = ("--dim", 16, "--layers", 1, "--heads", 2, "--vocab-size", 300, "--cpu")
    training = ("--steps", 1, "--learning-rate", rate, "--warmup-steps", 0, "--schedule", "constant")
    out = tmp_path / "run"
    answer = regard("train", "translation", "--data", tmp_path / "pairs.tsv", "--out", out, *size, *training)
    assert answer.returncode == 1
    last = answer.stderr.decode().splitlines()[-1]
    assert last.startswith("regard: ")
    assert "the model is destroyed and is not saved" in last
    assert "saved in step-000000" in last
    assert all(tensor.isfinite().all() for tensor in load_model(out).state.values())
