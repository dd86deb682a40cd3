"""`regard lesson`: a list, a lesson in the terminal, as JSON and as a picture, and one line for a mistake."""

import io
import json

import pytest
from rich.console import Console
from test_commands import regard

from regard_lab.cli.console import out_console
from regard_lab.cli.lesson import _show_table
from regard_lab.lessons import LESSONS, Table, find_lesson


def test_without_a_name_the_questions_are_listed():
    answer = regard("lesson")
    assert answer.returncode == 0
    first, *lines = answer.stdout.decode().splitlines()
    assert first.startswith("walkthrough ")
    assert 'use: regard walkthrough "your sentence"' in first
    assert [line.split()[0] for line in lines] == list(LESSONS)
    assert all(lesson.question in line for line, lesson in zip(lines, LESSONS.values(), strict=True))
    assert json.loads(regard("lesson", "--json").stdout) == {name: one.question for name, one in LESSONS.items()}


def test_the_walkthrough_is_named_with_the_command_that_shows_it():
    answer = regard("lesson", "walkthrough")
    assert answer.returncode == 2
    assert 'use: regard walkthrough "your sentence"' in answer.stderr.decode()


def test_figures_of_a_report_are_not_called_measured_here():
    table = next(one for one in find_lesson("one_head").teach().tables if one.title.startswith("Trained translators"))
    assert not table.measured
    assert table.title.endswith("from the report")


def test_the_word_that_stays_in_place_is_marked_and_the_smallest_change_is_that_of_another():
    taught = find_lesson("positions").teach()
    rows = taught.tables[-1].rows
    assert [row[0] for row in rows] == ["the", "dog", "bites (stays in place)", "the", "man"]
    smallest = min(row[2] for row in rows if "stays" not in row[0])
    assert taught.claims[-1].figures == f"smallest change of a word that moves {smallest}"


def test_columns_of_a_lesson_have_names_of_their_own():
    columns = find_lesson("scale").teach().tables[0].columns
    assert len(set(columns)) == len(columns)


def test_a_lesson_is_told_with_its_numbers():
    answer = regard("lesson", "causal")
    assert answer.returncode == 0, answer.stderr.decode()
    told = answer.stdout.decode()
    taught = find_lesson("causal").teach()
    assert taught.lesson.question in told
    for table in taught.tables:
        assert table.title in told
    assert told.count("\nholds") == len(taught.claims)
    assert "import regard as rg" in told


def test_json_is_the_record_and_a_picture_is_drawn(tmp_path):
    answer = regard("lesson", "causal", "--json", "--seed", 5, "--text", "one two three", "--png", tmp_path / "a.png")
    assert answer.returncode == 0, answer.stderr.decode()
    record = json.loads(answer.stdout)
    assert record["numbers"]["words"] == ["one", "two", "three"]
    assert record["png"] == str(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    other = json.loads(regard("lesson", "causal", "--json", "--text", "one two three").stdout)
    assert other["numbers"]["weights"] != record["numbers"]["weights"]


def test_hostile_words_are_shown_as_they_stand():
    answer = regard("lesson", "causal", "--text", "[red]a[/red] :smile: \x1b[31mb \u202ec")
    told = answer.stdout.decode()
    assert answer.returncode == 0
    assert "[red]a[/red]" in told
    assert ":smile:" in told
    assert "\x1b" not in told
    assert "\u202e" not in told


def test_a_claim_that_fails_says_so(monkeypatch):
    from regard_lab.lessons import causal

    monkeypatch.setattr(causal, "attention", lambda q, k, v, pattern, real=causal.attention: real(q, k, v))
    told = regard("lesson", "causal").stdout.decode()
    assert "does not hold" in told
    assert told.count("\nholds") == 4


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["scales"], 2, "no lesson is called 'scales'; did you mean 'scale'?"),
        (["heads"], 2, "give one with --run RUN"),
        (["heads", "--run", "nowhere"], 2, "nowhere is not the folder of a training run; 'regard demo' trains one"),
        (["scale", "--run", "nowhere"], 2, "needs no trained model"),
        (["causal", "--text", ""], 2, "0 words"),
        (["causal", "--text", "word " * 10_000], 2, "10000 words"),
        (["causal", "--png", "nowhere/a.png"], 2, "cannot be written"),
        (["causal", "--png", "a.svg"], 2, "ends in .png"),
    ],
)
def test_a_mistake_is_one_line(arguments, code, words):
    answer = regard("lesson", *arguments)
    assert answer.returncode == code
    (line,) = answer.stderr.decode().strip().splitlines()
    assert words in line


def test_a_seed_that_no_generator_takes_is_told():
    answer = regard("lesson", "causal", "--seed", "99999999999999999999")
    assert answer.returncode == 2
    assert "--seed is a number of 67 bits" in answer.stderr.decode()


def test_a_folder_without_a_run_is_one_line(tmp_path):
    answer = regard("lesson", "referent", "--run", tmp_path)
    assert answer.returncode == 2
    (line,) = answer.stderr.decode().strip().splitlines()
    assert "'regard demo' trains one" in line


@pytest.mark.parametrize("columns", [24, 40, 60])
def test_a_lesson_fits_a_narrow_terminal_with_whole_words(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = Table("Pairs", ("pattern", "kept pairs", "computed pairs"), (("causal_window(64)", "2,016", "4,096"),))
    console = Console(file=io.StringIO(), width=columns, markup=False)
    _show_table(table, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(lines)
    assert all(word in words for word in ("causal_window(64)", "2,016", "computed", "4,096")), lines


def test_a_matrix_keeps_its_shape_on_a_narrow_terminal(monkeypatch, capsys):
    words = ("The", "animal", "crossed", "the", "street", "today")
    rows = tuple((word, *(f"{int(column <= row)}.00" for column in range(6))) for row, word in enumerate(words))
    monkeypatch.setenv("COLUMNS", "40")
    _show_table(Table("Weights", ("", *words), rows), out_console(width=40))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    shown = [line.split() for line in lines if line.split()[:1] == ["crossed"]]
    assert [cell for line in shown for cell in line[1:]] == ["1.00", "1.00", "1.00", "0.00", "0.00", "0.00"]
    assert 1 < len(shown) <= 3
