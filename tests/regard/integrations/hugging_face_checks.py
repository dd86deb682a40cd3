"""What is compared for each family: regard's numbers with those of transformers' eager attention.

Padding is strong: half of the batch rows are padded, and all logits of live positions are compared, in every row.
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
TOLERANCE, GRADIENTS = 1e-5, 1e-4  # of logits, absolute; of gradients, relative


def live_keys(padding: str) -> torch.Tensor:
    """(ROWS, LENGTH) booleans. In each kind but "none" rows 0 and 1 are padded; in "random" others may be too."""
    live = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    if padding == "left":
        live[0, :5], live[1, :2] = False, False
    elif padding == "right":
        live[0, -5:], live[1, -2:] = False, False
    elif padding == "holes":
        live[0, [3, 4, 8]], live[1, [1, 6, 7, 11]] = False, False
    elif padding == "random":
        generator = torch.Generator().manual_seed(7)
        lengths = torch.randint(3, LENGTH, (ROWS,), generator=generator)
        for row, length in enumerate(lengths.tolist()):
            live[row, :length] = False
            live[row] = ~live[row] if row % 2 else ~live[row].flip(0)
    return live


def inputs_of(
    family: Family, padding: str = "none"
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """Inputs of a model, and which positions of its output are compared; None for all."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCAB, (ROWS, LENGTH), generator=generator)
    if family.kind == SEES:
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}, None
    if family.kind == HEARS:
        return {
            "input_features": torch.randn(ROWS, 8, 60, generator=generator),
            "decoder_input_ids": ids,
        }, None
    live = live_keys(padding)
    inputs = {"input_ids": ids.masked_fill(~live, 0)}
    if padding != "none":
        inputs["attention_mask"] = live.long()
    if family.kind == TRANSLATES:
        inputs["decoder_input_ids"] = torch.randint(3, VOCAB, (ROWS, TARGETS), generator=generator)
        return inputs, None
    return inputs, live


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
    found = []
    with torch.no_grad():
        for implementation in ("eager", "regard"):
            use(family, model, implementation)
            found.append(compute())
    return found[0], found[1]


def farthest(
    found: torch.Tensor, expected: torch.Tensor, live: torch.Tensor | None = None
) -> float:
    """The largest difference, of live positions alone."""
    if live is not None:
        found = found[live]
        expected = expected[live]
    assert found.numel()
    assert bool(found.isfinite().all())
    return float((found - expected).abs().max())


def logits(family: Family, model: Any, padding: str) -> float:
    inputs, live = inputs_of(family, padding)
    expected, found = both(family, model, lambda: output_of(model, inputs))
    return farthest(found, expected, live)


def called(family: Family, model: Any) -> tuple[int, tuple[str, ...]]:
    """How many calls regard computed in a forward pass, and the modules that never called it."""
    inputs, _ = inputs_of(family, "left" if "left" in paddings_of(family) else "none")
    use(family, model, "regard")
    explained = explain(model, inputs)
    return len(explained.calls), explained.silent


@contextmanager
def dropped(*names: str) -> Generator[None]:
    """Leave some arguments out of every mask: "attention_mask" for padding, "mask_function" for the structure."""

    def careless(*args: Any, **given: Any) -> Any:
        return regard_mask(
            *args, **{name: value for name, value in given.items() if name not in names}
        )

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
    expected, found = both(family, model, lambda: output_of(model, inputs))
    return farthest(found, expected)


def chunked(family: Family, model: Any, padding: str) -> float:
    """A prompt in two chunks with a cache; those of windows keep what the window needs."""
    inputs, live = inputs_of(family, padding)
    mask = inputs.get("attention_mask", torch.ones(ROWS, LENGTH, dtype=torch.long))

    def in_chunks() -> torch.Tensor:
        cache = tf.DynamicCache(config=model.config)
        model(input_ids=inputs["input_ids"][:, :8], attention_mask=mask[:, :8], **{CACHE: cache})
        return model(
            input_ids=inputs["input_ids"][:, 8:], attention_mask=mask, **{CACHE: cache}
        ).logits

    expected, found = both(family, model, in_chunks)
    return farthest(found, expected, None if live is None else live[:, 8:])


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
    given = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
    if way == "prompt lookup":  # which takes one prompt
        given = {name: value[:1] for name, value in given.items()}
    options = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "disable_compile": True,
        **GENERATIONS[way],
    }
    expected, found = both(family, model, lambda: model.generate(**given, **options))
    return expected.shape == found.shape and torch.equal(expected, found)


