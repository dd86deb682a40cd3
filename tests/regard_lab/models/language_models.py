"""Small language models of every kind, and the caches that continue each of them without loss."""

from functools import cache
from typing import Any

import torch

from regard_lab.models import LanguageConfig, LanguageModel

SIZES: dict[str, Any] = {"vocab_size": 23, "dim": 20, "heads": 2, "layers": 2, "hidden_dim": 13}
GPT2 = {"norm": "layer", "positions": "learned", "activation": "gelu-tanh", "biases": True}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 1, "tied": False},
    "gpt2": GPT2,
    "moba": {"chooser": "moba", "chosen": 2, "chosen_block": 2, "kv_heads": 1},
    "nsa": {"chooser": "nsa", "chosen": 3, "chosen_block": 2},
    "indexer": {"chooser": "indexer", "chosen": 2, "chosen_block": 1},
    "norms and gates": {
        "kv_heads": 1,
        "qk_norm": True,
        "output_gate": True,
        "rotary_scaling": "yarn(4, trained=6)",
    },
    "values of the first layer, differences": {
        "value_residual": True,
        "differential": True,
        "layers": 3,
    },
    "forget gates": {"forgetting": True, "kv_heads": 1},
    "alibi": {"positions": "alibi"},
    "sinusoidal": {"positions": "sinusoidal"},
    "no positions": {"positions": "none", "head_dim": 7},
    "window": {"pattern": "causal_window(3)", "positions": "learned"},
    "windows alternating with full": {"pattern": ["causal_window(3)", "full"], "layers": 3},
    "strided": {"pattern": "strided(3, local=false)", "positions": "alibi"},
    "dilated": {"pattern": "dilated_window(3, 2)"},
    "linear": {"mechanism": "linear", "positions": "none", "kv_heads": 1},
    "performer": {"mechanism": "performer(features=7)", "positions": "learned"},
    "random feature": {"mechanism": "random-feature(features=5)", "positions": "sinusoidal"},
    "gated": {
        "positions": "learned",
        "mechanism": "random-feature(features=5, gated=true)",
        "kv_heads": 1,
    },
    "hashed": {"positions": "learned", "mechanism": "lsh(chunk=3, buckets=4, rounds=2)"},
    "linear beside softmax": {"mechanism": ["linear", "softmax"], "positions": "sinusoidal"},
    # Texts of unequal lengths cannot go on together here: these count from their beginning.
    "rotated features": {"mechanism": "linear"},
    "rotated hashes": {"mechanism": "lsh(chunk=2, buckets=4, rounds=1)"},
    "fixed": {"pattern": "fixed(3)"},
    "global": {"pattern": "causal_window(2) | global_tokens(1)", "positions": "learned"},
    "random": {"pattern": "random_blocks(1, block=2, seed=3, past=true)"},
    "latents": {"latent_dim": 7, "pattern": ["causal_window(3)", "full"], "layers": 3},
    "latents of GPT-2": {**GPT2, "latent_dim": 9},
    "heads apart": {"pattern": "per_head(causal_window(2), same_block(4))"},
}


@cache
def language_model(kind: str) -> LanguageModel:
    """A model in float64 whose scores are far from flat, so that a wrong path shows; shared, so not to be changed."""
    torch.manual_seed(0)
    model = LanguageModel(LanguageConfig(**{**SIZES, **KINDS[kind]})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def lossless_caches(kind: str, length: int) -> list[dict[str, Any]]:
    """What `start` may be given so that texts of `length` ids are continued exactly."""
    states = [block.attention.mechanism.declared.has_state for block in language_model(kind).blocks]
    choices: list[dict[str, Any]] = [{}]
    if kind != "gated":  # no cache of keys keeps its gates
        choices += [{"cache": "dynamic"}]
        kinds = ("static",) if "chooser" in KINDS[kind] else ("static", "ring")  # a ring drops keys
        choices += [{"cache": name, "capacity": length} for name in kinds]
    return choices + [{"cache": "state"}] * all(states)
