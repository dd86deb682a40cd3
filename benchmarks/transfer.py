"""Measures whether pretraining on masked words lets an encoder classify from fewer labels.

python benchmarks/transfer.py [--seeds 0 1 2]

The task is to classify what kind of thing *it* refers to (an animal, a food, a road, ...), as in "The animal didn't
cross the street because it was too tired." There are many sentences but few labels, and the noun pairs of the test
never occur in training. Both contenders have the same sizes, labels and number of steps, and the better of the same
learning rates, chosen on validation sentences. One starts from random weights, the other from an encoder of masked
words. The lesson `transfer` reads the report that this writes.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.report import command, options, trained, write_lesson_report
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import Pair, Tokeniser
from regard_lab.text.pronouns import SENSES, make_split
from regard_lab.training.recipes import ClassificationTask, MaskedWordTask


@dataclass(frozen=True)
class TransferRecipe:
    """The settings of the experiment."""

    sentences: int = 40_000
    valid: int = 300
    test: int = 1_000
    labels: tuple[int, ...] = (20, 100, 300, 500)
    dim: int = 64
    layers: int = 2
    hidden_word_steps: int = 1_000
    label_steps: int = 200
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 6e-3, 1.2e-2)


@dataclass(frozen=True)
class TransferRecord:
    """Accuracy on test sentences for one seed and one number of labels."""

    seed: int
    labels: int
    scratch: float
    transfer: float
    commonest: float  # accuracy of always answering the most frequent kind
    last_word: float  # accuracy of the kind that is most frequent with the last word
    scratch_rate: float  # the learning rate that validation chose
    transfer_rate: float
    cpu_seconds: float

    @property
    def margin(self) -> float:
        return self.transfer - self.scratch


def measure(recipe: TransferRecipe, seed: int) -> tuple[list[TransferRecord], dict[str, Any]]:
    """One seed: train on masked words once, then train both contenders for each number of labels."""
    train_set = make_split("train", recipe.sentences, seed)
    valid = make_split("valid", recipe.valid, seed)
    test = make_split("test", recipe.test, seed)
    sources = [sentence.source for sentence in train_set]
    tokeniser = Tokeniser.train(sources, 2_000)
    torch.manual_seed(seed)
    config = EncoderConfig(vocab_size=tokeniser.vocab_size, dim=recipe.dim, layers=recipe.layers)
    pretrained = TextEncoder(config)
    untrained = deepcopy(pretrained)
    valid_sources = [sentence.source for sentence in valid]
    task = MaskedWordTask(sources, valid_sources, tokeniser, batch_tokens=2_048, seed=seed)
    warmup = min(50, recipe.hidden_word_steps // 5)
    result = trained(pretrained, task, recipe.hidden_word_steps, 3e-3, seed, warmup)

    train_pairs = labelled(train_set)
    valid_pairs = labelled(valid)
    test_pairs = labelled(test)
    kinds = Counter(pair.target for pair in test_pairs)
    commonest = max(kinds[sense] for sense in SENSES) / len(test_pairs)
    records = []
    for labels in recipe.labels:
        task = ClassificationTask(
            train_pairs[:labels], valid_pairs, SENSES, tokeniser, batch_tokens=1_024, seed=seed
        )
        scratch = best(recipe, untrained, task, valid_pairs, test_pairs, seed)
        transfer = best(recipe, pretrained, task, valid_pairs, test_pairs, seed)
        record = TransferRecord(
            seed=seed,
            labels=labels,
            scratch=scratch.accuracy,
            transfer=transfer.accuracy,
            commonest=commonest,
            last_word=by_last_word(train_pairs[:labels], test_pairs),
            scratch_rate=scratch.learning_rate,
            transfer_rate=transfer.learning_rate,
            cpu_seconds=scratch.cpu_seconds + transfer.cpu_seconds,
        )
        records.append(record)
        print(record, flush=True)
    about = {
        "seed": seed,
        "cpu_seconds": result.cpu_seconds,
        "nats_a_word": result.valid_loss,
    }
    return records, about


@dataclass(frozen=True)
class BestTraining:
    """Test accuracy at the learning rate that is best on validation sentences, that rate, and the total CPU seconds."""

    accuracy: float
    learning_rate: float
    cpu_seconds: float


def best(
    recipe: TransferRecipe,
    begin: TextEncoder,
    task: ClassificationTask,
    valid: list[Pair],
    test: list[Pair],
    seed: int,
) -> BestTraining:
    """Train with each learning rate from the same beginning, and choose one by the validation sentences."""
    seconds = 0.0
    tried = []
    for rate in recipe.learning_rates:
        torch.manual_seed(seed)  # both contenders have the same first head
        model = begin.changed(head="classes", classes=len(SENSES))
        warmup = recipe.label_steps // 5
        result = trained(model, task, recipe.label_steps, rate, seed, warmup)
        seconds += result.cpu_seconds
        tried.append((task.accuracy(model, valid), rate, task.accuracy(model, test)))
    _, rate, accuracy = max(tried)
    return BestTraining(accuracy, rate, seconds)


def by_last_word(train: list[Pair], test: list[Pair]) -> float:
    """The accuracy of a table: for the last word of a sentence, the kind that it most often has in the labelled ones.

    A last word without a label gets the most frequent kind of all.
    """
    kinds = Counter(pair.target for pair in train)
    kinds_of_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pair in train:
        kinds_of_word[last_word(pair)][pair.target] += 1

    right = 0
    for pair in test:
        counts = kinds_of_word.get(last_word(pair), kinds)
        right += counts.most_common(1)[0][0] == pair.target
    return right / len(test)


def last_word(pair: Pair) -> str:
    return pair.source.rstrip(".").split()[-1].lower()


def labelled(sentences: Sequence[Any]) -> list[Pair]:
    """Sentences with the kind of thing that *it* refers to."""
    return [Pair(sentence.source, sentence.derivation.referent.sense) for sentence in sentences]


def main() -> None:
    asked = options(__doc__, seeds=[0, 1, 2]).parse_args()
    torch.set_num_threads(1)  # for such small tensors several threads are slower than one
    recipe = TransferRecipe()
    records: list[dict[str, Any]] = []
    hidden_words = []
    for seed in asked.seeds:
        of_seed, about = measure(recipe, seed)
        hidden_words.append(about)
        records += [{**asdict(record), "margin": record.margin} for record in of_seed]
    figures = {"recipe": asdict(recipe), "hidden_words": hidden_words, "records": records}
    print(write_lesson_report("transfer", command(), figures))


if __name__ == "__main__":
    main()
