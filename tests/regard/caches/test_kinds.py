"""What each kind of cache promises besides being a list."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import regard as rg
from regard.core.tensors import Stored
from regard.layers.caches import GrowingCache, RingCache, StaticCache, new_cache


def ones(added: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(1, 1, added, 4), torch.ones(1, 1, added, 4)


class TestGrowing:
    def test_room_doubles_so_that_appending_copies_little(self):
        cache = GrowingCache(1, 1, 4)
        places = set()
        for _ in range(1000):
            cache.append(*ones(1))
            places.add(cache.keys.untyped_storage().data_ptr())
        assert len(places) <= 8  # 16, 32, ... 1024
        assert cache.nbytes == 2 * 1024 * 4 * 4

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
    def test_a_new_one_holds_no_memory(self, dtype):
        assert GrowingCache(3, 2, 4, dtype=dtype).nbytes == 0

    @pytest.mark.parametrize(("kind", "options"), [("dynamic", {}), ("static", {"capacity": 6})])
    def test_what_autograd_remembers_is_not_written_over_after_a_crop(self, kind, options):
        x = torch.randn(1, 1, 3, 4, requires_grad=True)
        cache = new_cache(kind, 1, 1, 4, **options)
        keys, _ = cache.append(x, x * 2)
        loss = keys.square().sum()  # whose gradient needs these keys
        cache.crop(1)
        with torch.no_grad():
            cache.append(*ones(2))
        loss.backward()
        assert torch.equal(x.grad, 2 * x)

    def test_a_cache_made_for_inference_goes_on_outside_of_it(self):
        cache = GrowingCache(1, 1, 4)
        with torch.inference_mode():
            cache.append(*ones(3))
        keys, _ = cache.append(*ones(1))
        assert (keys == 1).all()


class TestStatic:
    def test_entries_never_move(self):
        cache = StaticCache(1, 1, 4, capacity=40)
        places = {cache.append(*ones(1))[0].untyped_storage().data_ptr() for _ in range(40)}
        assert len(places) == 1


class TestRing:
    def test_it_moves_seldom_and_never_grows(self):
        cache = RingCache(1, 1, 4, capacity=100)
        before, places = cache.nbytes, []
        for _ in range(1000):
            cache.append(*ones(1))
            places.append(cache.keys.numbers.untyped_storage().data_ptr() if cache.length > 100 else 0)
        moves = sum(one != other for one, other in pairwise(places))
        assert moves <= 1000 // 25 + 1
        assert cache.nbytes == before == 2 * 125 * 4 * 4

    def test_a_long_chunk_is_seen_whole_and_leaves_no_large_room_behind(self):
        cache = RingCache(1, 1, 4, capacity=10)
        before = cache.nbytes
        cache.append(*ones(4))
        keys, _ = cache.append(*ones(1000))
        assert keys.shape[2] == 1004
        assert isinstance(keys, torch.Tensor)  # nothing was dropped yet
        assert cache.keys.first == 994
        assert cache.nbytes == before

    def test_gradients_reach_the_entries_that_are_held(self):
        chunk = torch.randn(1, 1, 5, 4, requires_grad=True)
        cache = RingCache(1, 1, 4, capacity=2)
        cache.append(chunk, chunk)
        keys, _ = cache.append(chunk, chunk)
        assert keys.requires_grad
        keys.widened(torch.float32).sum().backward()
        assert chunk.grad[0, 0, :, 0].tolist() == [1, 1, 1, 2, 2]

    def test_a_crop_keeps_the_first_entries_or_says_that_they_are_gone(self):
        cache = RingCache(1, 1, 4, capacity=4)
        cache.append(*ones(7))
        with pytest.raises(
            rg.ArgumentError, match=r"crop\(3\): .* holds entries 3 to 6, and the first 3 were dropped; give 4 to 7"
        ):
            cache.crop(3)
        assert cache.length == 7
        cache.crop(4)
        assert (cache.length, cache.keys.first) == (4, 3)


class TestNumbers:
    def test_a_wider_number_is_not_rounded_unasked(self):
        with pytest.raises(rg.ShapeError, match=r"would round it; make the cache with dtype=torch\.float64"):
            GrowingCache(1, 1, 4).append(torch.zeros(1, 1, 1, 4).double(), torch.zeros(1, 1, 1, 4).double())

    def test_a_narrower_number_is_kept_as_it_is(self):
        cache = GrowingCache(1, 1, 4)
        keys, _ = cache.append(*(x.bfloat16() for x in ones(2)))
        assert isinstance(keys, Stored)
        assert keys.dtype == torch.float32

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
    def test_a_number_out_of_reach_is_refused_and_nothing_is_kept(self, dtype):
        cache = GrowingCache(1, 1, 4, dtype=dtype)
        huge = torch.full((1, 1, 1, 4), 1e300, dtype=torch.float64)
        with pytest.raises(rg.ArgumentError, match=r"v reaches 1e\+300, too large"):
            cache.append(torch.zeros_like(huge), huge)
        assert cache.length == 0

    def test_a_vector_of_zeros_stays_zero_in_int8(self):
        keys, _ = GrowingCache(1, 1, 4, dtype="int8").append(*(0 * x for x in ones(1)))
        assert (keys.widened(torch.float32) == 0).all()  # nothing was divided by 0

    @pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
    def test_what_is_not_finite_stays_so(self, dtype):
        cache = GrowingCache(1, 1, 4, dtype=dtype)
        k = torch.tensor([[1.0, torch.nan, 2.0, 3.0], [1.0, torch.inf, 2.0, 3.0]])[None, None]
        keys, _ = cache.append(k, k)
        assert not keys.widened(torch.float32)[..., 1].isfinite().any()

    def test_int8_has_no_gradient_and_says_so(self):
        x = torch.ones(1, 1, 1, 4, requires_grad=True)
        cache = GrowingCache(1, 1, 4, dtype="int8")
        with pytest.raises(rg.UnsupportedError, match="rounding to int8 has none"):
            cache.append(x, x)
        with torch.no_grad():
            cache.append(x, x)
        assert cache.length == 1

    @pytest.mark.parametrize(("dtype", "size"), [("float32", 64 * 4), ("bfloat16", 64 * 2), ("int8", 64 + 4)])
    def test_an_entry_takes_the_bytes_of_its_dtype(self, dtype, size):
        assert StaticCache(3, 2, 64, dtype=dtype, capacity=10).nbytes == 2 * 3 * 2 * 10 * size


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("paper", {}, "there are dynamic, static, ring"),
        ("dynamic", {"capacity": 3}, "a dynamic cache has no capacity"),
        ("static", {}, "a static cache needs a capacity; give capacity=, 1 or more"),
        ("ring", {"capacity": 0}, "capacity is 0; it needs a whole number, 1 or more"),
        ("ring", {"capacity": True}, "capacity is True"),
        ("dynamic", {"dtype": "int4"}, "dtype='int4': a cache stores float64"),
        ("dynamic", {"dtype": torch.bool}, r"dtype=torch\.bool"),
        ("dynamic", {"v_dim": -1}, "v_dim is -1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(kind, options, words):
    with pytest.raises(rg.ArgumentError, match=words):
        new_cache(kind, 1, 2, 4, **options)
