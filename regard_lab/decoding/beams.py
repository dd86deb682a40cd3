"""Beam search: several hypotheses of each text grow side by side, and the best of those that end are returned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from regard.backends.native.program import Beam
from regard.errors import ArgumentError
from regard_lab.decoding.constraints import FREE, Constraints
from regard_lab.decoding.options import (
    DEFAULT_IDS,
    SearchOptions,
    SpecialIds,
    StopFunction,
    with_options,
)
from regard_lab.decoding.sampling import likeliest
from regard_lab.decoding.starting import (
    Hypothesis,
    check_search,
    continue_texts,
    exclude_never,
    start_search,
)
from regard_lab.models.state import Writer


def beam_search(
    model: Writer[Any],
    source: torch.Tensor,
    beam: int,
    *,
    over: StopFunction | None = None,
    special: SpecialIds = DEFAULT_IDS,
    constraints: Constraints = FREE,
    **options: Any,
) -> list[list[Hypothesis]]:
    """Beam search: the best hypotheses for each batch row, of `beam` kept at every step.

    A batch row is finished, and leaves the batch, when no unfinished hypothesis can become one of its best `count`.

    Args:
        model: a model with `start` and `step`.
        source: ids (batch, length), padded with PAD: sources to translate, or prompts to continue.
        beam: number of hypotheses kept at each step; 1 is greedy search.
        over: function of (batch row, ids) that returns True to end a text.
        special: ids with a special meaning.
        constraints: what texts begin with, and which ids they may not have.
        options: those of `SearchOptions`: count, normalisation, alpha, max_tokens, cache, cache_dtype.

    Returns:
        For each batch row its best `count` hypotheses, the best first; fewer where there are not as many.

    Raises:
        ArgumentError: an invalid beam, count or normalisation.

    Source: Sequence to Sequence Learning, Sutskever et al. 2014, section 3.2.
    """
    search = SearchOptions(beam=beam, constraints=constraints)
    return search_beams(model, source, with_options(search, options), over=over, special=special)


class Candidate(NamedTuple):
    """An alive hypothesis of a text, its parent, extended by one id."""

    parent: int  # place among the alive hypotheses of the text
    next_id: int
    log_prob: float  # of that id
    total: float  # the sum by which the extended hypothesis is ranked


class Alive(NamedTuple):
    """An unfinished hypothesis: its ids, the log-probability of each, and the sum by which it is ranked.

    The sum is the log-probability of the text, unless a repetition penalty lowers it.
    """

    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0

    def extend(self, candidate: Candidate) -> Alive:
        return Alive(
            (*self.ids, candidate.next_id),
            (*self.log_probs, candidate.log_prob),
            candidate.total,
        )

    def extend_by(self, next_id: int, log_prob: float) -> Alive:
        """The hypothesis extended by an id, where the log-probability is what its total grows by."""
        return Alive((*self.ids, next_id), (*self.log_probs, log_prob), self.total + log_prob)


@dataclass(frozen=True)
class _Rules:
    """What the searches for all texts of a call have in common."""

    options: SearchOptions
    special: SpecialIds
    over: StopFunction | None


@dataclass
class _TextSearch:
    """The search for one text: its alive hypotheses, the most likely first, and those that ended.

    A hypothesis ends by END, by the caller's function or at the length limit.
    """

    row: int
    max_tokens: int
    rules: _Rules
    alive: list[Alive] = field(default_factory=lambda: [Alive()])
    ended: list[Hypothesis] = field(default_factory=list)

    def best(self) -> list[Hypothesis]:
        ranked = sorted(self.ended, key=lambda hypothesis: -hypothesis.score)
        return ranked[: self.rules.options.count]

    def is_settled(self) -> bool:
        """Whether no alive hypothesis can still become one of the best `count`."""
        options = self.rules.options
        is_greedy = options.beam == 1
        if not self.alive or (is_greedy and self.ended):
            return True
        if len(self.ended) < options.count:
            return False

        # A total only decreases, so the most that an alive hypothesis can reach is the score of its present total at
        # some length. Over the lengths that score only rises or only falls, so it is largest at one end.
        most_likely = self.alive[0].total
        bound = max(options.score(most_likely, 1), options.score(most_likely, self.max_tokens))
        return bound <= self.best()[-1].score

    def settling_total(self) -> float:
        """While the likeliest alive hypothesis has a larger total than this, the search is not settled."""
        options = self.rules.options
        best = self.best()
        if len(best) < options.count:
            return -math.inf
        # Scores are totals divided by a number of the length alone, so a total of -1 tells that number.
        divisors = [-1 / options.score(-1.0, length) for length in (1, self.max_tokens)]
        total = best[-1].score * max(divisors)
        return total + 1e-9 * (1 + abs(total))  # more than rounding

    def advance(self, candidates: list[Candidate]) -> list[int]:
        """Extend hypotheses by candidates, the most likely first.

        Returns:
            The places of the hypotheses whose extensions are alive.
        """
        beam = self.rules.options.beam
        parents = self.alive
        self.alive = []
        alive_parents: list[int] = []
        for rank, candidate in enumerate(candidates):
            if candidate.total == -torch.inf or len(self.alive) == beam:
                break
            extended = parents[candidate.parent].extend(candidate)
            if self._is_over(extended):
                # It counts only where its rank makes it a member of the beam.
                if rank < beam:
                    self._end(extended, is_complete=True)
            elif len(extended.ids) >= self.max_tokens:
                self._end(extended, is_complete=False)
            else:
                self.alive.append(extended)
                alive_parents.append(candidate.parent)
        return alive_parents

    def _is_over(self, hypothesis: Alive) -> bool:
        """Whether END or the caller ends it."""
        if hypothesis.ids[-1] == self.rules.special.end:
            return True
        return self.rules.over is not None and self.rules.over(self.row, hypothesis.ids)

    def _end(self, hypothesis: Alive, is_complete: bool) -> None:
        ids = hypothesis.ids
        score = self.rules.options.score(hypothesis.total, len(ids))
        if ids[-1] == self.rules.special.end:
            ids = ids[:-1]
        log_prob = math.fsum(hypothesis.log_probs)
        self.ended.append(Hypothesis(ids, log_prob, score, is_complete, hypothesis.log_probs))


@torch.inference_mode()
def search_beams(
    model: Writer[Any],
    texts: torch.Tensor,
    options: SearchOptions,
    *,
    over: StopFunction | None = None,
    special: SpecialIds = DEFAULT_IDS,
) -> list[list[Hypothesis]]:
    """The beam search of these options; see `beam_search`."""
    check_search(texts, special, over)
    if options.count > options.beam:
        raise ArgumentError(
            f"count is {options.count} and beam is {options.beam}; count is 1 or more, and at most beam"
        )
    rules = _Rules(options, special, over)
    limits = options.length_limits(texts)
    searches = [_TextSearch(row, limit, rules) for row, limit in enumerate(limits)]
    if not searches:
        return []

    state, logits = start_search(model, texts, options, special, max(limits))
    may_go_on = options.beam > 1 and options.constraints.are_none and over is None
    unsettled = searches  # those that are in the batch
    # Each text has `width` neighbouring places in the batch. Its last hypothesis is repeated where it has fewer.
    width = 1
    while True:
        logits, log_sum_exp = exclude_never(logits, special)
        ids_so_far = []
        for search in unsettled:
            hypotheses = _filled(search.alive, width)
            ids_so_far += [(search.row, hypothesis.ids) for hypothesis in hypotheses]
        ranked_by = options.constraints.constrained(logits, log_sum_exp, ids_so_far, special.end)
        alive = [search.alive for search in unsettled]
        candidates = _best_candidates(ranked_by, logits, log_sum_exp, alive, width, options.beam)

        staying = []
        parents: list[int] = []  # the place in the batch that each hypothesis extends
        last_ids: list[int] = []
        of_searches = zip(unsettled, candidates, strict=True)
        for number, (search, of_text) in enumerate(of_searches):
            alive_parents = search.advance(of_text)
            if search.is_settled():
                continue
            staying.append(search)
            filled_parents = _filled(alive_parents, options.beam)
            parents += [number * width + parent for parent in filled_parents]
            last_ids += [hypothesis.ids[-1] for hypothesis in _filled(search.alive, options.beam)]
        if not staying:
            return [search.best() for search in searches]

        unsettled = staying
        width = options.beam
        state.reorder(torch.tensor(parents, device=texts.device))
        ids = torch.tensor(last_ids, device=texts.device)
        next_logits = None
        if may_go_on:
            ids, next_logits = _go_on(model, ids, state, unsettled, rules)
        logits = model.step(ids, state) if next_logits is None else next_logits


def _go_on(
    model: Writer[Any],
    ids: torch.Tensor,
    state: Any,
    searches: list[_TextSearch],
    rules: _Rules,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Let a model extend the alive hypotheses itself, as long as none of them ends and no search is settled.

    Returns:
        The ids (texts * beam,) that are not appended yet; and the logits of the next step, if all are.
    """
    beam = rules.options.beam
    if any(len(search.alive) < beam for search in searches):
        return ids, None
    # At its most tokens a hypothesis ends.
    most = min(search.max_tokens - len(search.alive[0].ids) for search in searches) - 1
    totals = [[hypothesis.total for hypothesis in search.alive] for search in searches]
    floors = [search.settling_total() for search in searches]
    hypotheses = Beam(
        torch.tensor(totals, dtype=torch.float64), torch.tensor(floors, dtype=torch.float64)
    )
    continued = continue_texts(model, ids, state, rules.special, most, hypotheses)
    if continued is None:
        return ids, None
    written, logits = continued
    assert written.parents is not None
    for parents, (next_ids, log_probs) in zip(
        written.parents.tolist(), written.steps(), strict=True
    ):
        for number, search in enumerate(searches):
            first = number * beam
            rows = range(first, first + beam)
            search.alive = [
                search.alive[parents[row] - first].extend_by(next_ids[row], log_probs[row])
                for row in rows
            ]
    return written.last_ids(ids), logits


