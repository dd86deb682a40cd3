"""`regard translate FILE --out COPY`: files of messages, whatever goes wrong, lose nothing."""

import re

import pytest
import torch
from commanding import LINES, refusal, regard, succeeded

from regard_lab.decoding import Translation, Translator
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import TranslationTransformer
from regard_lab.text import Tokeniser

HEADER = 'msgid ""\nmsgstr "Language: de\\nContent-Type: text/plain; charset=UTF-8\\n"\n'
XLIFF = (
    '<xliff version="1.2"><file><body><trans-unit id="1"><source>the <g id="1">animal</g></source></trans-unit>'
    '<trans-unit id="2"><source>a street</source></trans-unit></body></file></xliff>'
)


def catalogue(*messages):
    return HEADER + "".join(f'\nmsgid "{message}"\nmsgstr ""\n' for message in messages)


@pytest.fixture(scope="module")
def protecting(tmp_path_factory):
    """A translator with ids for placeholders that was never trained."""
    folder = tmp_path_factory.mktemp("runs") / "protecting"
    tokeniser = Tokeniser.train(LINES, 400, targets=LINES, protect=True)
    torch.manual_seed(3)
    config = TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2)
    TranslationTransformer(config).save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


@pytest.fixture
def fluent(monkeypatch):
    """All translators write the words of a line in capitals, and count the lines that they were given."""
    asked = []

    def n_best(self, lines, options=None, *, prefix="", **search):
        asked.extend(lines)
        written = []
        for line in lines:
            text = re.sub(r"(?<![%\w{])[a-z]+", lambda word: word[0].upper(), line)
            written.append([Translation(line, text, (5,), (5,), -1.0, -1.0, True)])
        return written

    monkeypatch.setattr(Translator, "n_best", n_best)
    return asked


def test_a_catalogue_is_translated_with_its_placeholders_lines_and_spaces(
    protecting, fluent, tmp_path
):
    (tmp_path / "a.po").write_text(catalogue("the {name} of %s", "  one\\n  two\\n", "the animal"))
    answer = succeeded("translate", protecting, tmp_path / "a.po", "-o", tmp_path / "b.po")
    written = (tmp_path / "b.po").read_text()
    assert 'msgstr "THE {name} OF %s"' in written
    assert 'msgstr ""\n"  ONE\\n"\n"  TWO\\n"' in written
    assert written.count("#, fuzzy") == 3
    assert "b.po has" in answer.err
    assert "with 3 new translations" in answer.err
    assert answer.out == ""
    assert sorted(fluent) == ["one", "the animal", "the {name} of %s", "two"]


def test_units_with_codes_wait_for_a_model_that_protects_them(
    run_folder, protecting, fluent, tmp_path
):
    (tmp_path / "a.xlf").write_text(XLIFF)
    answer = succeeded("translate", run_folder, tmp_path / "a.xlf", "--out", tmp_path / "b.xlf")
    assert (tmp_path / "b.xlf").read_text().count("<target") == 1
    assert "1 message stays as it was: with inline codes, and this model was trained" in answer.err
    succeeded("translate", protecting, tmp_path / "b.xlf", "--out", tmp_path / "c.xlf")
    whole = (tmp_path / "c.xlf").read_text()
    assert '>THE <g id="1">ANIMAL</g></target>' in whole
    assert re.sub(r"<target.*?</target>", "", whole) == XLIFF


def test_a_translation_that_loses_a_placeholder_or_does_not_end_is_not_written(
    run_folder, monkeypatch, tmp_path
):
    def n_best(self, lines, options=None, *, prefix="", **search):
        ends = {"the animal": False}
        return [[Translation(x, "x", (5,), (5,), 0.0, 0.0, ends.get(x, True))] for x in lines]

    monkeypatch.setattr(Translator, "n_best", n_best)
    (tmp_path / "a.po").write_text(catalogue("the {name}", "the animal", "a street"))
    answer = succeeded("translate", run_folder, tmp_path / "a.po", "--out", tmp_path / "b.po")
    assert (tmp_path / "b.po").read_text().count('msgstr "x"') == 1
    assert "1 message stays as it was: the translation did not have each placeholder" in answer.err
    assert "1 message stays as it was: the translation reached the limit" in answer.err
    assert "was trained without --protect" in answer.err


def test_the_model_itself_keeps_every_placeholder_of_a_file(protecting, tmp_path):
    (tmp_path / "a.po").write_text(catalogue("the {name} of %s", "%d and <b>{0}</b>"))
    command = ("translate", protecting, tmp_path / "a.po", "--out", tmp_path / "b.po")
    answer = succeeded(*command, "--max-length", 40)
    assert "each placeholder" not in answer.err


