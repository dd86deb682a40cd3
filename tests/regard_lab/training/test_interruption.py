"""Signals ask first and insist second, in the main thread, and only while a training runs."""

import signal
import threading

import pytest
from toy_training import CrashError, crash

from regard_lab.training.loop import Interruption


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_raises(first, second):
    with Interruption() as interruption:
        assert not interruption.requested
        signal.raise_signal(first)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


def test_handlers_are_put_back_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(CrashError), Interruption():
        crash()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_trains_without_handlers():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Interruption() as interruption:
            seen.extend([signal.getsignal(signal.SIGINT), interruption.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]
