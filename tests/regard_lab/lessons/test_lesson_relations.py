"""The claims of the lesson fail when the figures or the score are wrong, and its tables read the maps of the report."""

import copy
from dataclasses import replace

import pytest
import torch
from teaching import failing, starting

from regard_lab.lessons import Settings, find_lesson, relations
from regard_lab.lessons.report import read_report
from regard_lab.seeing.relations import ALL, BACK

REPORT = read_report("relations")
MODELS = REPORT.figures["models"]


def with_figures(monkeypatch, change):
    """The lesson reads a report whose models `change` has altered."""
    figures = copy.deepcopy(REPORT.figures)
    change(figures["models"])
    monkeypatch.setattr(relations, "read_report", lambda name: replace(REPORT, figures=figures))


@pytest.mark.parametrize("kind", MODELS)
def test_the_report_is_whole(kind):
    model = MODELS[kind]
    shape = (model["layers"], model["heads"])
    assert set(model["relations"]) <= set(BACK if kind == "causal" else ALL)
    assert REPORT.figures["corpus"]["test"]["documents"] < REPORT.figures["corpus"]["train"]["documents"]
    for one in model["relations"].values():
        layer, head = one["head"]
        every = torch.tensor(one["every_head"])
        assert tuple(every.shape) == shape
        assert float(every[layer, head]) == pytest.approx(one["share"], abs=1e-3)
        assert one["links"] >= one["documents"] >= 10
        for baseline, value in one["baselines"].items():
            assert one["margins"][baseline]["mean"] == pytest.approx(one["share"] - value, abs=2e-4)
        for shown in (model["sentences"][name] for name in ("fox", "cat", "tired")):
            weights = torch.tensor(shown["maps"][f"{layer}.{head}"])
            assert weights.shape == (len(shown["words"]),) * 2
            torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)), atol=0.02, rtol=0)
            assert bool(weights.triu(1).any()) == (kind == "encoder")


@pytest.mark.parametrize(
    ("name", "relation"), [(name, one) for name, shown in relations.SHOWN.items() for one in shown]
)
@pytest.mark.parametrize("baseline", relations.BASELINES)
def test_a_head_that_is_within_the_errors_of_one_baseline_is_not_beyond(monkeypatch, name, relation, baseline):
    def change(models):
        kind = next(kind for kind, called in relations.NAMES.items() if called == name)
        margin = models[kind]["relations"][relation]["margins"][baseline]
        margin["mean"] = 2.9 * margin["error"]

    with_figures(monkeypatch, change)
    assert starting(failing("relations"), f"Some head of the {name} shows '{relation}'")


@pytest.mark.parametrize("relation", relations.PLACES)
def test_a_head_at_a_fixed_distance_must_look_there_and_not_be_better(monkeypatch, relation):
    def rarely(models):
        models["encoder"]["relations"][relation]["share"] = 0.5

    def better(models):
        one = models["encoder"]["relations"][relation]
        one["margins"] = {name: {"mean": 0.5, "error": 0.01} for name in one["margins"]}

    for change in (rarely, better):
        with_figures(monkeypatch, change)
        assert starting(failing("relations"), f"A head of the encoder nearly always looks at the {relation}")


@pytest.mark.parametrize("relation", relations.OWN)
def test_a_head_that_looks_there_from_everywhere_is_noticed(monkeypatch, relation):
    def change(models):
        one = models["causal"]["relations"][relation]
        one["neighbours"] = 0.6 * one["share"]

    with_figures(monkeypatch, change)
    assert starting(failing("relations"), f"The head of the language model for '{relation}' looks at that key less")


@pytest.mark.parametrize("relation", relations.MISSING)
def test_a_relation_that_is_said_to_be_missing_is_noticed_when_a_head_shows_it(monkeypatch, relation):
    def change(models):
        one = models["encoder"]["relations"][relation]
        one["margins"] = {name: {"mean": 0.1, "error": 0.01} for name in one["margins"]}

    with_figures(monkeypatch, change)
    assert starting(failing("relations"), f"No head of these models shows '{relation}'")


def test_a_cat_that_receives_the_most_weight_is_noticed(monkeypatch):
    def change(models):
        shown = models["encoder"]["sentences"]["cat"]
        shown["received"][shown["words"].index("cat")] = 2.0

    with_figures(monkeypatch, change)
    assert starting(failing("relations"), "In 'The cat sat on the mat.' *cat* and *mat* are not")


@pytest.mark.parametrize("kind", MODELS)
def test_a_score_that_finds_random_labels_is_noticed(monkeypatch, kind):
    def change(models):
        for one in models[kind]["relations"].values():
            one["random_labels"]["over_chance"] += 0.05

    with_figures(monkeypatch, change)
    assert starting(failing("relations"), f"With random labels, heads of the {relations.NAMES[kind]}")


def test_a_causal_model_that_looks_ahead_is_noticed(monkeypatch):
    with_figures(monkeypatch, lambda models: models["causal"]["it"].update(largest_change=0.001))
    assert starting(failing("relations"), "In the language model the weights of *it*")


def test_heads_that_look_beside_the_right_word_are_not_scored_as_right(monkeypatch):
    real = relations._weights
    monkeypatch.setattr(relations, "_weights", lambda *given: real(*given).roll(1, -1))
    missed, *others = failing("relations")  # a head with all its weight on the word itself hits less than chance
    assert missed.startswith("The measure finds the relation of each head")
    assert not others or starting(others, "With random labels the same heads")


def test_labels_that_are_not_random_are_noticed(monkeypatch):
    monkeypatch.setattr(relations, "random_labels", lambda links, *given: links)
    assert starting(failing("relations"), "With random labels the same heads")


def test_the_pairs_of_the_sentences_are_read_from_the_maps_of_the_chosen_head():
    weights = [[1.0, 0, 0, 0], [0.9, 0.1, 0, 0], [0.2, 0.5, 0.3, 0], [0.4, 0.1, 0.3, 0.2]]
    model = {
        "relations": {"noun to article": {"head": [0, 1]}},
        "sentences": {"s": {"words": ["<begin>", "the", "cat", "sat"], "maps": {"0.1": weights}}},
    }
    read = relations._weight_of
    assert read(model, "s", "cat", "the", "noun to article") == "0.50, 1 of 2"
    assert read(model, "s", "sat", "the", "noun to article") == "0.10, 3 of 3"
    assert read(model, "s", "cat", "the", "verb to subject") == ""


def test_the_tables_have_every_relation_and_the_source_is_named():
    taught = find_lesson("relations").teach(Settings())
    for table, model in zip(taught.tables, MODELS.values(), strict=False):
        assert [row[0] for row in table.rows] == list(model["relations"])
    assert any("benchmarks/relations.py" in paragraph for paragraph in taught.paragraphs)
