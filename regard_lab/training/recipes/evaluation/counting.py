"""How far an evaluation is: shown while it runs, and said with what was done when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from regard.arguments import count_of

Counting = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Takes the number of sentences; gives a context with a function to be called with the number of newly done ones."""


def uncounted(total: int) -> AbstractContextManager[Callable[[int], None]]:
    """The default of `counting`: nothing is shown."""
    return nullcontext(lambda newly_done: None)


class PartlyEvaluated(KeyboardInterrupt):
    """An evaluation was interrupted; `rows` has what was done, with scores, as `--out` writes it."""

    def __init__(self, what: str, total: int, done: int, rows: list[dict[str, Any]]) -> None:
        super().__init__(f"{done:,} of {count_of(total, what, ',')} done")
        self.rows = rows


@contextmanager
def telling_what_was_done(
    what: str, total: int, done: Sized, rows: Callable[[], list[dict[str, Any]]] = list
) -> Generator[None]:
    """Within it a KeyboardInterrupt becomes a PartlyEvaluated.

    Args:
        what: is evaluated, in the plural; there are `total` of them.
        done: those that are evaluated so far.
        rows: gives these with their scores; nothing by default.
    """
    try:
        yield
    except KeyboardInterrupt:
        rows_of_done = rows() if done else []
        raise PartlyEvaluated(what, total, len(done), rows_of_done) from None
