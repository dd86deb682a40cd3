"""Searches for the next ids: greedy search, sampling and beam search, for any model with `start` and `step`."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from regard.arguments import a_list, count_of, each, of_kind, one_of, real, shown, whole
from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.reprs import brief
from regard_lab.decoding.constraints import FREE, Constraints
from regard_lab.decoding.sampling import Sampling, likeliest, log_total
from regard_lab.models.state import State, Writer
from regard_lab.text.vocabularies import BEGIN, END, PAD, UNKNOWN

LARGEST_ALPHA = 30  # the normalisation of any text stays a finite float
NORMALISATIONS = ("none", "average", "gnmt")


@brief
@dataclass(frozen=True)
class Hypothesis:
    """The result of a search: ids without BEGIN and END, their log-probability, and the score used for ranking.

    `finished` is True if END or a stop ended the text, and False if the length limit did. `gains` are the
    log-probabilities of the ids, and of END where that ended the text; their sum is the log-probability of the text.
    `calls` are those of the model where ids were speculated, else 0.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool
    gains: tuple[float, ...] = ()
    calls: int = 0


def normalised(log_probability: float, length: int, normalisation: str, alpha: float = 0.6) -> float:
    """The length-normalised score of a hypothesis of `length` ids, including END.

    none: log p;   average: log p / length;   gnmt: log p / ((5 + length) / 6)^alpha

    Source of gnmt: Google's Neural Machine Translation System, Wu et al. 2016, equation 14.

    >>> round(normalised(-6.0, 7, "gnmt", alpha=1.0), 6)
    -3.0
    """
    real("log_probability", log_probability)
    whole("length", length, 0)
    check_normalisation(normalisation, alpha)
    if normalisation == "none":
        return log_probability
    if normalisation == "average":
        return log_probability / max(1, length)
    return log_probability / ((5 + length) / 6) ** alpha


def check_normalisation(normalisation: str, alpha: float) -> None:
    """Raise an ArgumentError for an unknown normalisation or an alpha that is too large."""
    one_of("normalisation", normalisation, NORMALISATIONS)
    if abs(real("alpha", alpha)) > LARGEST_ALPHA:
        raise ArgumentError(f"alpha is {alpha}; it is an exponent from -{LARGEST_ALPHA} to {LARGEST_ALPHA}")


# Whether the text of this batch row, given all its ids so far, is over; called after each new id except END.
Over = Callable[[int, Sequence[int]], bool]


@brief
@dataclass(frozen=True)
class SpecialIds:
    """Ids with a special meaning in a search; the defaults are those of regard's tokenisers.

    Args:
        begin: first id of a text that a model writes from the start, such as a translation.
        end: id that ends a text; None for a model without one.
        never: ids that are never chosen.
    """

    begin: int = BEGIN
    end: int | None = END
    never: tuple[int, ...] = (PAD, UNKNOWN, BEGIN)

    def __post_init__(self) -> None:
        never = tuple(whole("an id of never", one, 0) for one in each("never", self.never, "a tuple of ids"))
        object.__setattr__(self, "begin", whole("begin", self.begin, 0))
        object.__setattr__(self, "end", None if self.end is None else whole("end", self.end, 0))
        object.__setattr__(self, "never", never)


OURS = SpecialIds()


def check_search(special: SpecialIds, over: Over | None) -> None:
    """Raise an ArgumentError unless `special` is a SpecialIds and `over` a function or None."""
    of_kind("special", special, SpecialIds, "a SpecialIds")
    if over is not None and not callable(over):
        raise ArgumentError(f"over is {shown(over)}; give a function of a batch row and its ids")


@brief
@dataclass(frozen=True)
class Keeping:
    """How a search stores keys and values: the kind of cache and its storage dtype, as `new_cache` of a layer takes
    them; None for the model's own choice."""

    cache: str | None = None
    dtype: torch.dtype | str | None = None

    def start(self, model: Writer[Any], texts: torch.Tensor, most: int) -> Any:
        """The state of a model for texts that get `most` new ids."""
        if self.cache is None and self.dtype is None:
            return model.start(texts)
        start: Any = model.start
        if not {"cache", "capacity", "dtype"} <= set(inspect.signature(start).parameters):
            given = f"cache={self.cache!r}" if self.cache is not None else f"cache_dtype={self.dtype!r}"
            raise UnsupportedError(
                f"{type(model).__name__} stores no keys and values of its texts in a cache, so {given} has no meaning "
                f"for it; leave it out"
            )
        capacity = {"capacity": texts.shape[1] + most} if self.cache == "static" else {}
        return start(texts, self.cache, dtype=self.dtype, **capacity)


