"""After an exception at any line a cache is as before the call or as after it, and can be continued."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from injections import (
    Line,
    disturbed,
    instructions_of,
    interrupted,
    lines_of,
)

import regard as rg
from regard.core.tensors import Stored
from regard.layers.caches import RecurrentState, new_cache, paged
from regard.mechanisms import LinearTransformer

BATCH = 3
KV_HEADS = 2
HEAD_DIM = 5
V_DIM = 7
PAST = 7
ADDED = 2
LENGTH = 13
KINDS = ("dynamic", "static", "ring", "paged")
MOST = 30  # lines outside of the layers
ERRORS: tuple[type[BaseException], ...] = (KeyboardInterrupt, MemoryError)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


def empty(kind: str, dtype: torch.dtype | str, layer: rg.MultiHeadAttention | None = None) -> Any:
    options: dict[str, Any] = {"capacity": 17} if kind in ("static", "ring") else {}
    if layer is not None:
        return layer.new_cache(BATCH, kind, dtype=dtype, **options)
    return new_cache(kind, BATCH, KV_HEADS, HEAD_DIM, v_dim=V_DIM, dtype=dtype, **options)


def some_of(run: Callable[[], Any]) -> Iterator[Line]:
    """Every line of layers and caches that `run()` executes, and some of the others.

    Of a line that is executed many times, as in a loop over pages: the first two times and the last.
    """
    lines = lines_of(run)
    inside = [line for line in lines if "layers" in line[0]]
    outside = [line for line in lines if "layers" not in line[0]]
    times = Counter((file, number) for file, number, _ in inside)
    for file, number, before in inside:
        if before < 2 or before == times[file, number] - 1:
            yield file, number, before
    yield from outside[:: max(1, len(outside) // MOST)]


@pytest.mark.each_value(apart=True, pairs=[("kind", "dtype")])
@pytest.mark.parametrize(
    ("kind", "dtype", "recorded"),
    [
        *product((*KINDS, "state"), ("float64",), (False,)),
        *product(("dynamic", "paged", "state"), ("float64",), (True,)),
        *product(("ring", "paged"), ("int8",), (False,)),
        ("latents", "float64", False),
    ],
)
def test_a_layer_that_is_stopped_at_any_line_can_continue_its_text(
    kind: str, dtype: str, recorded: bool
) -> None:
    torch.manual_seed(3)
    mechanism = "linear_transformer" if kind == "state" else None
    options = {"mechanism": mechanism, "forgetting": kind in ("dynamic", "paged")}
    layer = rg.MultiHeadAttention(28, 4, kv_heads=2, pattern="causal", **options).double()
    if kind == "latents":
        kind = "paged"
        sizes = {"latent_dim": 9, "rope_dim": 4, "head_dim": 5}
        layer = rg.LatentAttention(28, 4, pattern="causal", **sizes).double()
    x = torch.randn(BATCH, LENGTH, 28, dtype=torch.float64)
    bound = 0.1 if dtype == "int8" else 1e-12
    with torch.set_grad_enabled(recorded):
        whole = layer(x).detach()

        def cache_with(length: int) -> Any:
            cache = layer.new_cache(BATCH) if kind == "state" else empty(kind, dtype, layer)
            layer(x[:, :length], cache=cache)
            return cache

        with_past = cache_with(PAST)

        def make() -> Any:
            # PyTorch copies no tensor that autograd recorded.
            return cache_with(PAST) if recorded else copy.deepcopy(with_past)

        def go_on(cache: Any) -> Callable[[], torch.Tensor]:
            return lambda: layer(x[:, PAST : PAST + ADDED], cache=cache)

        go_on(make())()
        lengths = set()
        stopped = []
        for number, line in enumerate(some_of(go_on(make()))):
            cache = make()
            stopped.append(interrupted(go_on(cache), line, ERRORS[number % 2]))
            assert cache.length in (PAST, PAST + ADDED), line
            lengths.add(cache.length)
            rest = layer(x[:, cache.length :], cache=cache)
            assert (rest - whole[:, -rest.shape[1] :]).abs().max() < bound, line
    assert PAST in lengths
    # A call after an interrupted one may do without a line, or need another.
    assert sum(stopped) > 0.9 * len(stopped)


def contents(cache: Any) -> list[torch.Tensor]:
    """What a cache holds, as tensors that can be compared."""
    if isinstance(cache, RecurrentState):
        summed = cache._so_far.summed
        sums = [] if summed is None else [*summed.tensors.values()]
        return [torch.tensor([cache.length, cache.batch]), *sums]
    parts = [
        x.widened(torch.float64) if isinstance(x, Stored) else x for x in (cache.keys, cache.values)
    ]
    return [torch.tensor([cache.length, cache.batch]), *parts]


def same(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(tensors) == len(others) and all(map(torch.equal, tensors, others))


def fresh(added: int, seed: int, recorded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (HEAD_DIM, V_DIM)
    k, v = (
        torch.randn(BATCH, KV_HEADS, added, size, generator=generator, dtype=torch.float64)
        for size in sizes
    )
    return k.requires_grad_(recorded), v.requires_grad_(recorded)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda cache: cache.append(*fresh(6, 1)),
    "append with gradients": lambda cache: cache.append(*fresh(6, 1, recorded=True)),
    "crop": lambda cache: cache.crop(PAST - 1),
    "crop to nothing": lambda cache: cache.crop(0),
    "reorder": lambda cache: cache.reorder(torch.tensor([2, 2, 0])),
    "reorder to more": lambda cache: cache.reorder(torch.tensor([2, 2, 0, 1, 1])),
    "keep": lambda cache: cache.keep(torch.tensor([[0, 2, 5], [0, 1, 2], [4, 5, 6]])),
}


def check_every_line(
    make: Callable[[], Any], change: Callable[[Any], Any], after: Callable[[Any], Any]
) -> None:
    """Stop a change at each of its lines: what is held is what was held before or is held after it, then and later."""
    before = make()
    changed = make()
    change(changed)
    wanted = [contents(before), contents(changed)]
    for cache in (before, changed):
        after(cache)
    later = [contents(before), contents(changed)]
    cache = make()
    for number, line in enumerate(lines_of(lambda: change(cache))):  # noqa: B023
        cache = make()
        assert interrupted(lambda: change(cache), line, ERRORS[number % 2]), line  # noqa: B023
        state = [at for at, held in enumerate(wanted) if same(contents(cache), held)]
        assert state, line
        after(cache)
        assert any(same(contents(cache), later[at]) for at in state), line


@pytest.mark.each_value(apart=True, pairs=[("kind", "name")])
@pytest.mark.parametrize(
    ("kind", "dtype", "name", "recorded"),
    [
        *(
            (kind, "float64", name, recorded)
            for kind, name, recorded in product(KINDS, CHANGES, (False, True))
            if (kind, name) != ("ring", "keep")
        ),
        ("paged", "int8", "append", False),
    ],
)
def test_a_change_of_a_cache_that_is_stopped_at_any_line_was_made_or_was_not(
    kind: str, dtype: str, name: str, recorded: bool
) -> None:
    def make() -> Any:
        cache = empty(kind, dtype)
        cache.append(*fresh(PAST, 0, recorded))
        return cache

    def after(cache: Any) -> None:
        k, v = fresh(3, 2)
        rows = torch.arange(cache.batch) % BATCH
        cache.append(k[rows], v[rows])

    check_every_line(make, CHANGES[name], after)


def attend(state: RecurrentState, added: int, seed: int) -> None:
    k, v = fresh(added, seed)
    rows = torch.arange(state.batch) % BATCH
    state.attend(k[rows], k[rows], v[rows])


@pytest.mark.parametrize("name", ["attend", "crop to nothing", "reorder", "reorder to more"])
def test_a_change_of_a_state_that_is_stopped_at_any_line_was_made_or_was_not(name: str) -> None:
    def make() -> RecurrentState:
        state = RecurrentState(
            LinearTransformer(), BATCH, KV_HEADS, HEAD_DIM, V_DIM, dtype=torch.float64
        )
        attend(state, PAST, 0)
        return state

    change = (lambda state: attend(state, 2, 1)) if name == "attend" else CHANGES[name]
    check_every_line(make, change, lambda state: attend(state, 3, 2))


def paged_forks() -> tuple[Any, Any]:
    """A cache with a past, and its fork."""
    cache = empty("paged", "float64")
    cache.append(*fresh(PAST, 0))
    return cache, cache.fork()


def test_forks_of_a_paged_cache_are_right_after_an_append_to_one_was_stopped_at_any_line() -> None:
    wanted, _ = paged_forks()
    wanted.append(*fresh(6, 1))
    cache, _ = paged_forks()
    for line in lines_of(lambda: cache.append(*fresh(6, 2))):  # noqa: B023
        cache, fork = paged_forks()
        assert interrupted(lambda: cache.append(*fresh(6, 2)), line)  # noqa: B023
        fork.append(*fresh(6, 1))
        assert same(contents(fork), contents(wanted)), line
        if cache.length == PAST:
            cache.append(*fresh(6, 2))
        assert torch.equal(cache.keys[:, :, PAST:], fresh(6, 2)[0]), line
        assert same(contents(fork), contents(wanted)), line


def test_a_signal_that_continues_a_fork_while_another_one_is_continued_loses_no_entry() -> None:
    """The handler can neither wait for the pages that both share, nor change them."""
    cache, fork = paged_forks()
    count = instructions_of(lambda: cache.append(*fresh(6, 1)), paged.__file__)
    fork.append(*fresh(3, 2))
    wanted, wanted_of_fork = contents(cache), contents(fork)
    apart = 0
    for number in range(0, count, 7):
        cache, fork = paged_forks()
        pool = cache._pool
        disturbed(
            lambda: cache.append(*fresh(6, 1)),  # noqa: B023
            number,
            lambda: fork.append(*fresh(3, 2)),  # noqa: B023
            paged.__file__,
        )
        assert same(contents(cache), wanted), number
        assert same(contents(fork), wanted_of_fork), number
        apart += fork._pool is not pool
    assert apart
