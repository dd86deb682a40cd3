"""The lines of a walk are real: a reader who types them gets every number."""

from dataclasses import replace

import pytest
import torch
from walk_cases import CASES, SENTENCE, case, given

from regard.errors import ArgumentError, RegardError
from regard_lab.lessons.walkthrough import layer, walk
from regard_lab.lessons.walkthrough.steps import LANGUAGE


@pytest.mark.parametrize("name", CASES)
def test_lines_typed_one_after_the_other_give_every_step(name):
    found = case(name)
    typed = {**LANGUAGE, **given(found)}
    for step in found.steps:
        assert step.line.startswith(f"{step.name} = ")
        exec(step.line, typed)
        value = typed[step.name]
        if isinstance(step.value, torch.Tensor):
            torch.testing.assert_close(value, step.value, rtol=0, atol=1e-6)
            assert tuple(value.shape) == tuple(len(axis) for axis in step.axes), step.name
        else:
            assert tuple(value) == step.value
            assert len(value) == len(step.axes[0])


@pytest.mark.parametrize("name", CASES)
def test_a_walk_ends_where_the_layer_and_the_fused_call_do(name):
    checks = case(name).checks
    assert max(check.difference for check in checks) < 1e-12
    assert checks[-1].line.startswith("layer(x.T[None]" if "columns" in name else "layer(x[None]")
    fused = any(check.line.startswith("F.scaled_dot_product_attention") for check in checks)
    assert fused == (CASES[name].get("score", "scaled_dot") in ("scaled_dot", "dot"))


def test_a_walk_that_leads_elsewhere_raises(monkeypatch):
    wrong = replace(layer.DOT, heads="{Q} @ {K}.mT * 1.01")
    monkeypatch.setitem(layer.LINES, layer.ScaledDot, wrong)
    with pytest.raises(RegardError, match=r"differ by .* mistake of regard"):
        walk(SENTENCE)


def test_the_chosen_word_is_the_row_of_all_words():
    found = walk(SENTENCE, word="eat", causal=True)
    assert found.word == 4
    for one, every in (("omega", "scores"), ("masked", "masked_scores"), ("alpha", "weights"), ("z", "contexts")):
        torch.testing.assert_close(found[one], found[every][4], rtol=0, atol=1e-12)


def test_the_sentence_about_the_weights_names_the_largest_one():
    found = walk(SENTENCE, seed=5)
    said = next(step.says for step in found.steps if step.name == "alpha")
    most = int(found["alpha"].argmax())
    assert f"looks most at “{found.words[most]}”" in said
    assert f"{found['alpha'][most]:.3f}" in said


def test_the_seed_decides_the_weights_and_leaves_other_random_numbers_alone():
    before = torch.random.get_rng_state()
    one, same, other = walk(SENTENCE, seed=1), walk(SENTENCE, seed=1), walk(SENTENCE, seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one["output"], same["output"])
    assert not torch.allclose(one["output"], other["output"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 3}, "dim 8 is not divisible by 3 heads"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads is 3, by which 4 query heads cannot be divided"),
        ({"head": 2}, "heads 0 to 1"),
        ({"score": "cosine"}, "score 'cosine' does not exist"),
        ({"positions": "learned"}, "positions 'learned' does not exist"),
        ({"context": "a b", "causal": True}, "no common origin"),
        ({"context": "a b", "positions": "rotary"}, "no common origin"),
        ({"positions": "sinusoidal", "dim": 9, "heads": 1}, "need an even dim"),
        ({"positions": "rotary", "dim": 10, "heads": 2}, "rotates pairs"),
        ({"context": " "}, "the context has no words"),
        ({"word": 8}, "the text has words 1 to 7"),
        ({"word": 0}, "the text has words 1 to 7"),
        ({"word": "-1"}, "the text has words 1 to 7"),
        ({"word": "cake"}, "'cake' is not in the text"),
    ],
)
def test_what_does_not_go_together_is_refused(options, said):
    with pytest.raises(ArgumentError, match=said):
        walk(SENTENCE, **options)
