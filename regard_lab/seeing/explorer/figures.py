"""Attention weights of any source as a picture of one map, with the colours of the explorer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.arguments import count_of, of_kind, suggest, whole
from regard.core.plan import AttentionDetail
from regard.errors import ArgumentError, ShapeError
from regard_lab.seeing.canvas import (
    checked_path,
    drawable,
    label_texts,
    new_figure,
    not_allowed,
    save,
)
from regard_lab.seeing.explorer.records import sums_of
from regard_lab.seeing.explorer.sources import Attention, Exploration, explore_maps, explore_weights
from regard_lab.seeing.maps import AttentionMaps, TextMaps
from regard_lab.seeing.picture import MOST_WORDS, PicturePage, WeightsPanel

WIDEST = 9.0  # inches of a map
LARGEST_CELL = 0.56  # inches
SMALLEST_CELL = 0.165
NORMALISED = "The weights of each row sum to 1 after a softmax."
NOTE = (
    "Grey pairs have no weight in any head of the layer. Layers and heads count from 0.\n"
    "Attention alone is not an explanation: a model can look at a word without using it.\n"
)


def draw_attention(
    weights: Any,
    path: str | Path,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    attention: str | None = None,
    layer: int = -1,
    head: int | None = None,
    title: str = "",
) -> None:
    """Draw the attention weights of one layer or head as a map between words, with colours from 0 to 1.

    Takes everything that `show` makes a page of, except a Pattern, which `draw_pattern` draws. Unlike
    `show`, which returns a page to save, it takes the path second, before the tokens: name `tokens=` and `keys=`.
    `draw_maps` draws the three maps of a translation in one picture.

    Args:
        weights, tokens, keys: as for `show`.
        path: a PNG or SVG; an existing file is replaced atomically.
        attention: the name of the kind of attention, such as "Cross-attention"; the first by default.
        layer: counted from 0; -1 is the last.
        head: counted from 0; None for the mean over the layer's heads.
        title: at most three lines above the map.

    Raises:
        ShapeError: weights of another shape, or of another size than the words.
        ArgumentError: rows that sum to more than 1, more than 120 words on a side, a kind, layer or head that does not
            exist, a path that ends in neither .png nor .svg, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_attention(torch.eye(3), f"{folder}/eye.svg", ["a", "b", "c"])
    ...     Path(folder, "eye.svg").read_text()[:13]
    '<?xml version'
    """
    path = checked_path(path)
    exploration = to_exploration(weights, tokens, keys, title=title)
    shown = _chosen(exploration, attention)
    rows = exploration.texts[shown.rows]
    columns = exploration.texts[shown.columns]
    words = max(len(rows), len(columns))
    if words > MOST_WORDS:
        raise ArgumentError(
            f"the longer side has {words} words and a picture shows at most {MOST_WORDS}; draw a part of the weights, "
            f"or make a page with regard_lab.seeing.show"
        )

    panel = _panel(shown, label_texts(rows), label_texts(columns), layer, head)
    note = f"{sums_of(panel.weights) or NORMALISED}\n{NOTE}"
    with new_figure() as figure:
        PicturePage(((panel,), ()), note).draw(figure, drawable(title) if title else "")
        save(figure, path)


def to_exploration(
    weights: Any,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    title: str = "",
) -> Exploration:
    """Recorded maps or arrays as an exploration.

    Raises:
        ShapeError, ArgumentError: as `show`.
    """
    if isinstance(weights, AttentionMaps | TextMaps | Exploration):
        if tokens is not None or keys is not None:
            raise ArgumentError(
                f"{type(weights).__name__} has its own words; leave out tokens and keys"
            )
        return weights if isinstance(weights, Exploration) else explore_maps(weights, title=title)
    if _are_details(weights):
        weights = [detail.weights for detail in weights]
        if any(len(layer) > 1 for layer in weights):
            raise ShapeError(
                f"the weights of the details are {tuple(weights[0].shape)}, and a page shows one row of a batch; give "
                f"[d.weights[0] for d in details]"
            )
    return explore_weights(weights, tokens, keys, title=title)


def _are_details(weights: Any) -> bool:
    """Whether they are the details of some layers."""
    if not isinstance(weights, list | tuple) or not weights:
        return False
    return all(isinstance(layer, AttentionDetail) for layer in weights)


def _chosen(exploration: Exploration, name: str | None) -> Attention:
    names = [attention.name for attention in exploration.attentions]
    if name is None:
        return exploration.attentions[0]
    if of_kind("attention", name, str, "the name of a kind of attention") not in names:
        raise ArgumentError(f"there is no attention {name!r}; {suggest(name, names)}")
    return exploration.attentions[names.index(name)]


def _panel(
    attention: Attention, rows: list[str], columns: list[str], layer: int, head: int | None
) -> WeightsPanel:
    depth, heads = attention.weights.shape[:2]
    layer = whole("layer", layer)
    head = None if head is None else whole("head", head)
    if not -depth <= layer < depth:
        raise ArgumentError(
            f"layer {layer} does not exist; {attention.name} has layers 0 to {depth - 1}"
        )
    if head is not None and not 0 <= head < heads:
        raise ArgumentError(
            f"head {head} does not exist; {attention.name} has heads 0 to {heads - 1}"
        )

    of_layer = attention.weights[layer]
    which = f"mean of {count_of(heads, 'heads')}" if head is None else f"head {head}"
    last = " (last)" if layer in (-1, depth - 1) else ""
    return WeightsPanel(
        wording=(attention.name, attention.column_title, attention.row_title),
        subtitle=f"layer {layer % depth}{last}, {which}",
        weights=of_layer.mean(0) if head is None else of_layer[head],
        rows=rows,
        columns=columns,
        cell=min(max(WIDEST / max(len(rows), len(columns)), SMALLEST_CELL), LARGEST_CELL),
        masked=not_allowed(of_layer),
    )
