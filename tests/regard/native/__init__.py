"""Tests of the native backend; a package, so that its conftest has a name of its own."""
