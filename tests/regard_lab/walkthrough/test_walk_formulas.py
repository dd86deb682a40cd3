"""A formula is written once, and both of its forms say the same."""

from xml.etree import ElementTree

import pytest
from walk_cases import CASES, case

from regard_lab.lessons.walkthrough.tables import formula_mathml, formula_text


@pytest.mark.parametrize(
    ("formula", "text", "inside"),
    [
        ("q_i", "q_i", "<msub><mi>q</mi><mi>i</mi></msub>"),
        (
            "ω_{ij}",
            "ω_ij",
            "<msub><mi>ω</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub>",
        ),
        ("K^T", "K^T", "<msup><mi>K</mi><mi>T</mi></msup>"),
        ("z_i^h", "z_i^h", "<msubsup><mi>z</mi><mi>i</mi><mi>h</mi></msubsup>"),
        ("{a}/{√{d}}", "a / √d", "<mfrac><mi>a</mi><msqrt><mi>d</mi></msqrt></mfrac>"),
        ("Σ_j", "Σ_j", "<msub><mo>∑</mo><mi>j</mi></msub>"),
        ('1 " if a < b"', "1  if a < b", "<mn>1</mn><mtext> if a &lt; b</mtext>"),
        ("exp(x)", "exp(x)", '<mi>exp</mi><mo stretchy="false">(</mo><mi>x</mi><mo stretchy="false">)</mo>'),
    ],
)
def test_both_forms(formula, text, inside):
    assert formula_text(formula) == text
    assert formula_mathml(formula) == f'<math display="block">{inside}</math>'


def test_a_group_that_is_not_closed_is_refused():
    with pytest.raises(ValueError, match="not closed"):
        formula_mathml("{a")


@pytest.mark.parametrize("name", CASES)
def test_every_formula_of_a_walk_is_well_formed_and_keeps_its_letters(name):
    for step in case(name).steps:
        root = ElementTree.fromstring(formula_mathml(step.formula))
        drawn = "".join("".join(root.itertext()).split()).replace("∑", "Σ")
        typed = "".join(sign for sign in formula_text(step.formula) if sign not in " _^/√").replace("-", "−")
        assert sorted(drawn.replace("/", "")) == sorted(typed), step.formula
