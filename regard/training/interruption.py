"""Ctrl-C and SIGTERM end a training in good order: the first asks, the second insists."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, the first signal sets `requested`; the second raises KeyboardInterrupt at once.

    Handlers belong to the main thread: in another thread nothing is installed and `requested` stays False. The
    handlers found on entering are put back on leaving.

    >>> with Interruption() as interruption:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interruption.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that Python did not install and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
