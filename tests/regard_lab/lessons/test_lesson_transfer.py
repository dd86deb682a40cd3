import json
from pathlib import Path

import pytest
from teaching import changed_figures, failing, starting

from benchmarks.lesson_reports import of_transfer
from regard_lab.lessons import find_lesson, transfer
from regard_lab.lessons.report import read_report
from regard_lab.models import TextEncoder

MEASURED = Path(__file__).parents[3] / "benchmarks" / "results" / "transfer_cpu" / "transfer.json"


def test_the_report_is_the_one_of_the_benchmark():
    report, measured = read_report("transfer"), json.loads(MEASURED.read_text("utf-8"))
    assert report.figures == of_transfer().figures
    assert report.figures["records"] == measured["records"]
    assert report.command == measured["command"]


def test_all_numbers_of_the_classifier_are_counted():
    parts = find_lesson("transfer").teach().numbers["parts"]
    config = TextEncoder.Config(vocab_size=transfer.VOCABULARY, dim=64, layers=2, head="classes", classes=11)
    tensors = TextEncoder(config).state_dict().values()
    assert sum(part["copied"] + part["new"] for part in parts.values()) == sum(tensor.numel() for tensor in tensors)
    assert parts["head"]["copied"] == 0


def test_an_encoder_that_begins_anew_is_seen(monkeypatch):
    def anew(self, **settings):
        return TextEncoder(
            TextEncoder.Config(vocab_size=transfer.VOCABULARY, dim=self.config.dim, layers=2, **settings)
        ).double()

    monkeypatch.setattr(TextEncoder, "changed", anew)
    assert starting(failing("transfer"), "The classifier takes over")


def test_a_head_that_is_copied_is_seen(monkeypatch):
    monkeypatch.setattr(TextEncoder, "changed", lambda self, **settings: self)
    assert starting(failing("transfer"), "The classifier takes over")


@pytest.mark.parametrize(
    ("labels", "kind", "change", "beginnings"),
    [
        (300, "margin", lambda one: -0.01 if one["seed"] == 0 else one["margin"], ["With 300 labels"]),
        (300, "transfer", lambda one: one["scratch"], ["It makes less than half"]),
        (100, "margin", lambda one: 0.1, ["With 100 labels"]),
        (100, "commonest", lambda one: 0.4, ["All are far better"]),
    ],
)
def test_another_report_is_seen(monkeypatch, labels, kind, change, beginnings):
    for one in changed_figures(monkeypatch, "transfer")["records"]:
        if one["labels"] == labels:
            one[kind] = change(one)
    assert starting(failing("transfer"), *beginnings)
