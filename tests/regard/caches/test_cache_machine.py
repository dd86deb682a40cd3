"""Every kind of cache in every dtype is a list of entries, whatever is appended, cropped, reordered or refused."""

import tempfile
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import regard as rg
from regard.core.tensors import Stored
from regard.layers.caches import load_cache, new_cache, paged
from regard.layers.caches.rounding import DTYPES

KV_HEADS = 2
HEAD_DIM = 3
V_DIM = 5


def off_by(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How far a number kept in a dtype may be from x (.., dim): the bound that `Cache` states."""
    if dtype == torch.int8:
        largest = x.abs().amax(-1, keepdim=True)
        return (largest / 254 + largest * 2**-24).expand(x.shape)
    return {
        torch.bfloat16: x.abs() / 256,
        torch.float16: (x.abs() / 2048).clamp_min(2**-25),
    }.get(dtype, torch.zeros_like(x))


def wide(x: torch.Tensor | Stored) -> torch.Tensor:
    """The entries held, in float64."""
    return x.widened(torch.float64) if isinstance(x, Stored) else x.double()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


class CacheIsAList(RuleBasedStateMachine):
    """The model: for each batch row a list of all (key, value) so far; of them those from `first` on are held, and not
    those at the positions in `gone`."""

    kind = "dynamic"
    dtype = "float32"
    unlimited = False
    joined = False

    @initialize(capacity=st.integers(1, 9))
    def start(self, capacity):
        self.capacity = None if self.kind == "dynamic" or self.unlimited else capacity
        options = {} if self.capacity is None else {"capacity": capacity}
        options |= {"v_dim": V_DIM - 3, "joined": True} if self.joined else {"v_dim": V_DIM}
        self.cache = new_cache(self.kind, 2, KV_HEADS, HEAD_DIM, dtype=self.dtype, **options)
        self.rows: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[], []]
        self.first = 0
        self.gone: frozenset[int] = frozenset()
        self.appended = 0
        self.forks: list[tuple[Any, list[Any], frozenset[int]]] = []

    def fresh(self, added: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.appended)
        self.appended += 1
        given = torch.float64 if self.dtype == "float64" else torch.float32
        sizes = (
            (len(self.rows), KV_HEADS, added, HEAD_DIM),
            (len(self.rows), KV_HEADS, added, V_DIM),
        )
        k, v = (
            torch.randn(size, generator=generator, dtype=torch.float64).to(given) for size in sizes
        )
        return k, v

    def added(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        """Append them; a joined cache takes the values in the keys."""
        return self.cache.append(k) if self.joined else self.cache.append(k, v)

    @property
    def left(self) -> int:
        held = len(self.rows[0]) - len(self.gone)
        return self.capacity - held if self.kind in ("static", "paged") and self.capacity else 20

    @rule(added=st.integers(0, 20), recorded=st.booleans(), grad=st.booleans())
    def append(self, added, recorded, grad):
        added = min(added, self.left)
        k, v = (x.requires_grad_(recorded and self.dtype != "int8") for x in self.fresh(added))
        with torch.set_grad_enabled(grad):
            keys, values = self.added(k, v)
        for row, entries in enumerate(self.rows):
            entries += [
                (k[row, :, at].detach().clone(), v[row, :, at].detach().clone())
                for at in range(added)
            ]
        self.holds(keys, values, self.first)
        assert isinstance(keys, torch.Tensor) == (
            not self.first and not self.gone and keys.dtype == k.dtype
        )
        if self.kind == "ring":
            self.first = max(self.first, len(self.rows[0]) - self.capacity)

    @precondition(lambda self: self.left < 20)
    @rule(more=st.integers(1, 3))
    def one_more_than_the_capacity_is_refused(self, more):
        with pytest.raises(rg.ArgumentError, match="would not fit"):
            self.added(*self.fresh(self.left + more))

    @rule(data=st.data(), grad=st.booleans())
    def crop(self, data, grad):
        length = data.draw(st.integers(0, len(self.rows[0])))
        if 0 < length <= self.first:
            with pytest.raises(rg.ArgumentError, match="were dropped"):
                self.cache.crop(length)
            return
        with torch.set_grad_enabled(grad):
            self.cache.crop(length)
        self.rows = [entries[:length] for entries in self.rows]
        self.first = self.first if length else 0
        self.gone = frozenset(at for at in self.gone if at < length)

    @precondition(lambda self: self.kind != "ring")
    @rule(data=st.data(), after=st.booleans(), grad=st.booleans())
    def keep(self, data, after, grad):
        length = len(self.rows[0])
        start = data.draw(st.integers(0, length)) if after else 0
        held = [at for at in range(start, length) if at not in self.gone]
        chosen = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        with torch.set_grad_enabled(grad):
            self.cache.keep(torch.tensor(chosen, dtype=torch.int64), after=start if after else None)
        if after:
            self.rows = [row[:start] + [row[at] for at in sorted(chosen)] for row in self.rows]
            self.gone = frozenset(at for at in self.gone if at < start)
        else:
            self.gone = frozenset(range(length)) - frozenset(chosen)
        if self.gone and self.cache.entries:
            with pytest.raises(rg.ArgumentError, match="is not held"):
                self.cache.keep(torch.tensor([min(self.gone)]))

    @rule(data=st.data(), grad=st.booleans())
    def reorder(self, data, grad):
        index = data.draw(st.lists(st.integers(0, len(self.rows) - 1), min_size=1, max_size=4))
        with torch.set_grad_enabled(grad):
            self.cache.reorder(torch.tensor(index))
        self.rows = [list(self.rows[row]) for row in index]

    @precondition(lambda self: self.kind == "paged" and len(self.forks) < 3)
    @rule()
    def fork(self):
        self.forks.append((self.cache, [list(entries) for entries in self.rows], self.gone))
        self.cache = self.cache.fork()

    @precondition(lambda self: self.forks)
    @rule(at=st.integers(0, 2))
    def continue_with_a_fork(self, at):
        at %= len(self.forks)
        now = self.cache, self.rows, self.gone
        self.forks[at], (self.cache, self.rows, self.gone) = now, self.forks[at]

    @invariant()
    def forks_do_not_change(self):
        now = self.cache, self.rows, self.gone
        for fork in self.forks:
            self.cache, self.rows, self.gone = fork
            self.holds(self.cache.keys, self.cache.values, 0)
        self.cache, self.rows, self.gone = now

    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            self.cache.save(f"{folder}/cache.safetensors")
            loaded = load_cache(f"{folder}/cache.safetensors")
        assert repr(loaded) == repr(self.cache)
        self.cache = loaded

    @rule(added=st.integers(0, 20))
    def what_is_refused_later_is_forgotten(self, added):
        with suppress(KeyboardInterrupt), self.cache.unless_refused():
            self.added(*self.fresh(min(added, self.left)))
            raise KeyboardInterrupt

    @rule(
        wrong=st.sampled_from(
            ["rank", "heads", "dim", "integers", "pairs", "crop", "crop below", "reorder", "keep"]
        )
    )
    def refuse(self, wrong):
        k, v = self.fresh(2)
        calls = {
            "rank": lambda: self.cache.append(k[0], v),
            "heads": lambda: self.cache.append(k[:, :1], v[:, :1]),
            "dim": lambda: self.cache.append(k, v[..., :4]),
            "integers": lambda: self.cache.append(k.int(), v.int()),
            "pairs": lambda: self.cache.append(k, v[:, :, :1]),
            "crop": lambda: self.cache.crop(self.cache.length + 1),
            "crop below": lambda: self.cache.crop(-1),
            "reorder": lambda: self.cache.reorder(torch.tensor([len(self.rows)])),
            "keep": lambda: self.cache.keep(torch.tensor([self.cache.length])),
        }
        with pytest.raises(rg.RegardError):
            calls[wrong]()

    @invariant()
    def holds_what_the_list_holds(self):
        assert self.cache.batch == len(self.rows)
        assert self.cache.length == len(self.rows[0])
        self.holds(self.cache.keys, self.cache.values, self.first)

    def holds(self, keys, values, first):
        length = len(self.rows[0])
        assert keys.shape == (len(self.rows), KV_HEADS, length, HEAD_DIM)
        assert (keys.first if isinstance(keys, Stored) else 0) == first + len(self.gone)
        places = [at for at in range(first, length) if at not in self.gone]
        assert not isinstance(keys, Stored) or keys.positions[0, 0].tolist() == places
        assert values.shape[-1] == (V_DIM - 3 if self.joined else V_DIM)
        self.check_numbers(wide(keys), places, 0)
        # Values that lie in the keys are rounded with them.
        self.check_numbers(wide(values), places, 0 if self.joined else 1)

    def check_numbers(self, held, places, part):
        """Whether the entries at these places are those of the list, the keys (part 0) or the values (part 1)."""
        if not held.numel():
            return
        of_rows = []
        for row in self.rows:
            of_rows.append(torch.stack([row[place][part] for place in places], 1))
        exact = torch.stack(of_rows)
        size = held.shape[-1]
        bound = off_by(exact.double(), DTYPES[self.dtype])
        assert ((held - exact[..., :size]).abs() <= bound[..., :size]).all()


DTYPES_BY_KIND = {
    "dynamic": ("float32", "bfloat16", "int8"),
    "static": ("float64", "float16"),
    "ring": ("float32", "int8"),
    "paged": ("float32", "int8"),
    "unlimited": ("float64",),
    "joined dynamic": ("float32", "int8"),
    "joined static": ("bfloat16",),
    "joined ring": ("int8",),
    "joined paged": ("float32", "int8"),
}


def machine_of(name: str, dtype: str) -> type:
    """The machine of a row of the table."""
    attributes = {"kind": name.split()[-1], "joined": name.startswith("joined"), "dtype": dtype}
    if name == "unlimited":
        attributes |= {"kind": "paged", "unlimited": True}
    machine = type(f"{name}_{dtype}".replace(" ", "_"), (CacheIsAList,), attributes)
    machine.TestCase.settings = settings(max_examples=15, stateful_step_count=25)
    return machine


for _name, _dtypes in DTYPES_BY_KIND.items():
    for _dtype in _dtypes:
        _machine = machine_of(_name, _dtype)
        globals()[f"Test_{_machine.__name__}"] = _machine.TestCase
del _machine
