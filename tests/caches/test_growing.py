"""The growing cache is a list of entries, whatever is appended, cropped and reordered."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import regard as rg
from regard.caches import GrowingCache

KV_HEADS, HEAD_DIM, V_DIM = 2, 3, 5


class CacheIsAList(RuleBasedStateMachine):
    """The model: for each batch row a list of (key, value)."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = GrowingCache(2, KV_HEADS, HEAD_DIM, V_DIM, dtype=torch.float64)
        self.rows: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[], []]
        self.appended = 0

    def fresh(self, added: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.appended)
        self.appended += 1
        sizes = ((len(self.rows), KV_HEADS, added, HEAD_DIM), (len(self.rows), KV_HEADS, added, V_DIM))
        k, v = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
        return k, v

    @rule(added=st.integers(0, 9), recorded=st.booleans(), grad=st.booleans())
    def append(self, added, recorded, grad):
        k, v = (x.requires_grad_(recorded) for x in self.fresh(added))
        with torch.set_grad_enabled(grad):
            keys, values = self.cache.append(k, v)
        for row, entries in enumerate(self.rows):
            entries += [(k[row, :, at].detach().clone(), v[row, :, at].detach().clone()) for at in range(added)]
        assert torch.equal(keys, self.cache.keys)
        assert torch.equal(values, self.cache.values)

    @precondition(lambda self: self.rows)
    @rule(share=st.floats(0, 1))
    def crop(self, share):
        length = int(share * len(self.rows[0]))
        self.cache.crop(length)
        self.rows = [entries[:length] for entries in self.rows]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def reorder(self, data):
        index = data.draw(st.lists(st.integers(0, len(self.rows) - 1), min_size=1, max_size=4))
        self.cache.reorder(torch.tensor(index))
        self.rows = [list(self.rows[row]) for row in index]

    @rule(wrong=st.sampled_from(["rank", "heads", "dim", "dtype", "pairs", "crop", "crop below", "reorder"]))
    def refuse(self, wrong):
        k, v = self.fresh(2)
        calls = {
            "rank": lambda: self.cache.append(k[0], v),
            "heads": lambda: self.cache.append(k[:, :1], v[:, :1]),
            "dim": lambda: self.cache.append(k, v[..., :4]),
            "dtype": lambda: self.cache.append(k.float(), v.float()),
            "pairs": lambda: self.cache.append(k, v[:, :, :1]),
            "crop": lambda: self.cache.crop(self.cache.length + 1),
            "crop below": lambda: self.cache.crop(-1),
            "reorder": lambda: self.cache.reorder(torch.tensor([len(self.rows)])),
        }
        with pytest.raises(rg.RegardError):
            calls[wrong]()

    @invariant()
    def holds_what_the_list_holds(self):
        assert self.cache.batch == len(self.rows)
        assert self.cache.length == len(self.rows[0])
        assert self.cache.keys.shape == (len(self.rows), KV_HEADS, len(self.rows[0]), HEAD_DIM)
        for row, entries in enumerate(self.rows):
            for at, (key, value) in enumerate(entries):
                assert torch.equal(self.cache.keys[row, :, at], key)
                assert torch.equal(self.cache.values[row, :, at], value)


CacheIsAList.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestCacheIsAList = CacheIsAList.TestCase


def test_room_doubles_so_that_appending_copies_little():
    cache = GrowingCache(1, 1, 4)
    places = set()
    for _ in range(1000):
        cache.append(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
        places.add(cache.keys.untyped_storage().data_ptr())
    assert len(places) <= 8  # 16, 32, ... 1024
    assert cache.nbytes == 2 * 1024 * 4 * 4


def test_gradients_reach_every_chunk_that_was_appended():
    chunks = [torch.randn(1, 2, n, 4, requires_grad=True) for n in (3, 1, 2)]
    cache = GrowingCache(1, 2, 4)
    for chunk in chunks:
        keys, values = cache.append(chunk, chunk * 2)
    (keys.sum() + values.sum()).backward()
    assert all((chunk.grad == 3).all() for chunk in chunks)


def test_a_refusal_says_what_the_cache_takes():
    cache = GrowingCache(1, 2, 4)
    with pytest.raises(rg.ShapeError, match=r"k \(1, 3, 1, 4\) .* takes \(1, 2, 'added', 4\)"):
        cache.append(torch.zeros(1, 3, 1, 4), torch.zeros(1, 3, 1, 4))
    with pytest.raises(rg.ArgumentError, match=r"crop\(1\): this cache holds 0 entries"):
        cache.crop(1)
