"""A trained model inside a page: its tokeniser, the words of its training and its weights, for `source/engine`.

Up to `EXACT` parameters are stored as float32; a larger model as int8, each row of a matrix with its own scale.
"""

import json
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.mechanisms import Softmax
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Pattern
from regard.patterns.text import PatternReader
from regard.reprs import brief
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing.maps import look, look_text
from regard_lab.text import BEGIN, END, Tokeniser
from regard_lab.text.seen_words import SeenWords

EXACT = 2_000_000  # parameters up to which a page has them as float32
ON_GRIDS = ("image_windows", "neighbourhood")  # patterns that pages do not know
MOST = 20_000_000  # parameters of a model in a page
Computed = TranslationTransformer | RecurrentTranslator | LanguageModel | TextEncoder


@brief
@dataclass(frozen=True, eq=False)
class EmbeddedModel:
    """A model as a page contains it.

    Args:
        text: what it is, as JSON: kind, config, tokeniser, words of the training, and where each tensor begins.
        packed: its tensors in base64, deflated if they are int8.
        parameters: how many numbers it has.
        precision: "float32" or "int8".
        shown: what the page shows first, and how it names the parts, as JSON values.
    """

    text: str
    packed: str
    parameters: int
    precision: str
    shown: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the text and the packed bytes, which the page checks when it opens."""
        return sha256(self.text.encode() + b64decode(self.packed)).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """What the header of the page says of it."""
        return {
            **self.shown,
            "digest": self.digest,
            "parameters": self.parameters,
            "precision": self.precision,
        }


def embed(
    model: Computed,
    tokeniser: Tokeniser,
    words: SeenWords | None = None,
    *,
    classes: Sequence[str] = (),
    precision: str | None = None,
) -> EmbeddedModel:
    """Store a model for a page; `reason_against` says which models a page can compute.

    Args:
        words: those of its training; the page names the others.
        classes: the names of the classes that an encoder sorts texts into.
        precision: "float32" or "int8"; by default as the number of parameters asks.
    """
    state = model.state_dict()
    parameters = sum(tensor.numel() for tensor in state.values())
    precision = precision or ("float32" if parameters <= EXACT else "int8")
    is_int8 = precision == "int8"

    records = []
    parts = []
    start = 0
    for name, tensor in state.items():
        kind = "int8" if is_int8 and tensor.dim() == 2 else "float32"
        numbers = b"".join(array.tobytes() for array in stored(tensor, kind))
        records.append({"name": name, "shape": list(tensor.shape), "kind": kind, "at": start})
        parts.append(numbers)
        start += len(numbers)
    tensors = b"".join(parts)
    if is_int8:  # float32 hardly shrinks, and inflating takes time
        tensors = zlib.compress(tensors, 6)

    symbols = None if words is None else words.symbols
    content = {
        "kind": model.KIND,
        "config": model.config.to_dict(),
        "tokeniser": json.loads(tokeniser.to_json()),
        "words": None if words is None else sorted(words.words),
        "symbols": None if symbols is None else sorted(symbols),
        "tensors": records,
        "classes": list(classes),
        "deflated": is_int8,
    }
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return EmbeddedModel(text, b64encode(tensors).decode(), parameters, precision)


def stored(tensor: torch.Tensor, kind: str) -> list[np.ndarray[Any, Any]]:
    """The arrays of a tensor: its numbers; for "int8" the scale of each row, max |w| / 127, and the numbers over it.

    >>> [part.tolist() for part in stored(torch.tensor([[1.27, -0.5]]), "int8")]
    [[0.009999999776482582], [[127, -50]]]
    """
    tensor = tensor.detach().float().contiguous().cpu()
    if kind == "float32":
        return [tensor.numpy()]
    scales = tensor.abs().amax(1).clamp(min=1e-12) / 127
    numbers = (tensor / scales[:, None]).round().to(torch.int8)
    return [scales.numpy(), numbers.numpy()]


def restored(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a model as an int8 page has them."""
    state = {}
    for name, tensor in model.state_dict().items():
        state[name] = tensor
        if tensor.dim() == 2:
            scales, numbers = stored(tensor, "int8")
            state[name] = torch.from_numpy(scales[:, None] * numbers)
    return state


