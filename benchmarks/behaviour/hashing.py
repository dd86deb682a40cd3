"""Evaluates a model that was trained with exact attention with LSH, for several numbers of hashing rounds."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch

from benchmarks.behaviour.learning import SmallDecoder, UpdatePlan, duplication, score, train
from benchmarks.behaviour.study import (
    ClaimVerdict,
    Experiment,
    Record,
    Records,
    apart,
    at_least,
    draw_means,
    over_seeds,
)
from regard.mechanisms import LSH

SYMBOLS, WORD, ROWS = 10, 63, 16
LENGTH = 2 * WORD + 1
ROUNDS = (1, 2, 4, 8)
SIZES = {"chunk 8, 32 buckets": (8, 32), "chunk 4, 64 buckets": (4, 64), "chunk 2, 128 buckets": (2, 128)}
HASH_SEEDS = range(8)
EXACT = LSH(chunk=LENGTH)  # a text that fits into one chunk is not hashed
HOW = UpdatePlan(updates=300, rate=3e-3)
DRAW = duplication(SYMBOLS, WORD, ROWS)


def new_model(mechanism: LSH) -> SmallDecoder:
    """The model; only the mechanism differs between contenders."""
    return SmallDecoder(
        vocabulary=SYMBOLS + 1, length=LENGTH, dim=64, heads=4, layers=1, mechanism=mechanism, pattern="causal"
    )


@cache
def trained(seed: int, quick: bool) -> tuple[SmallDecoder, Record]:
    """A model trained with exact attention, for all contenders, and the record of its training."""
    torch.manual_seed(seed)
    model = new_model(EXACT)
    done = train(model, DRAW, HOW.shortened(quick), seed, f"hashing, seed {seed}")
    return model, {"exact": score(model, DRAW)["accuracy"], **vars(done)}


def run(contender: str, seed: int, quick: bool) -> Record:
    """Score the trained model with every number of rounds: means over several seeds of the hashes."""
    model, done = trained(seed, quick)
    chunk, buckets = SIZES[contender]
    found = {}
    for rounds in ROUNDS:
        accuracies = []
        for hash_seed in HASH_SEEDS:
            hashed = new_model(LSH(chunk, buckets, rounds, hash_seed))
            hashed.load_state_dict(model.state_dict())
            accuracies.append(score(hashed, DRAW, batches=2)["accuracy"])
        found[f"rounds_{rounds}"] = fmean(accuracies)
    return {**found, **done}


def judge(records: Records) -> list[ClaimVerdict]:
    """Accuracy rises with rounds to that of exact attention; one round is clearly lower where chunks are small."""
    smallest = list(SIZES)[-1]
    verdicts = [at_least("accuracy with exact attention", over_seeds(records, smallest, "exact"), 0.99)]
    for contender in SIZES:
        falls = _largest_falls([over_seeds(records, contender, f"rounds_{rounds}") for rounds in ROUNDS])
        verdicts.append(
            ClaimVerdict(
                f"{contender}: accuracy never falls from 1 to 8 rounds by more than 0.002; it does by {max(falls):.3f} "
                f"at most",
                max(falls) <= 0.002,
            )
        )
        eight = over_seeds(records, contender, "rounds_8")
        verdicts.append(at_least(f"{contender}: accuracy with 8 rounds", eight, 0.98))
    one = over_seeds(records, smallest, "rounds_1")
    return [*verdicts, apart(f"{smallest}: 8 rounds are more accurate than 1", eight, one, margin=0.1)]


def _largest_falls(by_rounds: Sequence[Sequence[float]]) -> list[float]:
    """For each seed, the largest fall of accuracy from one number of rounds to the next; 0 if it never falls."""
    steps = pairwise(by_rounds)
    falls = [[max(0.0, fewer - more) for fewer, more in zip(*step, strict=True)] for step in steps]
    return [max(of_seed) for of_seed in zip(*falls, strict=True)]


def picture(records: Records, axes: Any) -> None:
    """Draw accuracy over rounds of hashing."""
    draw_means(records, axes, "rounds_{}", ROUNDS)
    axes.set(xlabel="rounds of hashing")


HASHING = Experiment(
    name="hashing",
    title="LSH: a trained model read with more rounds",
    recipe=(
        f"Texts `0 w 0 w`, w of {WORD} random symbols out of {SYMBOLS}; the second w is to be guessed. 1 layer, dim "
        f"64, 4 heads, learned positions, queries that are the keys; {HOW.updates} updates of {ROWS} texts with exact "
        f"attention. The same weights are then evaluated with LSH: chunks of twice a bucket's mean size, as in the "
        f"paper, and 1, 2, 4 and 8 rounds, the mean over {len(HASH_SEEDS)} seeds of the hashes.\n\n"
        "Source: Reformer, Kitaev et al. 2020, section 5, table 2 (trained with full attention, evaluated with hashes)."
    ),
    contenders=tuple(SIZES),
    columns={"exact": "exact", **{f"rounds_{rounds}": f"rounds: {rounds}" for rounds in ROUNDS}},
    run=run,
    judge=judge,
    draw=picture,
)
