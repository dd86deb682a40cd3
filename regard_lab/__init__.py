"""What is built on regard: text, models, decoding, training, conversion, seeing, lessons, bench, the command line."""

from importlib import import_module
from typing import Any

_ROOMS = (
    "text",
    "models",
    "decoding",
    "training",
    "conversion",
    "seeing",
    "teaching",
    "lessons",
    "walkthrough",
    "bench",
    "cli",
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"regard_lab.{name}")
    raise AttributeError(f"module 'regard_lab' has no attribute {name!r}")
