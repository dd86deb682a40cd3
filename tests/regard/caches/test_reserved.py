"""A slot that other code writes: nobody else gets it, and a cache holds it only once it is told so."""

import copy
from typing import Any

import pytest
import torch

from regard.layers.caches import new_cache

SIZES = {"batch": 2, "kv_heads": 3, "head_dim": 5, "v_dim": 7}


def filled(kind: str, length: int = 6, **options: Any) -> Any:
    cache = new_cache(kind, **SIZES, **options)
    with torch.no_grad():
        cache.append(torch.randn(2, 3, length, 5), torch.randn(2, 3, length, 7))
    return cache


def write(cache: Any) -> Any:
    """Reserve a slot and write ones there."""
    reserved = cache.reserve()
    assert reserved is not None
    for name in ("k", "v"):
        reserved.planes[name][:, :, reserved.stop - 1] = 1
    return reserved


def keys_of(cache: Any) -> torch.Tensor:
    keys = cache.keys
    return keys if isinstance(keys, torch.Tensor) else keys.numbers


@pytest.mark.parametrize(
    ("kind", "options"), [("dynamic", {}), ("static", {"capacity": 30}), ("ring", {"capacity": 8})]
)
@torch.no_grad()
def test_written_slots_are_entries_as_appended_ones_are(kind: str, options: dict[str, Any]) -> None:
    cache, other = filled(kind, **options), None
    other = copy.deepcopy(cache)
    for number in range(20):
        if number % 3:
            cache.hold(write(cache))
        else:
            cache.append(torch.ones(2, 3, 1, 5), torch.ones(2, 3, 1, 7))
        other.append(torch.ones(2, 3, 1, 5), torch.ones(2, 3, 1, 7))
        assert torch.equal(keys_of(cache), keys_of(other))
        assert cache.length == other.length == 7 + number
        assert torch.equal(cache.positions, other.positions)
        assert cache.nbytes == other.nbytes


@torch.no_grad()
def test_a_slot_that_is_not_held_changes_nothing() -> None:
    cache = filled("dynamic")
    before = cache.keys.clone()
    write(cache)
    assert cache.length == 6
    assert torch.equal(cache.keys, before)
    keys, _ = cache.append(torch.zeros(2, 3, 1, 5), torch.zeros(2, 3, 1, 7))
    assert torch.equal(keys[:, :, :6], before)
    assert not keys[:, :, 6].any()


@torch.no_grad()
def test_copies_never_share_a_slot() -> None:
    cache = filled("dynamic")
    other = copy.copy(cache)
    first, second = write(cache), other.reserve()
    assert second.planes["k"].data_ptr() != first.planes["k"].data_ptr()
    for name in ("k", "v"):
        second.planes[name][:, :, 6] = 2
    cache.hold(first)
    other.hold(second)
    assert (cache.keys[:, :, 6] == 1).all()
    assert (other.keys[:, :, 6] == 2).all()
    assert torch.equal(cache.keys[:, :, :6], other.keys[:, :, :6])


@torch.no_grad()
def test_entries_that_are_stored_in_another_way_are_not_reserved() -> None:
    assert filled("paged").reserve() is None
    assert filled("dynamic", dtype="int8").reserve() is None
    assert filled("ring", capacity=8, first_entries=2).reserve() is None
    cache = filled("dynamic")
    cache.keep(torch.tensor([0, 3, 5]))
    assert cache.reserve() is None
    with torch.enable_grad():
        assert filled("dynamic").reserve() is None


@torch.no_grad()
def test_a_full_cache_refuses_one_more() -> None:
    cache = filled("static", capacity=6)
    with pytest.raises(ValueError, match="capacity"):
        cache.reserve()


@pytest.mark.parametrize(
    ("kind", "options"), [("dynamic", {}), ("static", {"capacity": 90}), ("ring", {"capacity": 8})]
)
@torch.no_grad()
def test_several_slots_are_as_many_as_there_is_memory_for_and_those_left_are_free(
    kind: str, options: dict[str, Any]
) -> None:
    cache = filled(kind, **options)
    other = copy.deepcopy(cache)
    for most, left in ((1, 0), (3, 1), (50, 0), (5, 4), (2, 2), (7, 3)):
        before, length = cache.entries, cache.length
        reserved = cache.reserve(most)
        assert reserved is not None
        added = reserved.entries - before
        assert 1 <= added <= most
        assert added == most or reserved.stop == reserved.room
        left = min(left, added)
        for name in ("k", "v"):
            reserved.planes[name][:, :, reserved.stop - added :] = 1
        cache.hold(reserved, left)
        kept = added - left
        if kept:
            other.append(torch.ones(2, 3, kept, 5), torch.ones(2, 3, kept, 7))
        assert cache.length == other.length == length + kept
        assert torch.equal(keys_of(cache), keys_of(other))
        memory = cache._held.planes["k"].data_ptr()
        if left and cache._held.stop < cache._held.room:
            cache.hold(write(cache))
            other.append(torch.ones(2, 3, 1, 5), torch.ones(2, 3, 1, 7))
            assert cache._held.planes["k"].data_ptr() == memory


@torch.no_grad()
def test_slots_that_another_cache_claimed_in_between_stay_claimed() -> None:
    cache = filled("dynamic")
    other = copy.copy(cache)  # its entries may not be written over
    reserved = cache.reserve(3)
    assert reserved is not None
    reserved.free_slots.note(reserved.stop + 2)  # as another one with these entries does
    cache.hold(reserved, 3)
    assert write(cache).planes["k"].data_ptr() != reserved.planes["k"].data_ptr()
    assert other.length == 6
