"""Prompts continued: the one call for every way of searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regard.arguments import whole
from regard.decoding.beam import beam_search
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.opening import OURS, Over, SpecialIds, check_search, length_limits
from regard.decoding.sampling import Sampling
from regard.decoding.writing import GREEDY, write
from regard.errors import ArgumentError
from regard.kinds import a_list, of_kind
from regard.models.state import Writer


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
) -> list[list[Hypothesis]]:
    """Continue prompts, or translate sources: greedily, by draws, or by beam search.

    Args:
        model: what can `start` and `step`: a LanguageModel, or a translator.
        prompts: ids (batch, length) of unequal lengths, padded with PAD on either side.
        max_tokens: the most new ids; None for twice a row's ids and 16 more.
        sampling: how ids are drawn; None for the likeliest.
        beam: more than 1 for beam search, which draws nothing.
        count: texts for each prompt: as many draws, or the best of a beam.
        normalisation, alpha: how a beam's scores allow for length; see `normalised`.
        rows: the number of each prompt in its draws; 0, 1, ... by default, so that a prompt which is continued alone
            continues as it does among others if it is given its number there.
        over: told the row and all new ids of a text, says whether it is over; with draws, row · count + number.
        special: the ids that mean something.

    Returns:
        For each prompt `count` hypotheses: the best first of a beam, else in the order they were drawn.

    Raises:
        ArgumentError: settings that cannot be, or not together.

    >>> from regard.models import LanguageConfig, LanguageModel
    >>> model = LanguageModel(LanguageConfig(vocab_size=50, dim=16, heads=2)).eval()
    >>> prompts = torch.tensor([[5, 6, 7], [0, 0, 8]])  # 0 is PAD
    >>> found = generate(model, prompts, max_tokens=4, sampling=Sampling(top_k=9, seed=1), count=2)
    >>> [len(texts) for texts in found]
    [2, 2]
    """
    check_search(special, over)
    if sampling is not None:
        of_kind("sampling", sampling, Sampling, "a Sampling, or None for the likeliest ids")
    beam, count = whole("beam", beam, 1), whole("count", count)
    if rows is not None:
        rows = a_list("rows", rows, int, "whole numbers, one for each prompt")
        if len(rows) != len(prompts):
            raise ArgumentError(f"rows are {len(rows)} numbers for {len(prompts)} prompts; give one for each prompt")
    sampling = GREEDY if sampling is None else sampling
    if beam != 1:
        if not sampling.is_greedy:
            raise ArgumentError(f"beam={beam} and draws at temperature {sampling.temperature} exclude each other")
        return beam_search(
            model, prompts, beam, count=count, normalisation=normalisation, alpha=alpha, max_length=max_tokens,
            over=over, special=special,
        )  # fmt: skip
    if count < 1 or (count > 1 and sampling.is_greedy):
        raise ArgumentError(f"count={count}: the likeliest ids make 1 text; draw them, or search by a wider beam")
    limits = length_limits(prompts, max_tokens)
    found = write(model, prompts, limits, sampling, count=count, rows=rows, over=over, special=special)
    return [found[at : at + count] for at in range(0, len(found), count)]
