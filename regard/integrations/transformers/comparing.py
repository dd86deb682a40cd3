"""`compare_attention`: outputs, time and memory of a model before and after `replace_attention`, on given texts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from regard.arguments import count_of, kind_of, whole
from regard.errors import ArgumentError
from regard.integrations.transformers.attaching import REPLACEMENTS
from regard.integrations.transformers.modules import attention_modules
from regard.integrations.transformers.surgery import Replacement
from regard.integrations.transformers.watching import taken_calls
from regard.integrations.transformers.window_cache import given_cache
from regard.reprs import brief
from regard.timing import median_seconds

__all__ = ["AttentionComparison", "compare_attention"]

TRAIN = "The weights were trained with the attention before; train on with the new one before you rely on its outputs."
NO_TEXT = "No text was given, so ids were drawn at random, and outputs were not compared."
IGNORED = -100  # a label that transformers leaves out of a loss
Pair = tuple[float, float]


@brief
@dataclass(frozen=True, kw_only=True)
class AttentionComparison:
    """A model before and after `replace_attention`; pairs of numbers are before and after.

    Args:
        model: its class.
        changed: what was replaced, in words.
        inputs: what it was run on, in words.
        positions: outputs that were compared; 0 without text.
        perplexity: exp of the mean cross entropy, of next ids or of labels; None where there are none.
        divergence: mean Kullback-Leibler divergence of the predictions from those before, in nats.
        agreement: share of positions whose first choice is the same.
        difference: norm of the difference of the outputs, relative to those before.
        seconds: CPU time of a forward pass; elapsed time on other devices.
        pairs: pairs of queries and keys that attention computed, as a share of all pairs.
        attention_bytes: the largest memory of one call of attention with its operands, by its plan.
        cache_bytes: keys and values that the model's own cache holds after the inputs; None without a cache.
        notes: sentences to be read with the figures.
    """

    model: str
    changed: tuple[str, ...]
    inputs: str
    positions: int
    perplexity: Pair | None
    divergence: float | None
    agreement: float | None
    difference: float | None
    seconds: Pair
    pairs: Pair
    attention_bytes: Pair
    cache_bytes: Pair | None
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """The record as JSON text."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    def to_markdown(self) -> str:
        """The record as a table of Markdown."""
        lines = [
            f"{self.model}: {'; '.join(self.changed)}. {self.inputs}.",
            "",
            "| | before | after |",
            "|---|---|---|",
        ]
        if self.perplexity is not None:
            lines.append("| perplexity | {:.4g} | {:.4g} |".format(*self.perplexity))
        if self.divergence is not None:
            lines.append(f"| divergence of the predictions (nats) | | {self.divergence:.4f} |")
        if self.agreement is not None:
            lines.append(f"| same first choice | | {self.agreement:.1%} of {count_of(self.positions, 'positions')} |")
        if self.difference is not None:
            lines.append(f"| relative difference of the outputs | | {self.difference:.2e} |")
        before, after = self.seconds
        lines.append(f"| seconds of a forward pass | {before:.3f} | {after:.3f} ({after / before:.2f}x) |")
        lines.append("| pairs computed | {:.1%} | {:.1%} |".format(*self.pairs))
        lines.append("| largest call of attention | {} | {} |".format(*map(_size, self.attention_bytes)))
        if self.cache_bytes is not None:
            lines.append("| cache after the inputs | {} | {} |".format(*map(_size, self.cache_bytes)))
        return "\n".join([*lines, "", *self.notes])

    def __str__(self) -> str:
        return self.to_markdown()


