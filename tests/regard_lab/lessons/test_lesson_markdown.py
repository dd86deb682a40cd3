"""A lesson as a page: everything of the record in order, machine-dependent tables marked, hostile words as text."""

import pytest

from regard_lab.lessons import Claim, Lesson, Table, Taught, to_markdown
from regard_lab.lessons.taught import MEASURED


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
