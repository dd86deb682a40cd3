"""The lesson `imprecise`: every claim fails when what it is about is broken."""

import pytest
import torch
from teaching import failing, starting

from regard.functional import attention, attention_detail, plan_attention
from regard.mechanisms import Linformer
from regard.patterns import CausalWindow
from regard.positions import Sinusoidal
from regard_lab.lessons import LESSONS, Settings
from regard_lab.lessons import imprecise as measures
from regard_lab.lessons.words import normal


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(measures, "STEPS", (16, 64, 128))


def without(name, call):
    """A call without one of its options."""
    return lambda *args, **options: call(*args, **{key: value for key, value in options.items() if key != name})


def test_scores_that_grow_with_their_size_are_seen(monkeypatch):
    monkeypatch.setattr(measures, "normal", lambda seed, *shape: normal(seed, *shape) * shape[-1] ** 0.1)
    assert starting(failing("imprecise"), "Divided by the square root")


def test_a_scale_that_is_lost_is_seen(monkeypatch):
    monkeypatch.setattr(measures, "attention_detail", without("scale", attention_detail))
    assert starting(failing("imprecise"), "Divided by the square of")


def test_the_encoder_as_the_query_is_seen(monkeypatch):
    def swapped(q, k, v, **options):
        return attention_detail(k, q, q, **options) if q.shape != k.shape else attention_detail(q, k, v, **options)

    monkeypatch.setattr(measures, "attention_detail", swapped)
    assert starting(failing("imprecise"), "The decoder's states are the queries", "Replacing a state of the decoder")


def test_a_mechanism_that_is_lost_is_seen(monkeypatch):
    lost = without("parameters", without("mechanism", plan_attention))
    monkeypatch.setattr(measures, "plan_attention", lost)
    assert starting(failing("imprecise"), "For 4 times the words", "Each round of LSH")


def test_a_rank_that_does_not_grow_is_seen(monkeypatch):
    monkeypatch.setattr(measures, "Linformer", lambda length, rank: Linformer(length, 16))
    assert starting(failing("imprecise"), "Linformer needs 16 times")


def test_a_stride_that_keeps_a_window_alone_is_seen(monkeypatch):
    monkeypatch.setattr(measures, "Strided", lambda stride: CausalWindow(32))
    assert starting(failing("imprecise"), "Sorting for LSH")


def test_a_sort_in_linear_time_is_seen(monkeypatch):
    monkeypatch.setattr(measures, "comparisons", lambda length, seed: 4 * length)
    assert starting(failing("imprecise"), "Sorting for LSH")


def test_a_cell_that_computes_all_words_at_once_is_seen(monkeypatch):
    monkeypatch.setattr(measures, "run_cell", lambda x, read, keep: (x @ read + x @ keep, 1)[1])
    assert starting(failing("imprecise"), "Self-attention computes all words in 1 step")


def test_a_cell_of_twice_the_operations_is_seen(monkeypatch):
    real = measures.run_cell
    monkeypatch.setattr(measures, "run_cell", lambda *parts: (real(*parts), real(*parts))[0])
    assert starting(failing("imprecise"), "A recurrent layer needs fewer")


def test_a_head_that_looks_at_one_word_is_seen(monkeypatch):
    def one(q, k, v, **options):
        return attention_detail(q, k, v, **{"pattern": "causal_window(1)" if q is not k else None, **options})

    monkeypatch.setattr(measures, "attention_detail", one)
    assert starting(
        failing("imprecise"),
        "One head gives every word",
        "Divided by the square of",
        "Replacing a state of the decoder",
    )


def test_waves_of_another_size_are_seen(monkeypatch):
    monkeypatch.setattr(measures, "Sinusoidal", lambda dim: Sinusoidal(dim // 2))
    assert starting(failing("imprecise"), "For d = 48", "The waves go from")


def test_a_context_that_sets_the_length_is_seen(monkeypatch):
    monkeypatch.setattr(measures, "seeded", lambda *_, **__: lambda x, context: context)
    assert starting(failing("imprecise"), "In cross-attention lengths")


def test_sizes_that_are_not_checked_are_seen(monkeypatch):
    def careless(q, k, v, **options):
        return attention(q, k, v, **options) if q.shape[-1] == k.shape[-1] and k.shape[2] == v.shape[2] else q

    monkeypatch.setattr(measures, "attention", careless)
    assert starting(failing("imprecise"), "The size of a head")


def test_weights_that_are_not_divided_again_are_seen(monkeypatch):
    monkeypatch.setattr(measures, "masked_after", lambda scores: scores.softmax(-1).tril())
    assert starting(failing("imprecise"), "Masking after the softmax", "They differ")


def test_another_pattern_than_causal_is_seen(monkeypatch):
    monkeypatch.setattr(measures, "masked_before", lambda scores: scores.softmax(-1))
    assert starting(failing("imprecise"), "Masking after the softmax")


def test_the_quoted_numbers_are_the_ones_of_the_formulas():
    numbers = LESSONS["imprecise"].teach(Settings()).numbers
    assert numbers["waves"]["factor"] == 1.4678
    assert numbers["recurrent"]["attention"][1] == numbers["recurrent"]["recurrent"][1] == 4 * 64**3
    assert list(numbers["growth"]["counts"]["full, causal: pairs"]) == [n * (n + 1) // 2 for n in measures.LENGTHS]
    torch.testing.assert_close(
        numbers["scale"]["square"][-1], numbers["scale"]["root"][-1] / 256**1.5, rtol=0, atol=1e-5
    )
