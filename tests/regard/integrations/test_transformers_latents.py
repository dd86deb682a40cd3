"""Models with latent attention give eager attention's numbers, absorbed and expanded, with their caches and ours."""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import hugging_face_small as small
import torch
import transformers as tf
from each_value import slow_except
from hugging_face_families import GENERATES, Family
from torch import nn
from transformers_versions import CACHE

import regard as rg
from regard.integrations.transformers import (
    attach,
    change_attention,
    detach,
    explain,
    latent_cache,
)
from regard.integrations.transformers.latents import EXPAND, LatentLayer, wanted_form

KINDS = (
    "axk1",
    "axk2",
    "bailing_hybrid",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm5_next_text",
    "glm_moe_dsa",
    "hy_v4",
    "kimi_k25",
    "kimi_linear",
    "longcat_flash",
    "minicpm3",
    "mistral4",
    "mistral_large4_text",
    "youtu",
)
INDEXED = ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")  # caches keep keys of an indexer too
EVERY = slow_except(KINDS, fast=("deepseek_v3", "mistral4", "minicpm3"))


def family_of(kind: str) -> Family:
    if kind not in small.types():
        pytest.skip(f"this version of transformers has no {kind}")
    return Family(kind, GENERATES, "latents", partial(small.built, kind))


@contextmanager
def in_form(form: str) -> Generator[None]:
    token = wanted_form.set(form)
    try:
        yield
    finally:
        wanted_form.reset(token)


def forms(model: Any, inputs: Any) -> set[str]:
    """The forms that `explain` names."""
    options: set[str] = set()
    for call in explain(model, inputs).calls:
        options.update(call.options)
    prefix = "latents: "
    return {option.removeprefix(prefix) for option in options if option.startswith(prefix)}


@pytest.mark.parametrize("kind", EVERY)
def test_logits_gradients_and_words_are_those_of_eager_attention(kind):
    family = family_of(kind)
    model = family.model()
    for form in ("absorbed", "expanded"):
        with in_form(form):
            inputs, _ = checks.inputs_of(family, "left")
            assert forms(attach(model, check=False), inputs) == {form}
            for padding in ("left", "right"):
                assert checks.logits(family, model, padding) <= checks.TOLERANCE
            assert checks.gradients(family, model) <= checks.GRADIENTS
    assert not hasattr(model, "generate") or checks.same_tokens(family, model, "greedy")


@pytest.mark.parametrize("kind", EVERY)
def test_our_cache_writes_the_words_of_theirs(kind):
    family = family_of(kind)
    model = attach(family.model())
    if kind in INDEXED or not hasattr(model, "generate"):
        with pytest.raises(rg.UnsupportedError, match="latents alone"):
            latent_cache(model)
        return
    inputs, _ = checks.inputs_of(family, "left")
    options = {**inputs, "max_new_tokens": 80, "do_sample": False, "disable_compile": True}
    with torch.no_grad():
        expected = model.generate(**options)
        cache = latent_cache(model)
        assert torch.equal(model.generate(**options, **{CACHE: cache}), expected)
    ours = [layer for layer in cache.layers if isinstance(layer, LatentLayer)]
    assert ours
    assert all(layer.keys.data_ptr() == layer._room.data_ptr() for layer in ours)


def deepseek() -> Any:
    return attach(family_of("deepseek_v3").model())


@pytest.mark.parametrize("way", checks.GENERATIONS)
def test_generate_writes_the_same_words(way):
    family = family_of("deepseek_v3")
    assert checks.same_tokens(family, family.model(), way)


def test_forms_are_equal_in_float64():
    model = attach(family_of("minicpm3").model()).double()
    ids = torch.randint(3, 99, (2, 14))
    results = []
    for form in ("absorbed", "expanded"):
        model.zero_grad()
        with in_form(form):
            logits = model(ids).logits
        logits.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([logits.detach(), *gradients])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_few_queries_are_absorbed_and_a_prompt_is_expanded():
    model = deepseek()
    cache = latent_cache(model)
    with torch.no_grad():
        model(torch.randint(3, 99, (2, 40)), **{CACHE: cache})
        step = {"input_ids": torch.tensor([[5], [6]]), CACHE: cache}
        assert forms(model, step) == {"absorbed"}
    assert forms(model, torch.randint(3, 99, (2, 40))) == {"expanded"}


def walk(model: Any, cache: Any) -> list[torch.Tensor]:
    """The logits of a cache that is cropped, copied, reordered and continued, at last with gradients."""
    ids = torch.randint(3, 99, (3, 60), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        model(ids[:, :30], **{CACHE: cache})
    with torch.no_grad():
        model(ids[:, 30:35], **{CACHE: cache})
        cache.crop(-4)
        copied = copy.deepcopy(cache)
        cache.reorder_cache(torch.tensor([2, 0, 0]))
        logits = [model(ids[:, 31:33], **{CACHE: each}).logits for each in (cache, copied, cache)]
    logits.append(model(ids[:, 33:], **{CACHE: cache}).logits)
    assert cache.get_seq_length() == 62
    assert logits[-1].requires_grad
    assert {type(layer) for layer in copied.layers} == {type(layer) for layer in cache.layers}
    return logits


CACHES = {
    "ours": latent_cache,
    "theirs": lambda model: tf.DynamicCache(),
    "theirs, with a config": lambda model: tf.DynamicCache(config=model.config),
}


@pytest.mark.parametrize("kind", CACHES)
def test_our_cache_is_cropped_reordered_and_continued_as_theirs(kind):
    model = deepseek()
    cache = CACHES[kind](model)
    logits = walk(model, cache)
    assert {type(layer) for layer in cache.layers} == {LatentLayer}
    detach(model)
    cache = CACHES["theirs, with a config"](model)
    expected = walk(model, cache)
    assert LatentLayer not in {type(layer) for layer in cache.layers}
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_why_a_call_is_expanded_is_named():
    model = deepseek()
    ids = torch.tensor([[5, 6, 7]])
    with in_form("absorbed"):
        assert forms(model, ids) == {"absorbed"}
        with torch.autocast("cpu", torch.bfloat16):
            assert forms(model, ids) == {"expanded (its tensors have several dtypes)"}
        change = change_attention(model, pattern="causal & causal_window(4)")
        assert forms(model, ids) == {"expanded (change_attention changed it)"}
        change.undo()
        for module in model.modules():
            if hasattr(module, "kv_b_proj"):
                module.kv_b_proj = nn.Sequential(module.kv_b_proj)
        assert forms(model, ids) == {"expanded (kv_b_proj is not a plain linear layer)"}


def test_detach_gives_back_the_modules_and_other_models_have_no_latents():
    model = deepseek()
    assert any(EXPAND in module.__dict__ for module in model.modules())
    assert not any(EXPAND in module.__dict__ for module in detach(model).modules())
    with pytest.raises(rg.UnsupportedError, match="keeps latents alone"):
        latent_cache(model)


@torch.no_grad()
def test_entries_of_other_texts_are_refused_and_change_nothing():
    layer = LatentLayer()
    layer.update(torch.randn(2, 1, 7, 8), torch.randn(2, 1, 7, 4))
    before = layer.keys.clone()
    for rows in (1, 3):
        with pytest.raises(rg.ShapeError, match=f"entries of 2 texts, and this call has {rows};"):
            layer.update(torch.randn(rows, 1, 1, 8), torch.randn(rows, 1, 1, 4))
    assert torch.equal(layer.keys, before)
