"""What a comparison keeps: its settings, its rows, and the report as Markdown, a picture and JSON."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from regard.arguments import count_of
from regard.errors import CheckpointError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed
from regard_lab.bench.report import markdown_table, new_picture
from regard_lab.seeing.canvas import LINES, MARKS
from regard_lab.training.comparison.measures import Measures

ABOUT_THE_STUDY = ("task", "own", "cache_mib", "length", "equal_parameters", "size")  # settings of no training
MARKDOWN, JSON, PICTURE = "compare.md", "compare.json", "compare.png"
KIB = 1024
LETTERS_IN_AN_INCH, LETTERS_OF_A_MARK = 12, 7  # of the picture's legend
PEAK = (
    "Peak memory is that of the process during training, above its memory before training. A small training comes",
    "first, so that what a process loads once counts for no model.", "",
)  # fmt: skip


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
    draw(rows, folder / PICTURE)
    return [folder / name for name in (MARKDOWN, JSON, PICTURE)]


def render_markdown(rows: Sequence[Measures], asked: dict[str, Any]) -> str:
    """The report as text."""
    peak = ["peak MiB"] if any(row.spent.peak_bytes is not None for row in rows) else []
    of = ["bytes an id read", "bytes an id written", "bytes once"]
    per = ["KiB per source id", "KiB per target id", "KiB per text"]
    if asked.get("task") == "language-model":  # which has no source
        of, per = of[1:], ["KiB per id", "KiB per text"]
    measures, names = list(rows[0].quality), short_names([row.name for row in rows])
    lines = [
        f"# {count_of(len(rows), 'models')} compared: {', '.join(names.values())}", "",
        "All models have the same data, split, tokeniser, batches and seed. Times are those of one machine, and one",
        "seed is one sample: small differences mean nothing.", "",
        "## Quality", "",
        *markdown_table(["", "parameters", *measures],
                [[names[row.name], f"{row.parameters:,}", *(shown_number(row.quality[name]) for name in measures)]
                 for row in rows]),
        "", "## Cost", "",
        *markdown_table(["", "steps", "training seconds", "CPU seconds", *peak, "ids written per second"],
                [[names[row.name], f"{row.spent.steps:,}", f"{row.spent.seconds:.1f}",
                  "" if row.spent.cpu_seconds is None else f"{row.spent.cpu_seconds:.1f}",
                  *["" if row.spent.peak_bytes is None else f"{row.spent.peak_bytes / KIB**2:.0f}" for _ in peak],
                  f"{row.decoding['ids a second']:,.0f}"] for row in rows]),
        "", "## Memory of the decoder's state", "",
        *markdown_table(["", *per, f"texts of {count_of(asked['length'], 'ids')} in {asked['cache_mib']} MiB"],
                [[names[row.name], *(f"{row.memory[name] / KIB:.2f}" for name in of),
                  f"{row.memory['texts that fit']:,.0f}"] for row in rows]),
    ]  # fmt: skip
    if rows[0].by_length:
        groups = [_span(group["words_from"], group["words_to"]) for group in rows[0].by_length]
        cells = [[names[row.name], *(f"{group['exact_match']:.3f} ({group['chrf']:.1f})" for group in row.by_length)]
                 for row in rows]  # fmt: skip
        lines += ["", "## By the length of the source", "", "Exact match, with chrF in brackets.", "",
                  *markdown_table(["", *groups], cells)]  # fmt: skip
    lines += [
        "", f"![Validation loss over steps and over seconds]({PICTURE})", "",
        "## Settings", "",
        *markdown_table(["setting", "value"], [[name.replace("_", " "), _said(value)] for name, value in asked.items()
                                       if name != "own"]), "",
        *(PEAK if peak else ()),
    ]  # fmt: skip
    return "\n".join(lines)


def shown_number(value: float) -> str:
    """A count with its commas, another number with three decimals."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The names without the settings that all have in common.

    >>> short_names(["lstm cells=8 seed=1", "lstm cells=8 seed=2"])
    {'lstm cells=8 seed=1': 'lstm seed=1', 'lstm cells=8 seed=2': 'lstm seed=2'}
    """
    common = set.intersection(*(set(_parts(name)[1:]) for name in names)) if len(names) > 1 else set()
    return {name: " ".join([first, *(part for part in rest if part not in common)])
            for name in names for first, *rest in [_parts(name)]}  # fmt: skip


def _parts(name: str) -> list[str]:
    """A model and its settings; spaces and = within a pattern or a mechanism belong to it.

    >>> _parts("transformer heads=8 attention=causal & random_blocks(2, block=8)")
    ['transformer', 'heads=8', 'attention=causal & random_blocks(2, block=8)']
    """
    return re.split(r" (?=\w+=)(?![^(]*\))", name)


def _span(first: float, last: float) -> str:
    return f"{first:.0f} words" if first == last else f"{first:.0f} to {last:.0f} words"


def draw(rows: Sequence[Measures], path: Path) -> None:
    """Validation loss over steps and over seconds and, for translators, exact match against length."""
    names = short_names([row.name for row in rows])
    panels = 3 if rows[0].by_length else 2
    with new_picture(path, 4.2 * panels, 3.8) as figure:
        axes = figure.subplots(1, panels)
        for number, row in enumerate(rows):
            kind = number % len(LINES)
            look = {"color": LINES[kind], "marker": MARKS[kind], "markersize": 4, "linewidth": 1.4}
            steps, seconds, losses = ([point[at] for point in row.curve] for at in range(3))
            axes[0].plot(steps, losses, label=names[row.name], **look)
            axes[1].plot(seconds, losses, **look)
            if row.by_length:
                middles = [(group["words_from"] + group["words_to"]) / 2 for group in row.by_length]
                axes[2].plot(middles, [group["exact_match"] for group in row.by_length], **look)
        axes[0].set(xlabel="step", ylabel="validation loss (nats per id)")
        axes[1].set(xlabel="seconds of training", ylabel="validation loss (nats per id)")
        for panel in axes[:2]:
            panel.set_yscale("log")
            write_plainly(panel)
        if panels == 3:
            axes[2].set(xlabel="words of the source", ylabel="exact match", ylim=(-0.03, 1.03))
        for panel in axes:
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
        room = int(LETTERS_IN_AN_INCH * figure.get_figwidth())
        columns = max(1, min(4, len(rows), room // (max(map(len, names.values())) + LETTERS_OF_A_MARK)))
        legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False)
        for name in legend.get_texts():
            name.set(text=fill(name.get_text(), room - LETTERS_OF_A_MARK), parse_math=False)


def write_plainly(panel: Any) -> None:
    """Label a logarithmic axis of losses 2 and 0.5, in place of 2 × 10⁰ and 5 × 10⁻¹."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    panel.yaxis.set_major_formatter(Plain())
    panel.yaxis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(2, 0.4)))


def _said(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def read_asked(path: Path) -> dict[str, Any]:
    """The settings of a comparison.

    Raises:
        CheckpointError: damaged, or no such file.
    """
    asked = read_sealed(path)
    if missing := {"task", "own"} - asked.keys():
        raise CheckpointError(f"{path} lacks {', '.join(sorted(missing))}, which this file must have")
    return asked


def read_measures(path: Path) -> Measures:
    """A row that was measured before.

    Raises:
        CheckpointError, ArgumentError: damaged, or no such file.
    """
    return Measures.from_dict(read_sealed(path))
