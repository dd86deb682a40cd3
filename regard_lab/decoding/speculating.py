"""Speculative decoding: ids are proposed cheaply, and one call of the model verifies all of them.

Several proposed continuations form a tree, in which those with the same first ids share these.

Each id is chosen from the model's own logits by the same draws as without proposals, so the text is the same. A
proposal that is chosen saves a call. Only rounding may differ, since products of several rows may sum otherwise.

Source: Fast Inference from Transformers via Speculative Decoding, Leviathan et al. 2023; proposals from the text so
far: Inference with Reference, Yang et al. 2023; trees: SpecInfer, Miao et al. 2023.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

import torch

from regard.arguments import whole
from regard.errors import ArgumentError, UnsupportedError
from regard.patterns import Tree
from regard_lab.decoding.sampling import Sampling
from regard_lab.decoding.search import (
    GREEDY,
    OURS,
    Hypothesis,
    Keeping,
    Over,
    admitted,
    length_limits,
)
from regard_lab.models import LanguageModel
from regard_lab.text import PAD

LONGEST = 3  # ids at the end of a text that are looked for earlier in it, at most
GOES_BACK = ("dynamic", "static", "paged")  # kinds of cache from which ids can be taken back


# (ids of a text, count, branches) -> at most `branches` continuations, each of at most `count` ids.
Proposer = Callable[[Sequence[int], int, int], list[list[int]]]


def lookup(ids: Sequence[int], count: int, branches: int = 1) -> list[list[int]]:
    """The ids that followed the last ids of the text earlier in it: the longest matches, at their latest places.

    >>> lookup([7, 6, 9, 5, 6, 7, 8, 5, 6], 3, branches=2)
    [[7, 8, 5], [9, 5, 6]]
    """
    ids, found = list(ids), dict[int, list[int]]()  # by their first ids
    for length in range(min(LONGEST, len(ids) - 1), 0, -1):
        end = ids[-length:]
        for at in range(len(ids) - length - 1, -1, -1):
            if ids[at : at + length] == end:
                found.setdefault(ids[at + length], ids[at + length : at + length + count])
                if len(found) == branches:
                    return [*found.values()]
    return [*found.values()]


class Draft:
    """The most likely ids of a smaller model with the same vocabulary, which keeps what it has read. Several branches
    begin with its most likely next ids.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.keeping = model, going_back(Keeping())
        self._known: tuple[Any, list[int]] = (
            None,
            [],
        )  # its state, and the ids that the state has read

    def __call__(self, ids: Sequence[int], count: int, branches: int = 1) -> list[list[int]]:
        ids, (state, read) = list(ids), self._known
        self._known = None, []  # after an interruption it reads the text again
        same = next(
            (at for at, (one, other) in enumerate(zip(read, ids, strict=False)) if one != other),
            len(read),
        )
        same = min(same, len(ids) - 1)
        device = next(self.model.parameters()).device
        if state is None or not same:
            state = self.keeping.start(self.model, torch.tensor([ids], device=device), count)
            scores = state.next_scores.clone()
        else:
            state.crop(same)
            scores = self.model.extend(torch.tensor([ids[same:]], device=device), state)[:, -1]
        self._known, going = (state, ids), copy(state)
        last = (
            admitted(scores, OURS)[0][0].topk(min(branches, scores.shape[-1])).indices
        )  # (branches,)
        if len(last) > 1:
            going.reorder(torch.zeros_like(last))
        drafts = [[one] for one in last.tolist()]
        while len(drafts[0]) < count and any(OURS.end not in draft for draft in drafts):
            last = admitted(self.model.step(last, going), OURS)[0].argmax(-1)
            for draft, chosen in zip(drafts, last.tolist(), strict=True):
                draft.append(chosen)
        return [
            draft[: draft.index(OURS.end) + 1] if OURS.end in draft else draft for draft in drafts
        ]


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
    branches: int = 1,
    max_tokens: int | None = 100,
    sampling: Sampling | None = None,
    count: int = 1,
    rows: Sequence[int] | None = None,
    over: Over | None = None,
    cache: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
) -> list[list[Hypothesis]]:
    """The texts of `search.generate` without a beam, written one by one with proposed ids.

    `proposer` guesses up to `branches` continuations of up to `proposals` ids at once.

    Raises:
        UnsupportedError: a cache from which ids cannot be taken back; branches that the model cannot verify together.
    """
    most = whole("proposals", proposals, 1), whole("branches", branches, 1)
    keeping = going_back(Keeping(cache, cache_dtype))
    limits = length_limits(prompts, max_tokens)
    written = list[list[Hypothesis]]()
    sampling = GREEDY if sampling is None else sampling
    if count > 1 and sampling.is_greedy:
        raise ArgumentError(f"count={count}: the most likely ids give 1 text; give sampling=")
    for at, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        number = at if rows is None else rows[at]
        draws = [
            partial(sampling.choose, rows=torch.tensor([number + (copy << 32)]))
            for copy in range(count)
        ]
        overs = [
            None if over is None else partial(over, at * count + copy) for copy in range(count)
        ]
        read = prompt[prompt != PAD]
        ways = zip(draws, overs, strict=True)
        written.append(
            [_write(model, read, limit, draw, end, proposer, most, keeping) for draw, end in ways]
        )
    return written


def _write(
    model: LanguageModel,
    prompt: torch.Tensor,
    limit: int,
    choose: Callable[..., torch.Tensor],
    over: Callable[[list[int]], bool] | None,
    proposer: Proposer,
    most: tuple[int, int],
    keeping: Keeping,
) -> Hypothesis:
    """One text after a prompt (length,), with at most so many proposed ids and branches."""
    state = keeping.start(
        model, prompt[None], limit + most[0] * (most[1] - 1)
    )  # room for the nodes of a tree
    scores = state.next_scores[:, None].clone()
    read = prompt.tolist()
    calls = 1
    behind = _grown([])
    written: list[int] = []
    gains: list[float] = []
    while True:
        path = [0]
        while True:
            logits, total = admitted(scores[:, path[-1]], OURS)
            chosen = int(choose(logits, place=len(written)))
            gains.append(float(logits[0, chosen] - total))
            finished = chosen == OURS.end
            if not finished:
                written.append(chosen)
                finished = over is not None and over(written)
            if finished or len(written) == limit:
                return Hypothesis(
                    tuple(written), sum(gains), sum(gains), finished, tuple(gains), calls
                )
            if (path[-1], chosen) not in behind:
                break
            path.append(behind[path[-1], chosen])
        if path == [*range(len(path))]:
            state.crop(len(read) + len(written) - 1)
        else:
            state.accept(path, 1 + len(behind))
        room = min(most[0], limit - len(written) - 1)  # the call itself gives one more id
        proposed = proposer([*read, *written], room, most[1]) if room else []
        behind = _grown(proposed)
        ids = [written[-1], *(chosen for _, chosen in behind)]
        parents = [-1, *(node for node, _ in behind)]
        tree = Tree(torch.tensor(parents, device=prompt.device)) if len(proposed) > 1 else None
        scores = model.extend(torch.tensor([ids], device=prompt.device), state, tree)
        calls += 1


def _grown(proposed: list[list[int]]) -> dict[tuple[int, int], int]:
    """The tree of continuations behind the last id of a text, node 0: the node of each id behind a node, in order.

    >>> _grown([[7, 8], [7, 9]])
    {(0, 7): 1, (1, 8): 2, (1, 9): 3}
    """
    behind = dict[tuple[int, int], int]()
    for ids in proposed:
        node = 0
        for chosen in ids:
            node = behind.setdefault((node, chosen), len(behind) + 1)
    return behind
