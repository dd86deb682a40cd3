"""Which heads matter: what a model loses when one head returns something else than it computed; as a picture too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from regard.arguments import a_list, count_of, kind_of, of_kind, shown, suggest, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.reprs import brief
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.seeing.canvas import (
    Box,
    axes_in,
    dependence_colours,
    is_dark,
    saved_figure,
    write_text,
)
from regard_lab.seeing.heads.replacing import (
    Head,
    LayerName,
    Outputs,
    attention_layers,
    named_heads,
    recording,
    replacing,
)
from regard_lab.seeing.lenses.contrast import (
    Asked,
    Contrast,
    Sides,
    Subject,
    ids_at_once,
    logits_of,
)
from regard_lab.seeing.lenses.erasing import greedily_written
from regard_lab.seeing.palette import FAINT, INK, UNSEEN
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text import BEGIN, END, UNKNOWN, Pair, score
from regard_lab.text.batches import encode_pairs
from regard_lab.text.writing import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

By = Literal["mean", "zero", "resample"]
Measure = Literal["log odds", "loss", "bleu"]
BY: tuple[By, ...] = get_args(By)
MEASURES: tuple[Measure, ...] = get_args(Measure)
HeadNames = Sequence[Head | str] | None


class Effect(NamedTuple):
    """What a model loses without what a head computed.

    Args:
        effect: the mean over texts: log odds or BLEU before minus after, or loss after minus before. Positive: the
            model is better with the head.
        error: its standard error over texts; infinite for one text and for BLEU, which is of the whole corpus.
        flips: of log odds, the share of texts whose word was more probable than the others, and no longer is.
    """

    effect: float
    error: float = math.inf
    flips: float | None = None


@brief
@dataclass(frozen=True, kw_only=True)
class HeadEffects:
    """The effects of heads.

    Args:
        measure: "log odds", "loss" or "bleu".
        by: what heads return instead: "mean", "zero", "resample", or with `patch` "patch".
        value: the measure of the model as it is.
        texts, asked: how many texts are measured, and how many were given.
        effects: by head.
        scores: other numbers of heads, by name, such as `head_scores` returns them.

    >>> effects = {Head("self", 0, 0): Effect(0.01, 0.02), Head("self", 0, 1): Effect(0.75, 0.1)}
    >>> print(HeadEffects(measure="loss", by="mean", value=1.5, texts=2, asked=2, effects=effects).text())
    loss 1.500 over 2 texts; without a head (mean):
      head      effect
      self 0.1  +0.750 ± 0.100
      self 0.0  +0.010 ± 0.020
    """

    measure: str
    by: str
    value: float
    texts: int
    asked: int
    effects: Mapping[Head, Effect]
    scores: Mapping[str, Mapping[Head, float]] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Head]:
        """The heads, that of the largest effect first."""
        return sorted(self.effects, key=lambda head: -self.effects[head].effect)

    def by_layer(self) -> dict[str, dict[str, torch.Tensor]]:
        """For each kind of attention, the numbers of its heads by name, (layers, heads) each; NaN for heads left out.

        `Attention(measured=...)` of a page takes those of one kind, and sorts its heads by them.
        """
        numbers: dict[str, Mapping[Head, float]] = {
            f"effect on {self.measure}": {head: one.effect for head, one in self.effects.items()},
            **self.scores,
        }
        tables: dict[str, dict[str, torch.Tensor]] = {}
        for name, values in numbers.items():
            for kind in dict.fromkeys(head.attention for head in values):
                heads = [head for head in values if head.attention == kind]
                layers = max(head.layer for head in heads) + 1
                most_heads = max(head.head for head in heads) + 1
                table = torch.full((layers, most_heads), torch.nan)
                for head in heads:
                    table[head.layer, head.head] = values[head]
                tables.setdefault(kind, {})[name] = table
        return tables

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, the head of the largest effect first; an error that is not known is null."""
        rows = []
        for head in self.ranked:
            effect = self.effects[head]
            row = {
                "name": str(head),
                **head._asdict(),
                "effect": effect.effect,
                "error": effect.error if math.isfinite(effect.error) else None,
                "flips": effect.flips,
            }
            for name, values in self.scores.items():
                if head in values:
                    row[name] = values[head]
            rows.append(row)
        return {
            "measure": self.measure,
            "replaced_by": self.by,
            "value": self.value,
            "texts": self.texts,
            "asked": self.asked,
            "heads": rows,
        }

    def text(self) -> str:
        """A table, the head of the largest effect first."""
        columns = ["head", "effect", *self.scores]
        if any(effect.flips is not None for effect in self.effects.values()):
            columns.insert(2, "other word")
        rows = [columns, *map(self._row, self.ranked)]

        texts = count_of(self.texts, "texts", ",")
        if self.texts != self.asked:
            texts += f" of {self.asked:,}"
        unit = "without a head" if self.by != "patch" else "with a head of the other text"
        heading = f"{self.measure} {self.value:.3f} over {texts}; {unit} ({self.by}):"
        return "\n".join([heading, *aligned(rows, "  ")])

    def _row(self, head: Head) -> list[str]:
        """The cells of a head in the table."""
        effect, error, flips = self.effects[head]
        within = f" ± {error:.3f}" if math.isfinite(error) else ""
        cells = [str(head), f"{effect:+.3f}{within}"]
        if flips is not None:
            cells.append(f"{flips:.3f}")
        for values in self.scores.values():
            cells.append(f"{values[head]:.3f}" if head in values else "-")
        return cells


