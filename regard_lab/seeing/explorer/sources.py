"""What the explorer shows: attention weights between labelled texts, what each word depends on, and comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

import torch

from regard.arguments import a_list, a_string, count_of, of_kind, shown, whole
from regard.errors import ArgumentError, ShapeError
from regard.patterns import Pattern
from regard.reprs import brief
from regard_lab.models import LanguageModel, RecurrentTranslator, TranslationTransformer
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing.explorer.engine import Computed, EmbeddedModel, differences, embed, ids_read
from regard_lab.seeing.explorer.patterns import map_pattern, patterns_used
from regard_lab.seeing.explorer.records import Follows, PatternMap, ShownWalk, check_sums
from regard_lab.seeing.lenses.contrast import (
    Contrast,
    Explained,
    against_alternatives,
    alternatives,
    find_contrast,
)
from regard_lab.seeing.lenses.erasing import Changed, text_without_each, without_each
from regard_lab.seeing.lenses.explaining import LENSES, explain_contrasts, rolls_out
from regard_lab.seeing.lenses.record import Relevance
from regard_lab.seeing.maps import AttentionMaps, Kind, TextMaps, TextModel, look, look_text
from regard_lab.seeing.picture import WORDING
from regard_lab.seeing.relations import looks_of, relations_in
from regard_lab.seeing.watching import remark_on_layers
from regard_lab.text import Tokeniser
from regard_lab.text.cleaning import tidy
from regard_lab.text.seen_words import SeenWords

STEPS = 20  # of gradients; the word that is shown first has as many as its completeness error needs
MOST_WEIGHTS = 12 * 12 * 512 * 512  # of a page
MOST_EXPLAINED = 40  # words of a text that are explained, and erased, when the page is made
MOST_REREAD = 200  # words of a text that is read again without each word
PATTERN_LENGTH, LONGEST_PATTERN = 64, 100_000  # positions of a pattern that is shown without words


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
        measured: measures of heads besides those that every page has, each (layers, heads), by their name.
        links: for each relation between words that is measured: how many links the text has, and the weight on the
            right words of a head that looks at all words alike.
        says: how the weights are computed, where that is worth a sentence.
    """

    name: str
    rows: str
    columns: str
    weights: torch.Tensor
    row_title: str = "query"
    column_title: str = "key"
    unwritten: bool = False
    measured: Mapping[str, torch.Tensor] = field(default_factory=dict)
    links: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    says: str = ""


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
        patterns: which query may look at which key, for the layers of the model.
        walk: every step of the computation.
        changes: what a model does with the source, or the text, as it is (None), and without each of its words.
        follows: what `changes` give: probabilities of written or next words, or at masked places, or vectors of words.
        second: another exploration that this one is compared with.
        written_text: the translation as text.
        model: a model that computes everything else in the page.
    """

    title: str
    texts: Mapping[str, tuple[str, ...]]
    attentions: tuple[Attention, ...]
    explained: Mapping[int, tuple[Relevance, ...]]
    written: str = ""
    chosen: int = 0
    notes: tuple[str, ...] = ()
    patterns: tuple[PatternMap, ...] = ()
    walk: ShownWalk | None = None
    changes: Mapping[int | None, Changed] | None = None
    second: Second | None = None
    written_text: str = ""
    follows: Follows = "words"
    model: EmbeddedModel | None = None

    def __post_init__(self) -> None:
        for one in self.attentions:
            rows, columns = (len(self.texts[name]) for name in (one.rows, one.columns))
            if one.weights.dim() != 4 or one.weights.shape[2:] != (rows, columns):
                raise ShapeError(
                    f"weights of {one.name} are {tuple(one.weights.shape)}; their words need (layers, heads, {rows}, "
                    f"{columns})"
                )


@brief
@dataclass(frozen=True, eq=False)
class Second:
    """What an exploration is compared with: another run, another sentence, or both.

    Args:
        said: what it is, in a few words.
        exploration: the other exploration.
        matched: for each text that both have: the indices of the words that they share, in both, in order.
    """

    said: str
    exploration: Exploration
    matched: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


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
        if instead_of:
            asked = find_contrast(tokeniser, source, target_ids, of, instead_of, place)
        else:
            asked = against_alternatives(model, tokeniser, source, target_ids, of, place)
        contrasts[asked.place], chosen = asked, asked.place
    found = explore_maps(maps, title=title)
    if isinstance(model, RecurrentTranslator):
        found = replace(
            found,
            attentions=tuple(replace(one, says=_alignment(model)) for one in found.attentions),
        )
    lenses = explained(model, tokeniser, contrasts, chosen)
    patterns = patterns_used(
        model, *map(tokeniser.pieces, ids_read(model, tokeniser, source, target_ids))
    )
    changes = without_each(model, tokeniser, source, target_ids, MOST_EXPLAINED)
    return replace(
        found, explained=lenses, written="target", chosen=chosen, patterns=patterns, changes=changes
    )


ALIGNMENTS = {
    "bahdanau": "Bahdanau et al. 2015: e = v · tanh(W s + U h)",
    "luong-dot": "Luong et al. 2015, dot: e = s · h",
    "luong-general": "Luong et al. 2015, general: e = s · W h",
    "luong-concat": "Luong et al. 2015, concat: e = v · tanh(W [s ; h])",
}
STATES = "where s is the state of the decoder before the word is written, and h that of the encoder at a source word"


def _alignment(model: RecurrentTranslator) -> str:
    """How a recurrent translator computes its weights."""
    reach = {
        "global": "over the whole source",
        "local-m": f"among at most {model.config.window} words on each side of the step's own position",
        "local-p": f"around a position that the model predicts, {model.config.window} words on each side",
    }
    return (
        f"{ALIGNMENTS[model.config.attention]}, {STATES}. "
        f"The weights are the softmax of e {reach[model.config.reach]}."
    )


def explore_text(
    model: TextModel, tokeniser: Tokeniser, text: str, *, title: str = ""
) -> Exploration:
    """The maps of a language model or an encoder on a text, and what each word that a language model read depends on.

    Args:
        model: a language model or an encoder; it is left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        text: the text.
        title: a line above the page.

    Raises:
        ArgumentError: as `look_text`; or a text with too many weights for a page.
    """
    length = len(tokeniser.encode(a_string("text", text))) + 2
    heads = model.config.layers * model.config.heads
    if heads * length**2 > MOST_WEIGHTS:
        raise ArgumentError(
            f"{heads} heads over {length:,} ids have {heads * length**2:,} weights, and a page has at most "
            f"{MOST_WEIGHTS:,}; give a shorter text"
        )
    maps = look_text(model, tokeniser, text)
    patterns = patterns_used(model, *map(tokeniser.pieces, ids_read(model, tokeniser, text)))
    found = replace(explore_maps(maps, title=title), patterns=patterns)
    if remark := remark_on_layers(model):
        (attention,) = found.attentions
        found = replace(found, attentions=(replace(attention, says=remark),), notes=(remark,))
    if not isinstance(model, LanguageModel):
        return found
    contrasts = alternatives(
        model, tokeniser, None, tokeniser.encode(text), range(MOST_EXPLAINED + 1)
    )
    # "<begin>" is a word of the map.
    shifted = {place + 1: contrast for place, contrast in contrasts.items()}
    chosen = max(shifted, default=0)
    found = replace(
        found, explained=explained(model, tokeniser, shifted, chosen), written="text", chosen=chosen
    )
    if len(maps.words) <= MOST_REREAD:
        return replace(found, changes=text_without_each(model, tokeniser, text, MOST_EXPLAINED))
    unread = f"Texts of more than {MOST_REREAD} words are not read again without each word."
    return replace(found, notes=(*found.notes, unread))


def explore_model(
    model: Computed,
    tokeniser: Tokeniser,
    text: str,
    words: SeenWords | None = None,
    *,
    target_ids: Sequence[int] = (),
    classes: Sequence[str] = (),
    precision: str | None = None,
    asked: dict[str, Any] | None = None,
    pronouns: Sequence[str] = (),
) -> Exploration:
    """A page that contains a model and computes: what it shows first, without any weights.

    Args:
        model, tokeniser, words, classes, precision: as for `embed`.
        text: the text that is shown first.
        target_ids: what a translator writes then.
        asked: the written word that is shown first: its `word`, its `place`, and the `others` it is compared with.
        pronouns: words of which one that is written once is shown first, compared with the others.
    """
    says = ""
    label = "Text"
    written = "text"
    causal = isinstance(model, LanguageModel)
    if isinstance(model, TranslationTransformer | RecurrentTranslator):
        label = "Sentence"
        written = "target"
    elif not causal:
        written = ""
    if isinstance(model, RecurrentTranslator):
        own = {"cross": str(model.cell.attention.pattern)}
        says = _alignment(model)
    elif isinstance(model, TranslationTransformer):
        own = {kind: getattr(model.config, f"{kind}_pattern") for kind in TRANSLATING}
    else:
        own = {"text": str(model.config.pattern_of(0))}
    shown = {
        "label": label,
        "written": written,
        "follows": "words" if written else "vectors",
        "text": tidy(text),
        "patterns": own,
        "asked": asked and {**asked, "source": tidy(text)},
        "pronouns": list(pronouns),
        "kinds": [{"kind": kind, **named(kind, causal=causal), "says": says} for kind in own],
    }
    found = embed(model, tokeniser, words, classes=classes, precision=precision)
    listed = "" if words is None else f", and the {len(words.words):,} words of its training"
    notes = [
        f"This page contains the model: {found.parameters:,} parameters in {found.precision}, its tokeniser{listed}. "
        f"It computes in this browser."
    ]
    if found.precision == "int8":
        notes.append(differences(model, tokeniser, text, target_ids))
    patterns = patterns_used(
        model, *map(tokeniser.pieces, ids_read(model, tokeniser, text, target_ids))
    )
    return Exploration(
        tidy(text),
        {},
        (),
        {},
        notes=tuple(notes),
        patterns=patterns,
        model=replace(found, shown=shown),
    )


# The kinds of a translator, as pages list them.
TRANSLATING: tuple[Kind, ...] = ("cross", "encoder", "decoder")
# The texts whose words are the queries and the keys of each kind of attention.
ENDS = {
    "cross": ("target", "source"),
    "encoder": ("source", "source"),
    "decoder": ("target", "read"),
    "text": ("text", "text"),
}


def named(kind: str, *, causal: bool = False) -> dict[str, Any]:
    """How pages name a kind of attention, its texts and their words, as fields of `Attention`."""
    wording: dict[str, tuple[str, str, str]] = {
        "text": ("Self-attention", "words read", "word reading"),
        **WORDING,
    }
    (name, column_title, row_title), (rows, columns) = wording[kind], ENDS[kind]
    titles = {"row_title": row_title, "column_title": column_title}
    return {
        "name": name,
        "rows": rows,
        "columns": columns,
        **titles,
        "unwritten": kind == "decoder" or causal,
    }


def explore_maps(maps: AttentionMaps | TextMaps, *, title: str = "") -> Exploration:
    """Recorded maps as the explorer shows them, between words."""
    if isinstance(maps, TextMaps):
        one = with_relations(
            Attention(weights=maps.weights, **named("text", causal=maps.causal)), maps.words
        )
        return Exploration(title or "Self-attention", {"text": maps.words}, (one,), {})
    of_kind(
        "maps", maps, AttentionMaps, "AttentionMaps or TextMaps, as look and look_text return them"
    )
    maps = maps.merged()
    texts = {"source": maps.source_words, "target": maps.target_words, "read": maps.read_words}
    attentions = []
    for kind in TRANSLATING:
        if len(weights := getattr(maps, kind)):
            one = Attention(weights=weights, **named(kind))
            attentions.append(with_relations(one, maps.source_words) if kind == "encoder" else one)
    return Exploration(title or "Attention of a translation", texts, tuple(attentions), {})


def explore_pattern(
    pattern: Pattern,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    length: int | None = None,
    title: str = "",
) -> Exploration:
    """A pattern as the explorer shows it: which query may look at which key, and how the number of pairs grows.

    Args:
        pattern: the pattern.
        tokens: the words of the queries, or `length` in their place: the number of queries and keys.
        keys: the words of the keys; those of the queries by default.
        length: 64 by default, and at most 100,000.
        title: a line above the page.

    Raises:
        ArgumentError: both words and a length, or a length out of range.
    """
    if length is not None and (tokens is not None or keys is not None):
        raise ArgumentError(
            "give tokens or length, not both: the words give the number of queries and keys"
        )
    if tokens is None and keys is not None:
        raise ArgumentError(
            "keys are the words of the keys; give the words of the queries too, as tokens"
        )
    count = PATTERN_LENGTH if length is None else whole("length", length, 1)
    if count > LONGEST_PATTERN:
        raise ArgumentError(
            f"length is {count:,}; a page shows patterns of at most {LONGEST_PATTERN:,} positions"
        )
    found = map_pattern(pattern, count if tokens is None else tokens, keys)
    return Exploration(title or f"Pattern {pattern}", {}, (), {}, patterns=(found,))


def with_relations(one: Attention, words: Sequence[str]) -> Attention:
    """Self-attention with the mean weight that each head has on the right words, for each relation that the text has.

    Relations are labelled by rules for English text (`regard_lab.seeing.relations`). A few words of one text reveal
    little about a head in general: the lesson on relations measures heads on many texts.
    """
    measured = dict(one.measured)
    links = dict(one.links)
    for name, found in relations_in(words).items():
        found = [(query, keys) for query, keys in found if not one.unwritten or max(keys) < query]
        if found:
            looks = looks_of(one.weights, found, causal=one.unwritten)
            measured[name] = looks.mass.mean(0).float()
            links[name] = len(looks), float(looks.chance.mean())
    return replace(one, measured=measured, links=links)


def explore_weights(
    weights: Any,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    title: str = "",
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
        ArgumentError: weights that are negative, above 1 or not finite, or a row whose sum is above 1.
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
    one = Attention(
        "Attention", *(("text", "text") if same else ("queries", "keys")), stacked, unwritten=causal
    )
    return Exploration(title or "Attention weights", texts, (one,), {})


def explained(
    model: Explained, tokeniser: Tokeniser, contrasts: Mapping[int, Contrast], chosen: int
) -> dict[int, tuple[Relevance, ...]]:
    """The relevance by every lens that the model allows, for each contrast; `chosen` is shown first."""
    lenses = [lens for lens in LENSES if lens != "rollout" or rolls_out(model)]
    found: dict[int, list[Relevance]] = {place: [] for place in contrasts}
    for lens in sorted(lenses, key=lambda lens: lens != "erase"):  # erasure first
        steps = STEPS if lens == "gradients" else None
        results = dict(
            zip(
                contrasts,
                explain_contrasts(model, tokeniser, list(contrasts.values()), lens, steps=steps),
                strict=True,
            )
        )
        if lens == "gradients" and chosen in contrasts:
            results[chosen] = explain_contrasts(model, tokeniser, [contrasts[chosen]], lens)[0]
        for place, result in results.items():
            found[place].append(result)
    return {place: tuple(results) for place, results in found.items()}


def _stacked(weights: Any) -> torch.Tensor:
    """(layers, heads, queries, keys), float32 on the CPU."""
    if (
        isinstance(weights, (list, tuple))
        and weights
        and all(hasattr(layer, "shape") for layer in weights)
    ):
        layers = [_tensor(layer) for layer in weights]
        layers = [
            layer[0] if layer.dim() == 4 and layer.shape[0] == 1 else layer for layer in layers
        ]
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
    check_sums(tensor)
    return tensor


def _tensor(weights: Any) -> torch.Tensor:
    try:
        tensor = weights if isinstance(weights, torch.Tensor) else torch.as_tensor(weights)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"weights is {shown(weights)}; it needs a tensor, an array or a list of them"
        ) from None
    if not tensor.is_floating_point():
        raise ArgumentError(f"weights are of {tensor.dtype}; they need floating-point numbers")
    return tensor.detach().float().cpu()


def _words(name: str, words: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if words is None:
        return tuple(map(str, range(count)))
    listed = a_list(name, words, str, "a list of words")
    if len(listed) != count:
        raise ShapeError(
            f"{name} has {count_of(len(listed), 'words')}, and the weights have {count} there"
        )
    return tuple(a_string(name, word) for word in listed)


def compared(one: Exploration, other: Exploration, said: str) -> Exploration:
    """An exploration beside another one: the words that both have, and how far heads of the same number are apart.

    Args:
        one, other: what the page shows, and what it is compared with.
        said: what the other one is, in a few words.
    """
    matched = {
        name: _matched(words, other.texts[name])
        for name, words in one.texts.items()
        if name in other.texts
    }
    others = {attention.name: attention for attention in other.attentions}
    attentions = []
    for attention in one.attentions:
        beside = others.get(attention.name)
        if beside is not None and beside.weights.shape[:2] == attention.weights.shape[:2]:
            apart = heads_apart(
                attention.weights,
                beside.weights,
                matched[attention.rows],
                matched[attention.columns],
            )
            attention = replace(attention, measured={**attention.measured, "apart": apart})
        attentions.append(attention)
    return replace(one, attentions=tuple(attentions), second=Second(said, other, matched))


def _matched(one: Sequence[str], other: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The places of the words that belong together in two texts: equal words, in order.

    If at least half of the words are equal, as many words that were replaced by as many others belong together too.

    >>> _matched("the animal slept well".split(), "the dog slept".split())
    ((0, 1, 2), (0, 1, 2))
    """
    changes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    equal = sum(stop - start for kind, start, stop, _, _ in changes if kind == "equal")
    pairs = [
        pair
        for kind, start, stop, first, last in changes
        if kind == "equal"
        or (kind == "replace" and stop - start == last - first and 2 * equal >= len(one))
        for pair in zip(range(start, stop), range(first, last), strict=True)
    ]
    return tuple(at for at, _ in pairs), tuple(at for _, at in pairs)


