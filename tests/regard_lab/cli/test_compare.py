"""`regard compare`: one budget, one report, and nothing done twice."""

import json
import signal

import pytest
from forked import Forked
from matplotlib import image
from matplotlib.figure import Figure
from test_commands import regard

from regard_lab.training.comparison.report import write_plainly
from regard_lab.training.comparison.study import list_contenders

SMALL = ("--dim", 16, "--layers", 1, "--vocab-size", 300, "--batch-tokens", 200, "--validate-every", 2, "--steps", 4)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"number {'so ' * (n % 7)}{n}\tNummer {n}\n" for n in range(160)))
    return path


def test_translators_are_trained_on_the_same_and_reported_together(pairs, tmp_path):
    out = tmp_path / "study"
    options = ("--data", pairs, "--models", "none,luong-dot,transformer", "--kv-heads", "4,1", "--cache-mib", 2, *SMALL)
    answer = regard("compare", "--out", out, "--length", 20, "--json", *options)
    assert answer.returncode == 0, answer.stderr.decode()
    record = json.loads(answer.stdout)
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == ["none", "luong-dot", "transformer kv_heads=4", "transformer kv_heads=1"]
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    report = (out / "compare.md").read_text()
    assert all(f"| {name} |" in report for name in rows)
    assert {row["spent"]["steps"] for row in rows.values()} == {4}
    assert {row["spent"]["tokens"] for row in rows.values()} == {rows["none"]["spent"]["tokens"]}  # the same batches
    tested = len((out / "none" / "test.jsonl").read_text().splitlines())
    assert {sum(group["count"] for group in row["by_length"]) for row in rows.values()} == {tested}
    kept = {name: row["memory"] for name, row in rows.items()}
    four, one = kept["transformer kv_heads=4"], kept["transformer kv_heads=1"]
    # k and v of one decoder layer, 4 heads of 4 numbers of 4 bytes; by cross-attention as much for the source
    assert four["bytes an id written"] == four["bytes an id read"] == 2 * 4 * 4 * 4 == 4 * one["bytes an id written"]
    assert kept["none"]["bytes an id written"] == kept["none"]["bytes an id read"] == 0
    assert kept["luong-dot"]["bytes an id written"] == 0 < kept["luong-dot"]["bytes an id read"]
    assert four["texts that fit"] == 2 * 2**20 // (20 * 2 * 128 + four["bytes once"])

    refused = regard("compare", "--out", out, *options)
    assert (refused.returncode, "--resume" in refused.stderr.decode()) == (2, True)
    other = regard("compare", "--out", out, "--resume", "--length", 20, *options, "--seed", 3)
    assert "was begun with another seed" in other.stderr.decode()
    before = (out / "none" / "measures.json").stat().st_mtime_ns
    again = regard("compare", "--out", out, "--resume", "--json")
    assert json.loads(again.stdout)["rows"] == record["rows"]
    assert (out / "none" / "measures.json").stat().st_mtime_ns == before


def test_what_was_interrupted_goes_on_with_the_next_model(pairs, tmp_path):
    out = tmp_path / "study"
    options = [*SMALL[:-4], "--models", "none,luong-dot", "--validate-every", 10, "--steps", 40]
    process = Forked("compare", "--data", pairs, "--out", out, *options)
    for line in process.stderr:
        if b"validation loss" in line:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=1200)
    assert process.returncode == 130
    assert said.decode().splitlines()[-2:] == [
        "regard: interrupted; what is done is kept; go on with:",
        f"regard compare --out {out} --resume",
    ]
    on = regard("compare", "--out", out, "--resume", "--json")
    assert "going on after step" in on.stderr.decode()
    assert [row["spent"]["steps"] for row in json.loads(on.stdout)["rows"]] == [40, 40]


