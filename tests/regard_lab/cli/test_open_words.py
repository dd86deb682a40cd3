"""`regard translate` names the words that a training never had; `train translation --mechanism` trains the encoder."""

import json

import pytest
from test_commands import regard

from regard_lab.conversion import load_converted
from regard_lab.decoding import Translator
from regard_lab.decoding.loading import TOKENISER_FILE, WORDS_FILE
from regard_lab.models import TranslationTransformer, load_model
from regard_lab.text import SeenWords
from regard_lab.training import average_checkpoints
from regard_lab.training.recipes import evaluation

PAIRS = "".join(f"The bird number {n} sang in the street.\tDer Vogel Nummer {n} sang.\n" for n in range(90))
SMALL = ("--dim", 16, "--heads", 2, "--layers", 1, "--vocab-size", 300, "--batch-tokens", 256, "--steps", 2,
         "--validate-every", 2, "--schedule", "constant", "--cpu")  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    long = "".join(f"elephants {' '.join(f'q{n}x{row}z' for n in range(70))}\tzu lang\n" for row in range(6))
    path.write_text(PAIRS + long)  # the last ones have more ids than are learned from
    return path


@pytest.fixture(scope="module")
def run(data):
    folder = data.parent / "run"
    answer = regard("train", "translation", "--data", data, "--out", folder, *SMALL, "--mechanism", "performer(16)")
    assert answer.returncode == 0, answer.stderr
    assert b"were left out of training" in answer.stderr
    return folder


def said(answer):
    """The remarks of a command, but that this model, which learned for two steps, does not end its translations."""
    return [line for line in answer.stderr.decode().splitlines() if "without an end" not in line]


def last_line(answer):
    return said(answer)[-1]


def test_unknown_words_are_named_once_and_in_the_record(run):
    answer = regard("translate", run, "Bird, the zebra sang.", "A zebra", "the Street elephants", "--json")
    assert said(answer) == [
        "not in the training of this model: zebra; the translation of such words is a guess",
        "not in the training of this model: A; the translation of such words is a guess",
        "not in the training of this model: Street, elephants; the translation of such words is a guess",
    ]
    found = [json.loads(line)["unknown_words"] for line in answer.stdout.decode().splitlines()]
    assert found == [["zebra"], ["A", "zebra"], ["Street", "elephants"]]


def test_a_sentence_of_known_words_and_lines_of_standard_input_say_nothing_more(run):
    assert said(regard("translate", run, "The bird sang.")) == []
    answer = regard("translate", run, stdin=b"the bird\n\n" + " ".join(f"w{n}" for n in range(20)).encode() + b"\n")
    assert answer.stdout.count(b"\n") == 3
    assert "w0, w1, " in last_line(answer)
    assert "w11 and 8 more; the translation" in last_line(answer)


def test_a_text_of_mostly_unknown_words_is_called_a_guess_as_a_whole(run):
    answer = regard("translate", run, "Seven elephants crossed a wide river.")
    assert last_line(answer).endswith("; the translation is a guess: 6 of 6 words are unknown")
    answer = regard("translate", run, "The bird sang over the hills.")
    assert last_line(answer).endswith("over, hills; the translation of such words is a guess")


def test_a_classifier_says_it_of_texts_and_not_of_single_words(tmp_path):
    data = tmp_path / "labels.tsv"
    data.write_text("".join(f"{'odd' if n % 2 else 'even'}\tthe bird {n} sang\n" for n in range(80)))
    options = ("--schedule", "constant", "--dim", 16, "--heads", 2, "--layers", 1, "--steps", 1, "--cpu")
    assert regard("train", "classifier", "--data", data, "--out", tmp_path / "run", *options).returncode == 0
    answer = regard("classify", tmp_path / "run", "the zebra sang", "Seven elephants crossed the river", "--json")
    assert answer.stderr.decode().splitlines() == [
        "not in the training of this model: Seven, elephants, crossed, river; the label is a guess: 4 of 5 words are "
        "unknown"
    ]
    assert len(answer.stdout.splitlines()) == 2


def test_as_many_labels_as_texts_are_remarked(tmp_path):
    data = tmp_path / "swapped.tsv"
    data.write_text("".join(f"the bird {n} sang\t{'odd' if n % 2 else 'even'}\n" for n in range(40)))
    options = ("--schedule", "constant", "--dim", 16, "--heads", 2, "--layers", 1, "--steps", 1, "--cpu")
    answer = regard("train", "classifier", "--data", data, "--out", tmp_path / "run", *options)
    assert "there are 40 labels for 40 texts, so most labels cannot be learned" in answer.stderr.decode()
    assert "look whether the columns are swapped" in answer.stderr.decode()


