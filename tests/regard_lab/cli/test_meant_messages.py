"""Messages of commands say what is meant: empty and endless outputs, slow searches, long texts, and changed data."""

import io
import json
import sys

import pytest
import torch

from regard.errors import ArgumentError, OccupiedError
from regard.storage.sealed_json import render_sealed
from regard_lab.cli import main
from regard_lab.cli import view as view_command
from regard_lab.decoding import Translator, evaluate
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.decoding.translator import Ends, Translation
from regard_lab.models import LanguageConfig, LanguageModel, TranslationTransformer
from regard_lab.text import END, Pair, Tokeniser
from regard_lab.training.recipes import TranslationTraining
from regard_lab.training.recipes.evaluation import RunScores

LINES = ["the animal sleeps", "a bird in the street", "the old animal"]
TOKENISER = Tokeniser.train(LINES, 300, targets=LINES)


@pytest.fixture
def regard(capsys, monkeypatch):
    """The command line in this process: exit code, standard output, standard error."""

    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        with pytest.raises(SystemExit) as leaving:
            main()
        written = capsys.readouterr()
        return leaving.value.code, written.out, " ".join(written.err.split())

    return call


def translator_that(ends):
    """A translator that writes END at once, or never."""
    torch.manual_seed(0)
    config = TranslationTransformer.Config(vocab_size=TOKENISER.vocab_size, dim=16, heads=2)
    model = TranslationTransformer(config)
    step = model.step
    favoured = torch.zeros(TOKENISER.vocab_size)
    favoured[END] = 1e4 if ends else -1e4

    def stepped(*given, **more):
        return step(*given, **more) + favoured

    object.__setattr__(model, "step", stepped)
    return Translator(model, TOKENISER)


@pytest.mark.parametrize("ends", [True, False])
def test_translations_that_are_empty_or_endless_are_counted(ends):
    pairs = [Pair("the animal sleeps", "a bird"), Pair("a bird", "a bird")]
    found = evaluate(translator_that(ends), pairs)
    said = "\n".join(RunScores("some pairs", found).lines())
    counts = {name: found.to_dict()[name] for name in ("empty", "unfinished")}
    if ends:
        assert "  2 of 2 translations are empty\n" in said
        assert counts == {"empty": 2, "unfinished": 0}
    else:
        limits = sorted(len(one.ids) for one in found.translations)
        assert f"  2 of 2 translations reached the limits of {limits[0]} to {limits[1]} ids without an end\n" in said
        assert counts == {"empty": 0, "unfinished": 2}


def test_translations_of_blank_lines_and_whole_translations_are_not_remarked():
    blank, whole = Translation(" ", "", (), (), 0.0, 0.0, True), Translation("a", "b", (5,), (6,), 0.0, 0.0, True)
    assert Ends([blank, whole]).remark() is None
    empty, endless = Translation("a", " ", (5,), (), 0.0, 0.0, True), Translation("a", "b", (5,), (6,) * 7, 0, 0, False)
    assert Ends([blank, whole, empty]).remark() == "1 of 2 translations is empty"
    assert Ends([whole, endless]).remark() == "1 of 2 translations reached the limit of 7 ids without an end"


@pytest.mark.parametrize(("ends", "remark"), [(True, "2 of 2 translations are empty"), (False, "reached the limit")])
def test_translate_says_so_on_standard_error(regard, monkeypatch, tmp_path, ends, remark):
    translator = translator_that(ends)
    monkeypatch.setattr(Translator, "load", lambda folder: translator)
    code, out, err = regard("translate", tmp_path, "a bird", "the old animal")
    assert (code, len(out.splitlines())) == (0, 2)
    assert remark in err
    (tmp_path / "lines.txt").write_text("a bird\nthe old animal\n")
    code, _, err = regard("translate", tmp_path, "--input", tmp_path / "lines.txt", "--out", tmp_path / "out.txt")
    assert code == 0
    assert remark in err


def test_a_wide_beam_is_announced_as_slow_and_one_that_is_too_wide_is_refused(regard, monkeypatch, tmp_path):
    translator = translator_that(True)
    monkeypatch.setattr(Translator, "load", lambda folder: translator)
    assert "--beam 9999 keeps 9,999 hypotheses at each step" in regard("translate", tmp_path, "a", "--beam", 9999)[2]
    assert "hypotheses" not in regard("translate", tmp_path, "a", "--beam", 4)[2]
    code, _, err = regard("translate", tmp_path, "a", "--beam", 10**6)
    assert code == 2
    assert "--beam is 1000000; it is a whole number from 1 to 65,536" in err


