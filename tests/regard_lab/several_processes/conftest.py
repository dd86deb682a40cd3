"""Fixtures of several_processes."""

from several_processes.conftest import pools

__all__ = ["pools"]
