"""Cases that compare whole layers, models and training steps with the same in another library.

The sides of such a contest have the same weights, and outputs are compared before they are timed. Where a library has
weights of its own, so that only the sizes are equal, the report says so.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

from regard.layers import MultiHeadAttention
from regard.patterns import SlidingWindow
from regard.positions import Rotary
from regard.reprs import brief
from regard_lab.bench.model_families import FAMILIES, LARGEST_ERROR, ModelFamily
from regard_lab.bench.work import Case
from regard_lab.decoding import beam_search, greedy_search
from regard_lab.decoding.options import SpecialIds
from regard_lab.models.ctranslate import ctranslate2_spec
from regard_lab.models.translation_transformer import TranslationConfig, TranslationTransformer
from regard_lab.text.vocabularies import SPECIALS

__all__ = ["WHOLE_CASES", "Side", "WholeContest"]

Call = Callable[[], Any]


@brief
@dataclass(frozen=True)
class Side:
    """One way to compute a layer, a model or a training step; the first side of a contest is regard.

    Args:
        name: its name in reports.
        prepare: makes the call to be timed, without gradients unless it computes some; the call returns a tensor.
        package: the packages it needs besides torch, with spaces between; "" for none.
        note: what the report says of it; a side with a note has weights of its own and is not compared.
    """

    name: str
    prepare: Callable[[], Call]
    package: str = ""
    note: str = ""


@brief
@dataclass(frozen=True)
class WholeContest:
    """Several sides that compute the same.

    Args:
        label: its name within the case.
        work: what is computed, in words.
        sides: in the order of the report.
        largest_error: of the other sides, relative to the largest number of the first.
        attention: measures which share of the time the attention of the model itself takes.
    """

    label: str
    work: str
    sides: tuple[Side, ...]
    largest_error: float = 1e-4
    device: str = "cpu"
    attention: Callable[[], float] | None = None


def _without_gradients(call: Call) -> Call:
    def compute() -> Any:
        with torch.inference_mode():
            return call()

    return compute


# A step of a layer.
DIM = 512
LAYER_HEADS = 8
LAYER_KV_HEADS = 2
HEAD_DIM = DIM // LAYER_HEADS
EARLIER = 64  # positions in the cache before the steps
STEPS = 64


def _layer() -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(
        DIM, LAYER_HEADS, kv_heads=LAYER_KV_HEADS, pattern="causal", positions=Rotary()
    ).eval()


def _inputs_of_layer() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, EARLIER + STEPS, DIM, generator=generator)


def _steps_of_layer() -> Call:
    """The steps of a layer with its cache; returns the last output."""
    layer = _layer()
    x = _inputs_of_layer()
    cache = layer.new_cache(batch=1)

    def compute() -> torch.Tensor:
        cache.crop(0)
        output = layer(x[:, :EARLIER], cache=cache)
        for number in range(EARLIER, EARLIER + STEPS):
            output = layer(x[:, number : number + 1], cache=cache)
        return output[:, -1]

    return _without_gradients(compute)


def _plain_steps_of_layer() -> Call:
    """The same in plain PyTorch, with keys and values in tensors that are as long as the text."""
    layer = _layer()
    x = _inputs_of_layer()
    heads_of = (LAYER_HEADS, LAYER_KV_HEADS, LAYER_KV_HEADS)
    names = ("to_q", "to_k", "to_v")
    parameters = {name: x.detach() for name, x in layer.named_parameters()}
    joined = torch.cat([parameters[f"{name}.weight"] for name in names])
    joined_bias = None
    if "to_q.bias" in parameters:
        joined_bias = torch.cat([parameters[f"{name}.bias"] for name in names])
    output_weight = parameters["to_output.weight"]
    output_bias = parameters.get("to_output.bias")
    positions = torch.arange(EARLIER + STEPS)[:, None]
    angles = positions * 10000.0 ** -(torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    cos = angles.cos()
    sin = angles.sin()
    keys = torch.zeros(1, LAYER_KV_HEADS, EARLIER + STEPS, HEAD_DIM)
    values = torch.zeros_like(keys)

    def rotate(y: torch.Tensor, rows: slice) -> torch.Tensor:
        first, second = y.chunk(2, -1)
        c = cos[rows]
        s = sin[rows]
        return torch.cat((first * c - second * s, first * s + second * c), -1)

    def step(part: torch.Tensor, rows: slice) -> torch.Tensor:
        sizes = [heads * HEAD_DIM for heads in heads_of]
        q, k, v = linear(part, joined, joined_bias).split(sizes, -1)
        q = rotate(q.unflatten(-1, (LAYER_HEADS, -1)).transpose(1, 2), rows)
        keys[:, :, rows] = rotate(k.unflatten(-1, (LAYER_KV_HEADS, -1)).transpose(1, 2), rows)
        values[:, :, rows] = v.unflatten(-1, (LAYER_KV_HEADS, -1)).transpose(1, 2)
        output = scaled_dot_product_attention(
            q,
            keys[:, :, : rows.stop],
            values[:, :, : rows.stop],
            is_causal=rows.start == 0,
            enable_gqa=True,
        )
        return linear(output.transpose(1, 2).flatten(2), output_weight, output_bias)

    def compute() -> torch.Tensor:
        output = step(x[:, :EARLIER], slice(0, EARLIER))
        for number in range(EARLIER, EARLIER + STEPS):
            output = step(x[:, number : number + 1], slice(number, number + 1))
        return output[:, -1]

    return _without_gradients(compute)


# A translator of the demo's size.
VOCABULARY = 1318
MODEL_DIM = 128
MODEL_HEADS = 8
MODEL_LAYERS = 2
HIDDEN = 256
SOURCE = 12  # ids of a source
TARGET = 14  # ids that are written
FIRST_WORD = 4  # smaller ids mark padding, beginnings and ends
OWN_WEIGHTS = "weights of its own, of equal sizes, and as many ids"


def _translator_config() -> TranslationConfig:
    return TranslationConfig(
        vocab_size=VOCABULARY,
        dim=MODEL_DIM,
        heads=MODEL_HEADS,
        hidden_dim=HIDDEN,
        encoder_layers=MODEL_LAYERS,
        decoder_layers=MODEL_LAYERS,
        encoder_pattern=str(SlidingWindow(4)),
        decoder_pattern="causal_window(3)",
        positions="rotary",
        dropout=0.0,
    )


def _translator() -> TranslationTransformer:
    torch.manual_seed(0)
    return TranslationTransformer(_translator_config())


def _sources(batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(FIRST_WORD, VOCABULARY, (batch, SOURCE), generator=generator)


def _translate(batch: int, beam: int) -> Call:
    model = _translator().eval()
    sources = _sources(batch)
    special = SpecialIds(end=None, never=tuple(range(FIRST_WORD)))
    search: Any = greedy_search if beam == 1 else partial(beam_search, beam=beam)

    def compute() -> torch.Tensor:
        search(model, sources, max_tokens=TARGET, special=special)
        return sources

    return compute


def _ctranslate2(batch: int, beam: int) -> Call:
    ct2 = import_module("ctranslate2")
    words = [[f"w{number}" for number in row] for row in _sources(batch).tolist()]
    folder = tempfile.TemporaryDirectory()
    _write_ctranslate2(folder.name)
    threads = torch.get_num_threads()
    translator = ct2.Translator(
        folder.name, device="cpu", intra_threads=threads, inter_threads=1, compute_type="float32"
    )

    def compute(folder: Any) -> torch.Tensor:
        translator.translate_batch(
            words, beam_size=beam, max_decoding_length=TARGET, min_decoding_length=TARGET
        )
        return torch.empty(0)

    return partial(compute, folder)  # so that the folder lives as long as the call


def _write_ctranslate2(folder: str) -> None:
    """A model of CTranslate2 with random weights and the translator's sizes; it has full attention only."""
    torch.manual_seed(0)
    config = replace(_translator_config(), encoder_pattern="full", decoder_pattern="causal")
    model = TranslationTransformer(config)
    words = [f"w{number}" for number in range(VOCABULARY)]
    words[: len(SPECIALS)] = SPECIALS
    ctranslate2_spec(model, words).save(folder)


