"""Tiny random models of regard and of each family in transformers, and views of their heads in the same memory."""

from typing import Any, NamedTuple

import torch

from regard_lab.models import TranslationTransformer

OWN = {"vocab_size": 23, "dim": 24, "heads": 4}


def shaken(model: Any) -> Any:
    """The model in float64 with outputs that are far from flat, so that wrong heads show."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def own_model(made: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    return shaken(made(made.Config(**{**OWN, **settings})))


@torch.no_grad()
def outputs(model: Any) -> torch.Tensor:
    """The outputs of a model of regard for random ids."""
    ids = torch.randint(4, 23, (2, 2, 11), generator=torch.Generator().manual_seed(3))
    return model(*ids) if isinstance(model, TranslationTransformer) else model(ids[0])


HEADS = 8
HEAD_DIM = 6
DIM = 24
VOCAB = 61
LAYERS = 2
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": 20,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WIDE = {"head_dim": HEAD_DIM}
SQUARE = {"hidden_size": HEADS * HEAD_DIM}  # families whose heads have dim / heads numbers


def partly(share: float) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "rope_theta": 100.0,
            "rope_type": "default",
            "partial_rotary_factor": share,
        }
    }


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**WIDE, "attention_bias": True}),
    "mistral": ("Mistral", {**WIDE, "sliding_window": 5}),
    "qwen2": ("Qwen2", WIDE),
    "qwen3": ("Qwen3", WIDE),
    "gemma": ("Gemma", WIDE),
    "gemma2": ("Gemma2", {**WIDE, "query_pre_attn_scalar": 6}),
    "gemma3_text": ("Gemma3", {**WIDE, "query_pre_attn_scalar": 6}),
    "phi3": ("Phi3", {**SQUARE, **partly(0.67)}),
    "phi": ("Phi", {**SQUARE, **partly(0.67)}),
    "stablelm": ("StableLm", {**SQUARE, **partly(0.67), "use_qkv_bias": True}),
    "stablelm parallel": ("StableLm", {**SQUARE, **partly(0.67), "use_parallel_residual": True}),
}
# transformers computes their norms in float32, whatever the weights are
LOOSE = (
    "gemma",
    "gemma2",
    "gemma3_text",
)
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def drawn(transformers: Any, family: str, **settings: Any) -> Any:
    kind, sizes_of_family = FAMILIES[family]
    sizes = {**SIZES, "num_key_value_heads": HEADS, **sizes_of_family, **settings}
    config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(**sizes)
    torch.manual_seed(0)
    return shaken(getattr(transformers, f"{kind}ForCausalLM")(config))


class Heads(NamedTuple):
    """Views of one layer: q, k, v as lists of (heads, head_dim, ...), weight and bias; o (heads, head_dim, dim)."""

    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    o: torch.Tensor


def heads_of(model: Any, family: str) -> list[Heads]:
    of_layer = _of_phi3 if family == "phi3" else _of_llama
    return [of_layer(layer.self_attn) for layer in model.model.layers]


def _by_heads(projection: Any) -> list[torch.Tensor]:
    """The weight and the bias of a projection, with an axis of heads first."""
    return [part.data.unflatten(0, (-1, HEAD_DIM)) for part in projection.parameters()]


def _output(weight: torch.Tensor) -> torch.Tensor:
    return weight.data.T.unflatten(0, (HEADS, HEAD_DIM))


def _of_llama(attention: Any) -> Heads:
    q, k, v = (_by_heads(getattr(attention, f"{letter}_proj")) for letter in "qkv")
    output = next(
        getattr(attention, name) for name in ("o_proj", "dense") if hasattr(attention, name)
    )
    return Heads(q, k, v, _output(output.weight))


def _of_phi3(attention: Any) -> Heads:
    weight = attention.qkv_proj.weight.data.unflatten(0, (-1, HEAD_DIM))
    kv_heads = (len(weight) - HEADS) // 2
    q, k, v = weight.split([HEADS, kv_heads, kv_heads])
    return Heads([q], [k], [v], _output(attention.o_proj.weight))
