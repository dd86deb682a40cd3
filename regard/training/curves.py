"""The curves of a run as a picture, drawn from its log alone."""

from io import BytesIO
from pathlib import Path
from typing import Any

from regard.errors import DataError, MissingPackageError
from regard.storage.files import replace_file
from regard.training.log import read_what_is_left


def draw_curves(log_path: str | Path, png_path: str | Path) -> list[str]:
    """Draw the losses in nats per token, and below them the learning rate, over the steps.

    Lines of the log that cannot be read are left out, and the picture says how many.

    Args:
        log_path: the `log.jsonl` of a run.
        png_path: where the picture goes; an old one is replaced.

    Returns:
        One sentence about the lines that cannot be read; none where all can.

    Raises:
        DataError: there is no line to draw yet.
        CheckpointError: the log is missing.
        MissingPackageError: matplotlib is not installed.

    >>> draw_curves("nowhere/log.jsonl", "curves.png")
    Traceback (most recent call last):
    regard.errors.CheckpointError: nowhere/log.jsonl cannot be read: No such file or directory
    """
    found = read_what_is_left(log_path)
    lost = found.report(Path(log_path))
    training, validation = (
        [line for line in found.lines if line.get("kind") == kind and _is_number(line.get("loss"))]
        for kind in ("training", "validation")
    )
    if not training and not validation:
        reason = f"{log_path} has no loss in its {len(found.lines)} lines, so there is no curve to draw yet"
        raise DataError("; ".join([reason, *lost]))
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
    if lost:
        figure.suptitle(f"{len(found.lost)} damaged lines of the log are left out", fontsize="small")
    picture = BytesIO()
    figure.savefig(picture, format="png")
    replace_file(Path(png_path), picture.getvalue(), durable=False)  # the log can draw it again
    return lost


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
    drawn = [line for line in lines if _is_number(line.get(name))]
    return [line["step"] for line in drawn], [line[name] for line in drawn]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
