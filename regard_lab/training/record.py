"""What a run reports: a checked line of JSON for every few steps, its curves, events, and time."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from regard.arguments import a_path, count_of
from regard.errors import CheckpointError, DataError
from regard.reprs import brief
from regard.storage.files import open_plain, replace_file, sync
from regard.storage.sealed_json import parse_json

CHECK = "crc32"
_CHECKED = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}', re.DOTALL)


class Log:
    """The log of a run, opened at a step: lines of later steps, left by a killed session, are cut.

    `notes` has a sentence about lines that were there and cannot be read; the others are kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Log(Path(folder) / "log.jsonl", step=0)
    ...     log.write({"step": 10, "kind": "training", "loss": 2.5})
    ...     read_log(Path(folder) / "log.jsonl")
    [{'step': 10, 'kind': 'training', 'loss': 2.5}]
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        lost: list[str] = []
        before = read_log(path, lost) if path.exists() else []
        self.notes = _about_lost(path, lost, before)
        replace_file(
            path, "".join(_render(line) for line in before if line["step"] <= step).encode()
        )

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; a number that JSON does not have (an infinite loss) is written as null."""
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in line.items()
        }
        with self._writing(), open(self._path, "a", encoding="utf-8") as file:
            file.write(_render(clean))

    def sync(self) -> None:
        """Wait until the lines are on the disk, so that no checkpoint is newer than its log."""
        with self._writing():
            sync(self._path)

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self._path} could not be written: {error.strerror or error}"
            ) from error


def read_log(path: str | Path, lost: list[str] | None = None) -> list[dict[str, Any]]:
    """The lines of a training log; a last line that a kill tore is left out.

    Args:
        path: a `log.jsonl`.
        lost: receives a sentence about each line that cannot be read; without it the first such line is refused.

    Returns:
        One dict a line: `step`, `kind` ("training" or "validation"), `loss` in nats per token, and for training
        `learning_rate`, `gradient_norm`, `tokens` and `seconds` so far.

    Raises:
        CheckpointError: the file is missing, no plain file, or has a damaged line.
    """
    path = a_path("path", path)
    with open_plain(path) as file:
        *whole, torn = file.read().split(b"\n")
    # A kill leaves the beginning of a line; where its brace is there, the line's end was changed.
    if b"}" in torn[:-1]:
        whole.append(torn)
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(whole, start=1):
        try:
            lines.append(_parse(text, lines, f"{path}, line {number},"))
        except CheckpointError as error:
            if lost is None:
                raise
            lost.append(str(error))
    return lines


def _about_lost(path: Path, lost: list[str], lines: list[dict[str, Any]]) -> list[str]:
    """One sentence about the lines of a log that cannot be read; none where all can."""
    if not lost:
        return []
    count = count_of(len(lost), "lines")
    return [f"{count} of {path} cannot be read, and {len(lines)} can; the first reason: {lost[0]}"]


def _parse(text: bytes, before: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """A line of the log; one that is damaged, repeats one of those before it, or belongs before them is refused."""
    checked = _CHECKED.fullmatch(text)
    if not checked or int(checked[2], 16) != zlib.crc32(checked[1]):
        raise CheckpointError(f"{where} does not match its CRC-32, so it was changed or damaged")
    line = parse_json(checked[1] + b"}", where)
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        raise CheckpointError(f"{where} has no step; it is not a line of a training log")
    step = line["step"]
    last = before[-1]["step"] if before else 0
    if step < last:
        raise CheckpointError(
            f"{where} is of step {step} and comes after step {last}, so lines were moved or doubled"
        )
    same_step = takewhile(lambda earlier: earlier["step"] == step, reversed(before))
    if any(earlier.get("kind") == line.get("kind") for earlier in same_step):
        raise CheckpointError(
            f"{where} is a second line of step {step} and its kind, so it was doubled"
        )
    return line


def _render(line: dict[str, Any]) -> str:
    text = json.dumps(line)[:-1]
    return f'{text}, "{CHECK}": "{zlib.crc32(text.encode()):08x}"}}\n'


def draw_curves(log_path: str | Path, png_path: str | Path) -> list[str]:
    """Draw the losses in nats per token, and below them the learning rate, over the steps.

    Lines of the log that cannot be read are left out, and the picture shows how many.

    Args:
        log_path: the `log.jsonl` of a run.
        png_path: where the picture goes, a PNG, SVG or PDF by its name; an old one is replaced.

    Returns:
        One sentence about the lines that cannot be read; none where all can.

    Raises:
        ArgumentError: the picture's name has another ending, or its folder does not exist.
        DataError: there is no line to draw yet.
        CheckpointError: the log is missing.
        MissingPackageError: matplotlib is not installed.

    >>> draw_curves("nowhere/log.jsonl", "curves.png")
    Traceback (most recent call last):
    regard.errors.CheckpointError: nowhere/log.jsonl cannot be read: No such file or directory
    """
    from regard_lab.seeing.canvas import checked_path, new_figure, save
    from regard_lab.seeing.palette import FAINT, TRAINING_LOSS, VALIDATION_LOSS

    damaged: list[str] = []
    lines = read_log(log_path, damaged)
    lost = _about_lost(Path(log_path), damaged, lines)
    with_loss = [line for line in lines if _is_number(line.get("loss"))]
    training = [line for line in with_loss if line.get("kind") == "training"]
    validation = [line for line in with_loss if line.get("kind") == "validation"]
    if not training and not validation:
        count = count_of(len(lines), "lines")
        reason = f"{log_path} has no loss in its {count}, so there is no curve to draw yet"
        raise DataError("; ".join([reason, *lost]))

    with new_figure() as figure:
        figure.set(size_inches=(7, 5), layout_engine="constrained")
        losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        # A single point makes no line, so it is drawn as a dot.
        marker = "." if len(training) == 1 else None
        losses.plot(
            *_points(training, "loss"),
            color=TRAINING_LOSS,
            linewidth=1.2,
            marker=marker,
            label="training, as minimised",
        )
        if validation:
            best = min(validation, key=lambda line: line["loss"])
            label = f"validation, best {best['loss']:.3g} at step {best['step']}"
            losses.plot(
                *_points(validation, "loss"),
                color=VALIDATION_LOSS,
                marker="o",
                markersize=3,
                label=label,
            )
            losses.plot(best["step"], best["loss"], color=VALIDATION_LOSS, marker="o", markersize=7)
        losses.set(ylabel="loss (nats per token)")
        losses.legend(frameon=False)
        rates.plot(*_points(training, "learning_rate"), color=FAINT, linewidth=1.2)
        rates.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
        rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        for axes in (losses, rates):
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        if lost:
            count = count_of(len(damaged), "damaged lines")
            figure.suptitle(f"left out: {count} of the log", fontsize="small")
        save(figure, checked_path(png_path))
    return lost


def _points(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    drawn = [line for line in lines if _is_number(line.get(name))]
    steps = [line["step"] for line in drawn]
    values = [line[name] for line in drawn]
    return steps, values


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@brief
@dataclass(frozen=True)
class Started:
    """Training begins or goes on: `step` steps are done; `notes` list what differs harmlessly from before.

    `steps`, here and in the other events, is the number of the last step, as planned now; None while it is not known.
    """

    step: int
    steps: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepDone:
    """One optimiser step: loss in nats per target token, and the gradients' norm before clipping."""

    step: int
    steps: int | None
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds_left: float | None


