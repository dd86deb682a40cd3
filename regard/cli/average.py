"""`regard average`: the mean of a run's last checkpoints as a model."""

from __future__ import annotations

from pathlib import Path

from regard.cli.console import say
from regard.training import average_checkpoints


def run_average(run: Path, last: int, out: Path) -> None:
    """Write the mean and say of what."""
    names = average_checkpoints(run, last, out)
    say(f"the mean of {', '.join(names)} is in {out}")
