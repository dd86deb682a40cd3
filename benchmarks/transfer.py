"""Measures whether pretraining on masked words lets an encoder classify from fewer labels. Writes a report.

python benchmarks/transfer.py [--seeds 0 1 2] [--quick] [--out DIR]

The task is to classify what kind of thing *it* refers to (an animal, a food, a road, ...), as in "The animal didn't
cross the street because it was too tired." There are many sentences but few labels, and the noun pairs of the test
never occur in training. Both contenders have the same sizes, labels and number of steps, and the better of the same
learning rates, chosen on validation sentences. One starts from random weights, the other from an encoder of masked
words.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from benchmarks.report import RESULTS, heading, options, trained, write
from regard_lab.bench.report import markdown_table
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


QUICK = TransferRecipe(sentences=2_000, valid=50, test=100, labels=(50,), hidden_word_steps=30, label_steps=10)


@dataclass(frozen=True)
class TransferRecord:
    """Accuracy on test sentences for one seed and one number of labels."""

    seed: int
    labels: int
    scratch: float
    transfer: float
    commonest: float  # accuracy of always answering the most frequent kind
    scratch_rate: float  # the learning rate that validation chose
    transfer_rate: float
    cpu_seconds: float

    @property
    def margin(self) -> float:
        return self.transfer - self.scratch


def measure(recipe: TransferRecipe, seed: int) -> tuple[list[TransferRecord], dict[str, Any]]:
    """One seed: train on masked words once, then train both contenders for each number of labels."""
    train_set = make_split("train", recipe.sentences, seed)
    valid, test = make_split("valid", recipe.valid, seed), make_split("test", recipe.test, seed)
    sources = [sentence.source for sentence in train_set]
    tokeniser = Tokeniser.train(sources, 2_000)
    torch.manual_seed(seed)
    blank = TextEncoder(EncoderConfig(vocab_size=tokeniser.vocab_size, dim=recipe.dim, layers=recipe.layers))
    untaught = {name: tensor.clone() for name, tensor in blank.state_dict().items()}
    hidden = MaskedWordTask(sources, [sentence.source for sentence in valid], tokeniser, batch_tokens=2_048, seed=seed)
    pretrained = trained(blank, hidden, recipe.hidden_word_steps, 3e-3, seed, min(50, recipe.hidden_word_steps // 5))
    fresh = TextEncoder(blank.config)
    fresh.load_state_dict(untaught)
    splits = [labelled(part) for part in (train_set, valid, test)]
    records = []
    for labels in recipe.labels:
        task = ClassificationTask(splits[0][:labels], splits[1], SENSES, tokeniser, batch_tokens=1_024, seed=seed)
        scratch, scratch_rate, seconds = best(recipe, fresh, task, splits, seed)
        transfer, transfer_rate, more = best(recipe, blank, task, splits, seed)
        commonest = max(sum(pair.target == sense for pair in splits[2]) for sense in SENSES) / len(splits[2])
        records.append(
            TransferRecord(seed, labels, scratch, transfer, commonest, scratch_rate, transfer_rate, seconds + more)
        )
        print(records[-1], flush=True)
    return records, {"seed": seed, "cpu_seconds": pretrained.cpu_seconds, "nats_a_word": pretrained.valid_loss}


def best(
    recipe: TransferRecipe, begin: TextEncoder, task: ClassificationTask, splits: Sequence[list[Pair]], seed: int
) -> tuple[float, float, float]:
    """Test accuracy at the learning rate that is best on validation sentences, that rate, and the total CPU seconds."""
    seconds, tried = 0.0, []
    for rate in recipe.learning_rates:
        torch.manual_seed(seed)  # both contenders have the same first head
        model = begin.changed(head="classes", classes=len(SENSES))
        seconds += trained(model, task, recipe.label_steps, rate, seed, recipe.label_steps // 5).cpu_seconds
        tried.append((task.accuracy(model, splits[1]), rate, task.accuracy(model, splits[2])))
    _, rate, right = max(tried)
    return right, rate, seconds


def labelled(sentences: Sequence[Any]) -> list[Pair]:
    """Sentences with the kind of thing that *it* refers to."""
    return [Pair(sentence.source, sentence.derivation.referent.sense) for sentence in sentences]


def verdict(records: Sequence[TransferRecord]) -> str:
    """One sentence: the margin with its spread, and whether it holds for every seed."""
    margins = [record.margin for record in records]
    spread = stdev(margins) if len(margins) > 1 else float("nan")
    holds = min(margins) > 0 and fmean(margins) > 2 * spread
    said = "transfer wins for every seed and by over two standard deviations" if holds else "no clear winner"
    return (
        f"{records[0].labels} labels: {fmean(margins):+.3f} ± {spread:.3f} (standard deviation over {len(margins)} "
        f"seeds; the least {min(margins):+.3f}): {said}"
    )


def page(
    recipe: TransferRecipe, records: Sequence[TransferRecord], hidden: Sequence[dict[str, Any]], verdicts: list[str]
) -> list[str]:
    seconds = sum(record.cpu_seconds for record in records) + sum(one["cpu_seconds"] for one in hidden)
    losses = ", ".join(f"{one['nats_a_word']:.3f}" for one in hidden)
    return [
        *heading("Labels saved by masked words", f", {seconds:,.0f} CPU seconds of training"),
        "Classification of what *it* refers to, into 11 kinds. Accuracy on test sentences with new noun pairs.", "",
        *markdown_table(
            ("labels", "seed", "from scratch", "from masked words", "margin", "most frequent kind"),
            [(r.labels, r.seed, f"{r.scratch:.3f}", f"{r.transfer:.3f}", f"{r.margin:+.3f}", f"{r.commonest:.3f}")
             for r in sorted(records, key=lambda r: (r.labels, r.seed))],
        ), "", *(f"- {verdict}" for verdict in verdicts), "",
        f"Masked words: {recipe.sentences:,} sentences without labels, {recipe.hidden_word_steps:,} steps, "
        f"validation {losses} nats per word. Encoder: {recipe.layers} layers, dim {recipe.dim}. Labels: "
        f"{recipe.label_steps} steps at the better of {' and '.join(map(str, recipe.learning_rates))}, chosen on "
        f"{recipe.valid} validation sentences for each contender.",
    ]  # fmt: skip


def main() -> None:
    asked = options(__doc__, out=RESULTS / "transfer_cpu", seeds=[0, 1, 2]).parse_args()
    torch.set_num_threads(1)  # for such small tensors several threads are slower than one
    recipe = QUICK if asked.quick else TransferRecipe()
    measured = [measure(recipe, seed) for seed in asked.seeds]
    records, hidden = [record for some, _ in measured for record in some], [about for _, about in measured]
    verdicts = [verdict([r for r in records if r.labels == labels]) for labels in recipe.labels]
    content = {
        "recipe": asdict(recipe), "hidden_words": hidden, "verdicts": verdicts,
        "records": [{**asdict(record), "margin": record.margin} for record in records],
    }  # fmt: skip
    print(write(asked.out, "transfer", content, page(recipe, records, hidden, verdicts)).read_text("utf-8"))


if __name__ == "__main__":
    main()
