"""A changed byte in any file of a run is noticed when that file is read: the answer is the same, or a sentence."""

import json
import random
import re

import pytest
from test_commands import regard

from regard.errors import RegardError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.models.storage import load_model
from regard_lab.training import draw_curves, read_log, read_run
from regard_lab.training.comparison.study import read_asked, read_measures
from regard_lab.training.identity import read_sessions
from regard_lab.training.recipes.run_folder import draw_run, read_settings, read_test, write_samples
from regard_lab.training.record import Log

SMALL = ("--dim", 16, "--layers", 1, "--heads", 2, "--vocab-size", 300, "--warmup-steps", 1, "--cpu")
FLIPS = 16  # of each file: every byte of the short parts, else drawn


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(90)))
    return path


@pytest.fixture(scope="module")
def run(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    answer = regard("train", "translation", "--data", pairs, "--out", folder, "--steps", 2, *SMALL)
    assert answer.returncode == 0, answer.stderr
    log = Log(folder / "log.jsonl", step=2)
    for step in range(3, 60):
        log.write({"step": step, "kind": "training", "loss": 2.0 + step, "learning_rate": 0.1})
    return folder


def read_everything(run):
    saved = load_model(run)
    told = read_sessions(run / "run.json")
    if told[1]:
        raise RegardError(told[1][0])
    return (
        saved.config, {name: tensor.tolist() for name, tensor in saved.state.items()}, saved.extra_files,
        read_settings(run), read_test(run), read_run(run), read_log(run / "log.jsonl"), told,
    )  # fmt: skip


def test_a_flipped_bit_of_any_file_of_a_run_changes_nothing_or_is_told(run):
    whole, dice = read_everything(run), random.Random(0)
    noticed = set()
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        if path.name == "optimiser.safetensors":
            continue  # read by a resumed training; its seal is that of all tensors
        content = path.read_bytes()
        for place in dice.sample(range(len(content)), min(FLIPS, len(content))):
            flipped = bytes([content[place] ^ 1 << dice.randrange(8)])
            path.write_bytes(content[:place] + flipped + content[place + 1 :])
            try:
                assert read_everything(run) == whole, (path.name, place)
            except RegardError:
                noticed.add(path.name)
        path.write_bytes(content)
    read = {"test.jsonl", "log.jsonl", "settings.json", "run.json", "checkpoints.json", "training.json"}
    assert noticed == read | {"config.json", "weights.safetensors", "tokeniser.json", "source-words.json"}


def test_a_changed_test_split_is_scored_nowhere(run):
    content = (run / "test.jsonl").read_bytes()
    (run / "test.jsonl").write_bytes(content.replace(b"Satz", b"Wort", 1))
    answer = regard("evaluate", run)
    (run / "test.jsonl").write_bytes(content)
    assert answer.returncode == 1
    assert "test.jsonl does not match its SHA-256 in settings.json" in answer.stderr.decode()
    assert answer.stdout == b""


def test_a_run_from_before_the_seal_is_scored_and_this_is_said(run):
    sealed = (run / "settings.json").read_bytes()
    replace_file(run / "settings.json", render_sealed({"settings": read_sealed(run / "settings.json")["settings"]}))
    answer = regard("evaluate", run, "--json")
    (run / "settings.json").write_bytes(sealed)
    assert answer.returncode == 0
    assert "written before test splits were sealed" in answer.stderr.decode()
    scores = json.loads(regard("evaluate", run, "--json").stdout)
    assert scores["trained_on"] == 0
    assert json.loads(answer.stdout) == scores | {"trained_on": None}  # nothing says that the hashes are whole


def test_a_damaged_log_costs_its_damaged_lines_alone_and_this_is_said(pairs, tmp_path):
    run = tmp_path / "run"
    assert regard("train", "translation", "--data", pairs, "--out", run, "--steps", 6, *SMALL).returncode == 0
    log = Log(run / "log.jsonl", step=0)
    for step in range(1, 7):
        log.write({"step": step, "kind": "training", "loss": 2.0 + step, "learning_rate": 0.1})
    content = (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(content[:70] + bytes([content[70] ^ 1]) + content[71:])
    answer = regard("train", "translation", "--out", run, "--resume", "--steps", 7, "--cpu")
    assert answer.returncode == 0, answer.stderr
    assert "1 line of " in answer.stderr.decode()
    assert "cannot be read, and 5 can" in answer.stderr.decode()
    assert [line["step"] for line in read_log(run / "log.jsonl") if line["kind"] == "training"][:5] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1, "kind": "training", "loss": "x"}',
        b'{"step": 1, "kind": "training", "loss": 1e308}\n{"step": 2, "kind": "training", "loss": -1e308}',
        b'{"step": %d, "kind": "training", "loss": 1.0}' % 10**400,
        b'{"step": 1, "kind": "validation", "loss": [1]}',
        b"\x00\xff",
    ],
)
def test_no_damaged_log_stops_a_training_through_its_picture(tmp_path, line):
    (tmp_path / "log.jsonl").write_bytes(line + b"\n")
    said = []
    draw_run(tmp_path, said.append, tell_lost=True)
    assert len(said) <= 1
    assert (said and said[0].startswith("no picture: ")) or (tmp_path / "curves.png").exists()


def test_the_curves_of_a_damaged_log_say_what_they_lack(run, tmp_path):
    content = (run / "log.jsonl").read_bytes().split(b"\n")
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([content[0], b"damaged", *content[2:]]))
    [sentence] = draw_curves(tmp_path / "log.jsonl", tmp_path / "curves.png")
    assert re.match(r"1 line of .*log\.jsonl cannot be read, and \d+ can; the first reason: .*line 2", sentence)


def test_samples_that_cannot_be_written_stop_no_training(tmp_path):
    (tmp_path / "samples" / "step-000001.txt").mkdir(parents=True)
    write_samples(lambda model, picture: ["a line"], None, 1, tmp_path)
    assert list((tmp_path / "samples").iterdir()) == [tmp_path / "samples" / "step-000001.txt"]


ASKED = {"task": "translation", "own": {}, "data": ["pronouns"], "steps": 3, "cache_mib": 64.0, "length": 64}
ROW = {
    "name": "none", "parameters": 12, "quality": {"BLEU": 1.5}, "decoding": {"ids a second": 2.5}, "by_length": [],
    "spent": {"steps": 1, "tokens": 2, "seconds": 0.5, "cpu_seconds": None, "peak_bytes": None}, "memory": {},
    "curve": [],
}  # fmt: skip


@pytest.mark.parametrize(("content", "read"), [(ASKED, read_asked), (ROW, read_measures)])
def test_a_flipped_bit_of_what_a_comparison_keeps_is_told(tmp_path, content, read):
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(content))
    said = []
    before = read(path, said.append)
    assert "written before such files were sealed" in said.pop()
    whole = render_sealed(content)
    path.write_bytes(whole)
    assert read(path, said.append) == before
    assert not said
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(RegardError, match=r"kept\.json"):
            read(path)
