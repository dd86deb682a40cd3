import pytest

from .browsing import chromium


@pytest.fixture(scope="session")
def browser():
    with chromium() as running:
        yield running
