"""Hidden words as a task: how many, which, and what stands in their place."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import BEGIN, END, PAD, Tokeniser
from regard_lab.text.batches import pad
from regard_lab.training.recipes.masked_words import MASK, MaskedWordTask, hide_words

TEXTS = [f"the bird number {n} sang {'long ' * (n % 5)}in the street" for n in range(23)]
TOKENISER = Tokeniser.train(TEXTS, 300)


def task(**changes):
    return MaskedWordTask(TEXTS, TEXTS[:7], TOKENISER, **{"batch_tokens": 120, "seed": 3, **changes})


def encoder(dropout=0.0):
    torch.manual_seed(5)
    return TextEncoder(EncoderConfig(vocab_size=TOKENISER.vocab_size, dim=16, heads=2, layers=1, dropout=dropout))


def restored(batch):
    """The texts as they were before their words were hidden."""
    ids = batch.ids.clone()
    ids[batch.places] = batch.words
    return [tuple(i for i in row if i != PAD) for row in ids.tolist()]


def test_fifteen_in_a_hundred_are_asked_for_eighty_of_them_hidden_and_ten_drawn():
    """Within four standard deviations of what is drawn."""
    ids = pad([[BEGIN, *([7] * 100), END]] * 211)
    found = hide_words(ids, 1009, torch.Generator().manual_seed(1))
    assert found.places.sum(1).tolist() == [15] * 211  # no draw: 15 of 100 words, in each text
    seen = found.ids[found.places]
    asked = len(seen)
    for expected, count in ((0.8, (seen == MASK).sum()), (0.1, (seen == 7).sum())):
        assert abs(int(count) / asked - expected) < 4 * math.sqrt(expected * (1 - expected) / asked)
    drawn = seen[(seen != MASK) & (seen != 7)]
    assert int(drawn.min()) >= 4
    assert len(drawn.unique()) > 0.8 * len(drawn) * (1 - len(drawn) / 2 / 1005)  # all over the vocabulary
    assert set(found.words.tolist()) == {7}


@given(st.lists(st.lists(st.integers(4, 30), max_size=23), min_size=1, max_size=5), st.integers(0, 99))
def test_specials_are_never_asked_for_and_what_is_not_asked_for_stays(texts, seed):
    ids = pad([[BEGIN, *text, END] for text in texts])
    found = hide_words(ids, 31, torch.Generator().manual_seed(seed))
    assert torch.equal(found.words, ids[found.places])
    assert torch.equal(found.ids[~found.places], ids[~found.places])
    assert not (found.places & (ids < 4)).any()
    expected = [min(len(text), max(1, round(0.15 * len(text)))) for text in texts]
    assert found.places.sum(1).tolist() == expected


def test_what_is_hidden_is_a_function_of_seed_and_index():
    one, again = task(), task()
    again.batch(0)
    for index in (0, 5, 17):
        assert all(torch.equal(a, b) for a, b in zip(one.batch(index), again.batch(index), strict=True))
    alone = MaskedWordTask(TEXTS[4:5], [], TOKENISER, seed=3)  # one text, the only one of each epoch
    places = {tuple(alone.batch(epoch).places[0].tolist()) for epoch in range(8)}
    assert len(places) > 1
    other = MaskedWordTask(TEXTS[4:5], [], TOKENISER, seed=4)
    assert any(not torch.equal(alone.batch(epoch).places, other.batch(epoch).places) for epoch in range(8))


def test_an_epoch_is_every_text_once_over_all_processes():
    for world in (1, 2):
        parts = [task(world=world, rank=rank) for rank in range(world)]
        seen = [
            row for part in parts for step in range(part.batches.steps_per_epoch) for row in restored(part.batch(step))
        ]
        assert sorted(seen) == sorted((BEGIN, *TOKENISER.encode(text), END) for text in TEXTS)


def test_a_long_text_is_read_in_pieces():
    found = restored(MaskedWordTask(TEXTS[4:5], [], TOKENISER, longest=7).batch(0))
    assert max(map(len, found)) == 7
    words = [i for row in sorted(found, key=lambda row: -len(row)) for i in row[1:-1]]
    assert sorted(words) == sorted(TOKENISER.encode(TEXTS[4]))


def test_the_loss_is_the_sum_over_what_was_asked_for():
    batch, model = task().batch(1), encoder().eval()
    found, count = task().loss(model, batch)
    scores = model(batch.ids).log_softmax(-1)  # (batch, length, vocab_size)
    expected = 0.0
    for row, place in batch.places.nonzero().tolist():
        before = int(batch.places[:row].sum() + batch.places[row, :place].sum())
        expected -= float(scores[row, place, batch.words[before]].detach())
    assert count == int(batch.places.sum())
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


def test_validation_hides_the_same_words_each_time():
    one, again = task().validation_batches(), task(seed=8).validation_batches()
    assert all(torch.equal(a, b) for x, y in zip(one, again, strict=True) for a, b in zip(x, y, strict=True))
    assert sorted(row for batch in one for row in restored(batch)) == sorted(
        (BEGIN, *TOKENISER.encode(text), END) for text in TEXTS[:7]
    )


def test_the_fingerprint_tells_other_texts_and_orders_apart():
    kept = task().fingerprint()
    assert kept == task().fingerprint()
    others = [task(seed=4), task(longest=9), MaskedWordTask(TEXTS[1:], TEXTS[:7], TOKENISER, batch_tokens=120, seed=3)]
    assert all(other.fingerprint() != kept for other in others)
    with pytest.raises(ArgumentError, match="nothing to learn from"):
        MaskedWordTask([""], [], TOKENISER)
