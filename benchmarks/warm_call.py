"""What a warm call of registered attention costs inside a model, beside sdpa's: CPU time of one thread, interleaved.

    python benchmarks/warm_call.py [--rounds 300]

Of a tiny Llama-shaped model, where arithmetic takes no time, each call of the attention function is timed by itself:
a step with a dynamic cache, a prompt without gradients, a prompt with gradients. It prints medians and quartiles of the
microseconds of the third layer's call, which finds what the first two have looked up.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from regard.integrations.transformers.attending import regard_attention

SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
FUNCTIONS = {"sdpa": sdpa_attention_forward, "regard": regard_attention}
TARGET = 30.0  # microseconds that a call of regard may add


def model_of(name: str, took: list[float]) -> Any:
    """A model whose attention notes the time of each call."""
    function: Callable[..., Any] = FUNCTIONS[name]

    def timed(*args: Any, **options: Any) -> Any:
        begin = time.thread_time_ns()
        found = function(*args, **options)
        took.append((time.thread_time_ns() - begin) / 1000)
        return found

    masks = tf.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    tf.AttentionInterface.register(f"timed_{name}", timed)
    tf.AttentionMaskInterface.register(f"timed_{name}", masks[name])
    torch.manual_seed(0)
    model = tf.LlamaModel(tf.LlamaConfig(**SIZES)).eval()
    model.set_attn_implementation(f"timed_{name}")
    return model


def measured(way: str, rounds: int) -> dict[str, list[float]]:
    """Microseconds of the third layer's call in each round, by function."""
    took: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    models = {name: model_of(name, took[name]) for name in FUNCTIONS}
    caches = {name: tf.DynamicCache() for name in FUNCTIONS}
    found: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    with torch.set_grad_enabled(way == "gradients"):
        if way == "step":
            for name, model in models.items():
                model(torch.ones(1, 40, dtype=torch.long), None, None, caches[name])
        for at in range(rounds + 20):
            for name, model in models.items():
                took[name].clear()
                if way == "step":
                    model(torch.ones(1, 1, dtype=torch.long), None, None, caches[name])
                else:
                    model(torch.ones(1, 16, dtype=torch.long), use_cache=False)
                if at >= 20:  # the first rounds plan
                    found[name].append(took[name][2])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"transformers {tf.__version__}, torch {torch.__version__}, {rounds} rounds; microseconds of a call")
    for way in ("step", "prompt", "gradients"):
        found = measured(way, rounds)
        middle = {name: statistics.quantiles(times, n=4) for name, times in found.items()}
        said = ", ".join(f"{name} {low:.1f} {half:.1f} {high:.1f}" for name, (low, half, high) in middle.items())
        added = middle["regard"][1] - middle["sdpa"][1]
        print(f"{way}: quartiles {said}; regard adds {added:.1f} (target: at most {TARGET:.0f})")


if __name__ == "__main__":
    main()
