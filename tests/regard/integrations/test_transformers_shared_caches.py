"""Caches of attached models share no memory that transformers' own do not share; see `cache_walks`."""

import copy

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import torch
from cache_walks import BOUND, CACHE, MODELS, VOCAB, WIDER, CacheWalk, copied, models, tensors_of
from transformers import DynamicCache

from regard.integrations.transformers import keep_entries
from regard.integrations.transformers.latents import LatentLayer
from regard.integrations.transformers.window_cache import WindowLayer

IDS = torch.randint(1, VOCAB, (2, 29), generator=torch.Generator().manual_seed(5))
SAMPLE = 15
MANY = 2000


def walk(seed: int) -> None:
    name = list(MODELS)[seed % len(MODELS)]
    walked = CacheWalk(name, seed)
    worst = walked.run()
    assert worst < WIDER.get(name, BOUND), (name, seed, worst, walked.log)


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_caches_of_an_attached_model_change_as_those_of_the_model_itself(seed):
    walk(seed)


@pytest.mark.slow
def test_many_caches_of_attached_models_change_as_those_of_the_models_themselves():
    for seed in range(SAMPLE, SAMPLE + MANY):
        walk(seed)


def begun(name: str, length: int) -> DynamicCache:
    cache = DynamicCache()
    logits(name, 0, length, cache)
    return cache


def logits(name: str, start: int, stop: int, cache: DynamicCache) -> torch.Tensor:
    attached, _ = models(name)
    return attached(IDS[:, start:stop], **{CACHE: cache}).logits


@torch.no_grad()
def test_two_shallow_copies_of_a_latent_cache_both_go_on():
    first = begun("deepseek_v3", 11)
    assert type(first.layers[0]) is LatentLayer
    second = copied(first)
    wanted = logits("deepseek_v3", 17, 23, copy.deepcopy(second))
    steps = []
    for count in range(6):
        logits("deepseek_v3", 11 + count, 12 + count, first)
        steps.append(logits("deepseek_v3", 17 + count, 18 + count, second))
    torch.testing.assert_close(torch.cat(steps, 1), wanted, rtol=0, atol=BOUND)


@torch.no_grad()
def test_tensors_taken_from_a_latent_cache_stay_what_they_are_after_a_crop_and_another_text():
    cache = begun("deepseek_v3", 11)
    logits("deepseek_v3", 11, 13, cache)
    taken = tensors_of(cache)
    wanted = logits("deepseek_v3", 13, 17, copy.deepcopy(cache))
    cache.crop(-5)
    logits("deepseek_v3", 20, 27, cache)
    output = logits("deepseek_v3", 13, 17, DynamicCache(taken))
    torch.testing.assert_close(output, wanted, rtol=0, atol=BOUND)


@torch.no_grad()
def test_two_shallow_copies_of_a_cache_with_kept_entries_both_go_on():
    first = begun("llama", 11)
    keep_entries(first, torch.tensor([0, 3, 7, 10]))
    second = copied(first)
    wanted = logits("llama", 17, 20, copy.deepcopy(second))
    logits("llama", 11, 16, first)
    assert second.get_seq_length() == 11
    torch.testing.assert_close(logits("llama", 17, 20, second), wanted, rtol=0, atol=BOUND)


def window_layer(length: int) -> WindowLayer:
    """Whose keys are the numbers of their positions, and whose values are these and a half."""
    layer = WindowLayer(first=2, window=5)
    for position in range(length):
        keys = torch.full((1, 2, 1, 3), float(position))
        layer.update(keys, keys + 0.5)
    return layer


def step(layer: WindowLayer, number: float) -> torch.Tensor:
    numbers = torch.full((1, 2, 1, 3), number)
    keys, _ = layer.update(numbers, numbers)
    return keys[0, 0, :, 0]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_copies_of_a_layer_with_a_window_both_go_on(way):
    with torch.no_grad():
        first = window_layer(13)
        second = way(first)
        for count in range(40):
            step(first, 100.0 + count)
            following = [*range(9, 13), *range(200, 201 + count)]
            assert step(second, 200.0 + count).tolist() == [0, 1, *following[-5:]]


def test_tensors_taken_from_a_layer_with_a_window_do_not_change():
    with torch.no_grad():
        layer = window_layer(13)
        taken = layer.keys, layer.values
        then = [x.clone() for x in taken]
        for count in range(40):
            step(layer, 100.0 + count)
        assert all(map(torch.equal, taken, then))


def test_a_layer_with_a_window_whose_tensors_nobody_took_moves_them_seldom():
    with torch.no_grad():
        layer = window_layer(13)
        places = set()
        for count in range(16):
            step(layer, 100.0 + count)
            places.add(layer._rooms[0].data_ptr())
        assert len(places) == 1
