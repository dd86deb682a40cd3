"""How a training is asked to stop: a first signal ends it after its step, a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Self


class Interruption:
    """While entered, the first SIGINT or SIGTERM sets `requested`; the second raises KeyboardInterrupt at once.

    Handlers belong to the main thread: in another thread nothing is installed and `requested` stays False. The
    handlers found on entering are put back on leaving.

    >>> with Interruption() as interruption:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interruption.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self.on_request: Callable[[], None] | None = None  # called by the handler, once
        self._before: dict[signal.Signals, Any] = {}

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self.on_request is not None:
            self.on_request()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._handle)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that Python did not install and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
