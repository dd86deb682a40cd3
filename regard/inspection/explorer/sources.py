"""What the explorer shows: attention weights between labelled texts, and what each written word depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.arguments import a_list, a_string, of_kind, shown
from regard.errors import ArgumentError, ShapeError
from regard.inspection.lenses.alternatives import against_alternatives, alternatives
from regard.inspection.lenses.contrast import Contrast, find_contrast
from regard.inspection.lenses.explain import LENSES, explain
from regard.inspection.lenses.passes import Explained
from regard.inspection.lenses.record import Relevance
from regard.inspection.maps import KINDS, AttentionMaps, look
from regard.inspection.picture import WORDING
from regard.inspection.texts import TextMaps, TextModel, look_text
from regard.models import LanguageModel, RecurrentTranslator
from regard.models.kinds import TranslationModel
from regard.reprs import brief
from regard.text import Tokeniser

STEPS = 20  # of gradients; the word that is shown first has as many as its completeness error needs
MOST_EXPLAINED = 40  # words of a text that are explained when the page is made


@brief
@dataclass(frozen=True, eq=False)
class Attention:
    """The weights of every head of one kind of attention.

    Args:
        name: such as "Cross-attention".
        rows, columns: names of the texts whose words are the queries and the keys.
        weights: (layers, heads, queries, keys).
        row_title, column_title: what the words of the rows and of the columns do, such as "word written".
        unwritten: whether keys after the query's own place did not exist yet.
    """

    name: str
    rows: str
    columns: str
    weights: torch.Tensor
    row_title: str = "query"
    column_title: str = "key"
    unwritten: bool = False


@brief
@dataclass(frozen=True, eq=False)
class Exploration:
    """Everything that one page shows.

    Args:
        title: a line above the page.
        texts: the words of each text, by its name.
        attentions: the kinds of attention, the first of which is shown first.
        explained: for words of the text `written`, by their index: the relevance by each lens.
        written: the name of the text whose words are explained.
        chosen: index of the word that is shown first.
        notes: sentences below the page, such as the settings of the model.
    """

    title: str
    texts: Mapping[str, tuple[str, ...]]
    attentions: tuple[Attention, ...]
    explained: Mapping[int, tuple[Relevance, ...]]
    written: str = ""
    chosen: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for one in self.attentions:
            rows, columns = (len(self.texts[name]) for name in (one.rows, one.columns))
            if one.weights.dim() != 4 or one.weights.shape[2:] != (rows, columns):
                raise ShapeError(
                    f"weights of {one.name} are {tuple(one.weights.shape)}; their words need (layers, heads, {rows}, "
                    f"{columns})"
                )


def explore_translation(
    model: TranslationModel,
    tokeniser: Tokeniser,
    source: str,
    target_ids: Sequence[int],
    *,
    title: str = "",
    of: str | None = None,
    instead_of: Sequence[str] = (),
    place: int | None = None,
) -> Exploration:
    """The maps of a translation, and what each of its words depends on by every lens.

    Each written word is compared with the three words that the model found most probable beside it; `of` is compared
    with `instead_of`, if words are given there, and is shown first.

    Args:
        model: a translation model; it is left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        source: the text that was translated.
        target_ids: what was written, without BEGIN and END, as `Translation.ids`.
        title: a line above the page.
        of, instead_of, place: the word that is shown first, what it is compared with, and its index if it occurs more
            than once; as for `relevance`.

    Raises:
        ArgumentError: as `look` and `relevance`.
        UnsupportedError: a translator without attention.
    """
    maps = look(model, tokeniser, source, target_ids).merged()
    contrasts = alternatives(model, tokeniser, source, target_ids, range(MOST_EXPLAINED))
    chosen = min(contrasts, default=0)
    if of is not None:
        asked = (
            find_contrast(tokeniser, source, target_ids, of, instead_of, place)
            if instead_of
            else against_alternatives(model, tokeniser, source, target_ids, of, place)
        )
        contrasts[asked.place], chosen = asked, asked.place
    found = explore_maps(maps, title=title)
    lenses = explained(model, tokeniser, contrasts, chosen)
    return replace(found, explained=lenses, written="target", chosen=chosen)


def explore_text(model: TextModel, tokeniser: Tokeniser, text: str, *, title: str = "") -> Exploration:
    """The maps of a language model or an encoder on a text, and what each word that a language model read depends on.

    Args:
        model: a language model or an encoder; it is left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        text: the text.
        title: a line above the page.

    Raises:
        ArgumentError: as `look_text`.
    """
    maps = look_text(model, tokeniser, text)
    found = explore_maps(maps, title=title)
    if not isinstance(model, LanguageModel):
        return found
    contrasts = alternatives(model, tokeniser, None, tokeniser.encode(text), range(MOST_EXPLAINED + 1))
    shifted = {place + 1: contrast for place, contrast in contrasts.items()}  # "<begin>" is a word of the map
    chosen = max(shifted, default=0)
    return replace(found, explained=explained(model, tokeniser, shifted, chosen), written="text", chosen=chosen)


def explore_maps(maps: AttentionMaps | TextMaps, *, title: str = "") -> Exploration:
    """Recorded maps as the explorer shows them, between words."""
    if isinstance(maps, TextMaps):
        name = "Self-attention"
        one = Attention(name, "text", "text", maps.weights, "word reading", "words read", unwritten=maps.causal)
        return Exploration(title or "Self-attention", {"text": maps.words}, (one,), {})
    of_kind("maps", maps, AttentionMaps, "AttentionMaps or TextMaps, as look and look_text return them")
    maps = maps.merged()
    texts = {"source": maps.source_words, "target": maps.target_words, "read": maps.read_words}
    ends = {"encoder": ("source", "source"), "decoder": ("target", "read"), "cross": ("target", "source")}
    kinds = [kind for kind in sorted(KINDS, key=["cross", "encoder", "decoder"].index) if len(getattr(maps, kind))]
    attentions = []
    for kind in kinds:
        name, columns, rows = WORDING[kind]
        attentions.append(Attention(name, *ends[kind], getattr(maps, kind), rows, columns, kind == "decoder"))
    return Exploration(title or "Attention of a translation", texts, tuple(attentions), {})


def explore_weights(
    weights: Any, tokens: Sequence[str] | None = None, keys: Sequence[str] | None = None, *, title: str = ""
) -> Exploration:
    """Arrays of weights as the explorer shows them.

    Args:
        weights: (queries, keys), (heads, queries, keys) or (layers, heads, queries, keys), of any floating-point dtype,
            a tensor or an array; or a sequence of layers, each (heads, queries, keys) or (1, heads, queries, keys), as
            other libraries return them.
        tokens: the words of the queries; their positions by default.
        keys: the words of the keys; those of the queries by default, if there are as many.
        title: a line above the page.

    Raises:
        ShapeError: weights of another shape, or of another size than the words.
        ArgumentError: weights that are negative, above 1 or not finite.
    """
    stacked = _stacked(weights)
    rows, columns = stacked.shape[2:]
    row_words = _words("tokens", tokens, rows)
    if keys is not None:
        column_words = _words("keys", keys, columns)
    else:
        column_words = row_words if rows == columns else _words("keys", None, columns)
    same = keys is None and rows == columns
    causal = same and not bool((stacked * torch.ones(rows, columns).triu(1)).any())
    texts = {"text": row_words} if same else {"queries": row_words, "keys": column_words}
    one = Attention("Attention", *(("text", "text") if same else ("queries", "keys")), stacked, unwritten=causal)
    return Exploration(title or "Attention weights", texts, (one,), {})


def explained(
    model: Explained, tokeniser: Tokeniser, contrasts: Mapping[int, Contrast], chosen: int
) -> dict[int, tuple[Relevance, ...]]:
    """The relevance by every lens that the model allows, for each contrast; `chosen` is shown first."""
    lenses = [lens for lens in LENSES if lens != "rollout" or not isinstance(model, RecurrentTranslator)]
    found: dict[int, list[Relevance]] = {place: [] for place in contrasts}
    for lens in sorted(lenses, key=lambda lens: lens != "erase"):  # erasure first
        steps = STEPS if lens == "gradients" else None
        results = dict(
            zip(contrasts, explain(model, tokeniser, list(contrasts.values()), lens, steps=steps), strict=True)
        )
        if lens == "gradients" and chosen in contrasts:
            results[chosen] = explain(model, tokeniser, [contrasts[chosen]], lens)[0]
        for place, result in results.items():
            found[place].append(result)
    return {place: tuple(results) for place, results in found.items()}


def _stacked(weights: Any) -> torch.Tensor:
    """(layers, heads, queries, keys), float32 on the CPU."""
    if isinstance(weights, (list, tuple)) and weights and all(hasattr(layer, "shape") for layer in weights):
        layers = [_tensor(layer) for layer in weights]
        layers = [layer[0] if layer.dim() == 4 and layer.shape[0] == 1 else layer for layer in layers]
        shapes = {tuple(layer.shape) for layer in layers}
        if len(shapes) != 1 or len(next(iter(shapes))) != 3:
            raise ShapeError(
                f"the layers of weights are {shown(sorted(shapes))}; each must be (heads, queries, keys), or with a "
                f"batch of 1 before, and all of one shape"
            )
        tensor = torch.stack(layers)
    else:
        tensor = _tensor(weights)
        if not 2 <= tensor.dim() <= 4:
            raise ShapeError(
                f"weights are {tuple(tensor.shape)}; give (queries, keys), (heads, queries, keys) or (layers, heads, "
                f"queries, keys)"
            )
        tensor = tensor[(None,) * (4 - tensor.dim())]
    if 0 in tensor.shape:
        raise ShapeError(f"weights are {tuple(tensor.shape)}; there is nothing to show")
    least, most = (float(value) for value in tensor.aminmax())
    if not (least >= 0 and most <= 1 + 1e-3):
        raise ArgumentError(
            f"weights are from {least:.3g} to {most:.3g}; they must be from 0 to 1, as they are after the softmax"
        )
    return tensor


def _tensor(weights: Any) -> torch.Tensor:
    try:
        tensor = weights if isinstance(weights, torch.Tensor) else torch.as_tensor(weights)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"weights is {shown(weights)}; it needs a tensor, an array or a list of them") from None
    if not tensor.is_floating_point():
        raise ArgumentError(f"weights are of {tensor.dtype}; they need floating-point numbers")
    return tensor.detach().float().cpu()


def _words(name: str, words: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if words is None:
        return tuple(map(str, range(count)))
    listed = a_list(name, words, str, "a list of words")
    if len(listed) != count:
        raise ShapeError(f"{name} has {len(listed)} words, and the weights have {count} there")
    return tuple(a_string(name, word) for word in listed)
