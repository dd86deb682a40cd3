"""`regard train language-model`, `masked-words` and `classifier`: runs that go on, and mistakes in one sentence."""

import json

import pytest
from test_commands import regard

from regard_lab.models import LanguageModel
from regard_lab.models.encoder import TextEncoder
from regard_lab.text import Tokeniser
from regard_lab.training import read_log
from regard_lab.training.recipes import recipe

TEXT = "".join(f"the bird number {n} sang in the street,\n  and rain fell.\n\n" for n in range(60))
LABELS = "".join(f"{'even' if n % 2 == 0 else 'odd'}\tthe bird number {n} sang\n" for n in range(80))
SMALL = ("--dim", 16, "--heads", 2, "--layers", 1, "--batch-tokens", 256, "--warmup-steps", 2, "--validate-every", 3,
         "--schedule", "constant", "--cpu")  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    (folder / "labels.tsv").write_text(LABELS)
    (folder / "few.tsv").write_text("even\tthe bird number 2\nprime\tthe bird number 2 sang\n")
    (folder / "empty.txt").write_text("\n")
    return folder


@pytest.fixture(scope="module")
def hidden_words(files):
    run = files / "hidden"
    arguments = ("--data", files / "text.txt", "--vocab-size", 300, "--steps", 6, *SMALL)
    answer = regard("train", "masked-words", "--out", run, *arguments)
    assert answer.returncode == 0, answer.stderr
    return run


def last_line(answer):
    return answer.stderr.decode().strip().splitlines()[-1]


def test_a_language_model_is_trained_and_goes_on(files):
    run = files / "writer"
    arguments = ("--data", files / "text.txt", "--tokeniser", "byte", "--block", 32, "--kv-heads", 1)
    patterns = ("--attention", "causal & causal_window(8)", "--layers", 2, "--attention", "full")
    answer = regard("train", "language-model", "--out", run, *arguments, "--steps", 6, *SMALL, *patterns)
    assert answer.returncode == 0, answer.stderr
    said = answer.stderr.decode()
    assert "260 bytes" in said
    assert "bits a character" in last_line(answer)
    model = LanguageModel.load(run)
    assert (model.config.pattern, model.config.kv_heads) == (("causal & causal_window(8)", "full"), 1)
    (tokeniser,) = run.glob("step-*/tokeniser.json")
    tokeniser = Tokeniser.from_json(tokeniser.read_text())
    assert tokeniser.decode(tokeniser.encode(TEXT)) == TEXT
    assert regard("train", "language-model", "--out", run, "--resume", "--steps", 9, "--cpu").returncode == 0
    assert [line["step"] for line in read_log(run / "log.jsonl") if line["kind"] == "validation"] == [3, 6, 9]


def test_the_embedded_corpus_needs_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "PRONOUN_COUNTS", {"train": 300, "valid": 20})
    arguments = ("--data", "pronouns", "--tokeniser", "character", "--steps", 1, "--block", 16, "--attention", "causal")
    answer = regard("train", "language-model", "--out", tmp_path / "run", *arguments, *SMALL)
    assert answer.returncode == 0, answer.stderr
    assert b"characters of the embedded corpus" in answer.stderr


def test_a_classifier_begins_with_what_hidden_words_taught(files, hidden_words):
    run = files / "sorter"
    budget = SMALL[6:]
    arguments = ("--data", files / "labels.tsv", "--from", hidden_words, "--steps", 6, *budget)
    answer = regard("train", "classifier", "--out", run, *arguments, "--attention", "sliding_window(4)")
    assert answer.returncode == 0, answer.stderr
    assert "test texts right with the best model" in last_line(answer)
    begun, trained = TextEncoder.load(hidden_words), TextEncoder.load(run)
    assert (trained.config.head, trained.config.classes, trained.config.dim) == ("classes", 2, begun.config.dim)
    assert trained.config.pattern == ("sliding_window(4)",)
    moved = (trained.embedding.weight - begun.embedding.weight).abs().max()
    assert 0 < float(moved.detach()) < 0.02  # six small steps away
    (classes,) = {path.read_text() for path in run.glob("step-*/classes.json")}
    assert json.loads(classes) == ["even", "odd"]
    goes_on = regard("train", "classifier", "--out", run, "--resume", "--steps", 9, "--cpu")
    assert goes_on.returncode == 0, goes_on.stderr


def test_a_classifier_begins_from_nothing_too(files):
    run = files / "fresh"
    arguments = ("--data", files / "labels.tsv", "--valid", files / "labels.tsv", "--vocab-size", 300, "--steps", 3)
    answer = regard("train", "classifier", "--out", run, *arguments, *SMALL, "--pooling", "first")
    assert answer.returncode == 0, answer.stderr
    assert "validation texts right" in last_line(answer)
    assert TextEncoder.load(run).config.pooling == "first"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("language-model",), "--data is missing: name a file of text"),
        (("language-model", "--data", "nothing.txt"), "nothing.txt does not exist"),
        (("language-model", "--data", "{files}/empty.txt"), "has no text"),
        (("language-model", "--data", "{files}/text.txt", "--attention", "diagonal"), "diagonal"),
        (("language-model", "--data", "{files}/text.txt", "--mechanism", "magic"), "there is no mechanism 'magic'"),
        (
            ("language-model", "--data", "{files}/text.txt", "--tokeniser", "word"),
            "tokeniser 'word' does not exist; there are bpe",
        ),
        (("language-model", "--data", "{files}/text.txt", "--batch-tokens", "16"), "a block of text has 256 ids"),
        (("masked-words",), "--data is missing"),
        (("classifier",), "--data is missing: name a .tsv of label TAB text"),
        (("classifier", "--data", "{files}/text.txt"), "labels are read from a .tsv"),
        (("classifier", "--data", "{files}/labels.tsv", "--from", "nowhere"), "nowhere"),
        (("classifier", "--data", "{files}/labels.tsv", "--from", "x", "--dim", "32"), "--from x decides dim"),
        (("classifier", "--data", "{files}/labels.tsv", "--valid", "{files}/few.tsv"), "never teaches"),
    ],
)
def test_mistakes_are_one_line_each(files, tmp_path, arguments, reason):
    command, *options = (str(argument).format(files=files) for argument in arguments)
    answer = regard("train", command, "--out", tmp_path / "run", *options, "--cpu")
    said = answer.stderr.decode()
    assert answer.returncode in (1, 2)
    assert reason in last_line(answer)
    assert last_line(answer).startswith("regard: ")
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_command_or_with_other_settings_is_left_alone(files, hidden_words):
    answer = regard("train", "language-model", "--out", hidden_words, "--resume", "--cpu")
    assert "holds a run of another command" in last_line(answer)
    answer = regard("train", "masked-words", "--out", hidden_words, "--resume", "--dim", 32, "--cpu")
    assert "begun with other settings (dim 16 -> 32)" in last_line(answer)
    answer = regard("train", "masked-words", "--out", hidden_words, "--data", files / "text.txt", *SMALL)
    assert "already holds a training run" in last_line(answer)
    answer = regard("train", "classifier", "--data", files / "labels.tsv", "--from", files, "--out", files / "x")
    assert answer.returncode == 2
