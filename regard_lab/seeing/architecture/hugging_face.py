"""The architecture of a Hugging Face model, read from its `config.json` without transformers.

A config does not say where the norms of its family stand, so the families are listed here; a test compares each with
the order in which transformers calls the parts of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.errors import CheckpointError, UnsupportedError
from regard_lab.seeing.architecture.parts import DrawnBox, DrawnModel, DrawnPart, DrawnStack

GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")


@dataclass(frozen=True)
class FamilyForm:
    """What the config of a family leaves unsaid.

    Args:
        place: where the norms stand, as in `parts.PLACES`.
        norm: the class of the norms in torch.nn.
        positions: how positions enter the model.
        sides: "encoder", "decoder" or "both".
        first_norm: whether a norm follows the embeddings.
        last_norm: whether one follows the last layer.
    """

    place: str
    norm: type[nn.Module]
    positions: str
    sides: str
    first_norm: bool = False
    last_norm: bool = True


_BERT = FamilyForm(
    "post", nn.LayerNorm, "learned, added", "encoder", first_norm=True, last_norm=False
)
_LLAMA = FamilyForm("pre", nn.RMSNorm, "rotary positions", "decoder")
_BART = FamilyForm("post", nn.LayerNorm, "learned, added", "both", first_norm=True, last_norm=False)
FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "distilbert": _BERT,
    "gpt2": FamilyForm("pre", nn.LayerNorm, "learned, added", "decoder"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": FamilyForm("both", nn.RMSNorm, "rotary positions", "decoder"),
    "t5": FamilyForm("pre", nn.RMSNorm, "bias by distance", "both"),
    "bart": _BART,
    "mbart": FamilyForm("pre", nn.LayerNorm, "learned, added", "both", first_norm=True),
    "marian": FamilyForm("post", nn.LayerNorm, "sinusoidal, added", "both", last_norm=False),
}
# The names of a setting, by family; the first that a config has counts.
DIM = ("hidden_size", "d_model", "n_embd", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HIDDEN = ("intermediate_size", "d_ff", "n_inner", "hidden_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
ACTIVATION = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "feed_forward_proj",
)


def architecture_of_hugging_face(config: Mapping[str, Any]) -> DrawnModel:
    """The architecture that a `config.json` of transformers describes.

    Args:
        config: its settings by name.

    Raises:
        UnsupportedError: a family whose norms are not known here.
        CheckpointError: a size is missing or is no number.

    >>> config = {"model_type": "gpt2", "vocab_size": 90, "n_embd": 32, "n_head": 4, "n_layer": 3}
    >>> [part.formula for part in architecture_of_hugging_face(config).stacks[0].parts]
    ['x + masked self-attention(norm(x))', 'x + feed-forward(norm(x))']
    """
    name = config.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedError(
            f"where the norms of a model of type {name!r} stand is not known here, so it is not drawn; known are "
            f"{', '.join(FAMILIES)}"
        )
    stacks = []
    if family.sides in ("encoder", "both"):
        stacks.append(_stack(config, family, "Encoder"))
    if family.sides in ("decoder", "both"):
        stacks.append(_stack(config, family, "Decoder"))
    return DrawnModel(f"Hugging Face model: {name}", tuple(stacks))


def _stack(config: Mapping[str, Any], family: FamilyForm, side: str) -> DrawnStack:
    """The encoder or the decoder."""
    of_side = f"{side.lower()}_"
    both = family.sides == "both"
    dim = _number(config, *DIM)
    heads = _number(config, *((f"{of_side}attention_heads",) if both else ()), *HEADS)
    hidden = _hidden(config, (f"{of_side}ffn_dim",) if both else ())
    own_layers = (f"{of_side}layers", f"num_{of_side}layers") if both else ()
    norm = DrawnBox("Norm", (), "encoder", family.norm)
    first_norm = (norm,) if family.first_norm else ()
    last_norm = (norm,) if family.last_norm else ()
    before = [
        DrawnBox(
            "Embedding",
            (f"{_number(config, 'vocab_size'):,} ids", f"vectors of {dim:,}"),
            "one_sentence",
            nn.Embedding,
        )
    ]
    in_layers = ()
    if family.positions.endswith("added"):
        before.append(DrawnBox("Positions", (family.positions,), "positions"))
    else:
        in_layers = (family.positions,)

    fewer = _optional(config, "num_key_value_heads", heads)
    size = _optional(config, "d_kv", _optional(config, "head_dim", dim // max(heads, 1)))
    shared = f", {fewer} of keys and values" if fewer < heads else ""
    masked = side == "Decoder"
    window = _window(config, family)
    details = (f"{heads} heads of {size}{shared}", *window, *in_layers)
    lesson = "causal" if masked else "encoder"
    if shared:
        lesson = "grouped"
    if window:
        lesson = "windows"
    title = "Masked self-attention" if masked else "Self-attention"
    parts = [DrawnPart(DrawnBox(title, details, lesson), norm, family.place, "itself")]
    if masked and both:
        crosses = DrawnBox("Cross-attention", (f"{heads} heads of {size}",), "cross")
        parts.append(DrawnPart(crosses, norm, family.place, "encoder"))
    feed_forward = DrawnBox(
        "Feed-forward", (f"{dim:,} to {hidden:,} to {dim:,}", *_activation(config)), "encoder"
    )
    parts.append(DrawnPart(feed_forward, norm, family.place))

    after = last_norm
    if masked:
        scores = DrawnBox(
            "Scores of the words", (f"{_number(config, 'vocab_size'):,} ids",), "decoder"
        )
        after = (*after, scores, DrawnBox("Softmax", ("the next word",), "generation"))
    return DrawnStack(
        side,
        _number(config, *own_layers, *LAYERS),
        (*before, *first_norm),
        tuple(parts),
        after,
        side.lower(),
    )


def _hidden(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The size of the hidden layer; GPT-2's is four times the vector unless its config says another."""
    if config["model_type"] == "gpt2" and config.get("n_inner") is None:
        return 4 * _number(config, *DIM)
    return _number(config, *names, *HIDDEN)


def _activation(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The activation of the feed-forward, if the config names it as a text."""
    named = [config[name] for name in ACTIVATION if isinstance(config.get(name), str)]
    if not named:
        return ()
    return (f"{named[0]}, gated" if config["model_type"] in GATED else named[0],)


def _window(config: Mapping[str, Any], family: FamilyForm) -> tuple[str, ...]:
    """The window that a decoder's config asks for, if it is used."""
    size = config.get("sliding_window")
    if family.sides != "decoder" or not isinstance(size, int):
        return ()
    if config["model_type"].startswith("qwen") and not config.get("use_sliding_window"):
        return ()
    if config["model_type"] == "gemma2":
        return (f"every second layer: window of {size:,}",)
    return (f"window of {size:,}",)


def _number(config: Mapping[str, Any], *names: str) -> int:
    """The first of these settings that the config has."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(
                f"{name} in config.json is {value!r}; it must be a positive integer"
            )
        return value
    raise CheckpointError(f"config.json has none of {', '.join(names)}; the model is not drawn")


def _optional(config: Mapping[str, Any], name: str, otherwise: int) -> int:
    return otherwise if config.get(name) is None else _number(config, name)
