"""Calls that one function of C computes, and the same calls by Python."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import ROOT, entered
from torch import Tensor

import regard as rg
from regard.functional.repeated import REPEATED


def by_python(*qkv: Tensor, **options: Any) -> Tensor:
    """The output of a call as it is computed where there is no function of C."""
    repeat = REPEATED.repeat
    REPEATED.repeat = None
    try:
        return rg.attention(*qkv, **options)
    finally:
        REPEATED.repeat = repeat


def is_without_python(*qkv: Tensor, **options: Any) -> bool:
    """Whether this one call enters no function of regard but `attention`."""
    paths = entered(lambda: rg.attention(*qkv, **options))
    return len([path for path in paths if Path(path).is_relative_to(ROOT)]) == 1


class Alarm(BaseException):
    """An interruption, as by Ctrl-C."""


def interruptions_of(
    call: Callable[[], Tensor], expected: Tensor, *, after: float, seconds: float
) -> int:
    """How often a call was interrupted, each time after some seconds; it gives the expected bits after each."""

    def interrupt(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, interrupt)
    interruptions = 0
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, after)
                while True:
                    call()
            except Alarm:
                interruptions += 1
            assert torch.equal(call(), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return interruptions
