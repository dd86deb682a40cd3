"""`regard doctor`: is this installation sound?"""

from __future__ import annotations

from regard.bench import describe_health, examine
from regard.cli.console import out, out_json, say
from regard.errors import RegardError


def run_doctor(*, as_json: bool) -> None:
    """Probe and report; raises a RegardError if a backend is wrong."""
    if not as_json:
        say("trying every backend on small problems ...")
    health = examine()
    if as_json:
        out_json(health.to_json())
    else:
        for line in describe_health(health):
            out(line)
    if not health.sound:
        wrong = [found.backend for found in health.findings if found.status == "wrong"]
        raise RegardError(f"wrong answers from {', '.join(wrong)}; do not trust this installation, and report it")
