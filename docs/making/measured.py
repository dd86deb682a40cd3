"""Reads figures from the committed reports: speed against other libraries, costs by length, published behaviour."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from regard_lab.bench import Results
from regard_lab.bench.complexity import ROWS, CostTable, read_row
from regard_lab.bench.complexity.report import EFFORTS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
BENCHES = {"attention_cpu": "patterns and decoding", "mechanisms_cpu": "mechanisms"}


@dataclass(frozen=True)
class Duel:
    """One contest with one library: how many times faster regard was, in CPU time on 1 thread."""

    report: str
    case: str
    label: str
    work: str
    peer: str
    faster: float


@cache
def duels() -> tuple[Duel, ...]:
    """Every pair that was timed, in the order of the reports."""
    return tuple(
        Duel(report, name, contest["label"], contest["work"], peer, answer["cpu"]["median"] / ours["cpu"]["median"])
        for report in BENCHES
        for name, case in Results.load(RESULTS / report).cases.items()
        for contest in case["contests"]
        if "cpu" in (ours := contest["contenders"][contest["ours"]])
        for peer, answer in contest["contenders"].items()
        if not peer.startswith("regard") and "cpu" in answer
    )


def missed() -> list[tuple[str, str, str]]:
    """Promises that were not kept: report, contest, and the measured figure with the promised one."""
    return [
        (report, f"{name}, {contest['label']}", promise["text"].removesuffix(": missed"))
        for report in BENCHES
        for name, case in Results.load(RESULTS / report).cases.items()
        for contest in case["contests"]
        for promise in contest["promises"]
        if promise["kept"] is False
    ]


@cache
def costs() -> CostTable:
    """The table of costs against length."""
    return CostTable.load(RESULTS / "complexity_cpu")


def cheaper_from(row: str) -> str:
    """The length from which a row is cheaper than exact attention, as its report says."""
    table = costs()
    exact = table.rows.get(ROWS[row].exact)
    return read_row(ROWS[row], table.rows[row], exact, EFFORTS[table.quick].trusted).crossover


def times_faster(row: str) -> list[tuple[int, float]]:
    """How many times faster than exact attention a row is, by length."""
    exact = {point["length"]: point["median"] for point in costs().rows[ROWS[row].exact]["times"]}
    own = {point["length"]: point["median"] for point in costs().rows[row]["times"]}
    return [(length, exact[length] / own[length]) for length in own if length in exact]


@cache
def behaviour() -> dict[str, Any]:
    """Records of the studies of published behaviour: study, contender, seed."""
    return json.loads((RESULTS / "behaviour_cpu" / "behaviour.json").read_text(encoding="utf-8"))["records"]


def learned(study: str, contender: str, number: str) -> float:
    """The mean over seeds of a number of one contender."""
    return mean(record[number] for record in behaviour()[study][contender].values())
