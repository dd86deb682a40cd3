"""Work in threads that begin together."""

from collections.abc import Callable, Sequence
from threading import Barrier, Thread


def run_in_threads(works: Sequence[Callable[[], None]]) -> list[BaseException]:
    """Call each function in a thread of its own; what they raised."""
    start = Barrier(len(works))
    raised: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised
