"""Models of transformers with regard attached, beside their own sdpa."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.libraries.layers import without_gradients
from regard_lab.bench.work import Call, Case, Side, WholeContest

VOCABULARY = 4000


def _minilm() -> nn.Module:
    transformers: Any = import_module("transformers")
    return transformers.BertModel(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            attn_implementation="sdpa",
        )
    )


def _t5() -> nn.Module:
    transformers: Any = import_module("transformers")
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            num_layers=6,
            decoder_start_token_id=0,
            attn_implementation="sdpa",
        )
    )
    model.generation_config.eos_token_id = None
    return model


def _marian() -> nn.Module:
    transformers: Any = import_module("transformers")
    layers = {}
    for side in ("encoder", "decoder"):
        layers |= {
            f"{side}_layers": 6,
            f"{side}_attention_heads": 8,
            f"{side}_ffn_dim": 2048,
        }
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=VOCABULARY,
            decoder_vocab_size=VOCABULARY,
            d_model=512,
            pad_token_id=0,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            attn_implementation="sdpa",
            **layers,
        )
    )
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    return model


def _llama() -> nn.Module:
    transformers: Any = import_module("transformers")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=2,
            attn_implementation="sdpa",
        )
    )


def _ids(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(5, VOCABULARY, (batch, length), generator=generator)


def _model(make: Callable[[], nn.Module], is_attached: bool) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    if is_attached:
        import_module("regard.integrations.transformers").attach(model, check=False)
    return model


def _encode(batch: int, length: int, is_attached: bool) -> Call:
    model = _model(_minilm, is_attached)
    ids = _ids(batch, length)
    mask = torch.ones_like(ids)
    return without_gradients(lambda: model(ids, attention_mask=mask).last_hidden_state)


def _generate(make: Callable[[], nn.Module], beam: int, is_attached: bool) -> Call:
    model = _model(make, is_attached)
    ids = _ids(1, 20)
    options = {"num_beams": beam, "do_sample": False, "min_new_tokens": 8, "max_new_tokens": 8}
    mask = torch.ones_like(ids)
    return without_gradients(lambda: model.generate(ids, attention_mask=mask, **options))


def _continue(is_attached: bool) -> Call:
    """Eight steps after 64 ids, whose cache is copied before."""
    model = _model(_llama, is_attached)
    with torch.inference_mode():
        earlier = model(_ids(1, 64), use_cache=True).past_key_values
    new_ids = _ids(1, 8)

    def compute() -> torch.Tensor:
        cache = copy.deepcopy(earlier)
        logits = torch.empty(0)
        for number in range(new_ids.shape[1]):
            one = new_ids[:, number : number + 1]
            logits = model(one, past_key_values=cache, use_cache=True).logits
        return logits

    return without_gradients(compute)


def _attached(
    label: str, work: str, prepare: Callable[[bool], Call], largest_error: float = 1e-4
) -> WholeContest:
    sides = (
        Side("regard", partial(prepare, True), "transformers"),
        Side("sdpa", partial(prepare, False), "transformers"),
    )
    return WholeContest(label, work, sides, largest_error)


_MODELS = (
    _attached("MiniLM's shape, 1 x 16", "an encoder of 6 layers, dim 384", partial(_encode, 1, 16)),
    _attached("MiniLM's shape, 8 x 16", "an encoder of 6 layers, dim 384", partial(_encode, 8, 16)),
    _attached("T5's shape, beam 4", "8 ids after 20, 6 and 6 layers", partial(_generate, _t5, 4)),
    _attached(
        "Marian's shape, beam 4", "8 ids after 20, 6 and 6 layers", partial(_generate, _marian, 4)
    ),
    _attached("Llama's shape", "8 steps after 64 ids, 8 layers, 8 heads over 2", _continue),
)

ATTACHED_CASE = Case(
    "attached",
    "Models of transformers with regard attached, beside their own sdpa",
    _MODELS,
    _MODELS[:1],
)