def test_an_interruption_keeps_what_was_done_and_the_copy_goes_on(
    run_folder, fluent, monkeypatch, tmp_path
):
    whole = Translator.n_best
    (tmp_path / "a.po").write_text(catalogue(*[f"the animal number {n}" for n in range(150)]))

    def interrupted(self, lines, options=None, *, prefix="", **search):
        if len(fluent) >= 64:
            raise KeyboardInterrupt
        return whole(self, lines, options, **search)

    monkeypatch.setattr(Translator, "n_best", interrupted)
    answer = regard("translate", run_folder, tmp_path / "a.po", "--out", tmp_path / "b.po")
    assert answer.returncode == 130
    assert "interrupted; " in answer.last
    assert "with 64 new translations, and 86 messages without" in answer.last
    assert (tmp_path / "b.po").read_text().count("ANIMAL") == 64

    monkeypatch.setattr(Translator, "n_best", whole)
    succeeded("translate", run_folder, tmp_path / "b.po", "--out", tmp_path / "c.po")
    assert (tmp_path / "c.po").read_text().count("ANIMAL") == 150


def test_an_interruption_before_the_first_translation_leaves_no_file(
    run_folder, monkeypatch, tmp_path
):
    def interrupted(self, lines, options=None, *, prefix="", **search):
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "n_best", interrupted)
    (tmp_path / "a.po").write_text(catalogue("the animal"))
    answer = regard("translate", run_folder, tmp_path / "a.po", "--out", tmp_path / "b.po")
    assert (answer.returncode, answer.last) == (130, "regard: interrupted")
    assert [path.name for path in tmp_path.iterdir()] == ["a.po"]


REFUSED = [
    (("a.po", "--out", "a.po"), "is the file that is read"),
    (("a.po", "--out", "there.po"), "is there already"),
    (("a.po", "--out", "b.mo"), "has another suffix"),
    (("a.po", "--out", "b.txt"), "has another suffix"),
    (("a.po", "--out", "none/b.po"), "its folder does not exist"),
    (("a.po", "--out", "b.po.gz"), "would be packed"),
    (("a.po", "--out", "b.po", "--json"), "--json is for lines of text"),
    (("a.po", "--out", "b.po", "--align"), "--align is for lines of text"),
    (("a.po", "--out", "b.po", "--prefix", "Das"), "--prefix is for lines of text"),
    (("a.po", "--out", "b.po", "--picture", "p.png"), "--picture needs one sentence"),
    (("a.po", "--out", "b.po", "--to", "fr"), "has the language 'de'"),
    (("a.po", "--out", "b.po", "--from", "en"), "is for a .tmx"),
    (("a.po", "there.po", "--out", "b.po"), "--input FILE and --out FILE go together"),
    (("a.po",), "a copy of it with translations is written by: --out FILE"),
    (("none.po", "--out", "b.po"), "none.po does not exist"),
    (("folder.po", "--out", "b.po"), "is a folder"),
    (("bad.xlf", "--out", "b.xlf"), "does not read as XML"),
    (("the animal", "--to", "de"), "--to is for a file of messages"),
    (("the animal", "--again"), "--again is for a file of messages"),
    (("--input", "lines.txt", "--out", "o.txt", "--confirmed"), "--confirmed is for a file"),
    (("a.po", "--out", "folder.po"), "is there already"),
    (("a.po", "--out", "/proc/b.po"), "/proc"),
]


@pytest.mark.parametrize(("words", "reason"), REFUSED)
def test_an_invocation_that_cannot_be_is_refused_and_no_file_changes(
    run_folder, fluent, monkeypatch, tmp_path, words, reason
):
    (tmp_path / "a.po").write_text(catalogue("the animal"))
    (tmp_path / "there.po").write_text("mine")
    (tmp_path / "lines.txt").write_text("the animal\n")
    (tmp_path / "bad.xlf").write_text("<xliff")
    (tmp_path / "folder.po").mkdir()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    answer = regard("translate", run_folder, *words)
    assert answer.returncode in (1, 2)
    assert reason in " ".join(answer.err.split())
    assert "Traceback" not in answer.err
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before


def test_several_processes_are_refused(run_folder, monkeypatch, tmp_path):
    (tmp_path / "a.po").write_text(catalogue("the animal"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ("translate", run_folder, "--input", tmp_path / "a.po", "--out", tmp_path / "b.po")
    assert "one translates a file of messages" in refusal(*words)


def test_a_translation_of_lines_names_what_a_model_does_not_protect_once(run_folder, protecting):
    answer = succeeded("translate", run_folder, "the {0}", "the <b>animal</b>")
    assert answer.err.count("trained without --protect") == 1
    answer = succeeded("translate", protecting, "the  {0}", "🎉", "12:30")
    assert "without --protect" not in answer.err
    assert "{0}" in answer.out.splitlines()[0]
    assert answer.out.splitlines()[1:] == ["🎉", "12:30"]
