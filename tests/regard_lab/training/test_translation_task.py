"""Translation as a task: what is learned from, in which order, and how its loss counts."""

import re

import pytest
import torch
import torch.nn.functional as F

from regard.errors import ArgumentError
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.text import BEGIN, END, PAD, Pair, Tokeniser
from regard_lab.text.batches import encode_pairs
from regard_lab.training import TrainingConfig, Validated, train
from regard_lab.training.recipes.translation import TranslationTask, TranslationTraining

PAIRS = [Pair(f"sentence number {n} {'long ' * (n % 5)}", f"Satz Nummer {n} {'lang ' * (n % 4)}") for n in range(40)]
TOKENISER = Tokeniser.train([text for pair in PAIRS for text in (pair.source, pair.target)], 320)


def task(**changes):
    return TranslationTask(PAIRS, PAIRS[:7], TOKENISER, **{"batch_tokens": 120, "seed": 3, **changes})


def rows(batch):
    return [tuple(identifier for identifier in row if identifier != PAD) for row in batch.source.tolist()]


def test_an_epoch_is_every_pair_once_and_any_step_can_be_asked_for_again():
    steps = task().batches.steps_per_epoch
    seen = [row for step in range(steps) for row in rows(task().batch(step))]
    assert sorted(seen) == sorted((*TOKENISER.encode(pair.source), END) for pair in PAIRS)
    assert torch.equal(task().batch(steps + 2).source, task().batch(steps + 2).source)
    assert seen != [row for step in range(steps) for row in rows(task(seed=4).batch(step))]


def test_two_processes_share_an_epoch_without_overlap():
    parts = [task(world=2, rank=rank) for rank in range(2)]
    steps = parts[0].batches.steps_per_epoch
    seen = [row for part in parts for step in range(steps) for row in rows(part.batch(step))]
    assert sorted(seen) == sorted((*TOKENISER.encode(pair.source), END) for pair in PAIRS)


@pytest.mark.parametrize("model", [TranslationTransformer, RecurrentTranslator])
def test_a_process_without_a_share_of_a_step_adds_nothing_to_its_gradient(model):
    """Three pairs that fill a batch each cannot be shared evenly by two processes."""
    pair = PAIRS[4]
    longest = max(len(TOKENISER.encode(text)) for text in (pair.source, pair.target)) + 1
    parts = [TranslationTask([pair] * 3, [], TOKENISER, batch_tokens=longest, world=2, rank=rank) for rank in range(2)]
    batches = [part.batch(step) for part in parts for step in range(part.batches.steps_per_epoch)]
    counts = [int((batch.next != PAD).sum()) for batch in batches]
    assert sorted(map(bool, counts)) == [False, True, True, True]
    learner = model(model.Config(vocab_size=TOKENISER.vocab_size, dim=16))
    loss, count = parts[0].loss(learner, batches[counts.index(0)])
    loss.backward()
    assert (float(loss.detach()), count) == (0.0, 0)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in learner.parameters())


def test_a_target_begins_and_its_next_ids_end():
    batch = task().batch(0)
    assert set(batch.target[:, 0].tolist()) == {BEGIN}
    for target, following in zip(batch.target.tolist(), batch.next.tolist(), strict=True):
        living = [identifier for identifier in following if identifier != PAD]
        assert living[-1] == END
        assert target[1 : len(living)] == living[:-1]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_sum_over_target_ids_of_the_smoothed_cross_entropy(smoothing):
    torch.manual_seed(0)
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=TOKENISER.vocab_size, dim=16, heads=2))
    one = task(label_smoothing=smoothing)
    batch = one.batch(1)
    found, count = one.loss(model.eval(), batch)
    scores = model(batch.source, batch.target).log_softmax(-1)
    expected = 0.0
    for row, following in zip(scores, batch.next, strict=True):
        for place, identifier in zip(row, following.tolist(), strict=True):
            if identifier != PAD:
                expected = expected - (1 - smoothing) * place[identifier] - smoothing * place.mean()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert count == int((batch.next != PAD).sum())
    plain, _ = one.validation_loss(model, batch)
    reference = F.cross_entropy(scores.flatten(0, 1), batch.next.flatten(), ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(plain, reference)


def test_the_best_checkpoint_is_chosen_without_the_smoothing(tmp_path):
    torch.manual_seed(0)
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=TOKENISER.vocab_size, dim=16, heads=2))
    one, told, expected = task(label_smoothing=0.4), [], []

    def mean_of(loss):
        losses = [loss(model, batch) for batch in one.validation_batches()]
        return sum(float(each) for each, _ in losses) / sum(count for _, count in losses)

    def look(event):
        if isinstance(event, Validated):
            model.eval()
            with torch.no_grad():
                expected.append((mean_of(one.validation_loss), mean_of(one.loss)))
            told.append(event)

    config = TrainingConfig(steps=6, learning_rate=0.05, warmup_steps=0, validate_every=1)
    result = train(model, one, config, tmp_path, kind="toy", progress=look, cpu=True)
    plain = [losses[0] for losses in expected]
    assert [event.loss for event in told] == pytest.approx(plain)
    assert all(abs(first - second) > 1e-3 for first, second in expected)
    assert result.best_step == told[plain.index(min(plain))].step


