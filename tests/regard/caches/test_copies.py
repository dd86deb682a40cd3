"""Copies of a cache are independent, and tensors that were read from a cache do not change."""

import copy
import pickle

import pytest
import torch

from regard.core.tensors import Stored
from regard.layers.caches import new_cache, paged

HEADS = 2
DIM = 3
PROMPT = 7
KINDS = {
    "dynamic": {},
    "static": {"capacity": 29},
    "ring": {"capacity": 11},
    "ring with first entries": {"capacity": 11, "first_entries": 2},
    "paged": {},
    "int8": {"dtype": "int8"},
    "joined": {"joined": True},
}
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda cache: pickle.loads(pickle.dumps(cache)),
}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


def empty(name: str):
    kind = {"int8": "dynamic", "joined": "dynamic"}.get(name, name.split()[0])
    return new_cache(kind, 1, HEADS, DIM, **KINDS[name])


def append(cache, added: int, number: float) -> None:
    numbers = number + torch.arange(added * DIM * HEADS).view(1, HEADS, added, DIM) / 64
    cache.append(numbers, None if cache.joined else numbers)


def held_keys(cache) -> torch.Tensor:
    keys = cache.keys
    return keys.widened(torch.float64) if isinstance(keys, Stored) else keys.double()


def hold_the_same(first, second) -> bool:
    return first.length == second.length and torch.equal(held_keys(first), held_keys(second))


def append_in_steps(cache, number: float) -> None:
    for step in range(5):
        append(cache, 1 + step % 2, number + step)


@pytest.mark.each_value(pairs=[("name", "way"), ("name", "grad")])
@pytest.mark.parametrize("cropped", [0, 3])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_a_cache_and_its_copies_go_on_as_if_each_were_alone(name, way, grad, cropped):
    def alone(number: float):
        cache = empty(name)
        append(cache, PROMPT, 1.0)
        cache.crop(PROMPT - cropped)
        append_in_steps(cache, number)
        return cache

    with torch.set_grad_enabled(grad):
        original = empty(name)
        append(original, PROMPT, 1.0)
        copied = WAYS[way](original)
        copied_again = WAYS[way](copied)
        caches = {10.0: original, 20.0: copied, 30.0: copied_again}
        for cache in caches.values():
            cache.crop(PROMPT - cropped)
        for step in range(5):  # in turns
            for number, cache in caches.items():
                append(cache, 1 + step % 2, number + step)
        for number, cache in caches.items():
            assert hold_the_same(cache, alone(number))


@pytest.mark.parametrize("together", [copy.deepcopy, lambda two: pickle.loads(pickle.dumps(two))])
@pytest.mark.parametrize("name", KINDS)
def test_caches_that_share_entries_and_are_copied_together_share_none_that_they_write(
    name, together
):
    with torch.no_grad():
        original = empty(name)
        append(original, PROMPT, 1.0)
        first, second = together((original, copy.copy(original)))
        append(first, 2, 10.0)
        append(second, 2, 20.0)
        append(original, 2, 10.0)
        assert hold_the_same(first, original)
        assert not torch.equal(held_keys(second), held_keys(first))


@pytest.mark.parametrize("name", ["dynamic", "static", "ring", "ring with first entries", "joined"])
def test_keys_and_values_that_were_read_do_not_change_after_a_crop(name):
    with torch.no_grad():
        cache = empty(name)
        append(cache, PROMPT, 1.0)
        keys = cache.keys
        values = cache.values
        keys_before = keys.clone()
        values_before = values.clone()
        cache.crop(3)
        append(cache, 5, 9.0)
        append(cache, 1, 9.0)
        assert torch.equal(keys, keys_before)
        assert torch.equal(values, values_before)


@pytest.mark.parametrize("name", ["dynamic", "static", "ring", "joined"])
def test_keys_that_were_read_and_copies_do_not_change_after_a_reorder_and_a_crop(name):
    """A reorder moves the entries to new planes, all of whose slots up to the last entry are written."""
    with torch.no_grad():
        cache = empty(name)
        append(cache, PROMPT, 1.0)
        cache.reorder(torch.tensor([0]))
        keys = cache.keys
        keys_before = keys.clone()
        shorter = copy.copy(cache)
        shorter.crop(PROMPT - 1)
        append(shorter, 1, 9.0)
        assert torch.equal(keys, keys_before)
        assert torch.equal(cache.keys, keys_before)


def test_a_cache_that_shares_nothing_writes_over_what_it_dropped():
    """So that taking back proposals of a draft copies nothing; copies that are gone do not count."""
    with torch.no_grad():
        cache = empty("static")
        append(cache, PROMPT, 1.0)
        place = cache._held.planes["k"].data_ptr()
        cache.crop(3)
        append(cache, 2, 9.0)
        cache = copy.copy(cache)
        cache.crop(4)
        append(cache, 2, 9.0)
        assert cache._held.planes["k"].data_ptr() == place


def test_a_copy_that_replaces_its_cache_at_each_step_copies_no_entry():
    with torch.no_grad():
        cache = empty("static")
        place = cache._held.planes["k"].data_ptr()
        for number in range(9):
            cache = copy.copy(cache)
            append(cache, 1, number)
        assert cache._held.planes["k"].data_ptr() == place
