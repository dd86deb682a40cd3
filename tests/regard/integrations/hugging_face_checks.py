"""What is compared for each family: regard's numbers with those of transformers' eager attention.

Padding is strong: half of the batch rows are padded, and all logits of unpadded positions are compared, in every row.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
import transformers as tf
from hugging_face_families import (
    ENCODES,
    GENERATES,
    HEARS,
    REFUSED,
    REPLACED,
    SEES,
    TRANSLATES,
    VOCAB,
    WORKS,
    Family,
)
from transformers_versions import CACHE, STATIC_CHUNKS

from regard.errors import UnsupportedError
from regard.integrations.transformers import attach, detach, explain, regard_mask

LENGTH = 14
ROWS = 4
TARGETS = 9
NEW = 10
PADDINGS = ("none", "left", "right", "holes", "random")
TOLERANCE = 1e-5  # of logits, absolute
GRADIENTS = 1e-4  # of gradients, relative
CONTROL = 1e-2  # of logits, where a mask is dropped on purpose


def unpadded_keys(padding: str) -> torch.Tensor:
    """(ROWS, LENGTH) booleans. In each kind but "none" rows 0 and 1 are padded; in "random" others may be too."""
    unpadded = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    if padding == "left":
        unpadded[0, :5] = False
        unpadded[1, :2] = False
    elif padding == "right":
        unpadded[0, -5:] = False
        unpadded[1, -2:] = False
    elif padding == "holes":
        unpadded[0, [3, 4, 8]] = False
        unpadded[1, [1, 6, 7, 11]] = False
    elif padding == "random":
        generator = torch.Generator().manual_seed(7)
        lengths = torch.randint(3, LENGTH, (ROWS,), generator=generator)
        for row, length in enumerate(lengths.tolist()):
            unpadded[row, :length] = False
            unpadded[row] = ~unpadded[row] if row % 2 else ~unpadded[row].flip(0)
    return unpadded


def inputs_of(
    family: Family, padding: str = "none"
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """Inputs of a model, and which positions of its output are compared; None for all."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCAB, (ROWS, LENGTH), generator=generator)
    if family.kind == SEES:
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}, None
    if family.kind == HEARS:
        sounds = torch.randn(ROWS, 8, 60, generator=generator)
        return {"input_features": sounds, "decoder_input_ids": ids}, None
    unpadded = unpadded_keys(padding)
    inputs = {"input_ids": ids.masked_fill(~unpadded, 0)}
    if padding != "none":
        inputs["attention_mask"] = unpadded.long()
    if family.kind == TRANSLATES:
        inputs["decoder_input_ids"] = torch.randint(3, VOCAB, (ROWS, TARGETS), generator=generator)
        return inputs, None
    return inputs, unpadded


def paddings_of(family: Family) -> tuple[str, ...]:
    return ("none",) if family.kind in (SEES, HEARS) else PADDINGS


def output_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    output = model(**inputs)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def use(family: Family, model: Any, implementation: str) -> None:
    """Switch a model to "eager" or to "regard"."""
    detach(model)
    if family.status == WORKS:
        model.set_attn_implementation("eager")
    if implementation == "regard":
        attach(model, replace=family.status == REPLACED, check=False)  # it is compared here


def both(family: Family, model: Any, compute: Callable[[], Any]) -> tuple[Any, Any]:
    """The same computation with the model's own attention and with regard's."""
    results = []
    with torch.no_grad():
        for implementation in ("eager", "regard"):
            use(family, model, implementation)
            results.append(compute())
    return results[0], results[1]


def farthest(
    output: torch.Tensor, expected: torch.Tensor, unpadded: torch.Tensor | None = None
) -> float:
    """The largest difference, of unpadded positions alone."""
    if unpadded is not None:
        output = output[unpadded]
        expected = expected[unpadded]
    assert output.numel()
    assert bool(output.isfinite().all())
    return float((output - expected).abs().max())


