"""A config of a model that cannot be is answered at once, whether it is written by hand or found in a folder."""

import time

import pytest
import torch

from regard.errors import ArgumentError, CheckpointError
from regard_lab.models import LanguageModel, RecurrentTranslator, TextEncoder, TranslationTransformer
from regard_lab.models.storage import save_model

MODELS = [LanguageModel, RecurrentTranslator, TextEncoder, TranslationTransformer]
SETTINGS = {"vocab_size": 50, "dim": 8}
GUARD = 1.0  # CPU seconds


def needed(model):
    return {**SETTINGS, **({"head": "words"} if model is TextEncoder else {})}


def layers_of(model):
    return "layers" if model in (LanguageModel, TextEncoder) else "decoder_layers"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [10**18, 10**30])
def test_sizes_that_nobody_means_are_refused(model, size):
    began = time.process_time()
    hidden = "hidden" if model is RecurrentTranslator else "hidden_dim"
    for name in ("vocab_size", "dim", layers_of(model), hidden):
        with pytest.raises(ArgumentError, match="a model has at most"):
            model.Config(**{**needed(model), name: size})
    assert time.process_time() - began < GUARD


@pytest.mark.parametrize("model", MODELS)
def test_parameters_that_no_memory_holds_are_refused_with_their_bytes(model):
    config = model.Config(**{**needed(model), "dim": 2**28, layers_of(model): 10_000})
    began = time.process_time()
    with pytest.raises(ArgumentError, match=r"at least [\d,]+ bytes"):
        model(config)
    assert time.process_time() - began < GUARD


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("change", [{"layers": 10**18}, {"layers": 10_000}, {"vocab_size": 2**31 - 1}])
def test_a_folder_with_an_immense_config_is_refused_at_once(tmp_path, model, change):
    small = model(model.Config(**needed(model)))
    change = {layers_of(model) if name == "layers" else name: value for name, value in change.items()}
    save_model(tmp_path / "m", {**small.config.to_dict(), **change}, small.state_dict(), model.KIND)
    began = time.process_time()
    with pytest.raises(CheckpointError):
        model.load(tmp_path / "m")
    assert time.process_time() - began < GUARD


@pytest.mark.parametrize("model", MODELS)
def test_the_least_is_never_more_than_what_a_model_holds(model):
    for cell in ("gru", "lstm") if model is RecurrentTranslator else (None,):
        for hidden in (8, 32):
            name = "hidden" if model is RecurrentTranslator else "hidden_dim"
            more = {name: hidden, layers_of(model): 3, **({"cell": cell} if cell else {})}
            config = model.Config(**{**needed(model), **more})
            with torch.device("meta"):
                held = sum(tensor.numel() for tensor in model(config).parameters())
            assert 0 < config.least_parameters <= held
