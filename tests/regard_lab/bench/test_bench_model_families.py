"""Whole models of well-known families: the same outputs in every state, and the share of their own attention."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import torch

from regard_lab.bench import model_families
from regard_lab.bench.model_families import FAMILIES, LARGEST_ERROR
from regard_lab.bench.running import relative_error

pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
BY_LABEL = {family.label: family for family in FAMILIES}


@pytest.mark.parametrize("label", ["MiniLM, 1 x 16", "Llama, decoding", "Qwen3-Next, a text"])
def test_a_family_gives_the_same_outputs_attached_and_packed(label):
    family = BY_LABEL[label]
    expected = family.prepare("as it is")()
    assert family.model("packed").packed.layers
    for state in ("attached", "packed"):
        assert relative_error(family.prepare(state)(), expected) <= LARGEST_ERROR


def test_calls_of_a_family_repeat_their_output():
    call = BY_LABEL["Llama, decoding"].prepare("as it is")
    assert torch.equal(call(), call())


@pytest.mark.parametrize("label", ["MiniLM, 1 x 128", "Qwen3-Next, a text"])
def test_the_share_of_attention_is_that_of_its_own_functions(label, monkeypatch):
    monkeypatch.setattr(model_families, "SHARE_ROUNDS", 1)
    family = BY_LABEL[label]
    assert 0.01 < family.attention_share() < 0.9
    model = family.model()
    with model_families._timing_attention(model) as seconds:
        family._call(model)()
    assert len(seconds) == model.config.num_hidden_layers
    family._call(model)()
    assert len(seconds) == model.config.num_hidden_layers  # outside of the block nothing is timed


def test_every_label_is_that_of_one_family():
    assert len(BY_LABEL) == len(FAMILIES)
