"""Training data of a translator: a user's files, or the embedded corpus."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError
from regard_lab.text.pairs import Pair, read_pairs, split_by_hash
from regard_lab.text.pronouns import make_split, make_twins

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
    keep_placeholders: bool = False,
) -> TranslationData:
    """Load the pairs for a training.

    Args:
        data: "pronouns" for the embedded corpus; or one table (.tsv, .jsonl); or two parallel files.
        valid: files of validation pairs likewise; without them, the data is split by a hash of each source, also into
            a test part.
        twins: of the embedded corpus, training sentences with their twins, see `make_twins`.
        keep_placeholders: as for `read_pairs`.

    Raises:
        ArgumentError: no data, twins of a user's files, or validation files for the embedded corpus.
        DataError: files that cannot be read, or have too few pairs.
    """
    if list(data) == [PRONOUNS]:
        if valid:
            raise ArgumentError(
                f"{PRONOUNS} has validation sentences of its own; leave {', '.join(map(str, valid))} out"
            )
        return _pronouns(seed, twins)
    if twins:
        raise ArgumentError(
            f"twins are made by the grammar of the embedded corpus; give '{PRONOUNS}' as data"
        )
    if not data:
        raise ArgumentError(
            "data is empty; name a file of sentence pairs, or 'pronouns' for the embedded corpus"
        )
    read = read_pairs(*data, keep_placeholders=keep_placeholders)
    notes = [read.report()]
    if valid:
        held_out = read_pairs(*valid, keep_placeholders=keep_placeholders)
        notes.append(held_out.report())
        known = {pair.source for pair in held_out.pairs}
        train = [pair for pair in read.pairs if pair.source not in known]
        if len(train) < len(read.pairs):
            left_out = count_of(len(read.pairs) - len(train), "training pairs")
            notes.append(f"{left_out} left out, since their source is in the validation pairs")
        if not train:
            raise DataError(
                f"every source of {' + '.join(read.files)} is in the validation pairs, so none is left for training"
            )
        return TranslationData(" + ".join(read.files), train, held_out.pairs, [], tuple(notes))
    share = min(0.05, LARGEST_PART / max(1, read.kept))
    parts = split_by_hash(read.pairs, share, share)
    counts = f"{len(parts.train):,} for training, {len(parts.valid):,} for validation, {len(parts.test):,} for test"
    notes.append(f"split by a hash of the source: {counts}")
    return TranslationData(
        " + ".join(read.files), parts.train, parts.valid, parts.test, tuple(notes)
    )


def _pronouns(seed: int, twins: bool) -> TranslationData:
    counts = PRONOUN_COUNTS
    groups = make_twins(PRONOUN_COUNTS["train"], seed) if twins else []
    sentences = (
        [one for group in groups for one in group]
        if twins
        else make_split("train", counts["train"], seed),
        make_split("valid", counts["valid"], seed),
        make_split("test", counts["test"], seed),
    )
    train, valid, test = ([Pair(one.source, one.target) for one in part] for part in sentences)
    note = f"{len(train):,} sentences of the embedded corpus; the noun pairs of the {len(test)} test sentences are new"
    return TranslationData(PRONOUNS, train, valid, test, (note,), tuple(map(len, groups)))
