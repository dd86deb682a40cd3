import json
from pathlib import Path

import pytest
import torch
from teaching import changed_figures, failing, starting

from regard_lab.lessons import fixed_vector
from regard_lab.lessons.report import read_report
from regard_lab.lessons.words import normal
from regard_lab.models.recurrent.cells import MemoryAttention

MEASURED = Path(__file__).parents[3] / "benchmarks" / "results" / "length_story_cpu" / "length_story.json"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(fixed_vector, "LENGTHS", (1, 2, 4))


def test_the_report_is_the_one_of_the_benchmark():
    assert read_report("length_story").figures == json.loads(MEASURED.read_text("utf-8"))


def test_the_gradients_are_those_of_small_changes():
    model, length = fixed_vector.new_model("bahdanau", 0), 3
    scores = {}
    step = 1e-6
    for sign in (1, -1):
        for at in range(length * fixed_vector.DIM):
            change = torch.zeros(length * fixed_vector.DIM, dtype=torch.float64)
            change[at] = sign * step
            hook = model.encoder.register_forward_pre_hook(
                lambda module, inputs, change=change: (inputs[0] + change.view_as(inputs[0]), *inputs[1:])
            )
            scores[sign, at] = model(fixed_vector._ids(length, 0), fixed_vector._ids(length, 1)).detach().flatten()
            hook.remove()
    columns = [(scores[1, at] - scores[-1, at]) / (2 * step) for at in range(length * fixed_vector.DIM)]
    mixtures = normal(2, length * fixed_vector.DIM + 1, len(columns[0]))
    expected = mixtures @ torch.stack(columns, 1)
    torch.testing.assert_close(fixed_vector.gradients(model, length, 0), expected, atol=1e-6, rtol=0)


def test_every_claim_holds():
    assert failing("fixed_vector") == []


def test_a_decoder_that_reads_more_than_the_vector_is_seen(monkeypatch):
    real = fixed_vector.new_model
    monkeypatch.setattr(
        fixed_vector, "new_model", lambda name, seed: real("bahdanau" if name == "none" else name, seed)
    )
    assert starting(failing("fixed_vector"), "Through one vector", "Without attention the decoder reads")


def test_attention_to_one_state_is_seen(monkeypatch):
    real = MemoryAttention.remember
    monkeypatch.setattr(MemoryAttention, "remember", lambda self, states, live=None: real(self, states[:, -1:]))
    assert starting(failing("fixed_vector"), "With attention, every further word", "With attention the bytes")


@pytest.mark.parametrize(
    ("model", "length", "share", "sentence"),
    [
        ("transformer", "4", 0.5, "Trained models with and without"),
        ("none", "12", 0.5, "At the longest training length"),
        ("luong-general", "12", 0.5, "At the longest training length"),
        ("transformer", "16", 0.9, "Beyond the training lengths"),
    ],
)
def test_another_report_is_seen(monkeypatch, model, length, share, sentence):
    rows = changed_figures(monkeypatch, "fixed_vector", "length_story")["rows"]
    next(row for row in rows if row["model"] == model)["accuracy"][length] = share
    assert starting(failing("fixed_vector"), sentence)
