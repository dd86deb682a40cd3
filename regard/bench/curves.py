"""How times grow with the length: one picture a case."""

from __future__ import annotations

from collections import Counter, defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

from regard.storage.files import replace_file
from regard.text.packages import needed

STYLES = ("o-", "s--", "^--", "D--", "v--", "P--")


def draw_curves(name: str, case: dict[str, Any], folder: Path) -> Path | None:
    """Draw `bench-NAME.png`, the CPU time of each contender over the length; None where there is one length alone.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    curves = points_of(case)
    if not any(len(points) > 1 for points in curves.values()):
        return None
    with needed("matplotlib", "a picture"):
        import matplotlib
        from matplotlib.figure import Figure
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure = Figure(figsize=(7, 4.6), facecolor="white")
        axes = figure.add_subplot()
        for style, (contender, points) in zip(STYLES * len(curves), curves.items(), strict=False):
            lengths, seconds = zip(*points, strict=True)
            axes.plot(lengths, seconds, style, label=contender, linewidth=1.8 if style == STYLES[0] else 1.2)
        lengths = sorted({length for points in curves.values() for length, _ in points})
        axes.set(
            xscale="log", yscale="log", xlabel="length", ylabel="seconds of CPU time, 1 thread", title=case["title"]
        )
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
        picture = BytesIO()
        figure.savefig(picture, format="png", dpi=130, bbox_inches="tight", metadata={"Software": None})
    path = folder / f"bench-{name}.png"
    replace_file(path, picture.getvalue())
    return path


def points_of(case: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """For each contender its lengths and median times, over the contests that differ in their length alone."""
    families = Counter(contest["family"] for contest in case["contests"])
    largest = max(families, key=lambda family: families[family])
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for contest in case["contests"]:
        for name, answer in contest["contenders"].items():
            if contest["family"] == largest and "cpu" in answer:
                curves[name].append((contest["length"], answer["cpu"]["median"]))
    return {name: sorted(points) for name, points in curves.items()}
