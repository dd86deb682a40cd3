"""A model and a task of toy size for the tests of training: next-symbol lines of unequal length, with dropout."""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from regard.storage.sealed_json import read_sealed
from regard_lab.models.storage import read_checkpoints
from regard_lab.training import Event, StepDone, TrainingConfig, TrainingResult, train

WORDS = 11
LINES = 40  # five batches of eight make an epoch


def make_model(dtype: torch.dtype = torch.float32, dropout: float = 0.1) -> torch.nn.Module:
    """The same weights at each call; embedding and output are tied, and the output has a bias of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        embedding = torch.nn.Embedding(WORDS, 6)
        output = torch.nn.Linear(6, WORDS)
        output.weight = embedding.weight
        return torch.nn.Sequential(embedding, torch.nn.Dropout(dropout), output).to(dtype)


class ToyTask:
    """Lines of 2 to 9 symbols, shuffled anew in each epoch; 0 is padding and no target.

    Args:
        size: lines in a batch.
        rank, processes: this process's share is every `processes`-th line of the batch.
        poison: the indices of batches whose loss is NaN.
        name: what tells its data from others'.
    """

    def __init__(
        self,
        size: int = 8,
        rank: int = 0,
        processes: int = 1,
        poison: tuple[int, ...] = (),
        name: str = "toy",
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        self.lines = torch.randint(1, WORDS, (LINES, 10), generator=generator)
        for row, length in enumerate(torch.randint(3, 11, (LINES,), generator=generator).tolist()):
            self.lines[row, length:] = 0
        self.size = size
        self.share = slice(rank, None, processes)
        self.poison = poison
        self.name = name

    def batch(self, index: int) -> torch.Tensor:
        epoch, place = divmod(index, LINES // self.size)
        order = torch.randperm(LINES, generator=torch.Generator().manual_seed(epoch))
        rows = self.lines[order[place * self.size : (place + 1) * self.size]][self.share]
        return rows * -1 if index in self.poison else rows

    def loss(self, model, batch):
        return self._loss(model, batch, smoothing=0.1)

    def validation_batches(self):
        return [self.lines[:8], self.lines[8:12]]

    def validation_loss(self, model, batch):
        return self._loss(model, batch, smoothing=0.0)

    def fingerprint(self):
        return {"name": self.name, "size": self.size}

    def _loss(self, model, batch, smoothing):
        inputs = batch[:, :-1].abs()
        targets = batch[:, 1:].abs()
        scores = model(inputs).flatten(0, 1)
        loss = cross_entropy(
            scores, targets.flatten(), ignore_index=0, reduction="sum", label_smoothing=smoothing
        )
        if (batch < 0).any():  # a poisoned batch
            loss = loss * float("nan")
        return loss, (targets != 0).sum()


CONFIG = TrainingConfig(
    steps=12,
    learning_rate=1e-2,
    warmup_steps=4,
    batches_per_step=2,  # two and a half steps make an epoch
    validate_every=4,
    save_every=3,
    log_every=2,
)


def train_toy(
    folder: Path, config: TrainingConfig = CONFIG, task: ToyTask | None = None, **options
) -> TrainingResult:
    """`train` from the same first weights, as a program started anew would."""
    return train(make_model(), task or ToyTask(), config, folder, kind="toy", cpu=True, **options)


class CrashError(Exception):
    """What a test throws into the loop in place of a kill."""


def at_step(step: int, act):
    """A progress function that acts when so many steps are done."""

    def progress(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step:
            act()

    return progress


def crash() -> None:
    raise CrashError


def seals(run: Path) -> tuple[str, str]:
    """The hashes of the last weights and of the last optimiser state: equal only where every bit is."""
    checkpoints = read_checkpoints(run)
    assert checkpoints is not None
    folder = run / checkpoints.last
    weights = read_sealed(folder / "config.json")["files"]["weights.safetensors"]
    return weights, read_sealed(folder / "training.json")["optimiser"]


def log_without_times(run: Path) -> list[dict]:
    """The lines of the log, less what differs from run to run."""
    from regard_lab.training import read_log

    lines = read_log(run / "log.jsonl")
    for line in lines:
        line.pop("seconds", None)
    return lines
