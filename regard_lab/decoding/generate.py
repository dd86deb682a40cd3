"""Continue prompts by greedy search, sampling or beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regard.arguments import a_list, count_of, of_kind, whole
from regard.errors import ArgumentError
from regard_lab.decoding.beam import beam_search
from regard_lab.decoding.sampling import Sampling
from regard_lab.decoding.search import (
    OURS,
    OWN,
    Hypothesis,
    Keeping,
    Over,
    SpecialIds,
    admitted,
    check_search,
    length_limits,
    open_texts,
)
from regard_lab.models.state import Writer

GREEDY = Sampling(temperature=0)


def greedy_search(
    model: Writer[Any],
    texts: torch.Tensor,
    max_length: int | None = None,
    special: SpecialIds = OURS,
    *,
    cache: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
) -> list[Hypothesis]:
    """Greedy search: one hypothesis for each batch row, always with the most likely next id.

    Args:
        model: a model with `start` and `step`.
        texts: ids (batch, length), padded with PAD: sources to translate, or prompts to continue.
        max_length: the most new ids; by default twice the ids of the batch row plus 16.
        special: ids with a special meaning.
        cache, cache_dtype: as for `generate`.

    Returns:
        One hypothesis for each batch row; its score is its log-probability.
    """
    check_search(special, None)
    keeping = Keeping(cache, cache_dtype)
    return write(model, texts, length_limits(texts, max_length), GREEDY, special=special, keeping=keeping)


@torch.inference_mode()
def write(
    model: Writer[Any],
    texts: torch.Tensor,
    limits: Sequence[int],
    sampling: Sampling,
    *,
    count: int = 1,
    rows: Sequence[int] | None = None,
    over: Over | None = None,
    special: SpecialIds = OURS,
    keeping: Keeping = OWN,
) -> list[Hypothesis]:
    """Write `count` texts for each batch row, id by id; finished texts leave the batch.

    Args:
        model, texts, special: as for `greedy_search`.
        limits: the most new ids of each batch row.
        sampling: how the next id is chosen.
        count: texts for each batch row.
        rows: the number of each batch row in its draws; 0, 1, ... by default.
        over: function of (row · count + number of the text, ids) that returns True to end a text.
        keeping: how keys and values are stored.

    Returns:
        Hypotheses, those of one batch row together. Log-probability and score are those of the model, before
        temperature and filters.
    """
    if not len(texts):
        return []
    state, scores = open_texts(model, texts, special, keeping, max(limits))
    if count > 1:
        each = torch.arange(len(texts), device=texts.device).repeat_interleave(count)
        state.reorder(each)
        scores = scores[each]
    rows = range(len(texts)) if rows is None else rows
    numbers = torch.tensor([row + (copy << 32) for row in rows for copy in range(count)], device="cpu")
    written: list[list[int]] = [[] for _ in numbers]
    totals = [0.0] * len(written)
    finished = [False] * len(written)
    going = list(range(len(written)))
    while going:
        scores, total = admitted(scores, special)
        ids = sampling.choose(scores, numbers[going], len(written[going[0]]))
        gains = (scores.gather(-1, ids[:, None]) - total)[:, 0]
        staying = []
        for at, (row, chosen, gain) in enumerate(zip(going, ids.tolist(), gains.tolist(), strict=True)):
            totals[row] += gain
            if chosen == special.end:
                finished[row] = True
                continue
            written[row].append(chosen)
            finished[row] = over is not None and over(row, written[row])
            if not finished[row] and len(written[row]) < limits[row // count]:
                staying.append(at)
        if len(staying) < len(going):
            index = torch.tensor(staying, dtype=torch.int64, device=ids.device)
            going = [going[at] for at in staying]
            ids = ids[index]
            if going:
                state.reorder(index)
        if going:
            scores = model.step(ids, state)
    return [
        Hypothesis(tuple(ids), total, total, done) for ids, total, done in zip(written, totals, finished, strict=True)
    ]


def generate(
    model: Writer[Any],
    prompts: torch.Tensor,
    *,
    max_tokens: int | None = 100,
    sampling: Sampling | None = None,
    beam: int = 1,
    count: int = 1,
    normalisation: str = "none",
    alpha: float = 0.6,
    rows: Sequence[int] | None = None,
    over: Over | None = None,
    special: SpecialIds = OURS,
    cache: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
) -> list[list[Hypothesis]]:
    """Continue prompts, or translate sources, by greedy search, sampling or beam search.

    Args:
        model: a model with `start` and `step`: a LanguageModel or a translator.
        prompts: ids (batch, length) of unequal lengths, padded with PAD on either side.
        max_tokens: the most new ids; None for twice the ids of the prompt plus 16.
        sampling: settings of sampling; None takes the most likely id.
        beam: more than 1 for beam search, which does not sample.
        count: texts for each prompt: independent samples, or the best of a beam.
        normalisation, alpha: length normalisation of beam scores; see `normalised`.
        rows: the number of each prompt in its draws; 0, 1, ... by default. A prompt with the same number and seed gives
            the same text in any batch.
        over: function of a text's number and all its new ids that returns True to end it. The number is the batch row
            of a beam, else batch row · count + number of the sample.
        special: ids with a special meaning.
        cache: kind of cache, as `new_cache` of a layer has it: "dynamic", "static", "ring", "paged" or "state"; by
            default the model's own choice. The room of a static cache is that of the prompt and the new ids.
        cache_dtype: storage dtype of keys and values, such as "int8" or torch.bfloat16; that of the weights by default.

    Returns:
        For each prompt `count` hypotheses: the best of a beam first, else in the order of sampling.

    Raises:
        ArgumentError: invalid settings, or settings that exclude each other.
        UnsupportedError: a model without such a cache, or a cache that cannot continue its patterns.

    >>> from regard_lab.models import LanguageConfig, LanguageModel
    >>> model = LanguageModel(LanguageConfig(vocab_size=50, dim=16, heads=2)).eval()
    >>> prompts = torch.tensor([[5, 6, 7], [0, 0, 8]])  # 0 is PAD
    >>> texts = generate(model, prompts, max_tokens=4, sampling=Sampling(top_k=9, seed=1), count=2)
    >>> [len(of_prompt) for of_prompt in texts]
    [2, 2]
    """
    check_search(special, over)
    if sampling is not None:
        of_kind("sampling", sampling, Sampling, "a Sampling, or None for the most likely ids")
    beam, count = whole("beam", beam, 1), whole("count", count)
    if rows is not None:
        rows = a_list("rows", rows, int, "integers, one for each prompt")
        if len(rows) != len(prompts):
            raise ArgumentError(
                f"rows are {count_of(len(rows), 'numbers')} for {len(prompts)} prompts; give one for each prompt"
            )
    sampling = GREEDY if sampling is None else sampling
    if beam != 1:
        if not sampling.is_greedy:
            raise ArgumentError(
                f"beam={beam} and sampling at temperature {sampling.temperature} exclude each other; give one of them"
            )
        return beam_search(
            model, prompts, beam, count=count, normalisation=normalisation, alpha=alpha, max_length=max_tokens,
            over=over, special=special, cache=cache, cache_dtype=cache_dtype,
        )  # fmt: skip
    if count < 1 or (count > 1 and sampling.is_greedy):
        raise ArgumentError(f"count={count}: the most likely ids give 1 text; give sampling= or a larger beam")
    limits = length_limits(prompts, max_tokens)
    keeping = Keeping(cache, cache_dtype)
    written = write(
        model, prompts, limits, sampling, count=count, rows=rows, over=over, special=special, keeping=keeping
    )
    return [written[at : at + count] for at in range(0, len(written), count)]
