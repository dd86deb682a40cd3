"""Every kind of model: exported, loaded with the same weights; a config that cannot be is refused at once."""

import importlib
import pkgutil
import time

import pytest
import torch
from language_models import SIZES as SIZES_OF_WRITER
from translators import RECURRENT, TRANSFORMER

from regard.errors import ArgumentError, CheckpointError, KeywordError, NotFoundError, RegardError
from regard_lab import models
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.models.base import Storable
from regard_lab.models.storage import save_model

# one that nobody imports counts too
for module in pkgutil.walk_packages(models.__path__, f"{models.__name__}."):
    importlib.import_module(module.name)

SIZES = {"vocab_size": 20, "dim": 8}
SMALL = {
    **{
        kind: {**SIZES, "heads": 2}
        for kind in ("translation-transformer", "language-model", "text-encoder")
    },
    "recurrent-translator": {**SIZES, "hidden": 8},
}


def kinds(base: type[Storable] = Storable) -> dict[str, type[Storable]]:
    """The classes that declare a KIND, by it."""
    kinds_found = {}
    for kind in base.__subclasses__():
        kinds_found |= kinds(kind)
        if "KIND" in vars(kind) and kind.__module__.startswith("regard_lab."):
            kinds_found[kind.KIND] = kind
    return kinds_found


@pytest.mark.parametrize("name", kinds())
def test_every_kind_is_exported_and_says_that_padding_needs_no_mask(name):
    kind = kinds()[name]
    assert getattr(models, kind.__name__, None) is kind, (
        f"export {kind.__name__} in regard_lab.models"
    )
    assert kind.__name__ in models.__all__
    model = kind(kind.Config(**SMALL[name]))
    ids = torch.tensor([[5, 6, 0]])
    for mask in ("attention_mask", "src_key_padding_mask"):
        with pytest.raises(KeywordError, match=f"has no argument '{mask}'; .*PAD"):
            model(ids, **{mask: torch.ones(1, 3)})


@pytest.mark.parametrize("name", kinds())
def test_a_saved_model_of_every_kind_loads_with_its_config_and_weights(name, tmp_path):
    assert name in SMALL, (
        f"add a small config of {name!r} to SMALL in tests/regard_lab/models/test_every_kind.py"
    )
    kind = kinds()[name]
    model = kind(kind.Config(**SMALL[name]))
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")
    assert loaded.config == model.config
    assert not loaded.training
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    with pytest.raises(
        NotFoundError, match=r"and this call needs 'poet'; it is read by regard [a-z]+"
    ):
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
    size = 10**30
    began = time.process_time()
    hidden = "hidden" if model is RecurrentTranslator else "hidden_dim"
    for name in ("vocab_size", "dim", layers_of(model), hidden):
        with pytest.raises(ArgumentError, match="a model has at most"):
            model.Config(**{**needed(model), name: size})
    with pytest.raises(ArgumentError, match=r"at least [\d,]+ bytes"):
        model(model.Config(**{**needed(model), "dim": 2**28, layers_of(model): 10_000}))
    assert time.process_time() - began < GUARD


@pytest.mark.parametrize("model", MODELS)
def test_a_folder_with_an_immense_config_or_one_of_other_weights_is_refused_at_once(
    tmp_path, model
):
    small = model(model.Config(**needed(model)))
    config = small.config.to_dict()
    layers = layers_of(model)
    changes = [
        {layers: 10**18},
        {layers: 10_000},
        {"vocab_size": 2**31 - 1},
        {"vocab_size": 10**12},
        {"dim": 40},
        {"colour": 1},
    ]
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


