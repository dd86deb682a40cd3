"""What the configs of models share: values checked one by one, and the way to JSON and back."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self

import torch

from regard.errors import ArgumentError
from regard.kinds import of_kind

LARGEST_SIZE = 2**31 - 1  # of one axis
MOST_LAYERS = 10_000  # a limit against mistyped numbers; no memory holds a useful model of so many


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A frozen config, compared by value; `__post_init__` of each looks at what it was given with the checks below."""

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            ArgumentError: a setting that does not exist, is missing, or cannot be.
        """
        of_kind("settings", settings, dict, "the settings by name, as to_dict gives them")
        known = {field.name: field for field in fields(cls)}
        if unknown := sorted(settings.keys() - known.keys()):
            raise ArgumentError(f"there is no setting {', '.join(unknown)}; there are {', '.join(known)}")
        needed = {name for name, field in known.items() if field.default is MISSING}
        if missing := sorted(needed - settings.keys()):
            raise ArgumentError(f"the setting {', '.join(missing)} is missing")
        return cls(**settings)

    def check_sizes(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ArgumentError(f"{name} is {value!r}; it needs a whole number of at least 1")
            most = MOST_LAYERS if name.endswith("layers") else LARGEST_SIZE
            if value > most:
                shown = value if value < 10**20 else f"a number of {value.bit_length()} bits"
                raise ArgumentError(f"{name} is {shown}; a model has at most {most}")

    @property
    def least_parameters(self) -> int:
        """So many numbers a model with these settings holds at least, told without building it."""
        return 0

    def check_memory(self) -> None:
        """Raise an ArgumentError if the parameters, in float32, are larger than the memory of this machine."""
        if torch.get_default_device().type == "meta":  # built to be filled from a file, or looked at
            return
        needed, there = 4 * self.least_parameters, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            raise ArgumentError(
                f"the parameters of this model would take at least {needed:,} bytes, and this machine has {there:,} "
                f"bytes of memory; make it smaller"
            )

    def check_choice(self, name: str, choices: Iterable[str]) -> None:
        if getattr(self, name) not in (choices := tuple(choices)):
            raise ArgumentError(f"{name} is {getattr(self, name)!r}; there are {', '.join(choices)}")

    def check_shares(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise ArgumentError(f"{name} is {value!r}; it is a share from 0 to 1")

    def check_flags(self, *names: str) -> None:
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} is {getattr(self, name)!r}; it is true or false")
