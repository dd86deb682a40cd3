"""Two processes that train one language model; the whole of both their batches, for one process, is here too.

Started by test_workers.py through torchrun: two_readers.py FOLDER
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from regard.errors import RegardError
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import Tokeniser
from regard_lab.training import TrainingConfig, TrainingResult, train
from regard_lab.training.recipes.language import LanguageTask

DOCUMENTS = ["A bird sang.\n\nIt was happy.\n" * 5, "Rain fell on the street.\n" * 7]
TOKENISER = Tokeniser.train(DOCUMENTS, 300, verbatim=True)
CONFIG = TrainingConfig(
    steps=6,
    learning_rate=1e-2,
    warmup_steps=2,
    batches_per_step=2,
    validate_every=3,
    save_every=2,
    log_every=1,
)
HALF = replace(CONFIG, steps=3)


def make_reader(dtype: torch.dtype = torch.float64) -> LanguageModel:
    torch.manual_seed(5)
    sizes = {"dim": 16, "heads": 2, "layers": 2, "gradient_checkpointing": True}
    return LanguageModel(LanguageConfig(vocab_size=TOKENISER.vocab_size, **sizes)).to(dtype)


def make_task(world: int = 1, rank: int = 0) -> LanguageTask:
    return LanguageTask(
        DOCUMENTS,
        ["The bird was tired.\n"],
        TOKENISER,
        block=11,
        batch_tokens=24,
        seed=3,
        world=world,
        rank=rank,
    )


class Poisoned(LanguageTask):
    """The loss of batch 3 is not a number."""

    def batch(self, index):
        self.asked = index
        return super().batch(index)

    def loss(self, model, batch):
        loss, tokens = super().loss(model, batch)
        return loss * (float("nan") if self.asked == 3 else 1.0), tokens


class Together:
    """What two processes read, for one: the batches of both after each other, within the same step."""

    def __init__(self) -> None:
        self.tasks = [make_task(2, rank) for rank in range(2)]
        first = self.tasks[0]
        self.loss = first.loss
        self.validation_loss = first.validation_loss
        self.validation_batches = first.validation_batches

    def batch(self, index):
        return self.tasks[index % 2].batch(index // 2)

    def fingerprint(self):
        return {}


def train_reader(
    folder: Path, config: TrainingConfig, task, dtype=torch.float64, **options
) -> TrainingResult:
    model = make_reader(dtype)
    settings = model.config.to_dict()
    return train(
        model, task, config, folder, kind=model.KIND, model_config=settings, cpu=True, **options
    )


def main(folder: Path, rank: int) -> None:
    task = make_task(2, rank)
    train_reader(folder / "ddp", HALF, task)
    train_reader(folder / "ddp", CONFIG, task, resume=True)
    train_reader(folder / "float32", CONFIG, task, dtype=torch.float32)
    if rank == 1:
        task.__class__ = Poisoned
    try:
        train_reader(folder / "poisoned", CONFIG, task)
    except RegardError as error:
        (folder / f"fault-{rank}.txt").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(os.environ["RANK"]))
    torch.distributed.destroy_process_group()
