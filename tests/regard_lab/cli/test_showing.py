"""`regard show`, `plan` and `lesson`, and any text in any terminal: narrow, without Unicode, or meant to command it."""

import ast
import io
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commanding import Stream, printed, regard, succeeded
from rich.console import Console

import regard as rg
from regard.backends.flex import backend as flex_backend
from regard.patterns import Pattern
from regard_lab.cli import console, train
from regard_lab.cli.console import note, out, out_json, out_lines
from regard_lab.cli.lesson import _print_cell, _print_table
from regard_lab.cli.train import _live, _plain
from regard_lab.decoding import Generation, Translation, Translator
from regard_lab.decoding.generator import Generator
from regard_lab.lessons import LESSONS, find_lesson
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.teaching.board import LessonTable, Picture
from regard_lab.text.seen_words import SeenWords
from regard_lab.training import Started, StepDone
from regard_lab.training.recipes import Classifier
from regard_lab.training.recipes.run_folder import write_samples

# --- show


def test_show_draws_a_pattern_and_the_reach_of_a_stack():
    assert succeeded("show", "causal & sliding_window(4)", "--length", "3").out == (
        "causal & sliding_window(4): 6 of 9 pairs\n    0 1 2\n  0 ■ · ·\n  1 ■ ■ ·\n  2 ■ ■ ■\n"
        "each row is a query, each column a key\n"
    )
    assert succeeded(
        "show", "causal_window(2)", "--length", "4", "--layers", "2"
    ).out.splitlines() == [
        "causal_window(2): 7 of 16 pairs, 9 through 2 layers",
        "■ allowed, □ only through 2 layers",
        "    0 1 2 3",
        "  0 ■ · · ·",
        "  1 ■ ■ · ·",
        "  2 □ ■ ■ ·",
        "  3 · □ ■ ■",
        "each row is a query, each column a key",
        "2 layers reach 2 back, 0 ahead",
        "the last query learns from 3 of 4 positions: 1..3",
    ]
    lines = succeeded(
        "show", "causal & global_tokens(0)", "--length", "4", "--layers", "2"
    ).out.splitlines()
    assert lines[-2] == "2 layers reach everything back, 0 ahead"


def test_show_prints_json():
    record = printed("show", "causal", "--length", "2", "--keys", "3")
    assert record == {
        "pattern": "causal",
        "q_len": 2,
        "k_len": 3,
        "count": 5,
        "allowed": [[1, 1, 0], [1, 1, 1]],
    }
    record = printed("show", "causal_window(2)", "--length", "3", "--layers", "2")
    assert (record["reach"], record["layers"]) == ({"back": 2, "ahead": 0}, 2)
    assert record["learned"] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_list_names_every_pattern_with_its_arguments():
    listed = printed("show", "--list")
    assert {call.split("(")[0] for call in listed} == set(Pattern.registry.names())
    assert listed["causal_window(size)"].startswith("A query may look at `size` keys")
    assert "fixed(stride, summary=1, local=true)" in succeeded("show", "--list").out.splitlines()


