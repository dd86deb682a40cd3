"""Progress of a training: a live bar on a terminal, a line every few steps elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from regard_lab.cli.console import duration, has_terminal, say, terminal
from regard_lab.text.terminal import printable
from regard_lab.training import Event, Noticed, Progress, Saved, Started, StepDone, StepSkipped, Validated

FIRST = "preparing the first step"  # until it is done


@contextmanager
def training_progress(quiet_steps: int = 100) -> Generator[Progress]:
    """A context that gives a function for `train(progress=...)`: a bar, or a line every `quiet_steps` steps."""
    if not has_terminal():
        yield lambda event: _plain(event, quiet_steps)
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("{task.fields[steps]}"),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=terminal(), transient=True) as bar:
        task = bar.add_task(FIRST, total=None, steps="")
        yield lambda event: _live(event, bar, task)


def _live(event: Event, bar: Any, task: Any) -> None:
    if isinstance(event, Started):
        first = f"preparing step {event.step + 1}" if event.step else FIRST
        bar.update(task, completed=event.step, total=event.steps, description=first)
    elif isinstance(event, StepDone):
        count = f"step {event.step}" if event.steps is None else f"{event.step}/{event.steps}"
        bar.update(task, completed=event.step, total=event.steps, steps=count, description=_speed(event))
    for line in _remarks(event):
        bar.console.print(printable(line), markup=False)


def _plain(event: Event, quiet_steps: int) -> None:
    if isinstance(event, StepDone) and event.step % quiet_steps == 0 and event.step != event.steps:
        of = "" if event.steps is None else f" of {event.steps}"
        say(f"  step {event.step}{of}: {_speed(event)}")
    for line in _remarks(event):
        say(line)


def _speed(event: StepDone) -> str:
    has_end = event.seconds_left is not None and event.step != event.steps
    left = f", {duration(event.seconds_left)} left" if has_end else ""
    return f"loss {event.loss:.3f}, {event.tokens_per_second:,.0f} target ids per second{left}"


def _remarks(event: Event) -> list[str]:
    if isinstance(event, Started):
        of = "" if event.steps is None else f" of {event.steps}"
        begun = [f"  going on after step {event.step}{of}"] if event.step else []
        return [*begun, *(f"  {note}" for note in event.notes)]
    if isinstance(event, Validated):
        return [f"  step {event.step}: validation loss {event.loss:.4f}{', the best so far' if event.is_best else ''}"]
    if isinstance(event, StepSkipped):
        return [
            f"  step {event.step}: loss or gradient was not finite, so the weights were not changed ({event.in_a_row} "
            f"in a row)"
        ]
    if isinstance(event, Noticed):
        return [f"  step {event.step}: {event.text}"]
    assert isinstance(event, StepDone | Saved)
    return []
