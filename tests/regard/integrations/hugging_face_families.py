"""Tiny random models of transformers' families, made from configs, with weights so large that attention is not flat.

The table of families in the documentation is made of the same list, by benchmarks/pretrained_families.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf
from transformers_versions import needs_t5


def without(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != name}


VOCAB = 99
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
LLAMA = {**SIZES, **IDS, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
WITHOUT_HEAD_DIM = without(LLAMA, "head_dim")
GPT = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, **IDS}
TRANSLATOR: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    **IDS,
    "eos_token_id": 2,
}
WHISPER = {
    **without(TRANSLATOR, "max_position_embeddings"),
    "num_mel_bins": 8,
    "max_source_positions": 30,
    "max_target_positions": 64,
    "begin_suppress_tokens": None,
    "suppress_tokens": None,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
IMAGE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
DEEPSEEK = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    **IDS,
}
GENERATES = "generates"
ENCODES = "encodes"
TRANSLATES = "translates"
HEARS = "hears"
SEES = "sees"
WORKS = "works"
REPLACED = "works by replacement"
REFUSED = "refused"


@dataclass(frozen=True)
class Family:
    """A family of models: what kind of model it is, what is special about its attention, and how to make a tiny one."""

    name: str
    kind: str
    attention: str
    make: Callable[[], Any]
    status: str = WORKS
    # Skips a test with a version of transformers that is too old.
    needs: Callable[[], None] | None = None

    def model(self) -> Any:
        """A model with weights drawn at standard deviation 0.1, in eval mode."""
        if self.needs is not None:
            self.needs()
        torch.manual_seed(0)
        model = self.make()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() >= 2:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
                elif "sinks" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator))
        return model.eval()

    def shallow(self, count: int = 2) -> Any:
        """The same with fewer layers, which take less to compile; two are enough for two of a kind or one of each."""
        model = self.model()
        if model.config.num_hidden_layers != 3:
            return model
        model.config.num_hidden_layers = count
        if getattr(model.config, "layer_types", None) is not None:
            model.config.layer_types = model.config.layer_types[:count]
        for part in list(model.modules()):
            for name, layers in part.named_children():
                if isinstance(layers, torch.nn.ModuleList) and len(layers) == 3:
                    setattr(part, name, layers[:count])
        return model


def _encoder(kind: str, **settings: Any) -> Callable[[], Any]:
    config = getattr(tf, f"{kind}Config")
    model = getattr(tf, f"{kind}Model")
    sizes = {**SIZES, "max_position_embeddings": 128, **settings}
    options = {}
    if kind in ("Bert", "Roberta", "Longformer", "BigBird"):
        options["add_pooling_layer"] = False
    return lambda: model(config(**sizes), **options)


def _decoder(kind: str, **settings: Any) -> Callable[[], Any]:
    config = getattr(tf, f"{kind}Config")
    model = getattr(tf, f"{kind}ForCausalLM")
    return lambda: model(config(**settings))


FAMILIES = [
    Family("Llama", GENERATES, "grouped heads", _decoder("Llama", **LLAMA)),
    Family("Mistral", GENERATES, "window", _decoder("Mistral", **LLAMA, sliding_window=5)),
    Family(
        "Mixtral",
        GENERATES,
        "window, experts",
        _decoder("Mixtral", **LLAMA, sliding_window=5, num_local_experts=2),
    ),
    Family(
        "Gemma 2",
        GENERATES,
        "softcap; windows and full layers",
        _decoder(
            "Gemma2",
            **LLAMA,
            sliding_window=5,
            attn_logit_softcapping=2.0,
            query_pre_attn_scalar=8,
            attn_implementation="eager",  # transformers 5.17 chooses sdpa, which leaves the softcap out
        ),
    ),
    Family(
        "Gemma 3",
        GENERATES,
        "windows and full layers",
        lambda: tf.Gemma3ForCausalLM(
            tf.Gemma3TextConfig(
                **LLAMA, sliding_window=5, layer_types=MIXED, query_pre_attn_scalar=8
            )
        ),
    ),
    Family("Qwen 2", GENERATES, "grouped heads", _decoder("Qwen2", **WITHOUT_HEAD_DIM)),
    Family("Qwen 3", GENERATES, "norms of queries and keys", _decoder("Qwen3", **LLAMA)),
    Family(
        "Llama 4",
        GENERATES,
        "chunks and full layers",
        lambda: tf.Llama4ForCausalLM(
            tf.Llama4TextConfig(
                **LLAMA,
                intermediate_size_mlp=64,
                attention_chunk_size=5,
                num_local_experts=2,
                layer_types=["chunked_attention", "full_attention", "chunked_attention"],
            )
        ),
    ),
    Family(
        "gpt-oss",
        GENERATES,
        "sinks; windows and full layers",
        _decoder(
            "GptOss",
            **LLAMA,
            sliding_window=5,
            num_local_experts=2,
            num_experts_per_tok=1,
            layer_types=MIXED,
            rope_scaling=None,
        ),
    ),
    Family(
        "Phi 3", GENERATES, "one projection for q, k and v", _decoder("Phi3", **WITHOUT_HEAD_DIM)
    ),
    Family(
        "StableLM",
        GENERATES,
        "rotary on a part of the head",
        _decoder("StableLm", **WITHOUT_HEAD_DIM),
    ),
    Family(
        "DeepSeek-V3",
        GENERATES,
        "latent keys; v_dim differs from head_dim",
        _decoder("DeepseekV3", **DEEPSEEK),
    ),
    Family(
        "GPT-2", GENERATES, "learned positions", lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT))
    ),
    Family(
        "GPT-NeoX",
        GENERATES,
        "rotary on a part of the head",
        _decoder("GPTNeoX", **SIZES, **IDS, max_position_embeddings=128),
    ),
    Family("GPTBigCode", GENERATES, "one key/value head", _decoder("GPTBigCode", **GPT)),
    Family(
        "OPT",
        GENERATES,
        "learned positions",
        _decoder(
            "OPT",
            vocab_size=VOCAB,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
            word_embed_proj_dim=32,
            **IDS,
        ),
    ),
    Family("BERT", ENCODES, "full", _encoder("Bert")),
    Family("RoBERTa", ENCODES, "full", _encoder("Roberta", pad_token_id=0)),
    Family(
        "ALBERT",
        ENCODES,
        "full, shared layers",
        lambda: tf.AlbertModel(
            tf.AlbertConfig(**SIZES, embedding_size=16, max_position_embeddings=128),
            add_pooling_layer=False,
        ),
    ),
    Family(
        "DistilBERT",
        ENCODES,
        "full",
        lambda: tf.DistilBertModel(
            tf.DistilBertConfig(vocab_size=VOCAB, dim=32, hidden_dim=64, n_layers=2, n_heads=4)
        ),
    ),
    Family(
        "ModernBERT",
        ENCODES,
        "windows on both sides and full layers",
        _encoder(
            "ModernBert",
            local_attention=6,
            global_attn_every_n_layers=2,
            pad_token_id=0,
            reference_compile=False,
        ),
    ),
    Family(
        "SigLIP text",
        ENCODES,
        "full",
        lambda: tf.SiglipTextModel(
            tf.SiglipTextConfig(**SIZES, max_position_embeddings=64, pad_token_id=0)
        ),
    ),
    Family(
        "CLIP text",
        ENCODES,
        "causal",
        lambda: tf.CLIPTextModel(
            tf.CLIPTextConfig(**SIZES, max_position_embeddings=64, **IDS | {"eos_token_id": 2})
        ),
    ),
    Family(
        "ViT", SEES, "full", lambda: tf.ViTModel(tf.ViTConfig(**IMAGE), add_pooling_layer=False)
    ),
    Family(
        "T5",
        TRANSLATES,
        "bias by distance",
        lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(
                vocab_size=VOCAB,
                d_model=32,
                d_kv=8,
                d_ff=64,
                num_layers=2,
                num_heads=4,
                relative_attention_num_buckets=8,
                relative_attention_max_distance=20,
                decoder_start_token_id=0,
                eos_token_id=None,
            )
        ),
        needs=needs_t5,
    ),
    Family(
        "BART",
        TRANSLATES,
        "cross-attention",
        lambda: tf.BartForConditionalGeneration(tf.BartConfig(**TRANSLATOR)),
    ),
    Family(
        "Marian",
        TRANSLATES,
        "cross-attention",
        lambda: tf.MarianMTModel(tf.MarianConfig(**TRANSLATOR)),
    ),
    Family(
        "Whisper",
        HEARS,
        "cross-attention",
        lambda: tf.WhisperForConditionalGeneration(tf.WhisperConfig(**WHISPER)),
    ),
    Family(
        "Longformer",
        ENCODES,
        "windows and global tokens",
        _encoder("Longformer", attention_window=4, pad_token_id=0),
        REPLACED,
    ),
    Family(
        "BigBird",
        ENCODES,
        "windows, global and random blocks",
        _encoder("BigBird", block_size=1, num_random_blocks=2),
        REPLACED,
    ),
    Family(
        "Falcon",
        GENERATES,
        "ALiBi in its own code",
        _decoder(
            "Falcon",
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            alibi=True,
        ),
        REFUSED,
    ),
    Family(
        "Bloom",
        GENERATES,
        "ALiBi",
        _decoder("Bloom", vocab_size=VOCAB, hidden_size=32, n_layer=3, n_head=4),
    ),
    Family("MPNet", ENCODES, "bias by distance", _encoder("MPNet")),
    Family(
        "LED",
        TRANSLATES,
        "windows and global tokens",
        lambda: tf.LEDForConditionalGeneration(
            tf.LEDConfig(
                **without(TRANSLATOR, "max_position_embeddings"),
                attention_window=[4, 4],
                max_encoder_position_embeddings=128,
                max_decoder_position_embeddings=128,
            )
        ),
        REPLACED,
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}
# One for each way in which regard computes a family: those of the fast suite.
QUICK = (
    "Mistral",
    "Gemma 2",
    "gpt-oss",
    "Llama 4",
    "BERT",
    "ModernBERT",
    "Longformer",
    "LED",
    "BigBird",
    "Bloom",
    "MPNet",
    "T5",
    "Falcon",
)
