"""Speculative decoding: ids are proposed cheaply, and one call of the model verifies all of them.

Several proposed continuations form a tree, in which those with the same first ids share these.

Each id is chosen from the model's own logits by the same draws as without proposals, so the text is the same. A
proposal that is chosen saves a call. Only rounding may differ, since products of several rows may sum otherwise.

A cache of keys drops the entries of refused proposals. A recurrent state or a ring cannot: a copy from before them is
kept, and the next call reads the accepted ids once more, in front of its own.

Source: Fast Inference from Transformers via Speculative Decoding, Leviathan et al. 2023; proposals from the text so
far: Inference with Reference, Yang et al. 2023; trees: SpecInfer, Miao et al. 2023.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
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
from regard_lab.models.state import LanguageState
from regard_lab.text import PAD

LONGEST = 3  # ids at the end of a text that are looked for earlier in it, at most


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
        self.model = model
        self.keeping = speculating(model, Keeping())
        # its state, and the ids that the state has read
        self._known: tuple[LanguageState | None, list[int]] = None, []

    def __call__(self, ids: Sequence[int], count: int, branches: int = 1) -> list[list[int]]:
        scores, state = self._read(list(ids), count)
        likely = admitted(scores, OURS)[0][0]
        last = likely.topk(min(branches, len(likely))).indices  # (branches,)
        going = copy(state)
        if len(last) > 1:
            going.reorder(torch.zeros_like(last))

        drafts = [[first] for first in last.tolist()]
        while len(drafts[0]) < count and any(OURS.end not in draft for draft in drafts):
            last = admitted(self.model.step(last, going), OURS)[0].argmax(-1)
            for draft, chosen in zip(drafts, last.tolist(), strict=True):
                draft.append(chosen)
        return [_up_to_end(draft) for draft in drafts]

    def _read(self, ids: list[int], count: int) -> tuple[torch.Tensor, LanguageState]:
        """The scores (1, vocab_size) after a text, and its state, which goes on from the text before where it can."""
        state, read = self._known
        self._known = None, []  # after an interruption it reads the text again
        device = next(self.model.parameters()).device
        same = min(_shared(read, ids), len(ids) - 1)
        if state is not None and same and (same == len(read) or state.goes_back):
            state.crop(same)
            scores = self.model.extend(torch.tensor([ids[same:]], device=device), state)[:, -1]
        else:
            state = self.keeping.start(self.model, torch.tensor([ids], device=device), count)
            scores = state.next_scores.clone()
        self._known = state, ids
        return scores, state


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of first ids that two texts share.

    >>> _shared([7, 8, 9], [7, 8, 5, 6])
    2
    """
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _up_to_end(ids: list[int]) -> list[int]:
    """The ids up to the first END, END included."""
    return ids[: ids.index(OURS.end) + 1] if OURS.end in ids else ids


def speculating(model: LanguageModel, keeping: Keeping) -> Keeping:
    """How to store the texts of a model: by default in caches of keys, from which refused proposals can be dropped.

    A model with recurrent states keeps what it chooses itself.
    """
    blocks: Any = model.blocks
    chooses = any(block.attention.mechanism.declared.has_state for block in blocks)
    return keeping if chooses or keeping.cache is not None else replace(keeping, cache="dynamic")


class _Read:
    """The state of one text, whose refused proposals are taken back.

    Args:
        model: the model that reads it.
        state: of the prompt.
    """

    def __init__(self, model: LanguageModel, state: LanguageState) -> None:
        self.model = model
        self.state = state
        self.again: list[int] = []  # accepted ids that a restored state has not read
        self._before = state

    def extend(self, ids: list[int], tree: Tree | None) -> torch.Tensor:
        """The scores (1, len(ids), vocab_size) after the next id of the text and its proposals."""
        self._before = copy(self.state)
        device = next(self.model.parameters()).device
        read = torch.tensor([[*self.again, *ids]], device=device)
        return self.model.extend(read, self.state, tree)[:, len(self.again) :]

    def accept(self, ids: list[int], path: list[int]) -> None:
        """Go on after these nodes of the last ids, a branch of their tree; without proposals it is all of them."""
        if len(path) == len(ids):
            self.again = []
        elif not self.state.goes_back:
            self.state = self._before
            self.again += [ids[node] for node in path]
        elif path == [*range(len(path))]:
            self.state.crop(self.state.length - len(ids) + len(path))
        else:
            self.state.accept(path, len(ids))


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
        UnsupportedError: branches that the model, or its cache, cannot verify together.
    """
    most = whole("proposals", proposals, 1), whole("branches", branches, 1)
    keeping = speculating(model, Keeping(cache, cache_dtype))
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
    proposals, branches = most
    nodes = limit + proposals * (branches - 1)  # room for the nodes of a tree
    state: LanguageState = keeping.start(model, prompt[None], nodes)
    if branches > 1 and not state.goes_back:
        raise UnsupportedError(
            f"branches={branches} are verified as a tree, whose other branches a cache of keys drops; a recurrent "
            f"state or a ring cannot drop them, so continue one branch"
        )
    assert state.next_scores is not None
    scores = state.next_scores[:, None].clone()
    text = _Read(model, state)
    read = prompt.tolist()
    ids: list[int] = []  # of the last call after the prompt
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
        if ids:
            text.accept(ids, path)

        room = min(proposals, limit - len(written) - 1)  # the call itself gives one more id
        if len(text.again) > proposals:
            room = 0  # a call without proposals is never refused, so that what is read again stays short
        proposed = proposer([*read, *written], room, branches) if room else []
        behind = _grown(proposed)
        ids = [written[-1], *(chosen for _, chosen in behind)]
        parents = [-1, *(node for node, _ in behind)]
        tree = Tree(torch.tensor(parents, device=prompt.device)) if len(proposed) > 1 else None
        scores = text.extend(ids, tree)
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
