import json
import re
from dataclasses import asdict

import pytest
import torch
from teaching import changed_figures, failing, starting, without_timing

from benchmarks.lesson_reports import RESULTS, of_generation
from regard_lab.lessons import LESSONS, Settings, generation
from regard_lab.lessons.report import read_report
from regard_lab.lessons.words import seeded
from regard_lab.models import LanguageConfig, LanguageModel


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    without_timing(monkeypatch)


def test_the_report_is_a_copy_of_the_measurements():
    source = json.loads((RESULTS / "kv_heads_cpu" / "kv_heads.json").read_text("utf-8"))
    report = read_report("generation")
    assert asdict(report) == asdict(of_generation())
    for row in report.figures["rows"]:
        assert any(row.items() <= one.items() and one["method"] == "mean" for one in source["rows"])
    assert len(report.figures["rows"]) == len(source["rows"]) / 2


def test_words_are_those_of_the_highest_scores():
    config = LanguageConfig(vocab_size=20, dim=16, heads=2, layers=1)
    model, text = seeded(0, LanguageModel, config).eval(), torch.tensor([[9, 8, 7]])
    with torch.no_grad():
        written, scores = generation.with_cache(model, text)
        assert torch.equal(written[0, 3:], scores.argmax(-1))
        expected = model(written)[0, 2:-1]  # the scores after each word, of the finished text at once
    torch.testing.assert_close(scores, expected, atol=1e-12, rtol=0)


def test_what_was_recovered_can_be_computed_from_the_table():
    found = LESSONS["generation"].teach(Settings())
    original, *rows = ([float(bits) for bits in row[1:]] for row in found.tables[-1].rows)
    shares = [(converted - trained) / (converted - original[0]) for converted, trained in rows]
    figures = next(one.figures for one in found.claims if one.sentence.startswith("Further training recovers"))
    told = re.findall(r"(\d+)% with", figures)
    assert [f"{share:.0%}" for share in shares] == [f"{share}%" for share in told]
    assert f"from {original[0]:.3f} to {original[1]:.3f} bits" in " ".join(found.paragraphs)


def test_a_cache_that_forgets_the_text_is_seen(monkeypatch):
    def forgetful(model, text):
        written, scores = generation.without_cache(model, text[:, -1:])
        return torch.cat([text[:, :-1], written], 1), scores

    monkeypatch.setitem(generation.WAYS, "cached", forgetful)
    assert starting(failing("generation"), "A step with a cache", "With a cache each word")


def test_a_cache_that_is_not_used_is_seen(monkeypatch):
    monkeypatch.setitem(generation.WAYS, "cached", generation.without_cache)
    assert starting(failing("generation"), "With a cache each word")


def test_heads_that_are_not_shared_are_seen(monkeypatch):
    monkeypatch.setattr(
        generation, "LanguageConfig", lambda **sizes: LanguageConfig(**{**sizes, "kv_heads": generation.HEADS})
    )
    assert starting(failing("generation"), "Each word takes")


@pytest.mark.parametrize(("bits", "beginning"), [(1.9, "Fewer key/value heads cost"), (3.9, "Further training")])
def test_a_report_with_other_results_is_seen(monkeypatch, bits, beginning):
    rows = changed_figures(monkeypatch, "generation")["rows"]
    rows[-1]["uptrained"] = bits  # of one kv_head, the last seed
    assert starting(failing("generation"), beginning)
