"""What a model loses when a quarter of its cache stays, by policy, and ids for each call with proposals.

    python benchmarks/evicting.py [--run RUN --draft RUN --text FILE]

The model is the decoder of the study of far keys (benchmarks/behaviour/recall.py, "all keys"), trained here for each
seed on texts that begin with pairs of a key and its value, and ask for values again and again. Of READ ids a quarter of
the entries stay in each cache; then the other ids follow. The second table needs two language models of one
vocabulary: prompts of the text are continued with one proposed continuation and with three, as a tree.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.behaviour.learning import SequenceBatch, SmallDecoder, UpdatePlan, train
from benchmarks.behaviour.recall import (
    FAR,
    FAR_DRAWS,
    FAR_PLAN,
    FAR_ROWS,
    FEW,
    HEADS,
    NARROW,
    PAIRS,
)
from benchmarks.report import RESULTS, heading, options, write
from regard.layers import MultiHeadAttention, record_attention
from regard.layers.caches import first_and_last, heavy_hitters, observed_keys
from regard_lab.decoding import Generator, Sampling
from regard_lab.text.writing import markdown_table

READ = 384  # ids, after which entries leave the cache
KEPT = 96  # entries that stay
WINDOW = 16  # last queries of SnapKV
ASKED = 0.15  # share of the later ids that are keys
PROMPT = 300  # characters
APART = 2000  # characters from the beginning of a prompt to that of the next
# What to keep, by the weights that entries receive from all queries and from the last ones.
Policy = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
POLICIES: dict[str, Policy] = {
    "all entries": lambda total, last: torch.arange(READ),
    "the last entries": lambda total, last: first_and_last(READ, KEPT, first=0),
    "the first 4 and the last": lambda total, last: first_and_last(READ, KEPT),
    "H2O": lambda total, last: heavy_hitters(total, KEPT, kv_heads=HEADS),
    "SnapKV": lambda total, last: observed_keys(last, KEPT, kv_heads=HEADS, window=WINDOW),
}


def asked_often(generator: torch.Generator) -> SequenceBatch:
    """The pairs of `recall`, then a key at every seventh place or so, where its value is scored."""
    tokens, _ = FAR_DRAWS[PAIRS[-1]](generator)
    begin = 2 * PAIRS[-1]
    keys = tokens[:, :begin:2]
    values = tokens[:, 1:begin:2]
    pair_of_place = torch.randint(PAIRS[-1], (FAR_ROWS, FAR - begin), generator=generator)
    asked = torch.rand(pair_of_place.shape, generator=generator) < ASKED
    later = torch.where(asked, keys.gather(1, pair_of_place), 0)
    targets = torch.where(asked, values.gather(1, pair_of_place), -1)
    return torch.cat([tokens[:, :begin], later], 1), F.pad(targets, (begin, 0), value=-1)


def evicted(layer: MultiHeadAttention, x: torch.Tensor, policy: Policy) -> torch.Tensor:
    """A layer's outputs, where a policy chooses what stays in its cache after READ positions."""
    cache = layer.new_cache(len(x))
    with record_attention(layer, "received") as recording:
        outputs = [
            layer(x[:, : READ - WINDOW], cache=cache),
            layer(x[:, READ - WINDOW : READ], cache=cache),
        ]
    before, last = (detail.received for detail in recording[""])
    cache.keep(policy(F.pad(before, (0, WINDOW)) + last, last))
    outputs.append(layer(x[:, READ:], cache=cache))
    return torch.cat(outputs, 1)


@torch.no_grad()
def losses(model: SmallDecoder, policy: Policy, batches: int) -> tuple[float, float]:
    """Nats and accuracy of the values that are asked for after READ positions."""
    generator = torch.Generator().manual_seed(1_000_003)
    nats = []
    right = []
    for _ in range(batches):
        tokens, targets = asked_often(generator)
        x = model.tokens(tokens)
        for layer in model.layers:
            for norm, part in zip(layer.norms, layer.parts, strict=True):
                if isinstance(part, MultiHeadAttention):
                    x = x + evicted(part, norm(x), policy)
                else:
                    x = x + part(norm(x))
        scored = (targets >= 0) & (torch.arange(FAR) >= READ)
        logits = model.guess(model.norm(x))[scored]
        expected = targets[scored]
        nats.append(F.cross_entropy(logits, expected, reduction="none"))
        right.append(logits.argmax(-1) == expected)
    return float(torch.cat(nats).mean()), float(torch.cat(right).float().mean())


