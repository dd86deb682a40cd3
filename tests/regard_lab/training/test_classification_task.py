"""Texts with labels as a task: each text counts once, and is right or wrong."""

import pytest
import torch

from regard.errors import ArgumentError
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import BEGIN, END, PAD, Pair, Tokeniser
from regard_lab.training.recipes.classification import ClassificationTask

CLASSES = ("even", "odd")
PAIRS = [Pair(f"number {n} {'long ' * (n % 4)}", CLASSES[n % 2]) for n in range(23)]
TOKENISER = Tokeniser.train([pair.source for pair in PAIRS], 300)


def task(**changes):
    return ClassificationTask(PAIRS, PAIRS[:7], CLASSES, TOKENISER, **{"batch_tokens": 60, "seed": 3, **changes})


def encoder(dropout=0.0):
    torch.manual_seed(5)
    return TextEncoder(
        EncoderConfig(
            vocab_size=TOKENISER.vocab_size, dim=16, heads=2, layers=1, dropout=dropout, head="classes", classes=2
        )
    )


def rows(batch):
    texts = [tuple(i for i in row if i != PAD) for row in batch.ids.tolist()]
    return list(zip(texts, batch.labels.tolist(), strict=True))


def expected(pairs):
    return sorted(((BEGIN, *TOKENISER.encode(pair.source), END), CLASSES.index(pair.target)) for pair in pairs)


def test_an_epoch_is_every_text_with_its_label_once_over_all_processes():
    for world in (1, 2):
        parts = [task(world=world, rank=rank) for rank in range(world)]
        seen = [row for part in parts for step in range(part.batches.steps_per_epoch) for row in rows(part.batch(step))]
        assert sorted(seen) == expected(PAIRS)
    assert sorted(row for batch in task().validation_batches() for row in rows(batch)) == expected(PAIRS[:7])


def test_the_loss_is_the_sum_over_texts():
    batch, model = task().batch(1), encoder().eval()
    found, count = task().loss(model, batch)
    one_by_one = [float(model(torch.tensor([ids])).log_softmax(-1)[0, label].detach()) for ids, label in rows(batch)]
    assert count == len(one_by_one)
    assert float(found.detach()) == pytest.approx(-sum(one_by_one), rel=1e-5)


def test_accuracy_is_the_share_of_right_answers():
    model, one = encoder(), task()
    answers = [
        int(model.eval()(torch.tensor([[BEGIN, *TOKENISER.encode(pair.source), END]])).argmax()) for pair in PAIRS
    ]
    right = sum(CLASSES[answer] == pair.target for answer, pair in zip(answers, PAIRS, strict=True))
    assert one.accuracy(model, PAIRS) == right / len(PAIRS)


def test_what_is_too_long_is_read_up_to_there_and_counted():
    one = task(longest=5)
    assert max(len(ids) for ids, _ in rows(one.batch(0))) == 5
    lengths = [len(TOKENISER.encode(pair.source)) for pair in [*PAIRS, *PAIRS[:7]]]
    assert one.cut == sum(length > 3 for length in lengths) > 0


def test_the_fingerprint_tells_other_labels_apart():
    kept = task().fingerprint()
    assert kept == task().fingerprint()
    turned = [Pair(pair.source, CLASSES[pair.target == "even"]) for pair in PAIRS]
    assert ClassificationTask(turned, turned[:7], CLASSES, TOKENISER, batch_tokens=60, seed=3).fingerprint() != kept
    assert task(seed=4).fingerprint() != kept


def test_what_cannot_be_learned_is_refused_in_one_sentence():
    with pytest.raises(ArgumentError, match="'prime' is no class; there are even, odd"):
        ClassificationTask([*PAIRS, Pair("number 2", "prime")], [], CLASSES, TOKENISER)
    with pytest.raises(ArgumentError, match="nothing to learn from"):
        ClassificationTask([], [], CLASSES, TOKENISER)