OWN = Keeping()  # what the model chooses


def open_texts(
    model: Writer[Any], texts: torch.Tensor, special: SpecialIds, keeping: Keeping, most: int
) -> tuple[State, torch.Tensor]:
    """Start a search: the state for texts (batch, length), and the logits of each first new id.

    A state that has read a prompt holds these logits as `next_scores`; otherwise the text starts with `special.begin`.
    """
    for name in ("start", "step"):
        if not callable(getattr(model, name, None)):
            raise ArgumentError(f"model is {shown(model)}; give a model with `start` and `step`")
    state = keeping.start(model, texts, most)
    scores = getattr(state, "next_scores", None)
    if scores is None:
        begin = torch.full((len(texts),), special.begin, dtype=torch.int64, device=texts.device)
        return state, model.step(begin, state)
    return state, scores.clone()  # a search modifies its logits in place


def admitted(scores: torch.Tensor, special: SpecialIds) -> tuple[torch.Tensor, torch.Tensor]:
    """Set the logits (batch, vocab_size) of ids in `special.never` to -inf, and compute their log-sum-exp (batch, 1).

    The difference of the two gives log-probabilities. Logits of float32 or float64 are changed in place, since they may
    be large.
    """
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if special.never:
        scores[:, list(special.never)] = -torch.inf
    total = log_total(scores)  # not finite if a logit is NaN or inf, or all are -inf
    if not bool(total.isfinite().all()):
        raise RegardError("the model's logits are not finite, so no id can be chosen; its weights may be damaged")
    return scores, total


def length_limits(texts: torch.Tensor, most: int | None) -> list[int]:
    """The most new ids of each batch row: `most`, or by default twice its ids without padding plus 16.

    The limit depends on the row alone, so a text has the same limit in any batch.
    """
    if not isinstance(texts, torch.Tensor) or texts.dim() != 2:
        raise ArgumentError(f"texts are {shown(texts)}; give an int64 tensor of ids (batch, length)")
    if most is None:
        return [2 * length + 16 for length in (texts != PAD).sum(1).tolist()]
    if whole("the most ids", most) < 1:
        raise ArgumentError(f"the limit is {count_of(most, 'ids')}; give 1 or more")
    return [most] * len(texts)


# Beam search

WIDEST = 1 << 16  # largest beam


class Going(NamedTuple):
    """An unfinished hypothesis: its ids, the log-probability of each, and the sum by which it is ranked."""

    ids: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()
    total: float = 0.0


class Candidate(NamedTuple):
    """A next id: the place of the hypothesis that it extends, its log-probability, and the sum by which it is ranked.

    The sum is the log-probability of the text, unless a repetition penalty lowers it.
    """

    place: int
    id: int
    gain: float
    total: float


