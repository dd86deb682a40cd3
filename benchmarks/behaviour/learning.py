"""What all experiments share: texts with known answers, a small decoder, its training and its score."""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from benchmarks.library_text import DOCUMENTED, docstrings, library_modules
from regard.layers import FeedForward, MultiHeadAttention, choice_losses
from regard.positions import Learned

UNSCORED = -1
HELD_OUT_EVERY = 10  # modules, one of which is held out
# Tokens and targets, (batch, length); targets UNSCORED do not count.
SequenceBatch = tuple[torch.Tensor, torch.Tensor]
Draw = Callable[[torch.Generator], SequenceBatch]


@dataclass(frozen=True)
class UpdatePlan:
    """The schedule: AdamW, a linear warm-up over a tenth of the updates, then a cosine to zero."""

    updates: int
    rate: float
    weight_decay: float = 0.01
    clip: float = 1.0

    def shortened(self, quick: bool) -> UpdatePlan:
        """The same with a fiftieth of the updates if `quick`."""
        return replace(self, updates=max(2, self.updates // 50)) if quick else self

    def share(self, update: int) -> float:
        """The learning rate at an update, as a share of `rate`."""
        warm = max(1, self.updates // 10)
        if update < warm:
            return (update + 1) / warm
        done = torch.tensor((update - warm) / max(1, self.updates - warm))
        return float((1 + torch.cos(torch.pi * done)) / 2)


def train(model: nn.Module, draw: Draw, how: UpdatePlan, seed: int, label: str) -> dict[str, float]:
    """Train on new batches at every update, and return the CPU seconds; all random numbers depend only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=how.rate, weight_decay=how.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, how.share)
    begin = time.process_time()
    loss = torch.zeros(())
    for _ in range(how.updates):
        loss = loss_of(model, *draw(generator))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), how.clip)
        optimiser.step()
        schedule.step()
    print(f"  {label}: {how.updates} updates, the last loss {loss.item():.3f}", file=sys.stderr)
    return {"cpu_seconds": time.process_time() - begin}


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats over the scored positions; with choosers, the mean of their losses over all too."""
    with choice_losses(model) as losses:
        logits = model(tokens)
    of_choosers = sum(losses, torch.zeros(())) / tokens.numel()
    logits = logits.flatten(0, 1)
    return of_choosers + nn.functional.cross_entropy(
        logits, targets.flatten(), ignore_index=UNSCORED
    )


@torch.no_grad()
def score(
    model: nn.Module, draw: Draw, batches: int = 8, seed: int = 1_000_003
) -> dict[str, float]:
    """Loss in nats and accuracy over the scored positions of batches that do not occur in training."""
    generator = torch.Generator().manual_seed(seed)
    loss = 0.0
    right = 0.0
    count = 0.0
    model.eval()
    for _ in range(batches):
        tokens, targets = draw(generator)
        scored = targets != UNSCORED
        logits = model(tokens)[scored]  # (scored, vocabulary)
        expected = targets[scored]
        loss += float(nn.functional.cross_entropy(logits, expected, reduction="sum"))
        right += float((logits.argmax(-1) == expected).sum())
        count += len(expected)
    return {"loss": loss / count, "accuracy": right / count}


def duplication(symbols: int, length: int, rows: int) -> Draw:
    """`0 w 0 w` with random words w of symbols from 1; only the second w is scored.

    Source: Reformer, Kitaev et al. 2020, section 5.
    """

    def draw(generator: torch.Generator) -> SequenceBatch:
        word = torch.randint(1, symbols + 1, (rows, length), generator=generator)
        zero = torch.zeros(rows, 1, dtype=torch.long)
        text = torch.cat([zero, word, zero, word], 1)  # (batch, 2 * length + 2)
        targets = text[:, 1:].clone()
        targets[:, : length + 1] = UNSCORED
        return text[:, :-1], targets

    return draw


def recall(vocabulary: int, length: int, rows: int, pairs: int) -> Draw:
    """Different keys, each followed by its value; later each key again, at a random position.

    Keys are the first half of the vocabulary, values the second, and 0 fills the rest. What is scored is the value,
    where the key returns.

    Source: Zoology, Arora et al. 2023, section 3 (multi-query associative recall).
    """

    def draw(generator: torch.Generator) -> SequenceBatch:
        half = vocabulary // 2
        keys = _different(rows, half - 1, pairs, generator) + 1
        values = torch.randint(half, vocabulary, (rows, pairs), generator=generator)
        places = _different(rows, length - 2 * pairs, pairs, generator) + 2 * pairs
        tokens = torch.zeros(rows, length, dtype=torch.long)
        # Keys and values in turn.
        tokens[:, : 2 * pairs] = torch.stack([keys, values], -1).flatten(1)
        targets = torch.full_like(tokens, UNSCORED)
        return tokens.scatter(1, places, keys), targets.scatter(1, places, values)

    return draw


def overwriting(vocabulary: int, length: int, rows: int, keys: int, writes: int) -> Draw:
    """As `recall`, but each key comes `writes` times, with a new value every time; its last one is scored."""

    def draw(generator: torch.Generator) -> SequenceBatch:
        half = vocabulary // 2
        pairs = keys * writes
        names = _different(rows, half - 1, keys, generator) + 1
        key_of_pair = _different(rows, pairs, pairs, generator) % keys  # (batch, pairs)
        values = torch.randint(half, vocabulary, (rows, pairs), generator=generator)
        order = torch.arange(pairs)
        last_places = [torch.where(key_of_pair == key, order, -1).amax(1) for key in range(keys)]
        last = torch.stack(last_places, 1)
        places = _different(rows, length - 2 * pairs, keys, generator) + 2 * pairs
        tokens = torch.zeros(rows, length, dtype=torch.long)
        # Keys and values in turn.
        key_names = names.gather(1, key_of_pair)
        tokens[:, : 2 * pairs] = torch.stack([key_names, values], -1).flatten(1)
        targets = torch.full_like(tokens, UNSCORED)
        return tokens.scatter(1, places, names), targets.scatter(1, places, values.gather(1, last))

    return draw


def _different(rows: int, below: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """In each row `count` different numbers from 0 to `below` - 1, in random order."""
    return torch.rand(rows, below, generator=generator).argsort(1)[:, :count]


SYMBOLS = 27  # a to z, and one symbol for everything else


@cache
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of the training text and of the held-out text: every tenth module is held out."""
    return _divided(lambda module: " ".join(docstrings(module)))


@cache
def code_texts() -> tuple[torch.Tensor, torch.Tensor]:
    """The same of the code of these modules, without docstrings and comments."""
    return _divided(_code)


def _divided(read: Callable[[ast.Module], str]) -> tuple[torch.Tensor, torch.Tensor]:
    training: list[str] = []
    held_out: list[str] = []
    for number, (_, module) in enumerate(library_modules()):
        part = held_out if number % HELD_OUT_EVERY == 0 else training
        part.append(read(module))
    return ids(" ".join(training)), ids(" ".join(held_out))


def _code(module: ast.Module) -> str:
    for node in ast.walk(module):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(module)


def ids(text: str) -> torch.Tensor:
    """Letters as 1 to 26, ignoring case, and 0 for everything else.

    >>> ids("A, b").tolist()
    [1, 0, 2]
    """
    plain = re.sub(r"[^a-z]+", " ", text.lower())
    return torch.tensor([ord(letter) - 96 if letter != " " else 0 for letter in plain])


class SmallDecoder(nn.Module):
    """A decoder that predicts at each position: embeddings, then pre-norm layers of attention and feed-forward.

    Args:
        vocabulary: tokens there are.
        length: positions there are, each with a learned vector; None for models that need none.
        dim, heads, layers: sizes.
        convolution: taps of a causal convolution, channel by channel, before each attention; 0 for none.
        attention: options of every MultiHeadAttention, as pattern= and mechanism=; chooser= makes one for each.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        length: int | None,
        dim: int,
        heads: int,
        layers: int = 2,
        convolution: int = 0,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = None if length is None else Learned(length, dim)
        self.layers = nn.ModuleList(
            SmallLayer(dim, heads, convolution, attention) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.guess = nn.Linear(dim, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> logits (batch, length, vocabulary)."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.guess(self.norm(x))


class SmallLayer(nn.Module):
    """An optional short convolution, attention and feed-forward, each with a residual connection."""

    def __init__(self, dim: int, heads: int, convolution: int, attention: dict[str, Any]) -> None:
        super().__init__()
        if "chooser" in attention:
            attention = attention | {"chooser": attention["chooser"]()}
        parts: list[nn.Module] = [
            MultiHeadAttention(dim, heads, **attention),
            FeedForward(dim, 4 * dim),
        ]
        if convolution:
            parts.insert(0, ShortConvolution(dim, convolution))
        self.parts = nn.ModuleList(parts)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return x  # (batch, length, dim)


class ShortConvolution(nn.Module):
    """A causal convolution: mixes each position with a few earlier ones, channel by channel.

    Source: Zoology, Arora et al. 2023, where every model compared has one.
    """

    def __init__(self, dim: int, taps: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(dim, dim, taps, padding=taps - 1, groups=dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x.mT)[..., : x.shape[1]].mT  # (batch, length, dim)
