"""The curves of a run as a picture, drawn from its log alone."""

from io import BytesIO
from pathlib import Path
from typing import Any

from regard.errors import DataError, MissingPackageError
from regard.storage.files import replace_file
from regard.training.log import read_log


def draw_curves(log_path: str | Path, png_path: str | Path) -> None:
    """Draw the losses in nats per token, and below them the learning rate, over the steps.

    Args:
        log_path: the `log.jsonl` of a run.
        png_path: where the picture goes; an old one is replaced.

    Raises:
        DataError: there is no line to draw yet.
        CheckpointError: the log is missing or damaged.
        MissingPackageError: matplotlib is not installed.

    >>> draw_curves("nowhere/log.jsonl", "curves.png")
    Traceback (most recent call last):
    regard.errors.CheckpointError: nowhere/log.jsonl cannot be read: No such file or directory
    """
    lines = read_log(log_path)
    training, validation = (
        [line for line in lines if line.get("kind") == kind and line.get("loss") is not None]
        for kind in ("training", "validation")
    )
    if not training and not validation:
        raise DataError(f"{log_path} has no loss in its {len(lines)} lines, so there is no curve to draw yet")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("drawing needs the package matplotlib; pip install 'regard[train]'") from error
    figure = Figure(figsize=(7, 5), dpi=120, layout="constrained")
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _draw_losses(losses, training, validation)
    rates.plot(*_points(training, "learning_rate"), color="#666666", linewidth=1.2)
    rates.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes in (losses, rates):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    replace_file(Path(png_path), picture.getvalue(), durable=False)  # the log can draw it again


def _draw_losses(axes: Any, training: list[dict[str, Any]], validation: list[dict[str, Any]]) -> None:
    alone = "." if len(training) == 1 else None  # one point makes no line
    axes.plot(*_points(training, "loss"), color="#9db8d9", linewidth=1.2, marker=alone, label="training, as minimised")
    if validation:
        best = min(validation, key=lambda line: line["loss"])
        label = f"validation, best {best['loss']:.3f} at step {best['step']}"
        axes.plot(*_points(validation, "loss"), color="#b3402a", marker="o", markersize=3, label=label)
        axes.plot(best["step"], best["loss"], color="#b3402a", marker="o", markersize=7)
    axes.set(ylabel="loss (nats per token)")
    axes.legend(frameon=False)


def _points(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    return [line["step"] for line in lines], [line[name] for line in lines]