def _size(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


def compare_attention(
    model: PreTrainedModel,
    inputs: Any = None,
    *,
    tokenizer: Callable[..., Any] | None = None,
    length: int = 512,
    rounds: int = 3,
) -> AttentionComparison:
    """Run a model with and without what `replace_attention` changed, and compare outputs, time and memory.

    Args:
        model: with one replacement or more; all are paused for the figures before. Tables of positions stay long.
        inputs: texts for `tokenizer`, ids (batch, length), a mapping of the model's keywords, or a list of these.
            Labels in a mapping are what perplexity is computed of. None: ids drawn at random, for time and memory.
        tokenizer: turns a list of one text into a mapping of tensors, as those of transformers do.
        length: of the random ids.
        rounds: how often each is measured, in turns.

    Returns:
        A record with `to_markdown()` and `to_json()`.

    Raises:
        ArgumentError: nothing is replaced in the model, or the inputs are of another kind.

    >>> import transformers
    >>> from regard.integrations.transformers import replace_attention
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=64)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> with replace_attention(model, pattern="causal_window(64)"):
    ...     compared = compare_attention(model, torch.randint(9, (1, 32)), rounds=1)
    >>> compared.positions, compared.agreement
    (32, 1.0)
    """
    whole("rounds", rounds, 1)
    active: list[Replacement] = model.__dict__.get(REPLACEMENTS, []) if isinstance(model, PreTrainedModel) else []
    if not active:
        raise ArgumentError(f"nothing is replaced in {kind_of(model)}; call replace_attention(model, ...) before")
    batches = _batches(model, inputs, tokenizer, length)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _compared(model, active, batches, inputs is not None, rounds)
    finally:
        model.train(was_training)


def _compared(
    model: PreTrainedModel, active: list[Replacement], batches: list[dict[str, Any]], given: bool, rounds: int
) -> AttentionComparison:
    figures = _outputs_compared(model, active, batches if given else [])

    def run() -> None:
        for batch in batches:
            model(**batch)

    def run_before() -> None:
        with _paused(active):
            run()

    before, after = median_seconds([run_before, run], rounds, model.device)
    with _paused(active):
        pairs_before, bytes_before = _attended(model, batches)
        cache_before = _cache_bytes(model, batches[0])
    pairs, largest = _attended(model, batches)
    cache = _cache_bytes(model, batches[0])
    shapes = [next(x.shape for x in one.values() if isinstance(x, torch.Tensor)) for one in batches]
    rows, most = sum(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    notes = [TRAIN] if given else [NO_TEXT, TRAIN]
    if cache is not None:
        notes.append("A pattern hides keys of the model's cache and does not remove them.")
    if any(one.length is not None for one in active):
        notes.append("Before means the model's own pairs with the lengthened tables of positions.")
    return AttentionComparison(
        model=type(model).__name__,
        changed=tuple(map(str, active)),
        inputs=f"{count_of(rows, 'rows')} of at most {count_of(most, 'ids')}",
        **figures,
        seconds=(before / len(batches), after / len(batches)),
        pairs=(pairs_before, pairs),
        attention_bytes=(bytes_before, largest),
        cache_bytes=None if cache is None or cache_before is None else (cache_before, cache),
        notes=tuple(notes),
    )


@contextmanager
def _paused(active: list[Replacement]) -> Generator[None]:
    with ExitStack() as stack:
        for replacement in active:
            stack.enter_context(replacement.paused())
        yield


def _batches(model: PreTrainedModel, inputs: Any, tokenizer: Any, length: int) -> list[dict[str, Any]]:
    """Keywords of the model, one mapping for each forward pass."""
    if inputs is None:
        most = getattr(model.config, "vocab_size", None)
        if not isinstance(most, int):
            raise ArgumentError(f"{type(model).__name__} takes no ids; give inputs, such as pixel_values, as a mapping")
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randint(most, (1, whole("length", length, 1)), generator=generator)
    given = [*inputs] if isinstance(inputs, list | tuple) else [inputs]
    if not given:
        raise ArgumentError("inputs are empty; give at least one text, or None for random ids")
    batches = []
    for one in given:
        if isinstance(one, str):
            if tokenizer is None:
                raise ArgumentError("inputs are texts; give tokenizer=, or ids")
            one = tokenizer([one], return_tensors="pt")
        elif isinstance(one, torch.Tensor):
            if one.dim() != 2:
                raise ArgumentError(f"ids have shape {tuple(one.shape)}; they need (batch, length)")
            one = {"input_ids": one}
        elif not isinstance(one, Mapping) and not hasattr(one, "keys"):
            raise ArgumentError(f"inputs hold {kind_of(one)}; give texts, ids (batch, length) or mappings of keywords")
        batches.append({name: x.to(model.device) if isinstance(x, torch.Tensor) else x for name, x in one.items()})
    return batches


def _outputs_compared(
    model: PreTrainedModel, active: list[Replacement], batches: list[dict[str, Any]]
) -> dict[str, Any]:
    """The figures that compare outputs, which are means over the live positions of all batches."""
    causal = any(getattr(one, "is_causal", False) for one in attention_modules(model).values())
    writes, predicts = causal and not model.config.is_encoder_decoder, False
    count = words = same = 0
    divergence = squares = size = 0.0
    losses = [0.0, 0.0]
    for batch in batches:
        with _paused(active):
            before = model(**batch)
        outputs = before, model(**batch)
        predicts = hasattr(before, "logits") and before.logits.dim() == 3
        first, second = ((x.logits if hasattr(x, "logits") else x.last_hidden_state).float() for x in outputs)
        live = _live(batch, first)
        count += int(live.sum())
        squares += float((second - first)[live].square().sum())
        size += float(first[live].square().sum())
        for row in range(len(first)) if predicts else ():  # a row at a time, since vocabularies are large
            own, new = first[row][live[row]].log_softmax(-1), second[row][live[row]].log_softmax(-1)
            divergence += float(F.kl_div(new, own, log_target=True, reduction="sum"))
            same += int((own.argmax(-1) == new.argmax(-1)).sum())
        labels = _labels(batch, live, writes) if predicts else None
        if labels is not None:
            words += int((labels != IGNORED).sum())
            for side, x in enumerate((first.flatten(0, 1), second.flatten(0, 1))):
                losses[side] += float(F.cross_entropy(x, labels.flatten(), ignore_index=IGNORED, reduction="sum"))
    perplexity = [math.exp(min(loss / words, 700.0)) for loss in losses] if words else None
    return {
        "positions": count,
        "perplexity": None if perplexity is None else tuple(perplexity),
        "divergence": max(0.0, divergence / count) if count and predicts else None,
        "agreement": same / count if count and predicts else None,
        "difference": math.sqrt(squares / size) if count and size else None,
    }


def _labels(batch: Mapping[str, Any], live: torch.Tensor, writes: bool) -> torch.Tensor | None:
    """What each output is compared with, IGNORED where with nothing; None if nothing is known.

    writes: whether the output of a position predicts the next id.
    """
    labels = batch.get("labels")
    if labels is None and (not writes or "input_ids" not in batch):
        return None
    following: torch.Tensor = batch["input_ids"].masked_fill(~live, IGNORED) if labels is None else labels
    if writes:
        following = F.pad(following[:, 1:], (0, 1), value=IGNORED).masked_fill(~live, IGNORED)
    return following


def _live(batch: Mapping[str, Any], output: torch.Tensor) -> torch.Tensor:
    """Which positions of an output are compared: (batch, length)."""
    mask = batch.get("decoder_attention_mask" if "decoder_input_ids" in batch else "attention_mask")
    if isinstance(mask, torch.Tensor) and mask.shape == output.shape[:2]:
        return mask.bool()
    return torch.ones(output.shape[:2], dtype=torch.bool, device=output.device)


def _attended(model: PreTrainedModel, batches: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """The share of pairs that all calls computed, and the memory of the largest call."""
    computed = every = largest = 0.0
    for batch in batches:
        for _, _, plan in taken_calls(model, batch):
            problem = plan.problem
            computed += plan.share_of_pairs_computed * problem.pairs
            every += problem.pairs
            largest = max(largest, problem.nbytes + plan.cost.peak_bytes)
    return computed / max(every, 1), largest


def _cache_bytes(model: PreTrainedModel, batch: Mapping[str, Any]) -> float | None:
    """Bytes of the keys and values that a model keeps after a batch; None for a model without a cache."""
    if not model.can_generate() or not hasattr(model.config, "use_cache"):
        return None
    output = model(**{**batch, "use_cache": True})
    cache = given_cache(*(output if isinstance(output, tuple) else output.values()))
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", None)
    if layers is None:
        return None
    return float(sum(x.nbytes for one in layers for x in (one.keys, one.values) if isinstance(x, torch.Tensor)))