EffectsProgress = Callable[[HeadEffects], None]


def ablate(
    model: nn.Module,
    tokeniser: Any,
    texts: Sequence[Any],
    *,
    heads: HeadNames = None,
    measure: Measure | None = None,
    by: By = "mean",
    seed: int = 0,
    progress: EffectsProgress = lambda effects: None,
) -> HeadEffects:
    """Measure what a model loses when one head at a time returns something that does not depend on the text.

        effect = log odds(model) - log odds(model without the head),   or loss(without) - loss(model)

    A head that is replaced by its mean still adds what it always adds; replaced by zeros it moves the model where it
    never was. The effect is that of one head alone: of two heads that do the same, neither may have one.

    Args:
        model: a TranslationTransformer, LanguageModel or TextEncoder; or `Pretrained(model, tokenizer)` of
            `regard_lab.seeing.transformers`. It is left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        texts: contrasts, as `find_contrast` returns them, for log odds; pairs of a source and its translation for a
            translator; texts for a language model or an encoder of masked words, each of whose ids is masked in turn;
            a text and its class, for a classifier.
        heads: such as "cross 1.2"; all by default.
        measure: "log odds" of contrasts, else "loss" for each id, or "bleu" of a translator's greedy search.
        by: "mean" over all positions of these texts, "zero", or "resample": what the head returns at the same position
            of another text, drawn from the seed.
        progress: called with the effects over the texts that are done, again and again.

    Returns:
        The effects over all texts.

    Raises:
        ArgumentError: no texts, texts of another kind, or a head that does not exist.
        UnsupportedError: a model without heads, or a measure that it does not have.

    Source: Are Sixteen Heads Really Better than One?, Michel et al. 2019, section 3 (one head at a time, zeros);
    Interpretability in the Wild, Wang et al. 2022, section 2 (means and other texts).

    >>> from regard_lab.text import Tokeniser
    >>> tokeniser = Tokeniser.train(["The cat sat on the mat."], vocab_size=300)
    >>> model = LanguageModel(LanguageModel.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1))
    >>> effects = ablate(model, tokeniser, ["The cat sat.", "The mat sat."])
    >>> [str(head) for head in sorted(effects.effects)], effects.measure
    (['self 0.0', 'self 0.1'], 'loss')
    """
    if by not in BY:
        raise ArgumentError(f"by is {shown(by)}; {suggest(str(by), BY)}")
    kinds = (Contrast, str, Pair, tuple)
    texts = a_list("texts", texts, kinds, "contrasts, texts, or pairs of texts")
    _check_texts(texts, by)
    odds = isinstance(texts[0], Contrast)
    measure = ("log odds" if odds else "loss") if measure is None else measure
    if measure not in MEASURES or (measure == "log odds") != odds:
        raise ArgumentError(
            f"measure is {shown(measure)}: 'log odds' are of contrasts, as find_contrast returns them, and 'loss' and "
            f"'bleu' of texts; {count_of(len(texts), 'texts')} were given"
        )
    examples = []
    for number, text in enumerate(texts):
        of_text = _examples(model, tokeniser, text, number)
        if not of_text:
            raise ArgumentError(
                f"text {number} of {len(texts)}, from 0, has no ids, so nothing can be measured on it"
            )
        examples += of_text
    references = _references(model, texts) if measure == "bleu" else []

    outputs = _record_examples(model, examples)
    drawn = torch.Generator().manual_seed(whole("seed", seed, 0))
    shifts = torch.randint(1, max(2, len(texts)), (len(texts),), generator=drawn).tolist()
    if by == "resample":
        others = [(text + shift) % len(texts) for text, shift in enumerate(shifts)]
        instead = _of_other_texts(outputs, examples, others)
    else:
        instead = _of_no_text(outputs, by)
    experiment = _Experiment(
        model=model,
        tokeniser=tokeniser,
        examples=examples,
        heads=_heads_in(outputs[0], heads),
        instead=instead,
        measure=measure,
        by=by,
        references=references,
    )
    return experiment.run(progress)


