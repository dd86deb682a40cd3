"""Every public object says what it is on one short line: its class, and the arguments that make it."""

import dataclasses
import importlib
import inspect
import re

import pytest
import torch
from structure import modules

import regard
from regard import bias, mechanisms, patterns, positions
from regard.backends import BACKENDS
from regard.layers import record_attention
from regard.patterns.algebra import Both
from regard.reprs import brief_value
from regard_lab.decoding import Sampling
from regard_lab.models import LanguageConfig, LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.seeing import AttentionMaps
from regard_lab.text import Pair, TokenBatches, Tokeniser, split_by_hash
from regard_lab.text.seen_words import SeenWords
from regard_lab.training import TrainingConfig
from regard_lab.training.recipes import LanguageModelTraining

LONG = re.compile(r"Tensor|list\[|dict\[|\.\.\.\]|frozenset|Sequence|Mapping|Iterable|Callable")
LONGEST = 240


def public_classes() -> dict[str, type]:
    """All classes that a package or module exports, by name."""
    names = [*modules("regard"), *modules("regard_lab")]
    classes = {}
    for module in map(
        importlib.import_module,
        (name for name in names if "__main__" not in name and ".cli" not in name),
    ):
        for name in getattr(module, "__all__", ()):
            cls = getattr(module, name)
            if (
                inspect.isclass(cls)
                and not issubclass(cls, BaseException)
                and not getattr(cls, "_is_protocol", False)
            ):
                classes[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return {
        name: cls for name, cls in classes.items() if name.startswith(("regard.", "regard_lab."))
    }


def test_every_public_class_has_a_repr_of_its_own_that_prints_no_tensor_and_no_corpus():
    """A dataclass whose fields may be long has the repr of `brief`, or one of its own."""
    # hold little
    few = {
        "ALiBi",
        "LSH",
        "Both",
        "Either",
        "PerHead",
        "Lesson",
        "Drawback",
        "Validated",
        "Frame",
        "Rotary",
    }
    for name, cls in public_classes().items():
        assert cls.__repr__ is not object.__repr__, name
        if dataclasses.is_dataclass(cls) and not issubclass(cls, torch.nn.Module):
            long = [
                field.name
                for field in dataclasses.fields(cls)
                if field.repr and LONG.search(str(field.type))
            ]
            generated = (
                cls.__repr__.__module__ != "regard.reprs"
                and "__repr__" not in inspect.getsource(cls)
            )
            assert not (long and generated) or cls.__name__ in few, name


def given() -> dict[str, object]:
    q = torch.randn(1, 2, 5, 8)
    with record_attention(
        LanguageModel(LanguageConfig(vocab_size=300, dim=8, heads=2, layers=1))
    ) as recording:
        pass
    words = ("a", "b")
    return {
        "plan": regard.plan_attention(q, q, q, pattern="causal"),
        "detail": regard.attention_detail(q, q, q, want="entropy"),
        "cache": regard.MultiHeadAttention(8, 2).new_cache(1),
        "mask": patterns.Explicit(torch.ones(300, 300).bool()),
        "span": patterns.KeySpan(0, torch.arange(100)),
        "rule": patterns.Where(lambda i, j: i > j),
        "many tokens": patterns.GlobalTokens(range(500)),
        "documents": patterns.SameDocument(torch.zeros(500).long()),
        "splits": split_by_hash([Pair(str(n), "b") for n in range(300)], 0.1, 0.1),
        "words": SeenWords.of([" ".join(f"w{n}" for n in range(300))] * 2),
        "tokeniser": Tokeniser.train(["a b"] * 3, 300),
        "batches": TokenBatches([3] * 500, 8, seed=0),
        "config": LanguageConfig(vocab_size=300, dim=16, heads=2),
        "training": TrainingConfig(steps=4),
        "recipe": LanguageModelTraining(LanguageModelTraining.Config(data=("text.txt",))),
        "recording": recording,
        "maps": AttentionMaps(
            words, words, torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
        ),
        **{f"backend {name}": backend for name, backend in BACKENDS.items()},
    }


GIVEN = given()


@pytest.mark.parametrize("name", GIVEN)
def test_a_repr_is_one_short_line_without_an_address(name):
    text = repr(GIVEN[name])
    assert type(GIVEN[name]).__name__ in text
    assert "\n" not in text
    assert " at 0x" not in text
    assert len(text) <= LONGEST


WRITTEN = {
    "CausalWindow(size=4)": vars(patterns),
    "Both(parts=(Causal(), Prefix(length=2)))": {**vars(patterns), "Both": Both},
    "GlobalTokens(indices=range(0, 500))": vars(patterns),
    "Performer(features=4, seed=0, orthogonal=True)": vars(mechanisms),
    "Rotary()": vars(positions),
    "ALiBi(slopes=None)": vars(bias),
    "LanguageConfig(vocab_size=300, dim=16, heads=2, kv_heads=2, head_dim=8, hidden_dim=48)": {},
    "TrainingConfig(steps=4)": {},
    "Sampling(temperature=0.5, top_k=None, top_p=None, min_p=None, seed=0)": {},
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_repr_is_the_call_that_makes_the_object(text):
    names = WRITTEN[text]
    made = eval(
        text,
        {
            **names,
            "LanguageConfig": LanguageConfig,
            "TrainingConfig": TrainingConfig,
            "Sampling": Sampling,
        },
    )
    assert repr(made) == text
    assert eval(repr(made), {**names, **globals()}) == made


@pytest.mark.parametrize("model", [LanguageModel, TextEncoder, TranslationTransformer])
def test_a_model_shows_its_modules(model):
    text = repr(model(model.Config(vocab_size=300, dim=8, heads=2)))
    assert text.startswith(f"{model.__name__}(")
    assert " at 0x" not in text


def test_values_are_written_in_a_few_characters():
    assert brief_value("x" * 99).endswith("…'")
    assert brief_value((0, 1, 2, 3, 4, 5)) == "range(0, 6)"
    assert brief_value((0, 2, 4, 6, 8)) == "<tuple of 5>"
    assert brief_value({"a": torch.ones(2)}) == "<dict of 1>"
    assert brief_value(()) == "()"
