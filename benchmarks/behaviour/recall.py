"""Associative recall: what states of constant size can store and replace, and whether choosers find far keys."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from benchmarks.behaviour.learning import (
    Draw,
    SequenceBatch,
    SmallDecoder,
    UpdatePlan,
    overwriting,
    recall,
    score,
    train,
)
from benchmarks.behaviour.study import (
    ClaimVerdict,
    Experiment,
    Record,
    Records,
    apart,
    at_least,
    below,
    over_seeds,
)
from regard.layers import NSA, LightningIndexer, MoBA
from regard.mechanisms import (
    DeltaRule,
    GatedDelta,
    GatedLinear,
    LinearTransformer,
    Mechanism,
    Softmax,
)
from regard.positions import Rotary

LENGTH = 64
VOCABULARY = 256
ROWS = 32
HEADS = 2
PAIRS = (4, 8, 16)
DRAWS = {pairs: recall(VOCABULARY, LENGTH, ROWS, pairs) for pairs in PAIRS}
HOW = UpdatePlan(updates=1200, rate=3e-3)
SLOW = replace(HOW, rate=1e-3)

CONTENDERS: dict[str, tuple[Mechanism, int, UpdatePlan]] = {
    "softmax, dim 32": (Softmax(), 32, HOW),
    "linear, dim 16": (LinearTransformer(), 16, HOW),
    "linear, dim 32": (LinearTransformer(), 32, HOW),
    "linear, dim 64": (LinearTransformer(), 64, HOW),
    "linear, dim 32, slow": (LinearTransformer(), 32, SLOW),
}


def numbers_kept(contender: str) -> str:
    """Size of a layer's state in decoding: keys and values, or the sums of a linear mechanism."""
    mechanism, dim, _ = CONTENDERS[contender]
    if isinstance(mechanism, Softmax):
        return f"{2 * dim * LENGTH:,}"
    return f"{dim * (dim // HEADS) + dim:,}"


def draw_any(generator: torch.Generator, draws: Mapping[int, Draw] = DRAWS) -> SequenceBatch:
    """A training batch with 4, 8 or 16 pairs, equally often."""
    drawn = int(torch.randint(len(PAIRS), (), generator=generator))
    draw = draws[PAIRS[drawn]]
    return draw(generator)


def run(contender: str, seed: int, quick: bool) -> Record:
    """Train one contender from one seed."""
    mechanism, dim, how = CONTENDERS[contender]
    torch.manual_seed(seed)
    model = SmallDecoder(
        vocabulary=VOCABULARY,
        length=None,
        dim=dim,
        heads=HEADS,
        convolution=3,
        mechanism=mechanism,
        pattern="causal",
    )
    done = train(model, draw_any, how.shortened(quick), seed, f"recall, {contender}, seed {seed}")
    record: Record = {"kept": numbers_kept(contender)}
    for pairs in PAIRS:
        record[f"accuracy_{pairs}"] = score(model, DRAWS[pairs])["accuracy"]
    return record | done


def judge(records: Records) -> list[ClaimVerdict]:
    """Check that a small state fails where a larger one succeeds, and softmax, which stores every key."""

    def accuracy(contender: str, pairs: int) -> list[float]:
        return over_seeds(records, contender, f"accuracy_{pairs}")

    verdicts = []
    for pairs in PAIRS:
        for contender in ("softmax, dim 32", "linear, dim 64"):
            what = f"{contender}: accuracy with {pairs} pairs"
            verdicts.append(at_least(what, accuracy(contender, pairs), 0.9))
        what = f"linear, dim 32: accuracy with {pairs} pairs"
        verdicts.append(below(what, accuracy("linear, dim 32", pairs), 0.3))

    by_state = ("linear, dim 16", "linear, dim 32", "linear, dim 64", "softmax, dim 32")
    for less, more in pairwise(by_state):
        what = f"with 16 pairs, {more}, recalls more than {less},"
        verdicts.append(apart(what, accuracy(more, 16), accuracy(less, 16), margin=0.05))
    what = "with 16 pairs, linear, dim 32, recalls more at the rate 0.003 than at 0.001,"
    slow = accuracy("linear, dim 32, slow", 16)
    verdicts.append(apart(what, accuracy("linear, dim 32", 16), slow))
    return verdicts


