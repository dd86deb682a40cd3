"""Every block of code in the documentation runs, and every command in it has the options that it is given."""

import contextlib
import io
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from page_code import FencedBlock, blocks, mentioned

from regard.mechanisms import FeatureMap, Score
from regard.patterns import Pattern
from regard_lab.cli import main
from regard_lab.cli.app import app
from regard_lab.lessons import LESSONS, find_lesson

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# The reference is made of docstrings, whose examples run as doctests.
PAGES = sorted(
    {*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - set((ROOT / "docs" / "reference").glob("*.md"))
)


def runs(page: Path) -> bool:
    """Whether a page has code or commands."""
    for block in blocks(page.read_text("utf-8")):
        if block.language == "python" or block.commands:
            return True
    return False


WITH_CODE = [page for page in PAGES if runs(page)]
QUICK = ("show", "plan")  # commands that answer at once, and run
# of a command in a line of text
UNFINISHED = (
    "MissingParameter",
    "BadParameter",
    "NoArgsIsHelpError",
    "Exit",
)
PAINTS = ROOT / "docs" / "recipes" / "diffusers.md"
# where they all run, long trainings with fewer steps
TRAINS = ROOT / "docs" / "recipes" / "translator.md"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def regard(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command in this process; one that fails fails the test with what it said."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "argv", ["regard", *words])
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 0, f"regard {' '.join(words)}: {said.getvalue()}"


def tidy(text: str) -> list[str]:
    """Lines without the space at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


def close(shown: list[str], printed: list[str]) -> bool:
    """Whether lines are the same but for scores, which other processors make otherwise by up to a tenth."""
    score = re.compile(r"-?\d+\.\d+")
    text_shown = "\n".join(shown)
    text_printed = "\n".join(printed)
    if score.sub("", text_shown) != score.sub("", text_printed):
        return False
    scores_shown = list(map(float, score.findall(text_shown)))
    scores_printed = list(map(float, score.findall(text_printed)))
    return scores_shown == pytest.approx(scores_printed, rel=0.1)


@pytest.fixture
def workshop(tmp_path, monkeypatch, saved_runs):
    """An empty folder to work in, with the models that pages speak of."""
    (tmp_path / "runs").symlink_to(saved_runs, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    # the classes of a page are forgotten
    for registry in (
        Pattern.registry,
        FeatureMap.registry,
        Score.registry,
    ):
        monkeypatch.setattr(registry, "kinds", dict(registry.kinds))
    return tmp_path


def with_few_steps(words: list[str]) -> list[str]:
    """A command whose training is short: a number of steps above 999 becomes 2."""
    shortened = list(words)
    for place, (option, value) in enumerate(pairwise(words), 1):
        if option == "--steps" and int(value) > 999:
            shortened[place] = "2"
    return shortened


def page_to_run(page: Path) -> Any:
    """A page as a parameter of a test."""
    marks = [pytest.mark.slow] if page == TRAINS else []
    return pytest.param(page, marks=marks, id=name(page))


@pytest.mark.parametrize("page", list(map(page_to_run, WITH_CODE)))
def test_a_page_runs_from_its_first_line_to_its_last(page, workshop, monkeypatch, capsys):
    if page == TRAINS:
        (workshop / "runs").unlink()
    if page == PAINTS:
        pytest.importorskip("diffusers", reason="needs pip install 'regard[diffusers]'")
    space: dict[str, object] = {"__name__": "page"}
    said = ""  # what the block before printed
    torch.manual_seed(0)
    for block in blocks(page.read_text("utf-8")):
        if block.language == "text" and said:
            shown = tidy(block.text)
            printed = tidy(said)
            alike = close(shown, printed) if page == TRAINS else shown == printed
            assert alike, f"line {block.line} shows what is not printed: {printed}"
        capsys.readouterr()
        if block.language == "python":
            # so that a traceback tells the line of the page
            text = "\n" * (block.line - 1) + block.text
            exec(compile(text, name(page), "exec", dont_inherit=True), space)
        for words in block.commands:
            parse(words, f"{name(page)}, line {block.line}")
            if words[0] in QUICK or page == TRAINS:
                regard(with_few_steps(words), monkeypatch)
        said = capsys.readouterr().out


def prose_blocks(lesson: str) -> list[FencedBlock]:
    """The fenced blocks in the prose of a lesson, which are not cells of code."""
    prose = [cell.text for cell in find_lesson(lesson).cells if cell.markdown]
    return [block for text in prose for block in blocks(text)]


def with_python(lesson: str) -> bool:
    return any(block.language == "python" for block in prose_blocks(lesson))


@pytest.fixture
def reader(workshop):
    """The names that the prose of a lesson may use: a model of transformers with its ids."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 11, "num_attention_heads": 6}
    model = BertModel(BertConfig(vocab_size=29, intermediate_size=31, **sizes)).eval()
    return {"model": model, "ids": torch.arange(17)[None]}


@pytest.mark.parametrize("lesson", list(filter(with_python, LESSONS)))
def test_code_in_the_prose_of_a_lesson_runs(lesson, reader, capsys):
    for block in prose_blocks(lesson):
        if block.language == "python":
            exec(compile(block.text, lesson, "exec", dont_inherit=True), reader)


def parse(words: list[str], where: str, whole: bool = True) -> None:
    """Read a command's options as the command line does, and do nothing; one that is not whole may lack values."""
    command: Any = typer.main.get_command(app)
    context = None
    command_name: Any = "regard"
    rest = list(words)
    try:
        while hasattr(command, "resolve_command"):
            context = command.make_context(command_name, list(rest), parent=context)
            command_name, command, rest = command.resolve_command(context, rest)
        command.make_context(command_name, list(rest), parent=context)
    except Exception as error:  # of classes that typer does not export
        if whole or type(error).__name__ not in UNFINISHED:
            pytest.fail(f"{where}: {error!r}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_that_a_page_mentions_exist(page):
    for words in mentioned(page.read_text("utf-8")):
        parse(words, name(page), whole=False)


@pytest.mark.parametrize(
    "words", [["plan", "--sizes", "9"], ["plann"], ["train", "translation", "--layer", "2"]]
)
def test_a_command_or_option_that_does_not_exist_is_seen(words):
    for whole in (True, False):
        with pytest.raises(pytest.fail.Exception):
            parse(words, "here", whole)


def test_a_block_that_fails_is_seen_with_its_line():
    (block,) = blocks("one\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as failing:
        exec(compile("\n" * (block.line - 1) + block.text, "page.md", "exec"), {})
    assert failing.traceback[-1].lineno + 1 == 5
