"""What the configs of models share: values checked one by one, and the way to JSON and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self

from regard.errors import ArgumentError


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
