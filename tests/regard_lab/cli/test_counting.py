"""Layers and heads count from 0 in every call, option and message."""

from __future__ import annotations

import json
import re

import pytest
from test_commands import regard, run_folder  # noqa: F401

from regard_lab.cli.app import kept_help
from regard_lab.decoding import Translator
from regard_lab.lessons.walkthrough import walk, walk_run
from regard_lab.models import TranslationTransformer
from regard_lab.seeing import look


def test_no_option_counts_layers_or_heads_from_1():
    sentences = [said for command in kept_help().values() for said in command["Options"].values()]
    about = [said for said in sentences if re.search(r"\b(layer|head)\b", said)]
    assert any("from 0" in said for said in about)
    assert not [said for said in about if "from 1" in said]


def test_the_first_head_of_the_first_layer_has_the_same_numbers_everywhere(run_folder):  # noqa: F811
    translator = Translator.load(run_folder)
    found = walk_run(run_folder, "the animal sleeps", layer=0, head=0)
    assert isinstance(translator.model, TranslationTransformer)
    maps = look(translator.model, translator.tokeniser, "the animal sleeps", ())
    expected = maps.encoder[0, 0]
    assert found["weights"].shape == expected.shape
    assert (found["weights"] - expected).abs().max() < 1e-5
    assert (walk_run(run_folder, "the animal sleeps", layer=0, head=1)["weights"] - expected).abs().max() > 1e-5


def test_the_first_is_the_default_and_the_last_is_one_less_than_their_number():
    assert walk("a b").settings["head"] == 0
    for arguments, last in ((("--heads", "2", "--head", "2"), 1), (("--heads", "4", "--head", "4"), 3)):
        answer = regard("walkthrough", "a b", *arguments)
        assert answer.returncode == 2
        assert f"there are heads 0 to {last}" in answer.stderr.decode()
    record = json.loads(regard("walkthrough", "a b", "--head", "0", "--json").stdout)
    assert record["settings"]["head"] == 0


@pytest.mark.parametrize("pattern", ["per_head(full, causal)"])
def test_drawings_name_heads_from_0(pattern):
    drawn = regard("show", pattern, "--length", "3").stdout.decode()
    assert "head 0: full" in drawn
    assert "head 1: causal" in drawn
