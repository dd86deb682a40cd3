"""Which heads matter: what a model loses when one head returns something else than it computed; as a picture too."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from regard.arguments import a_list, count_of, kind_of, of_kind, shown, suggest, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.reprs import brief
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.seeing.canvas import Box, axes_in, is_dark, saved_figure, write_text
from regard_lab.seeing.heads.replacing import (
    Head,
    Layer,
    Outputs,
    attention_layers,
    named_heads,
    recording,
    replacing,
)
from regard_lab.seeing.lenses.contrast import Contrast, Sides, Subject, ids_at_once, logits_of
from regard_lab.seeing.lenses.erasing import greedily_written
from regard_lab.seeing.lenses.record import SIGNED
from regard_lab.seeing.palette import FAINT, INK, UNSEEN
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text import BEGIN, END, UNKNOWN, Pair, score
from regard_lab.text.batches import encode_pairs

By = Literal["mean", "zero", "resample"]
Measure = Literal["log odds", "loss", "bleu"]
BY: tuple[By, ...] = get_args(By)
MEASURES: tuple[Measure, ...] = get_args(Measure)
Chosen = Sequence[Head | str] | None


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
        numbers = {
            f"effect on {self.measure}": {head: one.effect for head, one in self.effects.items()},
            **self.scores,
        }
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, values in numbers.items():
            for kind in dict.fromkeys(head.attention for head in values):
                own = {
                    (head.layer, head.head): one
                    for head, one in values.items()
                    if head.attention == kind
                }
                table = torch.full([max(axis) + 1 for axis in zip(*own, strict=True)], torch.nan)
                table[tuple(torch.tensor([*own]).T)] = torch.tensor([*own.values()])
                found.setdefault(kind, {})[name] = table
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, the head of the largest effect first; an error that is not known is null."""
        rows = []
        for head in self.ranked:
            effect, error, flips = self.effects[head]
            measured = {
                "effect": effect,
                "error": error if math.isfinite(error) else None,
                "flips": flips,
            }
            more = {name: values[head] for name, values in self.scores.items() if head in values}
            rows.append({"name": str(head), **head._asdict(), **measured, **more})
        of = {"measure": self.measure, "replaced_by": self.by, "value": self.value}
        return {**of, "texts": self.texts, "asked": self.asked, "heads": rows}

    def text(self) -> str:
        """A table, the head of the largest effect first."""
        flips = any(one.flips is not None for one in self.effects.values())
        rows = [["head", "effect", *(["other word"] if flips else []), *self.scores]]
        for head in self.ranked:
            effect, error, flipped = self.effects[head]
            within = f" ± {error:.3f}" if math.isfinite(error) else ""
            row = [
                str(head),
                f"{effect:+.3f}{within}",
                *([] if flipped is None else [f"{flipped:.3f}"]),
            ]
            rows.append(
                row
                + [
                    f"{values[head]:.3f}" if head in values else "-"
                    for values in self.scores.values()
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        texts = count_of(self.texts, "texts", ",") + (
            "" if self.texts == self.asked else f" of {self.asked:,}"
        )
        unit = "without a head" if self.by != "patch" else "with a head of the other text"
        title = f"{self.measure} {self.value:.3f} over {texts}; {unit} ({self.by}):"
        return "\n".join(
            [title, *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]
        )


Progress = Callable[[HeadEffects], None]


def ablate(
    model: nn.Module,
    tokeniser: Any,
    texts: Sequence[Any],
    *,
    heads: Chosen = None,
    measure: Measure | None = None,
    by: By = "mean",
    seed: int = 0,
    progress: Progress = lambda effects: None,
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
    texts = a_list(
        "texts", texts, (Contrast, str, Pair, tuple), "contrasts, texts, or pairs of texts"
    )
    _check_texts(texts, by)
    odds = isinstance(texts[0], Contrast)
    measure = ("log odds" if odds else "loss") if measure is None else measure
    if measure not in MEASURES or (measure == "log odds") != odds:
        raise ArgumentError(
            f"measure is {shown(measure)}: 'log odds' are of contrasts, as find_contrast returns them, and 'loss' and "
            f"'bleu' of texts; {count_of(len(texts), 'texts')} were given"
        )
    examples = [
        one
        for number, text in enumerate(texts)
        for one in _examples(model, tokeniser, text, number)
    ]
    if missing := sorted({*range(len(texts))} - {one.text for one in examples}):
        raise ArgumentError(
            f"text {missing[0]} of {len(texts)}, from 0, has no ids, so nothing can be measured on it"
        )
    stored = _recorded(model, examples)
    drawn = torch.Generator().manual_seed(whole("seed", seed, 0))
    shift = torch.randint(1, max(2, len(texts)), (len(texts),), generator=drawn).tolist()
    instead = _instead(
        stored, examples, by, [(text + by_) % len(texts) for text, by_ in enumerate(shift)]
    )
    references: list[str] = []
    if measure == "bleu":
        if not isinstance(model, TranslationTransformer):
            raise UnsupportedError(
                f"BLEU scores the translations of a TranslationTransformer, and the model is {kind_of(model)}"
            )
        references = [text[1] if isinstance(text, tuple) else text.target for text in texts]
    return _measured(
        model, tokeniser, examples, references, heads, stored, instead, measure, by, progress
    )


def patch(
    model: nn.Module,
    tokeniser: Any,
    pairs: Sequence[tuple[Contrast, Contrast]],
    *,
    heads: Chosen = None,
    progress: Progress = lambda effects: None,
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
    others, examples = (
        [_examples(model, tokeniser, pair[side], number)[0] for number, pair in enumerate(pairs)]
        for side in (0, 1)
    )
    for other, into in zip(others, examples, strict=True):
        if other.sizes[:-2] != into.sizes[:-2]:
            sizes = [
                " and ".join(f"{len(ids)} {side}" for side, ids in one.ids.items())
                for one in (other, into)
            ]
            raise ArgumentError(
                f"the texts of a pair have {sizes[0]} ids and {sizes[1]}; a head is patched position by position, so "
                f"give texts with equally many ids"
            )
    stored = _recorded(model, others)
    # Text i gets the outputs of other text i.
    instead = _instead(stored, others, "resample", range(len(pairs)))
    return _measured(
        model, tokeniser, examples, [], heads, stored, instead, "log odds", "patch", progress
    )


def _check_texts(texts: Sequence[Any], by: str) -> None:
    if not texts:
        raise ArgumentError("there are 0 texts, so nothing can be measured; give at least one")
    if len(texts) == 1 and by == "resample":
        raise ArgumentError(
            "by='resample' takes what a head returns in another text, and one was given; give more"
        )


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
    def sizes(self) -> tuple[Any, ...]:
        """Examples of equal sizes are computed together, without padding."""
        return (
            *((side, len(ids)) for side, ids in self.ids.items()),
            len(self.at),
            len(self.instead_of),
        )

    def value(self, logits: torch.Tensor) -> float:
        """The log odds, or the summed loss, of logits (length, vocab_size) or (classes,)."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen = logits[list(self.at)] if logits.dim() == 2 else logits[None]
        right = chosen[range(len(self.of)), list(self.of)]
        others = chosen[:, list(self.instead_of)] if self.instead_of else chosen
        return float((right - others.logsumexp(-1)).sum()) * (1 if self.instead_of else -1)


def _examples(model: nn.Module, tokeniser: Any, text: Any, number: int) -> list[Example]:
    """What a text asks of a model. An encoder predicts each id, masked in turn; UNKNOWN is the mask of our encoders."""
    found: list[Any] = []
    if isinstance(text, Contrast):
        ids = {side: one for side in ("source", "written") if (one := getattr(text, side))}
        at = len(text.written) - 1 if text.at is None else text.at
        return [Example(ids, (at,), (text.of,), text.instead_of, number)]
    if isinstance(model, Subject):
        found = model.asked(text)
    elif isinstance(model, TranslationTransformer) and not isinstance(text, str):
        ((source, target),) = encode_pairs(
            [Pair(*text) if isinstance(text, tuple) else text], tokeniser
        )
        found = [
            (
                {"source": [*source, END], "written": [BEGIN, *target]},
                range(len(target) + 1),
                [*target, END],
            )
        ]
    elif isinstance(model, LanguageModel) and isinstance(text, str):
        ids = [BEGIN, *tokeniser.encode(text)]
        found = [({"written": ids[:-1]}, range(len(ids) - 1), ids[1:])] if len(ids) > 1 else []
    elif (
        isinstance(model, TextEncoder)
        and model.config.head == "classes"
        and not isinstance(text, str)
    ):
        found = [
            (
                {"source": [BEGIN, *tokeniser.encode(text[0]), END]},
                (),
                [whole("the class of a text", text[1], 0)],
            )
        ]
    elif isinstance(model, TextEncoder) and model.config.head == "words" and isinstance(text, str):
        ids = [BEGIN, *tokeniser.encode(text), END]
        found = [
            ({"source": [*ids[:at], UNKNOWN, *ids[at + 1 :]]}, [at], [ids[at]])
            for at in range(1, len(ids) - 1)
        ]
    else:
        attention_layers(model)  # refuses models without heads
        head = f" whose head is {model.config.head!r}" if isinstance(model, TextEncoder) else ""
        raise ArgumentError(
            f"{shown(text)} is no text for a {type(model).__name__}{head}; see the arguments of ablate"
        )
    return [
        Example({side: (*ids,) for side, ids in sides.items()}, (*at,), (*of,), (), number)
        for sides, at, of in found
    ]


def _recorded(model: nn.Module, examples: Sequence[Example]) -> list[Outputs]:
    """What the heads return in each example, (length, heads, v_dim) by layer."""
    stored: dict[int, Outputs] = {}
    with in_eval_mode(model), torch.no_grad():
        for group in _groups(model, examples, 1):
            with recording(model) as outputs:
                logits_of(model, _batch(model, [examples[at] for at in group]))
            stored |= {
                at: {layer: rows[row] for layer, rows in outputs.items()}
                for row, at in enumerate(group)
            }
    return [stored[at] for at in range(len(examples))]


# A layer and examples -> (rows or 1, length, heads, v_dim).
Instead = Callable[[Layer, Sequence[Example]], torch.Tensor]


def _instead(
    stored: list[Outputs], examples: Sequence[Example], by: str, others: Sequence[int]
) -> Instead:
    """What heads return in place of what they computed; `others` is the other text of each."""
    first = {one.text: at for at, one in reversed([*enumerate(examples)])}

    def another(layer: Layer, chosen: Sequence[Example]) -> torch.Tensor:
        rows = [stored[first[others[one.text]]][layer] for one in chosen]
        longest = max(map(len, rows))
        return torch.stack(
            [torch.cat([row, row[-1:].expand(longest - len(row), -1, -1)]) for row in rows]
        )

    if by == "resample":
        return another
    means = {
        layer: torch.cat([one[layer] for one in stored]).double().mean(0)[None, None]
        for layer in stored[0]
    }
    means = {layer: mean.to(stored[0][layer]) * (by == "mean") for layer, mean in means.items()}
    return lambda layer, _: means[layer]


def _groups(model: nn.Module, examples: Sequence[Example], copies: int) -> Iterator[list[int]]:
    """Examples of equal sizes, as many as one run of the model computes with so many rows for each."""
    alike: dict[Any, list[int]] = {}
    for at, one in enumerate(examples):
        alike.setdefault(one.sizes, []).append(at)
    for group in alike.values():
        length = sum(map(len, examples[group[0]].ids.values()))
        most = max(1, ids_at_once(model) // (length * copies))
        yield from (group[first : first + most] for first in range(0, len(group), most))


def _batch(model: nn.Module, examples: Sequence[Example], copies: int = 1) -> Sides:
    device = next(model.parameters()).device
    return {
        side: torch.tensor([one.ids[side] for one in examples], device=device).repeat_interleave(
            copies, 0
        )
        for side in examples[0].ids
    }


def _measured(
    model: nn.Module,
    tokeniser: Any,
    examples: Sequence[Example],
    references: Sequence[str],
    heads: Any,
    stored: list[Outputs],
    instead: Instead,
    measure: str,
    by: str,
    progress: Progress,
) -> HeadEffects:
    """Effects, reported after each group of texts; a run of the model has one row per example and head.

    Args:
        references: the right translation of each text, for BLEU.
    """
    named = named_heads({layer: rows.shape[1] for layer, rows in stored[0].items()}, heads)
    asked = len({one.text for one in examples})
    count = len(named)

    def outcomes(chosen: Sequence[Example], ids: Sides) -> list[Any]:
        """The value of each example, or for BLEU its translation by greedy search."""
        if measure == "bleu":
            return [tokeniser.decode(written) for written in greedily_written(model, ids["source"])]
        return [one.value(row) for one, row in zip(chosen, logits_of(model, ids), strict=True)]

    # Examples with the outcomes of the unchanged model, then of that without each head.
    done: list[tuple[Example, list[Any]]] = []
    effects = None
    with in_eval_mode(model), torch.no_grad():
        for group in _groups(model, examples, count + 1):
            chosen = [examples[at] for at in group]
            own = outcomes(chosen, _batch(model, chosen))
            values = {layer: instead(layer, chosen) for layer in stored[0]}
            rows = {
                layer: one if len(one) == 1 else one.repeat_interleave(count, 0)
                for layer, one in values.items()
            }
            with replacing(model, named, rows):
                others = outcomes(
                    [one for one in chosen for _ in named], _batch(model, chosen, count)
                )
            done += [
                (one, [own[at], *others[at * count : (at + 1) * count]])
                for at, one in enumerate(chosen)
            ]
            value, found = (
                _bleu(done, references)
                if measure == "bleu"
                else _means(done, odds=measure == "log odds")
            )
            effects = HeadEffects(
                measure=measure,
                by=by,
                value=value,
                texts=len({one.text for one, _ in done}),
                asked=asked,
                effects=dict(zip(named, found, strict=True)),
            )
            progress(effects)
    assert effects is not None
    return effects


def _means(done: list[tuple[Example, list[Any]]], *, odds: bool) -> tuple[float, list[Effect]]:
    """Log odds are averaged over texts, a loss over the ids of all texts."""
    sums: dict[int, list[float]] = {}  # by text: ids, the value, and the values without each head
    for one, values in done:
        row = [float(len(one.of)), *values]
        sums[one.text] = [
            a + b for a, b in zip(sums.get(one.text, [0.0] * len(row)), row, strict=True)
        ]
    rows = list(sums.values())
    effects = []
    ids, own = (math.fsum(row[at] for row in rows) for at in (0, 1))
    for at in range(2, len(rows[0])):
        losses = [(row[1] - row[at]) * (1 if odds else -1) for row in rows]
        effect = math.fsum(losses) / ids
        # The standard error of a ratio of two sums.
        spread = [loss - effect * row[0] for loss, row in zip(losses, rows, strict=True)]
        error = (
            math.sqrt(len(rows) * statistics.variance(spread)) / ids if len(rows) > 1 else math.inf
        )
        flips = sum(row[at] <= 0 < row[1] for row in rows) / len(rows)
        effects.append(Effect(effect, error, flips if odds else None))
    return own / ids, effects


def _bleu(
    done: list[tuple[Example, list[Any]]], references: Sequence[str]
) -> tuple[float, list[Effect]]:
    right = [references[one.text] for one, _ in done]
    own, *others = (
        score(list(column), right).bleu for column in zip(*(row for _, row in done), strict=True)
    )
    return own, [Effect(own - other) for other in others]


CELL, LEFT, TOP, GAP = 0.5, 0.9, 1.0, 0.75  # inches


def draw_head_effects(
    effects: HeadEffects, path: str | Path, *, title: str = "", footer: bool = True
) -> None:
    """Draw the effect of each head: a row for each layer, a column for each head; blue: the model is better with it.

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
    with saved_figure(path) as figure:
        from matplotlib import colormaps

        scale = colormaps[SIGNED].with_extremes(bad=UNSEEN)
        width = LEFT + max(max(grid.shape[1] for grid in grids.values()) * CELL, 6.2) + 0.3
        height = TOP + sum(len(grid) * CELL + GAP for grid in grids.values())
        figure.set_size_inches(width, height + (0.35 if footer else 0.0))
        patched = effects.by == "patch"
        text = (
            title
            or f"Effect of each head {'of the other text' * patched or f'({effects.by})'} on {effects.measure}"
        )
        write_text(figure, text, 0.3, 0.25, 12.5, weight="bold")
        top = TOP
        for kind, grid in grids.items():
            write_text(
                figure,
                f"{kind}: layers ↓, heads →",
                LEFT,
                top - 0.42,
                8.5,
                color=FAINT,
                style="italic",
            )
            axes = axes_in(figure, Box(LEFT, top, grid.shape[1] * CELL, len(grid) * CELL))
            axes.imshow(
                (0.5 + 0.45 * grid / largest).numpy(), cmap=scale, vmin=0, vmax=1, aspect="auto"
            )
            axes.set_xticks(range(grid.shape[1]))
            axes.set_yticks(range(len(grid)))
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
            for layer, head in (
                torch.cartesian_prod(*map(torch.arange, grid.shape)).reshape(-1, 2).tolist()
            ):
                if not torch.isnan(value := grid[layer, head]):
                    ink = (
                        "white" if is_dark(scale(float(0.5 + 0.45 * value / largest))) else "black"
                    )
                    axes.text(
                        head,
                        layer,
                        f"{value:+.2f}",
                        fontsize=7,
                        color=ink,
                        ha="center",
                        va="center",
                    )
            top += len(grid) * CELL + GAP
        if footer:
            of = f"{effects.measure} {effects.value:.3f} over {count_of(effects.texts, 'texts', ',')}"
            blue = (
                "what the head returns there lowers them"
                if patched
                else "the model is better with the head"
            )
            write_text(figure, f"Blue: {blue}. {of}.", 0.3, height - 0.25, 7.5, color=FAINT)