RECALL = Experiment(
    name="recall",
    title="Associative recall: what a state has room for",
    recipe=(
        f"Texts of {LENGTH} tokens out of {VOCABULARY}: 4, 8 or 16 pairs of a key and its value, then each key once "
        f"more at a random place, where its value is to be guessed. 2 layers, {HEADS} heads, a causal convolution of "
        f"width 3 before each attention encodes which tokens are adjacent, and there are no other positions; "
        f"{HOW.updates:,} updates of {ROWS} texts at the learning rate {HOW.rate:g}. One model is trained at "
        f"{SLOW.rate:g} as well, to separate what a state cannot hold from what was not learned yet.\n\n"
        "Source: Zoology, Arora et al. 2023, section 3 (multi-query associative recall); that a state's size decides: "
        "Simple Linear Attention Language Models Balance the Recall-Throughput Tradeoff, Arora et al. 2024."
    ),
    contenders=tuple(CONTENDERS),
    columns={
        "kept": "numbers kept a layer",
        **{f"accuracy_{pairs}": f"accuracy, {pairs} pairs" for pairs in PAIRS},
    },
    run=run,
    judge=judge,
)


# --- keys whose values change ---

KEYS = 4
WRITES = 4  # of each key
FEW = 64  # words of the vocabulary
NARROW = 32  # the dim
LAST = overwriting(FEW, LENGTH, ROWS, KEYS, WRITES)
STATES: dict[str, dict[str, Any]] = {
    "softmax, rotary": {"positions": Rotary()},
    "linear": {"mechanism": LinearTransformer()},
    "gated linear: forgets": {"mechanism": GatedLinear()},
    "delta rule: corrects": {"mechanism": DeltaRule()},
    "gated delta: both": {"mechanism": GatedDelta()},
}
SHORT = UpdatePlan(updates=1000, rate=3e-3)


def run_overwriting(contender: str, seed: int, quick: bool) -> Record:
    """Train one contender from one seed on keys whose values change."""
    torch.manual_seed(seed)
    model = SmallDecoder(
        vocabulary=FEW,
        length=None,
        dim=NARROW,
        heads=HEADS,
        convolution=3,
        pattern="causal",
        **STATES[contender],
    )
    done = train(
        model, LAST, SHORT.shortened(quick), seed, f"overwriting, {contender}, seed {seed}"
    )
    numbers = NARROW * NARROW // HEADS
    if contender == "softmax, rotary":
        numbers = 2 * NARROW * LENGTH
    elif contender == "linear":
        numbers += NARROW
    return {"kept": f"{numbers:,}", **score(model, LAST), **done}


def judge_overwriting(records: Records) -> list[ClaimVerdict]:
    """Check that a state which corrects learns what one that only adds up cannot."""
    adding = over_seeds(records, "linear", "accuracy")
    forgetting = over_seeds(records, "gated linear: forgets", "accuracy")
    correcting = over_seeds(records, "delta rule: corrects", "accuracy")
    doing_both = over_seeds(records, "gated delta: both", "accuracy")
    return [
        at_least("accuracy of the delta rule", correcting, 0.8),
        at_least("accuracy of the gated delta rule", doing_both, 0.8),
        below("accuracy of linear attention", adding, 0.5),
        apart(
            "the delta rule is more accurate than linear attention", correcting, adding, margin=0.3
        ),
        apart(
            "the delta rule is more accurate than gated linear attention, which forgets but does not correct,",
            correcting,
            forgetting,
        ),
    ]


OVERWRITING = Experiment(
    name="overwriting",
    title="Overwriting: which states replace what they hold",
    recipe=(
        f"Texts of {LENGTH} tokens out of {FEW}: {KEYS} keys, each {WRITES} times with a new value, in random order; "
        f"then each key once more at a random place, where its last value is to be guessed. 2 layers, dim {NARROW}, "
        f"{HEADS} heads, a causal convolution of width 3 before each attention; {SHORT.updates:,} updates of {ROWS} "
        f"texts at the learning rate {SHORT.rate:g}. Softmax alone has positions besides, without which it cannot know "
        "what came last.\n\n"
        "Source: Linear Transformers Are Secretly Fast Weight Programmers, Schlag et al. 2021, section 6.1 (keys that "
        "are assigned anew); Gated Delta Networks, Yang et al. 2025, section 2."
    ),
    contenders=tuple(STATES),
    columns={"kept": "numbers kept a layer", "loss": "loss, nats", "accuracy": "accuracy"},
    run=run_overwriting,
    judge=judge_overwriting,
)


# --- far keys, found by a choice ---

