"""The curves of a run as a picture: losses, the moments when a skill is learned, and the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.errors import DataError
from regard_lab.training.log import RIGHT, about_lost, read_log

LEARNED = 0.95  # share of right ids from which on a skill is learned


def draw_curves(log_path: str | Path, png_path: str | Path) -> list[str]:
    """Draw the losses in nats per token on a logarithmic axis, and below them the learning rate, over the steps.

    A vertical line marks the first validation at which 95 % of the ids of a skill were right: the pronouns of the
    embedded corpus, or placeholders.

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
    from regard_lab.seeing.palette import FAINT

    damaged: list[str] = []
    lines = read_log(log_path, damaged)
    lost = about_lost(Path(log_path), damaged, lines)
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
        _draw_losses(losses, training, validation)
        if all(line["loss"] > 0 for line in (*training, *validation)):
            from matplotlib.ticker import StrMethodFormatter

            losses.set_yscale("log")
            losses.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        _mark_skills(losses, validation)
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


def _draw_losses(
    axes: Any, training: list[dict[str, Any]], validation: list[dict[str, Any]]
) -> None:
    from regard_lab.seeing.palette import TRAINING_LOSS, VALIDATION_LOSS

    # A single point makes no line, so it is drawn as a dot.
    marker = "." if len(training) == 1 else None
    axes.plot(
        *_points(training, "loss"),
        color=TRAINING_LOSS,
        linewidth=1.2,
        marker=marker,
        label="training, as minimised",
    )
    if not validation:
        return

    best = min(validation, key=lambda line: line["loss"])
    label = f"validation, best {best['loss']:.3g} at step {best['step']}"
    axes.plot(
        *_points(validation, "loss"),
        color=VALIDATION_LOSS,
        marker="o",
        markersize=3,
        label=label,
    )
    axes.plot(best["step"], best["loss"], color=VALIDATION_LOSS, marker="o", markersize=7)


def learned_at(validation: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """For each skill the step of the first validation at which it was learned, as lines of a log have it.

    >>> learned_at([{"step": 10, "right_pronouns": 0.4}, {"step": 20, "right_pronouns": 0.97}])
    {'pronouns': 20}
    """
    steps: dict[str, int] = {}
    for line in validation:
        for name, share in line.items():
            if name.startswith(RIGHT) and _is_number(share) and share >= LEARNED:
                steps.setdefault(name.removeprefix(RIGHT), line["step"])
    return steps


def _mark_skills(axes: Any, validation: Sequence[Mapping[str, Any]]) -> None:
    from regard_lab.seeing.palette import FAINT

    names_at: dict[int, list[str]] = {}
    for name, step in learned_at(validation).items():
        names_at.setdefault(step, []).append(name)
    for step, names in names_at.items():
        axes.axvline(step, ymax=0.82, color=FAINT, linestyle=":", linewidth=1.2)
        # Inside of the axes, on the side with more room.
        first = validation[0]["step"]
        last = validation[-1]["step"]
        is_late = step > (first + last) / 2
        axes.annotate(
            f"{' and '.join(names)}\n{LEARNED:.0%} right at step {step}",
            (step, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(-5 if is_late else 5, 0),
            textcoords="offset points",
            ha="right" if is_late else "left",
            va="bottom",
            fontsize="small",
        )


def _points(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    drawn = [line for line in lines if _is_number(line.get(name))]
    steps = [line["step"] for line in drawn]
    values = [line[name] for line in drawn]
    return steps, values


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
