"""A refusal that names an option as the way out: with it the command is accepted; no two send to each other."""

import re

import pytest
import torch
from commanding import refusal, succeeded

from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import Tokeniser

RECURRENT = {"mechanism": "gated_delta", "positions": "none"}
HYBRID = {"mechanism": ("gated_delta", "softmax"), "positions": "none"}
WINDOWED = {"pattern": "causal_window(5)"}
GENERATE = ("generate", "{run}", "the animal", "--max-tokens", 5)
TRANSLATE = ("translate", "{translator}", "the animal")
# A model, a command, what is added and refused, words of the refusal, and what is added in its place.
REFUSALS = (
    (RECURRENT, GENERATE, ("--compile",), "leave out --compile", ()),
    (HYBRID, GENERATE, ("--compile",), "leave out --compile", ()),
    (RECURRENT, GENERATE, ("--cache", "dynamic"), "use kind='state'", ("--cache", "state")),
    (
        RECURRENT,
        GENERATE,
        ("--cache", "dynamic", "--speculate", "lookup"),
        "use kind='state'",
        ("--cache", "state", "--speculate", "lookup"),
    ),
    (HYBRID, GENERATE, ("--cache", "dynamic"), "(--cache) out", ()),
    (HYBRID, GENERATE, ("--cache", "state"), "(--cache) out", ()),
    (
        HYBRID,
        GENERATE,
        ("--cache", "state", "--speculate", "lookup"),
        "(--cache) out",
        ("--speculate", "lookup"),
    ),
    (
        RECURRENT,
        GENERATE,
        ("--speculate", "lookup", "--branches", 2),
        "continue one branch",
        ("--speculate", "lookup", "--branches", 1),
    ),
    (
        {},
        GENERATE,
        ("--speculate", "lookup", "--branches", 2, "--cache", "ring"),
        "capacity",
        ("--speculate", "lookup", "--branches", 2, "--cache", "dynamic"),
    ),
    (
        WINDOWED,
        GENERATE,
        ("--draft", "{run}", "--branches", 2),
        "continue one branch",
        ("--draft", "{run}", "--branches", 1),
    ),
    ({}, GENERATE, ("--branches", 2), "--speculate", ("--branches", 2, "--speculate", "lookup")),
    ({}, GENERATE, ("--cache", "state"), "use another kind of cache", ("--cache", "dynamic")),
    ({}, GENERATE, ("--beam", 2, "--top-k", 3), "leave out --top-k or --beam", ("--beam", 2)),
    (
        {},
        GENERATE,
        ("--compile", "--cache", "paged"),
        "--compile and --cache exclude each other",
        ("--cache", "paged"),
    ),
    ({}, TRANSLATE, ("--count", 3), "give --beam 3", ("--count", 3, "--beam", 3)),
    ({}, TRANSLATE, ("--layer", 0), "--map cross", ("--layer", 0, "--map", "cross")),
    (
        RECURRENT,
        ("view", "{run}", "the old animal"),
        ("--png", "{folder}/a.png"),
        "--lens erase",
        ("--lens", "erase", "--png", "{folder}/a.png"),
    ),
    (
        HYBRID,
        ("view", "{run}", "the old animal"),
        ("--why", "old", "--png", "{folder}/a.png"),
        "add --lens erase",
        ("--why", "old", "--lens", "erase"),
    ),
    (
        {},
        ("walkthrough", "the animal"),
        ("--layers", 2),
        "add --whole",
        ("--layers", 2, "--whole"),
    ),
)


@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_the_way_out_of_a_refusal_is_accepted(number, run_folder, tmp_path):
    settings, command, refused, words, instead = REFUSALS[number]
    tokeniser = Tokeniser.train(["the animal sleeps", "the old animal in the street"], 300)
    torch.manual_seed(0)
    sizes = {"vocab_size": tokeniser.vocab_size, "dim": 16, "heads": 2, "layers": 2}
    model = LanguageModel(LanguageConfig(**sizes, **settings))
    model.save(tmp_path / "run", {TOKENISER_FILE: tokeniser.to_json()})
    places = {"run": tmp_path / "run", "translator": run_folder, "folder": tmp_path}

    def typed(*options):
        return [str(word).format(**places) for word in (*command, *options)]

    assert words in re.sub(r"\s+", " ", refusal(*typed(*refused)))
    succeeded(*typed(*instead))


def test_the_lens_of_view_sends_a_translator_to_the_command_that_explains(run_folder):
    refused = refusal("view", run_folder, "the animal sleeps", "--lens", "erase")
    assert "--why WORD --lens erase" in refused
    written = succeeded("translate", run_folder, "the animal sleeps").out.split()
    word = next(piece for piece in written if written.count(piece) == 1 and piece.isalnum())
    answer = succeeded(
        "translate", run_folder, "the animal sleeps", "--why", word, "--lens", "erase"
    )
    assert "lens erase" in answer.out
