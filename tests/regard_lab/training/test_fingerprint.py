"""Differences are named by where they are, and nothing else is called one."""

import pytest
import torch

from regard.errors import ArgumentError
from regard_lab.models import TranslationTransformer
from regard_lab.training import TrainingConfig
from regard_lab.training.identity import completed, differences, fingerprint


def of(data=None, config=None):
    return fingerprint(torch.nn.Linear(2, 1), "toy", {}, {}, data or {}, config or TrainingConfig(), 1)


def test_equal_things_have_no_differences_whatever_their_order_or_sequence():
    assert differences({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}) == []
    assert differences(of({"sizes": (1, 2)}), of({"sizes": [1, 2]})) == []


def test_each_difference_is_one_phrase():
    before, now = {"a": {"b": 1, "c": 2, "d": {"e": 3}}}, {"a": {"b": 9, "c": 2}, "f": 4}
    assert differences(before, now) == ["a.b was 1, now 9", "a.d was {'e': 3}, now absent", "f was absent, now 4"]


def test_a_long_value_is_cut_in_the_phrase():
    assert len(differences("x" * 1000, "y" * 1000)[0]) < 200


def test_a_run_of_an_older_version_differs_only_in_what_it_has():
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=20, dim=8, heads=2))

    def found(files, **changes):
        config = {**model.config.to_dict(), **changes}
        return fingerprint(model, "toy", config, files, {}, TrainingConfig(), 1)

    before, now = found({"tokeniser.json": "a"}), found({"tokeniser.json": "a", "source-words.json": "b"})
    del before["model"]["config"]["encoder_mechanism"]
    assert differences(before, now)
    assert differences(completed(before, now, model), now) == []
    other = found({"tokeniser.json": "c", "source-words.json": "b"}, encoder_mechanism="linear")
    assert [phrase.split(" was")[0] for phrase in differences(completed(before, other, model), other)] == [
        "model.config.encoder_mechanism", "files.tokeniser.json"
    ]  # fmt: skip


@pytest.mark.parametrize("value", [object(), float("nan"), torch.ones(1)])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(ArgumentError, match="JSON"):
        of({"x": value})
