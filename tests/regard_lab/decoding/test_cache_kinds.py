"""`cache=` of the searches changes how keys and values are stored, and not what is written."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard.layers.caches import paged
from regard_lab.decoding import Generator, Sampling, Translator, beam_search, generate, greedy_search
from regard_lab.models import LanguageConfig, LanguageModel, RecurrentTranslator, TranslationTransformer
from regard_lab.text import Tokeniser

SIZES = {"vocab_size": 40, "dim": 16, "heads": 2, "layers": 2}
PROMPTS = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])  # 0 is PAD


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


def language(**options):
    torch.manual_seed(0)
    return LanguageModel(LanguageConfig(**SIZES, **options)).eval()


def translator():
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    return TranslationTransformer(TranslationTransformer.Config(**sizes)).eval()


def kinds_made(monkeypatch):
    """The kinds of the caches that layers make."""
    made = []
    new_cache = rg.MultiHeadAttention.new_cache

    def counted(self, *args, **options):
        made.append(new_cache(self, *args, **options))
        return made[-1]

    monkeypatch.setattr(rg.MultiHeadAttention, "new_cache", counted)
    return made


SEARCHES = {
    "greedy": lambda model, **cache: greedy_search(model, PROMPTS, 12, **cache),
    "sampling": lambda model, **cache: generate(
        model, PROMPTS, max_tokens=12, sampling=Sampling(top_k=9, seed=1), count=2, **cache
    ),
    "beam": lambda model, **cache: beam_search(model, PROMPTS, 3, count=2, max_length=12, **cache),
}


@pytest.mark.parametrize("cache", ["dynamic", "static", "paged", "ring"])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "make", [lambda: language(pattern="causal_window(5)"), translator], ids=["language", "translator"]
)
def test_every_kind_writes_what_the_models_own_choice_writes(make, search, cache, monkeypatch):
    model = make()
    if cache == "ring" and isinstance(model, TranslationTransformer):
        with pytest.raises(rg.ArgumentError, match="causal has no limit"):
            SEARCHES[search](model, cache=cache)
        return
    expected = SEARCHES[search](model)
    made = kinds_made(monkeypatch)
    assert SEARCHES[search](model, cache=cache) == expected
    assert {one.kind for one in made} == {cache}


@pytest.mark.parametrize("dtype", ["int8", torch.bfloat16])
@pytest.mark.parametrize("make", [language, translator])
def test_narrow_storage_rounds_scores_a_little(make, dtype, monkeypatch):
    model = make()
    expected = greedy_search(model, PROMPTS, 6)
    made = kinds_made(monkeypatch)
    found = greedy_search(model, PROMPTS, 6, cache="static", cache_dtype=dtype)
    assert {str(one.dtype) for one in made} == {"torch.int8" if dtype == "int8" else "torch.bfloat16"}
    assert found != expected  # numbers are rounded
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=0.2)


def test_state_continues_a_mechanism_that_has_one():
    model = language(mechanism="linear_transformer")
    assert SEARCHES["greedy"](model, cache="state") == SEARCHES["greedy"](model)
    with pytest.raises(rg.UnsupportedError, match="no recurrent state"):
        SEARCHES["greedy"](language(), cache="state")


def test_kinds_that_do_not_exist_and_models_without_caches_say_so():
    with pytest.raises(rg.ArgumentError, match="kind='pagd' does not exist"):
        greedy_search(language(), PROMPTS, cache="pagd")
    with pytest.raises(rg.ArgumentError, match="dtype='int4'"):
        greedy_search(language(), PROMPTS, cache_dtype="int4")
    model = RecurrentTranslator(RecurrentTranslator.Config(vocab_size=40, dim=8, hidden=8)).eval()
    with pytest.raises(rg.UnsupportedError, match="RecurrentTranslator stores no keys and values"):
        beam_search(model, PROMPTS, 2, cache="paged")


def test_texts_are_written_with_any_kind():
    tokeniser = Tokeniser.train(["the cat sat on the mat, and the dog sat on the cat"], 300, "character")
    model = LanguageModel(LanguageConfig(**SIZES | {"vocab_size": tokeniser.vocab_size})).eval()
    generator = Generator(model, tokeniser)
    options = {"max_tokens": 8, "beam": 2}
    assert generator.generate(["the"], cache="paged", **options) == generator.generate(["the"], **options)
    torch.manual_seed(0)
    sizes = {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, **sizes)).eval()
    translates = Translator(model, tokeniser)
    for beam in (1, 2):
        expected = translates.translate(["the cat"], beam=beam)
        assert translates.translate(["the cat"], beam=beam, cache="static") == expected