def test_a_list_that_is_not_complete_says_so(run, tmp_path):
    saved = load_model(run)
    some = SeenWords(frozenset({"bird"}), 9).to_json()
    TranslationTransformer.from_saved(saved, "run").save(tmp_path / "m", {**saved.extra_files, WORDS_FILE: some})
    answer = regard("translate", tmp_path / "m", "bird sang")
    assert last_line(answer).startswith("not among the 1 most frequent words of its training: sang; ")


def test_a_model_without_the_list_cannot_know(run, tmp_path):
    saved = load_model(run)
    files = {TOKENISER_FILE: saved.extra_files[TOKENISER_FILE]}
    TranslationTransformer.from_saved(saved, "run").save(tmp_path / "old", files)
    answer = regard("translate", tmp_path / "old", "the zebra", "--json")
    assert (said(answer), json.loads(answer.stdout)["unknown_words"]) == ([], None)


def test_a_damaged_list_is_one_sentence(run, tmp_path):
    saved = load_model(run)
    files = {**saved.extra_files, WORDS_FILE: "{}"}
    TranslationTransformer.from_saved(saved, "run").save(tmp_path / "bad", files)
    answer = regard("translate", tmp_path / "bad", "the bird")
    assert answer.returncode == 1
    assert "the list of training words is damaged" in last_line(answer)


def test_conversions_and_averages_carry_words_and_mechanism(run, tmp_path):
    load_converted(run, 1).save(tmp_path / "one")
    average_checkpoints(run, 1, tmp_path / "mean")
    for folder, kv_heads in (("one", 1), ("mean", None)):
        translator = Translator.load(tmp_path / folder)
        assert translator.translate(["the zebra"])[0].unknown_words == ("zebra",)
        config = translator.model.config
        assert (config.encoder_mechanism, config.decoder_kv_heads) == ("performer(16)", kv_heads)


def test_the_mechanism_is_that_of_the_encoder_alone_and_is_loaded(run):
    model = TranslationTransformer.load(run)
    assert str(model.encoder[0].attention.mechanism.declared) == "performer(16, seed=0)"
    (layer,) = model.decoder
    others = (layer.self_attention.mechanism.declared, layer.cross_attention.mechanism.declared)
    assert [str(mechanism) for mechanism in others] == ["softmax(scaled_dot)"] * 2
    goes_on = regard("train", "translation", "--out", run, "--resume", "--steps", 3, "--cpu")
    assert goes_on.returncode == 0, goes_on.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--mechanism", "magic"), "there is no mechanism 'magic'"),
        (("--mechanism", "linear", "--attention", "sliding_window(8)"), "not sliding_window(8)"),
        (("--mechanism", "random_feature(8, gated)"), "its gates forget what came before a query"),
        (("--mechanism", "lsh(4, 4)", "--kv-heads", 1), "its queries are its keys"),
        (("--mechanism", "linformer(8, 4)"), "the longest source has"),
        (("--mechanism", "linear", "--model", "bahdanau"), "--mechanism, --heads belongs to the Transformer"),
    ],
)
def test_a_mechanism_that_cannot_be_is_refused_before_training(data, tmp_path, options, reason):
    answer = regard("train", "translation", "--data", data, "--out", tmp_path / "run", *SMALL, *options)
    assert answer.returncode in (1, 2)
    assert reason in last_line(answer)
    assert last_line(answer).startswith("regard: ")
    assert not (tmp_path / "run").exists()


def test_a_run_without_encoder_weights_is_scored_and_has_no_picture(data, tmp_path, monkeypatch):
    linformer = ("--mechanism", "linformer(256, 4)")
    answer = regard("train", "translation", "--data", data, "--out", tmp_path / "run", *SMALL, *linformer)
    assert answer.returncode == 0, answer.stderr
    picture = tmp_path / "a.png"
    answer = regard("translate", tmp_path / "run", "the bird", "--picture", picture)
    assert answer.returncode == 2
    assert "which computes no weights" in last_line(answer)
    assert answer.stdout == b""
    assert not picture.exists()
    for name in ("CONTRAST_PAIRS", "SWAPS"):
        monkeypatch.setattr(evaluation, name, 2)
    monkeypatch.setattr(evaluation, "PRONOUN_COUNTS", {"test": 2, "valid": 2})
    report = evaluation.judge_pronouns(Translator.load(tmp_path / "run"), seed=0)
    assert report.head is report.agreement is None
    assert 0 <= report.pronouns <= 1
