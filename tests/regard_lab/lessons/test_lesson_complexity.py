from functools import cache

import pytest
from teaching import changed_figures, failing, starting

from benchmarks.lesson_reports import of_complexity
from regard.patterns import Causal, CausalWindow, Full, Pattern, SlidingWindow
from regard.patterns.drawing import learned
from regard_lab.lessons import complexity, find_lesson
from regard_lab.lessons.report import read_report

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


@pytest.fixture
def report(monkeypatch):
    """A report in which every layer takes the time that its formula promises."""
    figures = changed_figures(monkeypatch, "complexity")
    for row in figures.values():
        row["exponent"] = row["promised"]
    figures["gru"]["cheaper_from"] = "4,927"
    return figures


@pytest.fixture(autouse=True)
def again(monkeypatch):
    """Pairs and paths are counted once for all tests; a test adds the names of those that it changes."""
    changed, count, way = set(), complexity.counted, complexity.path
    monkeypatch.setattr(complexity, "counted", lambda name, n: (count if name in changed else COUNTED)(name, n))
    monkeypatch.setattr(complexity, "path", lambda name, *given: (way if name in changed else PATH)(name, *given))
    return changed


def test_every_claim_holds_if_times_are_as_promised(report):
    assert failing("complexity") == []


def test_what_is_counted_holds_with_any_report():
    assert not [one for one in failing("complexity") if not one.startswith(("Measured times", "On one CPU thread"))]


def test_a_mask_that_halves_the_exponent_is_seen(monkeypatch, report, again):
    again.update(["causal"])
    monkeypatch.setitem(complexity.PATTERNS, "causal", lambda n: Causal() & CausalWindow(64))
    assert starting(failing("complexity"), "Twice as many words", "Self-attention, global tokens")


def test_a_constant_stride_is_seen(monkeypatch, report, again):
    again.update(["strided", "fixed"])
    monkeypatch.setattr(complexity, "root", lambda n: 16)
    assert starting(failing("complexity"), "The pairs of strided and fixed")


def test_a_window_that_shows_everything_is_seen(monkeypatch, report, again):
    again.update(["window"])
    monkeypatch.setitem(complexity.PATTERNS, "window", lambda n: Full())
    assert starting(failing("complexity"), "The work of recurrent", "For windows and convolutions")


def test_counts_that_are_wrong_are_seen(monkeypatch, report, again):
    again.update(complexity.PATTERNS)
    real = Pattern.count
    monkeypatch.setattr(Pattern, "count", lambda self, q_len, k_len: real(self, q_len, k_len) ** 2)
    assert starting(failing("complexity"), "Twice as many", "The pairs of strided", "The work of recurrent")


def test_a_network_that_forgets_is_seen(monkeypatch, report, again):
    again.update(["gru"])
    monkeypatch.setattr(complexity, "count_steps", lambda name, length, seed: {"path": length - 1})
    assert starting(failing("complexity"), "For windows and convolutions")


@pytest.mark.parametrize(
    ("row", "key", "value", "sentence", "verdict", "says"),
    [
        ("softmax", "exponent", 1.2, "Measured times", "does not hold", "self-attention 1.20"),
        ("linear", "exponent", 1.8, "Measured times", "does not hold", "1.00 to 1.80"),
        ("strided", "exponent", 2.2, "Measured times", "does not hold", "strided 2.20"),
        ("fixed", "exponent", 1.1, "Measured times", "undecided", "fixed 1.10"),
        ("fixed", "exponent", 0.8, "Measured times", "does not hold", "fixed 0.80"),
        ("fixed", "exponent", None, "Measured times", "undecided", "fixed –"),
        ("gru", "cheaper_from", "not up to 16,384", "On one CPU thread", "does not hold", "not up to 16,384"),
        ("gru", "cheaper_from", "cheaper from 256 on", "On one CPU thread", "does not hold", "cheaper from 256 on"),
    ],
)
def test_another_report_is_seen(monkeypatch, report, row, key, value, sentence, verdict, says, tmp_path):
    report[row][key] = value
    taught = find_lesson("complexity").teach()
    (claim,) = [one for one in taught.claims if not one.holds]
    assert starting([claim.sentence], sentence)
    assert claim.verdict == verdict
    assert says in claim.figures
    taught.draw(tmp_path / "drawn.png")
