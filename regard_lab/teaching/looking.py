"""What a trained translator looks at, measured for the lessons *heads* and *referent*.

A measurement needs a training run. `benchmarks/lesson_reports.py --run RUN` stores the results as reports, which the
lessons read if no run is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.errors import ArgumentError, DataError
from regard_lab.decoding import Translator
from regard_lab.models import TranslationTransformer
from regard_lab.seeing.looks import HeadLooks, Link, join, looks_of
from regard_lab.seeing.maps import look_batch
from regard_lab.seeing.referents import (
    choose_head,
    it_weights,
    referent_agreement,
    swap_check,
    word_places,
)
from regard_lab.teaching.measures import rounded
from regard_lab.text.cleaning import tidy_target
from regard_lab.text.pronouns import (
    ARTICLE_SENTENCES,
    ChoiceProbabilities,
    PronounSentence,
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
# An adjective before half of the nouns, so that there are enough pairs.
RICH = ChoiceProbabilities(attribute=0.5)
SENTENCES = 200  # of each split


def links_of(sentence: PronounSentence, words: Sequence[str]) -> dict[str, list[Link]]:
    """The links of each relation among the words of a source, with punctuation as separate words.

    >>> words = "The animal didn ' t cross the street because it was too tired . <end>".split()
    >>> links_of(ARTICLE_SENTENCES[0], words)
    {'verb to subject': [(5, frozenset({1}))], 'adjective to noun': [], 'it to referent': [(9, frozenset({1}))]}
    """
    derivation = sentence.derivation
    subject = _place(derivation.subject.english, words, sentence)
    noun_of_object = _place(derivation.object.english, words, sentence)
    verb = _verb_place(words, subject, sentence)

    adjectives: list[Link] = []
    if derivation.subject_attribute is not None:
        adjectives.append((subject - 1, frozenset({subject})))
    if derivation.object_attribute is not None:
        adjectives.append((noun_of_object - 1, frozenset({noun_of_object})))

    referent = _place(derivation.referent.english, words, sentence)
    it = _place("it", words, sentence)
    return {
        "verb to subject": [(verb, frozenset({subject}))],
        "adjective to noun": adjectives,
        "it to referent": [(it, frozenset({referent}))],
    }


def _place(word: str, words: Sequence[str], sentence: PronounSentence) -> int:
    """The place of a word of the grammar, which writes nouns in lower case."""
    for place, candidate in enumerate(words):
        if candidate.lower() == word:
            return place
    raise DataError(f"{word!r} of {sentence.source!r} is not among the words {' '.join(words)}")


def _verb_place(words: Sequence[str], subject: int, sentence: PronounSentence) -> int:
    """The place of the verb of the subject, which stands at a place before it."""
    frame = sentence.derivation.frame
    forms = set()
    for clause in (frame.plain, frame.negated):
        forms.add(next(word for word in clause.split() if word not in HELPERS))

    for place in range(subject + 1, len(words)):
        if words[place].lower() in forms:
            return place
    raise DataError(f"no verb of {sentence.source!r} is among the words {' '.join(words)}")


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
    relations = {}
    for name in RELATIONS:
        weights = ChoiceProbabilities() if name == PRONOUN else RICH
        valid = make_split("valid", sentences, seed, weights=weights)
        test = make_split("test", sentences, seed, weights=weights)
        relations[name] = _relation_figures(
            valid=_looks_of_relation(name, translator, valid),
            test=_looks_of_relation(name, translator, test),
        )
    return {
        "layers": model.config.encoder_layers,
        "heads": model.config.heads,
        "sentences": sentences,
        "relations": relations,
    }


def _looks_of_relation(
    name: str, translator: Translator, sentences: list[PronounSentence]
) -> HeadLooks:
    """What all heads of the encoder look at from the first word of each link."""
    sources = [(sentence.source, ()) for sentence in sentences]
    maps_of_each = look_batch(translator.model, translator.tokeniser, sources)
    looks = []
    for sentence, maps in zip(sentences, maps_of_each, strict=True):
        merged = maps.merged()
        links = links_of(sentence, merged.source_words)[name]
        looks.append(looks_of(merged.encoder, links, causal=False))
    return join(looks)


def _relation_figures(valid: HeadLooks, test: HeadLooks) -> dict[str, Any]:
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
    valid = make_split("valid", sentences, seed)
    test = make_split("test", sentences, seed)

    head = choose_head(model, tokeniser, valid)
    agreement = referent_agreement(model, tokeniser, test, head)
    swaps = swap_check(lambda lines: translate_lines(translator, lines), test, seed)

    in_reach = 0  # sentences whose referent is not outside of a window of the head's layer
    for look in it_weights(model, tokeniser, test):
        on_referent = look.weights[head.layer, :, look.referent]  # (heads,)
        in_reach += bool(on_referent.amax() > 0)

    examples = []
    for sentence, look in zip(articles, it_weights(model, tokeniser, articles), strict=True):
        example = {
            "source": sentence.source,
            "words": list(look.words),
            "it": look.it,
            "referent": look.referent,
            "other": look.other,
            "weights": rounded(look.weights[head.layer, head.head], 3),
        }
        examples.append(example)

    return {
        "head": [head.layer, head.head],
        "sentences": agreement.count,
        "in_reach": in_reach / len(test),
        "agreement": agreement.agreement,
        "chance": agreement.chance,
        "offset": agreement.offset,
        "by_offset": agreement.by_offset,
        "preference": agreement.preference,
        "right": swaps.right,
        "followed": swaps.followed,
        "kept": swaps.kept,
        "swaps": swaps.count,
        "articles": examples,
        "cross": _measure_while_written(translator, valid, test, articles),
        "varied": translate_variants(translator, articles, seed),
    }


def _measure_while_written(
    translator: Translator,
    valid: list[PronounSentence],
    test: list[PronounSentence],
    articles: list[PronounSentence],
) -> dict[str, Any]:
    """The head of cross-attention that looks most at the referent while the pronoun is written, chosen on `valid`."""
    shares = _cross_agrees(translator, valid).mean(0)  # (layers, heads)
    layer, head = divmod(int(shares.flatten().argmax()), shares.shape[1])
    agrees = _cross_agrees(translator, test)
    examples = [_cross_example(translator, sentence, layer, head) for sentence in articles]
    return {
        "head": [layer, head],
        "share": float(agrees.mean(0)[layer, head]),
        "count": len(agrees),
        "examples": examples,
    }


def _cross_agrees(translator: Translator, sentences: list[PronounSentence]) -> torch.Tensor:
    """1 where a head looks most at the referent, of sentences with a written pronoun: (sentences, layers, heads)."""
    agrees = []
    for sentence, look in zip(sentences, _cross_looks(translator, sentences), strict=True):
        if look.weights is not None:
            _, referent, _ = word_places(sentence, look.words)
            agrees.append(look.weights.argmax(-1) == referent)
    return torch.stack(agrees).double()


@dataclass(frozen=True, eq=False)
class _CrossLook:
    """What cross-attention looks at while a pronoun is written.

    Args:
        words: the source words.
        weights: (layers, heads, words); None if no pronoun is written.
    """

    words: tuple[str, ...]
    weights: torch.Tensor | None


def _cross_looks(translator: Translator, sentences: list[PronounSentence]) -> list[_CrossLook]:
    translations = translator.translate([sentence.source for sentence in sentences])
    pairs = []
    for sentence, translation in zip(sentences, translations, strict=True):
        pairs.append((sentence.source, translation.ids))

    looks = []
    for maps in look_batch(translator.model, translator.tokeniser, pairs):
        merged = maps.merged()
        place = place_of_pronoun(merged.target_words)
        weights = None if place is None else merged.cross[:, :, place]
        looks.append(_CrossLook(merged.source_words, weights))
    return looks


def place_of_pronoun(words: Sequence[str]) -> int | None:
    """The place of the pronoun of the clause with "weil" or "da"; None if there is none.

    >>> place_of_pronoun(["Das", "Tier", "schläft", ",", "weil", "es", "müde", "ist", ".", "<end>"])
    5
    """
    pronoun = pronoun_of(" ".join(words).replace(" ,", ",").replace(" .", "."))
    places = [place for place, word in enumerate(words) if word.lower() == pronoun]
    return places[-1] if places else None


def _cross_example(
    translator: Translator, sentence: PronounSentence, layer: int, head: int
) -> dict[str, Any]:
    (look,) = _cross_looks(translator, [sentence])
    assert look.weights is not None, f"the run writes no pronoun for {sentence.source!r}"
    _, referent, other = word_places(sentence, look.words)
    return {
        "words": list(look.words),
        "referent": referent,
        "other": other,
        "pronoun": sentence.pronoun,
        "weights": rounded(look.weights[layer, head], 3),
    }


def translate_lines(translator: Translator, lines: list[str]) -> list[str]:
    return [tidy_target(translation.text) for translation in translator.translate(lines)]


def translate_variants(
    translator: Translator, sentences: Sequence[PronounSentence], seed: int
) -> list[dict[str, Any]]:
    """Translations of each sentence, unchanged, with another referent, and with the other noun replaced."""
    ways = []
    variants = []
    for sentence in sentences:
        ways += ["unchanged", "referent replaced", "other noun replaced"]
        variants += [sentence, swap_referent(sentence, seed), swap_other(sentence, seed)]

    translations = translate_lines(translator, [variant.source for variant in variants])
    figures = []
    for way, variant, translation in zip(ways, variants, translations, strict=True):
        figure = {
            "way": way,
            "source": variant.source,
            "translation": translation,
            "asked": variant.pronoun,
            "written": pronoun_of(translation),
        }
        figures.append(figure)
    return figures