def test_what_was_not_given_is_chosen_as_for_a_training_and_told_in_a_line(pairs, tmp_path):
    out = tmp_path / "study"
    asked = ("--models", "none,transformer", "--minutes", 0.02, "--dropout", 0.25)
    answer = regard("compare", "--data", pairs, "--out", out, *asked, "--json")
    assert answer.returncode == 0, answer.stderr.decode()
    said = answer.stderr.decode()
    for name, layers in (("none", 1), ("transformer", 2)):
        assert f"{name}: chosen for 141 pairs" in said
        assert f"0.02 minutes: size tiny (dim 64, layers {layers}, " in said
        settings = json.loads((out / name / "settings.json").read_text())["settings"]
        chosen = {
            "dim": 64,
            "layers": layers,
            "vocab_size": 500,
            "batch_tokens": 1000,
            "dropout": 0.25,
            "minutes": 0.02,
        }
        assert {key: settings[key] for key in chosen} == chosen
    alone = regard("train", "translation", "--data", pairs, "--out", tmp_path / "run", *asked[2:], "--cpu")
    assert alone.returncode == 0
    settings = [
        json.loads((run / "settings.json").read_text())["settings"] for run in (out / "transformer", tmp_path / "run")
    ]
    assert settings[0] == settings[1]
    rows = json.loads(answer.stdout)["rows"]
    assert [0.5 <= row["spent"]["seconds"] <= 30 for row in rows] == [True, True]


def test_equal_parameters_are_equal(pairs, tmp_path):
    options = ("--models", "none,luong-dot,transformer", "--heads", "1,4", "--equal-parameters", *SMALL[:-1], 1)
    answer = regard("compare", "--data", pairs, "--out", tmp_path / "study", "--json", *options)
    numbers = [row["parameters"] for row in json.loads(answer.stdout)["rows"]]
    assert len(numbers) == 4
    assert max(numbers) < 1.05 * min(numbers), numbers


