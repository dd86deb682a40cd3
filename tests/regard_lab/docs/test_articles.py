"""The page "The articles, section by section": every section of them, and every lesson and quick command it names."""

import re
import shlex

import pytest
from page_code import mentioned
from test_code_blocks import DOCS, regard

from regard_lab.lessons import LESSONS

TEXT = (DOCS / "articles.md").read_text("utf-8")
# quick, and run with small models
RUNS = (
    "show",
    "plan",
    "walkthrough",
    "translate",
    "generate",
    "convert",
)
COMMANDS = sorted(
    {shlex.join(words) for words in mentioned(TEXT) if words[0] in RUNS and "--why" not in words}
)

# Every section of the articles, by words of its title here.
SECTIONS = {
    "Understanding Transformers": """core concept, queries, scaled dot-product, multi-head, concatenation,
        self-attention against cross-attention, all positions at once, long-range, depend on the input,
        why not before""",
    "Papers Explained": """scaled dot product, multi-head, two sequences, image and text, masking after the softmax,
        minus infinity, w/2 on each side, stacked layers, multi-query, grouped-query, mha and mqa, mean-pooled""",
    "from scratch": """introduction, building block, multi-head, input sentence, weight matrices, unnormalised,
        attention scores, context vectors, cat sat, quick brown fox, life is short""",
    "How Multi Head": """bahdanau, fixed vector, bidirectional, global and soft, types of attention: self-attention,
        types of attention: encoder-decoder, types of attention: multi-head, stable gradients, s_{t-1},
        output is modified, attentionwrapper, random, strided, q'(k, performer, multi-query, lstmn,
        self-attention: transformer, six layers, wavelengths, linear in pe, four waves, sequential steps,
        transfer, by model, one head, lstm, equivariant, locally banded, implementation: linear""",
    "Overview": """table of weights, congested, v, w, u, tanh, z1, matrices of 64, words as columns, whole block,
        how to we transition""",
}


def test_every_section_of_the_articles_has_a_row_with_a_lesson():
    _, *articles = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    assert len(articles) == len(SECTIONS)
    for name, words in SECTIONS.items():
        (article,) = [text for text in articles if name in text.split("\n")[0]]
        rows = [line.lower() for line in article.splitlines() if line.startswith("| ")][1:]
        for section in " ".join(words.split()).split(", "):
            assert any(section in row for row in rows), section
        assert [row for row in rows if "](../regard_lab/lessons/" not in row] == []


def test_the_lessons_it_names_exist():
    assert set(re.findall(r"/lessons/(\w+)\.py\)", TEXT)) <= set(LESSONS)
    assert {words[1] for words in mentioned(TEXT) if words[0] == "lesson"} <= set(LESSONS)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_quick_command_of_the_page_runs(words, tmp_path, monkeypatch, saved_runs):
    (tmp_path / "runs").mkdir()
    for run in saved_runs.iterdir():
        (tmp_path / "runs" / run.name).symlink_to(run, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    regard(shlex.split(words), monkeypatch)
    for picture in re.findall(r"--picture (\S+)", words):
        assert (tmp_path / picture).exists()


def test_a_row_about_an_encoder_shows_no_masked_attention():
    """A whole model without `--model encoder` is a decoder, whose attention is causal."""
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    of_blocks = [row for row in rows if "--whole" in row and "lessons/encoder.py" in row]
    assert len(of_blocks) >= 3
    assert not [row for row in of_blocks if "--whole --model encoder" not in row]