def _best_candidates(
    ranked_by: torch.Tensor,
    logits: torch.Tensor,
    log_sum_exp: torch.Tensor,
    alive: list[list[Alive]],
    width: int,
    beam: int,
) -> list[list[Candidate]]:
    """For each text its 2 · beam most likely continuations: enough even if `beam` of them end.

    Only the best continuations of each hypothesis can be among the best of all, so the vocabulary is read once.

    Args:
        ranked_by: logits (texts * width, vocab_size) by which ids are ranked.
        logits, log_sum_exp: those of the model, which give the log-probabilities.
        alive: the hypotheses of each text, at most `width`.
    """
    best_logits, best_ids = likeliest(ranked_by, 2 * beam)
    kept = best_logits.shape[-1]  # of each hypothesis; a small vocabulary has fewer than 2 * beam
    log_sum_exp = log_sum_exp.double()
    # What each id adds to the sum by which its hypothesis is ranked.
    added = best_logits.double() - log_sum_exp  # (texts * width, kept)
    log_probs = added
    if ranked_by is not logits:  # constraints change the ranks, never the log-probabilities
        log_probs = logits.gather(1, best_ids).double() - log_sum_exp

    totals_before = []
    for hypotheses in alive:
        repeated = [-torch.inf] * (width - len(hypotheses))  # places whose candidates never count
        totals_before.append([hypothesis.total for hypothesis in hypotheses] + repeated)
    before = torch.tensor(totals_before, dtype=torch.float64, device=logits.device)
    totals = (before[:, :, None] + added.view(-1, width, kept)).flatten(1)  # (texts, width * kept)

    chosen = totals.topk(min(2 * beam, totals.shape[-1]))  # (texts, 2 * beam)
    parents = chosen.indices // kept
    ids = best_ids.view_as(totals).gather(1, chosen.indices)
    log_probs = log_probs.view_as(totals).gather(1, chosen.indices)
    columns = [column.tolist() for column in (parents, ids, log_probs, chosen.values)]
    return [list(map(Candidate, *of_text)) for of_text in zip(*columns, strict=True)]


def _filled(entries: list[Any], size: int) -> list[Any]:
    """The entries, with the last one repeated up to `size`."""
    return entries + entries[-1:] * (size - len(entries))
