import json
from pathlib import Path

import pytest
from teaching import changed_figures, failing, starting

from benchmarks.lesson_reports import of_answer_head
from regard_lab.lessons import find_lesson
from regard_lab.lessons.report import read_report

MEASURED = Path(__file__).parents[3] / "benchmarks" / "results" / "atom_maps_cpu" / "atom_maps.json"


def test_the_report_is_the_one_of_the_benchmark():
    report, measured = read_report("answer_head"), json.loads(MEASURED.read_text("utf-8"))
    assert report.figures == of_answer_head().figures
    assert report.figures["replaced"] == measured["replaced"]
    assert report.command == measured["command"]


def test_the_origins_inside_of_a_window_are_counted_from_the_distances():
    numbers = find_lesson("answer_head").teach().numbers
    distances = read_report("answer_head").figures["distances"]
    assert numbers["atoms"] == len(distances) == sum(row["atoms"] for row in numbers["reactions"])
    for size, share in numbers["inside"].items():
        assert share == pytest.approx(sum(abs(far) <= size // 2 for far in distances) / len(distances))


def test_the_picture_is_of_the_reaction_that_is_counted():
    """The first reaction with an atom that is wrong, whose product is written backwards."""
    numbers = find_lesson("answer_head").teach().numbers
    (name,) = [row["name"] for row in numbers["reactions"][:2] if row["right"] < row["atoms"]]
    assert name == "the same, the product written backwards"
    assert len(numbers["shown"]["product"]) == len(numbers["shown"]["weights"]) == len(numbers["chosen"])


@pytest.mark.parametrize(
    ("change", "beginning"),
    [
        (lambda f: f.update(head_share=0.9), "The head finds"),
        (lambda f: f["shares"][0].__setitem__(5, 0.97), "The same weights"),
        (lambda f: f.update(by_place=0.6), "It does not count"),
        (lambda f: f["shown"]["weights"][10].__setitem__(0, 0.9), "The weights in the picture"),
        (lambda f: f["replaced"]["windows"][2].update(before=0.7), "With narrow windows"),
        (lambda f: f["replaced"]["windows"][3].update(own_layer=0.4), "With narrow windows"),
        (lambda f: f["replaced"]["without_head"].__setitem__(3, 0.7), "No single head"),
        (lambda f: f["replaced"]["heads_kept"][-1].update(share=0.8), "Together the heads are needed"),
    ],
)
def test_another_report_is_seen(monkeypatch, change, beginning):
    change(changed_figures(monkeypatch, "answer_head"))
    assert starting(failing("answer_head"), beginning)
