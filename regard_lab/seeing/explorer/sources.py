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
from regard_lab.seeing.looks import looks_of
from regard_lab.seeing.maps import AttentionMaps, Kind, ReadingModel, TextMaps, look, look_text
from regard_lab.seeing.picture import WORDING
from regard_lab.seeing.relations import relations_in
from regard_lab.seeing.watching import remark_on_layers
from regard_lab.text import Tokeniser
from regard_lab.text.cleaning import tidy
from regard_lab.text.seen_words import SeenWords

STEPS = 20  # of gradients; the word that is shown first has as many as its completeness error needs
MOST_WEIGHTS = 12 * 12 * 512 * 512  # of a page
MOST_EXPLAINED = 40  # words of a text that are explained, and erased, when the page is made
MOST_REREAD = 200  # words of a text that is read again without each word
PATTERN_LENGTH = 64  # positions of a pattern that is shown without words
LONGEST_PATTERN = 100_000
# Places that belong together, in both texts.
Matched = tuple[tuple[int, ...], tuple[int, ...]]


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
        for attention in self.attentions:
            rows = len(self.texts[attention.rows])
            columns = len(self.texts[attention.columns])
            shape = attention.weights.shape
            if len(shape) != 4 or shape[2:] != (rows, columns):
                raise ShapeError(
                    f"weights of {attention.name} are {tuple(shape)}; their words need (layers, heads, {rows}, "
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
    matched: Mapping[str, Matched]


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
        chosen = asked.place
        contrasts[chosen] = asked

    exploration = explore_maps(maps, title=title)
    attentions = exploration.attentions
    if isinstance(model, RecurrentTranslator):
        says = _alignment(model)
        attentions = tuple(replace(attention, says=says) for attention in attentions)
    return replace(
        exploration,
        attentions=attentions,
        explained=explained(model, tokeniser, contrasts, chosen),
        written="target",
        chosen=chosen,
        patterns=_patterns_on(model, tokeniser, source, target_ids),
        changes=without_each(model, tokeniser, source, target_ids, MOST_EXPLAINED),
    )


def _patterns_on(
    model: Computed, tokeniser: Tokeniser, text: str, target_ids: Sequence[int] = ()
) -> tuple[PatternMap, ...]:
    """The patterns of a model's layers on the sub-words that it reads."""
    sides = ids_read(model, tokeniser, text, target_ids)
    return patterns_used(model, *map(tokeniser.pieces, sides))


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
    model: ReadingModel, tokeniser: Tokeniser, text: str, *, title: str = ""
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
    patterns = _patterns_on(model, tokeniser, text)
    exploration = replace(explore_maps(maps, title=title), patterns=patterns)
    remark = remark_on_layers(model)
    if remark:
        (attention,) = exploration.attentions
        attention = replace(attention, says=remark)
        exploration = replace(exploration, attentions=(attention,), notes=(remark,))
    if not isinstance(model, LanguageModel):
        return exploration

    ids = tokeniser.encode(text)
    contrasts = alternatives(model, tokeniser, None, ids, range(MOST_EXPLAINED + 1))
    # "<begin>" is a word of the map.
    shifted = {place + 1: contrast for place, contrast in contrasts.items()}
    chosen = max(shifted, default=0)
    lenses = explained(model, tokeniser, shifted, chosen)
    exploration = replace(exploration, explained=lenses, written="text", chosen=chosen)
    if len(maps.words) > MOST_REREAD:
        unread = f"Texts of more than {MOST_REREAD} words are not read again without each word."
        return replace(exploration, notes=(*exploration.notes, unread))
    changes = text_without_each(model, tokeniser, text, MOST_EXPLAINED)
    return replace(exploration, changes=changes)


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
    alike: Sequence[Sequence[str]] = (),
) -> Exploration:
    """A page that contains a model and computes: what it shows first, without any weights.

    Args:
        model, tokeniser, words, classes, precision: as for `embed`.
        text: the text that is shown first.
        target_ids: what a translator writes then.
        asked: the written word that is shown first: its `word`, its `place`, and the `others` it is compared with.
        pronouns: words of which one that is written once is shown first, compared with the others.
        alike: for each kind, words of which an experiment puts one in the place of another; where there are none, it
            takes those of the training with near embeddings.
    """
    causal = isinstance(model, LanguageModel)
    says = ""
    label = "Text"
    written = "text" if causal else ""
    if isinstance(model, RecurrentTranslator):
        patterns = {"cross": str(model.cell.attention.pattern)}
        says = _alignment(model)
    elif isinstance(model, TranslationTransformer):
        patterns = {kind: getattr(model.config, f"{kind}_pattern") for kind in TRANSLATING}
    else:
        patterns = {"text": str(model.config.pattern_of(0))}
    if isinstance(model, TranslationModel):
        label = "Sentence"
        written = "target"

    title = tidy(text)
    kinds = [{"kind": kind, **named(kind, causal=causal), "says": says} for kind in patterns]
    shown = {
        "label": label,
        "written": written,
        "follows": "words" if written else "vectors",
        "text": title,
        "patterns": patterns,
        "asked": asked and {**asked, "source": title},
        "pronouns": list(pronouns),
        "alike": [list(words) for words in alike],
        "kinds": kinds,
    }
    embedded = embed(model, tokeniser, words, classes=classes, precision=precision)
    training = "" if words is None else f", and the {len(words.words):,} words of its training"
    notes = [
        f"This page contains the model: {embedded.parameters:,} parameters in {embedded.precision}, its "
        f"tokeniser{training}. It computes in this browser."
    ]
    if embedded.precision == "int8":
        notes.append(differences(model, tokeniser, text, target_ids))
    return Exploration(
        title=title,
        texts={},
        attentions=(),
        explained={},
        notes=tuple(notes),
        patterns=_patterns_on(model, tokeniser, text, target_ids),
        model=replace(embedded, shown=shown),
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


# The title, the columns, the rows.
WORDING_OF_KINDS: dict[str, tuple[str, str, str]] = {
    "text": ("Self-attention", "words read", "word reading"),
    **WORDING,
}


def named(kind: str, *, causal: bool = False) -> dict[str, Any]:
    """How pages name a kind of attention, its texts and their words, as fields of `Attention`."""
    name, column_title, row_title = WORDING_OF_KINDS[kind]
    rows, columns = ENDS[kind]
    return {
        "name": name,
        "rows": rows,
        "columns": columns,
        "row_title": row_title,
        "column_title": column_title,
        "unwritten": kind == "decoder" or causal,
    }


def explore_maps(maps: AttentionMaps | TextMaps, *, title: str = "") -> Exploration:
    """Recorded maps as the explorer shows them, between words."""
    if isinstance(maps, TextMaps):
        fields = named("text", causal=maps.causal)
        attention = with_relations(Attention(weights=maps.weights, **fields), maps.words)
        return Exploration(title or "Self-attention", {"text": maps.words}, (attention,), {})
    needed = "AttentionMaps or TextMaps, as look and look_text return them"
    of_kind("maps", maps, AttentionMaps, needed)

    maps = maps.merged()
    texts = {"source": maps.source_words, "target": maps.target_words, "read": maps.read_words}
    attentions = []
    for kind in TRANSLATING:
        weights = getattr(maps, kind)
        if not len(weights):
            continue
        attention = Attention(weights=weights, **named(kind))
        if kind == "encoder":
            attention = with_relations(attention, maps.source_words)
        attentions.append(attention)
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
    pattern_map = map_pattern(pattern, count if tokens is None else tokens, keys)
    return Exploration(title or f"Pattern {pattern}", {}, (), {}, patterns=(pattern_map,))


def with_relations(attention: Attention, words: Sequence[str]) -> Attention:
    """Self-attention with the mean weight that each head has on the right words, for each relation that the text has.

    Relations are labelled by rules for English text (`regard_lab.seeing.relations`). A few words of one text reveal
    little about a head in general: the lesson on relations measures heads on many texts.
    """
    causal = attention.unwritten
    measured = dict(attention.measured)
    links = dict(attention.links)
    for name, pairs in relations_in(words).items():
        if causal:  # keys that are not written yet cannot be looked at
            pairs = [(query, keys) for query, keys in pairs if max(keys) < query]
        if pairs:
            looks = looks_of(attention.weights, pairs, causal=causal)
            measured[name] = looks.mass.mean(0).float()
            links[name] = len(looks), float(looks.chance.mean())
    return replace(attention, measured=measured, links=links)


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
    if keys is None and rows == columns:
        later = torch.ones(rows, columns).triu(1)
        causal = not bool((stacked * later).any())
        texts = {"text": row_words}
        attention = Attention("Attention", "text", "text", stacked, unwritten=causal)
    else:
        texts = {"queries": row_words, "keys": _words("keys", keys, columns)}
        attention = Attention("Attention", "queries", "keys", stacked)
    return Exploration(title or "Attention weights", texts, (attention,), {})


def explained(
    model: Explained, tokeniser: Tokeniser, contrasts: Mapping[int, Contrast], chosen: int
) -> dict[int, tuple[Relevance, ...]]:
    """The relevance by every lens that the model allows, for each contrast; `chosen` is shown first."""
    relevances: dict[int, list[Relevance]] = {place: [] for place in contrasts}
    lenses = [lens for lens in LENSES if lens != "rollout" or rolls_out(model)]
    for lens in sorted(lenses, key=lambda lens: lens != "erase"):  # erasure first
        steps = STEPS if lens == "gradients" else None
        of_lens = explain_contrasts(model, tokeniser, list(contrasts.values()), lens, steps=steps)
        by_place = dict(zip(contrasts, of_lens, strict=True))
        if lens == "gradients" and chosen in contrasts:
            by_place[chosen] = explain_contrasts(model, tokeniser, [contrasts[chosen]], lens)[0]
        for place, relevance in by_place.items():
            relevances[place].append(relevance)
    return {place: tuple(of_place) for place, of_place in relevances.items()}


def _stacked(weights: Any) -> torch.Tensor:
    """(layers, heads, queries, keys), float32 on the CPU."""
    if _are_layers(weights):
        tensor = _stacked_layers([_tensor(layer) for layer in weights])
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


def _are_layers(weights: Any) -> bool:
    """Whether they are arrays of some layers, rather than one array or nested lists of numbers."""
    if not isinstance(weights, list | tuple) or not weights:
        return False
    return all(hasattr(layer, "shape") for layer in weights)


def _stacked_layers(layers: list[torch.Tensor]) -> torch.Tensor:
    """Layers (heads, queries, keys), or with a batch of 1 before, as (layers, heads, queries, keys)."""
    unbatched = []
    for layer in layers:
        has_batch = layer.dim() == 4 and layer.shape[0] == 1
        unbatched.append(layer[0] if has_batch else layer)
    shapes = sorted({tuple(layer.shape) for layer in unbatched})
    if len(shapes) != 1 or len(shapes[0]) != 3:
        raise ShapeError(
            f"the layers of weights are {shown(shapes)}; each must be (heads, queries, keys), or with a "
            f"batch of 1 before, and all of one shape"
        )
    return torch.stack(unbatched)


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


def compared(exploration: Exploration, other: Exploration, said: str) -> Exploration:
    """An exploration beside another one: the words that both have, and how far heads of the same number are apart.

    Args:
        exploration, other: what the page shows, and what it is compared with.
        said: what the other one is, in a few words.
    """
    matched = {}
    for name, words in exploration.texts.items():
        if name in other.texts:
            matched[name] = _matched(words, other.texts[name])
    beside = {attention.name: attention for attention in other.attentions}
    attentions = []
    for attention in exploration.attentions:
        if attention.name in beside:
            attention = _with_distance(attention, beside[attention.name], matched)
        attentions.append(attention)
    second = Second(said, other, matched)
    return replace(exploration, attentions=tuple(attentions), second=second)


def _with_distance(
    attention: Attention, other: Attention, matched: Mapping[str, Matched]
) -> Attention:
    """Attention with the distance of each head from that of the same number, if there are equally many."""
    if attention.weights.shape[:2] != other.weights.shape[:2]:
        return attention
    rows = matched[attention.rows]
    columns = matched[attention.columns]
    apart = heads_apart(attention.weights, other.weights, rows, columns)
    return replace(attention, measured={**attention.measured, "apart": apart})


def _matched(words: Sequence[str], others: Sequence[str]) -> Matched:
    """The places of the words that belong together in two texts: equal words, in order.

    If at least half of the words are equal, as many words that were replaced by as many others belong together too.

    >>> _matched("the animal slept well".split(), "the dog slept".split())
    ((0, 1, 2), (0, 1, 2))
    """
    changes = SequenceMatcher(None, words, others, autojunk=False).get_opcodes()
    equal = sum(stop - start for kind, start, stop, _, _ in changes if kind == "equal")
    mostly_equal = 2 * equal >= len(words)
    places: list[int] = []
    other_places: list[int] = []
    for kind, start, stop, other_start, other_stop in changes:
        is_replaced = kind == "replace" and stop - start == other_stop - other_start
        if kind == "equal" or (is_replaced and mostly_equal):
            places += range(start, stop)
            other_places += range(other_start, other_stop)
    return tuple(places), tuple(other_places)


def heads_apart(
    weights: torch.Tensor, others: torch.Tensor, rows: Matched, columns: Matched
) -> torch.Tensor:
    """The mean Jensen-Shannon distance of the rows of heads with the same number, (layers, heads).

        sqrt((KL(p | m) + KL(q | m)) / 2),   m = (p + q) / 2, logarithms with base 2

    Args:
        weights, others: (layers, heads, queries, keys), with as many layers and heads.
        rows, columns: the places of shared queries and keys in both; the other keys count as one more key.

    >>> ones = torch.eye(2)[None, None]
    >>> same = (0, 1), (0, 1)
    >>> heads_apart(ones, ones, same, same).item(), heads_apart(ones, ones.flip(-1), same, same).item()
    (0.0, 1.0)
    """
    if not rows[0]:
        return torch.zeros(weights.shape[:2])
    p = _of_shared(weights, rows[0], columns[0])
    q = _of_shared(others, rows[1], columns[1])
    m = (p + q) / 2
    least = m.clamp(min=1e-300)
    divergences = [torch.xlogy(p, p / least).sum(-1), torch.xlogy(q, q / least).sum(-1)]
    divergence = torch.stack(divergences).mean(0)
    return (divergence / math.log(2)).clamp(min=0).sqrt().mean(-1).float()


def _of_shared(weights: torch.Tensor, queries: Sequence[int], keys: Sequence[int]) -> torch.Tensor:
    """The weights of some queries on some keys, and on all other keys together, in float64."""
    of_queries = weights.double()[:, :, list(queries)]
    of_keys = of_queries[..., list(keys)]
    rest = (of_queries.sum(-1) - of_keys.sum(-1)).clamp(min=0)
    return torch.cat([of_keys, rest[..., None]], -1)
