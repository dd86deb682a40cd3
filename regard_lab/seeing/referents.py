"""Where *it* looks, how often that is the noun it means, and whether the translated pronoun follows that noun."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from regard.arguments import a_list, count_of, of_kind, shown, whole
from regard.errors import ArgumentError, DataError, UnsupportedError
from regard.reprs import brief
from regard_lab.models import TranslationTransformer
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing.watching import merge, recorded_weights, watched
from regard_lab.text import END, Tokeniser
from regard_lab.text.batches import batches_in_order
from regard_lab.text.cleaning import normalise
from regard_lab.text.pronouns import (
    PronounSentence,
    pronoun_of,
    split_of_pair,
    swap_other,
    swap_referent,
)


@brief
@dataclass(frozen=True, eq=False)
class ItWeights:
    """The weights of *it* in one sentence.

    Args:
        words: the source words, with punctuation and "<end>" as separate words.
        weights: (encoder layers, heads, words), float32, with sub-words merged; those of each head sum to 1.
        it, referent, other: indices in `words` of *it*, of its referent and of the other noun.
    """

    words: tuple[str, ...]
    weights: torch.Tensor
    it: int
    referent: int
    other: int

    @property
    def agrees(self) -> torch.Tensor:
        """(layers, heads), True if the referent has a larger weight than every other word except *it* itself."""
        rivals = [
            place for place in range(len(self.words)) if place not in (self.it, self.referent)
        ]
        return self.weights[..., self.referent] > self.weights[..., rivals].amax(-1)

    @property
    def prefers(self) -> torch.Tensor:
        """(layers, heads), True if the referent has a larger weight than the other noun."""
        return self.weights[..., self.referent] > self.weights[..., self.other]


@dataclass(frozen=True)
class HeadChoice:
    """A head of the encoder, both numbers from 0, and its agreement on the sentences by which it was chosen."""

    layer: int
    head: int
    agreement: float


@dataclass(frozen=True)
class Agreement:
    """How often *it* looks at its referent.

    Args:
        agreement: share of sentences in which *it* looks more at its referent than at any other source word except
            *it* itself; punctuation and "<end>" count as words, and a tie does not count.
        preference: share of sentences in which it looks more at its referent than at the other noun; a tie does not
            count.
        count: number of sentences.
        chance: the expected agreement of a random choice among those words: the mean of 1 / (number of words). The
            expected preference is 0.5.
        offset: the number of words from *it* at which the referent stands most often; negative numbers are words back.
        by_offset: the agreement of a rule that always takes the word at this offset. It knows nothing but positions.
    """

    agreement: float
    preference: float
    count: int
    chance: float
    offset: int
    by_offset: float


def it_weights(
    model: TranslationModel,
    tokeniser: Tokeniser,
    sentences: Sequence[PronounSentence],
    batch_tokens: int = 2048,
) -> list[ItWeights]:
    """The encoder's self-attention from *it* to each source word, for every layer and head.

    Args:
        model: in any mode; it is left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        sentences: the sentences to read; only the encoder runs.
        batch_tokens: the most source ids in a batch.

    Returns:
        The weights of each sentence, in the order of the sentences.

    Raises:
        ArgumentError: a tokeniser that does not fit the model.
        UnsupportedError: a recurrent translator, which has no self-attention.

    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> tokeniser = Tokeniser.train([ARTICLE_SENTENCES[0].source], vocab_size=300)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> looks = it_weights(model, tokeniser, ARTICLE_SENTENCES[:1])[0]
    >>> looks.words[looks.it], looks.words[looks.referent], looks.words[looks.other], looks.weights.shape
    ('it', 'animal', 'street', torch.Size([2, 2, 13]))
    """
    encoder = _self_attending(model)
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    sentences = _listed("sentences", sentences, 0)
    batch_tokens = whole("batch_tokens", batch_tokens, 1)

    # Batches are made of pairs; only the encoder runs, so one id stands for each target.
    encoded = [(tokeniser.encode(sentence.source), [0]) for sentence in sentences]
    results: dict[int, ItWeights] = {}
    device = next(model.parameters()).device
    for indices, batch in batches_in_order(encoded, batch_tokens):
        with watched(model, tokeniser) as recording:
            encoder.encode(batch.source.to(device))
        weights = recorded_weights(recording, "encoder", "attention", encoder.config.encoder_layers)
        for row, index in enumerate(indices):
            spans = tokeniser.words([*encoded[index][0], END])
            words = tuple(word for word, _ in spans)
            it, referent, other = word_places(sentences[index], words)
            it_ids = spans[it][1]
            length = spans[-1][1].stop
            # (layers, heads, ids of it, ids)
            weights_of_it = weights[:, row, :, it_ids.start : it_ids.stop, :length]
            merged = merge(weights_of_it, [("it", range(len(it_ids)))], spans).squeeze(2)
            results[index] = ItWeights(words, merged, it, referent, other)
    return [results[index] for index in range(len(sentences))]


def choose_head(
    model: TranslationModel,
    tokeniser: Tokeniser,
    valid_sentences: Sequence[PronounSentence],
) -> HeadChoice:
    """Choose the encoder head in which *it* most often looks most at its referent; of several, the first.

    Args:
        model, tokeniser: as for `it_weights`.
        valid_sentences: sentences of the validation split, so that the test sentences stay independent of the choice.

    Raises:
        ArgumentError: no sentences, or sentences of another split.

    >>> from regard_lab.text.pronouns import make_split
    >>> sentences = make_split("valid", 4)
    >>> tokeniser = Tokeniser.train([sentence.source for sentence in sentences], vocab_size=300)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> 0 <= choose_head(model, tokeniser, sentences).agreement <= 1
    True
    """
    valid_sentences = _listed("valid_sentences", valid_sentences)
    of_other_splits = 0
    for sentence in valid_sentences:
        nouns = sentence.derivation
        if split_of_pair(nouns.subject, nouns.object) != "valid":
            of_other_splits += 1
    if of_other_splits:
        raise ArgumentError(
            f"{of_other_splits} of {count_of(len(valid_sentences), 'sentences')} are not of the validation split; "
            "choose a head only on make_split('valid', ...), so that test sentences stay independent of the choice"
        )

    looks = it_weights(model, tokeniser, valid_sentences)
    counts = torch.stack([look.agrees for look in looks]).sum(0)  # (layers, heads)
    layer, head = divmod(int(counts.argmax()), counts.shape[1])
    return HeadChoice(layer, head, int(counts[layer, head]) / len(looks))


def referent_agreement(
    model: TranslationModel,
    tokeniser: Tokeniser,
    sentences: Sequence[PronounSentence],
    head: HeadChoice | tuple[int, int],
) -> Agreement:
    """Measure how often *it* looks most at its referent in one head, over all sentences.

    Args:
        model, tokeniser: as for `it_weights`.
        sentences: the sentences to count, such as the test split.
        head: the result of `choose_head`, or (layer, head).

    Raises:
        ArgumentError: no sentences, or a head that does not exist.

    >>> from regard_lab.text.pronouns import make_split
    >>> sentences = make_split("test", 4)
    >>> tokeniser = Tokeniser.train([sentence.source for sentence in sentences], vocab_size=300)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> referent_agreement(model, tokeniser, sentences, (1, 0)).count
    4
    """
    sentences = _listed("sentences", sentences)
    encoder = _self_attending(model)
    pair = (head.layer, head.head) if isinstance(head, HeadChoice) else head
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ArgumentError(
            f"head is {shown(pair)}; it needs the result of choose_head, or (layer, head)"
        )
    layer = whole("the layer of head", pair[0])
    number = whole("the head of head", pair[1])
    layers = encoder.config.encoder_layers
    heads = encoder.config.heads
    if not (0 <= layer < layers and 0 <= number < heads):
        raise ArgumentError(
            f"head {number} of layer {layer} does not exist; this encoder has layers 0 to {layers - 1} and heads 0 to "
            f"{heads - 1}"
        )

    looks = it_weights(model, tokeniser, sentences)
    count = len(looks)
    offsets = Counter(look.referent - look.it for look in looks)
    offset, right_by_offset = offsets.most_common(1)[0]
    return Agreement(
        agreement=sum(bool(look.agrees[layer, number]) for look in looks) / count,
        preference=sum(bool(look.prefers[layer, number]) for look in looks) / count,
        count=count,
        chance=sum(1 / (len(look.words) - 1) for look in looks) / count,
        offset=offset,
        by_offset=right_by_offset / count,
    )


def _self_attending(model: TranslationModel) -> TranslationTransformer:
    if not isinstance(model, TranslationTransformer):
        raise UnsupportedError(
            f"where *it* looks is measured in self-attention, and {type(model).__name__} has none; use swap_check, or "
            f"look at its cross-attention"
        )
    return model


def word_places(sentence: PronounSentence, words: Sequence[str]) -> tuple[int, int, int]:
    """The indices of *it* and of the two nouns among the tokeniser's words, which include punctuation.

    Both lists of words have the same letters in the same order, so a word of `source.split()` is the first of the
    tokeniser's words that begins within it and contains a letter.
    """
    starts = _starts(words)
    source_starts = _starts(normalise(sentence.source).split())

    def place_of(index: int) -> int:
        for place, word in enumerate(words):
            is_inside = source_starts[index] <= starts[place] < source_starts[index + 1]
            if is_inside and any(map(str.isalnum, word)):
                return place
        raise DataError(
            f"word {index} of {sentence.source!r} is not among the tokeniser's words {' '.join(words)}"
        )

    it = place_of(sentence.it_index)
    return it, place_of(sentence.referent_index), place_of(sentence.other_index)


def _starts(words: Sequence[str]) -> list[int]:
    """How many letters stand before each word, and at last before the end."""
    return [0, *accumulate(map(len, words))]


def _listed(
    name: str, sentences: Sequence[PronounSentence], least: int = 1
) -> list[PronounSentence]:
    needed = "PronounSentences, as make_split returns them"
    listed = a_list(name, sentences, PronounSentence, needed)
    if len(listed) < least:
        raise ArgumentError(
            "there are 0 sentences, so a share cannot be computed; give at least one"
        )
    return listed


@dataclass(frozen=True)
class SwapCheck:
    """The effect of replacing nouns on the pronouns, as shares of all sentences.

    Args:
        right: the pronoun is right in the unchanged sentence; the other two cannot be larger.
        followed: right before and after the *referent* is replaced by a noun of another gender, which needs another
            pronoun.
        kept: right before and after the *other* noun is replaced by one of another gender, which must not change the
            pronoun. A translator that uses the wrong noun scores low here.
        count: number of sentences, each translated three times.
    """

    right: float
    followed: float
    kept: float
    count: int


def swap_check(
    translate: Callable[[list[str]], Sequence[str]],
    sentences: Sequence[PronounSentence],
    seed: int = 0,
) -> SwapCheck:
    """Replace the referent, and as a control the other noun, and count how often the pronoun is right.

    If the nouns of a sentence differ in gender, the new noun has the third gender. A pronoun that follows the referent
    can then be distinguished from one that agrees with the other noun.

    Args:
        translate: a function from lines to their translations, one for each; it is called once.
        sentences: the sentences to change; the new pairs of nouns may be of any split.
        seed: determines the new nouns.

    Raises:
        ArgumentError: no sentences, or another number of translations than lines.

    >>> from regard_lab.text.pronouns import ARTICLE_SENTENCES
    >>> swap_check(lambda lines: ["weil es müde war"] * len(lines), ARTICLE_SENTENCES[:1])
    SwapCheck(right=1.0, followed=0.0, kept=1.0, count=1)
    """
    if not callable(translate):
        raise ArgumentError(
            f"translate is {shown(translate)}; it needs a function from lines to their translations"
        )
    sentences = _listed("sentences", sentences)

    versions = [
        *sentences,
        *(swap_referent(sentence, seed) for sentence in sentences),
        *(swap_other(sentence, seed) for sentence in sentences),
    ]
    translated = translate([version.source for version in versions])
    outputs = a_list("the result of translate", translated, str, "a list of translations")
    if len(outputs) != len(versions):
        raise ArgumentError(
            f"translate returned {count_of(len(outputs), 'translations')} for "
            f"{count_of(len(versions), 'lines')}; return one for each, in order"
        )

    is_right = []
    for version, output in zip(versions, outputs, strict=True):
        is_right.append(pronoun_of(output) == version.pronoun)
    before, after_referent, after_other = torch.tensor(is_right).view(3, -1)
    count = len(before)
    return SwapCheck(
        right=int(before.sum()) / count,
        followed=int((before & after_referent).sum()) / count,
        kept=int((before & after_other).sum()) / count,
        count=count,
    )
