"""A call of attention inside another one that uses the same plan: both give the same bits as alone."""

import itertools
import signal
import sys
import time
from functools import partial
from typing import Any

import pytest
from injections import HERE
from side_by_side import run_in_threads
from test_interruptions import CALLS, Run, calling, forget, same

from regard.functional.kept import PLANS

EVERY = 7  # functions, from one call inside to the next
NAMES = list(CALLS)


def by_frames(call: Run, inner: Run) -> tuple[Any, list[Any]]:
    """The result of a call, and those of another one that is made when every 7th function of regard returns."""
    nested: list[Any] = []
    returned = itertools.count()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event != "return" or not frame.f_code.co_filename.startswith(HERE):
            return
        if next(returned) % EVERY == 0:
            sys.setprofile(None)
            nested.append(inner())
            sys.setprofile(profile)

    sys.setprofile(profile)
    try:
        return call(), nested
    finally:
        sys.setprofile(None)


def by_signal(call: Run, inner: Run) -> tuple[Any, list[Any]]:
    """The last of several results of a call, and those of another one that a handler of a signal makes."""
    nested: list[Any] = []
    busy: list[bool] = []

    def handle(*_: Any) -> None:
        if not busy:
            busy.append(True)
            nested.append(inner())
            busy.clear()

    expected = call()
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
    try:
        until = time.monotonic() + 0.1
        while time.monotonic() < until or not nested:
            result = call()
            if not same(result, expected):
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return result, nested


WAYS = {"frames": by_frames, "signal": by_signal}


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_a_call_inside_a_call_of_the_same_plan_gives_both_the_same_bits(name, way):
    options = CALLS[name]
    call = calling(**options)
    inner = calling(**options, turned=True, seed=11)
    expected = call()
    of_inner = inner()
    call()
    inner()
    result, nested = WAYS[way](call, inner)
    assert same(result, expected)
    assert nested
    assert all(same(nested_result, of_inner) for nested_result in nested)


@pytest.mark.parametrize("name", [name for name in NAMES if CALLS[name].get("learns", True)])
def test_a_call_in_a_hook_of_the_backward_pass_gives_both_the_same_bits(name):
    options = CALLS[name]
    nested = []
    inner = calling(**options, turned=True, seed=11)
    expected = calling(**options)()
    of_inner = inner()
    result = calling(**options, hook=lambda grad: nested.append(inner()))()
    assert same(result, expected)
    assert nested
    assert all(same(nested_result, of_inner) for nested_result in nested)


def test_plans_of_calls_in_many_threads_are_kept_and_forgotten_without_errors(monkeypatch):
    """More plans than are kept, made and used by six threads at once."""
    for table in (PLANS.calls, PLANS.unequal, PLANS.problems, PLANS.steps):
        monkeypatch.setattr(table, "most", 3)
    calls = [
        calling(q_len=length, k_len=length, backend="fused", learns=False)
        for length in range(2, 14)
    ]
    expected = [call() for call in calls]

    def work(first: int) -> None:
        for step in range(60):
            number = (first + step * (first + 1)) % len(calls)
            assert same(calls[number](), expected[number])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        failed = run_in_threads([partial(work, first) for first in range(6)])
    finally:
        sys.setswitchinterval(interval)
        forget()
    assert not failed
