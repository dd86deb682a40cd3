"""Vectors as columns: the same numbers as with rows, transposed, and lines that a reader of an article knows."""

import pytest
import torch
from walk_cases import COLUMNS, SENTENCE, case

from regard_lab.lessons.walkthrough import to_html, to_text, walk


@pytest.mark.parametrize("name", COLUMNS)
def test_every_vector_is_a_column_of_the_same_numbers(name):
    columns, rows = case(name), case(name.removesuffix(", columns"))
    turned = 0
    for one, other in zip(columns.steps, rows.steps, strict=True):
        assert one.name == other.name
        if not isinstance(one.value, torch.Tensor):
            continue
        units, others = ([axis.unit for axis in step.axes] for step in (one, other))
        if others[-2:] == ["words", "numbers"]:
            assert units[-2:] == ["numbers", "words"], one.name
            torch.testing.assert_close(one.value.mT, other.value, rtol=0, atol=1e-9)
            turned += 1
        elif one.name.startswith("positions"):
            torch.testing.assert_close(one.value.T, other.value, rtol=0, atol=1e-9)
        else:
            assert units == others
            torch.testing.assert_close(one.value, other.value, rtol=0, atol=1e-9)
    assert turned >= 6


def test_its_lines_are_those_of_the_articles():
    found = walk(SENTENCE, columns=True, heads=1)
    lines = {step.name: step.line for step in found.steps}
    assert lines["q"] == "q = W_q[0] @ x"
    assert lines["omega"] == "omega = k.T @ q[:, 1]"
    assert lines["scores"] == "scores = q.T @ k"
    assert lines["contexts"] == "contexts = v @ weights.T"
    assert lines["output"] == "output = W_o @ contexts"
    formulas = {step.name: step.formula for step in found.steps}
    assert formulas["scores"] == "Ω = Q^T K"
    assert formulas["q"] == "q_i = W_q x_i"


def test_text_and_page_show_columns():
    found = walk(SENTENCE, columns=True)
    assert "4 numbers × 7 words" in to_text(found)
    assert "4 numbers × 7 words" in to_html(found)
    assert "7 words × 4 numbers" not in to_text(found)


def test_rows_are_the_default():
    assert "columns" not in walk(SENTENCE).settings
    assert next(step.line for step in walk(SENTENCE).steps if step.name == "q") == "q = x @ W_q[0].T"
