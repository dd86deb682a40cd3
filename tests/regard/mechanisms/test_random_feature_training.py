"""Random feature attention learns: to recall what was said, and, with gates, when to forget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import regard as rg
from regard.mechanisms import RandomFeature


def trained(model: nn.Module, task: Callable[[], tuple[Any, torch.Tensor]], steps: int) -> tuple[float, float]:
    """The loss of the first steps and of the last, each step on a fresh batch."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(steps):
        inputs, targets = task()
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[:5]) / 5, sum(losses[-20:]) / 20


class Recall(nn.Module):
    """Looks up what was said about a letter: q and k are learned from letters, v is what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.of_q, self.of_k = nn.Embedding(8, 8), nn.Embedding(8, 8)
        self.mechanism = RandomFeature(128, seed=int(torch.randint(2**31, ())), sigma=0.6)

    def forward(self, inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        letters, said = inputs
        q, k = self.of_q(letters), self.of_k(letters)
        return rg.attention(q[:, None, :1], k[:, None, 1:], said[:, None, 1:], mechanism=self.mechanism)[:, 0, 0]


def recall_task() -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Eight letters in some order, each with a number, after the one that is asked for."""
    letters, said = torch.rand(32, 8).argsort(-1), torch.randn(32, 9, 1)
    asked = torch.randint(8, (32, 1))
    return (torch.cat([letters.gather(1, asked), letters], 1), said), said[:, 1:].gather(1, asked[..., None])[:, 0]


class Latch(nn.Module):
    """Keeps a number until the next one that is marked; how much each token keeps is learned."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.keeps = nn.Linear(2, 1)
        self.of_q, self.of_k = nn.Linear(2, 4), nn.Linear(2, 4)
        self.mechanism = RandomFeature(16, gated, seed=int(torch.randint(2**31, ())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parameters = {"gate": self.keeps(x).sigmoid().mT} if self.mechanism.gated else None  # (batch, 1, length)
        q, k, v = self.of_q(x)[:, None], self.of_k(x)[:, None], x[:, None, :, :1]
        return rg.attention(q, k, v, pattern="causal", mechanism=self.mechanism, parameters=parameters)[:, 0, :, 0]


def latch_task() -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers, some of them marked; the answer at each is the last marked one, and the first always is."""
    numbers, marked = torch.randn(16, 12), torch.rand(16, 12) < 0.3
    marked[:, 0] = True
    last = torch.where(marked, torch.arange(12), -1).cummax(-1).values
    return torch.stack([numbers, marked.float()], -1), numbers.gather(1, last)


def test_without_gates_it_learns_to_recall():
    before, after = trained(Recall(), recall_task, 250)
    assert before > 0.5, "the numbers have a variance of 1"
    said = f"the loss went from {before:.3f} to {after:.3f}; with other seeds it ended at 0.1% to 13% of what it was"
    assert after < min(before / 4, 0.5), said  # features that were drawn badly begin with a larger loss


def test_with_gates_it_learns_when_to_forget():
    before, after = trained(Latch(gated=True), latch_task, 300)
    _, without = trained(Latch(gated=False), latch_task, 300)
    assert after < 0.1, f"the loss went from {before:.3f} to {after:.3f}; other seeds end at 0.011 to 0.023"
    assert without > 0.2, f"without gates it ended at {without:.3f}; other seeds end at 0.32 to 0.41"
