"""Every kind of model: exported, loaded with the same weights; a config that cannot be is refused at once."""

import importlib
import pkgutil
import time

import pytest
import torch

from regard.errors import ArgumentError, CheckpointError, KeywordError, NotFoundError
from regard_lab import models
from regard_lab.models import LanguageModel, RecurrentTranslator, TextEncoder, TranslationTransformer
from regard_lab.models.base import Storable
from regard_lab.models.storage import save_model

for module in pkgutil.walk_packages(models.__path__, f"{models.__name__}."):  # one that nobody imports counts too
    importlib.import_module(module.name)

SIZES = {"vocab_size": 20, "dim": 8}
SMALL = {
    **{kind: {**SIZES, "heads": 2} for kind in ("translation-transformer", "language-model", "text-encoder")},
    "recurrent-translator": {**SIZES, "hidden": 8},
}


def kinds(base: type[Storable] = Storable) -> dict[str, type[Storable]]:
    """The classes that declare a KIND, by it."""
    found = {}
    for kind in base.__subclasses__():
        found |= kinds(kind)
        if "KIND" in vars(kind) and kind.__module__.startswith("regard_lab."):
            found[kind.KIND] = kind
    return found


@pytest.mark.parametrize("name", kinds())
def test_every_kind_is_exported_and_says_that_padding_needs_no_mask(name):
    kind = kinds()[name]
    assert getattr(models, kind.__name__, None) is kind, f"export {kind.__name__} in regard_lab.models"
    assert kind.__name__ in models.__all__
    model, ids = kind(kind.Config(**SMALL[name])), torch.tensor([[5, 6, 0]])
    for mask in ("attention_mask", "src_key_padding_mask"):
        with pytest.raises(KeywordError, match=f"has no argument '{mask}'; .*PAD"):
            model(ids, **{mask: torch.ones(1, 3)})


@pytest.mark.parametrize("name", kinds())
def test_a_saved_model_of_every_kind_loads_with_its_config_and_weights(name, tmp_path):
    assert name in SMALL, f"add a small config of {name!r} to SMALL in tests/regard_lab/models/test_every_kind.py"
    kind = kinds()[name]
    model = kind(kind.Config(**SMALL[name]))
    model.save(tmp_path / "model")
    other = kind.load(tmp_path / "model")
    assert other.config == model.config
    assert not other.training
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    with pytest.raises(NotFoundError, match=r"and this call needs 'poet'; it is read by regard [a-z]+"):
        models.load_model(tmp_path / "model", kind="poet")


MODELS = [LanguageModel, RecurrentTranslator, TextEncoder, TranslationTransformer]
SETTINGS = {"vocab_size": 50, "dim": 8}
GUARD = 1.0  # CPU seconds


def needed(model):
    return {**SETTINGS, **({"head": "words"} if model is TextEncoder else {})}


def layers_of(model):
    return "layers" if model in (LanguageModel, TextEncoder) else "decoder_layers"


@pytest.mark.parametrize("model", MODELS)
def test_sizes_that_nobody_means_are_refused_and_so_are_those_that_no_memory_holds(model):
    size, began = 10**30, time.process_time()
    hidden = "hidden" if model is RecurrentTranslator else "hidden_dim"
    for name in ("vocab_size", "dim", layers_of(model), hidden):
        with pytest.raises(ArgumentError, match="a model has at most"):
            model.Config(**{**needed(model), name: size})
    with pytest.raises(ArgumentError, match=r"at least [\d,]+ bytes"):
        model(model.Config(**{**needed(model), "dim": 2**28, layers_of(model): 10_000}))
    assert time.process_time() - began < GUARD


@pytest.mark.parametrize("model", MODELS)
def test_a_folder_with_an_immense_config_or_one_of_other_weights_is_refused_at_once(tmp_path, model):
    small = model(model.Config(**needed(model)))
    config, layers = small.config.to_dict(), layers_of(model)
    changes = [{layers: 10**18}, {layers: 10_000}, {"vocab_size": 2**31 - 1}, {"vocab_size": 10**12}, {"dim": 40},
               {"colour": 1}]  # fmt: skip
    if model is LanguageModel:
        changes += [{"mechanism": "os.system"}, {"pattern": 3}]
    for wrong in [*({**config, **change} for change in changes), {"dim": 8}]:
        save_model(tmp_path / "m", wrong, small.state_dict(), model.KIND)
        began = time.process_time()
        with pytest.raises(CheckpointError, match="config"):
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
