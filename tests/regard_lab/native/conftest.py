"""Fixtures of native."""

from native.conftest import fresh_plans, native

__all__ = ["native", "fresh_plans"]