def reason_against(model: nn.Module) -> str | None:
    """Why a page cannot compute a model; None if it can.

    >>> config = LanguageModel.Config(vocab_size=300, dim=16, heads=2, mechanism="lsh(4, 4)")
    >>> reason_against(LanguageModel(config))
    'pages compute softmax attention, and this model has lsh(chunk=4, buckets=4, rounds=4, seed=0)'
    """
    if not isinstance(model, Computed):
        return f"pages compute models of regard_lab, and this model is a {type(model).__name__}"
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > MOST:
        return f"the model has {count:,} parameters, and a page holds at most {MOST:,}"
    config = model.config
    if getattr(config, "attention", "") == "none":
        return "pages show attention, and this translator has none"
    if getattr(config, "latent_dim", None) is not None:
        return "pages compute keys and values of heads, and this model has latents"
    special = getattr(config, "special", None)
    if special:
        return f"pages compute plain heads, and this model has {special}"

    for text in _texts_of(config, "mechanism", "encoder_mechanism"):
        mechanism = parse_mechanism(text)
        if mechanism != Softmax():
            return f"pages compute softmax attention, and this model has {mechanism}"
    patterns = ("pattern", "encoder_pattern", "decoder_pattern", "cross_pattern")
    for text in _texts_of(config, *patterns):
        reason = _reason_against_pattern(text)
        if reason:
            return reason
    return None


def _texts_of(config: Any, *names: str) -> list[str]:
    """The settings of these names that a config has; one may hold a text for each layer."""
    texts: list[str] = []
    for name in names:
        setting = getattr(config, name, ())
        texts += [setting] if isinstance(setting, str) else setting
    return texts


def _reason_against_pattern(text: str) -> str | None:
    """Why a page cannot compute a pattern; None if it can."""
    kinds = Pattern.registry.kinds
    for word, _ in PatternReader(text).words:
        if word not in kinds:
            continue
        if not kinds[word].__module__.startswith("regard.patterns."):
            return f"pages know the patterns of regard.patterns, and {word} is defined elsewhere"
        if word == "compressed":
            return "pages show words, and a compressed key stands for several"
        if word in ON_GRIDS:
            return f"pages show texts, whose positions are in one row, and {word} is for images"
    return None


def ids_read(
    model: Computed, tokeniser: Tokeniser, text: str, target_ids: Sequence[int] = ()
) -> list[list[int]]:
    """The ids that a model reads of a text; of a translator, those of the source, and those that its decoder reads."""
    ids = tokeniser.encode(text)
    if isinstance(model, TranslationModel):
        return [[*ids, END], [BEGIN, *target_ids]]
    if isinstance(model, LanguageModel):
        return [[BEGIN, *ids]]
    return [[BEGIN, *ids, END]]


@torch.no_grad()
def differences(model: Computed, tokeniser: Tokeniser, text: str, target_ids: Sequence[int]) -> str:
    """A sentence: how far the weights and probabilities of the int8 model are from those of the model, on a text."""
    int8 = deepcopy(model)
    int8.load_state_dict(restored(model))
    weights = _weights_on(model, tokeniser, text, target_ids)
    weights_of_int8 = _weights_on(int8, tokeniser, text, target_ids)
    ids = [torch.tensor([row]) for row in ids_read(model, tokeniser, text, target_ids)]
    chances = model(*ids).softmax(-1)
    chances_of_int8 = int8(*ids).softmax(-1)
    of_weights = float((weights - weights_of_int8).abs().max())
    of_chances = float((chances - chances_of_int8).abs().max())
    return (
        f"int8 rounds the weights of the model: on this text the attention weights differ from those in float32 by at "
        f"most {_rounded_up(of_weights)}, and the probabilities by at most {_rounded_up(of_chances)}."
    )


def _rounded_up(difference: float) -> str:
    """Three decimals that are no smaller than the difference.

    >>> _rounded_up(0.0292), _rounded_up(0.00004)
    ('0.030', '0.001')
    """
    return f"{math.ceil(1000 * difference) / 1000:.3f}"


def _weights_on(
    model: Computed, tokeniser: Tokeniser, text: str, target_ids: Sequence[int]
) -> torch.Tensor:
    """All attention weights on a text."""
    if not isinstance(model, TranslationModel):
        return look_text(model, tokeniser, text).piece_weights
    maps = look(model, tokeniser, text, target_ids)
    return torch.cat([maps.cross.flatten(), maps.encoder.flatten(), maps.decoder.flatten()])
