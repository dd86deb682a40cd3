"""Two and four processes, started when a test first asks for them; tests of regard_lab take the same ones."""

from collections.abc import Callable, Iterator

import pytest

from several_processes.pool import Pool

started: dict[int, Pool] = {}


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], Pool]]:
    """A function from a number of processes to their pool."""

    def pool(count: int) -> Pool:
        # Processes of a failed test may still wait for another one, so they are not used again.
        if count not in started or not started[count].sound:
            started[count] = Pool(count)
        return started[count]

    yield pool
    while started:
        started.popitem()[1].close()