@dataclass
class _Beam:
    """The search for one text: its unfinished hypotheses, the most likely first, and its finished ones."""

    number: int
    limit: int
    beam: int
    count: int
    normalisation: str
    alpha: float
    going: list[Going] = field(default_factory=lambda: [Going()])
    ended: list[Hypothesis] = field(default_factory=list)

    def end(self, ids: tuple[int, ...], one: Going, finished: bool) -> None:
        score = normalised(one.total, len(one.ids), self.normalisation, self.alpha)
        self.ended.append(Hypothesis(ids, math.fsum(one.gains), score, finished, one.gains))

    def best(self) -> list[Hypothesis]:
        return sorted(self.ended, key=lambda hypothesis: -hypothesis.score)[: self.count]

    def is_settled(self) -> bool:
        """Whether no unfinished hypothesis can still become one of the best `count`.

        A log-probability only decreases, so its best possible score is that at the shortest or the longest length.
        """
        if not self.going or (self.beam == 1 and self.ended):  # a beam of 1 is greedy search
            return True
        if len(self.ended) < self.count:
            return False
        likeliest = self.going[0].total
        bound = max(normalised(likeliest, length, self.normalisation, self.alpha) for length in (1, self.limit))
        return bound <= self.best()[-1].score

    def advance(self, candidates: list[Candidate], special: SpecialIds, over: Over | None) -> list[int]:
        """Extend the hypotheses by candidates, the most likely first; the places of those that go on."""
        before, self.going = self.going, []
        places: list[int] = []
        for rank, (place, identifier, gain, total) in enumerate(candidates):
            if total == -torch.inf or len(self.going) == self.beam:
                break
            old = before[place]
            one = Going((*old.ids, identifier), (*old.gains, gain), total)
            if identifier == special.end:
                if rank < self.beam:
                    self.end(old.ids, one, finished=True)
            elif over is not None and over(self.number, one.ids):
                if rank < self.beam:
                    self.end(one.ids, one, finished=True)
            elif len(one.ids) >= self.limit:
                self.end(one.ids, one, finished=False)
            else:
                self.going.append(one)
                places.append(place)
        return places


@torch.inference_mode()
def beam_search(
    model: Writer[Any],
    source: torch.Tensor,
    beam: int,
    *,
    count: int = 1,
    normalisation: str = "gnmt",
    alpha: float = 0.6,
    max_length: int | None = None,
    over: Over | None = None,
    special: SpecialIds = OURS,
    cache: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
    constraints: Constraints = FREE,
) -> list[list[Hypothesis]]:
    """Beam search: the best hypotheses for each batch row, of `beam` kept at every step.

    A batch row is finished, and leaves the batch, when no unfinished hypothesis can become one of its best `count`.

    Args:
        model: a model with `start` and `step`.
        source: ids (batch, length), padded with PAD: sources to translate, or prompts to continue.
        beam: number of hypotheses kept at each step; 1 is greedy search.
        count: number of hypotheses returned for each batch row, at most `beam`.
        normalisation: length normalisation of scores: "none", "average" or "gnmt"; see `normalised`.
        alpha: exponent of "gnmt".
        max_length: the most new ids; by default twice the ids of the batch row plus 16.
        over: function of (batch row, ids) that returns True to end a text.
        special: ids with a special meaning.
        cache, cache_dtype: how keys and values are stored, as for `generate`; in a "paged" cache beams share pages.
        constraints: what texts begin with, and which ids they may not have.

    Returns:
        For each batch row its best `count` hypotheses, the best first; fewer where there are not as many.

    Raises:
        ArgumentError: an invalid beam, count or normalisation.

    Source: Sequence to Sequence Learning, Sutskever et al. 2014, section 3.2.
    """
    check_search(special, over)
    beam = whole("beam", beam, 1, WIDEST, needs=f"a whole number from 1 to {WIDEST:,}")
    if not 1 <= (count := whole("count", count)) <= beam:
        raise ArgumentError(f"count is {count} and beam is {beam}; count is 1 or more, and at most beam")
    check_normalisation(normalisation, alpha)
    of_kind("constraints", constraints, Constraints, "a Constraints")
    limits = constraints.limits(length_limits(source, max_length), max_length is not None)
    rows = [_Beam(number, limit, beam, count, normalisation, alpha) for number, limit in enumerate(limits)]
    if not rows:
        return []
    state, scores = open_texts(model, source, special, Keeping(cache, cache_dtype), max(limits))
    searched, width = rows, 1  # each text has `width` neighbouring places in the batch
    while True:
        scores, total = admitted(scores, special)
        texts = [(row.number, one.ids) for row in searched for one in _filled(row.going, width)]
        chosen_by = constraints.constrained(scores, total, texts, special.end)
        candidates = _candidates(chosen_by, scores, total, [row.going for row in searched], width, beam)
        came_from = [row.advance(best, special, over) for row, best in zip(searched, candidates, strict=True)]
        parents: list[int] = []  # the place in the batch that each hypothesis extends
        for at, (row, places) in enumerate(zip(searched, came_from, strict=True)):
            if not row.is_settled():
                parents += [at * width + place for place in _filled(places, beam)]
        searched, width = [row for row in searched if not row.is_settled()], beam
        if not searched:
            return [row.best() for row in rows]
        state.reorder(torch.tensor(parents, device=source.device))
        last = [one.ids[-1] for row in searched for one in _filled(row.going, beam)]
        scores = model.step(torch.tensor(last, device=source.device), state)


