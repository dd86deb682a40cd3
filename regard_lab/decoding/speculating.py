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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from regard.arguments import whole
from regard.errors import ArgumentError, UnsupportedError
from regard.patterns import Tree
from regard_lab.decoding.options import DEFAULT_IDS, SearchOptions, StopFunction
from regard_lab.decoding.sampling import GREEDY, Sampling
from regard_lab.decoding.starting import Hypothesis, exclude_never, new_state
from regard_lab.models import LanguageModel
from regard_lab.models.state import LanguageState
from regard_lab.text import PAD

LONGEST_MATCH = 3  # ids at the end of a text that are looked for earlier in it, at most


@dataclass(frozen=True)
class Proposals:
    """Who proposes ids, and how many.

    Args:
        proposer: function of (ids of a text, count, branches) that returns at most `branches` continuations, each of at
            most `count` ids.
        count: the most ids of a continuation that are proposed at once.
        branches: the most continuations.
    """

    proposer: Callable[[Sequence[int], int, int], list[list[int]]]
    count: int = 5
    branches: int = 1

    def __post_init__(self) -> None:
        whole("proposals", self.count, 1)
        whole("branches", self.branches, 1)


def lookup(ids: Sequence[int], count: int, branches: int = 1) -> list[list[int]]:
    """The ids that followed the last ids of the text earlier in it: the longest matches, at their latest places.

    >>> lookup([7, 6, 9, 5, 6, 7, 8, 5, 6], 3, branches=2)
    [[7, 8, 5], [9, 5, 6]]
    """
    ids = list(ids)
    continuations: dict[int, list[int]] = {}  # by their first ids
    for length in range(min(LONGEST_MATCH, len(ids) - 1), 0, -1):
        last_ids = ids[-length:]
        for start in range(len(ids) - length - 1, -1, -1):
            end = start + length
            if ids[start:end] == last_ids:
                continuations.setdefault(ids[end], ids[end : end + count])
                if len(continuations) == branches:
                    return list(continuations.values())
    return list(continuations.values())


