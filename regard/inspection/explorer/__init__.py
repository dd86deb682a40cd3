"""The explorer: one page in which the attention of a model, and what its words depend on, can be looked at.

`show` makes a page of arrays or of recorded maps, which notebooks display and `save` writes; `regard view` opens it for
a trained model. The page needs no network. Its script is built from `source/` by `make explorer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import ArgumentError
from regard.inspection.explorer.page import Page, to_long_page, to_page
from regard.inspection.explorer.sources import (
    Attention,
    Exploration,
    explore_maps,
    explore_text,
    explore_translation,
    explore_weights,
)
from regard.inspection.explorer.streaming import LongHead, stream_head
from regard.inspection.maps import AttentionMaps
from regard.inspection.texts import TextMaps

__all__ = [
    "show",
    "Page",
    "to_page",
    "to_long_page",
    "Exploration",
    "Attention",
    "explore_translation",
    "explore_text",
    "explore_maps",
    "explore_weights",
    "stream_head",
    "LongHead",
]


def show(
    weights: Any, tokens: Sequence[str] | None = None, keys: Sequence[str] | None = None, *, title: str = ""
) -> Page:
    """Make a page in which attention weights can be explored; a notebook displays it, `save` writes it.

    Args:
        weights: AttentionMaps, TextMaps, an Exploration, a LongHead, or weights after the softmax: (queries, keys),
            (heads, queries, keys) or (layers, heads, queries, keys), a tensor or an array; or a sequence of layers,
            each (heads, queries, keys) or (1, heads, queries, keys).
        tokens: the words of the queries; their positions by default.
        keys: the words of the keys; those of the queries by default, if there are as many.
        title: a line above the page.

    Returns:
        The page.

    Raises:
        ShapeError: weights of another shape, or of another size than the words.
        ArgumentError: weights outside 0 to 1, or words for maps that have their own.

    >>> import torch
    >>> page = show(torch.eye(2), ["the", "</script>"])
    >>> page.html.count("</script>"), page.html.count("<script")
    (3, 3)
    """
    if isinstance(weights, AttentionMaps | TextMaps | Exploration | LongHead):
        if tokens is not None or keys is not None:
            raise ArgumentError(f"{type(weights).__name__} has its own words; leave out tokens and keys")
        if isinstance(weights, LongHead):
            return to_long_page(weights, title=title)
        return to_page(weights if isinstance(weights, Exploration) else explore_maps(weights, title=title))
    return to_page(explore_weights(weights, tokens, keys, title=title))