def _candidates(
    chosen_by: torch.Tensor, scores: torch.Tensor, total: torch.Tensor, going: list[list[Going]], width: int, beam: int
) -> list[list[Candidate]]:
    """For each text its 2 · beam most likely continuations: enough even if `beam` of them end.

    Only the best continuations of each hypothesis can be among the best of all, so the vocabulary is read once.
    """
    best, identifiers = likeliest(chosen_by, 2 * beam)  # (rows * width, kept)
    own = best if chosen_by is scores else scores.gather(1, identifiers)
    before = [[one.total for one in row] + [-torch.inf] * (width - len(row)) for row in going]
    totals = torch.tensor(before, dtype=torch.float64, device=scores.device)  # (rows, width)
    kept = best.shape[-1]
    sums = (totals[..., None] + (best.double() - total.double()).view(-1, width, kept)).flatten(1)  # (rows, width*kept)
    chosen = sums.topk(min(2 * beam, sums.shape[-1]))
    ids, gains = (
        all_of.view(len(sums), -1).gather(1, chosen.indices) for all_of in (identifiers, own.double() - total.double())
    )
    columns = zip(*(one.tolist() for one in (chosen.indices, ids, gains, chosen.values)), strict=True)
    return [[Candidate(at // kept, *rest) for at, *rest in zip(*row, strict=True)] for row in columns]


def _filled(entries: list[Any], size: int) -> list[Any]:
    """The entries, with the last one repeated up to `size`."""
    return entries + entries[-1:] * (size - len(entries))


# Greedy search and sampling

GREEDY = Sampling(temperature=0)


def greedy_search(
    model: Writer[Any],
    texts: torch.Tensor,
    max_length: int | None = None,
    special: SpecialIds = OURS,
    *,
    cache: str | None = None,
    cache_dtype: torch.dtype | str | None = None,
    constraints: Constraints = FREE,
) -> list[Hypothesis]:
    """Greedy search: one hypothesis for each batch row, always with the most likely next id.

    Args:
        model: a model with `start` and `step`.
        texts: ids (batch, length), padded with PAD: sources to translate, or prompts to continue.
        max_length: the most new ids; by default twice the ids of the batch row plus 16.
        special: ids with a special meaning.
        cache, cache_dtype: as for `generate`.
        constraints: what texts begin with, and which ids they may not have.

    Returns:
        One hypothesis for each batch row; its score is its log-probability.
    """
    check_search(special, None)
    keeping = Keeping(cache, cache_dtype)
    of_kind("constraints", constraints, Constraints, "a Constraints")
    limits = constraints.limits(length_limits(texts, max_length), max_length is not None)
    return write(model, texts, limits, GREEDY, special=special, keeping=keeping, constraints=constraints)


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
    constraints: Constraints = FREE,
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
        constraints: what texts begin with, and which ids they may not have.

    Returns:
        Hypotheses, those of one batch row together. Log-probability and score are those of the model, before
        constraints, temperature and filters.
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
    gains: list[list[float]] = [[] for _ in numbers]
    finished = [False] * len(written)
    going = list(range(len(written)))
    while going:
        scores, total = admitted(scores, special)
        so_far = [(row // count, written[row]) for row in going]
        chosen_by = constraints.constrained(scores, total, so_far, special.end)
        ids = sampling.choose(chosen_by, numbers[going], len(written[going[0]]))
        gained = (scores.gather(-1, ids[:, None]) - total)[:, 0]
        staying = []
        for at, (row, chosen, gain) in enumerate(zip(going, ids.tolist(), gained.tolist(), strict=True)):
            gains[row].append(gain)
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
    totals = map(sum, gains)
    return [
        Hypothesis(tuple(ids), total, total, done, tuple(own))
        for ids, total, done, own in zip(written, totals, finished, gains, strict=True)
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
