"""Training sentences with twins: one adjective differs, and it decides the referent."""

import pytest

from regard_lab.text import Tokeniser, translation_data
from regard_lab.text.pronouns import make_twins, split_of_pair
from regard_lab.text.translation_data import load_translation_data
from regard_lab.training.recipes.translation import TranslationTask

GROUPS = make_twins(600)
SENTENCES = [sentence for group in GROUPS for sentence in group]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(translation_data, "PRONOUN_COUNTS", {"train": 120, "valid": 4, "test": 4})


def test_twins_differ_in_the_adjective_and_in_the_referent():
    twins = [group for group in GROUPS if len(group) == 2]
    assert len(twins) > 0.8 * len(GROUPS)
    for first, second in twins:
        differing = [pair for pair in zip(first.source.split(), second.source.split(), strict=True) if len({*pair}) > 1]
        assert len(differing) == 1
        assert (first.referent, first.other) == (second.other, second.referent)


def test_every_sentence_is_new_and_about_nouns_of_the_training_split():
    assert len({sentence.source for sentence in SENTENCES}) == len(SENTENCES) == 600
    for one in SENTENCES:
        assert split_of_pair(one.derivation.subject, one.derivation.object) == "train"


def test_the_seed_decides_and_a_longer_list_begins_with_a_shorter_one():
    assert make_twins(100)[:40] == GROUPS[:40]
    assert make_twins(100, seed=1)[:40] != GROUPS[:40]
    assert make_twins(0) == []


def test_twins_share_every_batch():
    data = load_translation_data(["pronouns"], seed=0, twins=True)
    pairs = data.train
    tokeniser = Tokeniser.train([text for pair in pairs for text in (pair.source, pair.target)], 420)
    task = TranslationTask(pairs, [], tokeniser, batch_tokens=300, seed=0, together=data.together)
    seen = 0
    for step in range(task.batches.steps_per_epoch):
        batch = task.batch(step)
        assert batch.source.numel() <= 300
        sources = {tuple(row) for row in batch.source.tolist()}
        seen += len(sources)
        for row in sources:
            at = next(n for n, pair in enumerate(pairs) if (*tokeniser.encode(pair.source), 3) == strip(row))
            assert partner(at, data.together) is None or any(
                strip(other) == (*tokeniser.encode(pairs[partner(at, data.together)].source), 3) for other in sources
            )
    assert seen == len(pairs)


def partner(at, together):
    """The place of the twin of pair `at`, if it has one."""
    start = 0
    for count in together:
        if at < start + count:
            return None if count == 1 else 2 * start + 1 - at
        start += count
    return None


def strip(row):
    return tuple(one for one in row if one)


def test_a_group_that_is_larger_than_a_batch_is_taken_apart():
    data = load_translation_data(["pronouns"], seed=0, twins=True)
    pairs = data.train
    tokeniser = Tokeniser.train([text for pair in pairs for text in (pair.source, pair.target)], 420)
    longest = 2 + max(len(tokeniser.encode(text)) for pair in pairs for text in (pair.source, pair.target))
    task = TranslationTask(pairs, [], tokeniser, batch_tokens=longest, seed=0, together=data.together)
    assert task.left_out == 0
    rows = sum(len(task.batch(step).source) for step in range(task.batches.steps_per_epoch))
    assert rows == len(pairs)