def gradients(family: Family, model: Any) -> float:
    """The largest relative difference of a parameter's gradient, in the norm, from a loss of all live positions."""
    expected, found = (gradients_of(family, model, name) for name in ("eager", "regard"))
    return relative(found, expected)


def switch_checkpointing(model: Any, state: str) -> None:
    """Turn gradient checkpointing on ("enable") or off ("disable")."""
    names = ("activation_checkpointing_", "gradient_checkpointing_")  # the second is the older one
    next(getattr(model, name + state) for name in names if hasattr(model, name + state))()


def checkpointed(family: Family, model: Any) -> float:
    """The same of training with dropout: with gradient checkpointing beside without, from the same seed."""
    model.train()
    expected = gradients_of(family, model, "regard")
    switch_checkpointing(model, "enable")
    found = gradients_of(family, model, "regard")
    switch_checkpointing(model, "disable")
    model.eval()
    return relative(found, expected)


def gradients_of(
    family: Family, model: Any, implementation: str, run: Any = None, padding: str | None = None
) -> dict[str, torch.Tensor]:
    """The gradients of a model that is run itself or compiled."""
    inputs, live = inputs_of(
        family, padding or ("right" if family.kind in (ENCODES, TRANSLATES) else "none")
    )
    use(family, model, implementation)
    model.zero_grad()
    torch.manual_seed(5)
    output = output_of(model if run is None else run, inputs)
    output = output if live is None else output[live]
    factors = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(
        output.device
    )
    (output * factors).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert found.keys() == expected.keys()
    largest = max(float(gradient.norm()) for gradient in expected.values())
    worst = 0.0
    for name, gradient in expected.items():
        assert bool(found[name].isfinite().all()), name
        worst = max(
            worst,
            float((found[name] - gradient).norm()) / max(float(gradient.norm()), 1e-3 * largest),
        )
    return worst


def control(family: Family, model: Any) -> dict[str, float]:
    """Differences where the mask of padding is dropped on purpose: they have to be large."""
    found = {}
    for padding in ("left", "holes"):
        with dropped("attention_mask"):
            found[padding] = logits(family, model, padding)
    return found


def row(family: Family) -> dict[str, Any]:
    """Everything that is compared for a family, for the report."""
    found: dict[str, Any] = {
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
            found["reason"] = str(refused)
        return found
    found["logits"] = {padding: logits(family, model, padding) for padding in paddings_of(family)}
    found["calls"], found["silent"] = called(family, model)
    found["gradients"] = gradients(family, model)
    if family.kind == GENERATES:
        found["packed"] = packed(family, model)
        found["chunked"] = max(chunked(family, model, padding) for padding in ("left", "holes"))
    found["tokens"] = {way: same_tokens(family, model, way) for way in generations_of(family)}
    if family.status == WORKS and model.supports_gradient_checkpointing:
        found["checkpointed"] = checkpointed(family, model)
    if family.status == WORKS and family.kind not in (SEES, HEARS):
        found["control"] = control(family, model)
    return found


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong in a row; nothing if the family is as its status says."""
    if row["status"] == REFUSED:
        return (
            []
            if "does not call registered attention" in row.get("reason", "")
            else ["attach took it"]
        )
    wrong = [
        f"logits, {name}: {far:.1e}" for name, far in row["logits"].items() if not far <= TOLERANCE
    ]
    wrong += [
        f"{name}: {row[name]:.1e}"
        for name in ("packed", "chunked")
        if not row.get(name, 0) <= TOLERANCE
    ]
    wrong += [
        f"{name}: {row[name]:.1e}"
        for name in ("gradients", "checkpointed")
        if not row.get(name, 0) <= GRADIENTS
    ]
    wrong += [f"other tokens: {way}" for way, same in row["tokens"].items() if not same]
    wrong += [f"never called: {', '.join(row['silent'])}"] if row["silent"] else []
    wrong += [
        f"control, {name}: {far:.1e}"
        for name, far in row.get("control", {}).items()
        if not far > 1e-2
    ]
    return wrong
