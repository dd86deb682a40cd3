"""The four tasks: what is learned from, in which order, how its loss counts, and what is refused."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.models import (
    LanguageConfig,
    LanguageModel,
    RecurrentTranslator,
    TranslationTransformer,
)
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import BEGIN, END, PAD, Pair, Tokeniser
from regard_lab.text.batches import pad
from regard_lab.training import TrainingConfig, Validated, train
from regard_lab.training.recipes.classification import ClassificationTask
from regard_lab.training.recipes.language import LanguageTask
from regard_lab.training.recipes.masked_words import MASK, MaskedWordTask, hide_words
from regard_lab.training.recipes.translation import TranslationTask, TranslationTraining

PAIRS = [
    Pair(f"sentence number {n} {'long ' * (n % 5)}", f"Satz Nummer {n} {'lang ' * (n % 4)}")
    for n in range(40)
]
TEXTS = [pair.source for pair in PAIRS[:23]]
CLASSES = ("even", "odd")
LABELLED = [Pair(text, CLASSES[n % 2]) for n, text in enumerate(TEXTS)]
DOCUMENTS = ["A bird sang.\n\nIt was happy.\n" * 5, "Rain fell on the street.\n" * 7]
HELD_OUT = ["The bird was tired.\n" * 9]
SOURCES_AND_TARGETS = itertools.chain.from_iterable((pair.source, pair.target) for pair in PAIRS)
TOKENISER = Tokeniser.train(list(SOURCES_AND_TARGETS), 320)
BLOCK = 11  # ids
VERBATIM = Tokeniser.train(DOCUMENTS, 300, verbatim=True)
SMALL: dict[str, Any] = {"vocab_size": TOKENISER.vocab_size, "dim": 16, "heads": 2}


def without_padding(ids):
    rows = []
    for row in ids.tolist():
        rows.append(tuple(i for i in row if i != PAD))
    return rows


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """A task with what it has to read, and its loss by the formula."""

    task: Callable[..., Any]
    learned: list[Any]
    held_out: list[Any]
    options: dict[str, Any]
    model: Callable[[], Any]
    loss: Callable[..., tuple[float, int]]
    rows: Callable[[Any], list[Any]]  # what a batch holds, without padding
    expected_rows: Callable[[list[Any]], list[Any]]  # of texts
    others: list[dict[str, Any]]  # changes that make another task

    def make(self, **changes):
        arguments = {"train": self.learned, "valid": self.held_out, **self.options, "seed": 3}
        return self.task(**{**arguments, **changes})

    @property
    def most_ids(self):
        """The most ids of a batch."""
        return self.options["batch_tokens"]


# --- translation


def translator():
    torch.manual_seed(0)
    return TranslationTransformer(TranslationTransformer.Config(**SMALL))


def smoothed_cross_entropy(model, batch, smoothing=0.1):
    log_probs = model(batch.source, batch.target).log_softmax(-1)
    expected = 0.0
    for row, following in zip(log_probs, batch.next.tolist(), strict=True):
        for of_place, i in zip(row, following, strict=True):
            if i != PAD:
                expected -= float((1 - smoothing) * of_place[i] + smoothing * of_place.mean())
    return expected, int((batch.next != PAD).sum())


def translated_rows(batch):
    sources = without_padding(batch.source)
    return list(zip(sources, without_padding(batch.next), strict=True))


def closed_pairs(pairs):
    rows = []
    for pair in pairs:
        rows.append(tuple((*TOKENISER.encode(text), END) for text in (pair.source, pair.target)))
    return rows


TRANSLATION = TaskKind(
    task=partial(TranslationTask, tokeniser=TOKENISER),
    learned=PAIRS,
    held_out=PAIRS[:7],
    options={"batch_tokens": 120},
    model=translator,
    loss=smoothed_cross_entropy,
    rows=translated_rows,
    expected_rows=closed_pairs,
    others=[
        {"batch_tokens": 121},
        {"label_smoothing": 0.0},
        {"train": PAIRS[1:]},
        {"valid": PAIRS[:6]},
    ],
)


# --- running text


def writer():
    torch.manual_seed(5)
    return LanguageModel(LanguageConfig(**{**SMALL, "vocab_size": VERBATIM.vocab_size}, layers=1))


def blocks(documents):
    rows = []
    for text in documents:
        ids = (*VERBATIM.encode(text), END)
        rows += [ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK)]
    return rows


def block_rows(batch):
    return without_padding(batch.next)


def cross_entropy_of_next_ids(model, batch):
    expected = 0.0
    count = 0
    for row in block_rows(batch):  # one block at a time, without padding
        log_probs = model(torch.tensor([[BEGIN, *row[:-1]]]))[0].log_softmax(-1)
        expected -= sum(float(log_probs[place, i]) for place, i in enumerate(row))
        count += len(row)
    return expected, count


LANGUAGE = TaskKind(
    task=partial(LanguageTask, tokeniser=VERBATIM),
    learned=DOCUMENTS,
    held_out=HELD_OUT,
    options={"block": BLOCK, "batch_tokens": 47},
    model=writer,
    loss=cross_entropy_of_next_ids,
    rows=block_rows,
    expected_rows=blocks,
    others=[
        {"block": 12},
        {"batch_tokens": 48},
        {"train": DOCUMENTS[::-1]},
        {"valid": DOCUMENTS[:1]},
    ],
)


# --- labels


def encoder(**head):
    torch.manual_seed(5)
    return TextEncoder(EncoderConfig(**SMALL, layers=1, **head))


def classifier():
    return encoder(head="classes", classes=2)


def labelled_rows(batch):
    return list(zip(without_padding(batch.ids), batch.labels.tolist(), strict=True))


def framed(text):
    return (BEGIN, *TOKENISER.encode(text), END)


def labelled(pairs):
    return [(framed(pair.source), CLASSES.index(pair.target)) for pair in pairs]


def cross_entropy_of_labels(model, batch):
    rows = labelled_rows(batch)
    expected = 0.0
    for ids, label in rows:
        expected -= float(model(torch.tensor([ids])).log_softmax(-1)[0, label])
    return expected, len(rows)


EXCHANGED = {"even": "odd", "odd": "even"}
CLASSIFICATION = TaskKind(
    task=partial(ClassificationTask, classes=CLASSES, tokeniser=TOKENISER),
    learned=LABELLED,
    held_out=LABELLED[:7],
    options={"batch_tokens": 60},
    model=classifier,
    loss=cross_entropy_of_labels,
    rows=labelled_rows,
    expected_rows=labelled,
    others=[{"train": [Pair(pair.source, EXCHANGED[pair.target]) for pair in LABELLED]}],
)


# --- hidden words


def restored(batch):
    """The texts as they were before their words were hidden."""
    ids = batch.ids.clone()
    ids[batch.places] = batch.words
    return without_padding(ids)


def framed_texts(texts):
    return [framed(text) for text in texts]


def cross_entropy_of_hidden_words(model, batch):
    log_probs = model(batch.ids).log_softmax(-1)  # (batch, length, vocab_size)
    places = batch.places.nonzero().tolist()
    expected = 0.0
    for (row, place), word in zip(places, batch.words.tolist(), strict=True):
        expected -= float(log_probs[row, place, word])
    return expected, len(places)


HIDDEN_WORDS = TaskKind(
    task=partial(MaskedWordTask, tokeniser=TOKENISER),
    learned=TEXTS,
    held_out=TEXTS[:7],
    options={"batch_tokens": 120},
    model=encoder,
    loss=cross_entropy_of_hidden_words,
    rows=restored,
    expected_rows=framed_texts,
    others=[{"longest": 9}, {"train": TEXTS[1:]}],
)


# --- all four

KINDS = {
    "translation": TRANSLATION,
    "language": LANGUAGE,
    "classification": CLASSIFICATION,
    "masked words": HIDDEN_WORDS,
}
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def epoch(kind, task):
    rows = []
    for step in range(task.batches.steps_per_epoch):
        rows += kind.rows(task.batch(step))
    return rows


def alike(batch, again):
    return all(torch.equal(part, same) for part, same in zip(batch, again, strict=True))


@every
def test_an_epoch_is_everything_once_over_all_processes_in_an_order_of_its_seed(kind):
    for world in (1, 2):
        seen = []
        for rank in range(world):
            seen += epoch(kind, kind.make(world=world, rank=rank))
        assert sorted(seen) == sorted(kind.expected_rows(kind.learned))
    assert epoch(kind, kind.make()) != epoch(kind, kind.make(seed=4))
    task = kind.make()
    again = kind.make()
    for index in (29, 0, 5):  # any step can be asked for again
        assert alike(task.batch(index), again.batch(index))


@every
def test_validation_holds_everything_once_within_the_budget_and_does_not_depend_on_the_seed(kind):
    batches = kind.make().validation_batches()
    rows = []
    for batch in batches:
        rows += kind.rows(batch)
    assert sorted(rows) == sorted(kind.expected_rows(kind.held_out))
    of_other_seed = kind.make(seed=8).validation_batches()
    assert all(
        alike(*batches_of_both) for batches_of_both in zip(batches, of_other_seed, strict=True)
    )
    for batch in (*batches, kind.make().batch(0)):
        assert all(part.numel() <= kind.most_ids for part in batch if part.dim() == 2)


@every
@torch.no_grad()
def test_the_loss_is_the_sum_of_its_formula(kind):
    batch = kind.make().batch(1)
    model = kind.model().eval()
    loss, count = kind.make().loss(model, batch)
    expected, expected_count = kind.loss(model, batch)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert count == expected_count


@every
@pytest.mark.parametrize("count", [2, 3, 99])
def test_the_parts_of_a_batch_have_its_rows_its_targets_and_its_loss(kind, count):
    task = kind.make()
    batch = task.batch(1)
    parts = task.parts(batch, count)
    assert len(parts) == min(count, len(batch.ids if hasattr(batch, "ids") else batch.source))
    model = kind.model().eval()
    with torch.no_grad():
        loss, targets = task.loss(model, batch)
        of_parts = [task.loss(model, part) for part in parts]
    assert sum(float(part_loss) for part_loss, _ in of_parts) == pytest.approx(
        float(loss), rel=1e-5
    )
    assert sum(part_targets for _, part_targets in of_parts) == targets
    rows = [row for part in parts for row in kind.rows(part)]
    assert rows == kind.rows(batch)


@every
def test_the_fingerprint_tells_other_data_orders_and_settings_apart(kind):
    fingerprint = kind.make().fingerprint()
    assert fingerprint == kind.make().fingerprint()
    for changes in ({"seed": 4}, *kind.others):
        assert kind.make(**changes).fingerprint() != fingerprint


LONG = Pair("word " * 300, "Wort " * 300)
PRIME = [*LABELLED, Pair("number 2", "prime")]
# Words of the sentence, and what is refused by it with these arguments.
REFUSED = {
    "block is 64; it needs 2 ids or more, and no more than batch_tokens 47": (
        LANGUAGE,
        {"block": 64},
    ),
    "no documents were given: there is nothing to learn from": (
        LANGUAGE,
        {"train": [], "valid": []},
    ),
    "'prime' is no class; there are even, odd": (CLASSIFICATION, {"train": PRIME}),
    "no texts were given: there is nothing to learn from": (
        CLASSIFICATION,
        {"train": [], "valid": []},
    ),
    "no words are in 1 text: there is nothing to learn from": (HIDDEN_WORDS, {"train": [""]}),
    "none of 1 pair has fewer than 120 ids on both sides: .* learn from$": (
        TRANSLATION,
        {"train": [LONG], "valid": []},
    ),
    r"label_smoothing is 1\.0": (TRANSLATION, {"label_smoothing": 1.0}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_learned_is_refused_in_one_sentence(words):
    kind, arguments = REFUSED[words]
    with pytest.raises(ArgumentError, match=words):
        kind.make(**arguments)


def test_bits_need_a_validation_text():
    with pytest.raises(ArgumentError, match="no validation documents"):
        LANGUAGE.make(valid=[]).bits_per_character(1.0)


# --- translation alone


@pytest.mark.parametrize("model", [TranslationTransformer, RecurrentTranslator])
def test_a_process_without_a_share_of_a_step_adds_nothing_to_its_gradient(model):
    """Three pairs that fill a batch each cannot be shared evenly by two processes."""
    pair = PAIRS[4]
    longest = max(map(len, closed_pairs([pair])[0]))
    batches = []
    for rank in range(2):
        task = TRANSLATION.make(
            train=[pair] * 3, valid=[], batch_tokens=longest, world=2, rank=rank
        )
        batches += [task.batch(step) for step in range(task.batches.steps_per_epoch)]
    counts = [int((batch.next != PAD).sum()) for batch in batches]
    assert sorted(map(bool, counts)) == [False, True, True, True]

    learner = model(model.Config(vocab_size=TOKENISER.vocab_size, dim=16))
    loss, count = task.loss(learner, batches[counts.index(0)])
    loss.backward()
    assert (float(loss.detach()), count) == (0.0, 0)
    for parameter in learner.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


@pytest.mark.parametrize(("kind", "read"), [(TRANSLATION, "target"), (LANGUAGE, "ids")])
def test_what_is_read_begins_with_begin_and_lags_one_id_behind_what_is_asked_for(kind, read):
    batch = kind.make().batch(0)
    ids = getattr(batch, read)
    assert set(ids[:, 0].tolist()) == {BEGIN}
    for target, following in zip(ids.tolist(), without_padding(batch.next), strict=True):
        assert target[1 : len(following)] == [*following[:-1]]
        assert set(target[len(following) :]) <= {PAD}


def test_the_best_checkpoint_is_chosen_without_the_smoothing(tmp_path):
    model = translator()
    task = TRANSLATION.make(label_smoothing=0.4)
    events = []
    plain_losses = []
    smoothed_losses = []

    def mean_of(loss):
        losses = [loss(model, batch) for batch in task.validation_batches()]
        return sum(float(total) for total, _ in losses) / sum(count for _, count in losses)

    def plain(model, batch):
        scores = model(batch.source, batch.target).flatten(0, 1)
        following = batch.next.flatten()
        loss = F.cross_entropy(scores, following, ignore_index=PAD, reduction="sum")
        return loss, int((following != PAD).sum())

    def look(event):
        if isinstance(event, Validated):
            model.eval()
            with torch.no_grad():
                plain_losses.append(mean_of(plain))
                smoothed_losses.append(mean_of(task.loss))
            events.append(event)

    config = TrainingConfig(steps=6, learning_rate=0.05, warmup_steps=0, validate_every=1)
    result = train(model, task, config, tmp_path, kind="toy", progress=look, cpu=True)
    assert [event.loss for event in events] == pytest.approx(plain_losses)
    for plain_loss, smoothed_loss in zip(plain_losses, smoothed_losses, strict=True):
        assert abs(plain_loss - smoothed_loss) > 1e-3
    best = plain_losses.index(min(plain_losses))
    assert result.best_step == events[best].step


def test_what_is_too_long_is_left_out_and_counted():
    task = TRANSLATION.make(train=[*PAIRS, LONG], valid=[])
    assert task.left_out == 1
    assert task.needed == max(max(map(len, pair)) for pair in closed_pairs(PAIRS))


def test_a_batch_that_cannot_hold_every_pair_is_refused_with_the_number_it_needs(tmp_path):
    longer = Pair("word " * 60, "Wort " * 60)
    longest = Pair("word 9? " * 120, "Wort 9? " * 120)  # more than a pair may have in any batch
    rows = [f"{pair.source}\t{pair.target}\n" for pair in (*PAIRS, longer, longest)]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    data = (str(tmp_path / "pairs.tsv"),)
    sizes = {"dim": 16, "heads": 2, "layers": 1, "vocab_size": 320}
    remarks = []

    def prepare(batch_tokens):
        settings = {"data": data, **sizes, "steps": 2, "batch_tokens": batch_tokens}
        recipe = TranslationTraining.of(tmp_path / "run", settings, tell=remarks.append)
        return recipe.prepare()

    too_few = r"^--batch-tokens is 20: \d+ of \d+ pairs have more ids"
    with pytest.raises(ArgumentError, match=too_few) as refusal:
        prepare(20)
    needed = int(re.search(r"give (\d+) or more", str(refusal.value))[1])
    with pytest.raises(ArgumentError, match=f": 2 of .* give {needed} or more"):
        prepare(needed - 1)
    training = prepare(needed)
    assert training.task.left_out == 1
    assert any(remark.startswith("1 pair with more sub-words") for remark in remarks)
    way = f"nothing to learn from; batch_tokens is 16, give {needed} or more"
    with pytest.raises(ArgumentError, match=way):
        TranslationTask([longer], [], training.tokeniser, batch_tokens=16)


# --- running text alone


def test_the_blocks_of_an_epoch_are_the_documents_and_an_indifferent_model_needs_the_bits_of_arithmetic():
    assert "".join(VERBATIM.decode(row) for row in blocks(DOCUMENTS)) == "".join(DOCUMENTS)
    ids = len(VERBATIM.encode(HELD_OUT[0])) + 1
    nats = math.log(VERBATIM.vocab_size)
    bits = ids * nats / math.log(2) / len(HELD_OUT[0])
    assert LANGUAGE.make().bits_per_character(nats) == pytest.approx(bits)


# --- labels alone


def test_accuracy_is_the_share_of_right_answers():
    model = classifier().eval()
    right = 0
    for ids, label in labelled(LABELLED):
        right += int(model(torch.tensor([ids])).argmax()) == label
    assert CLASSIFICATION.make().accuracy(model, LABELLED) == right / len(LABELLED)


def test_a_long_text_is_read_up_to_there_and_counted():
    task = CLASSIFICATION.make(longest=5)
    assert max(len(ids) for ids, _ in labelled_rows(task.batch(0))) == 5
    lengths = [len(ids) for ids, _ in labelled([*LABELLED, *LABELLED[:7]])]
    assert task.cut == sum(length > 5 for length in lengths) > 0


# --- hidden words alone


def test_fifteen_in_a_hundred_are_asked_for_eighty_of_them_hidden_and_ten_drawn():
    """Within four standard deviations of what is drawn."""
    texts = 211
    hidden = hide_words(pad([[BEGIN, *([7] * 100), END]] * texts), 1009, generator_of(1))
    assert hidden.places.sum(1).tolist() == [15] * texts  # no draw: 15 of 100 words, in each text
    assert set(hidden.words.tolist()) == {7}
    seen = hidden.ids[hidden.places]
    asked = len(seen)
    counts = {0.8: int((seen == MASK).sum()), 0.1: int((seen == 7).sum())}
    for expected, count in counts.items():
        deviation = math.sqrt(expected * (1 - expected) / asked)
        assert abs(count / asked - expected) < 4 * deviation

    drawn = seen[(seen != MASK) & (seen != 7)]
    assert int(drawn.min()) >= 4
    # all over the vocabulary
    distinct = len(drawn) * (1 - len(drawn) / 2 / 1005)
    assert len(drawn.unique()) > 0.8 * distinct


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


TEXTS_OF_IDS = st.lists(st.lists(st.integers(4, 30), max_size=23), min_size=1, max_size=5)


@given(TEXTS_OF_IDS, st.integers(0, 99))
def test_specials_are_never_asked_for_and_what_is_not_asked_for_stays(texts, seed):
    ids = pad([[BEGIN, *text, END] for text in texts])
    hidden = hide_words(ids, 31, generator_of(seed))
    assert torch.equal(hidden.words, ids[hidden.places])
    assert torch.equal(hidden.ids[~hidden.places], ids[~hidden.places])
    assert not (hidden.places & (ids < 4)).any()
    expected = [min(len(text), max(1, round(0.15 * len(text)))) for text in texts]
    assert hidden.places.sum(1).tolist() == expected


def test_what_is_hidden_is_a_function_of_seed_and_index():
    def places(seed):
        # one text, the only one of each epoch
        task = HIDDEN_WORDS.make(train=TEXTS[4:5], valid=[], seed=seed)
        return [tuple(task.batch(index).places[0].tolist()) for index in range(8)]

    assert len(set(places(seed=3))) > 1
    assert places(seed=3) == places(seed=3) != places(seed=4)


def test_a_long_text_is_read_in_pieces():
    rows = restored(HIDDEN_WORDS.make(train=TEXTS[4:5], valid=[], longest=7).batch(0))
    assert max(map(len, rows)) == 7
    words = []
    for row in rows:
        words += row[1:-1]
    assert sorted(words) == sorted(TOKENISER.encode(TEXTS[4]))


def test_a_validation_counts_the_right_ids_of_each_skill():
    ids = TOKENISER.encode_target("Satz")
    task = TranslationTask(
        PAIRS, PAIRS[:5], TOKENISER, batch_tokens=90, skills={"words": ids, "ends": [END]}
    )

    def always(source, target):
        """Logits of a model that expects the end everywhere."""
        return F.one_hot(torch.full_like(target, END), TOKENISER.vocab_size).float()

    assert task.counted_skills() == {"words": (0, 0), "ends": (0, 0)}
    for batch in task.validation_batches():
        task.validation_loss(always, batch)
    assert task.counted_skills() == {"words": (0, 5 * len(ids)), "ends": (5, 5)}
    assert task.counted_skills() == {"words": (0, 0), "ends": (0, 0)}
    task.loss(always, task.batch(0))  # of a training step nothing is counted
    assert task.counted_skills()["ends"] == (0, 0)
