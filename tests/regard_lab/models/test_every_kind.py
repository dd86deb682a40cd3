"""Every kind of model that can be saved: it is exported, and a small one of it loads with the same weights."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch

from regard.errors import KeywordError, NotFoundError
from regard_lab import models
from regard_lab.models.base import Storable
from regard_lab.models.recurrent import RecurrentTranslator

for module in pkgutil.walk_packages(models.__path__, f"{models.__name__}."):  # one that nobody imports counts too
    importlib.import_module(module.name)

SMALL = {
    "translation-transformer": {"vocab_size": 20, "dim": 8, "heads": 2},
    RecurrentTranslator.KIND: {"vocab_size": 20, "dim": 8, "hidden": 8},
    "language-model": {"vocab_size": 20, "dim": 8, "heads": 2},
    "text-encoder": {"vocab_size": 20, "dim": 8, "heads": 2},
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
def test_every_kind_is_exported(name):
    kind = kinds()[name]
    assert getattr(models, kind.__name__, None) is kind, f"export {kind.__name__} in regard_lab.models"
    assert kind.__name__ in models.__all__


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


@pytest.mark.parametrize("name", kinds())
def test_a_model_called_with_a_mask_says_that_padding_needs_none(name):
    kind = kinds()[name]
    model, ids = kind(kind.Config(**SMALL[name])), torch.tensor([[5, 6, 0]])
    for mask in ("attention_mask", "src_key_padding_mask"):
        with pytest.raises(KeywordError, match=f"{kind.__name__} has no argument '{mask}'; .*PAD"):
            model(ids, **{mask: torch.ones(1, 3)})