def patch(
    model: nn.Module,
    tokeniser: Any,
    pairs: Sequence[tuple[Contrast, Contrast]],
    *,
    heads: HeadNames = None,
    progress: EffectsProgress = lambda effects: None,
) -> HeadEffects:
    """Put what one head returns in a text A into the run of a text B, and measure what that does to B's word.

        effect = log odds(B) - log odds(B with the head of A)

    A head that carries what differs between both texts has an effect, and no other head needs to.

    Args:
        model, tokeniser, heads, progress: as for `ablate`.
        pairs: contrasts (A, B) of texts with equally many ids, whose words stand at equal positions.

    Returns:
        The effects on B's word.

    Raises:
        ArgumentError: no pairs, or texts of different lengths.

    Source: Investigating Gender Bias in Language Models Using Causal Mediation Analysis, Vig et al. 2020, section 3.
    """
    pairs = a_list("pairs", pairs, tuple, "pairs of contrasts, (A, B)")
    _check_texts(pairs, "patch")
    others: list[Example] = []
    examples: list[Example] = []
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not all(isinstance(contrast, Contrast) for contrast in pair):
            raise ArgumentError(
                f"pairs holds {shown(pair)}; it needs pairs of contrasts, (A, B), as find_contrast returns them"
            )
        other, example = (_of_contrast(contrast, number) for contrast in pair)
        if other.lengths != example.lengths:
            raise ArgumentError(
                f"the texts of a pair have {other.lengths_in_words()} ids and {example.lengths_in_words()}; a head is "
                f"patched position by position, so give texts with equally many ids"
            )
        others.append(other)
        examples.append(example)

    outputs = _record_examples(model, others)
    experiment = _Experiment(
        model=model,
        tokeniser=tokeniser,
        examples=examples,
        heads=_heads_in(outputs[0], heads),
        # Text i gets the outputs of the other text i.
        instead=_of_other_texts(outputs, others, range(len(pairs))),
        measure="log odds",
        by="patch",
    )
    return experiment.run(progress)


def _check_texts(texts: Sequence[Any], by: str) -> None:
    if not texts:
        raise ArgumentError("there are 0 texts, so nothing can be measured; give at least one")
    if len(texts) == 1 and by == "resample":
        raise ArgumentError(
            "by='resample' takes what a head returns in another text, and one was given; give more"
        )


