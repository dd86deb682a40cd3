"""The four tasks: what is learned from, in which order, how its loss counts, and what is refused."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
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
from regard_lab.text.batches import encode_pairs, pad
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
TOKENISER = Tokeniser.train([text for pair in PAIRS for text in (pair.source, pair.target)], 320)
VERBATIM = Tokeniser.train(DOCUMENTS, 300, verbatim=True)
SMALL: dict[str, Any] = {"vocab_size": TOKENISER.vocab_size, "dim": 16, "heads": 2}


def without_padding(ids):
    return [tuple(i for i in row if i != PAD) for row in ids.tolist()]


# --- translation


def translation(pairs=PAIRS, valid=PAIRS[:7], **changes):
    return TranslationTask(pairs, valid, TOKENISER, **{"batch_tokens": 120, "seed": 3, **changes})


def translator():
    torch.manual_seed(0)
    return TranslationTransformer(TranslationTransformer.Config(**SMALL))


def smoothed_cross_entropy(model, batch, smoothing=0.1):
    scores = model(batch.source, batch.target).log_softmax(-1)
    expected = 0.0
    for row, following in zip(scores, batch.next.tolist(), strict=True):
        for place, i in zip(row, following, strict=True):
            if i != PAD:
                expected -= float((1 - smoothing) * place[i] + smoothing * place.mean())
    return expected, int((batch.next != PAD).sum())


# --- running text


def language(documents=DOCUMENTS, valid=HELD_OUT, **changes):
    return LanguageTask(
        documents, valid, VERBATIM, **{"block": 11, "batch_tokens": 47, "seed": 3, **changes}
    )


def writer():
    torch.manual_seed(5)
    return LanguageModel(LanguageConfig(**{**SMALL, "vocab_size": VERBATIM.vocab_size}, layers=1))


def blocks(documents):
    whole = [(*VERBATIM.encode(text), END) for text in documents]
    return [ids[start : start + 11] for ids in whole for start in range(0, len(ids), 11)]


def cross_entropy_of_next_ids(model, batch):
    expected = 0.0
    number = 0
    for row in without_padding(batch.next):  # one block at a time, without padding
        scores = model(torch.tensor([[BEGIN, *row[:-1]]]))[0].log_softmax(-1)
        expected -= sum(float(scores[place, i]) for place, i in enumerate(row))
        number += len(row)
    return expected, number


# --- labels


def classification(pairs=LABELLED, valid=LABELLED[:7], **changes):
    return ClassificationTask(
        pairs, valid, CLASSES, TOKENISER, **{"batch_tokens": 60, "seed": 3, **changes}
    )


def encoder(**head):
    torch.manual_seed(5)
    return TextEncoder(EncoderConfig(**SMALL, layers=1, **head))


def classifier():
    return encoder(head="classes", classes=2)


def labelled_rows(batch):
    return list(zip(without_padding(batch.ids), batch.labels.tolist(), strict=True))


def labelled(pairs):
    return [
        ((BEGIN, *TOKENISER.encode(pair.source), END), CLASSES.index(pair.target)) for pair in pairs
    ]


def cross_entropy_of_labels(model, batch):
    rows = labelled_rows(batch)
    return -sum(
        float(model(torch.tensor([ids])).log_softmax(-1)[0, label]) for ids, label in rows
    ), len(rows)


# --- hidden words


def masked_words(texts=TEXTS, valid=TEXTS[:7], **changes):
    return MaskedWordTask(texts, valid, TOKENISER, **{"batch_tokens": 120, "seed": 3, **changes})


def restored(batch):
    """The texts as they were before their words were hidden."""
    ids = batch.ids.clone()
    ids[batch.places] = batch.words
    return without_padding(ids)


def cross_entropy_of_hidden_words(model, batch):
    scores, expected = model(batch.ids).log_softmax(-1), 0.0  # (batch, length, vocab_size)
    for (row, place), word in zip(
        batch.places.nonzero().tolist(), batch.words.tolist(), strict=True
    ):
        expected -= float(scores[row, place, word])
    return expected, int(batch.places.sum())


@dataclass(frozen=True)
class Kind:
    """A task with what it has to read, and its loss by the formula."""

    make: Callable[..., Any]
    model: Callable[[], Any]
    loss: Callable[..., tuple[float, int]]
    rows: Callable[[Any], list[Any]]  # what a batch holds, without padding
    learned: list[Any]
    held_out: list[Any]
    budget: int  # the most ids of a batch
    others: Callable[[], list[Any]]  # tasks that are not this one


KINDS = {
    "translation": Kind(
        translation,
        translator,
        smoothed_cross_entropy,
        lambda batch: list(
            zip(without_padding(batch.source), without_padding(batch.next), strict=True)
        ),
        *(
            [tuple((*TOKENISER.encode(x), END) for x in (one.source, one.target)) for one in some]
            for some in (PAIRS, PAIRS[:7])
        ),
        120,
        lambda: [
            translation(batch_tokens=121),
            translation(label_smoothing=0.0),
            translation(PAIRS[1:]),
            translation(valid=PAIRS[:6]),
        ],
    ),
    "language": Kind(
        language,
        writer,
        cross_entropy_of_next_ids,
        lambda batch: without_padding(batch.next),
        blocks(DOCUMENTS),
        blocks(HELD_OUT),
        47,
        lambda: [
            language(block=12),
            language(batch_tokens=48),
            language(DOCUMENTS[::-1]),
            language(valid=DOCUMENTS[:1]),
        ],
    ),
    "classification": Kind(
        classification,
        classifier,
        cross_entropy_of_labels,
        labelled_rows,
        labelled(LABELLED),
        labelled(LABELLED[:7]),
        60,
        lambda: [
            classification([Pair(one.source, CLASSES[one.target == "even"]) for one in LABELLED])
        ],
    ),
    "masked words": Kind(
        masked_words,
        encoder,
        cross_entropy_of_hidden_words,
        restored,
        *([(BEGIN, *TOKENISER.encode(text), END) for text in some] for some in (TEXTS, TEXTS[:7])),
        120,
        lambda: [masked_words(longest=9), masked_words(TEXTS[1:])],
    ),
}
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def epoch(kind, one):
    return [
        row for step in range(one.batches.steps_per_epoch) for row in kind.rows(one.batch(step))
    ]


def alike(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every
def test_an_epoch_is_everything_once_over_all_processes_in_an_order_of_its_seed(kind):
    for world in (1, 2):
        seen = [
            row for rank in range(world) for row in epoch(kind, kind.make(world=world, rank=rank))
        ]
        assert sorted(seen) == sorted(kind.learned)
    assert epoch(kind, kind.make()) != epoch(kind, kind.make(seed=4))
    one = kind.make()
    again = kind.make()
    for index in (29, 0, 5):  # any step can be asked for again
        assert alike(one.batch(index), again.batch(index))


@every
def test_validation_holds_everything_once_within_the_budget_and_does_not_depend_on_the_seed(kind):
    one = kind.make().validation_batches()
    again = kind.make(seed=8).validation_batches()
    assert sorted(row for batch in one for row in kind.rows(batch)) == sorted(kind.held_out)
    assert all(alike(*pair) for pair in zip(one, again, strict=True))
    assert all(
        x.numel() <= kind.budget
        for batch in (*one, kind.make().batch(0))
        for x in batch
        if x.dim() == 2
    )


@every
@torch.no_grad()
def test_the_loss_is_the_sum_of_its_formula(kind):
    batch = kind.make().batch(1)
    model = kind.model().eval()
    found, count = kind.make().loss(model, batch)
    expected, number = kind.loss(model, batch)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert count == number


@every
def test_the_fingerprint_tells_other_data_orders_and_settings_apart(kind):
    kept = kind.make().fingerprint()
    assert kept == kind.make().fingerprint()
    assert all(other.fingerprint() != kept for other in (kind.make(seed=4), *kind.others()))


REFUSED = {
    "block is 64; it needs 2 ids or more, and no more than batch_tokens 47": lambda: language(
        block=64
    ),
    "nothing to learn from": lambda: language([], []),
    "no validation documents": lambda: language(valid=[]).bits_per_character(1.0),
    "'prime' is no class; there are even, odd": lambda: classification(
        [*LABELLED, Pair("number 2", "prime")]
    ),
    "nothing to learn from$": lambda: classification([], []),
    "nothing to learn from.*": lambda: masked_words([""]),
    r"none of 1 pair has fewer than 120 ids on both sides: .* learn from$": lambda: translation(
        [LONG], []
    ),
    r"label_smoothing is 1\.0": lambda: translation(label_smoothing=1.0),
}
LONG = Pair("word " * 300, "Wort " * 300)


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_learned_is_refused_in_one_sentence(words):
    with pytest.raises(ArgumentError, match=words):
        REFUSED[words]()


# --- translation alone


@pytest.mark.parametrize("model", [TranslationTransformer, RecurrentTranslator])
def test_a_process_without_a_share_of_a_step_adds_nothing_to_its_gradient(model):
    """Three pairs that fill a batch each cannot be shared evenly by two processes."""
    pair = PAIRS[4]
    longest = max(len(TOKENISER.encode(text)) for text in (pair.source, pair.target)) + 1
    parts = [
        translation([pair] * 3, [], batch_tokens=longest, world=2, rank=rank) for rank in range(2)
    ]
    batches = [part.batch(step) for part in parts for step in range(part.batches.steps_per_epoch)]
    counts = [int((batch.next != PAD).sum()) for batch in batches]
    assert sorted(map(bool, counts)) == [False, True, True, True]
    learner = model(model.Config(vocab_size=TOKENISER.vocab_size, dim=16))
    loss, count = parts[0].loss(learner, batches[counts.index(0)])
    loss.backward()
    assert (float(loss.detach()), count) == (0.0, 0)
    assert all(
        parameter.grad is not None and not parameter.grad.any()
        for parameter in learner.parameters()
    )


@pytest.mark.parametrize(("make", "read"), [(translation, "target"), (language, "ids")])
def test_what_is_read_begins_with_begin_and_lags_one_id_behind_what_is_asked_for(make, read):
    batch = make().batch(0)
    ids = getattr(batch, read)
    assert set(ids[:, 0].tolist()) == {BEGIN}
    for target, following in zip(ids.tolist(), without_padding(batch.next), strict=True):
        assert target[1 : len(following)] == [*following[:-1]]
        assert set(target[len(following) :]) <= {PAD}


def test_the_best_checkpoint_is_chosen_without_the_smoothing(tmp_path):
    model = translator()
    one = translation(label_smoothing=0.4)
    told = []
    expected = []

    def mean_of(loss):
        losses = [loss(model, batch) for batch in one.validation_batches()]
        return sum(float(each) for each, _ in losses) / sum(count for _, count in losses)

    def plain(model, batch):
        scores = model(batch.source, batch.target).flatten(0, 1)
        following = batch.next.flatten()
        return F.cross_entropy(scores, following, ignore_index=PAD, reduction="sum"), int(
            (following != PAD).sum()
        )

    def look(event):
        if isinstance(event, Validated):
            model.eval()
            with torch.no_grad():
                expected.append((mean_of(plain), mean_of(one.loss)))
            told.append(event)

    config = TrainingConfig(steps=6, learning_rate=0.05, warmup_steps=0, validate_every=1)
    result = train(model, one, config, tmp_path, kind="toy", progress=look, cpu=True)
    losses = [first for first, _ in expected]
    assert [event.loss for event in told] == pytest.approx(losses)
    assert all(abs(first - second) > 1e-3 for first, second in expected)
    assert result.best_step == told[losses.index(min(losses))].step


def test_what_is_too_long_is_left_out_and_counted():
    held = translation([*PAIRS, LONG], [])
    assert held.left_out == 1
    assert (
        held.needed
        == max(len(side) for pair in encode_pairs(PAIRS, TOKENISER) for side in pair) + 1
    )


def test_a_batch_that_cannot_hold_every_pair_is_refused_with_the_number_it_needs(tmp_path):
    pairs = [*PAIRS, Pair("word " * 60, "Wort " * 60), Pair("word 9? " * 120, "Wort 9? " * 120)]
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    )
    given = {
        "data": (str(tmp_path / "pairs.tsv"),),
        "dim": 16,
        "heads": 2,
        "layers": 1,
        "vocab_size": 320,
        "steps": 2,
    }
    with pytest.raises(
        ArgumentError, match=r"^--batch-tokens is 20: \d+ of \d+ pairs have more ids"
    ) as refusal:
        TranslationTraining.of(tmp_path / "run", {**given, "batch_tokens": 20}).prepare()
    needed = int(re.search(r"give (\d+) or more", str(refusal.value))[1])
    with pytest.raises(ArgumentError, match=f": 2 of .* give {needed} or more"):
        TranslationTraining.of(tmp_path / "run", {**given, "batch_tokens": needed - 1}).prepare()
    told = []
    enough = TranslationTraining.of(
        tmp_path / "run", {**given, "batch_tokens": needed}, tell=told.append
    )
    training = enough.prepare()
    assert training.task.left_out == 1  # more than a pair may have in any batch
    assert any(remark.startswith("1 pair with more sub-words") for remark in told)
    with pytest.raises(
        ArgumentError, match=f"nothing to learn from; batch_tokens is 16, give {needed} or more"
    ):
        TranslationTask([Pair("word " * 60, "Wort " * 60)], [], training.tokeniser, batch_tokens=16)


# --- running text alone


def test_the_blocks_of_an_epoch_are_the_documents_and_an_indifferent_model_needs_the_bits_of_arithmetic():
    assert "".join(VERBATIM.decode(row) for row in blocks(DOCUMENTS)) == "".join(DOCUMENTS)
    ids = len(VERBATIM.encode(HELD_OUT[0])) + 1
    nats = math.log(VERBATIM.vocab_size)
    assert language().bits_per_character(nats) == pytest.approx(
        ids * nats / math.log(2) / len(HELD_OUT[0])
    )


# --- labels alone


def test_accuracy_is_the_share_of_right_answers():
    model = classifier().eval()
    right = sum(
        int(model(torch.tensor([ids])).argmax()) == label for ids, label in labelled(LABELLED)
    )
    assert classification().accuracy(model, LABELLED) == right / len(LABELLED)


def test_a_long_text_is_read_up_to_there_and_counted():
    one = classification(longest=5)
    assert max(len(ids) for ids, _ in labelled_rows(one.batch(0))) == 5
    lengths = [len(ids) for ids, _ in labelled([*LABELLED, *LABELLED[:7]])]
    assert one.cut == sum(length > 5 for length in lengths) > 0


# --- hidden words alone


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
    # all over the vocabulary
    assert len(drawn.unique()) > 0.8 * len(drawn) * (1 - len(drawn) / 2 / 1005)
    assert set(found.words.tolist()) == {7}


@given(
    st.lists(st.lists(st.integers(4, 30), max_size=23), min_size=1, max_size=5), st.integers(0, 99)
)
def test_specials_are_never_asked_for_and_what_is_not_asked_for_stays(texts, seed):
    ids = pad([[BEGIN, *text, END] for text in texts])
    found = hide_words(ids, 31, torch.Generator().manual_seed(seed))
    assert torch.equal(found.words, ids[found.places])
    assert torch.equal(found.ids[~found.places], ids[~found.places])
    assert not (found.places & (ids < 4)).any()
    expected = [min(len(text), max(1, round(0.15 * len(text)))) for text in texts]
    assert found.places.sum(1).tolist() == expected


def test_what_is_hidden_is_a_function_of_seed_and_index():
    # one text, the only one of each epoch
    alone, other = (masked_words(TEXTS[4:5], [], seed=seed) for seed in (3, 4))
    assert len({tuple(alone.batch(index).places[0].tolist()) for index in range(8)}) > 1
    assert any(
        not torch.equal(alone.batch(index).places, other.batch(index).places) for index in range(8)
    )


def test_a_long_text_is_read_in_pieces():
    found = restored(masked_words(TEXTS[4:5], [], longest=7).batch(0))
    assert max(map(len, found)) == 7
    words = [i for row in sorted(found, key=lambda row: -len(row)) for i in row[1:-1]]
    assert sorted(words) == sorted(TOKENISER.encode(TEXTS[4]))
