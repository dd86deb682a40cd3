"""The lenses by name, and the call that applies one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from regard.arguments import count_of, each, of_kind, shown, whole
from regard.errors import ArgumentError
from regard_lab.models import LanguageModel
from regard_lab.seeing.lenses.alternatives import against_alternatives
from regard_lab.seeing.lenses.contrast import Contrast, find_contrast
from regard_lab.seeing.lenses.erasing import erasure_scores
from regard_lab.seeing.lenses.gradients import gradient_scores
from regard_lab.seeing.lenses.looking import attention_scores, rollout_scores
from regard_lab.seeing.lenses.passes import SIDES, Batch, Explained, in_batches, run
from regard_lab.seeing.lenses.record import Relevance, WordScores
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text import Tokeniser

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
    model: Explained,
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

    Source: integrated gradients, Sundararajan et al. 2017; contrastive scores, Interpreting Language Models with
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
    of_kind("model", model, Explained, "a translation model or a language model")
    of_kind("tokeniser", tokeniser, Tokeniser, "the tokeniser that the model was trained with")
    check_options(lens, head, steps)
    if (source is None) != isinstance(model, LanguageModel):
        raise ArgumentError(
            f"source is {shown(source)} for a {type(model).__name__}; a translation model needs the text that was "
            f"translated, and a language model has none: give source=None"
        )
    if model.config.vocab_size != tokeniser.vocab_size:
        raise ArgumentError(
            f"the model has {count_of(model.config.vocab_size, 'ids')} and the tokeniser {tokeniser.vocab_size}; use "
            "the tokeniser that the model was trained with"
        )
    if not isinstance(instead_of, tuple | list) or instead_of:
        contrast = find_contrast(tokeniser, source, target_ids, of, instead_of, place)
    else:
        contrast = against_alternatives(model, tokeniser, source, target_ids, of, place)
    return explain(model, tokeniser, [contrast], lens, head=head, steps=steps)[0]


def check_options(lens: str, head: tuple[int, int] | None = None, steps: int | None = None) -> None:
    """Raise an ArgumentError for an unknown lens, or an option that belongs to another one."""
    if lens not in LENSES:
        raise ArgumentError(f"there is no lens {lens!r}; there are {', '.join(LENSES)}")
    if head is not None and lens != "attention":
        raise ArgumentError(f"head={shown(head)} belongs to lens='attention', and the lens is {lens!r}; leave it out")
    if (
        head is not None
        and len([whole("a number of head", number) for number in each("head", head, "(layer, head)")]) != 2
    ):
        raise ArgumentError(f"head is {shown(head)}; give (layer, head)")
    if steps is not None and lens != "gradients":
        raise ArgumentError(f"steps={steps} belongs to lens='gradients', and the lens is {lens!r}; leave it out")
    if steps is not None:
        whole("steps", steps, 1)


def explain(
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
            scores = gradient_scores(model, contrasts, steps=steps, sides=sides)
        elif lens == "erase":
            scores = erasure_scores(model, contrasts, sides=sides)
        elif lens == "attention":
            scores = attention_scores(model, tokeniser, contrasts, head=head)
        else:
            scores = rollout_scores(model, tokeniser, contrasts)
        odds = log_odds(model, contrasts)
    which = "the mean over all heads of all layers" if head is None else f"layer {head[0]}, head {head[1]}, from 0"
    note = NOTES[lens].format(which=which)
    return [_record(*one, lens=lens, note=note) for one in zip(contrasts, scores, odds, strict=True)]


@torch.no_grad()
def log_odds(model: Explained, contrasts: Sequence[Contrast]) -> list[float]:
    """The log odds of each contrast, from ids."""
    odds: dict[int, float] = {}
    for group in in_batches(contrasts):
        batch = Batch.of_contrasts([contrasts[index] for index in group], model.embedding.weight.device)
        odds.update(zip(group, run(model, batch).tolist(), strict=True))
    return [odds[index] for index in range(len(contrasts))]


def _record(contrast: Contrast, scores: WordScores, odds: float, *, lens: str, note: str) -> Relevance:
    return Relevance(
        lens=lens,
        word=contrast.word,
        others=contrast.others,
        place=contrast.place,
        log_odds=odds,
        source_words=tuple(word for word, _ in contrast.source_words),
        source_scores=scores.source,
        written_words=tuple(word for word, _ in contrast.written_words),
        written_scores=scores.written,
        passes=scores.passes,
        backward_passes=scores.backward_passes,
        completeness=max(scores.errors.values(), default=None),
        changes=scores.changes,
        note=note,
    )
