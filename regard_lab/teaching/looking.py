"""What a trained translator looks at, measured for the lessons *heads* and *referent*.

A measurement needs a training run. `benchmarks/lesson_reports.py --run RUN` stores the results as reports, which the
lessons read if no run is given.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.errors import ArgumentError, DataError
from regard_lab.decoding import Translator
from regard_lab.models import TranslationTransformer
from regard_lab.seeing import look_batch
from regard_lab.seeing.referents import (
    choose_head,
    it_weights,
    referent_agreement,
    swap_check,
    word_places,
)
from regard_lab.seeing.relations import Link, Looks, join, looks_of
from regard_lab.teaching.words import rounded
from regard_lab.text.lines import tidy_target
from regard_lab.text.pronouns import (
    ARTICLE_SENTENCES,
    PronounSentence,
    Split,
    Weights,
    make_split,
    pronoun_of,
    swap_other,
    swap_referent,
)

RELATIONS = {  # the word that looks, and what it belongs to
    "verb to subject": ("verb", "subject"),
    "adjective to noun": ("adjective", "noun"),
    "it to referent": ("“it”", "referent"),
}
PRONOUN = "it to referent"
HELPERS = frozenset({"did", "was", "not"})  # "was not crossed by": the verb is "crossed"
RICH = Weights(
    attribute=0.5
)  # an adjective before half of the nouns, so that there are enough pairs
SENTENCES = 200  # of each split


def links_of(sentence: PronounSentence, words: Sequence[str]) -> dict[str, list[Link]]:
    """The links of each relation among the words of a source, with punctuation as separate words.

    >>> words = "The animal didn ' t cross the street because it was too tired . <end>".split()
    >>> links_of(ARTICLE_SENTENCES[0], words)
    {'verb to subject': [(5, frozenset({1}))], 'adjective to noun': [], 'it to referent': [(9, frozenset({1}))]}
    """
    made = sentence.derivation
    lower = [word.lower() for word in words]

    def place(word: str, after: int = -1) -> int:
        if word not in lower[after + 1 :]:
            raise DataError(
                f"{word!r} of {sentence.source!r} is not among the words {' '.join(words)}"
            )
        return lower.index(word, after + 1)

    subject = place(made.subject.english)
    thing = place(made.object.english)
    verbs = {
        next(word for word in form.split() if word not in HELPERS)
        for form in (made.frame.plain, made.frame.negated)
    }
    verb = min(place(form, subject) for form in verbs if form in lower[subject + 1 :])
    described = ((subject, made.subject_attribute), (thing, made.object_attribute))
    return {
        "verb to subject": [(verb, frozenset({subject}))],
        "adjective to noun": [
            (noun - 1, frozenset({noun})) for noun, attribute in described if attribute is not None
        ],
        "it to referent": [(place("it"), frozenset({place(made.referent.english)}))],
    }


def load_transformer(run: str | Path) -> tuple[Translator, TranslationTransformer]:
    """Load a Transformer that translates from the folder of a training run."""
    translator = Translator.load(run)
    if not isinstance(translator.model, TranslationTransformer):
        raise ArgumentError(
            f"this lesson looks at self-attention, and {run} holds a recurrent translator; give another"
        )
    return translator, translator.model


def measure_heads(run: str | Path, seed: int = 0, sentences: int = SENTENCES) -> dict[str, Any]:
    """Score every head of the encoder; the best is chosen on validation sentences and evaluated on test sentences."""
    translator, model = load_transformer(run)

    def looks(split: Split) -> dict[str, Looks]:
        """What all heads of the encoder look at from the first word of each link, by relation."""
        plain, rich = (
            make_split(split, sentences, seed, weights=weights) for weights in (Weights(), RICH)
        )
        found = {}
        for name in RELATIONS:
            those = plain if name == PRONOUN else rich
            seen = [
                maps.merged()
                for maps in look_batch(
                    model, translator.tokeniser, [(one.source, ()) for one in those]
                )
            ]
            found[name] = join(
                looks_of(maps.encoder, links_of(sentence, maps.source_words)[name], causal=False)
                for sentence, maps in zip(those, seen, strict=True)
            )
        return found

    valid = looks("valid")
    test = looks("test")
    return {
        "layers": model.config.encoder_layers,
        "heads": model.config.heads,
        "sentences": sentences,
        "relations": {name: _shares(valid[name], test[name]) for name in RELATIONS},
    }


def _shares(valid: Looks, test: Looks) -> dict[str, Any]:
    layer, head = valid.best_head()
    shares = test.hits.double().mean(0)
    offset = test.best_offset()
    return {
        "shares": rounded(shares, 3),
        "pairs": len(test),
        "chance": round(float(test.chance.mean()), 3),
        "offset": offset,
        "by_offset": round(float(test.at_offset(offset).mean()), 3),
        "chosen": [layer, head],
        "chosen_share": round(float(shares[layer, head]), 3),
    }


def measure_referent(run: str | Path, seed: int = 0, sentences: int = SENTENCES) -> dict[str, Any]:
    """Where *it* looks, where the decoder looks while it writes the pronoun, and what replaced nouns change."""
    translator, model = load_transformer(run)
    tokeniser = translator.tokeniser
    articles = [sentence for sentence in ARTICLE_SENTENCES if "’" not in sentence.source]
    valid, test = (make_split(split, sentences, seed) for split in ("valid", "test"))
    head = choose_head(model, tokeniser, valid)
    agreement = referent_agreement(model, tokeniser, test, head)
    swaps = swap_check(lambda lines: translated(translator, lines), test, seed)
    visible = [
        bool(one.weights[head.layer, :, one.referent].amax() > 0)
        for one in it_weights(model, tokeniser, test)
    ]
    return {
        "head": [head.layer, head.head],
        "sentences": agreement.count,
        "in_reach": sum(visible) / len(visible),
        "agreement": agreement.agreement,
        "chance": agreement.chance,
        "preference": agreement.preference,
        "right": swaps.right,
        "followed": swaps.followed,
        "kept": swaps.kept,
        "swaps": swaps.count,
        "articles": [
            {
                "source": one.source,
                "words": list(look.words),
                "it": look.it,
                "referent": look.referent,
                "other": look.other,
                "weights": rounded(look.weights[head.layer, head.head], 3),
            }
            for one, look in zip(articles, it_weights(model, tokeniser, articles), strict=True)
        ],
        "cross": _while_written(translator, valid, test, articles),
        "varied": varied(translator, articles, seed),
    }


def _while_written(
    translator: Translator,
    valid: list[PronounSentence],
    test: list[PronounSentence],
    articles: list[PronounSentence],
) -> dict[str, Any]:
    """The head of cross-attention that looks most at the referent while the pronoun is written, chosen on `valid`."""

    def right(sentences: list[PronounSentence]) -> torch.Tensor:
        """Whether each head looks most at the referent in sentences with a written pronoun: (n, layers, heads)."""
        seen = zip(sentences, _cross(translator, sentences), strict=True)
        return torch.stack(
            [
                weights.argmax(-1) == word_places(sentence, words)[1]
                for sentence, (words, weights) in seen
                if weights is not None
            ]
        ).double()

    agreed = right(valid).mean(0)
    tested = right(test)
    layer, head = divmod(int(agreed.flatten().argmax()), agreed.shape[1])
    return {
        "head": [layer, head],
        "share": float(tested.mean(0)[layer, head]),
        "count": len(tested),
        "examples": [_example(translator, one, layer, head) for one in articles],
    }


def _cross(
    translator: Translator, sentences: list[PronounSentence]
) -> list[tuple[tuple[str, ...], torch.Tensor | None]]:
    """The source words, and the weights (layers, heads, words) while the pronoun is written; None without a pronoun."""
    results = translator.translate([one.source for one in sentences])
    asked = [(one.source, result.ids) for one, result in zip(sentences, results, strict=True)]
    found: list[tuple[tuple[str, ...], torch.Tensor | None]] = []
    for maps in look_batch(translator.model, translator.tokeniser, asked):
        merged = maps.merged()
        place = pronoun_place(merged.target_words)
        found.append((merged.source_words, None if place is None else merged.cross[:, :, place]))
    return found


def pronoun_place(words: Sequence[str]) -> int | None:
    """The place of the pronoun of the clause with "weil" or "da"; None if there is none.

    >>> pronoun_place(["Das", "Tier", "schläft", ",", "weil", "es", "müde", "ist", ".", "<end>"])
    5
    """
    pronoun = pronoun_of(" ".join(words).replace(" ,", ",").replace(" .", "."))
    places = [place for place, word in enumerate(words) if word.lower() == pronoun]
    return places[-1] if places else None


def _example(
    translator: Translator, sentence: PronounSentence, layer: int, head: int
) -> dict[str, Any]:
    ((words, weights),) = _cross(translator, [sentence])
    assert weights is not None, f"the run writes no pronoun for {sentence.source!r}"
    _, referent, other = word_places(sentence, words)
    return {
        "words": list(words),
        "referent": referent,
        "other": other,
        "pronoun": sentence.pronoun,
        "weights": rounded(weights[layer, head], 3),
    }


def translated(translator: Translator, lines: list[str]) -> list[str]:
    return [tidy_target(translation.text) for translation in translator.translate(lines)]


def varied(
    translator: Translator, sentences: Sequence[PronounSentence], seed: int
) -> list[dict[str, Any]]:
    """Translations of each sentence, unchanged, with another referent, and with the other noun replaced."""
    ways: dict[str, Callable[[PronounSentence], PronounSentence]] = {
        "unchanged": lambda one: one,
        "referent replaced": lambda one: swap_referent(one, seed),
        "other noun replaced": lambda one: swap_other(one, seed),
    }
    versions = [(way, change(sentence)) for sentence in sentences for way, change in ways.items()]
    outputs = translated(translator, [version.source for _, version in versions])
    return [
        {
            "way": way,
            "source": one.source,
            "translation": text,
            "asked": one.pronoun,
            "written": pronoun_of(text),
        }
        for (way, one), text in zip(versions, outputs, strict=True)
    ]
