"""Lesson: every head of a trained encoder, measured by how often a word looks at the word it belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from regard.arguments import count_of
from regard.errors import DataError
from regard_lab.lessons.figures import begin, draw_map, scale_beside
from regard_lab.lessons.taught import LESSONS, Claim, Estimate, Settings, Table, Taught
from regard_lab.lessons.words import load_transformer, rounded
from regard_lab.models import TranslationTransformer
from regard_lab.seeing import look_batch
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import PronounSentence, Split, Weights, make_split
from regard_lab.training.recipes.evaluation import rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


RELATIONS = {  # the word that looks, and what it belongs to
    "verb to subject": ("verb", "subject"),
    "adjective to noun": ("adjective", "noun"),
    "it to referent": ("*it*", "referent"),
}
PRONOUN = "it to referent"
_HELPERS = frozenset({"did", "was", "not"})  # "was not crossed by": the verb is "crossed"

Link = tuple[int, int]  # places of the word that looks and of the word that it belongs to


@dataclass(frozen=True)
class Score:
    """How often heads look from the first word of a link to the second.

    Args:
        shares: (layers, heads), the share of links whose first word looks more at the second than at any other word
            except itself; a tie does not count.
        count: number of links.
        chance: the expected share of a random choice among those words.
        offset, by_offset: the number of words ahead (back if negative) that is right most often, and its share: a
            head with no higher share may only look at a fixed neighbour.
    """

    shares: torch.Tensor
    count: int
    chance: float
    offset: int
    by_offset: float


def links_of(sentence: PronounSentence, words: Sequence[str]) -> dict[str, list[Link]]:
    """The links of each relation among the words of a source, with punctuation as separate words.

    Raises:
        DataError: the words are not those of the sentence.

    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> words = "The animal didn ' t cross the street because it was too tired . <end>".split()
    >>> links_of(ARTICLE_SENTENCES[0], words)
    {'verb to subject': [(5, 1)], 'adjective to noun': [], 'it to referent': [(9, 1)]}
    """
    made = sentence.derivation
    lower = [word.lower() for word in words]

    def place(word: str, after: int = -1) -> int:
        if word not in lower[after + 1 :]:
            raise DataError(f"{word!r} of {sentence.source!r} is not among the words {' '.join(words)}")
        return lower.index(word, after + 1)

    subject, thing = place(made.subject.english), place(made.object.english)
    verbs = {
        next(word for word in form.split() if word not in _HELPERS) for form in (made.frame.plain, made.frame.negated)
    }
    verb = min(place(form, subject) for form in verbs if form in lower[subject + 1 :])
    described = ((subject, made.subject_attribute), (thing, made.object_attribute))
    return {
        "verb to subject": [(verb, subject)],
        "adjective to noun": [(noun - 1, noun) for noun, attribute in described if attribute is not None],
        "it to referent": [(place("it"), place(made.referent.english))],
    }  # fmt: skip


def score(maps: Sequence[torch.Tensor], links: Sequence[Sequence[Link]]) -> Score:
    """Score every head by how often it looks from the first word of a link to the second, over all sentences.

    Args:
        maps: weights of each sentence, (layers, heads, words, words).
        links: the links of each sentence.

    Raises:
        DataError: no sentence has a link.

    >>> next_word = torch.eye(3).roll(1, 1)[None, None]
    >>> scored = score([next_word], [[(0, 1), (1, 0)]])
    >>> scored.shares.tolist(), scored.chance
    ([[0.5]], 0.5)
    """
    hits, chances, offsets = [], [], Counter()
    for weights, pairs in zip(maps, links, strict=True):
        for word, other in pairs:
            rivals = [place for place in range(weights.shape[-1]) if place not in (word, other)]
            row = weights[:, :, word]  # (layers, heads, words)
            hits.append(row[..., other] > row[..., rivals].amax(-1))
            chances.append(1 / (len(rivals) + 1))
            offsets[other - word] += 1
    if not hits:
        raise DataError("no sentence contains such a pair of words; give more sentences")
    offset, often = min(offsets.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
    count = len(hits)
    shares = torch.stack(hits).double().mean(0)
    return Score(shares, count, sum(chances) / count, offset, often / count)


SENTENCES = 200  # of each split
RICH = Weights(attribute=0.5)  # an adjective before half of the nouns, so that there are enough pairs

CODE = """\
from regard_lab.decoding import Translator
from regard_lab.seeing import look

translator = Translator.load("runs/demo")
source = "The old animal didn't cross the street because it was too tired."
translation = translator.translate([source])[0]
maps = look(translator.model, translator.tokeniser, source, translation.ids).merged()
print(maps.source_words)
print(maps.matrix("encoder", layer=1, head=0))  # (words, words): row i holds the weights of word i"""


def teach(settings: Settings) -> Taught:
    """Score every head; the best head is chosen on validation sentences and evaluated on test sentences."""
    translator, model = load_transformer(settings.run, "heads")
    valid, test = (
        scores_of(model, translator.tokeniser, split_of(split, settings.seed)) for split in ("valid", "test")
    )
    numbers = {
        "layers": model.config.encoder_layers, "heads": model.config.heads, "sentences": SENTENCES,
        "relations": {name: _numbers(valid[name], test[name]) for name in RELATIONS},
    }  # fmt: skip
    return Taught(
        lesson=LESSONS["heads"],
        paragraphs=_paragraphs(numbers),
        tables=_tables(numbers),
        claims=_claims(numbers),
        code=CODE,
        numbers=numbers,
        drawing=partial(_draw, numbers),
    )


