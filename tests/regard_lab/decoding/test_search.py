"""Greedy and beam search against searches that try everything, and against each other."""

import itertools
import math

import pytest
import torch

from regard.errors import ArgumentError, RegardError
from regard_lab.decoding import Constraints, SpecialIds, beam_search, greedy_search
from regard_lab.decoding.options import normalised
from regard_lab.decoding.starting import exclude_never
from regard_lab.text import BEGIN, END, PAD, UNKNOWN

VOCAB = 8  # 4 specials and 4 that may be written


class TableModel:
    """A model whose next id depends on the last two: scores by a table, so that every text can be tried."""

    def __init__(self, seed, end_bonus=0.0):
        generator = torch.Generator().manual_seed(seed)
        self.scores = 2 * torch.randn(
            7, VOCAB, VOCAB, VOCAB, generator=generator, dtype=torch.float64
        )
        self.scores[..., END] += end_bonus

    def start(self, source):
        return TableState(source[:, 0] % 7, torch.full((len(source),), BEGIN))

    def step(self, ids, state):
        scores = self.scores[state.kind, state.before, ids]
        state.before = ids
        return scores


class TableState:
    def __init__(self, kind, before):
        self.kind = kind
        self.before = before

    def reorder(self, index):
        self.kind = self.kind[index]
        self.before = self.before[index]


def every_text(model, kind, longest):
    """All texts of up to `longest` ids with END or at the limit, and the logarithm of their probability."""
    log_probabilities = {}
    written = range(4, VOCAB)
    for length in range(1, longest + 1):
        texts = [(*ids, END) for ids in itertools.product(written, repeat=length - 1)]
        if length == longest:
            texts += itertools.product(written, repeat=length)
        for text in texts:
            log_probabilities[text] = log_probability(model, kind, text)
    return log_probabilities


def log_probability(model, kind, text, penalty=1.0):
    """The log probability of a text; the term of each repeated id is multiplied by the penalty."""
    total = 0.0
    ids = (BEGIN, BEGIN, *text)
    for place, next_id in enumerate(text):
        log_prob = float(log_probabilities_after(model, kind, ids[place : place + 2])[next_id])
        total += penalty * log_prob if next_id in text[:place] else log_prob
    return total


def log_probabilities_after(model, kind, last_two):
    """Those of the next id (vocab_size,); a text has neither PAD nor UNKNOWN nor BEGIN."""
    scores = model.scores[kind, *last_two].clone()
    scores[[PAD, UNKNOWN, BEGIN]] = -math.inf
    return scores.log_softmax(-1)


def without_end(text):
    return tuple(next_id for next_id in text if next_id != END)


# the last one prefers short texts
RANKINGS = [
    ("none", 0.6),
    ("average", 0.6),
    ("gnmt", 1.1),
    ("gnmt", -3.0),
]