@dataclass(frozen=True)
class Validated:
    """The plain cross entropy over the validation batches, in nats per token; `is_best` of all so far."""

    step: int
    loss: float
    is_best: bool


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint is on the disk."""

    step: int
    folder: str
    is_best: bool


@dataclass(frozen=True)
class Stopping:
    """A signal asked to stop: after the step that runs, the run is saved. Reported by the handler of the signal."""

    step: int


Event = Started | StepDone | Validated | Saved | Stopping
Progress = Callable[[Event], None]
Showing = Callable[[], AbstractContextManager[Progress | None]]
"""Makes a context that gives a function for the events of a training."""


class TrainingClock:
    """Seconds of this run on the wall and on the processor, with those of the sessions before.

    >>> TrainingClock(wall_before=60.0, cpu_before=50.0).wall() >= 60.0
    True
    """

    def __init__(self, wall_before: float = 0.0, cpu_before: float = 0.0) -> None:
        self._wall_start = monotonic() - wall_before
        self._cpu_start = process_time() - cpu_before
        self._last_tick = monotonic()
        # Averaged over the last twenty steps or so.
        self._seconds = 0.0
        self._tokens = 0.0
        # Over two hundred, for the seconds left, which people read.
        self._long_seconds = 0.0
        self._long_steps = 0.0

    def wall(self) -> float:
        """Seconds on the wall clock."""
        return monotonic() - self._wall_start

    def cpu(self) -> float:
        """Seconds on the processor, summed over this process's threads."""
        return process_time() - self._cpu_start

    def restart_step(self) -> None:
        """Begin a step: the time since the last one (a validation, a save) does not count."""
        self._last_tick = monotonic()

    def step_done(self, tokens: int) -> None:
        """Note the tokens of one step for the two estimates below."""
        seconds = monotonic() - self._last_tick
        self._seconds = 0.95 * self._seconds + seconds
        self._tokens = 0.95 * self._tokens + tokens
        self._long_seconds = 0.995 * self._long_seconds + seconds
        self._long_steps = 0.995 * self._long_steps + 1.0
        self.restart_step()

    def tokens_per_second(self) -> float:
        """Over the last twenty steps or so."""
        return self._tokens / max(self._seconds, 1e-9)

    def seconds_left(self, steps_left: int | None, minutes: float | None) -> float | None:
        """Until the steps or the minutes are used up, whichever comes first; None if neither is known."""
        ends: list[float] = []
        if steps_left is not None:
            ends.append(steps_left * self._long_seconds / max(self._long_steps, 1.0))
        if minutes is not None:
            ends.append(max(0.0, 60 * minutes - self.wall()))
        return min(ends, default=None)
