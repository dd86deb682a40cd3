"""Caches of attached models share no memory that transformers' own do not share; see `cache_walks`."""

import copy

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import torch
from cache_walks import BOUND, CACHE, MODELS, VOCAB, WIDER, Walk, copied, models, tensors_of
from transformers import DynamicCache

from regard.integrations.transformers import keep_entries
from regard.integrations.transformers.latents import LatentLayer
from regard.integrations.transformers.window_cache import WindowLayer

IDS = torch.randint(1, VOCAB, (2, 29), generator=torch.Generator().manual_seed(5))
SAMPLE = 15
MANY = 2000


def walk(seed: int) -> None:
    name = list(MODELS)[seed % len(MODELS)]
    walked = Walk(name, seed)
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
    held = DynamicCache()
    models(name)[0](IDS[:, :length], **{CACHE: held})
    return held


def logits(name: str, first: int, stop: int, held: DynamicCache) -> torch.Tensor:
    return models(name)[0](IDS[:, first:stop], **{CACHE: held}).logits


@torch.no_grad()
def test_two_shallow_copies_of_a_latent_cache_both_go_on():
    one = begun("deepseek_v3", 11)
    assert type(one.layers[0]) is LatentLayer
    other = copied(one)
    wanted = logits("deepseek_v3", 17, 23, copy.deepcopy(other))
    found = []
    for at in range(6):
        logits("deepseek_v3", 11 + at, 12 + at, one)
        found.append(logits("deepseek_v3", 17 + at, 18 + at, other))
    torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=0, atol=BOUND)


@torch.no_grad()
def test_tensors_taken_from_a_latent_cache_stay_what_they_are_after_a_crop_and_another_text():
    held = begun("deepseek_v3", 11)
    logits("deepseek_v3", 11, 13, held)
    taken = tensors_of(held)
    wanted = logits("deepseek_v3", 13, 17, copy.deepcopy(held))
    held.crop(-5)
    logits("deepseek_v3", 20, 27, held)
    found = logits("deepseek_v3", 13, 17, DynamicCache(taken))
    torch.testing.assert_close(found, wanted, rtol=0, atol=BOUND)


@torch.no_grad()
def test_two_shallow_copies_of_a_cache_with_kept_entries_both_go_on():
    one = begun("llama", 11)
    keep_entries(one, torch.tensor([0, 3, 7, 10]))
    other = copied(one)
    wanted = logits("llama", 17, 20, copy.deepcopy(other))
    logits("llama", 11, 16, one)
    assert other.get_seq_length() == 11
    torch.testing.assert_close(logits("llama", 17, 20, other), wanted, rtol=0, atol=BOUND)


def window_layer(length: int) -> WindowLayer:
    layer = WindowLayer(first=2, window=5)
    for at in range(length):
        layer.update(*(torch.full((1, 2, 1, 3), at + shift) for shift in (0.0, 0.5)))
    return layer


def step(layer: WindowLayer, number: float) -> torch.Tensor:
    numbers = torch.full((1, 2, 1, 3), number)
    return layer.update(numbers, numbers)[0][0, 0, :, 0]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_copies_of_a_layer_with_a_window_both_go_on(way):
    with torch.no_grad():
        one = window_layer(13)
        other = way(one)
        for at in range(40):
            step(one, 100.0 + at)
            kept = [0, 1] + ([*range(9, 13)] + [200 + n for n in range(at + 1)])[-5:]
            assert step(other, 200.0 + at).tolist() == kept


def test_tensors_taken_from_a_layer_with_a_window_do_not_change():
    with torch.no_grad():
        layer = window_layer(13)
        taken = layer.keys, layer.values
        then = [x.clone() for x in taken]
        for at in range(40):
            step(layer, 100.0 + at)
        assert all(map(torch.equal, taken, then))


def test_a_layer_with_a_window_whose_tensors_nobody_took_moves_them_seldom():
    with torch.no_grad():
        layer = window_layer(13)
        places = set()
        for at in range(16):
            step(layer, 100.0 + at)
            places.add(layer._rooms[0].data_ptr())
        assert len(places) == 1
