"""What holds for each of them: the record, its determinism, its code, its figure, its page, and its mistakes."""

import contextlib
import io
import json
from functools import cache
from pathlib import Path

import pytest
from teaching import (
    LONG,
    LOOKING,
    breaks,
    never_broken,
    untrained_run,
    with_few_sentences,
    without_timing,
)

from regard.errors import ArgumentError, CheckpointError
from regard_lab import lessons
from regard_lab.lessons import LESSONS, Claim, Lesson, Settings, Table, Taught, complexity, find_lesson, to_markdown
from regard_lab.lessons.taught import MEASURED
from regard_lab.lessons.words import MOST_WORDS, milliseconds, words_of
from regard_lab.training.recipes.run_folder import write_run

FILES = Path(lessons.__file__).parent


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Sizes that take long are smaller here; the files of these lessons test the claims at full size."""
    without_timing(monkeypatch)
    with_few_sentences(monkeypatch)
    for setting, value in SMALL.items():
        monkeypatch.setattr(f"regard_lab.lessons.{setting}", value)


SMALL = {
    "fixed_vector.LENGTHS": (1, 2, 4), "approximations.DRAWS": 4,
    "complexity.counted": cache(complexity.counted), "complexity.path": cache(complexity.path),
}  # fmt: skip
TEXTS = {"caption": "a yellow triangle below a green circle"}  # for lessons that take texts of one form only


def teach(name, run, **settings):
    return find_lesson(name).teach(Settings(run=run if name in LOOKING else None, **settings))


@cache
def own(name, run):
    """As it is taught without any choice."""
    return teach(name, run)


@cache
def chosen(name, run):
    """Of another seed, and of 60 words where a reader may give them."""
    return teach(name, run, seed=11, text=TEXTS.get(name, LONG) if "text" in LESSONS[name].takes else None)


def test_each_of_them_has_a_question():
    assert list(LESSONS) == [
        "recurrent", "fixed_vector", "alignment", "scale", "positions", "causal", "cross",
        "one_head", "encoder", "decoder", "translation", "heads", "referent", "generation", "grouped",
        "windows", "sparse", "linear", "approximations", "complexity", "relations", "answer_head", "transfer",
        "caption", "imprecise",
    ]  # fmt: skip
    assert all(lesson.question.endswith("?") and lesson.title for lesson in LESSONS.values())


def test_every_file_of_a_lesson_is_listed_and_has_a_test_of_its_claims():
    files = {path.stem for path in FILES.glob("*.py") if "\ndef teach(" in path.read_text("utf-8")}
    assert files == set(LESSONS), "add a row in regard_lab/lessons/taught.py"
    untested = [name for name in LESSONS if not (Path(__file__).parent / f"test_lesson_{name}.py").exists()]
    assert not untested, f"test the claims in tests/regard_lab/lessons/test_lesson_{untested[0]}.py"


@pytest.mark.parametrize("name", LESSONS)
def test_every_claim_fails_in_a_test_that_breaks_what_it_is_about(name, run_folder):
    untested = never_broken([claim.sentence for claim in own(name, run_folder).claims], breaks(name))
    assert not untested, f"in test_lesson_{name}.py, break it and assert starting(failing({name!r}), {untested[0]!r})"


def test_a_beginning_that_fits_several_claims_names_none():
    claims = ["The cost grows.", "The cost falls.", "The sum is 1."]
    assert never_broken(claims, {r"The\ cost", "The"}) == claims
    assert never_broken(claims, {r"The\ cost\ g", r"The\ sum"}) == ["The cost falls."]
    assert never_broken(claims, {r"The\ cost\ .+"}) == ["The sum is 1."]


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_json_and_the_same_twice(name, run_folder):
    record = json.dumps(own(name, run_folder).to_dict())
    assert record == json.dumps(teach(name, run_folder).to_dict())
    record = json.loads(record)
    assert record["lesson"] == name
    assert all(record[part] for part in ("paragraphs", "claims", "tables", "numbers", "code"))
    for table in record["tables"]:
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


@pytest.mark.parametrize("name", [name for name in LESSONS if name not in LOOKING])
def test_every_claim_holds_for_any_seed_and_text(name, run_folder):
    for taught in (own(name, run_folder), chosen(name, run_folder)):
        assert [claim.sentence for claim in taught.claims if claim.holds is False] == []
        undecided = [claim.sentence for claim in taught.claims if claim.holds is None]
        assert len(undecided) <= (name == "complexity")  # its committed report may not tell exponents apart
        assert all(claim.figures for claim in taught.claims)


@pytest.mark.parametrize("name", LESSONS)
def test_the_code_that_is_shown_runs(name, run_folder):
    code = own(name, run_folder).code.replace("runs/demo", str(run_folder))
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, name, "exec"), {})


@pytest.mark.parametrize("name", LESSONS)
def test_nothing_of_a_figure_is_outside_and_no_legend_lies_on_data(name, run_folder, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("regard_lab.seeing.canvas.save", lambda figure, path: figures.append(figure))
    chosen(name, run_folder).draw(tmp_path / "lesson.png")
    (figure,) = figures
    figure.draw_without_rendering()
    inked, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(inked.x0, inked.y0, width - inked.x1, height - inked.y1) > -0.01
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    assert not any(legend.get_window_extent().overlaps(axes.bbox) for legend in legends for axes in figure.axes)


def test_the_figure_is_a_png_and_the_same_bytes_twice(tmp_path):
    taught = own("causal", None)
    for name in ("one.png", "two.png"):
        taught.draw(tmp_path / name)
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one == two
    assert one.startswith(b"\x89PNG")
    with pytest.raises(ArgumentError, match=r"must end in \.png or \.svg"):
        taught.draw(tmp_path / "one.jpg")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("cross", {"text": "a b"}, "its own sentences"),
        ("scale", {"run": Path("run")}, "needs no trained model"),
        ("heads", {}, "give one with --run RUN"),
        ("heads", {"run": Path("nowhere")}, "nowhere is not the folder"),
        ("causal", {"text": ""}, "0 words; this lesson takes 2 to 120"),
        ("windows", {"text": "one two"}, "takes 3 to 120"),
        ("linear", {"text": "word " * 10_000}, "10000 words"),
        ("caption", {"text": "a purple cat"}, "it does not know 'purple', 'cat'; colours: red, blue"),
        ("caption", {"text": "a red circle"}, "of another form; colours: red, .*shapes: circle"),
    ],
)
def test_a_mistake_says_the_way_out(name, settings, words):
    with pytest.raises((ArgumentError, CheckpointError), match=words):
        find_lesson(name).teach(Settings(**settings))


@pytest.mark.parametrize("seed", [-1, 2**32, True, "1"])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ArgumentError, match="a whole number from 0 to 4294967295"):
        Settings(seed=seed)


def test_a_folder_without_a_translator_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"'regard demo' trains one"):
        find_lesson("referent").teach(Settings(run=tmp_path))


def test_an_unknown_lesson_is_answered_with_those_there_are():
    with pytest.raises(ArgumentError, match=r"no lesson is called 'scales'; did you mean 'scale'"):
        find_lesson("scales")


def test_words_are_shown_as_what_they_are():
    assert words_of("a\x07 \u202ecat", own="never used") == ("a\\x07", "\\u202ecat")
    assert words_of(None, own="a dog") == ("a", "dog")
    assert len(words_of("w " * MOST_WORDS, own="")) == MOST_WORDS


def test_times_are_of_the_call_that_was_named(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.process_time", lambda: now[0])

    def costs(seconds):
        now[0] += seconds

    assert milliseconds({"slow": lambda: costs(0.03), ("quick", 2): lambda: costs(0.002)}) == {
        "slow": 30.0, ("quick", 2): 2.0
    }  # fmt: skip


@pytest.mark.parametrize("name", ["heads", "referent"])
def test_a_run_of_other_data_is_refused_as_by_the_lenses(name, tmp_path):
    untrained_run(tmp_path / "run")
    write_run(tmp_path / "run", {"data": ["pairs.tsv"]}, [])
    words = f"have the right pronoun; lesson {name} is taught on a translator that has learned the embedded corpus"
    with pytest.raises(ArgumentError, match=words):
        find_lesson(name).teach(Settings(run=tmp_path / "run"))


@pytest.fixture
def taught():
    return Taught(
        lesson=Lesson("toy", "A toy", "Is it?"),
        paragraphs=("First.", "Then a <b>."),
        tables=(
            Table("Sizes", ("a|b", "n"), (("x_y", "1"),)),
            Table("Times", ("n", "ms"), (("1", "2"),), measured=True),
        ),
        claims=(
            Claim("It holds.", True, "1 of 1"),
            Claim("It does not.", False, "0 of 1"),
            Claim("Who knows?", None, "1 of 2"),
        ),
        code="print(1)",
        numbers={},
        drawing=lambda figure: None,
    )


def test_the_page_holds_everything_in_order(taught):
    assert to_markdown(taught, "toy.png").splitlines() == [
        "# A toy", "", "**Is it?**", "", "First.", "", "Then a &lt;b>.", "", "![A toy](toy.png)", "",
        "### Sizes", "", r"| a\|b | n |", "| --- | --- |", r"| x\_y | 1 |", "",
        "### Times", "", MEASURED, "", "| n | ms |", "| --- | --- |", "| 1 | 2 |", "",
        "## Claims checked", "", "- Holds: It holds. (1 of 1)", "- **Does not hold**: It does not. (0 of 1)",
        "- **Undecided**: Who knows? (1 of 2)",
        "", "## Try it", "", "```python", "print(1)", "```",
    ]  # fmt: skip


def test_a_page_without_a_figure_has_none(taught):
    assert "![" not in to_markdown(taught)


def test_hostile_words_stay_words(taught):
    row = ("<script>alert(1)</script>", "[x](javascript:y) `z` \\")
    page = to_markdown(Taught(**{**vars(taught), "tables": (Table("t", ("a", "b"), (row,)),)}))
    assert r"| &lt;script>alert(1)&lt;/script> | \[x](javascript:y) \`z\` \\ |" in page
