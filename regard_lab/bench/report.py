"""Results and findings as text and as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from regard.arguments import count_of, of_kind
from regard.packages import install_line
from regard.storage.files import replace_file
from regard_lab.bench.health import Findings, Health
from regard_lab.bench.results import PACKAGES, Results


def markdown_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table of Markdown, as lines; the | of a pattern is escaped, since it would begin a column.

    >>> markdown_table(("a", "b"), [(1, "causal | fixed(2)")])
    ['| a | b |', '| --- | --- |', '| 1 | causal \\\\| fixed(2) |']
    """
    lines = (
        [str(cell).replace("|", "\\|") for cell in cells]
        for cells in (head, ["---"] * len(head), *rows)
    )
    return [f"| {' | '.join(cells)} |" for cells in lines]


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Rows of cells as lines of text, with cells of a column below each other."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [f"{indent}{'  '.join(cells)}".rstrip() for cells in padded]


def measured_on(results: Results) -> list[str]:
    """Lines of Markdown: the machine and the versions."""
    here = results.environment
    packages = "".join(f", {name} {version}" for name, version in here["packages"].items())
    return [
        f"- Machine: {here['system']}, {here['processor']}, {count_of(here['cores'], 'cores')}",
        f"- Versions: regard {here['regard']}, torch {here['torch']}, Python {here['python']}{packages}",
    ]


FILE = "bench.md"
HEAD = ("", "CPU, 1 thread", "GPU", "wall, all threads", "regard is faster by", "notes")


def describe_results(results: Results) -> list[str]:
    """Format results as lines of text."""
    of_kind("results", results, Results, "the Results of run_bench")
    lines = []
    for name, case in results.cases.items():
        lines += ["", f"{case['title']} ({name})"]
        for contest in case["contests"]:
            lines.append(f"  {contest['work']}")
            lines += aligned([HEAD, *_rows(contest)], "    ")
            lines += [f"    {promise['text']}" for promise in contest["promises"]]
    counts, rest = _summary(results)
    return [*lines, *([""] if counts or rest else []), *filter(None, [counts]), *rest]


def write_report(results: Results, folder: Path) -> None:
    """Write `bench.md`: a summary, a table for each comparison, and how it was measured."""
    replace_file(folder / FILE, render_markdown(results).encode())


