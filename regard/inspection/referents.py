"""Where *it* looks, how often that is the noun it means, and whether the translated pronoun follows that noun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regard.arguments import a_list, of_kind, shown, whole
from regard.errors import ArgumentError, DataError, UnsupportedError
from regard.inspection.watching import Span, merge, recorded_weights, watched
from regard.models import TranslationTransformer
from regard.models.kinds import TranslationModel
from regard.text import END, Tokeniser, normalise
from regard.text.batches import batches_in_order
from regard.text.pronouns import PronounSentence, pronoun_of, split_of_pair, swap_other, swap_referent

HONESTY = (
    "These numbers are counted over all sentences as they came out, for one head that was chosen on validation "
    "sentences and never for a single sentence. Attention alone is not an explanation: a model may look at a word "
    "without using it, or use a word that another layer has already mixed into its neighbours. What a translation "
    "depends on is told by the check that swaps a noun for one of another gender and sees whether the pronoun follows."
)


@dataclass(frozen=True, eq=False)
class ItWeights:
    """What *it* looked at in one sentence.

    Args:
        words: the source words, punctuation and "<end>" apart.
        weights: (encoder layers, heads, words), float32; sub-words merged, so each head's sum to 1.
        it, referent, other: places among the words of *it*, of the noun it means and of the other noun.
    """

    words: tuple[str, ...]
    weights: torch.Tensor
    it: int
    referent: int
    other: int

    @property
    def agrees(self) -> torch.Tensor:
        """(layers, heads), True where the referent weighs more than every other word but *it* itself."""
        rivals = [place for place in range(len(self.words)) if place not in (self.it, self.referent)]
        return self.weights[..., self.referent] > self.weights[..., rivals].amax(-1)

    @property
    def prefers(self) -> torch.Tensor:
        """(layers, heads), True where the referent weighs more than the other noun."""
        return self.weights[..., self.referent] > self.weights[..., self.other]


@dataclass(frozen=True)
class HeadChoice:
    """A head of the encoder, both numbers from 0, and its agreement on the sentences it was chosen by."""

    layer: int
    head: int
    agreement: float


@dataclass(frozen=True)
class Agreement:
    """How often *it* looks at its noun.

    Args:
        agreement: share of sentences in which *it* looks more at its noun than at any other source word except *it*
            itself; punctuation and "<end>" are words too, and a tie counts as no.
        preference: share of sentences in which it looks more at its noun than at the other noun; a tie counts as no.
        count: sentences measured.
        chance: the agreement of a guess among those words: the mean of 1 / (words that may be looked at most).
            The preference of a guess is 0.5.
    """

    agreement: float
    preference: float
    count: int
    chance: float


def it_weights(
    model: TranslationModel,
    tokeniser: Tokeniser,
    sentences: Sequence[PronounSentence],
    batch_tokens: int = 2048,
) -> list[ItWeights]:
    """The encoder's self-attention from *it* to each source word, for every layer and head, in the sentences' order.

    Args:
        model: any mode; left as it was.
        tokeniser: the one it was trained with.
        sentences: what to read; only the encoder runs.
        batch_tokens: the most source ids read at once.

    Raises:
        ArgumentError: model and tokeniser that do not belong together.
        UnsupportedError: a recurrent translator, whose source words do not look at each other.

    >>> from regard.text.pronouns import ARTICLE_SENTENCES
    >>> tokeniser = Tokeniser.train([ARTICLE_SENTENCES[0].source], vocab_size=300)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> found = it_weights(model, tokeniser, ARTICLE_SENTENCES[:1])[0]
    >>> found.words[found.it], found.words[found.referent], found.words[found.other], found.weights.shape
    ('it', 'animal', 'street', torch.Size([2, 2, 13]))
    """
    encoder = _self_attending(model)
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    sentences, batch_tokens = _listed("sentences", sentences), whole("batch_tokens", batch_tokens, 1)
    encoded = [(tokeniser.encode(sentence.source), [0]) for sentence in sentences]
    found: dict[int, ItWeights] = {}
    device = next(model.parameters()).device
    for indices, batch in batches_in_order(encoded, batch_tokens):
        with watched(model, tokeniser) as recording:
            encoder.encode(batch.source.to(device))
        weights = recorded_weights(recording, "encoder", "attention", encoder.config.encoder_layers)
        for row, index in enumerate(indices):
            spans = tokeniser.words([*encoded[index][0], END])
            found[index] = _row_of_it(sentences[index], spans, weights[:, row])
    return [found[index] for index in range(len(sentences))]


def choose_head(
    model: TranslationModel,
    tokeniser: Tokeniser,
    valid_sentences: Sequence[PronounSentence],
    batch_tokens: int = 2048,
) -> HeadChoice:
    """The encoder's head whose *it* most often looks most at the true referent; the first of several that do.

    Args:
        model, tokeniser, batch_tokens: as for `it_weights`.
        valid_sentences: of the validation split; a head chosen on what it is then measured by proves nothing.

    Raises:
        ArgumentError: no sentences, or some of another split.

    >>> from regard.text.pronouns import make_split
    >>> sentences = make_split("valid", 4)
    >>> tokeniser = Tokeniser.train([sentence.source for sentence in sentences], vocab_size=300)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> 0 <= choose_head(model, tokeniser, sentences).agreement <= 1
    True
    """
    valid_sentences = _listed("valid_sentences", valid_sentences)
    _check_any(valid_sentences)
    splits = [split_of_pair(one.derivation.subject, one.derivation.object) for one in valid_sentences]
    if strangers := sum(split != "valid" for split in splits):
        raise ArgumentError(
            f"{strangers} of {len(splits)} sentences are not of the validation split; a head is chosen on "
            f"make_split('valid', ...) alone, so that the test stays a test"
        )
    agreed = torch.stack([one.agrees for one in it_weights(model, tokeniser, valid_sentences, batch_tokens)])
    counts = agreed.sum(0)  # (layers, heads)
    best = int(counts.flatten().argmax())
    layer, head = divmod(best, counts.shape[1])
    return HeadChoice(layer, head, int(counts[layer, head]) / len(agreed))


def referent_agreement(
    model: TranslationModel,
    tokeniser: Tokeniser,
    sentences: Sequence[PronounSentence],
    head: HeadChoice | tuple[int, int],
    batch_tokens: int = 2048,
) -> Agreement:
    """How often one head's *it* looks most at the noun it means, over all the sentences.

    Args:
        model, tokeniser, batch_tokens: as for `it_weights`.
        sentences: what to measure on, such as the test split.
        head: what `choose_head` chose, or (layer, head).

    Raises:
        ArgumentError: no sentences, or a head that does not exist.

    >>> from regard.text.pronouns import make_split
    >>> sentences = make_split("test", 4)
    >>> tokeniser = Tokeniser.train([sentence.source for sentence in sentences], vocab_size=300)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> referent_agreement(model, tokeniser, sentences, (1, 0)).count
    4
    """
    sentences = _listed("sentences", sentences)
    _check_any(sentences)
    layer, number = _layer_and_number(head)
    encoder = _self_attending(model)
    layers, heads = encoder.config.encoder_layers, encoder.config.heads
    if not (0 <= layer < layers and 0 <= number < heads):
        raise ArgumentError(
            f"head {number} of layer {layer} was asked for; this encoder has layers 0 to {layers - 1} and heads 0 to "
            f"{heads - 1}"
        )
    found = it_weights(model, tokeniser, sentences, batch_tokens)
    return Agreement(
        agreement=sum(bool(one.agrees[layer, number]) for one in found) / len(found),
        preference=sum(bool(one.prefers[layer, number]) for one in found) / len(found),
        count=len(found),
        chance=sum(1 / (len(one.words) - 1) for one in found) / len(found),
    )


def _layer_and_number(head: HeadChoice | tuple[int, int]) -> tuple[int, int]:
    if isinstance(head, HeadChoice):
        head = (head.layer, head.head)
    if not isinstance(head, tuple | list) or len(head) != 2:
        raise ArgumentError(f"head is {shown(head)}; it needs what choose_head gives, or (layer, head)")
    return whole("the layer of head", head[0]), whole("the head of head", head[1])


def _self_attending(model: TranslationModel) -> TranslationTransformer:
    if not isinstance(model, TranslationTransformer):
        raise UnsupportedError(
            f"where *it* looks is a question to self-attention, and {type(model).__name__} has none; ask swap_check, "
            f"or look at its cross-attention"
        )
    return model


def _row_of_it(sentence: PronounSentence, spans: Sequence[Span], weights: torch.Tensor) -> ItWeights:
    """Cut out the row of *it* from weights (layers, heads, places, places), where padding may follow the spans."""
    words = tuple(word for word, _ in spans)
    it, referent, other = _places(sentence, words)
    length = spans[-1][1].stop
    at = spans[it][1]
    own = [("it", range(len(at)))]
    row = merge(weights[:, :, at.start : at.stop, :length], own, spans)  # (layers, heads, 1, words)
    return ItWeights(words, row.squeeze(2), it, referent, other)


def _places(sentence: PronounSentence, words: Sequence[str]) -> tuple[int, int, int]:
    """Where *it* and the two nouns are among the tokeniser's words, whose punctuation stands apart.

    Both are the same letters in the same order, so a word of `source.split()` is the first of the tokeniser's words
    that begins within it and holds a letter.
    """
    starts = _starts(words)
    chunks = normalise(sentence.source).split()
    begins = [*_starts(chunks), sum(map(len, chunks))]
    places = []
    for index in (sentence.it_index, sentence.referent_index, sentence.other_index):
        inside = (
            place
            for place, (start, word) in enumerate(zip(starts, words, strict=True))
            if begins[index] <= start < begins[index + 1] and any(map(str.isalnum, word))
        )
        if (place := next(inside, None)) is None:
            raise DataError(f"word {index} of {sentence.source!r} is not among the tokeniser's words {' '.join(words)}")
        places.append(place)
    return places[0], places[1], places[2]


def _starts(words: Sequence[str]) -> list[int]:
    """How many letters stand before each word."""
    return [sum(map(len, words[:place])) for place in range(len(words))]


def _listed(name: str, sentences: Sequence[PronounSentence]) -> list[PronounSentence]:
    return a_list(name, sentences, PronounSentence, "PronounSentences, as make_split gives them")


def _check_any(sentences: Sequence[PronounSentence]) -> None:
    if not sentences:
        raise ArgumentError("there are 0 sentences to look at, and a share of nothing is no number; give one")


@dataclass(frozen=True)
class SwapCheck:
    """What swapping nouns did to the pronouns, as shares of all sentences.

    Args:
        right: the pronoun was right before any swap; the other two cannot be larger.
        followed: right before, and right again after the *referent* was swapped for a noun of another gender,
            which asks for another pronoun.
        kept: right before, and still right after the *other* noun was swapped for one of another gender, which
            must change nothing. A translator that follows any noun scores low here.
        count: sentences checked, each translated three times.
    """

    right: float
    followed: float
    kept: float
    count: int


def swap_check(
    translate: Callable[[list[str]], Sequence[str]], sentences: Sequence[PronounSentence], seed: int = 0
) -> SwapCheck:
    """Swap the referent, and as a control the other noun, and count how often the pronoun does what it should.

    Where the nouns of a sentence differ in gender the new noun has the third one, so that following is told from
    jumping to the other noun.

    Args:
        translate: lines in, one translation for each out; called once.
        sentences: what to vary; the new pairs of nouns may be of any split.
        seed: another seed may choose other nouns.

    Raises:
        ArgumentError: no sentences, or another number of translations than lines.

    >>> from regard.text.pronouns import ARTICLE_SENTENCES
    >>> swap_check(lambda lines: ["weil es müde war"] * len(lines), ARTICLE_SENTENCES[:1])
    SwapCheck(right=1.0, followed=0.0, kept=1.0, count=1)
    """
    if not callable(translate):
        raise ArgumentError(f"translate is {shown(translate)}; it needs a function from lines to their translations")
    sentences = a_list("sentences", sentences, PronounSentence, "PronounSentences, as make_split gives them")
    if not sentences:
        raise ArgumentError("there are 0 sentences to swap nouns in, and a share of nothing is no number; give one")
    versions = [
        *sentences,
        *(swap_referent(sentence, seed) for sentence in sentences),
        *(swap_other(sentence, seed) for sentence in sentences),
    ]
    given = translate([version.source for version in versions])
    outputs = a_list("what translate gave", given, str, "a list of translations")
    if len(outputs) != len(versions):
        raise ArgumentError(
            f"{len(versions)} lines came back as {len(outputs)} translations; give one for each, in order"
        )
    right = [pronoun_of(output) == version.pronoun for version, output in zip(versions, outputs, strict=True)]
    count = len(sentences)
    before, followed, kept = right[:count], right[count : 2 * count], right[2 * count :]
    return SwapCheck(
        right=sum(before) / count,
        followed=sum(map(all, zip(before, followed, strict=True))) / count,
        kept=sum(map(all, zip(before, kept, strict=True))) / count,
        count=count,
    )
