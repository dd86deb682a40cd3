"""Two and four processes, started when a test first asks for them."""

import pytest

from several_processes.pool import Pool


@pytest.fixture(scope="session")
def pools():
    """A function from a number of processes to their pool."""
    started: dict[int, Pool] = {}

    def pool(count: int) -> Pool:
        if count not in started or not started[count].sound:  # processes of a failed test may still wait for another
            started[count] = Pool(count)
        return started[count]

    yield pool
    for one in started.values():
        one.close()
