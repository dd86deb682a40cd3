"""Wherever a command shows text that is not its own, nothing in it commands the terminal. Every command has a place."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from typer.main import get_command

from regard_lab.cli import main
from regard_lab.cli.app import app
from regard_lab.decoding import Generation, Translation, Translator
from regard_lab.decoding.generator import Generator
from regard_lab.text import SeenWords
from regard_lab.training import Noticed, Started
from regard_lab.training.recipes import Classifier

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b1m\u202eback\x7f\u2066x"
FORGING = "line\rover\x85next\u2028last"
SHOWN = r"\x1b[2J\x1b]0;title\x07\x9b1m\u202eback\x7f\u2066x"
COMMANDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Stream(io.TextIOWrapper):
    """A stream of bytes that may say it is a terminal."""

    def __init__(self, content=b"", terminal=False):
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture
def regard(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")  # Rich has then no commands of its own

    def run(*arguments, stdin=b"", terminal=True):
        streams = Stream(stdin), Stream(terminal=terminal), Stream(terminal=terminal)
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        told = []
        for stream in streams[1:]:
            stream.flush()
            told.append(stream.buffer.getvalue().decode())
        return leaving.value.code, *told

    return run


def assert_harmless(*texts):
    for text in texts:
        assert not COMMANDING.search(text), repr(text)


def hostile_translation(source):
    return Translation(source, HOSTILE + FORGING, (1,), (1,), -0.5, -0.5, True, (HOSTILE,))


@pytest.fixture
def hostile_models(monkeypatch):
    """Models whose texts and labels are hostile."""
    translator = SimpleNamespace(
        translate=lambda lines, **_: [hostile_translation(line) for line in lines], words=SeenWords(frozenset(), 0)
    )
    monkeypatch.setattr(Translator, "load", lambda run: translator)

    def generate(prompts, on_text=None, **_):
        if on_text is not None:
            on_text(0, 0, HOSTILE)
        return [[Generation(prompts[0], HOSTILE, (1,), (1,), -0.5, -0.5, "end")]]

    tokeniser = SimpleNamespace(encode=lambda text: text, decode=lambda text: text)
    generator = SimpleNamespace(generate=generate, tokeniser=tokeniser, words=SeenWords(frozenset(), 0))
    monkeypatch.setattr(Generator, "load", lambda run: generator)
    classifier = SimpleNamespace(
        classes=[HOSTILE + FORGING, "b"], probabilities=lambda texts: [[0.75, 0.25]], words=SeenWords(frozenset(), 0)
    )
    monkeypatch.setattr(Classifier, "load", lambda run: classifier)


@pytest.mark.parametrize("command", ["translate", "generate", "classify"])
def test_what_a_model_says_is_shown_with_escapes_on_a_terminal(regard, hostile_models, command):
    code, said, remarks = regard(command, "run", "a text")
    assert (code, SHOWN in said) == (0, True)
    assert_harmless(said, remarks)


@pytest.mark.parametrize("command", ["translate", "classify"])
def test_a_pipe_gets_one_line_for_each_line_as_it_stands(regard, hostile_models, command):
    code, said, _ = regard(command, "run", stdin=b"one\ntwo\n" * (command == "translate") or b"one\n", terminal=False)
    assert code == 0
    assert len(said.splitlines()) == (2 if command == "translate" else 1)
    assert all(HOSTILE in line for line in said.splitlines())


@pytest.mark.parametrize("command", ["translate", "generate", "classify"])
@pytest.mark.parametrize("terminal", [False, True])
def test_json_is_one_line_with_the_same_values_and_no_raw_control(regard, hostile_models, command, terminal):
    code, said, _ = regard(command, "run", HOSTILE, "--json", terminal=terminal)
    assert code == 0
    assert_harmless(said)
    assert len(said.splitlines()) == 1
    record = json.loads(said)
    assert HOSTILE in (record.get("label") or record["text"])


# Each command by its name, with arguments that bring hostile text into an answer or a refusal.
PLACES = {
    "translate": ["{path}", "a"],
    "generate": ["{path}", "a"],
    "evaluate": ["{path}"],
    "classify": ["{path}", "a"],
    "view": ["{path}", "a"],
    "average": ["{path}", "--out", "{path}"],
    "demo": ["--out", "{path}"],
    "show": [HOSTILE],
    "lenses": ["{path}"],
    "plan": ["--q-len", "4", "--pattern", HOSTILE],
    "approximation": ["{path}"],
    "compare": ["--data", "{path}.tsv", "--models", "none", "--out", "{folder}/out"],
    "bench": [HOSTILE],
    "lesson": [HOSTILE],
    "walkthrough": ["a", "--word", HOSTILE],
    "doctor": [HOSTILE],
    "train translation": ["--data", "{path}.tsv", "--out", "{folder}/out"],
    "train language-model": ["--data", "{path}", "--out", "{folder}/out"],
    "train masked-words": ["--data", "{path}", "--out", "{folder}/out"],
    "train classifier": ["--data", "{path}.tsv", "--out", "{folder}/out"],
    "convert kv-heads": ["{path}", "--kv-heads", "1", "--out", "{folder}/out"],
}


def commands(group, before=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


def test_every_command_has_a_place():
    assert set(commands(get_command(app))) == set(PLACES)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("command", PLACES)
def test_every_command_names_what_it_was_given_with_escapes(regard, tmp_path, command, terminal):
    path = tmp_path / f"{HOSTILE.replace('/', '')}\nregard: done"
    path.write_text("")
    arguments = [one.format(path=path, folder=tmp_path) if "{" in one else one for one in PLACES[command]]
    code, said, remarks = regard(*command.split(), *arguments, terminal=terminal)
    assert code in (1, 2), (said, remarks)
    assert_harmless(said, remarks)
    assert "\nregard: done" not in remarks
    assert re.search(r"\\x1b", remarks)


@pytest.mark.parametrize("option", [f"--{HOSTILE}", "--steps"])
def test_messages_about_options_are_shown_with_escapes(regard, option):
    code, said, remarks = regard("demo", option, HOSTILE)
    assert code == 2
    assert_harmless(said, remarks)


@pytest.mark.parametrize("form", [[], ["--json"], ["--html", "page.html"]])
def test_a_walkthrough_of_hostile_text_is_harmless(regard, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    code, said, remarks = regard("walkthrough", f"a {HOSTILE} b", "--context", f"c {HOSTILE}", *form)
    assert code == 0, remarks
    assert_harmless(said, remarks, *(path.read_text() for path in tmp_path.glob("*.html")))


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_lesson_about_hostile_text_is_harmless(regard, form):
    code, said, remarks = regard("lesson", "causal", "--text", f"one {HOSTILE} two", *form)
    assert code == 0, remarks
    assert_harmless(said, remarks)


def test_notes_samples_and_reports_are_harmless(tmp_path, monkeypatch):
    from rich.console import Console

    from regard_lab.cli.console import note, out, out_json, out_lines
    from regard_lab.cli.train import _live, _plain
    from regard_lab.training.recipes.run_folder import write_samples

    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    bar = SimpleNamespace(
        console=Console(file=stream, no_color=True, force_terminal=False), update=lambda *_, **__: None
    )
    for event in (Started(3, 9, (HOSTILE + FORGING,)), Noticed(4, HOSTILE)):
        _plain(event, 100)
        _live(event, bar, 0)
    for show in (note, out, out_json, out_lines):
        show(HOSTILE)
    write_samples(lambda model, picture: [HOSTILE + FORGING], None, 1, tmp_path)
    stream.flush()
    samples = (tmp_path / "samples/step-000001.txt").read_text()
    assert_harmless(stream.buffer.getvalue().decode(), samples)
    assert len(samples.splitlines()) == 1
