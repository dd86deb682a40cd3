import math

import torch
from teaching import failing, starting

from regard.functional import attention
from regard_lab.lessons import causal, find_lesson
from regard_lab.lessons.words import embedded, normal


def test_the_weights_are_those_of_loops():
    numbers = find_lesson("causal").teach().numbers
    x = embedded(numbers["words"], causal.DIM, 0)[0]
    q, k, _ = (x @ matrix / math.sqrt(causal.DIM) for matrix in normal(1, 3, causal.DIM, causal.DIM))
    for row, found in enumerate(numbers["shared_again"]):
        powers = [math.exp(float(q[row] @ k[key]) / math.sqrt(causal.DIM)) for key in range(row + 1)]
        expected = [power / sum(powers) for power in powers] + [0.0] * (len(x) - row - 1)
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-4, rtol=0)


def test_a_mask_that_is_lost_is_seen(monkeypatch):
    monkeypatch.setattr(causal, "attention", lambda q, k, v, pattern: attention(q, k, v))
    assert starting(failing("causal"), "Replacing later words")


def test_a_mask_that_is_never_off_is_seen(monkeypatch):
    monkeypatch.setattr(causal, "attention", lambda q, k, v, pattern: attention(q, k, v, pattern="causal"))
    assert starting(failing("causal"), "Without the mask")


def test_a_second_step_that_masks_nothing_is_seen(monkeypatch):
    real = causal.three_steps
    monkeypatch.setattr(causal, "three_steps", lambda q, k: [real(q, k)[0], real(q, k)[0], real(q, k)[2]])
    assert starting(failing("causal"), "If weights are masked after the softmax")


def test_a_third_step_left_out_is_seen(monkeypatch):
    real = causal.three_steps
    monkeypatch.setattr(causal, "three_steps", lambda q, k: [*real(q, k)[:2], real(q, k)[1]])
    assert starting(failing("causal"), "The three steps", "Both are the weights")


def test_a_pattern_that_shows_one_word_too_many_is_seen(monkeypatch):
    real = causal.attention_detail
    wrong = "causal | diagonals(0, 1)"
    monkeypatch.setattr(
        causal, "attention_detail", lambda q, k, v, pattern, want: real(q, k, v, pattern=wrong, want=want)
    )
    assert starting(failing("causal"), "Both are the weights")
