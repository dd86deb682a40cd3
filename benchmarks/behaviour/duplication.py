"""The duplication task: a model must copy symbols from a fixed distance, and cannot guess them."""

from dataclasses import replace

import torch

from benchmarks.behaviour.learning import SmallDecoder, UpdatePlan, duplication, score, train
from benchmarks.behaviour.study import (
    ClaimVerdict,
    Experiment,
    Record,
    Records,
    at_least,
    over_seeds,
)
from regard.mechanisms import (
    DeltaRule,
    GatedDelta,
    LinearTransformer,
    Mechanism,
    Retention,
    Softmax,
)
from regard.patterns import parse

SYMBOLS = 10
WORD = 24
LAYERS = 2
ROWS = 32
DRAW = duplication(SYMBOLS, WORD, ROWS)
HOW = UpdatePlan(updates=500, rate=3e-3)
LONGER = replace(HOW, updates=1000)

CONTENDERS: dict[str, tuple[Mechanism, str, UpdatePlan]] = {
    "softmax": (Softmax(), "causal", HOW),
    "linear": (LinearTransformer(), "causal", HOW),
    "linear, 1,000 updates": (LinearTransformer(), "causal", LONGER),
    "retention": (Retention(), "causal", HOW),
    "delta rule": (DeltaRule(), "causal", HOW),
    "gated delta": (GatedDelta(), "causal", HOW),
    "window 8": (Softmax(), "causal_window(8)", HOW),
    "window 12": (Softmax(), "causal_window(12)", HOW),
    "window 13": (Softmax(), "causal_window(13)", HOW),
    "window 16": (Softmax(), "causal_window(16)", HOW),
    "softmax, dim 16": (Softmax(), "causal", LONGER),
    "linear, dim 16": (LinearTransformer(), "causal", LONGER),
    "retention, dim 16": (Retention(), "causal", LONGER),
    "delta rule, dim 16": (DeltaRule(), "causal", LONGER),
}


def reaches(contender: str) -> bool:
    """Whether the stack of layers looks back as far as the symbol that must be copied."""
    back = parse(CONTENDERS[contender][1]).reach(LAYERS).back
    return back is None or back >= WORD


def run(contender: str, seed: int, quick: bool) -> Record:
    """Train one contender from one seed."""
    mechanism, pattern, how = CONTENDERS[contender]
    torch.manual_seed(seed)
    heads = 1 if "dim 16" in contender else 4
    model = SmallDecoder(
        vocabulary=SYMBOLS + 1,
        length=2 * WORD + 1,
        dim=16 * heads,
        heads=heads,
        layers=LAYERS,
        mechanism=mechanism,
        pattern=pattern,
    )
    done = train(model, DRAW, how.shortened(quick), seed, f"duplication, {contender}, seed {seed}")
    back = parse(pattern).reach(LAYERS).back
    return {"reach": "all" if back is None else back, **score(model, DRAW), **done}


def judge(records: Records) -> list[ClaimVerdict]:
    """Check that contenders that reach the symbol solve it, if not in a narrow state; the others stay at chance."""
    verdicts = []
    for contender in CONTENDERS:
        loss = over_seeds(records, contender, "loss")
        accuracy = over_seeds(records, contender, "accuracy")
        if "dim 16" in contender and "softmax" not in contender:
            state = f"{contender} keeps 16 by 16 numbers, and its loss"
            verdicts.append(at_least(state, loss, 0.3))
        elif reaches(contender):
            reach = f"{contender} reaches {WORD} back, and its accuracy"
            verdicts.append(at_least(reach, accuracy, 0.99))
        else:
            reach = f"{contender} does not reach {WORD} back, and its loss"
            verdicts.append(at_least(reach, loss, 2.29))
    return verdicts


DUPLICATION = Experiment(
    name="duplication",
    title="Duplication: a window solves what its layers together reach",
    recipe=(
        f"Texts `0 w 0 w`, w of {WORD} random symbols out of {SYMBOLS}; the second w is to be guessed, and each of its "
        f"symbols stands {WORD} positions before the guess. {LAYERS} layers, dim 64, heads of 16, learned positions; "
        f"{HOW.updates} updates of {ROWS} texts, or as many as a row says, {LONGER.updates:,} with dim 16: states "
        f"hold 256 to 272 numbers, softmax 32 a position. `pattern.reach({LAYERS})` predicts who can solve it.\n\n"
        "Source: Reformer, Kitaev et al. 2020, section 5 (the task); Transformers are RNNs, Katharopoulos et al. 2020, "
        "section 4.1 (linear attention copies)."
    ),
    contenders=tuple(CONTENDERS),
    columns={"reach": "reach of 2 layers", "loss": "loss, nats", "accuracy": "accuracy"},
    run=run,
    judge=judge,
)