def _references(model: nn.Module, texts: Sequence[Any]) -> list[str]:
    """The right translation of each text."""
    if not isinstance(model, TranslationTransformer):
        raise UnsupportedError(
            f"BLEU scores the translations of a TranslationTransformer, and the model is {kind_of(model)}"
        )
    return [text[1] if isinstance(text, tuple) else text.target for text in texts]


def _heads_in(outputs: Outputs, heads: HeadNames) -> list[Head]:
    """The heads of these names among those that returned something."""
    return named_heads({layer: rows.shape[1] for layer, rows in outputs.items()}, heads)


class Example(NamedTuple):
    """What a model reads, and the ids that are right at some places.

    Args:
        ids: by side, "source" or "written".
        at: positions of the logits; none of a classifier.
        of: the right ids there, or the right class.
        instead_of: for log odds, ids that `of` is compared with; none for the loss.
        text: number of the text that it is from.
    """

    ids: Mapping[str, tuple[int, ...]]
    at: tuple[int, ...]
    of: tuple[int, ...]
    instead_of: tuple[int, ...]
    text: int

    @property
    def lengths(self) -> tuple[tuple[str, int], ...]:
        """How many ids each side has."""
        return tuple((side, len(ids)) for side, ids in self.ids.items())

    def lengths_in_words(self) -> str:
        return " and ".join(f"{length} {side}" for side, length in self.lengths)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """Examples of equal sizes are computed together, without padding."""
        return (*self.lengths, len(self.at), len(self.instead_of))

    def value(self, logits: torch.Tensor) -> float:
        """The log odds, or the summed loss, of logits (length, vocab_size) or (classes,)."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen = logits[list(self.at)] if logits.dim() == 2 else logits[None]
        right = chosen[range(len(self.of)), list(self.of)]
        if self.instead_of:
            others = chosen[:, list(self.instead_of)]
            return float((right - others.logsumexp(-1)).sum())
        return -float((right - chosen.logsumexp(-1)).sum())


def _examples(model: nn.Module, tokeniser: Any, text: Any, number: int) -> list[Example]:
    """What a text asks of a model."""
    if isinstance(text, Contrast):
        return [_of_contrast(text, number)]
    examples = []
    for asked in _asked_of(model, tokeniser, text):
        ids = {side: tuple(of_side) for side, of_side in asked.ids.items()}
        examples.append(Example(ids, tuple(asked.at), tuple(asked.right), (), number))
    return examples


def _of_contrast(contrast: Contrast, number: int) -> Example:
    """The written word of a contrast against the others."""
    ids = {}
    if contrast.source:
        ids["source"] = contrast.source
    if contrast.written:
        ids["written"] = contrast.written
    return Example(ids, (contrast.position,), (contrast.of,), contrast.instead_of, number)


def _asked_of(model: nn.Module, tokeniser: Any, text: Any) -> list[Asked]:
    """What the loss of a text is measured on. An encoder predicts each id, masked in turn."""
    if isinstance(model, Subject):
        return model.asked(text)
    is_text = isinstance(text, str)
    is_tuple = isinstance(text, tuple) and len(text) == 2

    if isinstance(model, TranslationTransformer) and (is_tuple or isinstance(text, Pair)):
        pair = Pair(*text) if is_tuple else text
        ((source, target),) = encode_pairs([pair], tokeniser)
        ids = {"source": [*source, END], "written": [BEGIN, *target]}
        return [Asked(ids, range(len(target) + 1), [*target, END])]

    if isinstance(model, LanguageModel) and is_text:
        read = [BEGIN, *tokeniser.encode(text)]
        if len(read) == 1:
            return []
        return [Asked({"written": read[:-1]}, range(len(read) - 1), read[1:])]

    head = model.config.head if isinstance(model, TextEncoder) else None
    if head == "classes" and is_tuple:
        read = [BEGIN, *tokeniser.encode(text[0]), END]
        return [Asked({"source": read}, (), [whole("the class of a text", text[1], 0)])]

    if head == "words" and is_text:
        read = [BEGIN, *tokeniser.encode(text), END]
        asked = []
        for at in range(1, len(read) - 1):
            masked = [*read[:at], UNKNOWN, *read[at + 1 :]]  # UNKNOWN is the mask of our encoders
            asked.append(Asked({"source": masked}, [at], [read[at]]))
        return asked

    attention_layers(model)  # refuses models without heads
    whose = "" if head is None else f" whose head is {head!r}"
    raise ArgumentError(
        f"{shown(text)} is no text for a {type(model).__name__}{whose}; see the arguments of ablate"
    )


def _record_examples(model: nn.Module, examples: Sequence[Example]) -> list[Outputs]:
    """What the heads return in each example, (length, heads, v_dim) by layer."""
    by_example: dict[int, Outputs] = {}
    with in_eval_mode(model), torch.no_grad():
        for group in _groups(model, examples, 1):
            with recording(model) as outputs:
                logits_of(model, _batch(model, [examples[index] for index in group]))
            for row, index in enumerate(group):
                by_example[index] = {layer: rows[row] for layer, rows in outputs.items()}
    return [by_example[index] for index in range(len(examples))]


# A layer and examples -> (rows or 1, length, heads, v_dim).
Replacements = Callable[[LayerName, Sequence[Example]], torch.Tensor]


def _of_other_texts(
    outputs: list[Outputs], examples: Sequence[Example], others: Sequence[int]
) -> Replacements:
    """What heads return in another text; `others` has its number for each text."""
    first_of_text: dict[int, int] = {}
    for index, example in enumerate(examples):
        first_of_text.setdefault(example.text, index)

    def outputs_of_others(layer: LayerName, chosen: Sequence[Example]) -> torch.Tensor:
        rows = [outputs[first_of_text[others[example.text]]][layer] for example in chosen]
        longest = max(map(len, rows))
        padded = []
        for row in rows:
            padding = row[-1:].expand(longest - len(row), -1, -1)
            padded.append(torch.cat([row, padding]))
        return torch.stack(padded)

    return outputs_of_others


def _of_no_text(outputs: list[Outputs], by: str) -> Replacements:
    """What heads return on average, by "mean", or zeros."""
    constants = {}
    for layer, first in outputs[0].items():
        rows = torch.cat([of_example[layer] for of_example in outputs])
        mean = rows.double().mean(0)[None, None].to(first)
        constants[layer] = mean * (by == "mean")
    return lambda layer, _: constants[layer]


def _groups(model: nn.Module, examples: Sequence[Example], copies: int) -> Iterator[list[int]]:
    """Examples of equal sizes, as many as one run of the model computes with so many rows for each."""
    alike: dict[Any, list[int]] = {}
    for index, example in enumerate(examples):
        alike.setdefault(example.sizes, []).append(index)
    for group in alike.values():
        length = sum(map(len, examples[group[0]].ids.values()))
        most = max(1, ids_at_once(model) // (length * copies))
        for first in range(0, len(group), most):
            yield group[first : first + most]


def _batch(model: nn.Module, examples: Sequence[Example], copies: int = 1) -> Sides:
    device = next(model.parameters()).device
    sides = {}
    for side in examples[0].ids:
        ids = torch.tensor([example.ids[side] for example in examples], device=device)
        sides[side] = ids.repeat_interleave(copies, 0)
    return sides


class _Outcome(NamedTuple):
    """What a model does with an example: its value, or for BLEU its translation.

    Args:
        unchanged: by the model as it is.
        without: by the model without each head.
    """

    example: Example
    unchanged: Any
    without: list[Any]


@dataclass(frozen=True, eq=False)
class _Experiment:
    """Runs of a model without one head at a time.

    Args:
        heads: those that are replaced.
        instead: what they return in place of what they computed.
        references: the right translation of each text, for BLEU.
    """

    model: nn.Module
    tokeniser: Any
    examples: Sequence[Example]
    heads: list[Head]
    instead: Replacements
    measure: str
    by: str
    references: Sequence[str] = ()

    def run(self, progress: EffectsProgress) -> HeadEffects:
        """The effects, reported after each group of examples."""
        outcomes: list[_Outcome] = []
        effects = None
        with in_eval_mode(self.model), torch.no_grad():
            for group in _groups(self.model, self.examples, len(self.heads) + 1):
                outcomes += self._run_group([self.examples[index] for index in group])
                effects = self._effects(outcomes)
                progress(effects)
        assert effects is not None
        return effects

    def _run_group(self, chosen: Sequence[Example]) -> list[_Outcome]:
        """One run of the model as it is, and one with a row for each example and head."""
        count = len(self.heads)
        unchanged = self._results(chosen, _batch(self.model, chosen))

        instead: Outputs = {}
        for layer in dict.fromkeys((head.attention, head.layer) for head in self.heads):
            outputs = self.instead(layer, chosen)
            instead[layer] = outputs if len(outputs) == 1 else outputs.repeat_interleave(count, 0)
        repeated = [example for example in chosen for _ in self.heads]
        with replacing(self.model, self.heads, instead):
            without = self._results(repeated, _batch(self.model, chosen, count))

        outcomes = []
        for number, example in enumerate(chosen):
            of_example = without[number * count : (number + 1) * count]
            outcomes.append(_Outcome(example, unchanged[number], of_example))
        return outcomes

    def _results(self, chosen: Sequence[Example], ids: Sides) -> list[Any]:
        """The value of each example, or for BLEU its translation by greedy search."""
        if self.measure == "bleu":
            written = greedily_written(self.model, ids["source"])
            return [self.tokeniser.decode(of_row) for of_row in written]
        rows = logits_of(self.model, ids)
        return [example.value(row) for example, row in zip(chosen, rows, strict=True)]

    def _effects(self, outcomes: Sequence[_Outcome]) -> HeadEffects:
        if self.measure == "bleu":
            value, effects = _bleu_effects(outcomes, self.references)
        else:
            value, effects = _mean_effects(outcomes, odds=self.measure == "log odds")
        return HeadEffects(
            measure=self.measure,
            by=self.by,
            value=value,
            texts=len({outcome.example.text for outcome in outcomes}),
            asked=len({example.text for example in self.examples}),
            effects=dict(zip(self.heads, effects, strict=True)),
        )


class _TextSums(NamedTuple):
    """Sums over the examples of one text: its ids, the value, and the value without each head."""

    ids: float
    value: float
    without: list[float]


def _mean_effects(outcomes: Sequence[_Outcome], *, odds: bool) -> tuple[float, list[Effect]]:
    """Log odds are averaged over texts, a loss over the ids of all texts."""
    by_text: dict[int, _TextSums] = {}
    for example, value, without in outcomes:
        before = by_text.get(example.text, _TextSums(0.0, 0.0, [0.0] * len(without)))
        by_text[example.text] = _TextSums(
            before.ids + len(example.of),
            before.value + value,
            [a + b for a, b in zip(before.without, without, strict=True)],
        )
    texts = list(by_text.values())
    ids = math.fsum(text.ids for text in texts)
    value = math.fsum(text.value for text in texts) / ids

    sign = 1 if odds else -1
    effects = []
    for number in range(len(texts[0].without)):
        falls = [(text.value - text.without[number]) * sign for text in texts]
        effect = math.fsum(falls) / ids
        error = math.inf
        if len(texts) > 1:
            # The standard error of a ratio of two sums.
            spread = [fall - effect * text.ids for fall, text in zip(falls, texts, strict=True)]
            error = math.sqrt(len(texts) * statistics.variance(spread)) / ids
        flips = None
        if odds:
            flips = sum(text.without[number] <= 0 < text.value for text in texts) / len(texts)
        effects.append(Effect(effect, error, flips))
    return value, effects


def _bleu_effects(
    outcomes: Sequence[_Outcome], references: Sequence[str]
) -> tuple[float, list[Effect]]:
    right = [references[outcome.example.text] for outcome in outcomes]
    value = score([outcome.unchanged for outcome in outcomes], right).bleu
    effects = []
    for translations in zip(*(outcome.without for outcome in outcomes), strict=True):
        effects.append(Effect(value - score(list(translations), right).bleu))
    return value, effects


CELL = 0.5  # inches
LEFT = 0.9
TOP = 1.0
GAP = 0.75


def draw_head_effects(
    effects: HeadEffects, path: str | Path, *, title: str = "", footer: bool = True
) -> None:
    """Draw the effect of each head: a row for each layer, a column for each head; orange: the model is better with it.

    Args:
        effects: what `ablate` or `patch` returns.
        path: a PNG, SVG or PDF; an existing file is replaced atomically.
        title: a line above; by default what was measured.
        footer: whether a line below says how to read the picture.

    Raises:
        ArgumentError: a path with another ending, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.
    """
    tables = of_kind("effects", effects, HeadEffects, "what ablate returns").by_layer()
    grids = {kind: numbers[f"effect on {effects.measure}"] for kind, numbers in tables.items()}
    largest = max(float(grid.nan_to_num().abs().max()) for grid in grids.values()) or 1.0
    is_patch = effects.by == "patch"
    if not title:
        whose = "of the other text" if is_patch else f"({effects.by})"
        title = f"Effect of each head {whose} on {effects.measure}"

    with saved_figure(path) as figure:
        columns = max(grid.shape[1] for grid in grids.values())
        width = LEFT + max(columns * CELL, 6.2) + 0.3
        height = TOP + sum(len(grid) * CELL + GAP for grid in grids.values())
        figure.set_size_inches(width, height + (0.35 if footer else 0.0))
        write_text(figure, title, 0.3, 0.25, 12.5, weight="bold")
        top = TOP
        for kind, grid in grids.items():
            name = f"{kind}: layers ↓, heads →"
            write_text(figure, name, LEFT, top - 0.42, 8.5, color=FAINT, style="italic")
            box = Box(LEFT, top, grid.shape[1] * CELL, len(grid) * CELL)
            _draw_grid(axes_in(figure, box), grid, largest)
            top += len(grid) * CELL + GAP
        if footer:
            orange = "the model is better with the head"
            if is_patch:
                orange = "what the head returns there lowers them"
            texts = count_of(effects.texts, "texts", ",")
            note = f"Orange: {orange}. {effects.measure} {effects.value:.3f} over {texts}."
            write_text(figure, note, 0.3, height - 0.25, 7.5, color=FAINT)


def _draw_grid(axes: Axes, grid: torch.Tensor, largest: float) -> None:
    """Draw the effects of one kind of attention, (layers, heads), each with its number."""
    layers, heads = grid.shape
    scale = dependence_colours().with_extremes(bad=UNSEEN)
    colours = 0.5 + 0.5 * grid / largest
    axes.imshow(colours.numpy(), cmap=scale, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(heads))
    axes.set_yticks(range(layers))
    axes.tick_params(
        length=0,
        labelsize=8,
        labelcolor=INK,
        top=True,
        labeltop=True,
        bottom=False,
        labelbottom=False,
    )
    axes.spines[:].set_visible(False)
    for layer in range(layers):
        for head in range(heads):
            effect = float(grid[layer, head])
            if math.isnan(effect):
                continue
            ink = "white" if is_dark(scale(float(colours[layer, head]))) else "black"
            number = f"{effect:+.2f}"
            axes.text(head, layer, number, fontsize=7, color=ink, ha="center", va="center")