def test_show_draws_the_model_of_a_folder(tmp_path):
    config = TranslationTransformer.Config(vocab_size=23, dim=12, heads=3, encoder_layers=1)
    TranslationTransformer(config).save(tmp_path / "run")
    lines = succeeded("show", str(tmp_path / "run")).out.splitlines()
    assert lines[:2] == ["Translator", "Encoder"]
    assert "    x + cross-attention(norm(x))" in lines

    svg = tmp_path / "model.svg"
    record = printed("show", str(tmp_path / "run"), "--png", str(svg))
    assert [stack["layers"] for stack in record["stacks"]] == [1, 2]
    drawn = svg.read_text("utf-8")
    assert drawn.startswith("<svg ")
    assert "file:" not in drawn
    assert str(Path(__file__).parents[3]) not in drawn

    (tmp_path / "bert").mkdir()
    settings = {"model_type": "bert", "vocab_size": 23, "hidden_size": 12}
    sizes = {"num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 20}
    (tmp_path / "bert" / "config.json").write_text(json.dumps(settings | sizes))
    assert (
        "    norm(x + self-attention(x))"
        in succeeded("show", str(tmp_path / "bert")).out.splitlines()
    )


def test_show_says_what_a_folder_cannot_do(tmp_path, monkeypatch):
    config = RecurrentTranslator.Config(vocab_size=23, dim=12, hidden=12)
    RecurrentTranslator(config).save(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for words, sentence in (
        (["run"], "run is a recurrent-translator"),
        (["run", "--keys", "3"], "--keys is for patterns"),
        (["run", "--png", "run.pdf"], "a name that ends in .svg"),
        (["runs/demo"], "there is no folder runs/demo"),
    ):
        answer = regard("show", *words)
        assert answer.returncode in (1, 2)
        assert sentence in answer.err
    Path("causal").mkdir()  # a pattern has the name first
    assert succeeded("show", "causal", "--length", "2").out.startswith("causal: 3 of 4 pairs")


# --- plan


@pytest.mark.parametrize(
    ("arguments", "shapes", "options"),
    [
        (
            [
                "--q-len",
                "7",
                "--k-len",
                "11",
                "--heads",
                "6",
                "--kv-heads",
                "3",
                "--head-dim",
                "5",
                "--v-dim",
                "13",
                "--batch",
                "2",
                "--pattern",
                "causal & causal_window(4)",
                "--want",
                "entropy",
                "--want",
                "top_keys(3)",
                "--want",
                "weights_of(rows=[0, 5], heads=[2])",
            ],
            ((2, 6, 7, 5), (2, 3, 11, 5), (2, 3, 11, 13)),
            {
                "pattern": "causal & causal_window(4)",
                "want": ["entropy", rg.top_keys(3), rg.weights_of(rows=[0, 5], heads=[2])],
            },
        ),
        (
            [
                "--q-len",
                "9",
                "--softcap",
                "30",
                "--dropout",
                "0.25",
                "--dtype",
                "bfloat16",
                "--backend",
                "reference",
            ],
            ((1, 8, 9, 64),) * 3,
            {"softcap": 30.0, "dropout": 0.25, "dtype": torch.bfloat16, "backend": "reference"},
        ),
        (["--q-len", "9", "--grad"], ((1, 8, 9, 64),) * 3, {"requires_grad": True}),
    ],
)
def test_json_of_a_plan_is_that_of_plan_attention(arguments, shapes, options):
    made = {name: options.pop(name) for name in ("dtype", "requires_grad") if name in options}
    q, k, v = (torch.zeros(shape, **made) for shape in shapes)
    assert (
        succeeded("plan", *arguments, "--json").out.strip()
        == rg.plan_attention(q, k, v, **options).to_json()
    )


def test_a_plan_for_another_device_does_not_depend_on_what_is_installed_here(monkeypatch):
    monkeypatch.setattr(flex_backend, "find_spec", lambda name: None)
    arguments = (
        "--q-len",
        "8192",
        "--pattern",
        "causal & (causal_window(512) | strided(64))",
        "--device",
        "cuda",
    )
    record = printed("plan", *arguments)
    assert "on cuda" in record["problem"]
    assert "refused" not in {record["backend"]: record["cost"], **record["others"]}["flex"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "planned for a machine with cuda" in succeeded("plan", *arguments).err


def test_a_mechanism_is_planned_without_its_learned_tensors_and_the_chosen_backend_is_marked():
    for mechanism, backend in {"performer(64)": "linear", "linformer(64, 8)": "linformer"}.items():
        plan = ("plan", "--q-len", "64", "--mechanism", mechanism)
        assert printed(*plan)["backend"] == backend
        rows = [line.split() for line in succeeded(*plan).out.splitlines()[1:]]
        assert [row[0] for row in rows if row[1] == "chosen:"] == [backend]


# --- lesson


def test_without_a_name_the_questions_of_lessons_are_listed():
    lines = succeeded("lesson").out.splitlines()
    pages = {name: find_lesson(name) for name in LESSONS}
    assert [line.strip().split()[0] for line in lines if line.startswith("   ")] == list(LESSONS)
    assert all(page.question in "\n".join(lines) for page in pages.values())
    assert printed("lesson") == {name: page.question for name, page in pages.items()}


def test_a_lesson_is_printed_with_its_tables_code_and_claims(tmp_path, monkeypatch):
    text = succeeded("lesson", "windows", "--png", tmp_path / "a.png").out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    question = find_lesson("windows").question
    code = "print(p.CausalWindow(4).reach(3))"
    assert all(part in text for part in (question, "How far words look", code, "9 back, 0"))
    assert text.count("\nholds  ") == 3
    monkeypatch.setattr(Pattern, "reach", lambda self, layers=1, real=Pattern.reach: real(self, 1))
    answer = regard("lesson", "windows")
    assert (answer.returncode, "does not hold: reach(layers) is how far" in answer.err) == (1, True)


def test_json_of_a_lesson_has_its_claims_for_the_text_of_a_reader():
    record = printed("lesson", "windows", "--text", "one two three", "--seed", 5)
    assert record["lesson"] == "windows"
    assert record["tables"][0]["rows"][0][-1] == "2 of 3"
    assert {claim["verdict"] for claim in record["claims"]} <= {"holds", "does not hold"}


@pytest.mark.parametrize("columns", [24, 60])
def test_a_table_of_a_lesson_fits_a_narrow_terminal_with_whole_words(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = LessonTable(
        "Pairs",
        ("pattern", "kept pairs", "computed pairs"),
        (("causal_window(64)", "2,016", "4,096"),),
    )
    narrow = Console(file=io.StringIO(), width=columns, markup=False)
    _print_table(table, narrow)
    lines = narrow.file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert all(
        word in " ".join(lines) for word in ("causal_window(64)", "2,016", "computed", "4,096")
    ), lines


def cell_in_a_narrow_terminal(cell, things=()):
    narrow = Console(file=io.StringIO(), width=40, markup=False)
    _print_cell(cell, list(things), narrow)
    return narrow.file.getvalue()


@pytest.mark.parametrize("name", LESSONS)
def test_the_code_of_a_lesson_can_be_copied_from_a_narrow_terminal(name):
    page = find_lesson(name)
    for index, cell in enumerate(page.cells):
        if cell.is_typed:
            typed = replace(cell, text=page.typed_text(index))
            assert ast.dump(ast.parse(cell_in_a_narrow_terminal(typed))) == ast.dump(
                ast.parse(typed.text)
            )


def test_emphasis_in_a_caption_is_no_asterisk_in_a_terminal():
    cell = find_lesson("subwords").cells[1]
    picture = Picture("Pieces", "*Xylophon* is rare, and 2 * 3 * 4 is 24.", None)
    text = " ".join(cell_in_a_narrow_terminal(cell, [picture]).split())
    assert text == "[figure] Pieces. Xylophon is rare, and 2 * 3 * 4 is 24."


def test_parts_of_a_lesson_are_apart_by_one_empty_line():
    page = find_lesson("subwords")
    prose, parameters, *_ = page.cells
    typed = next(cell for cell in page.cells if cell.is_typed)
    for cells in ((prose, typed), (prose, parameters, parameters, typed)):
        text = "".join(map(cell_in_a_narrow_terminal, cells))
        lines = [line.strip() for line in text.splitlines()]
        code = lines.index(typed.text.splitlines()[0])
        assert lines[code - 1] == ""
        assert lines[code - 2] != ""


# --- any terminal


def test_every_command_prints_in_narrow_terminals_and_without_unicode(
    run_folder, tmp_path, monkeypatch
):
    encoding = "ascii"
    monkeypatch.setenv("COLUMNS", "40")
    (tmp_path / "pairs.tsv").write_text("a street\teine Straße\n", encoding="utf-8")
    commands = (
        ("show", "causal_window(3)", "--layers", "2"),
        ("show", "per_head(causal, full)", "--length", "60"),
        ("show", "--list"),
        ("plan", "--q-len", "64", "--pattern", "causal"),
        ("walkthrough", "Das Tier überquert die Straße – müde…"),
        ("walkthrough", "a b", "--whole", "--dim", "4", "--heads", "2"),
        ("lesson", "windows"),
        ("translate", run_folder, "the animal sleeps", "ein Gefühl"),
        ("translate", run_folder, "a", "--map", "cross"),
        ("evaluate", run_folder, tmp_path / "pairs.tsv"),
        ("show", "cäusal ■"),
        ("translate", "nirgendwo ■", "x"),
    )
    for words in commands:
        answer = regard(*words, encoding=encoding)
        text = (answer.stdout + answer.stderr).decode(encoding)
        code = 2 if "■" in " ".join(map(str, words)) else 0
        assert (answer.returncode, bool(text), "Traceback" in text) == (code, True, False), text
    monkeypatch.delenv("COLUMNS")
    answer = regard("translate", run_folder, "das Gefühl", "--json", encoding=encoding)
    # JSON keeps its values
    assert json.loads(answer.stdout.decode(encoding))["source"] == "das Gefühl"


def test_a_command_that_is_silent_says_what_it_does(monkeypatch):
    notes = []
    end = time.monotonic() + 60
    monkeypatch.setattr(console, "QUIET", 0.05)
    monkeypatch.setattr(console, "note", notes.append)
    with console.counting("evaluating"), console.counting("translating", 60) as progress:
        progress(7)
        while (
            not any(remark.startswith("  translating 7 of 60, ") for remark in notes)
            and time.monotonic() < end
        ):
            time.sleep(0.01)
    begun = notes.index("translating 60")
    last = notes[-1]
    assert last.startswith("  translating 7 of 60, 0:")
    assert not [remark for remark in notes[begun:] if "evaluating" in remark]  # the innermost alone


def test_what_an_encoding_lacks_is_remarked_once(monkeypatch):
    remarks = []
    monkeypatch.setattr(sys, "stdout", Stream(encoding="ascii"))
    monkeypatch.setattr(console, "note", remarks.append)
    monkeypatch.setattr(console, "_REMARKED", set())
    for text in ("plain", "Gefühl", "Straße"):
        console.remark_escapes(text)
    (remark,) = remarks
    assert "standard output is written in ascii" in remark


def test_a_drawing_fits_the_width_and_plain_characters_stand_for_the_same_pairs(monkeypatch):
    for pattern in ("causal & (sliding_window(16) | global_tokens(0))", "per_head(causal, full)"):
        for width, length in ((30, 200), (40, 8)):
            monkeypatch.setenv("COLUMNS", str(width))
            drawn = succeeded("show", pattern, "--length", length, "--layers", "3").out
            assert max(map(len, drawn.splitlines())) <= width
    monkeypatch.setenv("COLUMNS", "80")
    words = ("show", "causal_window(3)", "--layers", "2")
    squares, plain = (
        regard(*words, encoding=encoding).stdout.decode(encoding) for encoding in ("utf-8", "ascii")
    )
    assert squares.translate(str.maketrans("■□·", "#o.")) == plain != squares
    monkeypatch.setenv("COLUMNS", "24")
    lines = (
        regard("show", "causal", "--length", "64", encoding="ascii")
        .stdout.decode("ascii")
        .splitlines()
    )
    assert "Each character stands for 4 x 4 pairs" in " ".join(lines)
    rows = [
        line.split()[1]
        for line in lines
        if line.strip()[:1].isdigit() and set(line.split()[-1]) <= set("#+.")
    ]
    for number, row in enumerate(rows):  # all, some or none of them are allowed
        assert row == "#" * number + "+" + "." * (len(rows) - number - 1)


# --- text that would command the terminal

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b1m\u202eback\x7f\u2066x"
FORGING = "line\rover\x85next\u2028last"
SHOWN = r"\x1b[2J\x1b]0;title\x07\x9b1m\u202eback\x7f\u2066x"
COMMANDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def _without_commands_of_rich(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")


def assert_harmless(*texts):
    for text in texts:
        assert not COMMANDING.search(text), repr(text)


@pytest.fixture
def hostile_models(monkeypatch):
    """Models whose texts and labels are hostile."""
    words = SeenWords(frozenset(), 0)
    tokeniser = SimpleNamespace(
        encode=lambda text: text,
        decode=lambda text: text,
        reads=lambda text: text,
        protects=False,
    )
    written = Translation("a", HOSTILE + FORGING, (1,), (1,), -0.5, -0.5, True, (HOSTILE,))

    def translate(lines, kept, **_):
        for index in range(len(lines)):
            kept[index] = [written]

    translator = SimpleNamespace(n_best=translate, words=words, tokeniser=tokeniser)
    monkeypatch.setattr(Translator, "load", lambda run: translator)

    def generate(prompts, on_text=None, **_):
        if on_text is not None:
            on_text(0, 0, HOSTILE)
        return [[Generation(prompts[0], HOSTILE, (1,), (1,), -0.5, -0.5, "end")]]

    generator = SimpleNamespace(generate=generate, tokeniser=tokeniser, words=words)
    monkeypatch.setattr(Generator, "load", lambda run: generator)
    classes = [HOSTILE + FORGING, "b"]
    rows = [[0.75, 0.25]]
    classifier = SimpleNamespace(
        classes=classes, probabilities=lambda texts: rows, words=words, tokeniser=tokeniser
    )
    monkeypatch.setattr(Classifier, "load", lambda run: classifier)


@pytest.mark.usefixtures("hostile_models")
@pytest.mark.parametrize("command", ["translate", "generate", "classify"])
def test_what_a_model_writes_is_shown_with_escapes_on_a_terminal_and_as_it_stands_in_a_pipe(
    command,
):
    answer = regard(command, "run", "a text", terminal=True)
    assert (answer.returncode, SHOWN in answer.out) == (0, True), answer.err
    assert_harmless(answer.out, answer.err)
    if command != "generate":
        (line,) = regard(command, "run", stdin=b"one\n").out.splitlines()
        assert HOSTILE in line
    for terminal in (False, True):
        (line,) = regard(command, "run", HOSTILE, "--json", terminal=terminal).out.splitlines()
        assert_harmless(line)
        record = json.loads(line)
        assert HOSTILE in (record.get("label") or record["text"])


# Each command by its name, with arguments that bring hostile text into a result or a refusal.
PLACES = {
    **dict.fromkeys(("translate", "generate", "classify", "view"), ("{path}", "a")),
    **dict.fromkeys(("evaluate", "lenses", "heads"), ("{path}",)),
    "score": ["{path}", "{path}"],
    **dict.fromkeys(("show", "bench", "conformance", "lesson", "doctor"), (HOSTILE,)),
    **dict.fromkeys(
        ("train language-model", "train masked-words"),
        ("--data", "{path}", "--out", "{folder}/out"),
    ),
    **dict.fromkeys(
        ("train translation", "train classifier"), ("--data", "{path}.tsv", "--out", "{folder}/out")
    ),
    "average": ["{path}", "--out", "{path}"],
    "demo": ["--out", "{path}"],
    "export": ["{path}", "--onnx", "{folder}/model.onnx"],
    "plan": ["--q-len", "4", "--pattern", HOSTILE],
    "compare": ["--data", "{path}.tsv", "--runs", "{path},{path}", "--out", "{folder}/out"],
    "walkthrough": ["a", "--word", HOSTILE],
    "convert kv-heads": ["{path}", "--kv-heads", "1", "--out", "{folder}/out"],
    "convert latent": ["{path}", "--latent-dim", "8", "--out", "{folder}/out"],
}


def test_every_command_names_what_it_was_given_with_escapes(tmp_path):
    from test_help import MODULES

    assert set(MODULES) == set(PLACES)
    path = tmp_path / f"{HOSTILE.replace('/', '')}\nregard: done"
    path.write_text("")
    for command, arguments in PLACES.items():
        words = [
            argument.format(path=path, folder=tmp_path) if "{" in argument else argument
            for argument in arguments
        ]
        answer = regard(*command.split(), *words, terminal=True)
        assert answer.returncode in (1, 2), command
        assert_harmless(answer.out, answer.err)
        assert "\nregard: done" not in answer.err
        assert re.search(r"\\x1b", answer.err), command
    # its name is an option that there is not
    answer = regard("demo", f"--{HOSTILE}", HOSTILE, terminal=True)
    assert answer.returncode == 2
    assert_harmless(answer.out, answer.err)


def test_walkthroughs_and_lessons_of_hostile_text_are_harmless():
    for form in ([], ["--json"]):
        answer = regard(
            "walkthrough", f"a {HOSTILE} b", "--context", f"c {HOSTILE}", *form, terminal=True
        )
        assert answer.returncode == 0, answer.err
        assert_harmless(answer.out, answer.err)
        text = f"one [red]{HOSTILE}[/red] :smile: two"
        answer = regard("lesson", "causal", "--text", text, *form, terminal=True)
        assert (answer.returncode, "[red]" in answer.out, ":smile:" in answer.out) == (
            0,
            True,
            True,
        )
        assert_harmless(answer.out, answer.err)


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (40, "1:05 left"),
        (60, "loss 2.125, 12,347 ids/s, 1:05 left"),
        (110, "loss 2.125, 12,347 target ids per second, 1:05 left"),
    ],
)
def test_a_line_of_progress_fits_its_terminal_with_bar_steps_and_time(width, words, monkeypatch):
    screen = io.StringIO()
    how = {"force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}}
    console = Console(file=screen, width=width, **how)
    monkeypatch.setattr(train, "has_terminal", lambda: True)
    monkeypatch.setattr(train, "terminal", lambda: console)
    with train.training_progress() as progress:
        progress(Started(0, 503))
        progress(StepDone(417, 503, 2.125, 1e-3, 1.0, 12_347.0, 65.0))
    lines = re.split(r"[\r\n]+|\x1b\[[0-9;?]*[a-zA-Z]", screen.getvalue())
    drawn = next(line.rstrip() for line in lines if "417/503" in line)
    assert drawn.endswith(f" training 417/503 {words}")
    assert drawn.startswith("━━━")
    assert len(drawn) <= width


def test_notes_samples_and_reports_are_harmless(tmp_path, monkeypatch):
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    lines = Console(file=stream, no_color=True, force_terminal=False)
    bar = SimpleNamespace(console=lines, update=lambda *_, **__: None)
    event = Started(3, 9, (HOSTILE + FORGING,))
    _plain(event)
    _live(event, bar, SimpleNamespace(), 0)
    for show in (out, out_json, out_lines, note):
        show(HOSTILE)
    write_samples(lambda model, picture: [HOSTILE + FORGING], None, 1, tmp_path)
    stream.flush()
    samples = (tmp_path / "samples/step-000001.txt").read_text()
    assert_harmless(stream.buffer.getvalue().decode(), samples)
    assert len(samples.splitlines()) == 1
