"""What each kind of cache promises besides being a list."""

import copy
from itertools import pairwise

import pytest
import torch

import regard as rg
from regard.core.tensors import Stored
from regard.layers.caches import GrowingCache, PagedCache, RingCache, StaticCache, new_cache, paged


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

    def test_room_does_not_grow_where_a_copy_owns_the_free_slots(self):
        with torch.no_grad():
            cache = GrowingCache(1, 1, 4)
            cache.append(*ones(7))
            for _ in range(13):
                before = copy.copy(cache)
                cache.append(*ones(3))
                cache.crop(7)
                assert before.length == 7
        assert cache.nbytes <= 2 * 20 * 4 * 4  # room for twice the 10 entries

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

    @pytest.mark.parametrize("kind", ["dynamic", "paged"])
    @pytest.mark.parametrize("recording", [True, False])
    def test_a_cache_made_for_inference_goes_on_outside_of_it(self, kind, recording):
        cache = new_cache(kind, 1, 1, 4)
        with torch.inference_mode():
            cache.append(*ones(3))
        with torch.set_grad_enabled(recording):
            keys, _ = cache.append(*ones(1))
        assert (keys == 1).all()


class TestRing:
    def test_its_room_is_fixed_and_it_moves_seldom(self):
        cache = RingCache(1, 1, 4, capacity=100)
        before = cache.nbytes
        places = []
        for _ in range(1000):
            cache.append(*ones(1))
            places.append(
                cache.keys.numbers.untyped_storage().data_ptr() if cache.length > 100 else 0
            )
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
            rg.ArgumentError,
            match=r"crop\(3\): .* holds entries 3 to 6, and the first 3 were dropped; give 4 to 7",
        ):
            cache.crop(3)
        assert cache.length == 7
        cache.crop(4)
        assert (cache.length, cache.keys.first) == (4, 3)


class TestNumbers:
    def test_a_wider_number_is_not_rounded_unasked(self):
        with pytest.raises(
            rg.ShapeError, match=r"would round it; make the cache with dtype=torch\.float64"
        ):
            GrowingCache(1, 1, 4).append(
                torch.zeros(1, 1, 1, 4).double(), torch.zeros(1, 1, 1, 4).double()
            )

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

    @pytest.mark.parametrize(
        ("dtype", "size"), [("float32", 64 * 4), ("bfloat16", 64 * 2), ("int8", 64 + 4)]
    )
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


# A paged cache shares pages between batch rows and forks, and copies no entry to do so


HEADS = 2
DIM = 4


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
    planes = cache._pool.planes
    before = {name: plane.clone() for name, plane in planes.items()}
    cache.reorder(torch.tensor([1, 1, 0, 1, 1]))
    forks = [cache.fork() for _ in range(9)]
    assert cache.pages == 6  # ten entries in pages of four, of two texts
    assert all(fork._pool is cache._pool and fork.length == 10 for fork in forks)
    for name, plane in planes.items():
        assert cache._pool.planes[name] is plane
        assert torch.equal(plane.view(torch.int32), before[name].view(torch.int32))


def recorded_pages() -> PagedCache:
    """Two rows of 5 entries, which autograd records."""
    cache = PagedCache(2, 1, 4)
    cache.append(torch.randn(2, 1, 5, 4, requires_grad=True), torch.randn(2, 1, 5, 4))
    return cache


@pytest.mark.parametrize("kept", [[], [4]])
def test_recorded_pages_that_hold_nothing_after_a_crop_count_its_positions(kept):
    cache = recorded_pages()
    cache.keep(torch.tensor(kept, dtype=torch.int64))
    cache.crop(3)
    assert (cache.length, cache.entries) == (3, 0)
    _, values = cache.append(torch.ones(2, 1, 2, 4), torch.ones(2, 1, 2, 4))
    assert values.positions.tolist() == [[[3, 4]]]
    cache.crop(0)
    assert cache.length == 0


def test_recorded_pages_hold_their_entries_after_a_reorder_without_gradients():
    cache = recorded_pages()
    before = cache.keys.detach().clone()
    with torch.no_grad():
        cache.reorder(torch.tensor([1, 1, 0]))
    assert (cache.batch, cache.length) == (3, 5)
    assert torch.equal(cache.keys, before[[1, 1, 0]])


def test_a_row_that_continues_copies_the_begun_page_and_no_other():
    cache = filled(1, 10)
    cache.reorder(torch.tensor([0, 0, 0]))
    cache.append(*entries(3, 1))
    rows = cache._table.rows
    assert len({row[-1].index for row in rows}) == 3
    first, second, third = (row[:-1] for row in rows)
    assert first == second == third
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


@pytest.mark.parametrize("sizes", [{"v_dim": 0}, {"v_dim": 3, "head_dim": 0}])
def test_an_int8_cache_takes_vectors_without_numbers(sizes):
    sizes = {"head_dim": 5, **sizes}
    cache = new_cache("dynamic", 1, HEADS, **sizes, dtype="int8")
    k, v = (torch.ones(1, HEADS, 3, sizes[name]) for name in ("head_dim", "v_dim"))
    keys, values = cache.append(k, v)
    assert (keys.shape, values.shape) == (k.shape, v.shape)
    assert torch.equal(keys.widened(torch.float32), k)
    assert torch.equal(values.widened(torch.float32), v)


@pytest.mark.parametrize("kind", ["static", "ring"])
def test_a_capacity_for_which_there_is_no_memory_is_refused(kind):
    with pytest.raises(rg.ArgumentError, match="cannot be allocated on cpu; give a smaller"):
        new_cache(kind, 1, HEADS, 5, capacity=2**61)
