import copy
from functools import cache

import pytest
from teaching import failing, starting

from benchmarks.lesson_reports import of_complexity
from regard.patterns import Causal, CausalWindow, Full, Pattern, SlidingWindow
from regard.patterns.drawing import learned
from regard.studies.lessons import complexity
from regard.studies.lessons.report import read_report

COUNTED, PATH = cache(complexity.counted), cache(complexity.path)  # for tests that change the report only


def test_the_report_is_the_one_of_the_benchmark():
    assert read_report("complexity").figures == of_complexity().figures


def test_a_path_is_the_least_number_of_layers_that_reach_every_word(monkeypatch):
    patterns = {"window": SlidingWindow(6), "causal": CausalWindow(4), "fixed": complexity.PATTERNS["fixed"](81)}
    for name, pattern in patterns.items():
        monkeypatch.setitem(complexity.PATTERNS, name, lambda n, pattern=pattern: pattern)
        layers = complexity.path(name, 81, 0)
        assert learned(pattern, 1, 81, layers).all()
        assert layers == 1 or not learned(pattern, 1, 81, layers - 1).all()


def test_counted_pairs_are_those_of_dense_masks():
    for name, pattern in complexity.PATTERNS.items():
        assert complexity.counted(name, 144) == int(pattern(144).dense(144, 144).sum())


def test_counted_operations_are_those_of_the_matrices():
    n, d = 32, 64
    assert complexity.counted("gru", n) == 2 * n * (d * 3 * d + d * 3 * d)
    assert complexity.counted("conv-3", n) == 2 * 3 * n * d * d
    assert (
        complexity.counted("linformer", n) == 2 * 2 * n * 64 * d + 2 * 2 * n * 64 * d
    )  # both projections; both products


def test_every_claim_holds():
    assert failing("complexity") == []


def test_a_mask_that_halves_the_exponent_is_seen(monkeypatch):
    monkeypatch.setitem(complexity.PATTERNS, "causal", lambda n: Causal() & CausalWindow(64))
    assert starting(failing("complexity"), "Twice as many words", "Self-attention, global tokens")


def test_a_constant_stride_is_seen(monkeypatch):
    monkeypatch.setattr(complexity, "root", lambda n: 16)
    assert "The pairs of strided and fixed attention grow as n·sqrt(n), not as n." in failing("complexity")


def test_a_window_that_shows_everything_is_seen(monkeypatch):
    monkeypatch.setitem(complexity.PATTERNS, "window", lambda n: Full())
    assert starting(failing("complexity"), "The work of recurrent", "For windows and convolutions")


def test_counts_that_are_wrong_are_seen(monkeypatch):
    real = Pattern.count
    monkeypatch.setattr(Pattern, "count", lambda self, q_len, k_len: real(self, q_len, k_len) ** 2)
    assert len(failing("complexity")) == 3


def test_a_network_that_forgets_is_seen(monkeypatch):
    monkeypatch.setattr(complexity, "count_steps", lambda name, length, seed: {"path": length - 1})
    assert starting(failing("complexity"), "For windows and convolutions")


@pytest.mark.parametrize(
    ("row", "key", "value", "sentence"),
    [
        ("softmax", "exponent", 1.5, "Measured times"),
        ("linear", "exponent", 1.6, "Measured times"),
        ("strided", "exponent", 2.1, "Measured times"),
        ("gru", "cheaper_from", "300", "On one CPU thread"),
    ],
)
def test_another_report_is_seen(monkeypatch, row, key, value, sentence):
    report = copy.deepcopy(read_report("complexity"))
    report.figures[row][key] = value
    monkeypatch.setattr(complexity, "read_report", lambda name: report)
    monkeypatch.setattr(complexity, "counted", COUNTED)
    monkeypatch.setattr(complexity, "path", PATH)
    assert starting(failing("complexity"), sentence)
