"""The effects of all heads as one picture."""

from pathlib import Path

import torch

from regard.arguments import count_of, of_kind
from regard_lab.seeing.canvas import FAINT, INK, UNSEEN, Box, axes_in, is_dark, saved_figure, write_text
from regard_lab.seeing.heads.effects import HeadEffects
from regard_lab.seeing.lenses.record import SIGNED

CELL, LEFT, TOP, GAP = 0.5, 0.9, 1.0, 0.75  # inches


def draw_head_effects(effects: HeadEffects, path: str | Path, *, title: str = "", footer: bool = True) -> None:
    """Draw the effect of each head: a row for each layer, a column for each head; blue: the model is better with it.

    Args:
        effects: what `ablate` or `patch` returns.
        path: a PNG, SVG or PDF; an existing file is replaced atomically.
        title: a line above; by default what was measured.
        footer: whether a line below says how to read the picture.

    Raises:
        ArgumentError: a path with another ending, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.
    """
    tables = of_kind("effects", effects, HeadEffects, "what ablate returns").by_layer()
    grids = {kind: numbers[f"effect on {effects.measure}"] for kind, numbers in tables.items()}
    largest = max(float(grid.nan_to_num().abs().max()) for grid in grids.values()) or 1.0
    with saved_figure(path) as figure:
        from matplotlib import colormaps

        scale = colormaps[SIGNED].with_extremes(bad=UNSEEN)
        width = LEFT + max(max(grid.shape[1] for grid in grids.values()) * CELL, 6.2) + 0.3
        height = TOP + sum(len(grid) * CELL + GAP for grid in grids.values())
        figure.set_size_inches(width, height + (0.35 if footer else 0.0))
        patched = effects.by == "patch"
        text = title or f"Effect of each head {'of the other text' * patched or f'({effects.by})'} on {effects.measure}"
        write_text(figure, text, 0.3, 0.25, 12.5, weight="bold")
        top = TOP
        for kind, grid in grids.items():
            write_text(figure, f"{kind}: layers ↓, heads →", LEFT, top - 0.42, 8.5, color=FAINT, style="italic")
            axes = axes_in(figure, Box(LEFT, top, grid.shape[1] * CELL, len(grid) * CELL))
            axes.imshow((0.5 + 0.45 * grid / largest).numpy(), cmap=scale, vmin=0, vmax=1, aspect="auto")
            axes.set_xticks(range(grid.shape[1]))
            axes.set_yticks(range(len(grid)))
            axes.tick_params(
                length=0, labelsize=8, labelcolor=INK, top=True, labeltop=True, bottom=False, labelbottom=False
            )
            axes.spines[:].set_visible(False)
            for layer, head in torch.cartesian_prod(*map(torch.arange, grid.shape)).reshape(-1, 2).tolist():
                if not torch.isnan(value := grid[layer, head]):
                    ink = "white" if is_dark(scale(float(0.5 + 0.45 * value / largest))) else "black"
                    axes.text(head, layer, f"{value:+.2f}", fontsize=7, color=ink, ha="center", va="center")
            top += len(grid) * CELL + GAP
        if footer:
            of = f"{effects.measure} {effects.value:.3f} over {count_of(effects.texts, 'texts', ',')}"
            blue = "what the head returns there lowers them" if patched else "the model is better with the head"
            write_text(figure, f"Blue: {blue}. {of}.", 0.3, height - 0.25, 7.5, color=FAINT)
