"""What a comparison keeps: its settings, its rows, and the report as Markdown, a picture and JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.errors import MissingPackageError
from regard.inspection.quality.report import COLOURS, MARKS
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed_or_older
from regard.studies.comparison.measures import Measures
from regard.training.recipes.language import LanguageModelTraining
from regard.training.recipes.recipe import Tell, silent
from regard.training.recipes.translation import TranslationTraining

ABOUT_THE_STUDY = ("task", "own", "cache_mib", "length", "equal_parameters")  # settings of no training
MARKDOWN, JSON, PICTURE = "compare.md", "compare.json", "compare.png"
KIB = 1024


def write_report(rows: Sequence[Measures], asked: dict[str, Any], folder: Path) -> list[Path]:
    """Write `compare.md`, `compare.json` and `compare.png` into a folder, whole or not at all.

    Args:
        rows: what was measured, in the order of the report.
        asked: what all had in common, JSON values; `cache_mib` and `length` among them.
        folder: where they go.

    Raises:
        MissingPackageError: matplotlib is not installed.
        CheckpointError: a file could not be written.
    """
    replace_file(folder / JSON, (json.dumps({"asked": asked, "rows": [row.to_dict() for row in rows]}, indent=1)
                                 + "\n").encode())  # fmt: skip
    replace_file(folder / MARKDOWN, render_markdown(rows, asked).encode())
    replace_file(folder / PICTURE, _drawn(rows))
    return [folder / name for name in (MARKDOWN, JSON, PICTURE)]


def render_markdown(rows: Sequence[Measures], asked: dict[str, Any]) -> str:
    """The report as text."""
    shared = ", ".join(f"{name.replace('_', ' ')} {_said(value)}" for name, value in asked.items() if name != "own")
    scores = list(rows[0].quality)
    lines = [
        f"# Side by side: {', '.join(row.name for row in rows)}", "",
        f"The same data, split, tokeniser, batches and seed for all: {shared}.", "",
        "## Quality", "",
        *_table(["", "numbers", *scores],
                [[row.name, f"{row.parameters:,}", *(f"{row.quality[name]:.3f}" for name in scores)] for row in rows]),
        "", "## Cost", "",
        *_table(["", "steps", "training seconds", "CPU seconds", "peak MiB", "ids written a second"],
                [[row.name, f"{row.spent.steps:,}", f"{row.spent.seconds:.1f}",
                  "" if row.spent.cpu_seconds is None else f"{row.spent.cpu_seconds:.1f}",
                  "" if row.spent.peak_bytes is None else f"{row.spent.peak_bytes / KIB**2:.0f}",
                  f"{row.decoding['ids a second']:,.0f}"] for row in rows]),
        "", "## What is kept to go on", "",
        *_table(["", "KiB an id read", "KiB an id written", "KiB once",
                 f"texts of {count_of(asked['length'], 'ids')} in {asked['cache_mib']} MiB"],
                [[row.name, *(f"{row.memory[name] / KIB:.2f}" for name in
                              ("bytes an id read", "bytes an id written", "bytes once")),
                  f"{row.memory['texts that fit']:,.0f}"] for row in rows]),
    ]  # fmt: skip
    if rows[0].by_length:
        groups = [f"{group['words_from']:.0f} to {group['words_to']:.0f} words" for group in rows[0].by_length]
        cells = [[row.name, *(f"{group['exact_match']:.3f} ({group['chrf']:.1f})" for group in row.by_length)]
                 for row in rows]  # fmt: skip
        lines += ["", "## Against the length of the source", "", "Exact match (chrF).", "",
                  *_table(["", *groups], cells)]  # fmt: skip
    lines += [
        "", f"![Curves]({PICTURE})", "",
        "Seconds are those of this machine while it ran, and one seed is one draw: small differences mean nothing. "
        "Peak memory is what the process held beyond what it held before training.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _drawn(rows: Sequence[Measures]) -> bytes:
    """Validation loss over steps and over seconds and, for translators, exact match against length."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("drawing needs the package matplotlib; pip install 'regard[train]'") from error
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        panels = 3 if rows[0].by_length else 2
        figure = Figure(figsize=(4.2 * panels, 3.8), dpi=120, layout="constrained", facecolor="white")
        axes = figure.subplots(1, panels)
        for number, row in enumerate(rows):
            kind = number % len(COLOURS)
            look = {"color": COLOURS[kind], "marker": MARKS[kind], "markersize": 4, "linewidth": 1.4}
            steps, seconds, losses = ([point[at] for point in row.curve] for at in range(3))
            axes[0].plot(steps, losses, label=row.name, **look)
            axes[1].plot(seconds, losses, **look)
            if row.by_length:
                middles = [(group["words_from"] + group["words_to"]) / 2 for group in row.by_length]
                axes[2].plot(middles, [group["exact_match"] for group in row.by_length], **look)
        axes[0].set(xlabel="step", ylabel="validation loss (nats per id)")
        axes[1].set(xlabel="seconds of training", ylabel="validation loss (nats per id)")
        for panel in axes[:2]:
            panel.set_yscale("log")
        if panels == 3:
            axes[2].set(xlabel="words of the source", ylabel="exact match", ylim=(-0.03, 1.03))
        for panel in axes:
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=min(4, len(rows)), frameon=False)
        picture = BytesIO()
        figure.savefig(picture, format="png")
    return picture.getvalue()


def _said(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def read_asked(path: Path, tell: Tell = silent) -> dict[str, Any]:
    """The settings of a comparison; unsealed settings of an older version are read as they are, and
    `tell` is handed a remark.

    Raises:
        CheckpointError: damaged, or no such file.
    """
    kinds = (TranslationTraining.Config, LanguageModelTraining.Config)
    known = {*ABOUT_THE_STUDY, *(field.name for kind in kinds for field in fields(kind))}
    return _kept(path, known, ("task", "own"), tell)


def read_measures(path: Path, tell: Tell = silent) -> Measures:
    """A row that was measured before; likewise.

    Raises:
        CheckpointError, ArgumentError: damaged, or no such file.
    """
    known = [field.name for field in fields(Measures)]
    return Measures.from_dict(_kept(path, known, known, tell))


def _kept(path: Path, known: Collection[str], needed: Iterable[str], tell: Tell) -> dict[str, Any]:
    content, is_sealed = read_sealed_or_older(path, known, needed)
    if not is_sealed:
        tell(f"{path} was written before such files were sealed, so damage cannot be noticed")
    return content
