"""The explorer: a page that shows the attention of a model, and what its words depend on.

`show` makes a page of arrays or of recorded maps, which notebooks display and `save` writes; `regard view` opens it for
a trained model. The page needs no network. Its script is built from `source/` by `make explorer`.
"""

from collections.abc import Sequence
from typing import Any

from regard.errors import ArgumentError
from regard.patterns import Pattern
from regard_lab.seeing.explorer.engine import embed
from regard_lab.seeing.explorer.figures import draw_attention, to_exploration
from regard_lab.seeing.explorer.page import Page, to_page
from regard_lab.seeing.explorer.sources import (
    explore_model,
    explore_pattern,
    explore_text,
    explore_translation,
)

__all__ = [
    "show",
    "draw_attention",
    "Page",
    "to_page",
    "explore_translation",
    "explore_text",
    "explore_model",
    "embed",
]


def show(
    weights: Any,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    length: int | None = None,
    title: str = "",
) -> Page:
    """Make a page in which attention weights, or a pattern, can be explored; a notebook displays it, `save` writes it.

    `draw_attention` draws one layer or head of the same weights; it takes the file's path before the tokens.

    Args:
        weights: AttentionMaps, TextMaps, an Exploration, or weights after the softmax: (queries, keys),
            (heads, queries, keys) or (layers, heads, queries, keys), a tensor or an array; or a sequence of layers,
            each (heads, queries, keys) or (1, heads, queries, keys), or an AttentionDetail with such weights. Or a
            Pattern, whose pairs are shown and counted.
        tokens: the words of the queries; their positions by default.
        keys: the words of the keys; those of the queries by default, if there are as many.
        length: of a pattern without words, its number of queries and keys; 64 by default.
        title: a line above the page.

    Returns:
        The page.

    Raises:
        ShapeError: weights of another shape, or of another size than the words.
        ArgumentError: weights outside 0 to 1, rows that sum to more than 1, words for maps that have their own, or a
            length for weights. Where rows sum to less, as with a sink, the page reports it.

    >>> import torch
    >>> page = show(torch.eye(2), ["the", "</script>"])
    >>> page.html.count("</script>"), page.html.count("<script")
    (3, 3)
    """
    if isinstance(weights, Pattern):
        return to_page(explore_pattern(weights, tokens, keys, length=length, title=title))
    if length is not None:
        raise ArgumentError(
            f"length is for a Pattern, and weights is a {type(weights).__name__}; leave it out"
        )
    return to_page(to_exploration(weights, tokens, keys, title=title))
