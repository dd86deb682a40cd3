"""What one word looked at, ranked: for a line in a terminal."""

from __future__ import annotations

from regard.arguments import whole
from regard.errors import ArgumentError
from regard.inspection.labels import visible
from regard.inspection.maps import AttentionMaps, Kind
from regard.kinds import of_kind


def looked_at(
    maps: AttentionMaps, word: str | int, *, kind: Kind = "encoder", layer: int = -1, head: int | None = None
) -> list[tuple[str, float]]:
    """The words that one word looked at, with their weights, the largest first; the word itself included.

    Args:
        maps: the weights, merged or not.
        word: the label of the row, its first occurrence and in any case ("it" finds "It"), or its place.
        kind, layer, head: as for `AttentionMaps.matrix`.

    Returns:
        Each column's label and weight; they sum to 1, and equal weights stay in the order of the text.

    Raises:
        ArgumentError: a word, kind, layer or head that does not exist.

    >>> import torch
    >>> weights = torch.tensor([[[[0.9, 0.0, 0.1], [0.7, 0.2, 0.1], [0.0, 0.0, 1.0]]]])
    >>> maps = AttentionMaps(("animal", "it", "<end>"), ("<end>",), weights, torch.ones(1, 1, 1, 1), weights[:, :, :1])
    >>> [(word, round(weight, 2)) for word, weight in looked_at(maps, "it")]
    [('animal', 0.7), ('it', 0.2), ('<end>', 0.1)]
    """
    of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look gives")
    return [(label, weight) for label, weight, _ in _ranked(maps, word, kind, layer, head)]


def tell_look(
    maps: AttentionMaps,
    word: str | int,
    *,
    referent: str | None = None,
    count: int = 3,
    kind: Kind = "encoder",
    layer: int = -1,
    head: int | None = None,
) -> str:
    """One sentence about what a word looked at most, the word itself left out.

    Args:
        maps, word, kind, layer, head: as for `looked_at`.
        referent: what the word truly means, where that is known.
        count: how many words to name, 1 or more.

    Raises:
        ArgumentError: as `looked_at`.

    >>> import torch
    >>> weights = torch.tensor([[[[0.9, 0.0, 0.1], [0.7, 0.2, 0.1], [0.0, 0.0, 1.0]]]])
    >>> maps = AttentionMaps(("animal", "it", "<end>"), ("<end>",), weights, torch.ones(1, 1, 1, 1), weights[:, :, :1])
    >>> tell_look(maps, "it", referent="animal")
    '*it* looked most at animal (0.70), <end> (0.10); true referent: animal'
    """
    of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look gives")
    count = whole("count", count, 1)
    place = _place_of(maps, word, kind)
    # The decoder's own word is what it is writing: among what it read there is nothing to leave out.
    own = place if kind == "encoder" else None
    others = [(label, weight) for label, weight, at in _ranked(maps, place, kind, layer, head) if at != own]
    named = ", ".join(f"{visible(label)} ({weight:.2f})" for label, weight in others[:count]) or "nothing else"
    truth = f"; true referent: {visible(referent)}" if referent is not None else ""
    return f"*{visible(maps.labels(kind)[0][place])}* looked most at {named}{truth}"


def _ranked(
    maps: AttentionMaps, word: str | int, kind: Kind, layer: int, head: int | None
) -> list[tuple[str, float, int]]:
    row = maps.matrix(kind, layer, head)[_place_of(maps, word, kind)].tolist()
    columns = maps.labels(kind)[1]
    return sorted(
        ((label, weight, place) for place, (label, weight) in enumerate(zip(columns, row, strict=True))),
        key=lambda found: (-found[1], found[2]),
    )


def _place_of(maps: AttentionMaps, word: str | int, kind: Kind) -> int:
    rows = maps.labels(kind)[0]
    if not isinstance(word, str):
        word = whole("word", word)
        if not 0 <= word < len(rows):
            raise ArgumentError(f"word {word} was asked for; the {kind} rows are words 0 to {len(rows) - 1}")
        return word
    places = [place for place, label in enumerate(rows) if label.lower() == word.lower()]
    if not places:
        raise ArgumentError(f"no {kind} row is called {word!r}; there are {' '.join(map(visible, rows))}")
    return places[0]
