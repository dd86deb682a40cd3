"""Tiny random models of Hugging Face and ours with the same weights, where the architectures coincide.

Llama and GPT-2 are LanguageModels. Marian is a TranslationTransformer with norms after each part, whose learned
positions hold Marian's table of sines (its order of waves is another). BART is not: it has a norm between embeddings
and first layer that ours has not; its decoding is Marian's. Their ids 0 to 3 are ours: PAD, UNKNOWN, BEGIN, END.
"""

from typing import Any

import torch

from regard_lab.models import LanguageConfig, LanguageModel, TranslationTransformer
from regard_lab.text import BEGIN, END, PAD

VOCAB = 61
DIM = 24
HEADS = 4
LAYERS = 2
HIDDEN = 40
PLACES = 64
IDS: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "dim": DIM,
    "heads": HEADS,
    "layers": LAYERS,
    "hidden_dim": HIDDEN,
}
PARTS = ("to_q", "to_k", "to_v", "to_output")


def llama(transformers: Any, deviation: float = 0.1) -> tuple[Any, LanguageModel]:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        rms_norm_eps=1e-5,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        max_position_embeddings=PLACES,
        **IDS,
    )
    theirs = drawn(transformers.LlamaForCausalLM(config), deviation)
    ours = LanguageModel(LanguageConfig(**SIZES, kv_heads=2, tied=False))
    names = {"embedding": "model.embed_tokens", "norm": "model.norm", "to_vocabulary": "lm_head"}
    names |= in_each_layer(
        "blocks",
        "model.layers",
        {
            **attention("attention", "self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
            "feed_forward.gate": "mlp.gate_proj",
            "feed_forward.widen": "mlp.up_proj",
            "feed_forward.narrow": "mlp.down_proj",
            "attention_norm": "input_layernorm",
            "feed_forward_norm": "post_attention_layernorm",
        },
    )
    return theirs, filled(ours, theirs.state_dict(), names)


def gpt2(transformers: Any, deviation: float = 0.1) -> tuple[Any, LanguageModel]:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=DIM,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=HIDDEN,
        n_positions=PLACES,
        **IDS,
    )
    theirs = drawn(transformers.GPT2LMHeadModel(config), deviation)
    choices = {"norm": "layer", "positions": "learned", "activation": "gelu-tanh", "biases": True}
    ours = LanguageModel(LanguageConfig(**SIZES, max_length=PLACES, **choices))
    state = {}
    for (
        name,
        tensor,
    ) in theirs.state_dict().items():  # its matrices stand the other way; one makes q, k and v
        turned = (
            tensor.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else tensor
        )
        if "c_attn" in name:
            state |= {
                name.replace("c_attn", letter): part
                for letter, part in zip("qkv", turned.chunk(3), strict=True)
            }
        else:
            state[name] = turned
    names = {
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "norm": "transformer.ln_f",
    }
    names |= in_each_layer(
        "blocks",
        "transformer.h",
        {
            **attention("attention", "attn", ("q", "k", "v", "c_proj")),
            "feed_forward.widen": "mlp.c_fc",
            "feed_forward.narrow": "mlp.c_proj",
            "attention_norm": "ln_1",
            "feed_forward_norm": "ln_2",
        },
    )
    return theirs, filled(ours, state, names)


def marian(transformers: Any, deviation: float = 0.3) -> tuple[Any, TranslationTransformer]:
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        decoder_vocab_size=VOCAB,
        d_model=DIM,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        max_position_embeddings=PLACES,
        activation_function="swish",
        scale_embedding=True,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
        **IDS,
    )
    theirs = drawn(transformers.MarianMTModel(config), deviation)
    ours = TranslationTransformer(
        TranslationTransformer.Config(
            vocab_size=VOCAB,
            dim=DIM,
            heads=HEADS,
            hidden_dim=HIDDEN,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            positions="learned",
            max_length=PLACES,
            norm="post",
            activation="silu",
        )
    )
    names = {"embedding": "model.shared", "positions": "model.encoder.embed_positions"}
    letters = ("q_proj", "k_proj", "v_proj", "out_proj")
    fed = {
        "feed_forward.widen": "fc1",
        "feed_forward.narrow": "fc2",
        "around_feed_forward.norm": "final_layer_norm",
    }
    of_decoder = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
    for side, attentions in (("encoder", {"attention": "self_attn"}), ("decoder", of_decoder)):
        parts = dict(fed)
        for name, there in attentions.items():
            parts |= attention(name, there, letters) | {
                f"around_{name}.norm": f"{there}_layer_norm"
            }
        names |= in_each_layer(side, f"model.{side}.layers", parts)
    return theirs, filled(ours, theirs.state_dict(), names)


def attention(ours: str, there: str, letters: tuple[str, ...]) -> dict[str, str]:
    """The names of our projections, and of theirs."""
    return {
        f"{ours}.{part}": f"{there}.{letter}" for part, letter in zip(PARTS, letters, strict=True)
    }


def in_each_layer(ours: str, there: str, names: dict[str, str]) -> dict[str, str]:
    result = {}
    for layer in range(LAYERS):
        for name, theirs in names.items():
            result[f"{ours}.{layer}.{name}"] = f"{there}.{layer}.{theirs}"
    return result


def drawn(model: Any, deviation: float) -> Any:
    """Weights far enough apart that the scores are not flat, so that wrong ones show; vectors less far, for they are
    added to every id's alike."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                spread = deviation if parameter.dim() > 1 else deviation / 10
                parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def filled(ours: Any, state: dict[str, torch.Tensor], names: dict[str, str]) -> Any:
    """Our model with their weights: every one of ours must have a place there."""
    weights = {}
    for name, tensor in ours.state_dict().items():
        module, _, kind = name.rpartition(".")
        weights[name] = state[f"{names[module]}.{kind}"].reshape(tensor.shape)
    ours.load_state_dict(weights)
    return ours.eval()
