"""The page "The articles, section by section": every section, every link and every command of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from test_code_blocks import regard

from docs.making.article_sections import ARTICLES
from docs.making.articles import answers, command_exists, is_answered
from docs.making.blocks import mentioned
from docs.making.figures import DOCS
from docs.making.worked_examples import example
from regard_lab.lessons import LESSONS

PAGE = DOCS / "articles.md"
TEXT = PAGE.read_text("utf-8")

# Every section of the articles, by words of its title here.
SECTIONS = {
    "Understanding Transformers": """core concept, queries, scaled dot-product, multi-head, concatenation,
        self-attention against cross-attention, all positions at once, long-range, depend on the input,
        why not before""",
    "Papers Explained": """scaled dot product, multi-head, two sequences, image and text, masking after the softmax,
        minus infinity, w/2 on each side, stacked layers, multi-query, grouped-query, mha and mqa, mean-pooled""",
    "from scratch": """introduction, building block, multi-head, input sentence, weight matrices, unnormalised,
        attention scores, context vectors, cat sat, quick brown fox, life is short""",
    "How Multi Head": """bahdanau, fixed vector, bidirectional, global and soft, types, stable gradients, s_{t-1},
        output is modified, attentionwrapper, random, strided, q'(k, performer, multi-query, lstmn,
        self-attention: transformer, six layers, equivariance, wavelengths, linear in pe, four waves, sequential steps,
        transfer, by model, one head""",
    "Overview": "table of weights, congested, v, w, u, tanh, z1, matrices of 64, whole block",
}
RUNS = ("show", "plan", "walkthrough", "translate", "generate", "convert")  # quick, and run with small models
ALL = [section for sections in ARTICLES.values() for section in sections]
COMMANDS = sorted({words for section in ALL for words in section.commands})


def test_every_section_of_the_articles_has_a_row():
    assert len(ARTICLES) == len(SECTIONS)
    for name, words in SECTIONS.items():
        (article,) = [title for title in ARTICLES if name in title]
        titles = " | ".join(section.title.lower() for section in ARTICLES[article])
        assert [one for one in " ".join(words.split()).split(", ") if one not in titles] == []


def test_every_row_that_is_answered_is_on_the_page_with_a_number():
    for section in ALL:
        rows = [line for line in TEXT.splitlines() if line.startswith(f"| {section.title} |")]
        assert bool(rows) == is_answered(section), f"make figures: {section.title}"
        for row in rows:
            command, pages, number = re.split(r"(?<!\\)\|", row)[2:5]
            assert number.strip(), row
            there = [name for name, _ in answers(section) if name in LESSONS]
            assert ("`regard " in command) == bool(there or any(map(command_exists, section.commands))), row
            assert all(f"](lessons/{name}.md)" in pages for name in there), row


def test_lessons_and_commands_exist_or_are_known_to_be_pending():
    lessons = {name for section in ALL for name, _ in answers(section)}
    assert lessons <= set(LESSONS)
    for words in COMMANDS:
        assert command_exists(words), f"regard {words} does not exist"
    for words in mentioned(TEXT):
        assert words[0] != "lesson" or words[1] in LESSONS


def broken_links(text: str, folder: Path) -> list[str]:
    """Links of a page whose file, or whose heading in it, is not there."""
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", text)
    broken = []
    for path, anchor in links:
        target = folder / path if path else None
        if target is not None and not target.exists():
            broken.append(path)
        elif anchor:
            page = text if target is None else target.read_text("utf-8")
            headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
            slugs = {re.sub(r"[^\w\s-]", "", one.lower()).strip().replace(" ", "-") for one in headings}
            broken += [] if anchor in slugs else [f"{path}#{anchor}"]
    return broken


def test_every_link_leads_to_a_file_and_a_heading():
    assert TEXT.count("](") > 50
    assert broken_links(TEXT, DOCS) == []


def test_a_broken_link_is_seen():
    text = "# One thing\n[a](#one-thing) [b](#other) [c](nowhere.md) [d](articles.md#the-articles-section-by-section)"
    assert broken_links(text, DOCS) == ["#other", "nowhere.md"]


@pytest.mark.parametrize("words", [one for one in COMMANDS if one.split()[0] in RUNS and "--why" not in one])
def test_a_quick_command_of_the_page_runs(words, tmp_path, monkeypatch, saved_runs):
    if not command_exists(words):
        return  # the test above names what is pending
    (tmp_path / "runs").mkdir()
    for run in saved_runs.iterdir():
        (tmp_path / "runs" / run.name).symlink_to(run, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    regard(shlex.split(words), monkeypatch)
    for picture in re.findall(r"--picture (\S+)", words):
        assert (tmp_path / picture).exists()


@pytest.mark.parametrize("words", ["lessons scale", "show causal --layer 3", "train translations --data x --out y"])
def test_a_command_that_does_not_exist_is_seen(words):
    assert not command_exists(words)


def test_the_worked_example_has_the_articles_numbers():
    """As the article prints them, to four decimals."""
    golden = {
        "ids": [0, 4, 5, 2, 1, 3],
        "scores": [8.5808, -7.6597, 3.2558, 1.0395, 11.1466, -0.4800],
        "weights": [0.2912, 0.0106, 0.0982, 0.0625, 0.4917, 0.0458],
    }
    for name, numbers in golden.items():
        assert example()[name].tolist() == pytest.approx(numbers, abs=6e-5), name
    assert example()["contexts"][1, :2].tolist() == pytest.approx([-1.5993, 0.0156], abs=6e-5)


def test_the_page_is_linked_from_where_readers_start():
    assert "](docs/articles.md)" in (DOCS.parent / "README.md").read_text("utf-8")
    assert "](../articles.md)" in (DOCS / "lessons" / "index.md").read_text("utf-8")