def test_validation_holds_every_pair_once_within_the_budget():
    batches = task().validation_batches()
    assert sorted(row for batch in batches for row in rows(batch)) == sorted(
        (*TOKENISER.encode(pair.source), END) for pair in PAIRS[:7]
    )
    assert all(batch.source.numel() <= 120 and batch.target.numel() <= 120 for batch in batches)


def test_what_is_too_long_is_left_out_and_counted():
    long = Pair("word " * 300, "Wort " * 300)
    held = TranslationTask([*PAIRS, long], [], TOKENISER, batch_tokens=120)
    assert held.left_out == 1
    assert held.needed == max(len(side) for pair in encode_pairs(PAIRS, TOKENISER) for side in pair) + 1
    with pytest.raises(ArgumentError, match=r"none of 1 pair has fewer than 120 ids on both sides: .* learn from$"):
        TranslationTask([long], [], TOKENISER, batch_tokens=120)
    with pytest.raises(ArgumentError, match=r"label_smoothing is 1\.0"):
        task(label_smoothing=1.0)


def written(folder, pairs):
    (folder / "pairs.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
    return {"data": (str(folder / "pairs.tsv"),), "vocab_size": 320, "dim": 16, "heads": 2, "layers": 1, "steps": 2}


def test_a_batch_that_cannot_hold_every_pair_is_refused_with_the_number_it_needs(tmp_path):
    given = written(tmp_path, [*PAIRS, Pair("word " * 60, "Wort " * 60), Pair("word 9? " * 120, "Wort 9? " * 120)])
    with pytest.raises(ArgumentError, match=r"^--batch-tokens is 20: \d+ of \d+ pairs have more ids") as refusal:
        TranslationTraining.of(tmp_path / "run", {**given, "batch_tokens": 20}).prepare()
    needed = int(re.search(r"give (\d+) or more", str(refusal.value))[1])
    with pytest.raises(ArgumentError, match=f": 2 of .* give {needed} or more"):
        TranslationTraining.of(tmp_path / "run", {**given, "batch_tokens": needed - 1}).prepare()
    told = []
    enough = TranslationTraining.of(tmp_path / "run", {**given, "batch_tokens": needed}, tell=told.append)
    assert enough.prepare().task.left_out == 1  # more than a pair may have in any batch
    assert any(remark.startswith("1 pair with more sub-words") for remark in told)
    with pytest.raises(ArgumentError, match=f"nothing to learn from; batch_tokens is 16, give {needed} or more"):
        TranslationTask([Pair("word " * 60, "Wort " * 60)], [], enough.tokeniser, batch_tokens=16)


def test_the_fingerprint_tells_other_data_and_other_orders_apart():
    kept = task().fingerprint()
    assert kept == task().fingerprint()
    others = [
        task(seed=4),
        task(batch_tokens=121),
        task(label_smoothing=0.0),
        TranslationTask(PAIRS[1:], PAIRS[:7], TOKENISER, batch_tokens=120, seed=3),
        TranslationTask(PAIRS, PAIRS[:6], TOKENISER, batch_tokens=120, seed=3),
    ]
    assert all(other.fingerprint() != kept for other in others)
