"""The training loop of all experiments, and the measures after training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

UNSCORED = -1
Batch = tuple[torch.Tensor, torch.Tensor]  # tokens and targets, (batch, length); targets UNSCORED do not count
Draw = Callable[[torch.Generator], Batch]


@dataclass(frozen=True)
class Training:
    """The schedule: AdamW, a linear warm-up over a tenth of the updates, then a cosine to zero."""

    updates: int
    rate: float
    weight_decay: float = 0.01
    clip: float = 1.0

    def shortened(self, quick: bool) -> Training:
        """The same with a fiftieth of the updates if `quick`."""
        return replace(self, updates=max(2, self.updates // 50)) if quick else self

    def share(self, update: int) -> float:
        """The learning rate at an update, as a share of `rate`."""
        warm = max(1, self.updates // 10)
        if update < warm:
            return (update + 1) / warm
        done = torch.tensor((update - warm) / max(1, self.updates - warm))
        return float((1 + torch.cos(torch.pi * done)) / 2)


@dataclass(frozen=True)
class Trained:
    """CPU seconds of the updates, and the mean loss of each twentieth of them, by its last update."""

    cpu_seconds: float
    curve: list[tuple[int, float]]


def train(model: nn.Module, draw: Draw, how: Training, seed: int, label: str) -> Trained:
    """Train on new batches at every update; all random numbers depend only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=how.rate, weight_decay=how.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, how.share)
    pace = max(1, how.updates // 20)
    curve: list[tuple[int, float]] = []
    losses: list[float] = []
    line = f"  {label}"
    begin = time.process_time()
    for update in range(1, how.updates + 1):
        loss = loss_of(model, *draw(generator))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), how.clip)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        if update % pace == 0:
            curve.append((update, round(sum(losses) / len(losses), 4)))
            losses.clear()
            line = f"  {label}: update {update} of {how.updates}, loss {curve[-1][1]:.3f}"
            if sys.stderr.isatty() and update + pace <= how.updates:
                print(f"{line}\r", end="", file=sys.stderr)
    print(line, file=sys.stderr)
    return Trained(time.process_time() - begin, curve)


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats over the scored positions."""
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=UNSCORED)


@torch.no_grad()
def score(model: nn.Module, draw: Draw, batches: int = 8, seed: int = 1_000_003) -> dict[str, float]:
    """Loss in nats and accuracy over the scored positions of batches that do not occur in training."""
    generator = torch.Generator().manual_seed(seed)
    loss = right = count = 0.0
    model.eval()
    for _ in range(batches):
        tokens, targets = draw(generator)
        scored = targets != UNSCORED
        logits, wanted = model(tokens)[scored], targets[scored]  # (scored, vocabulary), (scored,)
        loss += float(nn.functional.cross_entropy(logits, wanted, reduction="sum"))
        right += float((logits.argmax(-1) == wanted).sum())
        count += len(wanted)
    return {"loss": loss / count, "accuracy": right / count}