FAR = 512
FAR_ROWS = 8
BLOCK = 2
QUARTER = 64
FAR_DRAWS = {pairs: recall(FEW, FAR, FAR_ROWS, pairs) for pairs in PAIRS}
FAR_PLAN = replace(SHORT, updates=700)
LONG_DRAWS = {pairs: recall(FEW, 2 * FAR, FAR_ROWS, pairs) for pairs in PAIRS}  # for NSA
LONG_PLAN = replace(SHORT, updates=1000)
COMPRESSED = 16  # tokens in NSA's windows and blocks
OF_NSA = 6  # blocks that it chooses
NEAR = 4  # its last tokens
CHOOSERS: dict[str, dict[str, Any]] = {
    "all keys": {},
    "the last 64": {"pattern": f"causal_window({QUARTER})"},
    "MoBA": {"chooser": lambda: MoBA(BLOCK, QUARTER // BLOCK)},
    "NSA": {"chooser": lambda: NSA(COMPRESSED, COMPRESSED, COMPRESSED, OF_NSA, NEAR)},
    "lightning indexer": {"chooser": lambda: LightningIndexer(QUARTER, heads=2, head_dim=16)},
}


def pairs_of(contender: str) -> float:
    """The pairs that attention computes, as a share of those of causal attention; an indexer's scores not counted."""

    def of_blocks(t: int, block: int, top: int) -> int:
        return t % block + 1 + min(t // block, top - 1) * block

    def of_query(t: int) -> int:
        if contender == "all keys":
            return t + 1
        if contender == "MoBA":
            return of_blocks(t, BLOCK, QUARTER // BLOCK)
        if contender == "NSA":
            compressed = (t + 1) // COMPRESSED
            return compressed + of_blocks(t, COMPRESSED, OF_NSA) + min(t + 1, NEAR)
        return min(t + 1, QUARTER)

    length = 2 * FAR if contender == "NSA" else FAR
    return sum(map(of_query, range(length))) / (length * (length + 1) / 2)


def run_choosing(contender: str, seed: int, quick: bool) -> Record:
    """Train one contender from one seed on keys that lie far back."""
    torch.manual_seed(seed)
    options = {"pattern": "causal", **CHOOSERS[contender]}
    model = SmallDecoder(
        vocabulary=FEW, length=None, dim=NARROW, heads=HEADS, convolution=3, **options
    )
    draws = FAR_DRAWS
    plan = FAR_PLAN
    if contender == "NSA":
        draws = LONG_DRAWS
        plan = LONG_PLAN
    draw = partial(draw_any, draws=draws)
    done = train(model, draw, plan.shortened(quick), seed, f"choosing, {contender}, seed {seed}")
    return {"pairs": pairs_of(contender), **score(model, draws[PAIRS[-1]]), **done}


def judge_choosing(records: Records) -> list[ClaimVerdict]:
    """Check that a choice of a quarter of the pairs recalls what all keys do, and a window of as many keys does not."""
    of_window = over_seeds(records, "the last 64", "accuracy")
    of_all_keys = over_seeds(records, "all keys", "accuracy")
    verdicts = [below("accuracy with the last 64 keys", of_window, 0.5)]
    for contender in list(CHOOSERS)[2:]:
        accuracies = over_seeds(records, contender, "accuracy")
        ratios = [chosen / whole for chosen, whole in zip(accuracies, of_all_keys, strict=True)]
        what = f"accuracy of {contender} as a share of that with all keys"
        verdicts.append(at_least(what, ratios, 0.98))
        what = f"pairs of {contender} as a share of causal"
        verdicts.append(below(what, [pairs_of(contender)], 0.255))
    return verdicts


CHOOSING = Experiment(
    name="choosing",
    title="Choosers: whether a quarter of the pairs finds far keys",
    recipe=(
        f"Recall as above in texts of {FAR} tokens out of {FEW}, so that the pairs lie far back; accuracy is that with "
        f"{PAIRS[-1]} pairs. 2 layers, dim {NARROW}, {HEADS} heads, a causal convolution of width 3; "
        f"{FAR_PLAN.updates:,} updates of {FAR_ROWS} texts at the learning rate {FAR_PLAN.rate:g}. MoBA looks at "
        f"{QUARTER // BLOCK} blocks of {BLOCK} keys, the indexer at {QUARTER}, and it learns from its own loss beside, "
        f"without a warm-up; NSA at a compressed key for every {COMPRESSED} tokens, {OF_NSA} blocks of {COMPRESSED} "
        f"(the first, its own, the one before, and 3 that it chooses) and the last {NEAR}. NSA alone has texts of "
        f"{2 * FAR:,} tokens and {LONG_PLAN.updates:,} updates: a quarter of {FAR} leaves it one block of 8, "
        "by which it found 0.52 to 0.63, where MoBA and the indexer have room for all pairs; in the paper it chooses "
        "13 of 16 blocks itself, in texts of 8,192 tokens and more. Pairs are those of attention; MoBA and the indexer "
        "besides compare a query with all block means or index keys.\n\n"
        "Source: MoBA, Lu et al. 2025; Native Sparse Attention, Yuan et al. 2025; DeepSeek-V3.2-Exp, DeepSeek-AI 2025."
    ),
    contenders=tuple(CHOOSERS),
    columns={"pairs": "share of the pairs", "loss": "loss, nats", "accuracy": "accuracy"},
    run=run_choosing,
    judge=judge_choosing,
)
