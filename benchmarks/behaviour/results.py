"""Stores the results in one file after every training, so that an interrupted run can be continued."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.behaviour.experiment import Experiment, Record
from regard.storage.files import replace_file
from regard_lab.bench.results import environment

FILE = "behaviour.json"


@dataclass
class Results:
    """Records by experiment, contender and seed, the environment, and the day of the last training."""

    quick: bool = False
    environment: dict[str, Any] = field(default_factory=environment)
    records: dict[str, dict[str, dict[int, Record]]] = field(default_factory=dict)
    measured: str = ""

    def missing(self, experiment: Experiment) -> list[tuple[str, int]]:
        """The contenders and seeds that are not trained yet, ordered by seed."""
        done = self.records.get(experiment.name, {})
        pairs = [(contender, seed) for seed in experiment.seeds for contender in experiment.contenders]
        return [(contender, seed) for contender, seed in pairs if seed not in done.get(contender, {})]

    def add(self, experiment: Experiment, contender: str, seed: int, record: Record) -> None:
        """Store the record of one training, which was finished today."""
        self.measured = date.today().isoformat()
        self.records.setdefault(experiment.name, {}).setdefault(contender, {})[seed] = record

    def of(self, experiment: Experiment) -> dict[str, dict[int, Record]]:
        """The records of an experiment, in the order of its contenders and seeds."""
        kept = self.records.get(experiment.name, {})
        return {
            contender: {seed: kept[contender][seed] for seed in experiment.seeds if seed in kept[contender]}
            for contender in experiment.contenders
            if contender in kept
        }

    def save(self, folder: Path) -> None:
        """Write the file atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "environment": self.environment, "measured": self.measured, "quick": self.quick, "records": self.records,
        }  # fmt: skip
        replace_file(folder / FILE, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path, quick: bool) -> Results:
        """Load the results of a folder, or start new ones; quick and complete runs are not mixed."""
        path = folder / FILE
        if not path.exists():
            return cls(quick)
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["quick"] != quick:
            raise SystemExit(f"{path} holds {'a quick' if content['quick'] else 'a whole'} run; choose another --out")
        records = {
            name: {
                contender: {int(seed): record for seed, record in by_seed.items()}
                for contender, by_seed in by_contender.items()
            }
            for name, by_contender in content["records"].items()
        }
        return cls(quick, content["environment"], records, content.get("measured", ""))
