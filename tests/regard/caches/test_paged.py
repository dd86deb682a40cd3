"""A paged cache shares pages between batch rows and forks, and copies no entry to do so."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard.layers.caches import PagedCache, new_cache, paged

HEADS, DIM = 2, 4


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


def entries(batch: int, added: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, HEADS, added, DIM), torch.randn(batch, HEADS, added, DIM)


def filled(batch: int, length: int, **options) -> PagedCache:
    cache = PagedCache(batch, HEADS, DIM, **options)
    cache.append(*entries(batch, length))
    return cache


def test_reorder_and_fork_take_no_page_and_write_no_memory():
    cache = filled(2, 10)
    planes, before = cache._pool.planes, {name: plane.clone() for name, plane in cache._pool.planes.items()}
    cache.reorder(torch.tensor([1, 1, 0, 1, 1]))
    forks = [cache.fork() for _ in range(9)]
    assert cache.pages == 6  # ten entries in pages of four, of two texts
    assert all(fork._pool is cache._pool and fork.length == 10 for fork in forks)
    assert all(planes[name] is cache._pool.planes[name] for name in before)
    assert all(torch.equal(planes[name].view(torch.int32), before[name].view(torch.int32)) for name in before)


def test_a_row_that_continues_copies_the_begun_page_and_no_other():
    cache = filled(1, 10)
    cache.reorder(torch.tensor([0, 0, 0]))
    cache.append(*entries(3, 1))
    tables = [[page.index for page in row] for row in cache._table.rows]
    assert len({table[-1] for table in tables}) == 3
    assert len({tuple(table[:-1]) for table in tables}) == 1
    assert cache.pages == 5


def test_pages_that_no_row_names_are_used_again():
    cache = filled(4, 16)
    room = cache._pool.pages
    for _ in range(20):
        cache.reorder(torch.tensor([3, 3, 3, 3]))
        cache.crop(3)
        cache.append(*entries(4, 13))
    assert cache._pool.pages <= 2 * room
    del cache
    beams = filled(1, 16)
    beams.reorder(torch.zeros(8, dtype=torch.int64))
    growing = new_cache("dynamic", 1, HEADS, DIM)
    growing.append(*entries(1, 16))
    growing.reorder(torch.zeros(8, dtype=torch.int64))
    assert beams.nbytes * 8 == growing.nbytes


def test_one_row_is_read_in_place_and_several_are_gathered():
    with torch.no_grad():
        cache = filled(1, 10)
        plane = cache._pool.planes["k"]
        assert cache.keys.untyped_storage().data_ptr() == plane.untyped_storage().data_ptr()
        assert filled(2, 10).keys.shape == (2, HEADS, 10, DIM)
    first = cache.keys.untyped_storage().data_ptr()
    assert first != plane.untyped_storage().data_ptr(), "autograd may keep what it is given"


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, "int8"])
def test_a_layer_continues_beams_as_with_a_growing_cache(dtype):
    layer = rg.MultiHeadAttention(dim=16, heads=4, kv_heads=2, pattern="causal").eval()
    index = torch.tensor([2, 0, 0, 1, 2])
    outputs = []
    with torch.no_grad():
        for kind in ("dynamic", "paged"):
            generator, cache = torch.Generator().manual_seed(0), layer.new_cache(3, kind, dtype=dtype)
            found = [layer(torch.randn(3, 11, 16, generator=generator), cache=cache)]
            for step in range(6):
                cache.reorder(index if step == 0 else torch.tensor([4, 3, 2, 2, step % 5]))
                found.append(layer(torch.randn(5, 1, 16, generator=generator), cache=cache))
                if step == 3:
                    cache.crop(12)
            outputs.append(found)
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_pool_made_in_inference_mode_is_continued_outside_of_it():
    with torch.inference_mode():
        cache = filled(1, 6)
    with torch.no_grad():
        before = cache.keys.clone()
        cache.append(*entries(1, 2))
        assert torch.equal(cache.keys[:, :, :6], before)
