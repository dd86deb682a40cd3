"""An exercise judges what is typed: numbers, words and Python, and says why an answer is wrong."""

import pytest

from regard_lab.teaching import CODE, NUMBER, WHOLE_NUMBERS, exercise, holds, one_of
from regard_lab.teaching.page import LessonPage
from regard_lab.teaching.preamble import preambles

sizes = [2, 3, 5]  # a name of the lesson


def asked(kind, check):
    return exercise("How many?", kind, hint="Count.", answer="3")(check)


@pytest.fixture
def three(capsys):
    def so_many(answer):
        holds("So many.", answer == 3, f"3, you say {answer}")

    return lambda kind: asked(kind, so_many)


@pytest.mark.parametrize("typed", ["3", " 3.0 ", "6/2", "300 %", "0,003"])
def test_a_number_may_be_typed_in_several_ways(three, typed):
    assert three(NUMBER).judge(typed).is_right


@pytest.mark.parametrize(
    ("kind", "typed", "says"),
    [
        (NUMBER, "4", "Does not hold: So many. (3, you say 4.0)"),
        (NUMBER, "three", "'three' is not a number; type one, as 12.5"),
        (NUMBER, "3/0", "'3/0' is not a number; type one, as 12.5"),
        (WHOLE_NUMBERS, "a 3", "'a 3' are not whole numbers; type them as 2 3 5, or none"),
        (
            one_of("two", "three"),
            "four",
            "'four' is not among the answers; type one of: two, three",
        ),
        (CODE, "sizes[", "the answer is not Python: '[' was never closed"),
        (CODE, "size = 3", "the last line of the answer must be an expression, such as `mask`"),
        (CODE, "", "the last line of the answer must be an expression, such as `mask`"),
        (CODE, "1 / 0", "the answer raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_answer_is_told_why(three, kind, typed, says):
    judgement = three(kind).judge(typed)
    assert not judgement.is_right
    assert judgement.reasons == [says]
    assert str(judgement) == f"wrong\n{says}"


def test_whole_numbers_are_read_with_blanks_commas_or_none():
    def first_three(answer):
        holds("These.", answer in ([2, 3, 5], []), f"{answer}")

    places = asked(WHOLE_NUMBERS, first_three)
    assert places.judge("2 3 5").is_right
    assert places.judge("[2, 3, 5]").is_right
    assert places.judge("none").is_right
    assert not places.judge("5 3 2").is_right


def test_code_reads_the_names_of_the_lesson_and_changes_none(three):
    assert three(CODE).judge("sizes = [3]\nsizes[0]").is_right
    assert three(CODE).judge("max(sizes) - 2").is_right
    assert sizes == [2, 3, 5]


def test_an_answer_that_cannot_be_compared_is_wrong():
    def longer(answer):
        holds("It is long.", len(answer) > 3, "3")

    judgement = asked(CODE, longer)(3)
    assert not judgement.is_right
    assert "the answer cannot be checked: TypeError" in judgement.remark


FOLDED = """\
# %% [markdown]
# # A page
# **Is it?**

# %% tags=["parameters"]
SEED = 3

# %% tags=["folded"]
import math
from itertools import chain, pairwise

unused = pairwise([])
start = SEED + 1


def twice(number):
    return 2 * number


numbers = [twice(start) for start in range(SEED)]

# %%
for number in numbers:
    print(math.sqrt(number))

# %%
print(start, number)
"""


def test_before_code_stand_the_folded_statements_that_it_needs_and_no_others(tmp_path):
    before = preambles(LessonPage(tmp_path / "toy.py", FOLDED).cells)
    assert list(before) == [3, 4]
    assert before[3] == (
        "import math\n\nSEED = 3\n\n\ndef twice(number):\n    return 2 * number\n\n\n"
        "numbers = [twice(start) for start in range(SEED)]"
    )
    assert before[4] == "start = SEED + 1"
