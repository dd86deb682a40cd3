"""Training sentences with twins share a batch, unless it is too small for them."""

from collections import Counter

import pytest

from regard_lab.text import Tokeniser, translation_data
from regard_lab.text.translation_data import load_translation_data
from regard_lab.training.recipes.translation import TranslationTask


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(translation_data, "PRONOUN_COUNTS", {"train": 120, "valid": 4, "test": 4})
    return load_translation_data(["pronouns"], seed=0, twins=True)


def batches(data, tokeniser, tokens):
    """The sources of each batch as ids, with END and without padding."""
    task = TranslationTask(
        data.train, [], tokeniser, batch_tokens=tokens, seed=0, together=data.together
    )
    assert task.left_out == 0
    for step in range(task.batches.steps_per_epoch):
        source = task.batch(step).source
        assert source.numel() <= tokens
        yield [tuple(i for i in row if i) for row in source.tolist()]


def test_twins_share_every_batch_that_has_room_for_them(data):
    tokeniser = Tokeniser.train(
        [text for pair in data.train for text in (pair.source, pair.target)], 420
    )
    # of each pair
    groups = [number for number, count in enumerate(data.together) for _ in range(count)]
    group_of = {
        (*tokeniser.encode(pair.source), 3): group
        for pair, group in zip(data.train, groups, strict=True)
    }
    found = [*batches(data, tokeniser, 300)]
    for rows in found:
        assert all(
            count == data.together[group]
            for group, count in Counter(map(group_of.get, rows)).items()
        )
    longest = 2 + max(
        len(tokeniser.encode(text)) for pair in data.train for text in (pair.source, pair.target)
    )
    # too small for two: groups are taken apart
    for sources in (
        found,
        [*batches(data, tokeniser, longest)],
    ):
        assert sorted(row for rows in sources for row in rows) == sorted(group_of)
