"""One browser for all tests of pages."""

import pytest
from explorer.browsing import chromium


@pytest.fixture(scope="session")
def browser():
    with chromium() as running:
        yield running
