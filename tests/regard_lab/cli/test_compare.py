"""`regard compare`: one budget, one report, and nothing done twice."""

import json
import signal
import time

import pytest
from commanding import Forked, regard, succeeded
from matplotlib import image

from regard_lab.cli import console
from regard_lab.training.comparison import runs
from regard_lab.training.comparison.measures import count_numbers, with_as_many_numbers
from regard_lab.training.comparison.study import list_contenders
from regard_lab.training.recipes import TranslationTraining

SMALL = ("--dim", 16, "--layers", 1, "--vocab-size", 300, "--batch-tokens", 200, "--validate-every", 2, "--steps", 4)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"number {'so ' * (n % 7)}{n}\tNummer {n}\n" for n in range(100)))
    return path


def test_translators_are_trained_on_the_same_and_reported_together(pairs, tmp_path):
    out = tmp_path / "study"
    options = ("--data", pairs, "--models", "none,luong-dot,transformer", "--kv-heads", "4,1", "--cache-mib", 2, *SMALL)
    record = json.loads(succeeded("compare", "--out", out, "--length", 20, "--json", *options).out)
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
    assert (refused.returncode, "--resume" in refused.err) == (2, True)
    other = regard("compare", "--out", out, "--resume", "--length", 20, *options, "--seed", 3)
    assert "was begun with another seed" in other.err
    before = (out / "none" / "measures.json").stat().st_mtime_ns
    again = succeeded("compare", "--out", out, "--resume", "--json")
    assert json.loads(again.out)["rows"] == record["rows"]
    assert (out / "none" / "measures.json").stat().st_mtime_ns == before


def test_what_was_interrupted_goes_on_with_the_next_model(pairs, tmp_path):
    out = tmp_path / "study"
    options = [*SMALL[:-4], "--models", "none,luong-dot", "--validate-every", 4, "--steps", 12]
    process = Forked("compare", "--data", pairs, "--out", out, *options)
    process.wait_for(b"validation loss")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=1200)
    assert process.returncode == 130
    assert err.decode().splitlines()[-2:] == [
        "regard: interrupted; what is done is kept; go on with:",
        f"regard compare --out {out} --resume",
    ]
    on = succeeded("compare", "--out", out, "--resume", "--json")
    assert "going on after step" in on.err
    assert [row["spent"]["steps"] for row in json.loads(on.out)["rows"]] == [12, 12]


def test_what_was_not_given_is_chosen_as_for_a_training_and_printed_in_a_line(pairs, tmp_path):
    out = tmp_path / "study"
    asked = ("--models", "none,transformer", "--minutes", 0.006, "--dropout", 0.25)
    answer = succeeded("compare", "--data", pairs, "--out", out, *asked, "--json")
    for name, layers in (("none", 1), ("transformer", 2)):
        assert f"{name}: chosen for " in answer.err
        assert f"0.006 minutes: size tiny (dim 64, layers {layers}, " in answer.err
        settings = json.loads((out / name / "settings.json").read_text())["settings"]
        chosen = {
            "dim": 64,
            "layers": layers,
            "vocab_size": 500,
            "batch_tokens": 1000,
            "dropout": 0.25,
            "minutes": 0.006,
        }
        assert {key: settings[key] for key in chosen} == chosen
    succeeded("train", "translation", "--data", pairs, "--out", tmp_path / "run", *asked[2:], "--cpu")
    runs = (out / "transformer", tmp_path / "run")
    first, second = (json.loads((run / "settings.json").read_text())["settings"] for run in runs)
    assert first == second
    assert all(0.1 <= row["spent"]["seconds"] <= 30 for row in json.loads(answer.out)["rows"])


def test_equal_parameters_are_equal(pairs, tmp_path):
    wanted = None
    for model in ("none", "luong-dot", "transformer"):
        given = {"data": (str(pairs),), "model": model, "dim": 16, "layers": 1}
        config = TranslationTraining.new_config(given)
        wanted = wanted or count_numbers(config, 300)
        assert abs(count_numbers(with_as_many_numbers(config, wanted, 300), 300) / wanted - 1) < 0.02
    options = ("--models", "none,transformer", "--equal-parameters", *SMALL[:-1], 1)
    rows = json.loads(succeeded("compare", "--data", pairs, "--out", tmp_path / "study", "--json", *options).out)[
        "rows"
    ]
    assert rows[0]["parameters"] == pytest.approx(rows[1]["parameters"], rel=0.05)


