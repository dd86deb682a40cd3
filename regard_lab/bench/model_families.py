"""Whole models of transformers in small shapes of well-known families, with random weights.

Each is timed as it is, with regard attached, and with regard attached and packed weights. The share of the time that
its own attention takes is measured too: a faster attention cannot save more than that.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

from regard.reprs import brief

Call = Callable[[], Any]
VOCABULARY = 4000
SHARE_ROUNDS = 9  # the fastest counts
LARGEST_ERROR = 1e-4  # in an output, relative to its largest number
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
SPEECH = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
}
LATENT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "first_k_dense_replace": 4,
    "q_lora_rank": 256,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "pad_token_id": 0,
}
HYBRID = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "pad_token_id": 0,
}


@brief
@dataclass(frozen=True)
class ModelFamily:
    """A model of one family in a small shape, and what it is called with.

    Args:
        label: its name in reports.
        work: its shape and its inputs, in words.
        kind: the name of the model's class in transformers, without the ending "Model" or "ForCausalLM".
        settings: those of its config.
        batch: the number of texts, images or sounds.
        length: the number of ids in each text; 0 for images and sounds.
        steps: the number of ids that are decoded one by one after the text; 0 for one forward pass.
        runs_in_openvino: whether OpenVINO is measured beside it.
    """

    label: str
    work: str
    kind: str
    settings: dict[str, Any]
    batch: int = 1
    length: int = 0
    steps: int = 0
    runs_in_openvino: bool = False

    def model(self, state: str = "as it is") -> Any:
        """The model "as it is", "attached" or "packed"."""
        transformers: Any = import_module("transformers")
        config = getattr(transformers, f"{self.kind}Config")(
            **self.settings, attn_implementation="sdpa"
        )
        name = f"{self.kind}ForCausalLM" if self.steps else f"{self.kind}Model"
        torch.manual_seed(0)
        model = getattr(transformers, name)(config).eval()
        if state != "as it is":
            attaching = import_module("regard.integrations.transformers")
            attaching.attach(model, check=False, pack=state == "packed")
        return model

    def inputs(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """What the model is called with."""
        generator = torch.Generator().manual_seed(3)
        if self.kind == "ViT":
            size = self.settings["image_size"]
            shape = self.batch, 3, size, size
            return {"pixel_values": torch.randn(shape, generator=generator)}
        decoder_ids = torch.randint(5, VOCABULARY, (self.batch, 4), generator=generator)
        if self.kind == "Whisper":
            sounds = torch.randn(self.batch, 80, 3000, generator=generator)
            return {"input_features": sounds, "decoder_input_ids": decoder_ids}
        ids = torch.randint(5, VOCABULARY, (self.batch, self.length), generator=generator)
        if self.kind == "T5":
            return {"input_ids": ids, "decoder_input_ids": decoder_ids}
        return {"input_ids": ids}

    def prepare(self, state: str) -> Call:
        """The call to be timed; it returns the logits of the last step or the last hidden states."""
        model = self.model(state)
        return self._call(model)

    def _call(self, model: Any) -> Call:
        inputs = self.inputs(model)
        if not self.steps:

            def encode() -> torch.Tensor:
                with torch.inference_mode():
                    return model(**inputs).last_hidden_state

            return encode

        with torch.inference_mode():
            earlier = model(**inputs, use_cache=True).past_key_values
        new_ids = torch.arange(5, 5 + self.steps).expand(self.batch, -1)

        def decode() -> torch.Tensor:
            cache = copy.deepcopy(earlier)
            logits = torch.empty(0)
            with torch.inference_mode():
                for number in range(self.steps):
                    ids = new_ids[:, number : number + 1]
                    logits = model(ids, past_key_values=cache, use_cache=True).logits
            return logits

        return decode

    def prepare_openvino(self) -> Call:
        """The model converted for OpenVINO, in float32."""
        ov: Any = import_module("openvino")
        model = self.model()
        ids = self.inputs(model)["input_ids"]
        converted = ov.convert_model(_LastHiddenState(model), example_input=ids)
        options = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request = ov.Core().compile_model(converted, "CPU", options).create_infer_request()
        numbers = ids.numpy()

        def compute() -> torch.Tensor:
            return torch.from_numpy(next(iter(request.infer({0: numbers}).values())))

        return compute

    def attention_share(self) -> float:
        """The share of the model's time that its own attention takes, without projections."""
        model = self.model()
        call = self._call(model)
        call()
        shares = []
        for _ in range(SHARE_ROUNDS):
            with _timing_attention(model) as seconds:
                began = time.process_time()
                call()
                whole = time.process_time() - began
            shares.append((whole, sum(seconds) / whole))
        return min(shares)[1]


