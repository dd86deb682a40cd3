import numpy as np
import pytest
from teaching import failing, starting

from regard_lab.lessons import find_lesson, scale
from regard_lab.lessons.words import embedded, normal, words_of


def entropy_and_gradient(head_dim, factor):
    """Of the lesson's own sentence, by the formulas of softmax and its derivative, in NumPy."""
    x = embedded(words_of(None, scale.TEXT), scale.DIM, 0)[0].numpy()
    matrices = normal(1, 3, scale.HEADS, scale.DIM, head_dim).numpy() / np.sqrt(scale.DIM)
    q, k, v = (x @ matrix for matrix in matrices)  # (heads, words, head_dim)
    arriving = normal(2, 1, *q.shape)[0].numpy() / np.sqrt(head_dim)
    scores = factor * q @ k.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(-1).mean()
    to_weights = arriving @ v.swapaxes(1, 2)
    to_scores = weights * (to_weights - (weights * to_weights).sum(-1, keepdims=True))
    return entropy, np.abs(to_scores).mean()


@pytest.mark.parametrize(("kind", "power"), [("unscaled", 0.0), ("scaled", -0.5)])
def test_entropy_and_gradient_are_those_of_the_formulas(kind, power):
    numbers = find_lesson("scale").teach().numbers
    for place in (0, 4):
        dim = numbers["head_dim"][place]
        entropy, gradient = entropy_and_gradient(dim, dim**power)
        assert numbers[kind]["entropy"][place] == pytest.approx(entropy, abs=1e-4)
        assert numbers[kind]["gradient"][place] == pytest.approx(gradient, abs=1e-4)


def test_a_call_that_always_scales_is_seen(monkeypatch):
    real = scale.attention_detail
    monkeypatch.setattr(scale, "attention_detail", lambda q, k, v, scale, **rest: real(q, k, v, **rest))
    assert starting(failing("scale"), "The entropy of unscaled", "The gradient that reaches unscaled")


def test_a_call_that_never_scales_is_seen(monkeypatch):
    real = scale.attention_detail
    monkeypatch.setattr(scale, "attention_detail", lambda q, k, v, scale, **rest: real(q, k, v, scale=1.0, **rest))
    assert starting(failing("scale"), "Scaled, the entropy", "Scaled, the gradient")


def test_queries_of_another_size_are_seen(monkeypatch):
    monkeypatch.setattr(scale, "embedded", lambda *given: 2 * embedded(*given))
    assert starting(failing("scale"), "Unscaled scores spread", "Scaled, the entropy")