def render_markdown(results: Results) -> str:
    """The report as a page of Markdown."""
    here = results.environment
    counts, rest = _summary(results)
    lines = [
        f"# Attention{'' if here['device'] == 'cpu' else ' on a GPU'} compared with other libraries",
        "",
        "Each implementation is checked against a float64 reference before it is timed. Times are medians, with the",
        "lowest and the highest sample in brackets; the implementations take turns.",
        "",
    ]
    if counts:
        lines += [
            f"A promise is a ratio or an amount that this project has set itself as a bound. {counts}",
            "",
        ]
    lines += [f"- {line}" for line in rest]
    for name, case in results.cases.items():
        lines += ["", f"## {case['title']} ({name})"]
        for contest in case["contests"]:
            lines += ["", f"### {contest['label']}", "", f"{contest['work']}", ""]
            lines += _filled_columns([HEAD, *_rows(contest)])
            lines += ["", *(f"- {promise['text']}" for promise in contest["promises"])]
    lines += [
        "",
        "## How it was measured",
        "",
        f"- Command: `{results.command}`",
        f"- {_clocks(here)}",
        *measured_on(results),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _clocks(here: dict[str, Any]) -> str:
    if here["device"] != "cpu":
        return (
            f"GPU: {here['device']}; calls follow each other as within a model, "
            "and time ends when the last is computed"
        )
    return (
        f"CPU time is that of the process on 1 thread; wall time is on {count_of(here['threads'], 'threads')}, and "
        "other load on the machine affects it"
    )


def _filled_columns(rows: list[tuple[str, ...]]) -> list[str]:
    """A table of Markdown without the columns that are empty in every row."""
    head, *body = rows
    kept = [at for at in range(len(head)) if at == 0 or any(row[at] for row in body)]
    return markdown_table([head[at] for at in kept], ([row[at] for at in kept] for row in body))


def describe_health(health: Health) -> list[str]:
    """Format the result of `examine` as lines of text."""
    of_kind("health", health, Health, "the Health that examine returns")
    here = health.environment
    lines = [
        f"regard {here['regard']}, torch {here['torch']}, Python {here['python']}",
        f"{here['system']}, {here['processor']}; {count_of(here['cores'], 'cores')}, "
        f"{count_of(here['threads'], 'threads')}",
        "",
        "backends, compared with the float64 oracle; errors relative to the rounding bound",
    ]
    for result in health.findings:
        lines.append(f"  {result.backend} on {result.device}: {_state(result)}")
        lines += [f"      WRONG {probe}: {reason}" for probe, reason in result.wrong.items()]
        lines += [
            f"      {probe} refused: {reason}" for probe, reason in _by_reason(result.refused)
        ]
    lines += ["", "optional packages"]
    for name, version in health.packages.items():
        extra, purpose = PACKAGES[name]
        way = install_line(extra) if extra else f"pip install {name}"
        lines.append(
            f"  {name} {version}" if version else f"  {name} is missing ({purpose}): {way}"
        )
    if not health.compiler:
        lines.append("  a C++ compiler is missing (torch.compile and FlexAttention on the CPU)")
    return lines


def _state(result: Findings) -> str:
    if result.status == "refused":
        return "refused every problem"
    right = len(result.errors) - len(result.wrong.keys() & result.errors.keys())
    tried = len(result.errors.keys() | result.wrong.keys())
    refused = len(result.refused)
    words = f"{right} of {tried} problems right, {len(result.gradients)} with gradients, {refused} refused"
    largest = max(result.errors.values(), default=0.0)
    return f"{'WRONG' if result.status == 'wrong' else 'ok'}: {words}, largest error {largest:.0%} of the bound"


def _by_reason(refused: dict[str, str]) -> list[tuple[str, str]]:
    """Refused problems, grouped by reason."""
    probes: dict[str, list[str]] = {}
    for probe, reason in refused.items():
        probes.setdefault(reason, []).append(probe)
    return [(", ".join(names), reason) for reason, names in probes.items()]


def seconds(value: float) -> str:
    """A time in a suitable unit.

    >>> seconds(0.0000123), seconds(0.0456), seconds(3.21)
    ('12.3 µs', '45.6 ms', '3.21 s')
    """
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if value * factor < 999.5:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


def _rows(contest: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """One row for each contender: name, CPU time, wall time, how much faster the first is, and notes."""
    ours = contest["contenders"][contest["ours"]]
    for name, answer in contest["contenders"].items():
        shown = f"{name} ({answer['backend']})" if "backend" in answer else name
        faster = ""
        clock = _clock(ours)
        if clock in answer and answer is not ours:
            faster = f"{answer[clock]['median'] / ours[clock]['median']:.2f}x"
        remarks = answer.get("notes", [])
        if answer["status"] != "measured":
            remarks = [f"{answer['status']}: {answer['reason']}"]
        times = (_time(answer, clock) for clock in ("cpu", "cuda", "wall"))
        yield shown, *times, faster, "; ".join(remarks)


def _clock(answer: dict[str, Any]) -> str:
    """The clock of a record whose times are compared: CPU time, or time on a GPU; "" if it was not timed."""
    return next((clock for clock in ("cpu", "cuda") if clock in answer), "")


def _time(answer: dict[str, Any], clock: str) -> str:
    if clock not in answer:
        return ""
    times = answer[clock]
    return f"{seconds(times['median'])} ({seconds(times['low'])} to {seconds(times['high'])})"


def _summary(results: Results) -> tuple[str, list[str]]:
    """How many promises were kept, "" where none belongs to these cases; then what was missed and what is wrong."""
    promises = [
        (f"{name}, {contest['label']}", promise)
        for name, case in results.cases.items()
        for contest in case["contests"]
        for promise in contest["promises"]
    ]
    kept, missed = (
        [one for one in promises if one[1]["kept"] is answer] for answer in (True, False)
    )
    unknown = len(promises) - len(kept) - len(missed)
    counts = (
        f"{len(kept)} promises kept, {len(missed)} missed, {unknown} not measured."
        if promises
        else ""
    )
    lines = [
        f"Missed in {place}: {promise['text'].removesuffix(': missed')}"
        for place, promise in missed
    ]
    return counts, lines + [f"Wrong: {mistake}" for mistake in results.our_mistakes]