def test_language_models_are_compared_by_their_patterns(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the animal did not cross the street because it was tired\n" * 60)
    long = "causal & (causal_window(8) | global_tokens(0..3) | strided(8) | random_blocks(2, block=8, past=true))"
    patterns = ("--attention", "causal", "--attention", "causal_window(8)", "--attention", long)
    answer = regard(
        "compare", "--task", "language-model", "--data", text, *patterns, "--out", tmp_path / "study", "--json", *SMALL,
        "--batch-tokens", 512,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr.decode()
    full, window, _ = json.loads(answer.stdout)["rows"]
    assert full["parameters"] == window["parameters"]
    assert window["memory"]["bytes an id written"] == 0 < full["memory"]["bytes an id written"]
    assert "validation loss" in full["quality"]
    # k and v of 1 layer of 16 numbers of 4 bytes, for 64 ids: a language model has no source
    assert full["memory"]["texts that fit"] == 64 * 2**20 // (64 * 2 * 16 * 4)
    assert "bytes an id read" not in full["memory"]

    report = (tmp_path / "study" / "compare.md").read_text()
    assert "| KiB per id | KiB per text | texts of 64 ids" in report
    assert "source" not in report
    lines = [line for line in report.splitlines() if line.startswith(f"| attention={long}".replace("|", "\\|")[1:])]
    assert [line.replace("\\|", "").count("|") for line in lines] == [4, 7, 5]
    picture = image.imread(tmp_path / "study" / "compare.png")[..., :3]
    assert (picture[:, [0, -1]] == 1).all()  # no name is cut by a border


def test_mechanisms_are_compared_and_their_states_measured(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the animal did not cross the street because it was tired\n" * 60)
    wish = ("--mechanism", "softmax", "--mechanism", "performer(16, seed=1)")
    answer = regard(
        "compare", "--task", "language-model", "--data", text, *wish, "--out", tmp_path / "study", "--json", *SMALL,
        "--batch-tokens", 512,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr.decode()
    softmax, performer = json.loads(answer.stdout)["rows"]
    assert [softmax["name"], performer["name"]] == ["mechanism=softmax", "mechanism=performer(16, seed=1)"]
    assert performer["memory"]["bytes an id written"] == 0 < performer["memory"]["bytes once"]
    assert softmax["memory"]["bytes once"] == 0 < softmax["memory"]["bytes an id written"]
    kept = json.loads((tmp_path / "study" / "mechanism=performer_16__seed=1_" / "settings.json").read_text())
    assert kept["settings"]["mechanism"] == ["performer(16, seed=1)"]
    report = (tmp_path / "study" / "compare.md").read_text()
    assert report.startswith("# Language model with mechanism softmax and performer(16, seed=1)\n")


def test_a_translator_takes_a_mechanism_in_its_encoder(pairs, tmp_path):
    wish = ("--models", "transformer", "--mechanism", "softmax", "--mechanism", "linear", *SMALL[:-1], 1)
    answer = regard("compare", "--data", pairs, "--out", tmp_path / "study", "--json", *wish)
    assert answer.returncode == 0, answer.stderr.decode()
    names = [row["name"] for row in json.loads(answer.stdout)["rows"]]
    assert names == ["transformer mechanism=softmax", "transformer mechanism=linear"]
    settings = json.loads((tmp_path / "study" / "transformer_mechanism=linear" / "settings.json").read_text())
    assert settings["settings"]["mechanism"] == "linear"


def test_losses_are_labelled_without_powers_of_ten():
    figure = Figure()
    panel = figure.subplots()
    panel.plot([1, 2], [0.5, 6.0])
    panel.set_yscale("log")
    write_plainly(panel)
    figure.canvas.draw()
    labels = {label.get_text() for label in panel.get_yticklabels(which="both")}
    assert {"1", "2", "6"} <= labels
    assert not any("10^" in label for label in labels)


def test_folders_of_different_patterns_differ_however_they_are_spelt():
    windows = [f"causal & (causal_window({8 + number}) {' | global_tokens(0..3)' * 20})" for number in range(2)]
    patterns = ["strided(8) & causal", "strided(8) | causal", *windows]
    folders = [one.folder for one in list_contenders("language-model", {"attention": patterns})]
    assert folders[:2] == ["attention=strided_8__and_causal", "attention=strided_8__or_causal"]
    assert len(set(folders)) == 4
    assert max(map(len, folders)) < 128


LANGUAGE = ("--task", "language-model")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (("--models", "rnn"), "model 'rnn' does not exist"),
        (("--task", "painting"), "task 'painting' does not exist"),
        (("--kv-heads", "8,x"), "'x' of '8,x' is not a number of heads"),
        (("--task", "language-model", "--models", "none"), "--models are translators"),
        (("--models", "none,none"), "named twice"),
        (("--models", "none", "--attention", "causal"), "--attention belongs to the Transformer"),
        (("--models", "none", "--positions", "rotary"), "--positions belongs to the Transformer"),
        (("--models", "none,transformer", "--attention", "causal_windw(3)"), "did you mean 'causal_window'"),
        (
            (*LANGUAGE, "--attention", "causal", "--attention", "causal & causal_windw(3)"),
            "there is no pattern 'causal_windw'",
        ),
        ((*LANGUAGE, "--attention", "causal", "--attention", "causal"), "named twice"),
        (("--models", "none", "--mechanism", "linear"), "--mechanism belongs to the Transformer"),
        (("--models", "transformer", "--mechanism", "perfomer(8)"), "did you mean 'performer'"),
        (
            (*LANGUAGE, "--attention", "causal_window(8)", "--mechanism", "linear"),
            "not causal_window(8); use",
        ),
        ((*LANGUAGE, "--dim", 16, "--heads", "2,3"), "multiple of heads, 3"),
        ((*LANGUAGE, "--batch-tokens", 100), "a block of text has 256 ids; a batch holds at least one block"),
    ],
)
def test_mistakes_are_told_before_any_work(wish, words, pairs, tmp_path):
    answer = regard("compare", "--data", pairs, "--out", tmp_path / "study", *wish)
    assert answer.returncode == 2
    assert words in answer.stderr.decode()
    assert not (tmp_path / "study").exists()
    assert regard("compare", "--out", tmp_path / "study").returncode == 2
