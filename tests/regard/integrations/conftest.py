"""What tests of models of transformers share."""

import sys

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    """transformers reports nothing but errors, where a module imported it."""
    if "transformers" in sys.modules:
        sys.modules["transformers"].logging.set_verbosity_error()