class _LastHiddenState(nn.Module):
    """A model that returns one tensor, as a converter needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).last_hidden_state


# Functions of a model's module that compute its recurrent layers.
RECURRENT = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


@contextmanager
def _timing_attention(model: nn.Module) -> Generator[list[float]]:
    """A block in which the CPU time of each call of attention is collected."""
    functions: Any = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    seconds: list[float] = []

    def timed(function: Any) -> Any:
        def compute(*args: Any, **keywords: Any) -> Any:
            began = time.process_time()
            result = function(*args, **keywords)
            seconds.append(time.process_time() - began)
            return result

        return compute

    own = functions["sdpa"]
    functions["sdpa"] = timed(own)
    code = vars(import_module(type(model).__module__))
    recurrent = {name: code[name] for name in RECURRENT if name in code}
    code.update({name: timed(function) for name, function in recurrent.items()})
    try:
        yield seconds
    finally:
        functions["sdpa"] = own
        code.update(recurrent)


_MINILM = {
    "vocab_size": VOCABULARY,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}


def _minilm(batch: int, length: int) -> ModelFamily:
    return ModelFamily(
        f"MiniLM, {batch} x {length}",
        f"{batch} x {length} ids, 6 layers, dim 384, 12 heads",
        "Bert",
        _MINILM,
        batch,
        length,
        runs_in_openvino=True,
    )


FAMILIES = (
    _minilm(1, 16),
    _minilm(1, 128),
    _minilm(8, 64),
    _minilm(1, 512),
    ModelFamily(
        "ViT",
        "1 image of 197 positions, 6 layers, dim 384, 6 heads",
        "ViT",
        {
            "image_size": 224,
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "intermediate_size": 1536,
        },
    ),
    ModelFamily(
        "Whisper",
        "30 seconds of sound (1,500 positions) and 4 ids, 4 and 4 layers, dim 384, 6 heads",
        "Whisper",
        {**SPEECH, "vocab_size": VOCABULARY, "pad_token_id": 0},
    ),
    ModelFamily(
        "T5",
        "64 ids and 4 ids, 6 and 6 layers, dim 512, 8 heads",
        "T5",
        {"vocab_size": VOCABULARY, "num_layers": 6, "decoder_start_token_id": 0},
        length=64,
    ),
    ModelFamily(
        "Llama, a text",
        "512 ids, 4 layers, dim 512, 8 heads over 2",
        "Llama",
        DECODER,
        length=512,
    ),
    ModelFamily(
        "Llama, decoding",
        "8 steps after 512 ids, 4 layers, dim 512, 8 heads over 2",
        "Llama",
        DECODER,
        length=512,
        steps=8,
    ),
    ModelFamily(
        "Mistral, a window",
        "2,048 ids with a window of 256, 4 layers, dim 512, 8 heads over 2",
        "Mistral",
        {**DECODER, "sliding_window": 256},
        length=2048,
    ),
    ModelFamily(
        "DeepSeek-V3, a text",
        "256 ids, latent attention, 4 layers, dim 512, 8 heads",
        "DeepseekV3",
        LATENT,
        length=256,
    ),
    ModelFamily(
        "DeepSeek-V3, decoding",
        "8 steps after 512 ids, latent attention, 4 layers, dim 512, 8 heads",
        "DeepseekV3",
        LATENT,
        length=512,
        steps=8,
    ),
    ModelFamily(
        "Qwen3-Next, a text",
        "256 ids, 3 gated delta layers and 1 of attention, dim 512",
        "Qwen3Next",
        HYBRID,
        length=256,
    ),
)
