"""`regard train`, `average` and `evaluate`: runs that go on, what they leave for people, and what stops them."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commanding import SMALL, Forked, printed, refusal, regard, succeeded

from regard_lab.conversion import load_converted
from regard_lab.decoding import Translator
from regard_lab.models import LanguageModel, TranslationTransformer
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.storage import load_model
from regard_lab.text import Tokeniser
from regard_lab.training import average_checkpoints, draw_curves, read_log
from regard_lab.training.identity import FILES
from regard_lab.training.log import Log
from regard_lab.training.recipes import reading
from regard_lab.training.recipes.evaluation import translators
from regard_lab.training.recipes.run_folder import (
    FILES_OF_RECIPES,
    FILES_OF_SOME,
    draw_run,
    read_settings,
    write_samples,
)

PROGRAM = "from regard_lab.cli import main; main()"
QUICK = ("--warmup-steps", 1, "--schedule", "constant", *SMALL)


@pytest.fixture(scope="module")
def translator(data, tmp_path_factory):
    """A translator with a mechanism in its encoder, and gradient checkpointing."""
    run = tmp_path_factory.mktemp("runs") / "translator"
    options = (
        "--steps",
        3,
        "--validate-every",
        2,
        "--gradient-checkpointing",
        "--mechanism",
        "performer(16)",
    )
    succeeded("train", "translation", "--data", data / "pairs.tsv", "--out", run, *options, *QUICK)
    return run


# --- every kind of model


@pytest.mark.parametrize("model", ["luong-concat", "none"])
def test_a_recurrent_translator_is_trained_gone_on_with_and_used(
    model, data, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    look = tmp_path / "look.png"
    sizes = (
        "--dim",
        16,
        "--hidden",
        12,
        "--layers",
        1,
        "--vocab-size",
        300,
        "--batch-tokens",
        200,
        "--cpu",
    )
    train = ("train", "translation", "--out", run)
    begun = succeeded(*train, "--data", data / "pairs.tsv", "--model", model, "--steps", 1, *sizes)
    assert f"{model} of " in begun.err
    assert "going on after step 1" in succeeded(*train, "--resume", "--steps", 2, "--cpu").err
    assert read_settings(run)["model"] == model
    assert succeeded("translate", run, "the bird", "--beam", 2).stdout.count(b"\n") == 1
    assert 0 <= printed("evaluate", run)["exact_match"] <= 1
    draw = ("translate", run, "the bird", "--picture", look)
    if model == "none":
        assert "no attention weights" in refusal(*draw)
    else:
        succeeded(*draw)
    assert look.exists() == (model != "none")
    for name in ("CONTRAST_PAIRS", "SWAPS"):
        monkeypatch.setattr(translators, name, 2)
    monkeypatch.setattr(translators, "PRONOUN_COUNTS", {"test": 3, "valid": 3})
    report = translators.judge_pronouns(Translator.load(run), seed=0)
    # a recurrent encoder has no self-attention to look with
    assert report.head is report.agreement is None
    assert {"pronoun_accuracy", "contrast_accuracy", "swap_followed"} <= report.to_dict().keys()
    assert "agreement" not in " ".join(report.lines())


def test_the_mechanism_is_that_of_the_encoder_alone_and_goes_with_conversions_and_averages(
    translator, tmp_path
):
    model = TranslationTransformer.load(translator)
    assert model.config.gradient_checkpointing
    assert str(model.encoder[0].attention.mechanism.declared) == "performer(16, seed=0)"
    (layer,) = model.decoder
    others = (layer.self_attention.mechanism.declared, layer.cross_attention.mechanism.declared)
    assert [str(mechanism) for mechanism in others] == ["softmax(scaled_dot)"] * 2
    load_converted(translator, 1).save(tmp_path / "one")
    average_checkpoints(translator, 1, tmp_path / "mean")
    for folder, kv_heads in (("one", 1), ("mean", None)):
        found = Translator.load(tmp_path / folder)
        assert found.translate(["the zebra"])[0].unknown_words == ("zebra",)
        config = found.model.config
        assert (config.encoder_mechanism, config.decoder_kv_heads) == ("performer(16)", kv_heads)


def test_a_run_without_encoder_weights_is_scored_and_has_no_picture(data, tmp_path):
    linformer = ("--mechanism", "linformer(256, 4)", "--steps", 1, *QUICK)
    run = tmp_path / "run"
    picture = tmp_path / "a.png"
    succeeded("train", "translation", "--data", data / "pairs.tsv", "--out", run, *linformer)
    assert "which computes no weights" in refusal(
        "translate", run, "the bird", "--picture", picture
    )
    assert not picture.exists()


def test_a_language_model_is_trained_and_goes_on_with_what_it_was_given(data, tmp_path):
    run = tmp_path / "run"
    options = (
        "--tokeniser",
        "byte",
        "--block",
        32,
        "--kv-heads",
        1,
        "--validate-every",
        3,
        "--steps",
        6,
        *QUICK,
    )
    patterns = ("--attention", "causal & causal_window(8)", "--layers", 2, "--attention", "full")
    answer = succeeded(
        "train", "language-model", "--data", data / "text.txt", "--out", run, *options, *patterns
    )
    assert "260 bytes" in answer.err
    assert "bits a character" in answer.last
    model = LanguageModel.load(run)
    assert (model.config.pattern, model.config.kv_heads) == (
        ("causal & causal_window(8)", "full"),
        1,
    )
    (path,) = run.glob("step-*/tokeniser.json")
    tokeniser = Tokeniser.from_json(path.read_text())
    text = (data / "text.txt").read_text()
    assert tokeniser.decode(tokeniser.encode(text)) == text
    succeeded(
        "train", "language-model", "--out", run, "--resume", "--steps", 9, "--keep", 5, "--cpu"
    )
    assert [
        line["step"] for line in read_log(run / "log.jsonl") if line["kind"] == "validation"
    ] == [3, 6, 9]
    settings = read_settings(run)
    assert (settings["steps"], settings["keep"]) == (9, 5)
    (run / "step-notes").mkdir()  # a name like that of a checkpoint
    again = succeeded("train", "language-model", "--out", run, "--resume", "--cpu")
    assert "all steps are done: 9 steps" in again.last
    assert {"step-000006", "step-000009", "step-notes"} <= {
        folder.name for folder in run.glob("step-*")
    }


def test_the_embedded_corpus_needs_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PRONOUN_COUNTS", {"train": 300, "valid": 20})
    options = (
        "--data",
        "pronouns",
        "--tokeniser",
        "character",
        "--steps",
        1,
        "--block",
        16,
        *QUICK,
    )
    answer = succeeded("train", "language-model", "--out", tmp_path / "run", *options)
    assert "characters of the embedded corpus" in answer.err


def test_a_classifier_begins_with_what_hidden_words_taught_or_from_nothing(data, tmp_path):
    run = tmp_path / "run"
    labels = data / "labels.tsv"
    hidden_words = tmp_path / "hidden"
    options = ("--steps", 4, "--validate-every", 2, "--keep", 3, *QUICK)
    succeeded("train", "masked-words", "--data", data / "text.txt", "--out", hidden_words, *options)
    options = (
        "--batch-tokens",
        256,
        "--warmup-steps",
        2,
        "--schedule",
        "constant",
        "--cpu",
        "--keep",
        3,
    )
    begin = (
        "--data",
        labels,
        "--from",
        hidden_words,
        "--steps",
        4,
        "--validate-every",
        2,
        *options,
    )
    answer = succeeded(
        "train", "classifier", "--out", run, *begin, "--attention", "sliding_window(4)"
    )
    assert "test texts right with the best model" in answer.last
    begun = TextEncoder.load(hidden_words)
    trained = TextEncoder.load(run)
    assert (trained.config.head, trained.config.classes, trained.config.dim) == (
        "classes",
        2,
        begun.config.dim,
    )
    assert trained.config.pattern == ("sliding_window(4)",)
    moved = (trained.embedding.weight - begun.embedding.weight).abs().max()
    assert 0 < float(moved.detach()) < 0.02  # a few small steps away
    (classes,) = {path.read_text() for path in run.glob("step-*/classes.json")}
    assert sorted(json.loads(classes)) == ["even", "odd"]
    succeeded("train", "classifier", "--out", run, "--resume", "--steps", 5, "--cpu")

    answer = succeeded("average", run, "--last", 2, "--out", tmp_path / "mean")
    assert "the mean of step-000004, step-000005 is in" in answer.last
    parts = [load_model(run / name).state for name in ("step-000004", "step-000005")]
    for name, tensor in TextEncoder.load(tmp_path / "mean").state_dict().items():
        torch.testing.assert_close(tensor, (parts[0][name] + parts[1][name]) / 2)
    succeeded("classify", tmp_path / "mean", "the bird 4 sang")
    more = refusal("average", run, "--last", 9, "--out", tmp_path / "more")
    assert "keeps 3 (step-000002, step-000004, step-000005)" in more

    fresh = ("--data", labels, "--valid", labels, "--steps", 1, *QUICK)
    answer = succeeded(
        "train", "classifier", "--out", tmp_path / "fresh", *fresh, "--pooling", "first"
    )
    assert "validation texts right" in answer.last
    assert TextEncoder.load(tmp_path / "fresh").config.pooling == "first"


def test_as_many_labels_as_texts_are_remarked(tmp_path):
    table = tmp_path / "swapped.tsv"
    table.write_text(
        "".join(f"the bird {n} sang\t{'odd' if n % 2 else 'even'}\n" for n in range(40))
    )
    said = regard(
        "train", "classifier", "--data", table, "--out", tmp_path / "run", "--steps", 1, *QUICK
    ).err
    assert "there are 40 labels for 40 texts, so most labels cannot be learned" in said
    assert "look whether the columns are swapped" in said


# --- going on


def test_a_user_trains_stops_and_goes_on(tmp_path):
    table = tmp_path / "pairs.tsv"
    run = tmp_path / "a run"
    rows = [f"sentence number {n}\tSatz Nummer {n}\n" for n in range(120)]
    table.write_bytes(
        b"\xef\xbb\xbf" + "".join([*rows, "no tab here\n", rows[0], "\n", "\t\n"]).encode()
    )
    begin = ("train", "translation", "--data", table, "--out", run, "--validate-every", 2, *SMALL)
    assert "kept 120 of 124 lines" in succeeded(*begin, "--steps", 2).err
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "resume" in refusal(*begin, "--steps", 4)
    assert (
        "4 steps"
        in succeeded("train", "translation", "--out", run, "--resume", "--steps", 4, "--cpu").err
    )
    for words, reason in (
        (("translation", "--dim", 32), "begun with other settings (dim 16 -> 32)"),
        (("language-model",), "holds a run of another command"),
    ):
        assert reason in refusal("train", words[0], "--out", run, "--resume", "--cpu", *words[1:])


def test_a_run_goes_on_in_another_folder_with_its_own_data_once_they_are_named(
    tmp_path, monkeypatch
):
    table, run, (here, elsewhere) = (
        tmp_path / "here/st.csv",
        tmp_path / "run",
        (tmp_path / "here", tmp_path / "there"),
    )
    text = "source,target\n" + "".join(f"sentence {n},Satz {n}\n" for n in range(90))
    for folder in (here, elsewhere):
        folder.mkdir()
    table.write_text(text)
    monkeypatch.chdir(here)
    succeeded("train", "translation", "--data", "st.csv", "--out", run, "--steps", 2, *QUICK)
    monkeypatch.chdir(elsewhere)
    resume = ("train", "translation", "--out", run, "--resume", "--steps", 3)
    assert refusal(*resume).startswith(
        f"regard: st.csv does not exist here, and the run in {run} was begun with this path, relative to the "
        f"folder in which it was begun; name the place of the file by --data"
    )
    kept = (run / "test.jsonl").read_bytes()
    (elsewhere / "st.csv").write_text(text.partition("sentence 80,")[0])
    other = refusal(*resume)
    assert "was begun with other data (pairs was " in other
    assert not any(len(word.strip("(),;.")) == 64 for word in other.split())  # no hashes
    assert (
        refusal(*resume, "--data", "sr.csv")
        == "regard: sr.csv does not exist; did you mean st.csv?"
    )
    target = json.loads(kept.splitlines()[0])["target"]
    table.write_text(text.replace(f",{target}\n", f",{target} anders\n"))
    assert "was begun with other data (its test.jsonl does not hold the " in refusal(
        *resume, "--data", table
    )
    assert (run / "test.jsonl").read_bytes() == kept  # it was replaced where only it had changed
    table.write_text(text)
    (elsewhere / "st.csv").unlink()
    assert "going on after step 2 of 3" in succeeded(*resume, "--data", table).err
    succeeded(*resume[:-1], 4)  # the new place is kept


# --- what is left


def test_every_file_of_a_run_is_explained(translator):
    text = (translator / "README.txt").read_text()
    explained = set(re.findall(r"^(\S+)\n    ", text, re.MULTILINE))
    there = {name for name in FILES_OF_SOME if (translator / name).exists()}
    assert there == {"curves.png", "samples/"}  # and no "pictures/"
    assert explained == {*FILES, *FILES_OF_RECIPES, *there}
    for path in translator.iterdir():
        name = f"{path.name}/" if path.is_dir() else path.name
        assert name in {*explained, "README.txt"} or name.startswith("step-"), name


def test_each_validation_leaves_translations_and_the_attention_of_one(translator):
    samples = translator / "samples"
    names = {f"step-00000{step}.{kind}" for step in (2, 3) for kind in ("png", "txt")}
    assert {path.name for path in samples.iterdir()} == names
    assert (samples / "step-000003.png").read_bytes().startswith(b"\x89PNG")
    source, wanted, written, *_ = (samples / "step-000003.txt").read_text().splitlines()
    number = re.search(r"\d+", source)[0]
    sentence = f"the bird number {number} sang"
    assert (source, wanted) == (
        f"source     {sentence}",
        f"should be  der Vogel Nummer {number} sang",
    )
    translation = succeeded("translate", translator, sentence).out.strip()
    assert written.split("  ", 1)[1].strip() == translation  # the model of step 3 is the best one


def test_a_sample_that_cannot_be_shown_or_written_stops_nothing(data, tmp_path, monkeypatch):
    (tmp_path / "samples" / "step-000001.txt").mkdir(parents=True)
    write_samples(lambda model, picture: ["a line"], None, 1, tmp_path)
    assert list((tmp_path / "samples").iterdir()) == [tmp_path / "samples" / "step-000001.txt"]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    options = ("--data", data / "pairs.tsv", "--out", tmp_path / "run", "--steps", 1, *QUICK)
    answer = succeeded("train", "translation", *options)
    text = (tmp_path / "run/samples/step-000001.txt").read_text()
    assert text.startswith("source")
    assert "no picture: a picture needs the package" in text
    assert "no picture: " in answer.err  # nor curves


# --- what stops it


def test_a_loss_that_is_not_finite_is_one_sentence_and_the_run_goes_on_where_it_was(data, tmp_path):
    options = ("--data", data / "text.txt", "--steps", 9, "--learning-rate", 1e30, *QUICK)
    answer = regard("train", "language-model", "--out", tmp_path / "run", *options)
    assert answer.returncode == 1
    for part in (
        "cannot be done: the gradient of batch 1 is not finite",
        "the first tensor that is not is the",
        "lower learning rate",
    ):
        assert part in answer.last
    step = int(answer.last.split("as it was after step ")[1].split(".")[0])
    assert (tmp_path / "run" / f"step-{step:06d}").is_dir()
    again = regard("train", "language-model", "--out", tmp_path / "run", "--resume", "--cpu")
    assert f"going on after step {step}" in again.err
    assert again.last == answer.last


def test_a_run_or_file_that_does_not_exist_leads_to_the_nearest(
    run_folder, data, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    nowhere = regard("translate", "runs/min", "A dog.")
    assert (
        nowhere.last
        == "regard: runs/min does not exist; check the path, which is relative to the current folder"
    )
    (tmp_path / "runs" / "mini").mkdir(parents=True)
    assert (
        regard("evaluate", "runs/min").last
        == "regard: runs/min does not exist; did you mean runs/mini?"
    )
    answer = regard("translate", run_folder.parent, "A dog.")
    assert answer.last.endswith(
        f"neither config.json nor checkpoints.json in it; there is one in {run_folder}"
    )
    answer = regard("train", "translation", "--data", data / "pair.tsv", "--out", tmp_path / "new")
    assert (
        answer.last
        == f"regard: {data / 'pair.tsv'} does not exist; did you mean {data / 'pairs.tsv'}?"
    )


def refuse(*more, **options):
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_folder_that_cannot_be_written_is_refused_before_the_data_are_read(
    data, tmp_path, monkeypatch
):
    table = data / "pairs.tsv"
    for run, folder, reason in (
        (table / "run", table, "Not a directory"),
        (tmp_path / "some/run", tmp_path, "Permission denied"),
    ):
        said = f"regard: {run} cannot be made, since {folder} takes no new folder ({reason}); choose another folder"
        assert (
            refusal("train", "translation", "--data", table, "--out", run, "--steps", 1, code=1)
            == said
        )
        monkeypatch.setattr(Path, "mkdir", refuse)


def test_a_full_disk_behind_standard_output_is_named(run_folder):
    with open("/dev/full", "w") as full:
        for words in (("show", "causal"), ("translate", run_folder, "a street")):
            process = Forked(*words, streams={1: full.fileno()})
            _, err = process.communicate()
            assert (process.returncode, err.decode()) == (
                1,
                "regard: standard output: No space left on device\n",
            )


OWN = ("settings.json", "test.jsonl", "curves.png", "notes.txt")
INTO = (
    "train translation --data pronouns",
    "train language-model --data pronouns",
    "train classifier --data labels.tsv",
    "train translation --resume",
    "demo --steps 1",
    "bench overhead --quick",
    "convert kv-heads nowhere --kv-heads 1",
)


@pytest.mark.parametrize("command", INTO)
def test_a_folder_with_own_files_is_refused_by_name(tmp_path, monkeypatch, command):
    own = [*OWN, "bench.json"][INTO.index(command) % (len(OWN) + 1)]
    (tmp_path / own).write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert own in refusal(*command.split(), "--out", ".") or "convert" in command
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {own: "{}"}


@pytest.mark.slow
def test_two_processes_are_one_voice_and_one_run(data, tmp_path):
    """Through the real launcher, and the run goes on."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--no-python",
    ]
    begin = ["--data", data / "text.txt", "--steps", 2, *QUICK]
    for options in (begin, ["--resume", "--steps", 4, "--cpu"]):
        command = [
            *launcher,
            sys.executable,
            "-c",
            PROGRAM,
            "train",
            "language-model",
            "--out",
            tmp_path / "run",
        ]
        done = subprocess.run(
            [*map(str, command), *map(str, options)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(b"all steps are done") == 1
    sessions = json.loads((tmp_path / "run/run.json").read_text())["sessions"]
    found = [(one["processes"], one["after_step"]) for one in sessions]
    assert found == [(2, 0), (2, 2)]
    assert LanguageModel.load(tmp_path / "run").config.layers == 1


# --- damage


@pytest.fixture(scope="module")
def logged(translator, tmp_path_factory):
    """A run with a log of many lines."""
    folder = shutil.copytree(translator, tmp_path_factory.mktemp("runs") / "run")
    log = Log(folder / "log.jsonl", step=3)
    for step in range(4, 60):
        log.write({"step": step, "kind": "training", "loss": 2.0 + step, "learning_rate": 0.1})
    return folder


def test_a_changed_test_split_is_scored_nowhere(logged):
    content = (logged / "test.jsonl").read_bytes()
    (logged / "test.jsonl").write_bytes(content.replace(b"Vogel", b"Hunde", 1))
    said = refusal("evaluate", logged, code=1)
    (logged / "test.jsonl").write_bytes(content)
    assert "test.jsonl does not match its SHA-256 in settings.json" in said
    assert printed("evaluate", logged)["trained_on"] == 0


def test_a_damaged_log_costs_its_damaged_lines_alone(translator, logged, tmp_path):
    run = shutil.copytree(translator, tmp_path / "run")
    log = Log(run / "log.jsonl", step=0)
    for step in range(1, 4):
        log.write({"step": step, "kind": "training", "loss": 2.0 + step, "learning_rate": 0.1})
    content = (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(content[:70] + bytes([content[70] ^ 1]) + content[71:])
    said = succeeded("train", "translation", "--out", run, "--resume", "--steps", 4, "--cpu").err
    assert re.search("1 line of .* cannot be read, and 2 can", said)
    assert [line["step"] for line in read_log(run / "log.jsonl") if line["kind"] == "training"][
        :2
    ] == [2, 3]
    lines = (logged / "log.jsonl").read_bytes().split(b"\n")
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([lines[0], b"damaged", *lines[2:]]))
    [sentence] = draw_curves(tmp_path / "log.jsonl", tmp_path / "curves.png")
    assert re.match(
        r"1 line of .*log\.jsonl cannot be read, and \d+ can; the first reason: .*line 2", sentence
    )


@pytest.mark.usefixtures("drawn_pictures")
def test_no_damaged_log_stops_a_training_through_its_picture(tmp_path):
    for line in (
        b'{"step": 1, "kind": "training", "loss": 1e308}\n{"step": 2, "kind": "training", "loss": -1e308}',
        b'{"step": %d, "kind": "training", "loss": 1.0}' % 10**400,
        b'{"step": 1, "kind": "validation", "loss": [1]}',
    ):
        (tmp_path / "log.jsonl").write_bytes(line + b"\n")
        remarks = []
        draw_run(tmp_path, remarks.append, tell_lost=True)
        assert len(remarks) <= 1
        assert (remarks and remarks[0].startswith("no picture: ")) or (
            tmp_path / "curves.png"
        ).exists()
