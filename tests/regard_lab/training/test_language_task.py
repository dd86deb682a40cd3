"""Running text as a task: what a block holds, which step it comes in, and how its loss counts."""

import math

import pytest
import torch
from toy_training import CrashError, at_step, crash, log_without_times, seals

from regard.errors import ArgumentError
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import BEGIN, END, PAD, Tokeniser
from regard_lab.training import TrainingConfig, train
from regard_lab.training.recipes.language import LanguageTask

DOCUMENTS = ["A bird sang.\n\nIt was happy.\n" * 5, "Rain fell on the street.\n" * 7]
HELD_OUT = ["The bird was tired.\n"]
TOKENISER = Tokeniser.train(DOCUMENTS, 300, verbatim=True)


def task(**changes):
    return LanguageTask(DOCUMENTS, HELD_OUT, TOKENISER, **{"block": 11, "batch_tokens": 47, "seed": 3, **changes})


def model(dropout=0.0):
    torch.manual_seed(5)
    return LanguageModel(LanguageConfig(vocab_size=TOKENISER.vocab_size, dim=16, heads=2, layers=1, dropout=dropout))


def rows(batch):
    return [tuple(i for i in row if i != PAD) for row in batch.next.tolist()]


def epoch(one):
    return [row for step in range(one.batches.steps_per_epoch) for row in rows(one.batch(step))]


def test_the_blocks_of_an_epoch_are_the_documents_cut_and_each_ends_with_end():
    expected = []
    for text in DOCUMENTS:
        ids = [*TOKENISER.encode(text), END]
        expected += [tuple(ids[start : start + 11]) for start in range(0, len(ids), 11)]
    assert sorted(epoch(task())) == sorted(expected)
    assert "".join(TOKENISER.decode(row) for row in expected) == "".join(DOCUMENTS)


def test_a_block_begins_with_begin_and_every_id_is_asked_for_after_the_one_before():
    batch = task().batch(0)
    assert set(batch.ids[:, 0].tolist()) == {BEGIN}
    for ids, following in zip(batch.ids.tolist(), batch.next.tolist(), strict=True):
        length = sum(i != PAD for i in following)
        assert ids[1:length] == following[: length - 1]
        assert set(ids[length:]) <= {PAD}
    assert batch.ids.numel() <= 47


def test_two_processes_share_an_epoch_without_overlap():
    assert torch.equal(task().batch(29).ids, task().batch(29).ids)  # any step can be asked for again
    assert epoch(task()) != epoch(task(seed=4))
    parts = [task(world=2, rank=rank) for rank in range(2)]
    assert sorted(epoch(parts[0]) + epoch(parts[1])) == sorted(epoch(task()))


def test_the_loss_is_the_sum_over_every_next_id():
    batch, one = task().batch(1), model().eval()
    found, count = task().loss(one, batch)
    expected, number = 0.0, 0
    for row in rows(batch):  # one block at a time, without padding
        scores = one(torch.tensor([[BEGIN, *row[:-1]]]))[0].log_softmax(-1)
        expected -= sum(float(scores[place, i].detach()) for place, i in enumerate(row))
        number += len(row)
    assert count == number
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


def test_an_indifferent_model_needs_the_bits_that_arithmetic_says():
    one = task()
    nats = math.log(TOKENISER.vocab_size)
    ids = len(TOKENISER.encode(HELD_OUT[0])) + 1
    assert one.bits_per_character(nats) == pytest.approx(ids * math.log2(TOKENISER.vocab_size) / len(HELD_OUT[0]))
    with pytest.raises(ArgumentError, match="no validation documents"):
        LanguageTask(DOCUMENTS, [], TOKENISER).bits_per_character(1.0)


def test_validation_holds_every_held_out_id_once():
    found = [i for batch in task().validation_batches() for row in rows(batch) for i in row]
    assert found == [*TOKENISER.encode(HELD_OUT[0]), END]


def test_a_crash_in_the_middle_of_an_epoch_changes_no_bit(tmp_path):
    config = TrainingConfig(steps=8, warmup_steps=2, validate_every=3, save_every=2, log_every=2, accumulate=2)
    train(model(0.1), task(), config, tmp_path / "whole", cpu=True)
    with pytest.raises(CrashError):
        train(model(0.1), task(), config, tmp_path / "broken", cpu=True, progress=at_step(5, crash))
    train(model(0.1), task(), config, tmp_path / "broken", cpu=True, resume=True)
    assert seals(tmp_path / "broken") == seals(tmp_path / "whole")
    assert log_without_times(tmp_path / "broken") == log_without_times(tmp_path / "whole")


def test_the_fingerprint_tells_other_text_and_other_blocks_apart():
    kept = task().fingerprint()
    assert kept == task().fingerprint()
    others = [
        task(seed=4),
        task(block=12),
        task(batch_tokens=48),
        LanguageTask(DOCUMENTS[::-1], HELD_OUT, TOKENISER, block=11, batch_tokens=47, seed=3),
        LanguageTask(DOCUMENTS, DOCUMENTS[:1], TOKENISER, block=11, batch_tokens=47, seed=3),
    ]
    assert all(other.fingerprint() != kept for other in others)


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(ArgumentError, match="block is 64; it needs 2 ids or more, and no more than batch_tokens 47"):
        task(block=64)
    with pytest.raises(ArgumentError, match="nothing to learn from"):
        LanguageTask([], [], TOKENISER)
