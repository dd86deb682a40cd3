"""Training sentences with twins share a batch, unless it is too small for them."""

from collections import Counter
from itertools import chain, islice

import pytest

from regard_lab.text import END, Tokeniser, translation_data
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
    texts = []
    for pair in data.train:
        texts += [pair.source, pair.target]
    tokeniser = Tokeniser.train(texts, 420)

    group_of = {}  # by the ids of a source
    pairs = iter(data.train)
    for group, count in enumerate(data.together):
        for pair in islice(pairs, count):
            group_of[*tokeniser.encode(pair.source), END] = group
    assert next(pairs, None) is None

    of_both = list(batches(data, tokeniser, 300))
    for sources in of_both:
        for group, count in Counter(map(group_of.get, sources)).items():
            assert count == data.together[group]

    # too small for two: groups are taken apart
    longest = 2 + max(len(tokeniser.encode(text)) for text in texts)
    taken_apart = batches(data, tokeniser, longest)
    assert sorted(chain.from_iterable(of_both)) == sorted(group_of)
    assert sorted(chain.from_iterable(taken_apart)) == sorted(group_of)
