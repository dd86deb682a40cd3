"""Compares the strided and the fixed pattern on a grid and on a text, where different earlier positions matter."""

from statistics import fmean
from typing import Any

import torch
from torch import nn

from benchmarks.behaviour.learning import SYMBOLS, Draw, SmallDecoder, UpdatePlan, grid, runs_of, texts, train
from benchmarks.behaviour.study import ClaimVerdict, Experiment, Record, Records, apart, over_seeds
from regard.patterns import parse

SIDE, COLOURS, NOISE, ROWS = 16, 8, 0.1, 16
LENGTH = SIDE * SIDE
PATTERNS = {
    "strided": f"causal & strided({SIDE})",
    "fixed": f"causal & fixed({SIDE}, summary=2)",
    "window": "causal_window(24)",
}
HOW = {"grid": UpdatePlan(updates=300, rate=3e-3), "text": UpdatePlan(updates=600, rate=3e-3)}
CONTENDERS = tuple(f"{name}, {data}" for data in HOW for name in PATTERNS)


def draws(data: str) -> tuple[Draw, Draw]:
    """The batches for training and for scoring."""
    if data == "grid":
        cells = grid(SIDE, COLOURS, NOISE, ROWS)
        return cells, cells
    first, held_out = texts()
    return runs_of(first, LENGTH, ROWS), runs_of(held_out, LENGTH, ROWS)


def run(contender: str, seed: int, quick: bool) -> Record:
    """Train one contender from one seed."""
    name, _, data = contender.partition(", ")
    vocabulary = COLOURS if data == "grid" else SYMBOLS
    torch.manual_seed(seed)
    model = SmallDecoder(vocabulary=vocabulary, length=LENGTH, dim=64, heads=4, pattern=PATTERNS[name])
    training, scoring = draws(data)
    done = train(model, training, HOW[data].shortened(quick), seed, f"grid-and-text, {contender}, seed {seed}")
    rows = losses_by_position(model, scoring).view(SIDE, SIDE)  # (rows or blocks, positions in them)
    by_place = rows[1:].mean(0)  # the first has nothing above it
    return {
        "pairs": f"{parse(PATTERNS[name]).count(LENGTH, LENGTH):,}",
        "loss": float(by_place.mean()),
        "by_place": [round(loss, 4) for loss in by_place.tolist()],
        **vars(done),
    }


@torch.no_grad()
def losses_by_position(model: nn.Module, draw: Draw, batches: int = 16, seed: int = 1_000_003) -> torch.Tensor:
    """The mean loss in nats at each position, (length,)."""
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    losses = []
    for _ in range(batches):
        tokens, targets = draw(generator)
        losses.append(nn.functional.cross_entropy(model(tokens).mT, targets, reduction="none"))
    return torch.cat(losses).mean(0)


def judge(records: Records) -> list[ClaimVerdict]:
    """Check that strided is better on the grid, and fixed on the text."""
    loss = {contender: over_seeds(records, contender, "loss") for contender in CONTENDERS}
    return [
        apart("on the grid, fixed loses more than strided", loss["fixed, grid"], loss["strided, grid"], margin=0.1),
        apart("on text, strided loses more than fixed", loss["strided, text"], loss["fixed, text"]),
    ]


def picture(records: Records, axes: Any) -> None:
    """Draw the loss by the position in a row of the grid, or in a block of the text."""
    for number, contender in enumerate(records):
        by_seed = [record["by_place"] for record in records[contender].values()]
        style = ("-", "--", ":")[number % len(PATTERNS)]
        color = "tab:blue" if contender.endswith("grid") else "tab:orange"
        axes.plot([fmean(place) for place in zip(*by_seed, strict=True)], style, color=color, label=contender)
    axes.set(xlabel="place in a row of the grid, or in a block of the text", ylabel="loss, nats", ylim=(0, None))


GRID_AND_TEXT = Experiment(
    name="grid-and-text",
    title="Strided against fixed: a grid against a text",
    recipe=(
        f"Grids of {SIDE} x {SIDE} cells in {COLOURS} colours, read row by row: a cell has the colour of the one above "
        f"it, except that one in ten has a random colour. Texts are {LENGTH} letters of the documentation of Python's "
        f"standard library, in {SYMBOLS} symbols, every tenth module held out. 2 layers, dim 64, 4 heads, learned "
        f"positions; {HOW['grid'].updates} and {HOW['text'].updates} updates of {ROWS} texts. The patterns are "
        f"{', '.join(f'`{pattern}`' for pattern in PATTERNS.values())}; they keep nearly the same number of pairs. "
        f"The loss is that of positions {SIDE} to {LENGTH - 1}, in nats.\n\n"
        "In a picture read row by row the cell above a guess is 15 positions before it, so the local part of `strided` "
        "contains it, and so does a plain window. `fixed` contains its own row, and the last two cells of earlier "
        "rows.\n\n"
        "Source: Generating Long Sequences with Sparse Transformers, Child et al. 2019, section 4.3."
    ),
    contenders=CONTENDERS,
    columns={"pairs": "pairs kept", "loss": "loss, nats"},
    run=run,
    judge=judge,
    draw=picture,
)