def logits(family: Family, model: Any, padding: str) -> float:
    inputs, unpadded = inputs_of(family, padding)
    expected, output = both(family, model, lambda: output_of(model, inputs))
    return farthest(output, expected, unpadded)


def called(family: Family, model: Any) -> tuple[int, tuple[str, ...]]:
    """How many calls regard computed in a forward pass, and the modules that never called it."""
    inputs, _ = inputs_of(family, "left" if "left" in paddings_of(family) else "none")
    use(family, model, "regard")
    explained = explain(model, inputs)
    return len(explained.calls), explained.silent


@contextmanager
def dropped(*names: str) -> Generator[None]:
    """Leave some arguments out of every mask: "attention_mask" for padding, "mask_function" for the structure."""

    def careless(*args: Any, **keywords: Any) -> Any:
        left = {name: value for name, value in keywords.items() if name not in names}
        return regard_mask(*args, **left)

    tf.AttentionMaskInterface.register("regard", careless)
    try:
        yield
    finally:
        tf.AttentionMaskInterface.register("regard", regard_mask)


def packed(family: Family, model: Any) -> float:
    """Two documents in each row, found by transformers in the positions."""
    ids = torch.randint(3, VOCAB, (2, 15), generator=torch.Generator().manual_seed(3))
    first = torch.cat([torch.arange(6), torch.arange(9)])
    second = torch.cat([torch.arange(11), torch.arange(4)])
    inputs = {"input_ids": ids, "position_ids": torch.stack([first, second]), "use_cache": False}
    expected, output = both(family, model, lambda: output_of(model, inputs))
    return farthest(output, expected)


def chunked(family: Family, model: Any, padding: str) -> float:
    """A prompt in two chunks with a cache; those of windows keep what the window needs."""
    inputs, unpadded = inputs_of(family, padding)
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones(ROWS, LENGTH, dtype=torch.long))

    def in_chunks() -> torch.Tensor:
        cache = tf.DynamicCache(config=model.config)
        model(input_ids=ids[:, :8], attention_mask=mask[:, :8], **{CACHE: cache})
        return model(input_ids=ids[:, 8:], attention_mask=mask, **{CACHE: cache}).logits

    expected, output = both(family, model, in_chunks)
    return farthest(output, expected, None if unpadded is None else unpadded[:, 8:])


GENERATIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


def generations_of(family: Family) -> tuple[str, ...]:
    if family.kind == GENERATES:
        left_out = () if STATIC_CHUNKS or family.name != "Llama 4" else ("static",)
        return tuple(way for way in GENERATIONS if way not in left_out)
    return ("greedy", "beams", "static", "no cache") if family.kind in (TRANSLATES, HEARS) else ()


def same_tokens(family: Family, model: Any, way: str) -> bool:
    inputs, _ = inputs_of(family, "left" if family.kind == GENERATES else paddings_of(family)[-1])
    prompts = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
    if way == "prompt lookup":  # which takes one prompt
        prompts = {name: value[:1] for name, value in prompts.items()}
    options = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "disable_compile": True,
        **GENERATIONS[way],
    }
    expected, ids = both(family, model, lambda: model.generate(**prompts, **options))
    return expected.shape == ids.shape and torch.equal(expected, ids)


def gradients(family: Family, model: Any) -> float:
    """The largest relative difference of a parameter's gradient, in the norm, from a loss of all unpadded positions."""
    expected = gradients_of(family, model, "eager")
    return relative(gradients_of(family, model, "regard"), expected)


def switch_checkpointing(model: Any, state: str) -> None:
    """Turn gradient checkpointing on ("enable") or off ("disable")."""
    name = f"activation_checkpointing_{state}"
    if not hasattr(model, name):
        name = f"gradient_checkpointing_{state}"  # as older versions name it
    getattr(model, name)()