def _paragraphs(numbers: dict[str, Any]) -> tuple[str, ...]:
    count = numbers["sentences"]
    return (
        "Articles report heads that learn grammar: one looks from a verb to its subject, another from an adjective to "
        "its noun, a third from a pronoun to its referent. The sentences of the built-in corpus are generated by a "
        "grammar, so it is known which word belongs to which, and every head can be measured.",
        "For each pair of related words, such as verb and subject, we count how often the first word gives the second "
        "more weight than any other word of the sentence except itself. Two baselines use no grammar: a random "
        "choice, and a fixed offset (always the same number of words ahead or back, the number that is right most "
        "often).",
        f"The head of each relation is chosen on {count_of(count, 'validation sentences')} and "
        f"evaluated on {count_of(count, 'test sentences')} "
        f"with other pairs of nouns. Attention alone is not an explanation: the lesson referent adds a check that "
        f"changes a word.",
        "The pronouns are those of the sentences of the lesson referent. For the other relations half of the nouns "
        "have an adjective, so that there are enough pairs. Layers and heads are counted from 0.",
    )


def split_of(split: Split, seed: int) -> dict[str, list[PronounSentence]]:
    """The sentences of each relation; those of *it* are the sentences of the lesson referent."""
    plain, rich = (make_split(split, SENTENCES, seed, weights=weights) for weights in (Weights(), RICH))
    return {name: plain if name == PRONOUN else rich for name in RELATIONS}


def scores_of(
    model: TranslationTransformer, tokeniser: Tokeniser, sentences: Mapping[str, list[PronounSentence]]
) -> dict[str, Score]:
    """The shares of all heads of the encoder for every relation, on its sentences."""
    scores = {}
    for name, those in sentences.items():
        seen = [maps.merged() for maps in look_batch(model, tokeniser, [(one.source, ()) for one in those])]
        links = [links_of(sentence, maps.source_words)[name] for sentence, maps in zip(those, seen, strict=True)]
        scores[name] = score([maps.encoder for maps in seen], links)  # maps are (layers, heads, words, words)
    return scores


def _numbers(valid: Score, test: Score) -> dict[str, Any]:
    layer, head = divmod(int(valid.shares.flatten().argmax()), valid.shares.shape[1])
    return {
        "shares": rounded(test.shares, 3), "pairs": test.count, "chance": round(test.chance, 3),
        "offset": test.offset, "by_offset": round(test.by_offset, 3),
        "chosen": [layer, head], "chosen_share": round(float(test.shares[layer, head]), 3),
    }  # fmt: skip


def _tables(numbers: dict[str, Any]) -> tuple[Table, ...]:
    relations = numbers["relations"]
    chosen = tuple(
        (
            name, "layer {}, head {}".format(*one["chosen"]), rate(one["chosen_share"]), rate(one["chance"]),
            f"{rate(one['by_offset'])} ({_offset(one['offset'])})", str(one["pairs"]),
        )
        for name, one in relations.items()
    )  # fmt: skip
    every = tuple(
        (str(layer), str(head), *(rate(one["shares"][layer][head]) for one in relations.values()))
        for layer in range(numbers["layers"])
        for head in range(numbers["heads"])
    )
    columns = ("relation", "head, by validation", "share on test", "random choice", "fixed offset", "pairs")
    return (
        Table("The head of each relation", columns, chosen),
        Table("Every head, on test sentences", ("layer", "head", *relations), every),
    )


def _offset(offset: int) -> str:
    """
    >>> _offset(1), _offset(-2)
    ('1 word ahead', '2 words back')
    """
    return f"{abs(offset)} word{'s' * (abs(offset) != 1)} {'ahead' if offset > 0 else 'back'}"


def _claims(numbers: dict[str, Any]) -> tuple[Claim, ...]:
    claims = []
    for name, (word, target) in RELATIONS.items():
        one = numbers["relations"][name]
        share, by_offset = (Estimate.share(one[key], one["pairs"]) for key in ("chosen_share", "by_offset"))
        claims.append(
            Claim(
                f"The chosen head looks from {word} to its {target} more than twice as often as by random choice.",
                share.above(2 * one["chance"]),
                f"{share} of {one['pairs']}, by chance {one['chance']:.3f}",
            )
        )
        claims.append(
            Claim(
                f"For {word} it does so more often than a head that always looks at a fixed offset.",
                share.above(by_offset),
                f"{share}, {_offset(one['offset'])} {by_offset}",
            )
        )
    return tuple(claims)


def _draw(numbers: dict[str, Any], figure: Figure) -> None:
    layers, heads = numbers["layers"], numbers["heads"]
    title = "How often each head looks from a word to the one it belongs to"
    begin(figure, title, max(9.5, 1.2 + 1.35 * heads), max(3.3, 2.2 + 0.5 * layers))
    panels = figure.subplots(1, len(RELATIONS))
    for axes, (name, one) in zip(panels, numbers["relations"].items(), strict=True):
        rows = [f"layer {layer}" for layer in range(layers)] if axes is panels[0] else ()
        image = draw_map(axes, torch.tensor(one["shares"]), rows, [f"head {head}" for head in range(heads)])
        for layer in range(layers):
            for head in range(heads):
                share = one["shares"][layer][head]
                axes.text(head, layer, rate(share), ha="center", va="center", fontsize=8,
                          color="black" if share > 0.5 else "white")  # fmt: skip
        axes.set_xlabel(
            f"{name}\nrandom {rate(one['chance'])}; {_offset(one['offset'])} {rate(one['by_offset'])}", fontsize=9
        )
    scale_beside(figure, image, panels, "share of pairs")
