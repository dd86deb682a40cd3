"""What was measured, as one JSON file: written after every case, so that an interrupted run loses one at most."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from regard.arguments import yes_or_no
from regard.errors import ArgumentError, CheckpointError, DataError
from regard.kinds import a_path, of_kind
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed_or_older, render_sealed

KEYS = ("environment", "quick", "command", "cases", "our_mistakes")  # of the file


@dataclass
class Results:
    """Records of cases by name: their title and contests; `environment` says where they were measured."""

    file: ClassVar[str] = "bench.json"

    environment: dict[str, Any]
    quick: bool
    command: str
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_sealed: bool = field(default=True, compare=False)  # files of versions before the seals are not

    @property
    def contests(self) -> list[dict[str, Any]]:
        """The records of all contests."""
        return [contest for case in self.cases.values() for contest in case["contests"]]

    @property
    def our_mistakes(self) -> list[str]:
        """Contests in which regard itself answered wrongly or not at all."""
        return [
            f"{contest['label']}: {name} {answer['status']}: {answer['reason']}"
            for contest in self.contests
            for name, answer in contest["contenders"].items()
            if name.startswith(contest["ours"]) and answer["status"] != "measured"
        ]

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(self._content(), indent=1)

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all, sealed so that a changed byte is noticed.

        Raises:
            CheckpointError: it cannot be written.
        """
        folder = a_path("folder", folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be made: {error.strerror}; choose another folder") from error
        replace_file(folder / self.file, render_sealed(self._content()))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What `save` wrote.

        Raises:
            DataError: no such file, or one that is something else or damaged.
        """
        path = a_path("folder", folder) / cls.file
        if not os.path.lexists(path):
            raise DataError(f"{path} does not exist; measure without --resume first")
        try:
            found, is_sealed = read_sealed_or_older(path, KEYS, KEYS)
        except CheckpointError as error:
            raise DataError(f"{path} does not hold results of regard bench: {error}") from error
        return cls(found["environment"], found["quick"], found["command"], found["cases"], is_sealed)

    def _content(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in KEYS}

    def check_continues(self, environment: dict[str, Any], quick: bool) -> None:
        """Raise an ArgumentError if what is to be measured now does not belong beside what was measured then."""
        of_kind("environment", environment, dict, "what `environment` gives")
        yes_or_no("quick", quick)
        differing = [name for name in environment if environment[name] != self.environment.get(name)]
        if self.quick != quick:
            differing.append("quick")
        if differing:
            raise ArgumentError(
                f"these results were measured with another {', '.join(differing)}; measure anew without --resume, or "
                f"into another folder"
            )