def checkpointed(family: Family, model: Any) -> float:
    """The same of training with dropout: with gradient checkpointing beside without, from the same seed."""
    model.train()
    expected = gradients_of(family, model, "regard")
    switch_checkpointing(model, "enable")
    checkpointed = gradients_of(family, model, "regard")
    switch_checkpointing(model, "disable")
    model.eval()
    return relative(checkpointed, expected)


def gradients_of(
    family: Family, model: Any, implementation: str, run: Any = None, padding: str | None = None
) -> dict[str, torch.Tensor]:
    """The gradients of a model that is run itself or compiled."""
    if padding is None:
        padding = "right" if family.kind in (ENCODES, TRANSLATES) else "none"
    inputs, unpadded = inputs_of(family, padding)
    use(family, model, implementation)
    model.zero_grad()
    torch.manual_seed(5)
    output = output_of(model if run is None else run, inputs)
    if unpadded is not None:
        output = output[unpadded]
    factors = torch.randn(output.shape, generator=torch.Generator().manual_seed(9))
    (output * factors.to(output.device)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative(gradients: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference over the norm of what is expected, or over 1e-3 of the largest such norm."""
    assert gradients.keys() == expected.keys()
    least = 1e-3 * max(float(gradient.norm()) for gradient in expected.values())
    worst = 0.0
    for name, gradient in gradients.items():
        assert bool(gradient.isfinite().all()), name
        far = float((gradient - expected[name]).norm())
        worst = max(worst, far / max(float(expected[name].norm()), least))
    return worst


def control(family: Family, model: Any) -> dict[str, float]:
    """Differences where the mask of padding is dropped on purpose: they have to be large."""
    with dropped("attention_mask"):
        return {padding: logits(family, model, padding) for padding in ("left", "holes")}


def row(family: Family) -> dict[str, Any]:
    """Everything that is compared for a family, for the report."""
    compared: dict[str, Any] = {
        "name": family.name,
        "kind": family.kind,
        "attention": family.attention,
        "status": family.status,
    }
    model = family.model()
    if family.status == REFUSED:
        try:
            attach(model)
        except UnsupportedError as refused:
            compared["reason"] = str(refused)
        return compared
    compared["logits"] = {
        padding: logits(family, model, padding) for padding in paddings_of(family)
    }
    compared["calls"], compared["silent"] = called(family, model)
    compared["gradients"] = gradients(family, model)
    if family.kind == GENERATES:
        compared["packed"] = packed(family, model)
        compared["chunked"] = max(chunked(family, model, padding) for padding in ("left", "holes"))
    compared["tokens"] = {way: same_tokens(family, model, way) for way in generations_of(family)}
    if family.status == WORKS and model.supports_gradient_checkpointing:
        compared["checkpointed"] = checkpointed(family, model)
    if family.status == WORKS and family.kind not in (SEES, HEARS):
        compared["control"] = control(family, model)
    return compared


BOUNDS = {
    "packed": TOLERANCE,
    "chunked": TOLERANCE,
    "gradients": GRADIENTS,
    "checkpointed": GRADIENTS,
}


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong in a row; nothing if the family is as its status says."""
    if row["status"] == REFUSED:
        is_refused = "does not call registered attention" in row.get("reason", "")
        return [] if is_refused else ["attach took it"]
    wrong = []
    for padding, far in row["logits"].items():
        if not far <= TOLERANCE:
            wrong.append(f"logits, {padding}: {far:.1e}")
    for name, bound in BOUNDS.items():
        if not row.get(name, 0) <= bound:
            wrong.append(f"{name}: {row[name]:.1e}")
    wrong += [f"other tokens: {way}" for way, is_same in row["tokens"].items() if not is_same]
    if row["silent"]:
        wrong.append(f"never called: {', '.join(row['silent'])}")
    for padding, far in row.get("control", {}).items():
        if not far > CONTROL:
            wrong.append(f"control, {padding}: {far:.1e}")
    return wrong