class Draft:
    """The most likely ids of a smaller model with the same vocabulary, which keeps what it has read. Several branches
    begin with its most likely next ids.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.options = _with_cache_that_goes_back(model, SearchOptions())
        # its state, and the ids that the state has read
        self._known: tuple[LanguageState | None, list[int]] = (None, [])

    def __call__(self, ids: Sequence[int], count: int, branches: int = 1) -> list[list[int]]:
        logits, text_state = self._read(list(ids), count)
        logits, _ = exclude_never(logits, DEFAULT_IDS)
        last_ids = logits[0].topk(min(branches, logits.shape[1])).indices  # (branches,)
        state = copy(text_state)
        if len(last_ids) > 1:
            state.reorder(torch.zeros_like(last_ids))

        drafts = [[first] for first in last_ids.tolist()]
        while len(drafts[0]) < count and any(DEFAULT_IDS.end not in draft for draft in drafts):
            logits, _ = exclude_never(self.model.step(last_ids, state), DEFAULT_IDS)
            last_ids = logits.argmax(-1)
            for draft, next_id in zip(drafts, last_ids.tolist(), strict=True):
                draft.append(next_id)
        return [_up_to_end(draft) for draft in drafts]

    def _read(self, ids: list[int], count: int) -> tuple[torch.Tensor, LanguageState]:
        """The logits (1, vocab_size) after a text, and its state, which goes on from the text before where it can."""
        state, read = self._known
        self._known = (None, [])  # after an interruption it reads the text again
        device = next(self.model.parameters()).device
        shared = min(_count_shared(read, ids), len(ids) - 1)
        if state is not None and shared and (shared == len(read) or state.goes_back):
            state.crop(shared)
            new_ids = torch.tensor([ids[shared:]], device=device)
            logits = self.model.extend(new_ids, state)[:, -1]
        else:
            text = torch.tensor([ids], device=device)
            state = new_state(self.model, text, self.options, count)
            logits = state.next_scores.clone()
        self._known = (state, ids)
        return logits, state


def _count_shared(left: Sequence[int], right: Sequence[int]) -> int:
    """The number of first ids that two texts share.

    >>> _count_shared([7, 8, 9], [7, 8, 5, 6])
    2
    """
    for place, (left_id, right_id) in enumerate(zip(left, right, strict=False)):
        if left_id != right_id:
            return place
    return min(len(left), len(right))


def _up_to_end(ids: list[int]) -> list[int]:
    """The ids up to the first END, END included."""
    if DEFAULT_IDS.end not in ids:
        return ids
    return ids[: ids.index(DEFAULT_IDS.end) + 1]


def _with_cache_that_goes_back(model: LanguageModel, options: SearchOptions) -> SearchOptions:
    """The options, by default with caches of keys, from which refused proposals can be dropped.

    A model with recurrent states keeps what it chooses itself.
    """
    blocks: Any = model.blocks
    has_states = any(block.attention.mechanism.declared.has_state for block in blocks)
    if has_states or options.cache is not None:
        return options
    return replace(options, cache="dynamic")


class _TextState:
    """The state of one text, whose refused proposals are taken back.

    Args:
        model: the model that reads it.
        state: of the prompt.
    """

    def __init__(self, model: LanguageModel, state: LanguageState) -> None:
        self.model = model
        self.state = state
        self.unread: list[int] = []  # accepted ids that a restored state has not read
        self._before = state

    def extend(self, ids: list[int], tree: Tree | None) -> torch.Tensor:
        """The logits (1, len(ids), vocab_size) after the next id of the text and its proposals."""
        self._before = copy(self.state)
        device = next(self.model.parameters()).device
        new_ids = torch.tensor([[*self.unread, *ids]], device=device)
        return self.model.extend(new_ids, self.state, tree)[:, len(self.unread) :]

    def accept(self, ids: list[int], path: list[int]) -> None:
        """Go on after these nodes of the last ids, a branch of their tree; without proposals it is all of them."""
        if len(path) == len(ids):
            self.unread = []
        elif not self.state.goes_back:
            self.state = self._before
            self.unread += [ids[node] for node in path]
        elif path == list(range(len(path))):
            self.state.crop(self.state.length - len(ids) + len(path))
        else:
            self.state.accept(path, len(ids))


@torch.inference_mode()
def speculate_texts(
    model: LanguageModel,
    prompts: torch.Tensor,
    options: SearchOptions,
    sampling: Sampling | None,
    proposals: Proposals,
    *,
    rows: Sequence[int] | None = None,
    over: StopFunction | None = None,
) -> list[list[Hypothesis]]:
    """The texts of `search.search_texts` without a beam, written one by one with proposed ids.

    Raises:
        UnsupportedError: branches that the model, or its cache, cannot verify together.
    """
    if sampling is None:
        sampling = GREEDY
    count = options.count
    if count > 1 and sampling.is_greedy:
        raise ArgumentError(f"count={count}: the most likely ids give 1 text; give sampling=")
    options = _with_cache_that_goes_back(model, options)
    limits = options.length_limits(prompts)
    if rows is None:
        rows = range(len(prompts))

    written = []
    for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        unpadded = prompt[prompt != PAD]
        hypotheses = []
        for number in range(count):
            draw = torch.tensor([rows[row] + (number << 32)])
            choose = partial(sampling.choose, rows=draw)
            is_over = None if over is None else partial(over, row * count + number)
            writer = _Speculation(model, unpadded, options, limit, proposals, choose, is_over)
            hypotheses.append(writer.write())
        written.append(hypotheses)
    return written


class _Speculation:
    """One text that is written after a prompt (length,).

    Args:
        choose: function of logits (1, vocab_size) and of `place`, the number of ids so far, that returns the next id.
        is_over: function of the new ids that returns True to end the text.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: torch.Tensor,
        options: SearchOptions,
        max_tokens: int,
        proposals: Proposals,
        choose: Callable[..., torch.Tensor],
        is_over: Callable[[list[int]], bool] | None,
    ) -> None:
        nodes = max_tokens + proposals.count * (proposals.branches - 1)  # room for those of a tree
        state: LanguageState = new_state(model, prompt[None], options, nodes)
        if proposals.branches > 1 and not state.goes_back:
            raise UnsupportedError(
                f"branches={proposals.branches} are verified as a tree, whose other branches a cache of keys drops; a "
                f"recurrent state or a ring cannot drop them, so continue one branch"
            )
        assert state.next_scores is not None
        self.logits = state.next_scores[:, None].clone()  # (1, nodes of the last call, vocab_size)
        self.text = _TextState(model, state)
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.proposals = proposals
        self.choose = choose
        self.is_over = is_over
        self.ids: list[int] = []
        self.log_probs: list[float] = []
        self.finished = False
        self.calls = 1  # the prompt's

    def write(self) -> Hypothesis:
        prompt_ids = self.prompt.tolist()
        read_ids: list[int] = []  # by the last call after the prompt
        tree = _tree_of([])
        while True:
            path = self._follow(tree)
            if self.finished or len(self.ids) == self.max_tokens:
                total = sum(self.log_probs)
                log_probs = tuple(self.log_probs)
                ids = tuple(self.ids)
                return Hypothesis(ids, total, total, self.finished, log_probs, self.calls)
            if read_ids:
                self.text.accept(read_ids, path)

            continuations = self._propose([*prompt_ids, *self.ids])
            tree = _tree_of(continuations)
            # Keys of the tree: (a node, the id behind it), in the order of their nodes.
            read_ids = [self.ids[-1], *(next_id for _, next_id in tree)]
            branches = None
            if len(continuations) > 1:
                parents = [-1, *(node for node, _ in tree)]
                branches = Tree(torch.tensor(parents, device=self.prompt.device))
            self.logits = self.text.extend(read_ids, branches)
            self.calls += 1

    def _follow(self, tree: dict[tuple[int, int], int]) -> list[int]:
        """Choose ids for as long as they were proposed, and one more; return the nodes of those that were."""
        path = [0]
        while True:
            logits, log_sum_exp = exclude_never(self.logits[:, path[-1]], DEFAULT_IDS)
            next_id = int(self.choose(logits, place=len(self.ids)))
            self.log_probs.append(float(logits[0, next_id] - log_sum_exp))
            if next_id == DEFAULT_IDS.end:
                self.finished = True
                return path
            self.ids.append(next_id)
            self.finished = self.is_over is not None and self.is_over(self.ids)
            if self.finished or len(self.ids) == self.max_tokens:
                return path
            node = tree.get((path[-1], next_id))
            if node is None:
                return path
            path.append(node)

    def _propose(self, ids: list[int]) -> list[list[int]]:
        """Continuations of the text, which the next call reads behind its last id."""
        left = self.max_tokens - len(self.ids) - 1  # the call itself gives one more id
        room = min(self.proposals.count, left)
        if room == 0 or len(self.text.unread) > self.proposals.count:
            # A call without proposals is never refused, so that what is read again stays short.
            return []
        return self.proposals.proposer(ids, room, self.proposals.branches)


def _tree_of(continuations: list[list[int]]) -> dict[tuple[int, int], int]:
    """The tree of continuations behind the last id of a text, node 0: the node of each id behind a node, in order.

    >>> _tree_of([[7, 8], [7, 9]])
    {(0, 7): 1, (1, 8): 2, (1, 9): 3}
    """
    tree: dict[tuple[int, int], int] = {}
    for ids in continuations:
        node = 0
        for next_id in ids:
            node = tree.setdefault((node, next_id), len(tree) + 1)
    return tree
