"""Copies the figures that lessons read from benchmarks/results into the package, which benchmarks are not part of.

python benchmarks/lesson_reports.py [NAME ...] [--run RUN]

Run it after a benchmark. With the run of `regard demo` it also measures what the lessons heads and referent
show. The date of a copy is the day on which its results were committed, or today.
"""

import argparse
import json
import re
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.complexity.fits import read_table
from benchmarks.complexity.report import command_for
from benchmarks.complexity.results import CostTable
from benchmarks.complexity.rows import ROWS
from regard.arguments import count_of
from regard_lab.teaching.looking import measure_heads, measure_referent
from regard_lab.teaching.report import Report, store_report, write_report

RESULTS = Path(__file__).parent / "results"
ONE_OR_EIGHT = (
    "regard compare --data pronouns --models transformer --heads 8,1 --equal-parameters --dim 64 --layers 2 --steps "
    "1500 (it trained the models itself then; regard train trains one)"
)


def of_complexity() -> Report:
    """What each row promises, and the fitted exponents of its times instead of every measurement."""
    table, day = _read_costs()
    readings = read_table(table)
    figures = {}
    for name in table.rows:
        row = ROWS[name]
        reading = readings[name]
        figures[name] = {
            "title": row.title,
            "cost": row.cost,
            "growth": row.growth.text,
            "sequential": row.sequential,
            "path": row.path,
            "source": row.source,
            "exponent": reading.time.fitted,
            "promised": reading.time.promised,
            "lengths": list(reading.time.lengths),
            "cheaper_from": reading.crossover,
        }
    return _report_costs(table, day, figures)


def of_recurrent() -> Report:
    """Seconds and operations of a recurrent network and of causal attention, one core, 64 numbers per word."""
    table, day = _read_costs()
    figures: dict[str, Any] = {}
    for name in ("gru", "causal"):
        figures[name] = []
        for time in table.rows[name]["times"]:
            if time["length"] in (256, 1024, 4096):
                point = {key: time[key] for key in ("length", "operations", "median")}
                figures[name].append(point)
    return _report_costs(table, day, figures)


def _read_costs() -> tuple[CostTable, str]:
    """The table of costs, and the day on which it was committed."""
    _, day = _read("complexity_cpu/complexity.json")
    return CostTable.load(RESULTS / "complexity_cpu"), day


def _report_costs(table: CostTable, day: str, figures: dict[str, Any]) -> Report:
    command = command_for(table.rows, table.quick)
    return _report({"environment": table.environment, "command": command}, day, figures)


def of_one_head() -> Report:
    """Two comparisons of translators: one head or eight, and eight heads with fewer key/value heads."""
    compared, day = _read("compare_cpu/one_or_eight/compare.json")
    fewer, _ = _read("compare_cpu/heads/compare.json")
    figures = {
        name: [
            {
                "name": row["name"],
                "parameters": row["parameters"],
                "exact_match": row["quality"]["exact match"],
                "cpu_seconds": row["spent"]["cpu_seconds"],
            }
            for row in one["rows"]
        ]
        for name, one in (("heads", compared), ("kv_heads", fewer))
    }
    return Report(
        command=ONE_OR_EIGHT, day=day, machine="a CPU; its type was not recorded", figures=figures
    )


def of_generation() -> Report:
    """The conversions by the mean of the heads; their page has the day."""
    measured, _ = _read("kv_heads_cpu/kv_heads.json")
    day = re.search(
        r"`, (\d{4}-\d{2}-\d{2}), torch",
        (RESULTS / "kv_heads_cpu" / "kv_heads.md").read_text("utf-8"),
    )
    assert day is not None, "the third line of kv_heads.md has the day"
    kept = (
        "seed",
        "kv_heads",
        "kv_bytes",
        "kv_bytes_before",
        "before",
        "converted",
        "uptrained",
        "control",
    )
    figures: dict[str, Any] = {
        name: measured["recipe"][name]
        for name in ("heads", "layers", "dim", "steps", "uptrain_steps", "held_out")
    }
    figures["rows"] = [
        {name: row[name] for name in kept} for row in measured["rows"] if row["method"] == "mean"
    ]
    return _report(measured, day[1], figures)


def of_choosing() -> Report:
    """The accuracies of all seeds with far keys; each record has its day and processor."""
    measured, _ = _read("behaviour_cpu/behaviour.json")
    records = {
        name: list(seeds.values()) for name, seeds in measured["records"]["choosing"].items()
    }
    last = max(
        (one for seeds in records.values() for one in seeds), key=lambda one: one["measured"]
    )
    figures = {
        name: {"pairs": seeds[0]["pairs"], "accuracy": [one["accuracy"] for one in seeds]}
        for name, seeds in records.items()
    }
    measured["environment"] |= {"processor": last["processor"]}
    return _report(
        measured | {"command": "python -m benchmarks.behaviour choosing"}, last["measured"], figures
    )


def of_answer_head() -> Report:
    measured, day = _read("atom_maps_cpu/atom_maps.json")
    kept = (
        "layer",
        "head",
        "head_share",
        "mean_share",
        "by_place",
        "shares",
        "shown",
        "distances",
        "replaced",
    )
    figures = {name: measured[name] for name in kept}
    figures["reactions"] = [
        {name: row[name] for name in ("name", "atoms", "right")} for row in measured["reactions"]
    ]
    return _report(measured, day, figures)


REPORTS: dict[str, Callable[[], Report]] = {
    "answer_head": of_answer_head,
    "choosing": of_choosing,
    "generation": of_generation,
    "complexity": of_complexity,
    "one_head": of_one_head,
    "recurrent": of_recurrent,
}


def _report(measured: dict[str, Any], day: str, figures: dict[str, Any]) -> Report:
    here = measured["environment"]
    machine = (
        f"{here['processor']}, {count_of(here['cores'], 'cores')}, 1 thread, torch {here['torch']}"
    )
    return Report(command=measured["command"], day=day, machine=machine, figures=figures)


def _read(name: str) -> tuple[dict[str, Any], str]:
    """The results in a file, and the day on which they were committed, or today if they are not yet."""
    path = RESULTS / name
    changed = _git(path, "status", "--porcelain")
    day = date.today().isoformat() if changed else _git(path, "log", "-1", "--format=%cs")
    return json.loads(path.read_text("utf-8")), day


def _git(path: Path, *words: str) -> str:
    command = ["git", *words, "--", path.name]
    return subprocess.run(
        command, cwd=path.parent, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(REPORTS))
    parser.add_argument("--run", help="the folder of the demo's training run")
    asked = parser.parse_args()
    for name, measure in (
        (("heads", measure_heads), ("referent", measure_referent)) if asked.run else ()
    ):
        command = "regard demo; python benchmarks/lesson_reports.py --run runs/demo"
        print(write_report(name, command, measure(asked.run)))
    for name in asked.names:
        if name not in REPORTS:
            parser.error(f"there is no {name!r}; there are {', '.join(REPORTS)}")
        print(store_report(name, REPORTS[name]()))


if __name__ == "__main__":
    main()
