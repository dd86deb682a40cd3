"""Training data of a translator: a user's files, or the embedded corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError
from regard_lab.text.pairs import Pair, PairFile, read_pairs, split_by_hash
from regard_lab.text.pronouns import PronounSentence, make_split, make_twins

PRONOUNS = "pronouns"  # the name of the embedded corpus
LEARNED = "a translator that has learned the embedded corpus, such as that of `regard demo`"  # for messages
PRONOUN_COUNTS = {"train": 60_000, "valid": 400, "test": 600}
LARGEST_PART = 2_000  # the most pairs held out of a user's file for validation, and for the test


@dataclass(frozen=True)
class TranslationData:
    """Training, validation and test pairs, with notes on where they come from.

    `together` holds, in order, how many training pairs in a row share a batch; without it each is on its own.
    """

    name: str
    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    notes: tuple[str, ...]
    together: tuple[int, ...] = ()


def load_translation_data(
    data: Sequence[str],
    valid: Sequence[str] = (),
    seed: int = 0,
    twins: bool = False,
    **memory: Any,
) -> TranslationData:
    """Load the pairs for a training.

    Args:
        data: "pronouns" for the embedded corpus; or one table (.tsv, .jsonl); or two parallel files.
        valid: files of validation pairs likewise; without them, the data is split by a hash of each source, also into
            a test part.
        twins: of the embedded corpus, training sentences with their twins, see `make_twins`.
        memory: keep_placeholders, keep_tags and all_translations, as for `read_pairs`.

    Raises:
        ArgumentError: no data, twins of a user's files, or validation files for the embedded corpus.
        DataError: files that cannot be read, or have too few pairs.
    """
    if list(data) == [PRONOUNS]:
        if valid:
            raise ArgumentError(
                f"{PRONOUNS} has validation sentences of its own; leave {', '.join(map(str, valid))} out"
            )
        return _load_pronouns(seed, twins)
    if twins:
        raise ArgumentError(
            f"twins are made by the grammar of the embedded corpus; give '{PRONOUNS}' as data"
        )
    if not data:
        raise ArgumentError(
            "data is empty; name a file of sentence pairs, or 'pronouns' for the embedded corpus"
        )
    read = read_pairs(*data, **memory)
    if not valid:
        return _split(read)
    held_out = read_pairs(*valid, **memory)
    return _without_held_out(read, held_out)


def _split(read: PairFile) -> TranslationData:
    share = min(0.05, LARGEST_PART / max(1, read.kept))
    parts = split_by_hash(read.pairs, share, share)
    counts = f"{len(parts.train):,} for training, {len(parts.valid):,} for validation, {len(parts.test):,} for test"
    notes = (read.report(), f"split by a hash of the source: {counts}")
    return TranslationData(" + ".join(read.files), parts.train, parts.valid, parts.test, notes)


def _without_held_out(read: PairFile, held_out: PairFile) -> TranslationData:
    """The pairs that were read, without those whose source is in the validation pairs."""
    held_out_sources = {pair.source for pair in held_out.pairs}
    train = [pair for pair in read.pairs if pair.source not in held_out_sources]
    name = " + ".join(read.files)
    if not train:
        raise DataError(
            f"every source of {name} is in the validation pairs, so none is left for training"
        )

    notes = [read.report(), held_out.report()]
    if len(train) < len(read.pairs):
        left_out = count_of(len(read.pairs) - len(train), "training pairs")
        notes.append(f"{left_out} left out, since their source is in the validation pairs")
    return TranslationData(name, train, held_out.pairs, [], tuple(notes))


def _load_pronouns(seed: int, twins: bool) -> TranslationData:
    together: tuple[int, ...] = ()
    if twins:
        groups = make_twins(PRONOUN_COUNTS["train"], seed)
        train = list(chain.from_iterable(groups))
        together = tuple(map(len, groups))
    else:
        train = make_split("train", PRONOUN_COUNTS["train"], seed)
    valid = make_split("valid", PRONOUN_COUNTS["valid"], seed)
    test = make_split("test", PRONOUN_COUNTS["test"], seed)

    note = f"{len(train):,} sentences of the embedded corpus; the noun pairs of the {len(test)} test sentences are new"
    return TranslationData(
        name=PRONOUNS,
        train=_pairs_of(train),
        valid=_pairs_of(valid),
        test=_pairs_of(test),
        notes=(note,),
        together=together,
    )


def _pairs_of(sentences: Sequence[PronounSentence]) -> list[Pair]:
    return [Pair(sentence.source, sentence.target) for sentence in sentences]
