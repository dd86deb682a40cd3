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
from benchmarks.report import store_lesson_report, write_lesson_report
from regard.arguments import count_of
from regard_lab.teaching.looking import measure_heads, measure_referent
from regard_lab.teaching.report import Report

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
    figures = {"heads": _translators(compared), "kv_heads": _translators(fewer)}
    machine = "a CPU; its type was not recorded"
    return Report(command=ONE_OR_EIGHT, day=day, machine=machine, figures=figures)


def _translators(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """What a comparison of translators says of each."""
    rows = []
    for row in comparison["rows"]:
        rows.append(
            {
                "name": row["name"],
                "parameters": row["parameters"],
                "exact_match": row["quality"]["exact match"],
                "cpu_seconds": row["spent"]["cpu_seconds"],
            }
        )
    return rows


def of_generation() -> Report:
    """The conversions by the mean of the heads; their page has the day."""
    measured, _ = _read("kv_heads_cpu/kv_heads.json")
    page = (RESULTS / "kv_heads_cpu" / "kv_heads.md").read_text("utf-8")
    day = re.search(r"`, (\d{4}-\d{2}-\d{2}), torch", page)
    assert day is not None, "the third line of kv_heads.md has the day"
    figures: dict[str, Any] = _picked(
        measured["recipe"], "heads layers dim steps uptrain_steps held_out"
    )
    of_row = "seed kv_heads kv_bytes kv_bytes_before before converted uptrained control"
    by_mean = [row for row in measured["rows"] if row["method"] == "mean"]
    figures["rows"] = [_picked(row, of_row) for row in by_mean]
    return _report(measured, day[1], figures)


def _picked(record: dict[str, Any], names: str) -> dict[str, Any]:
    """Some values of a record, in the order of their names."""
    return {name: record[name] for name in names.split()}


def of_choosing() -> Report:
    """The accuracies of all seeds with far keys; each record has its day and processor."""
    measured, _ = _read("behaviour_cpu/behaviour.json")
    figures = {}
    records: list[dict[str, Any]] = []
    for name, by_seed in measured["records"]["choosing"].items():
        seeds = list(by_seed.values())
        accuracies = [record["accuracy"] for record in seeds]
        figures[name] = {"pairs": seeds[0]["pairs"], "accuracy": accuracies}
        records += seeds
    last = max(records, key=lambda record: record["measured"])
    measured["environment"]["processor"] = last["processor"]
    measured["command"] = "python -m benchmarks.behaviour choosing"
    return _report(measured, last["measured"], figures)


def of_answer_head() -> Report:
    measured, day = _read("atom_maps_cpu/atom_maps.json")
    figures = _picked(
        measured, "layer head head_share mean_share by_place shares shown distances replaced"
    )
    figures["reactions"] = [_picked(row, "name atoms right") for row in measured["reactions"]]
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
    environment = measured["environment"]
    cores = count_of(environment["cores"], "cores")
    machine = f"{environment['processor']}, {cores}, 1 thread, torch {environment['torch']}"
    return Report(command=measured["command"], day=day, machine=machine, figures=figures)


def _read(name: str) -> tuple[dict[str, Any], str]:
    """The results in a file, and the day on which they were committed, or today if they are not yet."""
    path = RESULTS / name
    changed = _git(path, "status", "--porcelain")
    day = date.today().isoformat() if changed else _git(path, "log", "-1", "--format=%cs")
    return json.loads(path.read_text("utf-8")), day


def _git(path: Path, *words: str) -> str:
    command = ["git", *words, "--", path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(REPORTS))
    parser.add_argument("--run", help="the folder of the demo's training run")
    asked = parser.parse_args()
    if asked.run:
        command = "regard demo; python benchmarks/lesson_reports.py --run runs/demo"
        print(write_lesson_report("heads", command, measure_heads(asked.run)))
        print(write_lesson_report("referent", command, measure_referent(asked.run)))
    for name in asked.names:
        if name not in REPORTS:
            parser.error(f"there is no {name!r}; there are {', '.join(REPORTS)}")
        print(store_lesson_report(name, REPORTS[name]()))


if __name__ == "__main__":
    main()
