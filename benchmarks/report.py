"""What the measurements of this folder share: options, a training, results as JSON and as a page, lessons' reports."""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard_lab.bench.results import environment
from regard_lab.teaching.report import REPORTS, Report
from regard_lab.training import Progress, TrainingConfig, TrainingResult, train

RESULTS = Path(__file__).parent / "results"


def options(
    about: str | None, *, out: Path | None = None, seeds: Sequence[int] | None = None
) -> argparse.ArgumentParser:
    """The options that most measurements have; a script adds its own."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out is not None:
        parser.add_argument(
            "--out", type=Path, default=out, help="the folder of the results (default: %(default)s)"
        )
        parser.add_argument(
            "--quick", action="store_true", help="small sizes, only to check that it runs"
        )
    if seeds is not None:
        parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    return parser


def command() -> str:
    """The command that is running, as it is typed; of a path of this machine only the name."""
    script, *words = sys.argv
    words = [Path(word).name if Path(word).is_absolute() else word for word in words]
    return " ".join(["python", f"benchmarks/{Path(script).name}", *words])


def heading(title: str, about: str = "", typed: str = "") -> list[str]:
    """The first lines of a page: its title, the command, the day and PyTorch's version, and what follows these."""
    return [
        f"# {title}",
        "",
        f"`{typed or command()}`, {date.today()}, torch {torch.__version__}{about}.",
        "",
    ]


def write(folder: Path, name: str, content: dict[str, Any], page: Iterable[str]) -> Path:
    """Write NAME.json, with command and environment, and NAME.md; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"command": command(), "environment": environment(), **content}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    path = folder / f"{name}.md"
    path.write_text("\n".join(page) + "\n", encoding="utf-8")
    return path


def write_lesson_report(name: str, command: str, figures: dict[str, Any]) -> Path:
    """Write a report that lessons read, with today's date and this machine, and return its path."""
    cores = count_of(os.cpu_count() or 1, "cores")
    threads = count_of(torch.get_num_threads(), "threads")
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    machine = f"{platform.machine()}, {cores}, {threads}, {versions}"
    report = Report(command=command, day=f"{date.today()}", machine=machine, figures=figures)
    return store_lesson_report(name, report)


def store_lesson_report(name: str, report: Report) -> Path:
    """Write a report as it is, such as one that was measured elsewhere, and return its path."""
    fields = asdict(report)
    figures = ",\n".join(f"  {line}" for line in _json_lines(fields.pop("figures")))
    head = "".join(f" {line},\n" for line in _json_lines(fields))

    path = REPORTS / f"{name}.json"
    path.write_text(f'{{\n{head} "figures": {{\n{figures}\n }}\n}}\n', encoding="utf-8")
    return path


def _json_lines(values: dict[str, Any]) -> list[str]:
    """One line for each value, so that a difference between two reports names the figures that differ."""
    lines = []
    for name, value in values.items():
        lines.append(json.dumps({name: value}, ensure_ascii=False)[1:-1])  # without the braces
    return lines


def trained(
    model: torch.nn.Module,
    task: Any,
    steps: int,
    rate: float,
    seed: int,
    warmup: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train in place, down to a learning rate of zero; in a folder, a training that was stopped continues."""
    intervals = {"validate_every": steps, "save_every": steps}
    config = TrainingConfig(
        steps=steps,
        learning_rate=rate,
        warmup_steps=steps // 10 if warmup is None else warmup,
        schedule="cosine",
        weight_decay=0.01,
        seed=seed,
        **(intervals | settings),
    )
    with tempfile.TemporaryDirectory() as aside:
        result = train(
            model,
            task,
            config,
            folder or aside,
            resume=folder is not None,
            cpu=True,
            progress=progress,
        )
    if result.stopped == "interrupted":
        raise SystemExit("interrupted before the training was complete")
    return result
