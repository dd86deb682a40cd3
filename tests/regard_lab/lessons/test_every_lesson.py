"""Every lesson runs, its claims come out as it says, each of them can fail, and its figure is whole."""

from pathlib import Path

import pytest
from teaching import BrokenPage, Computed, broken_claims, failing, never_broken
from wrong_answers import WRONG_ANSWERS

from benchmarks.lesson_reports import REPORTS
from regard.errors import ArgumentError
from regard_lab import lessons
from regard_lab.lessons import LESSONS, find_lesson
from regard_lab.teaching import LessonPage, read_report, words_of
from regard_lab.teaching.board import Claim, ClaimError, Picture
from regard_lab.teaching.exercises import exercises_in

FILES = Path(lessons.__file__).parent
ROOT = FILES.parents[1]


def test_every_file_is_listed_in_a_chapter():
    assert {path.stem for path in FILES.glob("*.py")} - {"__init__"} == set(LESSONS)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_begins_with_a_whole_figure_its_claims_can_fail_and_its_exercises_judge(name):
    """It runs once: a claim that comes out differently raises."""
    page = find_lesson(name)
    things = []
    for _, shown in page.run():
        things += shown
    pictures = [thing for thing in things if isinstance(thing, Picture)]
    sentences = [thing.sentence for thing in things if isinstance(thing, Claim)]

    assert page.question.endswith("?")
    assert things[0] is pictures[0]
    assert sentences
    untested = never_broken(sentences, broken_claims().get(name, ()))
    assert not untested, (
        f"in a test_breaking_*.py, break it and assert starting(failing({name!r}), {untested[0]!r})"
    )

    for picture in pictures:
        picture.figure.draw_without_rendering()
        assert nothing_is_cut_off(picture.figure)
        assert no_legend_lies_on_data(picture.figure)

    exercises = exercises_in(things)
    assert {exercise.name for exercise in exercises} == set(WRONG_ANSWERS[name])
    assert len(exercises) in (2, 3)
    for exercise in exercises:
        right = exercise.judge(exercise.answer)
        assert right.is_right, right
        assert len(set(WRONG_ANSWERS[name][exercise.name])) == 3
        for answer in WRONG_ANSWERS[name][exercise.name]:
            assert not exercise.judge(answer).is_right, f"{exercise.name} accepts {answer}"


@pytest.mark.parametrize("name", LESSONS)
def test_the_code_of_a_lesson_runs_as_it_is_typed_into_a_new_python(name):
    page = find_lesson(name)
    names = {"__name__": "__main__"}
    for index, cell in enumerate(page.cells):
        if cell.is_typed:
            exec(page.typed_text(index), names)


def nothing_is_cut_off(figure):
    inked = figure.get_tightbbox()  # in inches
    width, height = figure.get_size_inches()
    return min(inked.x0, inked.y0, width - inked.x1, height - inked.y1) > -0.01


def no_legend_lies_on_data(figure):
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is None:
            continue
        extent = legend.get_window_extent()
        if any(extent.overlaps(panel.bbox) for panel in figure.axes):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in LESSONS if {"TEXT", "SEED"} & set(find_lesson(name).parameters)]
)
def test_every_claim_comes_out_the_same_for_another_seed_and_text(name):
    page = find_lesson(name)
    changed = {}
    if "SEED" in page.parameters:
        changed["SEED"] = 11
    if name == "caption":
        changed["TEXT"] = "a yellow triangle below a green circle"
    elif "TEXT" in page.parameters:
        changed["TEXT"] = " ".join(f"word{place}" for place in range(60))
    for claim in page.claims(changed, lenient=True):
        assert claim.holds in (claim.expected, None), claim


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_that_lessons_read_is_the_one_of_its_benchmark(name):
    made = REPORTS[name]()
    report = read_report(name)
    assert (report.figures, report.command) == (made.figures, made.command)


def test_mistakes_name_the_way_out():
    with pytest.raises(ArgumentError, match=r"no lesson is called 'scales'; did you mean 'scale'"):
        find_lesson("scales")
    with pytest.raises(ArgumentError, match="lesson windows has no run; it has text, seed"):
        find_lesson("windows").claims({"RUN": "runs/demo"})
    with pytest.raises(ArgumentError, match="the text has 2 words; this lesson takes 3 to 120"):
        find_lesson("windows").claims({"TEXT": "one two"}, lenient=True)


def test_words_are_shown_as_what_they_are():
    assert words_of("a\x07 \u202ecat") == ("a\\x07", "\\u202ecat")


TOY = """\
# %% [markdown]
# # A toy
# **Is it?**

# %% tags=["parameters"]
SEED = 3

# %%
from regard_lab.teaching import does_not_hold, holds, table, undecided

print("seed", SEED)
table("Sizes", ("a|b", "n"), [("<script>", 1)])
holds("It holds.", SEED == 3, "1 of 1")
does_not_hold("It does not.", SEED != 3, "0 of 1")
undecided("Who knows?", None, "1 of 2")
"""


def test_a_page_holds_everything_in_order_and_words_stay_words():
    text, pictures = LessonPage(Path("toy.py"), TOY).markdown()
    assert not pictures
    parts = [
        "# A toy",
        "seed 3",
        r"| a\|b | n |",
        "| &lt;script> | 1 |",
        '- <span class="claim">✓ It holds.</span> <span class="measured">1 of 1</span>',
        '<span class="claim">✗ *Does not hold:* It does not.</span> <span class="measured">0 of 1',
        '<span class="claim">? *Undecided:* Who knows?</span> <span class="measured">1 of 2',
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_claim_that_comes_out_differently_raises_unless_a_reader_changed_something():
    page = LessonPage(Path("toy.py"), TOY.replace("SEED == 3", "SEED == 4"))
    with pytest.raises(
        ClaimError, match=r"does not hold: It holds\. \(1 of 1\); the lesson expects: holds"
    ):
        page.claims()
    assert [claim.holds for claim in page.claims({"SEED": 4}, lenient=True)] == [True, True, None]


def test_a_wrong_value_stands_wherever_a_cell_assigns_its_name():
    for wrong in (4, Computed(lambda SEED: SEED + 1)):
        claims = BrokenPage(Path("toy.py"), TOY, {"SEED": wrong}).claims(lenient=True)
        assert [claim.holds for claim in claims] == [False, True, None]


def test_a_wrong_value_for_a_name_that_no_cell_assigns_is_an_error():
    with pytest.raises(AssertionError, match="no cell of lesson causal assigns SEEDS"):
        failing("causal", SEEDS=4)