def of_seed(seed: int, plan: UpdatePlan, batches: int) -> dict[str, tuple[float, float]]:
    """The losses by policy of the model that one seed trains."""
    torch.manual_seed(seed)
    model = SmallDecoder(
        vocabulary=FEW, length=None, dim=NARROW, heads=HEADS, convolution=3, pattern="causal"
    )
    train(model, asked_often, plan, seed, f"far keys, seed {seed}")
    return {name: losses(model.eval(), policy, batches) for name, policy in POLICIES.items()}


def speculated(generator: Generator, draft: Generator, text: str, count: int) -> list[list[str]]:
    """Rows of ids for each call of the model, by what proposes, with one branch and with three."""
    rows = []
    prompts = [text[start : start + PROMPT] for start in range(0, count * APART, APART)]
    samplings = {"greedy": None, "temperature 0.8": Sampling(temperature=0.8)}
    proposers = {"lookup": "lookup", "a smaller model": draft}
    for label, sampling in samplings.items():
        options: dict[str, Any] = {"max_tokens": 64, "sampling": sampling}
        without_proposals = generator.generate(prompts, **options)
        for name, proposer in proposers.items():
            row = [f"{name}, {label}"]
            for branches in (1, 3):
                texts = generator.generate(
                    prompts, speculate=proposer, branches=branches, **options
                )
                ids_per_call = 0.0
                same = 0
                for (written,), (plain,) in zip(texts, without_proposals, strict=True):
                    ids_per_call += written.tokens_per_step or 0
                    same += written.ids == plain.ids
                row += [f"{ids_per_call / count:.2f}", f"{same} of {count}"]
            rows.append(row)
    return rows


def main() -> None:
    parser = options(__doc__, out=RESULTS / "evicting_cpu", seeds=(0, 1, 2))
    parser.add_argument("--run", type=Path, help="a language model, for the second table")
    parser.add_argument("--draft", type=Path, help="a smaller one with the same vocabulary")
    parser.add_argument("--text", type=Path, help="text that neither was trained on")
    asked = parser.parse_args()
    for_second_table = [asked.run, asked.draft, asked.text]
    if any(for_second_table) and not all(for_second_table):
        parser.error(
            "--run, --draft and --text belong together: give all three for the second table, or none of them"
        )
    # A run that cannot be loaded is refused before the trainings.
    models = [Generator.load(run) for run in (asked.run, asked.draft) if run is not None]
    torch.set_num_threads(1)
    plan = FAR_PLAN.shortened(asked.quick)
    by_seed = {seed: of_seed(seed, plan, 2 if asked.quick else 8) for seed in asked.seeds}
    rows = []
    for name in POLICIES:
        row = [name]
        for by_policy in by_seed.values():
            nats, right = by_policy[name]
            row.append(f"{nats:.3f}, {right:.3f}")
        rows.append(row)
    page = [
        *heading("A quarter of a cache, by policy", ", one thread"),
        f"{FAR} ids with {PAIRS[-1]} pairs, which are asked for again and again; {KEPT} of {READ} entries stay. Nats "
        f"for each value that is asked for after them, and the share of right ones.",
        "",
        *markdown_table(("entries kept", *(f"seed {seed}" for seed in by_seed)), rows),
    ]
    content: dict[str, Any] = {"losses": by_seed}
    if models:
        text = asked.text.read_text("utf-8")
        content["speculated"] = speculated(*models, text, 4 if asked.quick else 12)
        page += [
            "",
            "Ids for each call of the model, and how many texts are the same as without proposals.",
            "",
            *markdown_table(
                ("proposed by", "1 branch", "same", "3 branches", "same"), content["speculated"]
            ),
        ]
    print(write(asked.out, "evicting", content, page).read_text("utf-8"))


if __name__ == "__main__":
    main()