def heads_apart(
    one: torch.Tensor,
    other: torch.Tensor,
    rows: tuple[Sequence[int], Sequence[int]],
    columns: tuple[Sequence[int], Sequence[int]],
) -> torch.Tensor:
    """The mean Jensen-Shannon distance of the rows of heads with the same number, (layers, heads).

        sqrt((KL(p | m) + KL(q | m)) / 2),   m = (p + q) / 2, logarithms with base 2

    Args:
        one, other: weights (layers, heads, queries, keys), with as many layers and heads.
        rows, columns: the places of shared queries and keys in both; the other keys count as one more key.

    >>> ones = torch.eye(2)[None, None]
    >>> same = (0, 1), (0, 1)
    >>> heads_apart(ones, ones, same, same).item(), heads_apart(ones, ones.flip(-1), same, same).item()
    (0.0, 1.0)
    """
    if not len(rows[0]):
        return torch.zeros(one.shape[:2])
    shared = []
    for weights, queries, keys in zip((one, other), rows, columns, strict=True):
        kept = weights.double()[:, :, list(queries)]
        both = kept[..., list(keys)]
        shared.append(torch.cat([both, (kept.sum(-1) - both.sum(-1)).clamp(min=0)[..., None]], -1))
    middle = (shared[0] + shared[1]) / 2
    divergence = torch.stack(
        [torch.xlogy(part, part / middle.clamp(min=1e-300)).sum(-1) for part in shared]
    ).mean(0)
    return (divergence / math.log(2)).clamp(min=0).sqrt().mean(-1).float()
