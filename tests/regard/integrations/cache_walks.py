"""Random changes of the caches of an attached model, beside those of the same model that is not attached.

    python -m tests.regard.integrations.cache_walks --walks 2000 --from 0

A walk holds several caches that come from one another, and changes one of them at a time. What the model computes with
it is compared, and so are tensors that were taken from a cache before.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import math
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from regard.integrations.transformers import attach, keep_entries

# The keyword of a model for a cache. `transformers_versions` has it for tests; this file also runs as a program.
_KEYWORDS = inspect.signature(transformers.LlamaForCausalLM.forward).parameters
CACHE = "cache" if "cache" in _KEYWORDS else "past_key_values"

VOCAB = 41
WINDOW = 7
LONGEST = 40
MOST_ROWS = 4
MOST_CACHES = 4
STEPS = 14
BOUND = 1e-10  # of float64 logits
WIDER = {"qwen3_next": 1e-6}  # transformers computes its states in float32

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "first_k_dense_replace": 2,  # of 2 layers: experts are not computed in float64
}
MIXED: dict[str, Any] = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_only_layers": [0, 1],
}
GPT2 = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}

MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "deepseek_v3": lambda: transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(**SIZES | LATENT)
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, sliding_window=WINDOW)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
    "qwen3_next": lambda: transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(**SIZES | MIXED)
    ),
}
DROPPING = ("llama", "gpt2")  # models whose caches `keep_entries` takes
PLAIN = ("llama", "gpt2", "deepseek_v3")  # whose layers grow, and are made again from their tensors


@cache
def models(name: str) -> tuple[Any, Any]:
    """An attached model, and the same one that is not attached, in float64."""
    torch.manual_seed(7)
    plain = MODELS[name]().double().eval()
    return attach(copy.deepcopy(plain)), plain


@dataclass
class CachePair:
    """A cache of the attached model, and one of the other, which hides by a mask what the first one dropped."""

    ours: DynamicCache
    theirs: DynamicCache
    visible: torch.Tensor  # (rows, length)

    @property
    def rows(self) -> int:
        return self.visible.shape[0]

    @property
    def length(self) -> int:
        return self.visible.shape[1]

    @property
    def dropped(self) -> bool:
        return not bool(self.visible.all())

    def both(self, change: Callable[[DynamicCache], Any]) -> list[Any]:
        return [change(self.ours), change(self.theirs)]


def copied(held: DynamicCache) -> DynamicCache:
    """A copy as one makes it by hand: of the cache, and of each layer."""
    result = copy.copy(held)
    result.layers = [copy.copy(layer) for layer in held.layers]
    return result


def tensors_of(held: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(layer.keys, layer.values) for layer in held.layers]  # ty: ignore[unresolved-attribute]


@dataclass
class CacheWalk:
    """One walk; `log` says what was done."""

    name: str
    seed: int
    pairs: list[CachePair] = field(default_factory=list)
    taken: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    worst: float = 0.0

    def run(self) -> float:
        """The largest difference of all logits and taken tensors."""
        self.draw = random.Random(self.seed)
        with torch.no_grad():
            self.begin()
            for _ in range(STEPS):
                pair = self.draw.choice(self.pairs)
                self.draw.choice(self.changes(pair))(pair)
            for pair in self.pairs:
                self.go_on(pair)
                self.go_on(pair)
        for taken, copied_then in self.taken:
            self.note(taken, copied_then)
        return self.worst

    def changes(self, pair: CachePair) -> list[Callable[[CachePair], None]]:
        """What may be done with a pair; going on is drawn most often."""
        changes = [self.go_on, self.go_on, self.go_on, self.reorder, self.select]
        if len(self.pairs) < MOST_CACHES:
            changes += [self.copy_deeply, self.pickle]
            # whose states transformers itself shares in a shallow copy
            if self.name != "qwen3_next":
                changes += [self.copy, self.copy]
        if pair.rows * 2 <= MOST_ROWS:
            changes.append(self.repeat)
        if self.name in PLAIN:
            changes += [self.crop, self.crop]
            if pair.length and not pair.dropped:
                changes += [self.begin_from_its_tensors, self.take, self.take]
        if self.name == "mistral" and 1 < pair.length < WINDOW:
            changes.append(self.crop)
        if self.name in DROPPING and pair.length > 3:
            changes += [self.keep, self.keep]
        return changes

    def note(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        off = float((ours - theirs).abs().max()) if ours.numel() else 0.0
        self.worst = max(self.worst, float("inf") if math.isnan(off) else off)

    def begin(self) -> None:
        ours, theirs = (DynamicCache(config=model.config) for model in models(self.name))
        pair = CachePair(ours, theirs, torch.ones(self.draw.randint(1, 2), 0, dtype=torch.int64))
        self.pairs.append(pair)
        self.go_on(pair, self.draw.randint(3, 9))

    def go_on(self, pair: CachePair, count: int = 0) -> None:
        count = count or self.draw.choice([1, 1, 1, 2, 5])
        if pair.length + count > LONGEST:
            return
        ids = torch.zeros(pair.rows, count, dtype=torch.int64)
        for row in ids:
            row.copy_(torch.tensor([self.draw.randrange(1, VOCAB) for _ in range(count)]))
        attached, plain = models(self.name)
        visible = torch.cat([pair.visible, torch.ones(pair.rows, count, dtype=torch.int64)], 1)
        options: dict[str, Any] = {}
        if pair.dropped:
            options["attention_mask"] = visible
            options["position_ids"] = torch.arange(pair.length, visible.shape[1])[None]
        ours = attached(ids, **{CACHE: pair.ours}).logits
        theirs = plain(ids, **{CACHE: pair.theirs}, **options).logits
        pair.visible = visible
        self.log.append(f"go on by {count}")
        self.note(ours, theirs)

    def copy(self, pair: CachePair) -> None:
        self.pairs.append(CachePair(*pair.both(copied), pair.visible))
        self.log.append("copy")

    def copy_deeply(self, pair: CachePair) -> None:
        self.pairs.append(CachePair(*pair.both(copy.deepcopy), pair.visible))
        self.log.append("deepcopy")

    def pickle(self, pair: CachePair) -> None:
        self.pairs.append(
            CachePair(*pair.both(lambda x: pickle.loads(pickle.dumps(x))), pair.visible)
        )
        self.log.append("pickle")

    def take(self, pair: CachePair) -> None:
        for keys, values in tensors_of(pair.ours):
            self.taken += [(keys, keys.clone()), (values, values.clone())]
        self.log.append("take tensors")

    def begin_from_its_tensors(self, pair: CachePair) -> None:
        if len(self.pairs) < MOST_CACHES:
            self.pairs.append(
                CachePair(*pair.both(lambda x: DynamicCache(tensors_of(x))), pair.visible)
            )
            self.log.append("begin from its tensors")

    def crop(self, pair: CachePair) -> None:
        count = self.draw.randint(0, min(4, pair.length - 1))
        entries = set(pair.visible[:, : pair.length - count].sum(1).tolist())
        if len(entries) != 1 or 0 in entries:
            return  # a cache has equally many entries of each row
        pair.both(lambda x: x.crop(-count))
        pair.visible = pair.visible[:, : pair.length - count]
        self.log.append(f"crop by {count}")

    def reorder(self, pair: CachePair) -> None:
        index = torch.tensor([self.draw.randrange(pair.rows) for _ in range(pair.rows)])
        pair.both(lambda x: x.reorder_cache(index))
        pair.visible = pair.visible[index]
        self.log.append(f"reorder {index.tolist()}")

    def select(self, pair: CachePair) -> None:
        chosen = sorted(self.draw.sample(range(pair.rows), self.draw.randint(1, pair.rows)))
        index = torch.tensor(chosen)
        pair.both(lambda x: select(x, index))
        pair.visible = pair.visible[index]
        self.log.append(f"select {chosen}")

    def repeat(self, pair: CachePair) -> None:
        pair.both(lambda x: repeat(x, 2))
        pair.visible = pair.visible.repeat_interleave(2, 0)
        self.log.append("repeat")

    def keep(self, pair: CachePair) -> None:
        """Keep some entries, the last one among them, as many of each row."""
        held = [row.nonzero()[:, 0].tolist() for row in pair.visible]
        count = self.draw.randint(1, len(held[0]))
        earlier = [sorted(self.draw.sample(row[:-1], count - 1)) for row in held]
        chosen = torch.tensor([[*kept, row[-1]] for kept, row in zip(earlier, held, strict=True)])
        keep_entries(pair.ours, chosen)
        pair.visible = torch.zeros_like(pair.visible).scatter(1, chosen, 1)
        self.log.append(f"keep {chosen.tolist()}")


def select(held: DynamicCache, index: torch.Tensor) -> None:
    """`batch_select_indices`, and a reorder for layers that transformers gives none."""
    if all(hasattr(layer, "batch_select_indices") for layer in held.layers):
        held.batch_select_indices(index)
    else:
        held.reorder_cache(index)


def repeat(held: DynamicCache, repeats: int) -> None:
    if all(hasattr(layer, "batch_repeat_interleave") for layer in held.layers):
        held.batch_repeat_interleave(repeats)
    else:
        rows = held.layers[-1].keys.shape[0]  # ty: ignore[unresolved-attribute]
        held.reorder_cache(torch.arange(rows).repeat_interleave(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=2000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    arguments = parser.parse_args()
    off = 0
    for seed in range(arguments.first, arguments.first + arguments.walks):
        walk = CacheWalk(list(MODELS)[seed % len(MODELS)], seed)
        worst = walk.run()
        if not worst < WIDER.get(walk.name, BOUND):
            off += 1
            print(f"{walk.name} seed {seed}: off by {worst:.3g} after {', '.join(walk.log)}")
        if (seed + 1) % 50 == 0:
            print(f"walks up to {seed}: {off} off", flush=True)
    print(f"{arguments.walks} walks, {off} off")


if __name__ == "__main__":
    main()
