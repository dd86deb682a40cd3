"""Builds a small random model of any architecture of transformers, from the defaults of its config.

Sizes are recognised by their names; what a name does not tell is in SPECIAL, by the type of the model.
"""

import re
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

VOCAB = 99
LARGEST = 30_000_000  # parameters of a model that is built
# The mappings from which the class of a model is taken, the first that has one.
MAPPINGS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "MODEL_FOR_CAUSAL_LM",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT",
    "MODEL_FOR_MULTIMODAL_LM",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "MODEL",
    "MODEL_FOR_MASKED_LM",
    "MODEL_FOR_CTC",
    "MODEL_FOR_PRETRAINING",
)
# By the end of a setting's name: its size. The first that fits is taken.
SIZES: tuple[tuple[str, int], ...] = (
    (r"(num|n)_(key_value|kv|query)_(heads|groups)|num_query_groups|multi_query_group_num", 2),
    (
        r"(num|n)_(attention_|attn_|self_attention_|cross_attention_)?heads?(_kv)?|n_head|.*attention_heads|num_heads",
        4,
    ),
    (r"(mamba|linear|ssm)_.*heads?", 4),
    (r"num_feat_extract_layers|.*conv.*layers", 100),
    (
        r"(num|n)_(hidden_|encoder_|decoder_)?layers?|(encoder|decoder)_layers|depth|n_layer|.*_layers",
        2,
    ),
    (r"num_(decoder|encoder)_blocks|num_blocks", 2),
    (r"(attention_)?(head_dim|head_size|kv_channels|d_kv)|.*_head_dim|.*head_size", 8),
    (r".*(lora_rank|_rank|lora_dim)", 16),
    (r"(n|num)_(routed_|local_|shared_)?experts|moe_num_experts", 4),
    (r"moe_(top)?k|top_?k|num_selected_experts|.*experts_per_tok(en)?", 2),
    (r"n_group|topk_group|num_groups|n_groups|mamba_n_groups|first_k_dense_replace|o_groups", 1),
    (
        r"sliding_window(_size)?|window_size|attention_window(_size)?|local_window_size|attention_chunk_size",
        5,
    ),
    (
        r"max_position_embeddings|n_positions|n_ctx|max_seq(uence)?_len(gth)?|max_target_positions|seq_length",
        128,
    ),
    (r"max_.*position_embeddings|model_max_length", 128),
    (r"max_source_positions", 30),
    (r"vocab_size.*|.*_vocab_size|num_tokens", VOCAB),
    (r"image_size|img_size|input_size", 32),
    (r"patch_size|.*_patch_size", 8),
    (r"num_mel_bins|n_mels|num_mels|mel_bins|input_feat_per_channel|num_channels_mel", 8),
    (
        r"(moe_|shared_expert_|ffn_)?(intermediate|inner|feedforward|ffn)_(size|dim)|d_ff|ffn_dim|dim_feedforward",
        64,
    ),
    (r"n_inner|.*ffn_dim|.*(intermediate|inner)_size.*|.*ffn_hidden_size|mlp_dim|dim_ff", 64),
    (
        r"hidden_sizes?|hidden_dim|d_model|n_embd|embed_dim|dim|embedding_size|.*_hidden_size|.*hidden_dim",
        32,
    ),
    (
        r".*embed_dim|.*_embedding_size|projection_dim|emb_dim|word_embed_proj_dim|output_dim|lru_width|.*d_model",
        32,
    ),
    (r".*proj.*_(dim|size)|text_dim|hidden_channels", 32),
    (r"(mamba_)?(d_state|state_size)|ssm_state_size", 8),
    (r"hidden_size_per_layer_input", 8),
    (r".*chunk_size", 8),
    (r"num_queries|num_latents|num_query_tokens|.*num_queries", 6),
)
NEAR = re.compile(r".*(token_id|token_ids|token_index|_id|_token|idx|token)$")
SPECIAL: dict[str, dict[str, Any]] = {
    "qwen3_next": {"linear_num_key_heads": 2},
    "zamba2": {
        "mamba_headdim": 8,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "hybrid_layer_ids": [1],
    },
    "mamba2": {"head_dim": 16},
    "bamba": {"mamba_d_head": 16, "attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "granitemoehybrid": {"mamba_d_head": 16, "layer_types": ["mamba", "attention"]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "informer": {"prediction_length": 4},
    "time_series_transformer": {"prediction_length": 4},
    "autoformer": {"prediction_length": 4},
    "longformer": {"attention_window": [4, 4]},
    "led": {"attention_window": [4, 4]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "reformer": {"is_decoder": True},
    "esm": {"vocab_size": VOCAB, "pad_token_id": 1, "mask_token_id": 2},
    "glm5_next_text": {"num_key_value_heads": 4},
    "esmc": {"num_key_value_heads": 4},
    "bridgetower_vision_model": {"hidden_size": 128},
    "clipseg": {"extract_layers": [0, 1]},
    "laguna": {"num_attention_heads_per_layer": None},
    "gemma3n_text": {"intermediate_size": 64},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "mistral4": {"head_dim": 16},
    "longcat_flash": {"qk_head_dim": 16},
    "kimi_linear": {"num_experts": 8, "num_experts_per_token": 2},
    "bailing_hybrid": {"num_expert_group": 1, "num_experts_per_token": 2},
    "gemma4_assistant": {},
    "mistral_large4_text": {"kv_source_layers": None},
    "falcon": {"alibi": False},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "bros": {"dim_bbox_projection": 8},
    "levit": {
        "image_size": 64,
        "patch_size": 16,
        "hidden_sizes": [16, 32, 48],
        "num_attention_heads": [2, 4, 6],
        "key_dim": [8, 8, 8],
        "depths": [2, 2, 2],
    },
    "grounding-dino": {"d_model": 64},
    "mm-grounding-dino": {"d_model": 64},
    "lilt": {"hidden_size": 48},
    "seggpt": {"image_size": [64, 32], "patch_size": 8, "pretrain_image_size": 32},
    "yolos": {"image_size": [32, 32]},
    "dory": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "wavtokenizer": {"codebook_dim": 32},
    "wavtokenizer_encoder": {"codebook_dim": 32, "codebook_size": 16},
    "apertus1p5": {"image_token_offset": 40, "audio_token_offset": 60},
    "apertus1p5_vision_tokenizer": {"codebook_size": 20, "base_channels": 32},
    "blip-2": {"image_token_index": 7},
    "instructblip": {"image_token_index": 7},
    "instructblipvideo": {"video_token_index": 7},
    "dia_decoder": {"cross_num_key_value_heads": 4},
    "clap_audio_model": {"spec_size": 64, "window_size": 2},
    "donut-swin": {"image_size": 64, "patch_size": 4, "window_size": 2},
    "pvt": {"num_encoder_blocks": 4},
    "swin": {"image_size": 64, "patch_size": 4, "window_size": 2},
    "mobilebert": {"intra_bottleneck_size": 32},
    "vjepa2": {"crop_size": 32, "frames_per_clip": 4},
    "xmod": {"default_language": "en_XX"},
    "blt": {"encoder_hash_byte_group_vocab": 1009},
    "blt_local_encoder": {"hidden_size_global": 32},
    "blt_local_decoder": {"hidden_size_global": 32},
}
SECTIONS = re.compile(r"qwen2.*vl|glm4v|glm46v|glm_ocr|glm_image|glmga|paddleocr")
# Settings that name the number of layers, and those that list a kind for each.
COUNTS = ("num_hidden_layers", "num_layers", "n_layer")
LISTS = (
    "layer_types",
    "layers_block_type",
    "mlp_layer_types",
    "block_types",
    "hybrid_override_pattern",
)
DROPPED = (
    "transformers_version",
    "architectures",
    "dtype",
    "_attn_implementation",
    "out_features",
    "out_indices",
    "stage_names",
    "per_layer_config",
)


def types() -> list[str]:
    """The types of models that transformers lists."""
    return sorted(CONFIG_MAPPING_NAMES)


def classes_of(kind: str) -> list[Any]:
    """The classes of a type of model, in the order in which they are tried."""
    classes = {}
    for mapping in MAPPINGS:
        names = getattr(modeling_auto, f"{mapping}_MAPPING_NAMES").get(kind)
        if names:
            name = names if isinstance(names, str) else names[0]
            classes[getattr(transformers, name, None)] = True
    classes.pop(None, None)
    return [*classes]


def small(kind: str) -> Any:
    """The shrunken config of a type of model."""
    config_class = CONFIG_MAPPING[kind]
    return config_class(**_settings(config_class(), kind) | SPECIAL.get(kind, {}))


def _settings(config: Any, kind: str) -> dict[str, Any]:
    values = config.to_dict()
    sub_configs = getattr(config, "sub_configs", None) or ()
    settings: dict[str, Any] = {}
    for name, value in values.items():
        part = getattr(config, name, None) if name in sub_configs else None
        if part is not None:
            settings[name] = _settings(part, getattr(part, "model_type", ""))
            settings[name].update(SPECIAL.get(settings[name].get("model_type", ""), {}))
        else:
            settings[name] = _smaller(name, value)
    for name in DROPPED:
        settings.pop(name, None)
    if isinstance(settings.get("kv_lora_rank"), int) and "num_attention_heads" in settings:
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(settings.get(name), dict):
            settings[name] = _with_sections(settings[name], kind)
    if settings.get("head_dim", 0) is None:
        settings["head_dim"] = 8
    if isinstance(values.get("num_heads"), list | tuple) and "embed_dim" in values:
        settings["embed_dim"] = values["embed_dim"]
    return settings | _layer_settings(settings, values)


def _layer_settings(settings: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The number of layers and their kinds, so that each kind of the defaults occurs."""
    counts = [name for name in COUNTS if isinstance(settings.get(name), int)]
    layers = settings[counts[0]] if counts else 2
    chosen: dict[str, Any] = {}
    for name in LISTS:
        value = values.get(name)
        if isinstance(value, list) and value:
            kinds = list(dict.fromkeys(value))
            chosen[name] = (kinds * layers)[: max(layers, len(kinds))]
            layers = max(layers, len(chosen[name]))
    chosen |= dict.fromkeys(counts, layers)
    mlp_types = chosen.get("mlp_layer_types", settings.get("mlp_layer_types"))
    if isinstance(mlp_types, list):
        chosen["mlp_layer_types"] = (mlp_types * layers)[:layers]
    return chosen


def _with_sections(rope: dict[str, Any], kind: str) -> dict[str, Any]:
    """Rotary settings whose sections fit heads of eight numbers; some models have default sections in their code."""
    nested = {}
    for name, value in rope.items():
        nested[name] = _with_sections(value, kind) if isinstance(value, dict) else value
    if "mrope_section" in rope or SECTIONS.search(kind):
        nested["mrope_section"] = [1, 1, 0] if kind.startswith("glm4v_moe") else [2, 1, 1]
    return nested


def _smaller(name: str, value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str | float):
        return value
    if isinstance(value, int):
        if NEAR.fullmatch(name):
            return value if value < VOCAB else 3 + value % 7
        for pattern, size in SIZES:
            if re.fullmatch(pattern, name):
                return min(value, size) if value > 0 else value
    is_list_of_ids = isinstance(value, list | tuple) and NEAR.fullmatch(name)
    if is_list_of_ids and set(map(type, value)) == {int}:
        return [_smaller(name, number) for number in value]
    return value


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def built(kind: str) -> Any:
    """A small model with random weights in eval mode, of the first class that can be made.

    Raises:
        ValueError: there is no class, or a model stays large; other errors are those of the last class.
    """
    error: Exception = ValueError("transformers lists no class of models for it")
    for model_class in classes_of(kind):
        try:
            return drawn(model_class, kind)
        except Exception as raised:
            error = raised
    raise error


def drawn(model_class: Any, kind: str) -> Any:
    """A small model of this class with random weights in eval mode."""
    with torch.device("meta"):
        size = parameters(model_class(small(kind)))
    if size > LARGEST:
        raise ValueError(f"it keeps {size:,} parameters")
    torch.manual_seed(0)
    model = model_class(small(kind))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and parameter.is_floating_point():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            elif "sink" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            elif parameter.is_floating_point() and not bool(parameter.isfinite().all()):
                parameter.zero_()
    return model.float().eval()
