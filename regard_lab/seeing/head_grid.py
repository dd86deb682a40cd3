"""Draws all heads of a model in one picture, for comparison."""

from __future__ import annotations

from pathlib import Path

from regard.arguments import count_of, of_kind
from regard_lab.seeing.canvas import (
    FAINT,
    POINT,
    Box,
    checked_path,
    draw_scale,
    draw_weights,
    label_columns,
    label_rows,
    label_texts,
    new_figure,
    not_allowed,
    save,
    slanted_height,
    text_width,
    widest,
    write_text,
)
from regard_lab.seeing.maps import AttentionMaps, Kind
from regard_lab.seeing.picture import WORDING

EDGE, GAP = 0.35, 0.16  # inches around the picture, and between its maps
WIDEST = 24.0  # the most inches for all heads of a layer with labels
NAMED_CELL = 0.1  # the smallest cell with a label
SMALLEST_CELL = 0.05
SCALE_HEIGHT = 1.5
LEAST_STEP = 0.6  # the width of "layer 12"
HEADING = 0.85  # the height of title, subtitle and head numbers


def draw_heads(maps: AttentionMaps, path: str | Path, kind: Kind = "encoder") -> None:
    """Draw all heads of one kind of attention: a row for each layer, a column for each head, one scale from 0 to 1.

    If there are too many heads and words for labels, the picture says so.

    Args:
        maps: the weights; sub-words are merged if they are not yet.
        path: a PNG or SVG; an existing file is replaced atomically.
        kind: "encoder", "decoder" or "cross".

    Raises:
        ArgumentError: another kind, a path that ends in neither .png nor .svg, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.

    >>> import tempfile, torch
    >>> weights = torch.full((2, 2, 3, 3), 1 / 3)
    >>> maps = AttentionMaps(("the", "cat", "<end>"), ("die", "Katze", "<end>"), weights, weights.tril(), weights)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_heads(maps, f"{folder}/heads.png", "cross")
    ...     Path(folder, "heads.png").read_bytes()[1:4]
    b'PNG'
    """
    of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look returns")
    path = checked_path(path)
    maps = maps.merged()
    rows, columns = (label_texts(labels) for labels in maps.labels(kind))
    depth, heads = getattr(maps, kind).shape[:2]
    cell = min(max(WIDEST / (heads * len(columns)), SMALLEST_CELL), 0.2, 3.0 / min(len(columns), 15))
    named = cell >= NAMED_CELL
    size = min(max(cell / POINT * 0.55, 5.0), 8.0)
    width, height = len(columns) * cell, len(rows) * cell
    across, down = (max(length, LEAST_STEP) + GAP for length in (width, height))  # from a map to the next
    left = EDGE + 0.3 + (widest(rows, size) if named else 0.0)
    top = EDGE + HEADING + (slanted_height(columns, size) if named else 0.0)
    overhang = max(0.2, widest(columns[-3:], size) if named else 0.0)
    scale = left + heads * across + overhang
    with new_figure() as figure:
        title, read, reading = WORDING[kind]
        words = "" if named else f"; {len(rows)} × {count_of(len(columns), 'words')} in order, too small to be named"
        subtitle = (
            f"{read} →, {reading} ↓{words}. Grey: not allowed (window, or not written yet). Layers and heads count "
            f"from 0; attention alone is no explanation."
        )
        figure.set_size_inches(
            max(scale + 0.75, text_width(subtitle, 8) + 2 * EDGE), top + max(depth * down, SCALE_HEIGHT) + EDGE
        )
        write_text(figure, f"{title}, every head", EDGE, EDGE, 13, weight="bold")
        write_text(figure, subtitle, EDGE, EDGE + 0.27, 8, color=FAINT)
        for layer in range(depth):
            place = top + layer * down
            write_text(figure, f"layer {layer}", EDGE, place + height / 2, 9, weight="bold", rotation=90, va="center")
            for head in range(heads):
                weights = maps.matrix(kind, layer, head)
                box = Box(left + head * across, place, width, height)
                axes = draw_weights(figure, box, weights, not_allowed(getattr(maps, kind)[layer]))
                if layer == 0:
                    write_text(figure, f"head {head}", box.left, EDGE + 0.6, 9, weight="bold")
                if named and layer == 0:
                    label_columns(axes, columns, size)
                if named and head == 0:
                    label_rows(axes, rows, size)
        draw_scale(figure, Box(scale, top, 0.14, SCALE_HEIGHT))
        save(figure, path)