def test_a_long_text_is_announced_before_it_is_explained(regard, monkeypatch, tmp_path):
    class OpenedError(ArgumentError):
        """Raised when the work would begin."""

    def opened(*given):
        raise OpenedError("the work begins")

    monkeypatch.setattr(view_command.OpenedRun, "without_question", opened)
    monkeypatch.setattr(view_command, "open_run", lambda *given: view_command.OpenedRun(tmp_path, "", None, None))
    long = "a bird " * 120
    assert (
        "the text has 240 words, which are read again many times"
        in regard("view", tmp_path, long, "--export", tmp_path / "page.html")[2]
    )
    assert "many times" not in regard("view", tmp_path, "a bird", "--export", tmp_path / "page.html")[2]
    assert "many times" not in regard("view", tmp_path, long, "--png", tmp_path / "x.png")[2]


# --- language models


@pytest.fixture(scope="module")
def language_run(tmp_path_factory):
    """A language model that was trained on blocks of 24 ids, as its settings say."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokeniser = Tokeniser.train(["a b\nc d\n\te\\n f"] * 3, 300, verbatim=True)
    torch.manual_seed(0)
    model = LanguageModel(LanguageConfig(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1))
    model.save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    (folder / "settings.json").write_bytes(render_sealed({"settings": {"block": 24}, "files": {}}))
    return folder


def test_a_text_beyond_the_trained_length_is_remarked_once(regard, language_run):
    remark = "this model was trained on 24 at once; what it writes after the first 24 may make no sense"
    for arguments in (("a" * 30, "b" * 30), ("a",)):
        _, _, err = regard("generate", language_run, *arguments, "--max-tokens", 40, "--temperature", 0)
        assert err.count(remark) == 1
    assert remark not in regard("generate", language_run, "a", "--max-tokens", 5)[2]


@pytest.mark.parametrize(
    ("typed", "meant"), [(r"\n", "\n"), (r"a\tb", "a\tb"), (r"\\n", r"\n"), (r"\d", r"\d"), ("\n", "\n")]
)
def test_a_stop_may_be_a_line_end_as_a_shell_passes_it(regard, language_run, monkeypatch, typed, meant):
    stops = []
    monkeypatch.setattr("regard_lab.decoding.generator.TextStream.__init__", stopped(stops))
    regard("generate", language_run, "a", "--stop", typed)
    assert stops[0] == [meant]


def stopped(stops):
    def begin(stream, given=(), begins=False):
        stops.append(list(given))
        raise ArgumentError("the stops are known")

    return begin


def test_a_top_k_of_none_names_what_the_command_accepts(regard, language_run):
    code, _, err = regard("generate", language_run, "a", "--top-k", 0)
    assert code == 2
    assert "top_k is 0; give 1 or more, or leave it out to draw from all ids" in err
    assert "None" not in err


# --- a resumed run


def test_a_resumed_run_names_the_file_that_has_changed(tmp_path):
    table, valid = tmp_path / "pairs.tsv", tmp_path / "valid.tsv"
    table.write_text("".join(f"sentence {n}\tSatz {n}\n" for n in range(20)))
    valid.write_text("another\tanderer\n")
    given = {"data": (str(table),), "valid": (str(valid),), "model": "bahdanau", "dim": 8, "layers": 1, "steps": 1,
             "vocab_size": 300, "batch_tokens": 64, "label_smoothing": 0.0, "size": None}  # fmt: skip
    given.pop("size")
    run = tmp_path / "run"
    TranslationTraining.of(run, given, cpu=True).train(run, cpu=True)
    before = table.stat().st_size
    table.write_text(table.read_text().replace("Satz 7\n", "Satz acht\n"))
    with pytest.raises(OccupiedError) as refused:
        TranslationTraining.of(run, {"steps": 2}, resume=True, cpu=True).train(run, resume=True, cpu=True)
    said = str(refused.value)
    assert f"{table} has changed: it had {before} bytes and has {table.stat().st_size} now" in said
    assert str(valid) not in said
    assert "its texts have changed" in said
    assert not any(len(word.strip("(),;.")) == 64 for word in said.split())
    settings = json.loads((run / "settings.json").read_text())
    assert [name for name, _, _ in settings["data"]] == [str(table), str(valid)]
