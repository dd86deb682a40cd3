"""Copies and forks of one cache, each continued by a thread of its own."""

import copy
import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from threading import Event, Thread

import pytest
import torch
from injections import interrupted, lines_of
from side_by_side import run_in_threads

from regard.layers.caches import PagedCache, new_cache, paged

THREADS = 8
TRIALS = 4
PROMPT = 7
STEPS = 61
HEADS = 2
DIM = 3
KINDS = {
    "paged": {},
    "dynamic": {},
    "static": {"capacity": PROMPT + STEPS},
    "ring": {"capacity": PROMPT + STEPS},
    "latent": {"joined": True, "v_dim": 2},
}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


@pytest.fixture(autouse=True)
def _threads_change_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def filled(kind: str):
    """A cache with a prompt of its own numbers."""
    cache = new_cache("dynamic" if kind == "latent" else kind, 1, HEADS, DIM, **KINDS[kind])
    prompt = torch.randn(1, HEADS, PROMPT, DIM)
    cache.append(prompt, None if cache.joined else prompt)
    return cache, prompt


def run_threads(work) -> list[BaseException]:
    """Call `work(number)` in threads that begin together; what they raised."""
    without_gradients = torch.no_grad()(work)
    return run_in_threads([partial(without_gradients, number) for number in range(THREADS)])


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_forks_of_one_cache_are_right_in_threads_of_their_own(kind, way):
    for _ in range(TRIALS):
        with torch.no_grad():
            base, prompt = filled(kind)
        fork = PagedCache.fork if kind == "paged" and way is copy.copy else way
        caches = [fork(base) for _ in range(THREADS)]
        texts = [torch.full((1, HEADS, STEPS, DIM), float(number)) for number in range(THREADS)]

        def go_on(number, caches=caches, texts=texts):
            cache = caches[number]
            for at in range(STEPS):
                step = texts[number][:, :, at : at + 1]
                cache.append(step, None if cache.joined else step)

        assert run_threads(go_on) == []
        with torch.no_grad():
            for cache, text in zip(caches, texts, strict=True):
                assert torch.equal(cache.keys, torch.cat([prompt, text], 2))
            assert torch.equal(base.keys, prompt)


def test_copies_may_be_made_by_several_threads_at_once():
    with torch.no_grad():
        base, prompt = filled("dynamic")
        caches = [None] * THREADS

        def copy_and_go_on(number):
            cache = caches[number] = copy.copy(base)
            numbers = torch.full((1, HEADS, 5, DIM), float(number))
            cache.append(numbers, numbers)
            cache.crop(PROMPT + 2)
            cache.append(numbers, numbers)

        assert run_threads(copy_and_go_on) == []
        for number, cache in enumerate(caches):
            wanted = torch.full((1, HEADS, 7, DIM), float(number))
            assert torch.equal(cache.keys, torch.cat([prompt, wanted], 2))


def test_an_interruption_while_a_page_becomes_free_is_not_lost_and_the_page_is_free():
    """A page is returned without a line of Python, in which a KeyboardInterrupt would be swallowed."""
    with torch.no_grad():
        cache, _ = filled("paged")
        fork = cache.fork()
        numbers = torch.zeros(1, HEADS, 13, DIM)
        fork.append(numbers, numbers)
        pool = cache._pool
        swallowed = []
        entered = []

        def trace(frame, event, argument):
            if frame.f_code.co_filename == paged.__file__:
                entered.append(frame.f_code.co_name)
                raise KeyboardInterrupt

        hook = sys.unraisablehook
        sys.unraisablehook = swallowed.append
        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            del fork
        finally:
            sys.settrace(outer)
            sys.unraisablehook = hook
        assert (swallowed, entered) == ([], [])
        before = pool.pages
        cache.append(numbers[:, :, :5], numbers[:, :, :5])
        assert pool.pages == before


@pytest.fixture
def small_heap() -> Iterator[None]:
    """What is there is left out of garbage collection, which else takes a tenth of a second in a long run of tests."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("small_heap")
def test_an_append_that_is_stopped_at_any_line_loses_no_page_and_does_not_hold_up_other_threads():
    def grown():
        cache, _ = filled("paged")
        numbers = torch.ones(1, HEADS, 13, DIM)
        cache.fork().append(numbers, numbers)  # its pages are returned, and wait to be taken again
        return cache, numbers

    with torch.no_grad():
        cache, numbers = grown()
        for line in lines_of(lambda: cache.append(numbers, numbers)):  # noqa: B023
            cache, numbers = grown()
            fork = cache.fork()
            assert interrupted(lambda: cache.append(numbers, numbers), line)  # noqa: B023
            thread = Thread(target=fork.append, args=(numbers, numbers), daemon=True)
            thread.start()
            thread.join(60)
            assert not thread.is_alive(), line
            gc.collect()  # the frames that the exception names hold pages too
            pool = fork._pool
            named = set()
            for row in (*cache._table.rows, *fork._table.rows):
                named.update(row)
            with pool.lock:
                pool.take(0)
            assert len(pool._not_lent()) == pool.pages - len(named), line


def test_a_process_that_is_forked_while_a_thread_changes_the_pool_can_go_on():
    with torch.no_grad():
        cache, prompt = filled("paged")
        numbers = torch.ones(1, HEADS, 13, DIM)
        held = Event()
        done = Event()

        def hold() -> None:
            with cache._pool.lock:
                held.set()
                done.wait()

        thread = Thread(target=hold)
        thread.start()
        held.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            process = os.fork()
        if not process:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends a process that waits for a thread which it does not have
            cache.append(numbers, numbers)
            os._exit(0 if torch.equal(cache.keys, torch.cat([prompt, numbers], 2)) else 1)
        done.set()
        thread.join()
        assert os.waitpid(process, 0)[1] == 0