# A training step.
class _PlainTranslator(nn.Module):
    """nn.Transformer of the translator's size, with embeddings whose weights give the logits too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, MODEL_DIM)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about nested tensors, which are not used
            self.transformer = nn.Transformer(
                MODEL_DIM,
                MODEL_HEADS,
                MODEL_LAYERS,
                MODEL_LAYERS,
                HIDDEN,
                dropout=0.0,
                batch_first=True,
                norm_first=True,
            )
        self.positions = nn.Parameter(torch.randn(64, MODEL_DIM) * 0.02)

    def forward(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(sources) * MODEL_DIM**0.5 + self.positions[: sources.shape[1]]
        y = self.embedding(targets) * MODEL_DIM**0.5 + self.positions[: targets.shape[1]]
        padding = sources == 0
        output = self.transformer(
            x,
            y,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(targets.shape[1]),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return output @ self.embedding.weight.T


def _training_step(batch: int, length: int, make: Callable[[], nn.Module]) -> Call:
    """Loss, gradients, their norm and a step of Adam, over batches with padding of their own."""
    torch.manual_seed(0)
    model = make().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    batches = []
    for shift in range(3):
        sources = torch.randint(FIRST_WORD, VOCABULARY, (batch, length))
        for row in range(batch):
            sources[row, length - (row + shift) % 3 :] = 0
        batches.append((sources, torch.randint(FIRST_WORD, VOCABULARY, (batch, length + 1))))
    number = 0

    def compute() -> torch.Tensor:
        nonlocal number
        sources, targets = batches[number % len(batches)]
        number += 1
        optimizer.zero_grad(set_to_none=True)
        logits = model(sources, targets[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return compute


# Models of transformers with regard attached.
HUGGING_FACE_VOCABULARY = 4000


def _minilm() -> nn.Module:
    transformers: Any = import_module("transformers")
    return transformers.BertModel(
        transformers.BertConfig(
            vocab_size=HUGGING_FACE_VOCABULARY,
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
            vocab_size=HUGGING_FACE_VOCABULARY,
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
            vocab_size=HUGGING_FACE_VOCABULARY,
            decoder_vocab_size=HUGGING_FACE_VOCABULARY,
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
            vocab_size=HUGGING_FACE_VOCABULARY,
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
    return torch.randint(5, HUGGING_FACE_VOCABULARY, (batch, length), generator=generator)


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
    return _without_gradients(lambda: model(ids, attention_mask=mask).last_hidden_state)


def _generate(make: Callable[[], nn.Module], beam: int, is_attached: bool) -> Call:
    model = _model(make, is_attached)
    ids = _ids(1, 20)
    options = {"num_beams": beam, "do_sample": False, "min_new_tokens": 8, "max_new_tokens": 8}
    mask = torch.ones_like(ids)
    return _without_gradients(lambda: model.generate(ids, attention_mask=mask, **options))


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

    return _without_gradients(compute)


def _attached(
    label: str, work: str, prepare: Callable[[bool], Call], largest_error: float = 1e-4
) -> WholeContest:
    sides = (
        Side("regard", partial(prepare, True), "transformers"),
        Side("sdpa", partial(prepare, False), "transformers"),
    )
    return WholeContest(label, work, sides, largest_error)


def _whole_model(family: ModelFamily) -> WholeContest:
    sides = [
        Side("regard", partial(family.prepare, "attached"), "transformers"),
        Side("regard, packed weights", partial(family.prepare, "packed"), "transformers"),
        Side("sdpa", partial(family.prepare, "as it is"), "transformers"),
    ]
    if family.runs_in_openvino:
        sides.append(Side("OpenVINO", family.prepare_openvino, "transformers openvino"))
    return WholeContest(
        family.label, family.work, tuple(sides), LARGEST_ERROR, attention=family.attention_share
    )


def _translations(batch: int, beam: int) -> WholeContest:
    search = "greedy" if beam == 1 else f"beam {beam}"
    sentences = "1 sentence" if batch == 1 else f"{batch} sentences"
    peer = Side("CTranslate2", partial(_ctranslate2, batch, beam), "ctranslate2", OWN_WEIGHTS)
    sides = (Side("regard", partial(_translate, batch, beam)), peer)
    work = f"{sentences} of {SOURCE} ids, {TARGET} ids each, {search}, random weights"
    return WholeContest(f"{search}, {sentences}", work, sides)


def _trainings(batch: int, length: int) -> WholeContest:
    sides = (
        Side("regard", partial(_training_step, batch, length, _translator)),
        Side(
            "nn.Transformer",
            partial(_training_step, batch, length, _PlainTranslator),
            note="weights and positions of its own, of equal sizes",
        ),
    )
    work = f"{batch} pairs of {length} ids with padding, forward, backward and Adam"
    return WholeContest(f"{batch} x {length}", work, sides)


_STEP = WholeContest(
    "dim 512, 8 heads over 2",
    f"{STEPS} steps of a layer with Rotary and a cache after {EARLIER} positions",
    (Side("regard", _steps_of_layer), Side("plain PyTorch", _plain_steps_of_layer)),
)
_MODELS = (
    _attached("MiniLM's shape, 1 x 16", "an encoder of 6 layers, dim 384", partial(_encode, 1, 16)),
    _attached("MiniLM's shape, 8 x 16", "an encoder of 6 layers, dim 384", partial(_encode, 8, 16)),
    _attached("T5's shape, beam 4", "8 ids after 20, 6 and 6 layers", partial(_generate, _t5, 4)),
    _attached(
        "Marian's shape, beam 4", "8 ids after 20, 6 and 6 layers", partial(_generate, _marian, 4)
    ),
    _attached("Llama's shape", "8 steps after 64 ids, 8 layers, 8 heads over 2", _continue),
)
_FAMILIES = tuple(_whole_model(family) for family in FAMILIES)
_TRANSLATIONS = tuple(_translations(batch, beam) for batch in (1, 32) for beam in (1, 4))
_TRAININGS = (_trainings(20, 20), _trainings(40, 12), _trainings(64, 24))

WHOLE_CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "layer-step", "A step of MultiHeadAttention, beside plain PyTorch", (_STEP,), (_STEP,)
        ),
        Case(
            "translating",
            "A translator of the demo's size, beside CTranslate2",
            _TRANSLATIONS,
            _TRANSLATIONS[:1],
        ),
        Case(
            "training",
            "A training step of the demo's translator, beside nn.Transformer",
            _TRAININGS,
            _TRAININGS[:1],
        ),
        Case(
            "attached",
            "Models of transformers with regard attached, beside their own sdpa",
            _MODELS,
            _MODELS[:1],
        ),
        Case(
            "models",
            "Whole models of transformers: attached, with packed weights, and as they are",
            _FAMILIES,
            _FAMILIES[:1],
        ),
    )
}
