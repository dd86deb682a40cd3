"""Writes the report from the records: recipes, tables, verdicts and figures."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from benchmarks.behaviour.experiment import Experiment, Records
from benchmarks.behaviour.results import Results
from benchmarks.behaviour.verdicts import spread
from regard.storage.files import replace_file

FILE = "behaviour.md"


def write_report(results: Results, experiments: Sequence[Experiment], folder: Path) -> None:
    """Write `behaviour.md` and a picture for each experiment that is complete."""
    here = results.environment
    measured = f"Measured on {results.measured}: " if results.measured else ""
    complete = [experiment for experiment in experiments if not results.missing(experiment)]
    lines = [
        "# Published behaviour at small scale", "",
        "`python benchmarks/behaviour.py`" + (" --quick: a fiftieth of the updates, so no verdict means anything."
                                              if results.quick else ""), "",
        f"{measured}regard {here['regard']}, torch {here['torch']}, Python {here['python']}; {here['system']}, "
        f"{here['processor']}; one thread.", "",
        "Each number is the mean over the seeds, with the smallest and the largest in brackets; a claim is kept if "
        "every seed keeps it. CPU seconds are those of one training.", "",
        *_summary(results, complete),
    ]  # fmt: skip
    for experiment in experiments:
        lines += ["", f"## {experiment.title} ({experiment.name})", "", experiment.recipe, ""]
        lines += _table(experiment, results.of(experiment))
        if experiment in complete:
            lines += ["", *(f"- {verdict}" for verdict in experiment.judge(results.of(experiment)))]
            lines += ["", f"![{experiment.title}]({draw(experiment, results.of(experiment), folder).name})"]
        else:
            lines += ["", f"{len(results.missing(experiment))} trainings are missing, so there is no verdict yet."]
    replace_file(folder / FILE, ("\n".join(lines).rstrip() + "\n").encode())


def draw(experiment: Experiment, records: Records, folder: Path) -> Path:
    """Draw `behaviour-NAME.png`."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure = Figure(figsize=(7, 4.2), facecolor="white")
        axes = figure.add_subplot(title=experiment.title)
        experiment.draw(records, axes)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
        drawn = BytesIO()
        figure.savefig(drawn, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
    path = folder / f"behaviour-{experiment.name}.png"
    replace_file(path, drawn.getvalue())
    return path


def _summary(results: Results, complete: Sequence[Experiment]) -> list[str]:
    verdicts = [(one.name, verdict) for one in complete for verdict in one.judge(results.of(one))]
    missed = [f"- missed in {name}: {verdict.text}" for name, verdict in verdicts if not verdict.kept]
    return [f"{len(verdicts) - len(missed)} claims kept, {len(missed)} missed.", *([""] if missed else []), *missed]


def _table(experiment: Experiment, records: Records) -> list[str]:
    heads = ["", *experiment.columns.values(), "seeds", "CPU s"]
    rows = [heads, ["---"] * len(heads)]
    for contender, by_seed in records.items():
        measured = list(by_seed.values())
        cells = [_cell([record[name] for record in measured]) for name in experiment.columns]
        seconds = f"{sum(record['cpu_seconds'] for record in measured) / len(measured):.0f}"
        rows.append([contender, *cells, str(len(measured)), seconds])
    return [f"| {' | '.join(row)} |" for row in rows]


def _cell(found: list[float | str]) -> str:
    """A mean with its extremes, or the value if it is the same for every seed.

    >>> _cell([0.5, 1.0]), _cell(["all", "all"])
    ('0.750 (0.500 to 1.000)', 'all')
    """
    numbers = [number for number in found if isinstance(number, float)]
    if len(numbers) < len(found):
        return str(found[0])
    middle = f"{sum(numbers) / len(numbers):.3f}"
    return middle if len(set(numbers)) == 1 else f"{middle} ({spread(numbers)})"
