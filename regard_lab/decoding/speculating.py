"""Speculative decoding: ids are proposed cheaply, and one call of the model verifies all of them.

Each id is chosen from the model's own logits by the same draws as without proposals, so the text is the same. A
proposal that is chosen saves a call. Only rounding may differ, since products of several rows may sum otherwise.

Source: Fast Inference from Transformers via Speculative Decoding, Leviathan et al. 2023; proposals from the text so
far: Inference with Reference, Yang et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from regard.arguments import whole
from regard.errors import ArgumentError, UnsupportedError
from regard_lab.decoding.sampling import Sampling
from regard_lab.decoding.search import GREEDY, OURS, Hypothesis, Keeping, Over, admitted, length_limits
from regard_lab.models import LanguageModel
from regard_lab.text import PAD

LONGEST = 3  # ids at the end of a text that are looked for earlier in it, at most
GOES_BACK = ("dynamic", "static", "paged")  # kinds of cache from which ids can be taken back


class Proposer(Protocol):
    """Guesses the next ids of a text."""

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        """Up to `count` ids that may follow these."""


class Lookup:
    """The ids that followed the last ids of the text earlier in it: the longest match, at its latest place.

    >>> Lookup().propose([5, 6, 7, 8, 5, 6], 3)
    [7, 8, 5]
    """

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        ids = list(ids)
        for length in range(min(LONGEST, len(ids) - 1), 0, -1):
            end = ids[-length:]
            for at in range(len(ids) - length - 1, -1, -1):
                if ids[at : at + length] == end:
                    return ids[at + length : at + length + count]
        return []


class Draft:
    """The most likely ids of a smaller model with the same vocabulary, which keeps what it has read.

    Args:
        model: the smaller language model.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.keeping = model, going_back(Keeping())
        self._known: tuple[Any, list[int]] = None, []  # its state, and the ids that the state has read

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        ids, (state, read) = list(ids), self._known
        self._known = None, []  # after an interruption it reads the text again
        same = next((at for at, (one, other) in enumerate(zip(read, ids, strict=False)) if one != other), len(read))
        same = min(same, len(ids) - 1)
        device = next(self.model.parameters()).device
        if state is None or not same:
            state = self.keeping.start(self.model, torch.tensor([ids], device=device), count)
            scores = state.next_scores.clone()
        else:
            state.crop(same)
            scores = self.model.extend(torch.tensor([ids[same:]], device=device), state)[:, -1]
        drafts: list[int] = []
        while len(drafts) < count:
            chosen = int(admitted(scores, OURS)[0].argmax())
            drafts.append(chosen)
            if chosen == OURS.end or len(drafts) == count:
                break
            scores = self.model.step(torch.tensor([chosen], device=device), state)
        self._known = state, [*ids, *drafts][: state.length]
        return drafts


def going_back(keeping: Keeping) -> Keeping:
    """How to store a text so that refused proposals can be taken back.

    Raises:
        UnsupportedError: a kind of cache that cannot do this.
    """
    if keeping.cache not in (None, *GOES_BACK):
        raise UnsupportedError(
            f"speculation takes refused ids back, which a cache of kind {keeping.cache!r} cannot do; use one of "
            f"{', '.join(GOES_BACK)}, or leave speculation out"
        )
    return Keeping(keeping.cache or "dynamic", keeping.dtype)


@torch.inference_mode()
def speculated(
    model: LanguageModel,
    prompts: torch.Tensor,
    *,
    proposer: Proposer,
    proposals: int = 5,
    max_tokens: int | None = 100,
    sampling: Sampling | None = None,
    count: int = 1,
    rows: Sequence[int] | None = None,
    over: Over | None = None,
    cache: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
    **of_beams: Any,
) -> list[list[Hypothesis]]:
    """The texts of `search.generate` without a beam, written one by one with proposed ids.

    Args:
        model: a language model.
        proposer: what guesses the next ids.
        proposals: the most ids that are proposed at once.
        of_beams: options of beams, which have no meaning here; all others are as for `generate`.

    Raises:
        UnsupportedError: a cache from which ids cannot be taken back.
    """
    proposals, keeping = whole("proposals", proposals, 1), going_back(Keeping(cache, cache_dtype))
    limits, written = length_limits(prompts, max_tokens), list[list[Hypothesis]]()
    sampling = GREEDY if sampling is None else sampling
    if count > 1 and sampling.is_greedy:
        raise ArgumentError(f"count={count}: the most likely ids give 1 text; give sampling=")
    for at, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        number = at if rows is None else rows[at]
        draws = [partial(sampling.choose, rows=torch.tensor([number + (copy << 32)])) for copy in range(count)]
        overs = [None if over is None else partial(over, at * count + copy) for copy in range(count)]
        read = prompt[prompt != PAD]
        each = [
            _write(model, read, limit, draw, end, proposer, proposals, keeping)
            for draw, end in zip(draws, overs, strict=True)
        ]
        written.append(each)
    return written


def _write(
    model: LanguageModel, prompt: torch.Tensor, limit: int, choose: Callable[..., torch.Tensor],
    over: Callable[[list[int]], bool] | None, proposer: Proposer, proposals: int, keeping: Keeping,
) -> Hypothesis:  # fmt: skip
    """One text after a prompt (length,)."""
    state = keeping.start(model, prompt[None], limit)
    scores, read, proposed, calls = state.next_scores[:, None].clone(), prompt.tolist(), list[int](), 1
    written: list[int] = []
    gains: list[float] = []
    while True:
        for at in range(scores.shape[1]):
            logits, total = admitted(scores[:, at], OURS)
            chosen = int(choose(logits, place=len(written)))
            gains.append(float(logits[0, chosen] - total))
            finished = chosen == OURS.end
            if not finished:
                written.append(chosen)
                finished = over is not None and over(written)
            if finished or len(written) == limit:
                return Hypothesis(tuple(written), sum(gains), sum(gains), finished, tuple(gains), calls)
            if at < len(proposed) and chosen != proposed[at]:
                break
        state.crop(len(read) + len(written) - 1)
        room = min(proposals, limit - len(written) - 1)  # the call itself gives one more id
        proposed = proposer.propose([*read, *written], room) if room else []
        scores = model.extend(torch.tensor([[written[-1], *proposed]], device=prompt.device), state)
        calls += 1
