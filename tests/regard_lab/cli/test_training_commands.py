"""`regard train`, `average` and `evaluate`: runs that go on, what they leave for people, and what stops them."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
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


def begin(command, data, run, options):
    """Begin a quick training of a small model."""
    words = ("train", command, "--data", data, "--out", run)
    return succeeded(*words, *options.split(), *QUICK)


def go_on(command, run, options=""):
    """Go on with the run in a folder."""
    return succeeded("train", command, "--out", run, "--resume", "--cpu", *options.split())


@pytest.fixture(scope="module")
def translator(data, tmp_path_factory):
    """A translator with a mechanism in its encoder, and gradient checkpointing."""
    run = tmp_path_factory.mktemp("runs") / "translator"
    options = "--steps 3 --validate-every 2 --gradient-checkpointing --mechanism performer(16)"
    begin("translation", data / "pairs.tsv", run, options)
    return run


# --- every kind of model


@pytest.mark.parametrize("model", ["luong-concat", "none"])
def test_a_recurrent_translator_is_trained_gone_on_with_and_used(
    model, data, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    look = tmp_path / "look.png"
    sizes = "--dim 16 --hidden 12 --layers 1 --vocab-size 300 --batch-tokens 200"
    options = f"--model {model} --steps 1 --cpu {sizes}"
    words = ("train", "translation", "--data", data / "pairs.tsv", "--out", run)
    assert f"{model} of " in succeeded(*words, *options.split()).err
    assert "going on after step 1" in go_on("translation", run, "--steps 2").err
    assert read_settings(run)["model"] == model
    assert succeeded("translate", run, "the bird", "--beam", 2).stdout.count(b"\n") == 1
    assert 0 <= printed("evaluate", run)["exact_match"] <= 1
    draw = ("translate", run, "the bird", "--picture", look)
    if model == "none":
        assert "no attention weights" in refusal(*draw)
    else:
        succeeded(*draw)
    assert look.exists() == (model != "none")

    monkeypatch.setattr(translators, "CONTRAST_PAIRS", 2)
    monkeypatch.setattr(translators, "SWAPS", 2)
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
    for attention in (layer.self_attention, layer.cross_attention):
        assert str(attention.mechanism.declared) == "softmax(scaled_dot)"

    load_converted(translator, 1).save(tmp_path / "one")
    average_checkpoints(translator, 1, tmp_path / "mean")
    for folder, kv_heads in (("one", 1), ("mean", None)):
        made = Translator.load(tmp_path / folder)
        assert made.translate(["the zebra"])[0].unknown_words == ("zebra",)
        config = made.model.config
        assert (config.encoder_mechanism, config.decoder_kv_heads) == ("performer(16)", kv_heads)


def test_a_run_without_encoder_weights_is_scored_and_has_no_picture(data, tmp_path):
    run = tmp_path / "run"
    picture = tmp_path / "a.png"
    words = ("--mechanism", "linformer(256, 4)", "--steps", 1, *QUICK)
    succeeded("train", "translation", "--data", data / "pairs.tsv", "--out", run, *words)
    said = refusal("translate", run, "the bird", "--picture", picture)
    assert "which computes no weights" in said
    assert not picture.exists()


def test_a_language_model_is_trained_and_goes_on_with_what_it_was_given(data, tmp_path):
    run = tmp_path / "run"
    patterns = ("--attention", "causal & causal_window(8)", "--layers", 2, "--attention", "full")
    options = "--tokeniser byte --block 32 --kv-heads 1 --validate-every 3 --steps 6"
    words = ("train", "language-model", "--data", data / "text.txt", "--out", run)
    answer = succeeded(*words, *options.split(), *QUICK, *patterns)
    assert "260 bytes" in answer.err
    assert "bits a character" in answer.last
    config = LanguageModel.load(run).config
    assert (config.pattern, config.kv_heads) == (("causal & causal_window(8)", "full"), 1)
    (path,) = run.glob("step-*/tokeniser.json")
    tokeniser = Tokeniser.from_json(path.read_text())
    text = (data / "text.txt").read_text()
    assert tokeniser.decode(tokeniser.encode(text)) == text

    go_on("language-model", run, "--steps 9 --keep 5")
    lines = read_log(run / "log.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [3, 6, 9]
    settings = read_settings(run)
    assert (settings["steps"], settings["keep"]) == (9, 5)

    (run / "step-notes").mkdir()  # a name like that of a checkpoint
    assert "all steps are done: 9 steps" in go_on("language-model", run).last
    names = {folder.name for folder in run.glob("step-*")}
    assert {"step-000006", "step-000009", "step-notes"} <= names


def test_the_embedded_corpus_needs_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PRONOUN_COUNTS", {"train": 300, "valid": 20})
    options = "--tokeniser character --steps 1 --block 16"
    answer = begin("language-model", "pronouns", tmp_path / "run", options)
    assert "characters of the embedded corpus" in answer.err


@pytest.fixture(scope="module")
def hidden_words(data, tmp_path_factory):
    """An encoder that was trained to find hidden words."""
    run = tmp_path_factory.mktemp("runs") / "hidden"
    begin("masked-words", data / "text.txt", run, "--steps 4 --validate-every 2 --keep 3")
    return run


@dataclass(frozen=True)
class Trained:
    """A run, and the last line that its training said."""

    run: Path
    verdict: str


@pytest.fixture(scope="module")
def classifier(data, hidden_words, tmp_path_factory):
    """A classifier that began with the encoder of hidden words."""
    run = tmp_path_factory.mktemp("runs") / "classifier"
    options = (
        "--steps 4 --validate-every 2 --keep 3 --attention sliding_window(4) "
        "--batch-tokens 256 --warmup-steps 2 --schedule constant --cpu"
    )
    words = ("--data", data / "labels.tsv", "--from", hidden_words, "--out", run)
    answer = succeeded("train", "classifier", *words, *options.split())
    return Trained(run, answer.last)


def test_a_classifier_begins_with_what_hidden_words_taught(classifier, hidden_words):
    assert "test texts right with the best model" in classifier.verdict
    begun = TextEncoder.load(hidden_words)
    trained = TextEncoder.load(classifier.run)
    assert (trained.config.head, trained.config.classes) == ("classes", 2)
    assert trained.config.dim == begun.config.dim
    assert trained.config.pattern == ("sliding_window(4)",)
    moved = (trained.embedding.weight - begun.embedding.weight).abs().max()
    assert 0 < float(moved.detach()) < 0.02  # a few small steps away
    (classes,) = {path.read_text() for path in classifier.run.glob("step-*/classes.json")}
    assert sorted(json.loads(classes)) == ["even", "odd"]


def test_the_mean_of_checkpoints_is_a_classifier_too(classifier, tmp_path):
    run = shutil.copytree(classifier.run, tmp_path / "run")
    mean = tmp_path / "mean"
    go_on("classifier", run, "--steps 5")
    answer = succeeded("average", run, "--last", 2, "--out", mean)
    assert "the mean of step-000004, step-000005 is in" in answer.last
    fourth = load_model(run / "step-000004").state
    fifth = load_model(run / "step-000005").state
    for name, tensor in TextEncoder.load(mean).state_dict().items():
        torch.testing.assert_close(tensor, (fourth[name] + fifth[name]) / 2)
    succeeded("classify", mean, "the bird 4 sang")
    more = refusal("average", run, "--last", 9, "--out", tmp_path / "more")
    assert "keeps 3 (step-000002, step-000004, step-000005)" in more


def test_a_classifier_begins_with_nothing_and_is_validated_on_what_is_named(data, tmp_path):
    labels = data / "labels.tsv"
    run = tmp_path / "run"
    words = ("--data", labels, "--valid", labels, "--out", run)
    answer = succeeded(
        "train", "classifier", *words, *["--steps", "1", "--pooling", "first"], *QUICK
    )
    assert "validation texts right" in answer.last
    assert TextEncoder.load(run).config.pooling == "first"


def test_as_many_labels_as_texts_are_remarked(tmp_path):
    table = tmp_path / "swapped.tsv"
    labels = ["even", "odd"] * 20
    table.write_text("".join(f"the bird {n} sang\t{label}\n" for n, label in enumerate(labels)))
    words = ("--data", table, "--out", tmp_path / "run", "--steps", 1)
    said = regard("train", "classifier", *words, *QUICK).err
    assert "there are 40 labels for 40 texts, so most labels cannot be learned" in said
    assert "look whether the columns are swapped" in said


# --- going on


def test_a_user_trains_stops_and_goes_on(tmp_path):
    table = tmp_path / "pairs.tsv"
    run = tmp_path / "a run"
    rows = [f"sentence number {n}\tSatz Nummer {n}\n" for n in range(120)]
    dropped = ["no tab here\n", rows[0], "\n", "\t\n"]
    table.write_bytes(b"\xef\xbb\xbf" + "".join([*rows, *dropped]).encode())
    new = ("train", "translation", "--data", table, "--out", run, "--validate-every", 2, *SMALL)
    assert "kept 120 of 124 lines" in succeeded(*new, "--steps", 2).err
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "resume" in refusal(*new, "--steps", 4)
    assert "4 steps" in go_on("translation", run, "--steps 4").err
    resume = ("--out", run, "--resume", "--cpu")
    changed = "begun with other settings (dim 16 -> 32)"
    assert changed in refusal("train", "translation", *resume, "--dim", 32)
    assert "holds a run of another command" in refusal("train", "language-model", *resume)


def test_a_run_goes_on_in_another_folder_with_its_own_data_once_they_are_named(
    tmp_path, monkeypatch
):
    begun_in = tmp_path / "here"
    elsewhere = tmp_path / "there"
    begun_in.mkdir()
    elsewhere.mkdir()
    table = begun_in / "st.csv"
    text = "source,target\n" + "".join(f"sentence {n},Satz {n}\n" for n in range(90))
    table.write_text(text)
    run = tmp_path / "run"
    monkeypatch.chdir(begun_in)
    begin("translation", "st.csv", run, "--steps 2")

    monkeypatch.chdir(elsewhere)
    resume = ("train", "translation", "--out", run, "--resume", "--steps", 3)
    assert refusal(*resume).startswith(
        f"regard: st.csv does not exist here, and the run in {run} was begun with this path, relative to the "
        f"folder in which it was begun; name the place of the file by --data"
    )
    test_split = (run / "test.jsonl").read_bytes()
    (elsewhere / "st.csv").write_text(text.partition("sentence 80,")[0])
    fewer = refusal(*resume)
    assert "was begun with other data (pairs was " in fewer
    assert not any(len(word.strip("(),;.")) == 64 for word in fewer.split())  # no hashes
    nearest = "regard: sr.csv does not exist; did you mean st.csv?"
    assert refusal(*resume, "--data", "sr.csv") == nearest

    target = json.loads(test_split.splitlines()[0])["target"]
    table.write_text(text.replace(f",{target}\n", f",{target} anders\n"))
    other_test = "was begun with other data (its test.jsonl does not hold the "
    assert other_test in refusal(*resume, "--data", table)
    # it was replaced where only it had changed
    assert (run / "test.jsonl").read_bytes() == test_split

    table.write_text(text)
    (elsewhere / "st.csv").unlink()
    assert "going on after step 2 of 3" in succeeded(*resume, "--data", table).err
    go_on("translation", run, "--steps 4")  # the new place is kept


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
    names = {
        "step-000002.png",
        "step-000002.txt",
        "step-000003.png",
        "step-000003.txt",
    }
    assert {path.name for path in samples.iterdir()} == names
    assert (samples / "step-000003.png").read_bytes().startswith(b"\x89PNG")
    source, wanted, written, *_ = (samples / "step-000003.txt").read_text().splitlines()
    number = re.search(r"\d+", source)[0]
    sentence = f"the bird number {number} sang"
    assert source == f"source     {sentence}"
    assert wanted == f"should be  der Vogel Nummer {number} sang"
    # the model of step 3 is the best one
    translation = succeeded("translate", translator, sentence).out.strip()
    assert written.split("  ", 1)[1].strip() == translation


def test_a_sample_that_cannot_be_shown_or_written_stops_nothing(data, tmp_path, monkeypatch):
    taken = tmp_path / "samples" / "step-000001.txt"
    taken.mkdir(parents=True)
    write_samples(lambda model, picture: ["a line"], None, 1, tmp_path)
    assert list(taken.parent.iterdir()) == [taken]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer = begin("translation", data / "pairs.tsv", tmp_path / "run", "--steps 1")
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


def refusal_of_folder(table, run):
    words = ("--data", table, "--out", run, "--steps", 1)
    return refusal("train", "translation", *words, code=1)


def test_a_folder_that_cannot_be_made_is_refused_before_the_data_are_read(
    data, tmp_path, monkeypatch
):
    reason = "regard: {} cannot be made, since {} takes no new folder ({}); choose another folder"
    table = data / "pairs.tsv"
    in_a_file = reason.format(table / "run", table, "Not a directory")
    assert refusal_of_folder(table, table / "run") == in_a_file

    def refuse(*path, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    run = tmp_path / "some/run"
    assert refusal_of_folder(table, run) == reason.format(run, tmp_path, "Permission denied")


def test_a_full_disk_behind_standard_output_is_named(run_folder):
    said = "regard: standard output: No space left on device\n"
    with open("/dev/full", "w") as full:
        for words in (("show", "causal"), ("translate", run_folder, "a street")):
            process = Forked(*words, streams={1: full.fileno()})
            _, err = process.communicate()
            assert (process.returncode, err.decode()) == (1, said)


# A file of a user's own, and the command that would write beside it.
INTO = {
    "train translation --data pronouns": "settings.json",
    "train language-model --data pronouns": "test.jsonl",
    "train classifier --data labels.tsv": "curves.png",
    "train translation --resume": "notes.txt",
    "demo --steps 1": "bench.json",
    "bench overhead --quick": "settings.json",
    "convert kv-heads nowhere --kv-heads 1": "test.jsonl",
}


@pytest.mark.parametrize("command", INTO)
def test_a_folder_with_own_files_is_refused_by_name(tmp_path, monkeypatch, command):
    written = INTO[command]
    (tmp_path / written).write_text("{}")
    monkeypatch.chdir(tmp_path)
    said = refusal(*command.split(), "--out", ".")
    assert written in said or command.startswith("convert")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {written: "{}"}


@pytest.mark.slow
def test_two_processes_are_one_voice_and_one_run(data, tmp_path):
    """Through the real launcher, and the run goes on."""
    run = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    program = [sys.executable, "-c", PROGRAM, "train", "language-model", "--out", run]
    begin_options = ["--data", data / "text.txt", "--steps", 2, *QUICK]
    for options in (begin_options, ["--resume", "--steps", 4, "--cpu"]):
        done = subprocess.run(
            list(map(str, [sys.executable, *launcher, *program, *options])),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(b"all steps are done") == 1
    sessions = json.loads((run / "run.json").read_text())["sessions"]
    assert [session["processes"] for session in sessions] == [2, 2]
    assert [session["after_step"] for session in sessions] == [0, 2]
    assert LanguageModel.load(run).config.layers == 1


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
    said = go_on("translation", run, "--steps 4").err
    assert re.search("1 line of .* cannot be read, and 2 can", said)
    steps = [line["step"] for line in read_log(run / "log.jsonl") if line["kind"] == "training"]
    assert steps[:2] == [2, 3]

    lines = (logged / "log.jsonl").read_bytes().split(b"\n")
    lines[1] = b"damaged"
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(lines))
    [sentence] = draw_curves(tmp_path / "log.jsonl", tmp_path / "curves.png")
    reason = r"1 line of .*log\.jsonl cannot be read, and \d+ can; the first reason: .*line 2"
    assert re.match(reason, sentence)


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
        is_told = bool(remarks) and remarks[0].startswith("no picture: ")
        assert is_told or (tmp_path / "curves.png").exists()
