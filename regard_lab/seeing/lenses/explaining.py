"""The lenses by name, and the call that applies one of them.

Gradients and attention are here; erasing is in a file of its own. Attention shows where a model looks, not what it
uses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch

from regard.arguments import each, of_kind, shown, whole
from regard.errors import ArgumentError, UnsupportedError
from regard_lab.decoding.loading import check_together
from regard_lab.models import LanguageModel, RecurrentTranslator
from regard_lab.seeing.lenses.contrast import (
    SIDES,
    Contrast,
    ContrastBatch,
    Explained,
    Ours,
    Subject,
    against_alternatives,
    by_batch,
    embedded,
    find_contrast,
    rows_of,
    run,
    weights_of,
    without_words,
)
from regard_lab.seeing.lenses.erasing import erasure_relevances
from regard_lab.seeing.lenses.record import Found, Relevance, by_word
from regard_lab.seeing.maps import check_attends
from regard_lab.seeing.watching import in_eval_mode, layers_with_weights
from regard_lab.text import Tokeniser

STEPS = 20
FINER = 3  # times as many steps, while the completeness error is too large
MOST_STEPS = 540
ENOUGH = 0.05  # the completeness error at which they stay: of the change of the log odds, if that is above 1


@dataclass(frozen=True)
class Integrated:
    """Integrated gradients of one side of a contrast.

    Args:
        relevances: (length,) of each id, float32 or wider; 0 for padding, BEGIN and END.
        change: the log odds minus those with every word of the side replaced by the baseline.
    """

    relevances: torch.Tensor
    change: float

    @property
    def error(self) -> float:
        """The completeness error: `|sum of relevances - change|`."""
        return abs(float(self.relevances.sum()) - self.change)

    @property
    def is_complete(self) -> bool:
        """Whether the steps were enough."""
        return self.error <= ENOUGH * max(1.0, abs(self.change))


def integrate(
    model: Explained, side: str, steps: int, contrasts: Sequence[Contrast], batch: ContrastBatch
) -> list[Integrated]:
    """Integrate the gradient of the log odds f along the line from the baseline b to the embeddings x of one side.

        r_i = (x_i - b) . mean over s of grad_i f(b + (s + 1/2) / steps (x - b))

    The other side stays as it is. One run of the model holds all steps of all batch rows.

    Source: Axiomatic Attribution for Deep Networks, Sundararajan et al. 2017, section 3.
    """
    vectors = embedded(model, batch)
    without = without_words(model, batch)
    dtype = vectors[side].dtype
    wide = torch.promote_types(dtype, torch.float32)
    x = vectors[side].to(wide)
    baselines = without[side].to(wide)

    # Row r of the run is step r % steps of batch row r // steps.
    index = torch.arange(len(x), device=x.device).repeat_interleave(steps)
    shares = (torch.arange(steps, device=x.device, dtype=wide) + 0.5) / steps
    shares = shares.repeat(len(x))[:, None, None]
    path = (baselines[index] + shares * (x - baselines)[index]).requires_grad_()
    # cuDNN has no backward pass in eval mode.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        odds = run(model, batch.rows(index), rows_of(vectors, index) | {side: path.to(dtype)})
        (gradient,) = torch.autograd.grad(odds.sum(), path)
    mean = gradient.unflatten(0, (len(x), steps)).mean(1)  # (batch, length, dim)
    relevances = ((x - baselines) * mean).sum(-1)
    with torch.no_grad():
        changes = run(model, batch) - run(model, batch, vectors | {side: without[side]})
    return [
        Integrated(row, change) for row, change in zip(relevances, changes.tolist(), strict=True)
    ]


def gradient_relevances(
    model: Explained,
    contrasts: Sequence[Contrast],
    *,
    steps: int | None = None,
    sides: Sequence[str] = SIDES,
) -> list[Found]:
    """Integrated gradients of each word of the source, and apart from them of each written word.

    Args:
        steps: of the integral. None takes 20, and for texts whose completeness error is then above 5 % of the change of
            the log odds 60, 180 and at last 540.
        sides: "source", "written" or both; a side that is left out has no relevances.
    """
    parts_of: list[dict[str, Integrated]] = [{} for _ in contrasts]
    backward_passes = [0] * len(contrasts)
    for side in sides:
        pending = [index for index, contrast in enumerate(contrasts) if getattr(contrast, side)]
        number = STEPS if steps is None else steps
        while pending:
            integrated = partial(integrate, model, side, number)
            parts = by_batch(model, [contrasts[index] for index in pending], integrated, number)
            incomplete = []
            for index, part in zip(pending, parts, strict=True):
                parts_of[index][side] = part
                backward_passes[index] += number
                if not part.is_complete:
                    incomplete.append(index)
            if steps is not None or number >= MOST_STEPS:
                break
            pending = incomplete
            number *= FINER

    records: list[Found] = []
    for contrast, parts, back in zip(contrasts, parts_of, backward_passes, strict=True):
        record: Found = {"passes": 1 + len(parts) + back, "backward_passes": back}
        record["completeness"] = max((part.error for part in parts.values()), default=None)
        record["changes"] = {side: part.change for side, part in parts.items()}
        for side, part in parts.items():
            record[f"{side}_scores"] = by_word(part.relevances, contrast.words_of(side))
        records.append(record)
    return records


# Relevances of the source ids and of the written ids.
IdRelevances = tuple[torch.Tensor, torch.Tensor]
# Encoder, decoder, cross: (layers, heads, rows, keys).
Stacks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attention_relevances(
    model: Explained, contrasts: Sequence[Contrast], *, head: tuple[int, int] | None = None
) -> list[Found]:
    """The raw weights of the step that writes the word: cross-attention to the source, self-attention to the written.

    For a masked word these are the weights of its own position on the text.

    Args:
        model: a model with attention; a recurrent translator has no weights on written words.
        contrasts: what is explained; attention does not depend on the words that are compared.
        head: (layer, head), from 0; None for the mean over all heads of all layers.
    """

    def last_row(stacks: Stacks, at: int | None) -> IdRelevances:
        encoder, decoder, cross = stacks
        if at is not None:
            return _weights_of_head(encoder, head)[at], torch.zeros(0)
        return _last_row(_weights_of_head(cross, head)), _last_row(_weights_of_head(decoder, head))

    return _from_weights(model, contrasts, last_row)


def _last_row(weights: torch.Tensor) -> torch.Tensor:
    """The weights of the last query; none if there are no queries."""
    return weights[-1] if len(weights) else weights.flatten()


def rollout_relevances(model: Explained, contrasts: Sequence[Contrast]) -> list[Found]:
    """Attention rolled out through all layers: the product of the mean weights, half of each layer being the residual.

        E = prod over encoder layers of (A + I) / 2
        X = [0, I];  for each decoder layer: X = (A + I) / 2 X, then X = X / 2 + [C E, 0] / 2

    The row of the step that writes the word is the result. It is a weak lens: it treats every head as equally useful
    and ignores values, norms and feed-forwards.

    Source: Quantifying Attention Flow in Transformers, Abnar and Zuidema 2020, section 3.
    """
    if not rolls_out(model):
        name = type(model).__name__
        without = f"this {name} has none"
        if isinstance(model, LanguageModel) and layers_with_weights(model):
            without = f"some of this {name} have none"
        raise UnsupportedError(
            f"rollout multiplies the self-attention of all layers, and {without}; use lens='gradients' or lens='erase'"
        )
    return _from_weights(model, contrasts, rolled_out)


def rolls_out(model: Explained) -> bool:
    """Whether every layer has self-attention that can be rolled out; a recurrent layer has none."""
    if isinstance(model, LanguageModel):
        return len(layers_with_weights(model)) == len(model.blocks)
    return not isinstance(model, RecurrentTranslator)


def rolled_out(stacks: Stacks, at: int | None) -> IdRelevances:
    """The last row of the rollout of one text, for its source ids and its written ids; or row `at` of its source."""
    encoder, decoder, cross = (stack.mean(1) for stack in stacks)  # (layers, rows, keys)
    from_source = torch.eye(encoder.shape[-1])
    for weights in encoder:
        from_source = _with_residual(weights) @ from_source
    if at is not None:
        return from_source[at], torch.zeros(0)

    source = torch.zeros(decoder.shape[-1], encoder.shape[-1])
    written = torch.eye(decoder.shape[-1])
    for layer, weights in enumerate(decoder):
        mixing = _with_residual(weights)
        source = mixing @ source
        written = mixing @ written
        if layer < len(cross):
            source = (source + cross[layer] @ from_source) / 2
            written = written / 2
    return source[-1], written[-1]


def _with_residual(weights: torch.Tensor) -> torch.Tensor:
    """The mean weights of a layer, half of which is the residual."""
    return (weights + torch.eye(len(weights))) / 2


def _weights_of_head(weights: torch.Tensor, head: tuple[int, int] | None) -> torch.Tensor:
    """(layers, heads, rows, keys) -> the weights of a head, or the mean; none if there are no layers."""
    layers, heads = weights.shape[:2]
    if not layers:
        return weights.new_zeros(0, 0)
    if head is None:
        return weights.mean((0, 1))
    layer, number = head
    if not (0 <= layer < layers and 0 <= number < heads):
        raise ArgumentError(
            f"head {number} of layer {layer} does not exist; there are layers 0 to {layers - 1} and heads 0 to "
            f"{heads - 1}"
        )
    return weights[layer, number]


def _from_weights(
    model: Explained,
    contrasts: Sequence[Contrast],
    read: Callable[[Stacks, int | None], IdRelevances],
) -> list[Found]:
    """Word relevances from the weights of one pass; `read` gets those of one text without its padding."""
    if not isinstance(model, LanguageModel | Subject):
        check_attends(model)
    if any(not contrast.written and contrast.at is None for contrast in contrasts):
        raise UnsupportedError(
            "a class is chosen at no position, so no row of attention explains it; use lens='erase'"
        )

    def relevances(chosen: list[Contrast], batch: ContrastBatch) -> Iterator[Found]:
        encoder, decoder, cross = weights_of(model, batch.ids)
        for row, contrast in enumerate(chosen):
            s = len(contrast.source)
            t = len(contrast.written)
            stacks = (
                encoder[:, row, :, :s, :s],
                decoder[:, row, :, :t, :t],
                cross[:, row, :, :t, :s],
            )
            record: Found = {"passes": 1}
            for side, of_ids in zip(SIDES, read(stacks, contrast.at), strict=True):
                if len(of_ids):
                    record[f"{side}_scores"] = by_word(of_ids, contrast.words_of(side))
            yield record

    return by_batch(model, contrasts, relevances)


Lens = Literal["gradients", "erase", "attention", "rollout"]
LENSES: tuple[Lens, ...] = get_args(Lens)
DEFAULT: Lens = "erase"
NOTES = {
    "gradients": "Integrated gradients from the mean of the words' embeddings, for each side apart.",
    "erase": "The fall of the log odds when a word is replaced by the mean of the words' embeddings.",
    "attention": "Raw attention while the word is written, {which}: it says where the model looks, not what it uses.",
    "rollout": "Attention rolled out through all layers: a weak lens, which ignores what the layers compute.",
}


def relevance(
    model: Ours,
    tokeniser: Tokeniser,
    source: str | None,
    target_ids: Sequence[int],
    of: str,
    instead_of: Sequence[str] = (),
    lens: Lens = DEFAULT,
    *,
    place: int | None = None,
    head: tuple[int, int] | None = None,
    steps: int | None = None,
) -> Relevance:
    """The relevance of each word that the model had read for one written word rather than others.

        log odds = logit(of) - log(sum over instead_of of exp(logit)),   where `of` was written

    "erase" replaces one word at a time. It is the default: of the lenses here it agrees best with the words that a
    trained model was shown to depend on (`regard lenses`, docs/lenses.md). The relevance by "gradients" adds up to the
    change of the log odds. "attention" and "rollout" show the weights, which are not signed and need not be what the
    model uses.

    Args:
        model: a translation model or a language model, in float32 or bfloat16; it is left unchanged.
        tokeniser: the tokeniser that the model was trained with.
        source: the text that was translated; None for a language model.
        target_ids: what was written, without BEGIN and END, as `Translation.ids`; for a language model with its prompt.
        of: the written word to explain.
        instead_of: words that could stand in its place. Words are compared by their first sub-words. By default the
            three that the model found most probable beside it; the result names them.
        lens: "gradients", "erase", "attention" or "rollout".
        place: index of the word among the written words, if it occurs more than once.
        head: for "attention", (layer, head) from 0; the mean over all heads of all layers by default.
        steps: for "gradients", of the integral. By default 20, or up to 540 where the completeness error needs them.

    Returns:
        The relevance of whole words: the sum over their sub-words.

    Raises:
        ArgumentError: a word that was not written or occurs several times, words that begin with the same sub-word, an
            unknown lens, or an option of another lens.
        UnsupportedError: attention of a model without attention, or rollout of a recurrent translator.

    Source: integrated gradients, Sundararajan et al. 2017; contrastive relevance, Interpreting Language Models with
    Contrastive Explanations, Yin and Neubig 2022.

    >>> from regard_lab.models import TranslationTransformer
    >>> tokeniser = Tokeniser.train(["The animal slept. Das Tier schlief, weil es er sie müde war."] * 2, 400)
    >>> model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    >>> written = tokeniser.encode("Das Tier schlief, weil es müde war.")
    >>> asked = {"of": "es", "instead_of": ("er", "sie")}
    >>> why = relevance(model, tokeniser, "The animal slept.", written, **asked, lens="gradients")
    >>> why.question, why.source_words, why.written_words[-1]
    ('es rather than er or sie', ('The', 'animal', 'slept', '.', '<end>'), 'weil')
    >>> change = why.changes["source"]                      # the log odds minus those without the source's words
    >>> abs(sum(why.source_scores) - change) <= why.completeness + 1e-6
    True
    """
    of_kind("model", model, Ours, "a translation model or a language model")
    check_options(lens, head, steps)
    if (source is None) != isinstance(model, LanguageModel):
        raise ArgumentError(
            f"source is {shown(source)} for a {type(model).__name__}; a translation model needs the text that was "
            f"translated, and a language model has none: give source=None"
        )
    check_together(model.config.vocab_size, tokeniser)
    if not isinstance(instead_of, tuple | list) or instead_of:
        contrast = find_contrast(tokeniser, source, target_ids, of, instead_of, place)
    else:
        contrast = against_alternatives(model, tokeniser, source, target_ids, of, place)
    return explain_contrasts(model, tokeniser, [contrast], lens, head=head, steps=steps)[0]


def check_options(lens: str, head: tuple[int, int] | None = None, steps: int | None = None) -> None:
    """Raise an ArgumentError for an unknown lens, or an option that belongs to another one."""
    if lens not in LENSES:
        raise ArgumentError(f"there is no lens {lens!r}; there are {', '.join(LENSES)}")
    if head is not None and lens != "attention":
        raise ArgumentError(
            f"head={shown(head)} belongs to lens='attention', and the lens is {lens!r}; leave it out"
        )
    if head is not None:
        numbers = list(each("head", head, "(layer, head)"))
        for number in numbers:
            whole("a number of head", number)
        if len(numbers) != 2:
            raise ArgumentError(f"head is {shown(head)}; give (layer, head)")
    if steps is not None and lens != "gradients":
        raise ArgumentError(
            f"steps={steps} belongs to lens='gradients', and the lens is {lens!r}; leave it out"
        )
    if steps is not None:
        whole("steps", steps, 1)


def explain_contrasts(
    model: Explained,
    tokeniser: Tokeniser,
    contrasts: Sequence[Contrast],
    lens: str = DEFAULT,
    *,
    head: tuple[int, int] | None = None,
    steps: int | None = None,
    sides: Sequence[str] = SIDES,
) -> list[Relevance]:
    """Apply a lens to many contrasts, in batches; `relevance` is the call for one, with its arguments checked.

    Args:
        model, tokeniser, lens, head, steps: as for `relevance`.
        contrasts: as `find_contrast` returns them.
        sides: "source", "written" or both, for "gradients" and "erase"; fewer sides take fewer passes.

    Returns:
        One record for each contrast, in order.
    """
    with in_eval_mode(model):
        if lens == "gradients":
            records = gradient_relevances(model, contrasts, steps=steps, sides=sides)
        elif lens == "erase":
            records = erasure_relevances(model, contrasts, sides=sides)
        elif lens == "attention":
            records = attention_relevances(model, contrasts, head=head)
        else:
            records = rollout_relevances(model, contrasts)
        odds = log_odds(model, contrasts)

    which = "the mean over all heads of all layers"
    if head is not None:
        which = f"layer {head[0]}, head {head[1]}, from 0"
    note = NOTES[lens].format(which=which)
    relevances = []
    for contrast, record, value in zip(contrasts, records, odds, strict=True):
        relevance = Relevance(
            lens=lens,
            word=contrast.word,
            others=contrast.others,
            place=contrast.place,
            log_odds=value,
            source_words=tuple(word for word, _ in contrast.source_words),
            written_words=tuple(word for word, _ in contrast.written_words),
            note=note,
            **record,
        )
        relevances.append(relevance)
    return relevances


@torch.no_grad()
def log_odds(model: Explained, contrasts: Sequence[Contrast]) -> list[float]:
    """The log odds of each contrast, from ids."""
    return by_batch(model, contrasts, lambda _, batch: run(model, batch).tolist())
