"""Tests of the explorer; a package, so that its conftest has a name of its own."""