@pytest.mark.each_value
@pytest.mark.parametrize(("normalisation", "alpha"), RANKINGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_texts(normalisation, alpha, seed):
    model = TableModel(seed)
    source = torch.tensor([[4], [5], [6]])
    rows = beam_search(model, source, 200, normalisation=normalisation, alpha=alpha, max_tokens=4)
    for (hypothesis, *_), kind in zip(rows, (4, 5, 6), strict=True):
        texts = every_text(model, kind, 4)
        best = max(texts, key=lambda text: normalised(texts[text], len(text), normalisation, alpha))
        assert hypothesis.ids == without_end(best)
        assert hypothesis.log_probability == pytest.approx(texts[best], abs=1e-4)
        assert hypothesis.finished == (best[-1] == END)


def keeps_rules(text, rules):
    """Whether a text of `every_text` keeps the rules, by their words."""
    ids = without_end(text)
    if END in text and len(ids) < rules.min_length:
        return False
    if rules.prefixes:
        (prefix,) = {*rules.prefixes}
        if ids[: len(prefix)] != prefix:
            return False
    if rules.no_repeat is None:
        return True
    runs = [ids[start : start + rules.no_repeat] for start in range(len(ids) - rules.no_repeat + 1)]
    return len(set(runs)) == len(runs)


RULES = [
    Constraints(min_length=3),
    Constraints(no_repeat=1),
    Constraints(no_repeat=2, min_length=2),
    Constraints(prefixes=((6, 5),)),
    Constraints(repetition_penalty=1.7, min_length=1),
]


@pytest.mark.parametrize("rules", RULES)
def test_the_best_texts_under_constraints_are_those_of_an_exhaustive_search(rules):
    for seed in range(2):
        model = TableModel(seed, end_bonus=1.0)
        search = {"count": 30, "normalisation": "average", "max_tokens": 4, "constraints": rules}
        (hypotheses,) = beam_search(model, torch.tensor([[4]]), 300, **search)
        totals = every_text(model, 4, 4)
        scores = {}
        for text in totals:
            if keeps_rules(text, rules):
                total = log_probability(model, 4, text, rules.repetition_penalty)
                scores[text] = total / len(text)
        best = sorted(scores, key=lambda text: -scores[text])[:30]
        for hypothesis, text in zip(hypotheses, best, strict=True):
            assert (hypothesis.ids, hypothesis.finished) == (without_end(text), END in text)
            assert hypothesis.score == pytest.approx(scores[text], abs=1e-9)
            assert hypothesis.log_probability == pytest.approx(totals[text], abs=1e-9)
            assert sum(hypothesis.gains) == pytest.approx(totals[text], abs=1e-9)
            assert len(hypothesis.gains) == len(text)


@pytest.mark.parametrize("rules", RULES)
def test_greedy_search_keeps_constraints_as_a_beam_of_one(rules):
    model = TableModel(5, end_bonus=1.0)
    rows = torch.tensor([[4], [5]])
    rules = Constraints(**{**vars(rules), "prefixes": rules.prefixes * 2})
    of_greedy = greedy_search(model, rows, 4, constraints=rules)
    of_beam = beam_search(model, rows, 1, max_tokens=4, constraints=rules)
    for greedy, [best] in zip(of_greedy, of_beam, strict=True):
        assert (greedy.ids, greedy.finished) == (best.ids, best.finished)
        assert len(greedy.gains) == len(best.gains)
        text = (*greedy.ids, END) if greedy.finished else greedy.ids
        assert keeps_rules(text, rules)


def test_constraints_end_where_nothing_is_left_and_lengthen_no_limit_that_was_given():
    model = TableModel(0)
    source = torch.tensor([[4]])
    [all_ids] = greedy_search(model, source, constraints=Constraints(no_repeat=1, min_length=9))
    assert len(all_ids.ids) == len(set(all_ids.ids)) == 4
    assert all_ids.finished
    [long] = greedy_search(model, source, constraints=Constraints(min_length=40))
    assert len(long.ids) == 40
    with pytest.raises(
        ArgumentError, match="the longest text is 3 ids, and min_length needs 40; give a larger"
    ):
        greedy_search(model, source, 3, constraints=Constraints(min_length=40))
    with pytest.raises(ArgumentError, match="the longest text is 2 ids, and the prefix needs 3"):
        beam_search(model, source, 2, max_tokens=2, constraints=Constraints(prefixes=((4, 5),)))
    for wrong in ({"repetition_penalty": 0.5}, {"no_repeat": 0}, {"min_length": -1}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            Constraints(**wrong)


def by_definition(model, kind, beam, longest, rank, over):
    """Every step until the limit: what ends among the `beam` likeliest continuations has ended, and `beam` go on."""
    alive = [((), 0.0)]
    ended = {}  # the total and the score of each text, and of whether it is complete
    while alive:
        candidates = []
        for ids, total in alive:
            log_probs = log_probabilities_after(model, kind, (BEGIN, BEGIN, *ids)[-2:]).tolist()
            candidates += [((*ids, i), total + log_probs[i]) for i in (END, *range(4, VOCAB))]
        candidates.sort(key=lambda candidate: -candidate[1])
        alive = []
        for place, (ids, total) in enumerate(candidates[: 2 * beam]):
            if len(alive) == beam:
                break
            score = rank(total, len(ids))
            if ids[-1] == END or over(0, ids):
                if place < beam:
                    ended[without_end(ids), True] = total, score
            elif len(ids) == longest:
                ended[ids, False] = total, score
            else:
                alive.append((ids, total))
    return sorted(ended.items(), key=lambda text: -text[1][1])[:beam]


@pytest.mark.each_value
@pytest.mark.parametrize(("normalisation", "alpha"), RANKINGS)
@pytest.mark.parametrize("beam", [2, 3, 4])
def test_a_beam_is_its_definition_and_stops_no_search_too_early(beam, normalisation, alpha):
    def rank(total, length):
        return normalised(total, length, normalisation, alpha)

    for seed in range(12):
        model = TableModel(seed, end_bonus=0.5)
        for over in (lambda row, ids: False, lambda row, ids: ids[-1] == 6):
            settings = {
                "count": beam,
                "normalisation": normalisation,
                "alpha": alpha,
                "max_tokens": 6,
                "over": over,
            }
            (hypotheses,) = beam_search(model, torch.tensor([[4]]), beam, **settings)
            expected = by_definition(model, 4, beam, 6, rank, over)
            for hypothesis, (text, (total, score)) in zip(hypotheses, expected, strict=True):
                assert (hypothesis.ids, hypothesis.finished) == text
                assert hypothesis.log_probability == pytest.approx(total, abs=1e-9)
                assert hypothesis.score == pytest.approx(score, abs=1e-9)


def test_a_search_ends_with_the_step_after_which_no_text_can_become_better(monkeypatch):
    model = TableModel(0, end_bonus=50.0)
    step = model.step
    steps = []

    def count_and_step(ids, state):
        steps.append(ids)
        return step(ids, state)

    monkeypatch.setattr(model, "step", count_and_step)
    ((hypothesis,),) = beam_search(model, torch.tensor([[4]]), 3, max_tokens=9)
    assert hypothesis.ids == ()
    assert len(steps) == 1


def test_a_beam_of_one_is_greedy_search_and_several_hypotheses_come_the_best_first_and_distinct():
    for seed in range(10):
        model = TableModel(seed, end_bonus=1.0)
        source = torch.tensor([[4], [5], [6], [3]])
        of_greedy = greedy_search(model, source, 9)
        of_beam = beam_search(model, source, 1, max_tokens=9)
        for greedy, [best] in zip(of_greedy, of_beam, strict=True):
            assert best.ids == greedy.ids
            assert best.log_probability == pytest.approx(greedy.log_probability, abs=1e-4)

    model = TableModel(2, end_bonus=1.0)
    (hypotheses,) = beam_search(model, torch.tensor([[4]]), 5, count=5, max_tokens=8)
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == sorted(scores, reverse=True)
    distinct = {(hypothesis.ids, hypothesis.finished) for hypothesis in hypotheses}
    assert len(distinct) == len(hypotheses) == 5


def test_the_limit_is_twice_a_rows_own_source_and_16_more():
    model = TableModel(0, end_bonus=-1000.0)  # never ends by itself
    short, long = greedy_search(model, torch.tensor([[4, PAD], [5, 6]]))
    assert (len(short.ids), len(long.ids)) == (18, 20)
    assert not short.finished
    assert not long.finished


def test_searches_that_cannot_be_are_refused():
    source = torch.tensor([[4]])
    with pytest.raises(
        ArgumentError, match=r"^beam is 0; it needs a whole number from 1 to 65,536$"
    ):
        beam_search(TableModel(0), source, 0)
    with pytest.raises(ArgumentError, match="count is 3 and beam is 2"):
        beam_search(TableModel(0), source, 2, count=3)
    with pytest.raises(ArgumentError, match="none, average, gnmt"):
        beam_search(TableModel(0), source, 2, normalisation="google")
    with pytest.raises(ArgumentError, match="limit is 0 ids"):
        greedy_search(TableModel(0), source, 0)
    model = TableModel(0)
    model.scores[:] = math.nan
    with pytest.raises(RegardError, match="not finite"):
        greedy_search(model, source, 5)
    with pytest.raises(RegardError, match="not finite"):
        # one row of two
        exclude_never(torch.tensor([[0.0, 1.0, 2.0], [0.0, math.nan, 2.0]]), SpecialIds(0, 1, ()))


def test_the_normalisations_are_their_formulas():
    assert normalised(-6.0, 3, "none") == -6.0
    assert normalised(-6.0, 3, "average") == -2.0
    assert normalised(-6.0, 3, "gnmt", alpha=0.5) == pytest.approx(-6.0 / math.sqrt(8 / 6))
