"""Training, validation and test sentences and the contrast pairs: pure functions of their arguments."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

from regard.errors import ArgumentError
from regard.text.pronouns.adjectives import telling_drawbacks
from regard.text.pronouns.division import SPLITS, Split
from regard.text.pronouns.sampling import WEIGHTS, Weights, deal_referents, degrees, draw
from regard.text.pronouns.sentences import Derivation, PronounSentence
from regard.text.pronouns.writing import write

# At these counts the valid and test splits repeat themselves in fewer than one draw of twenty.
LARGEST_COUNT: dict[Split, int] = {"train": 500_000, "valid": 20_000, "test": 20_000}


def make_split(split: Split, count: int, seed: int = 0, *, weights: Weights = WEIGHTS) -> list[PronounSentence]:
    """Generate distinct sentences of one split; a longer list begins with the shorter one.

    Args:
        split: "train", "valid" or "test".
        count: how many sentences, from 0 to `LARGEST_COUNT[split]`.
        seed: another seed gives other sentences about the same pairs of nouns.
        weights: how often the grammar makes each free choice.

    Returns:
        The sentences, no two with the same source. Their noun pairs are of this split alone; each run of
        as many sentences as there are nouns means (nearly) every noun once.

    Raises:
        ArgumentError: for an unknown split, or a count the split cannot fill.

    Example:
        >>> sentence = make_split("test", 1)[0]
        >>> sentence.target.split()[sentence.target_pronoun_index] == sentence.pronoun
        True
    """
    if split not in SPLITS:
        raise ArgumentError(f"there is no split {split!r}; the corpus has {', '.join(SPLITS)}")
    _check_count(f"sentences of {split!r}", count, LARGEST_COUNT[split])
    drawn = _distinct_derivations(split, Random(f"{split} {seed}"), weights)
    return [write(derivation) for derivation in islice(drawn, count)]


def make_contrast_pairs(
    count: int, seed: int = 0, *, weights: Weights = WEIGHTS
) -> list[tuple[PronounSentence, PronounSentence]]:
    """Generate pairs of test sentences that differ in one English word, which moves the referent.

    Args:
        count: how many pairs, from 0 to `LARGEST_COUNT["test"]`.
        seed: another seed gives other pairs.
        weights: how often the grammar makes each free choice.

    Returns:
        Pairs whose sources differ in the final adjective only and whose pronouns differ.

    Raises:
        ArgumentError: for a count that the test split cannot fill.

    Example:
        >>> before, after = make_contrast_pairs(1)[0]
        >>> len(set(before.source.split()) ^ set(after.source.split())), before.pronoun != after.pronoun
        (2, True)
    """
    _check_count("contrast pairs of 'test'", count, LARGEST_COUNT["test"])
    random = Random(f"contrast {seed}")
    pairs: list[tuple[PronounSentence, PronounSentence]] = []
    seen: set[str] = set()
    for derivation in _distinct_derivations("test", random, weights):
        if len(pairs) == count:
            break
        moved = _with_referent_moved(derivation, random)
        if moved is None:
            continue
        first, second = write(derivation), write(moved)
        if first.source not in seen and second.source not in seen:
            seen |= {first.source, second.source}
            pairs.append((first, second))
    return pairs


def _distinct_derivations(split: Split, random: Random, weights: Weights) -> Iterator[Derivation]:
    """Derivations of a split without end, each once."""
    seen: set[Derivation] = set()
    for referent in deal_referents(random):
        derivation = draw(split, referent, random, weights)
        if derivation is not None and derivation not in seen:
            seen.add(derivation)
            yield derivation


def _with_referent_moved(derivation: Derivation, random: Random) -> Derivation | None:
    """The same sentence with a drawback of the other noun, under the same degree; None where none fits."""
    drawbacks = [
        drawback
        for drawback in telling_drawbacks(derivation.other.sense, derivation.referent.sense)
        if derivation.degree in degrees(drawback, derivation.link)
    ]
    if not drawbacks:
        return None
    return replace(
        derivation,
        drawback=random.choice(drawbacks),
        refers_to_subject=not derivation.refers_to_subject,
    )


def _check_count(what: str, count: int, largest: int) -> None:
    if not 0 <= count <= largest:
        raise ArgumentError(f"{count} {what} were asked for, but there are 0 to {largest}; ask for a count in between")
