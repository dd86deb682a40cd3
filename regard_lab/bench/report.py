"""Results and findings as text and as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.arguments import count_of, of_kind
from regard.packages import install_line
from regard.storage.files import replace_file
from regard_lab.bench.health import Findings, Health
from regard_lab.bench.peaks import Peaks
from regard_lab.bench.results import PACKAGES, Results
from regard_lab.text.writing import aligned, markdown_table, seconds


def measured_on(results: Results) -> list[str]:
    """Lines of Markdown: the machine and the versions."""
    machine = results.environment
    cores = count_of(machine["cores"], "cores")
    versions = [
        f"regard {machine['regard']}",
        f"torch {machine['torch']}",
        f"Python {machine['python']}",
        *(f"{name} {version}" for name, version in machine["packages"].items()),
    ]
    return [
        f"- Machine: {machine['system']}, {_processor(results)}, {cores}",
        f"- Versions: {', '.join(versions)}",
    ]


def _processor(results: Results) -> str:
    name = results.environment["processor"]
    return f"{name} ({results.family})" if results.family else name


FILE = "bench.md"
HEAD = ("", "CPU, 1 thread", "GPU", "wall, all threads", "regard is faster by", "rate", "notes")


def describe_results(results: Results) -> list[str]:
    """Format results as lines of text."""
    of_kind("results", results, Results, "the Results of run_bench")
    lines = [f"measured on {_processor(results)}"]
    if results.peaks:
        lines.append(f"one core does at most {Peaks(**results.peaks)}")
    for name, case in results.cases.items():
        lines += ["", f"{case['title']} ({name})"]
        for contest in case["contests"]:
            lines.append(f"  {contest['work']}{_attention(contest)}")
            lines += aligned([HEAD, *_rows(contest, results.peaks)], "    ")
            lines += [f"    {promise['text']}" for promise in contest["promises"]]
    summary = _summary(results)
    if summary.lines():
        lines += ["", *summary.lines()]
    return lines


def write_report(results: Results, folder: Path) -> None:
    """Write `bench.md`: a summary, a table for each comparison, and how it was measured."""
    replace_file(folder / FILE, render_markdown(results).encode())


def render_markdown(results: Results) -> str:
    """The report as a page of Markdown."""
    environment = results.environment
    summary = _summary(results)
    where = "" if environment["device"] == "cpu" else " on a GPU"
    lines = [
        f"# Attention{where} compared with other libraries",
        "",
        "Each implementation is checked against a float64 reference before it is timed. Times are medians, with the",
        "lowest and the highest sample in brackets; the implementations take turns.",
        "",
    ]
    if summary.counts:
        lines += [
            f"A promise is a ratio or an amount that this project has set itself as a bound. {summary.counts}",
            "",
        ]
    lines += [f"- {line}" for line in summary.faults]
    for name, case in results.cases.items():
        lines += ["", f"## {case['title']} ({name})"]
        for contest in case["contests"]:
            lines += [
                "",
                f"### {contest['label']}",
                "",
                f"{contest['work']}{_attention(contest)}",
                "",
            ]
            lines += _filled_columns([HEAD, *_rows(contest, results.peaks)])
            lines += ["", *(f"- {promise['text']}" for promise in contest["promises"])]
    lines += [
        "",
        "## How it was measured",
        "",
        f"- Command: `{results.command}`",
        f"- {_clocks(environment)}",
        *measured_on(results),
    ]
    if results.peaks:
        lines.append(f"- One core does at most: {Peaks(**results.peaks)}.")
        lines.append(
            "- A rate counts the pairs that the pattern keeps, and its share is of the peak of the dtype. With one "
            "query it counts the bytes of keys and values, and its share is of the rate of a sum."
        )
    return "\n".join(lines).rstrip() + "\n"


def _clocks(environment: dict[str, Any]) -> str:
    if environment["device"] != "cpu":
        return (
            f"GPU: {environment['device']}; calls follow each other as within a model, "
            "and time ends when the last is computed"
        )
    threads = count_of(environment["threads"], "threads")
    return (
        f"CPU time is that of the process on 1 thread; wall time is on {threads}, and other load on "
        f"the machine affects it"
    )


def _filled_columns(rows: list[tuple[str, ...]]) -> list[str]:
    """A table of Markdown without the columns that are empty in every row."""
    head, *body = rows
    first, *later = zip(head, *body, strict=True)
    columns = [first, *(column for column in later if any(column[1:]))]
    filled_head, *filled_body = zip(*columns, strict=True)
    return markdown_table(filled_head, filled_body)


def describe_health(health: Health) -> list[str]:
    """Format the result of `examine` as lines of text."""
    of_kind("health", health, Health, "the Health that examine returns")
    machine = health.environment
    cores = count_of(machine["cores"], "cores")
    threads = count_of(machine["threads"], "threads")
    lines = [
        f"regard {machine['regard']}, torch {machine['torch']}, Python {machine['python']}",
        f"{machine['system']}, {machine['processor']}; {cores}, {threads}",
        "",
        "backends, compared with the float64 oracle; errors relative to the rounding bound",
    ]
    for result in health.findings:
        lines.append(f"  {result.backend} on {result.device}: {_state(result)}")
        for probe, reason in result.wrong.items():
            lines.append(f"      WRONG {probe}: {reason}")
        for reason, probes in _by_reason(result.refused).items():
            lines.append(f"      {', '.join(probes)} refused: {reason}")
    lines += ["", "optional packages"]
    for name, version in health.packages.items():
        if version:
            lines.append(f"  {name} {version}")
            continue
        extra, purpose = PACKAGES[name]
        way = install_line(extra) if extra else f"pip install {name}"
        lines.append(f"  {name} is missing ({purpose}): {way}")
    if not health.compiler:
        lines.append("  a C++ compiler is missing (torch.compile and FlexAttention on the CPU)")
    return lines


def _state(result: Findings) -> str:
    if result.status == "refused":
        return "refused every problem"
    verdict = "WRONG" if result.status == "wrong" else "ok"
    right = len(result.errors.keys() - result.wrong.keys())
    tried = len(result.errors.keys() | result.wrong.keys())
    largest = max(result.errors.values(), default=0.0)
    return (
        f"{verdict}: {right} of {tried} problems right, {len(result.gradients)} with gradients, "
        f"{len(result.refused)} refused, largest error {largest:.0%} of the bound"
    )


def _by_reason(refused: dict[str, str]) -> dict[str, list[str]]:
    """The names of refused problems by the reason."""
    probes: dict[str, list[str]] = {}
    for probe, reason in refused.items():
        probes.setdefault(reason, []).append(probe)
    return probes


def _rows(contest: dict[str, Any], peaks: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """One row for each contender: name, CPU time, wall time, how much faster the first is, its rate, and notes."""
    ours = contest["contenders"][contest["ours"]]
    clock = _clock(ours)
    for name, record in contest["contenders"].items():
        if "backend" in record:
            name = f"{name} ({record['backend']})"
        faster = ""
        if clock in record and record is not ours:
            faster = f"{record[clock]['median'] / ours[clock]['median']:.2f}x"
        remarks = record.get("notes", [])
        if record["status"] != "measured":
            remarks = [f"{record['status']}: {record['reason']}"]
        times = [_time(record, each) for each in ("cpu", "cuda", "wall")]
        yield name, *times, faster, _rate(contest, record, peaks), "; ".join(remarks)


def _attention(contest: dict[str, Any]) -> str:
    """Which share of a whole model its own attention takes, if it was measured."""
    if "attention" not in contest:
        return ""
    return f"; its own attention takes {contest['attention']:.0%} of the time"


def _rate(contest: dict[str, Any], record: dict[str, Any], peaks: dict[str, Any]) -> str:
    """What a contender computed or read in a second of CPU time, with its share of the peak; "" where it is unknown."""
    amount = contest.get("amount", {})
    if not amount or not peaks or "cpu" not in record:
        return ""
    if "bytes" in amount:
        unit, count, peak = "GB/s", amount["bytes"], peaks["sum"]
    else:
        unit, count, peak = "GF/s", amount["operations"], peaks[amount["dtype"]]
    rate = count / record["cpu"]["median"] / 1e9
    return f"{rate:.3g} {unit}, {rate / peak:.0%}"


def _clock(record: dict[str, Any]) -> str:
    """The clock of a record whose times are compared: CPU time, or time on a GPU; "" if it was not timed."""
    for clock in ("cpu", "cuda"):
        if clock in record:
            return clock
    return ""


def _time(record: dict[str, Any], clock: str) -> str:
    if clock not in record:
        return ""
    times = record[clock]
    return f"{seconds(times['median'])} ({seconds(times['low'])} to {seconds(times['high'])})"


@dataclass(frozen=True)
class PromiseSummary:
    """How many promises were kept, "" where none belongs to these cases; and what was missed or is wrong."""

    counts: str
    faults: list[str]

    def lines(self) -> list[str]:
        return [self.counts, *self.faults] if self.counts else self.faults


def _summary(results: Results) -> PromiseSummary:
    promises = 0
    kept = 0
    missed = []
    for name, case in results.cases.items():
        for contest in case["contests"]:
            for promise in contest["promises"]:
                promises += 1
                if promise["kept"] is True:
                    kept += 1
                elif promise["kept"] is False:
                    text = promise["text"].removesuffix(": missed")
                    missed.append(f"Missed in {name}, {contest['label']}: {text}")

    counts = ""
    if promises:
        unknown = promises - kept - len(missed)
        counts = f"{kept} promises kept, {len(missed)} missed, {unknown} not measured."
    wrong = [f"Wrong: {mistake}" for mistake in results.our_mistakes]
    return PromiseSummary(counts, missed + wrong)