REFUSED = {
    LanguageModel: (
        SIZES_OF_WRITER,
        [
            ({"dim": 21}, "multiple of heads, 2"),
            ({"kv_heads": 3}, "kv_heads is 3"),
            ({"dim": 14, "positions": "rotary"}, "head_dim is 7; it must be even"),
            ({"dim": 21, "head_dim": 4, "positions": "sinusoidal"}, "dim is 21; it must be even"),
            ({"positions": "absolute"}, "rotary, alibi, learned"),
            (
                {"positions": "alibi", "rotary_scaling": "linear(2)"},
                "is for rotary positions, and these are alibi",
            ),
            ({"rotary_scaling": "yarn(4)"}, "yarn takes"),
            (
                {"rotary_scaling": "yarm(4, 16)"},
                "there is no scaling 'yarm'; there are linear, ntk, yarn",
            ),
            (
                {"latent_dim": 8, "qk_norm": True, "differential": True},
                "qk_norm, differential are for keys and values of",
            ),
            ({"output_gate": 1}, "output_gate"),
            ({"pattern": "cuasal"}, "there is no pattern 'cuasal'"),
            ({"pattern": ("full",) * 3}, "3 texts for 2 layers"),
            ({"pattern": "random_blocks(1, block=2, seed=0)"}, "past=true"),
            ({"pattern": "per_head(causal, full, causal)"}, "3"),
            ({"mechanism": "softmx"}, "there is no mechanism 'softmx'; .*softmax"),
            ({"mechanism": "linformer(length=9, rank=2)"}, "mixes all positions"),
            ({"mechanism": "linear", "pattern": "causal_window(4)"}, "takes Full, Causal"),
            ({"mechanism": ("softmax", "linear"), "positions": "alibi"}, "has no bias"),
            ({"mechanism": "linear", "attention_dropout": 0.1}, "has no dropout"),
            ({"mechanism": "lsh", "kv_heads": 1}, "kv_heads must be heads, 2"),
            ({"epsilon": 0}, "epsilon is 0"),
            ({"layers": True}, "layers is True"),
        ],
    ),
    TextEncoder: (
        SIZES_OF_WRITER,
        [
            ({"head": "classes"}, "with head='classes' only"),
            ({"classes": 3}, "with head='classes' only"),
            ({"head": "sentences"}, "there are words, classes, none"),
            ({"pooling": "last"}, "there are mean, first"),
            ({"mechanism": "linear", "pattern": "sliding_window(4)"}, "linear"),
        ],
    ),
    TranslationTransformer: (
        TRANSFORMER,
        [
            ({"dim": 25}, "dim is 25"),
            ({"heads": 5}, "multiple of heads, 5"),
            ({"decoder_kv_heads": 3}, "decoder_kv_heads is 3"),
            ({"positions": "none"}, "sinusoidal, learned, rotary"),
            ({"encoder_pattern": "cuasal"}, "there is no pattern 'cuasal'"),
            (
                {"encoder_pattern": "random_blocks(1, block=2)"},
                "encoder_pattern .* the number of keys, .* past=true",
            ),
            (
                {"decoder_pattern": "full & ~random_blocks(1)"},
                "decoder_pattern .* the number of keys, .* past=true",
            ),
            (
                {"cross_pattern": "random_blocks(1, block=2)"},
                "cross_pattern .* the number of keys, .* past=true",
            ),
            ({"dim": 12, "positions": "rotary"}, "must be even"),
            (
                {"encoder_mechanism": "linear", "encoder_pattern": "sliding_window(4)"},
                "not sliding_window",
            ),
            (
                {"encoder_mechanism": "random_feature(8, gated)"},
                "its gates forget what came before",
            ),
            (
                {"encoder_mechanism": "lsh(4, 4)", "encoder_kv_heads": 2},
                "encoder_kv_heads, 2, must be heads, 4",
            ),
            ({"encoder_mechanism": "performer(8)", "attention_dropout": 0.1}, "has no dropout"),
        ],
    ),
    RecurrentTranslator: (
        RECURRENT,
        [
            ({"attention": "luong"}, "luong-general"),
            ({"cell": "rnn"}, "gru, lstm"),
            ({"hidden": 15}, "even"),
            ({"reach": "local-p"}, "only luong-dot"),
            ({"attention": "none", "input_feeding": True}, "only luong-dot"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [(model, *row) for model, (_, rows) in REFUSED.items() for row in rows],
)
def test_a_config_that_cannot_be_is_refused_in_one_sentence_with_its_numbers(model, changes, words):
    with pytest.raises(RegardError, match=words) as refusal:
        model.Config(**{**REFUSED[model][0], **changes})
    assert "\n" not in str(refusal.value)