@pytest.mark.usefixtures("drawn_pictures")
def test_language_models_are_compared_by_their_patterns_and_mechanisms(data, tmp_path):
    long = "causal & (causal_window(8) | global_tokens(0..3) | strided(8) | random_blocks(2, block=8, past=true))"
    patterns = ("--attention", "causal", "--attention", "causal_window(8)", "--attention", long)
    common = ("--task", "language-model", "--data", data / "text.txt", "--json", *SMALL[:-1], 1, "--batch-tokens", 512)
    record = json.loads(succeeded("compare", *common, *patterns, "--out", tmp_path / "a").out)
    full, window, _ = record["rows"]
    assert full["parameters"] == window["parameters"]
    assert window["memory"]["bytes an id written"] == 0 < full["memory"]["bytes an id written"]
    assert "validation loss" in full["quality"]
    # k and v of 1 layer of 16 numbers of 4 bytes, for 64 ids: a language model has no source
    assert full["memory"]["texts that fit"] == 64 * 2**20 // (64 * 2 * 16 * 4)
    assert "bytes an id read" not in full["memory"]
    report = (tmp_path / "a/compare.md").read_text()
    assert "| KiB per id | KiB per text | texts of 64 ids" in report
    assert "source" not in report
    lines = [line for line in report.splitlines() if line.startswith(f"| attention={long}".replace("|", "\\|")[1:])]
    assert [line.replace("\\|", "").count("|") for line in lines] == [4, 7, 5]
    picture = image.imread(tmp_path / "a/compare.png")[..., :3]
    assert (picture[:, [0, -1]] == 1).all()  # no name is cut by a border

    mechanisms = ("--mechanism", "softmax", "--mechanism", "performer(16, seed=1)")
    softmax, performer = json.loads(succeeded("compare", *common, *mechanisms, "--out", tmp_path / "b").out)["rows"]
    assert [softmax["name"], performer["name"]] == ["mechanism=softmax", "mechanism=performer(16, seed=1)"]
    assert performer["memory"]["bytes an id written"] == 0 < performer["memory"]["bytes once"]
    assert softmax["memory"]["bytes once"] == 0 < softmax["memory"]["bytes an id written"]
    kept = json.loads((tmp_path / "b/mechanism=performer_16__seed=1_/settings.json").read_text())
    assert kept["settings"]["mechanism"] == ["performer(16, seed=1)"]
    title = "# 2 models compared: mechanism=softmax, mechanism=performer(16, seed=1)\n"
    assert (tmp_path / "b/compare.md").read_text().startswith(title)


def test_folders_of_different_patterns_differ_however_they_are_spelt():
    windows = [f"causal & (causal_window({8 + number}) {' | global_tokens(0..3)' * 20})" for number in range(2)]
    patterns = ["strided(8) & causal", "strided(8) | causal", *windows]
    folders = [one.folder for one in list_contenders("language-model", {"attention": patterns})]
    assert folders[:2] == ["attention=strided_8__and_causal", "attention=strided_8__or_causal"]
    assert len(set(folders)) == 4
    assert max(map(len, folders)) < 128


def test_an_interrupted_comparison_of_runs_keeps_what_was_evaluated(run_folder, pairs, tmp_path, monkeypatch):
    evaluate, done = runs.evaluate_run, []

    def once(run, *rest, **more):
        if done:
            raise KeyboardInterrupt
        done.append(run)
        return evaluate(run, *rest, **more)

    monkeypatch.setattr(runs, "evaluate_run", once)
    with pytest.raises(KeyboardInterrupt):
        runs.compare_runs([run_folder, run_folder], [pairs], tmp_path)
    assert [row["run"] for row in json.loads((tmp_path / "compare.json").read_text())["rows"]] == [str(run_folder)]


def test_a_command_that_is_silent_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(console, "QUIET", 0.05)
    with console.counting("evaluating"), console.counting("translating", 60) as progress:
        progress(7)
        time.sleep(0.3)
    first, *others = capsys.readouterr().err.splitlines()
    assert (first, {*others}) == ("translating 60", {"  translating 7 of 60, 0:00"})  # the innermost alone
