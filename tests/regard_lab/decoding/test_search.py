"""Greedy and beam search against searches that try everything, and against each other."""

import itertools
import math

import pytest
import torch

from regard.errors import ArgumentError, RegardError
from regard_lab.decoding import Constraints, SpecialIds, beam_search, greedy_search
from regard_lab.decoding.options import normalised
from regard_lab.decoding.starting import exclude_never
from regard_lab.text import BEGIN, END, PAD

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
        self.kind, self.before = kind, before

    def reorder(self, index):
        self.kind, self.before = self.kind[index], self.before[index]


def every_text(model, kind, longest):
    """All texts of up to `longest` ids with END or at the limit, and the logarithm of their probability."""
    found = {}
    for length in range(1, longest + 1):
        for ids in itertools.product(range(4, VOCAB), repeat=length):
            endings = [(*ids[:-1], END)] if ids[-1] == 4 else []
            for text in [*endings, *([ids] if length == longest else [])]:
                found[text] = log_probability(model, kind, text)
    return found


def log_probability(model, kind, text, penalty=1.0):
    """The log probability of a text; the term of each repeated id is multiplied by the penalty."""
    total = 0.0
    for place, (before, last, identifier) in enumerate(
        zip((BEGIN, BEGIN, *text), (BEGIN, *text), text, strict=False)
    ):
        scores = model.scores[kind, before, last].clone()
        scores[[PAD, 1, BEGIN]] = -math.inf
        total += float(scores.log_softmax(-1)[identifier]) * (
            penalty if identifier in text[:place] else 1
        )
    return total


# the last one prefers short texts
RANKINGS = [
    ("none", 0.6),
    ("average", 0.6),
    ("gnmt", 1.1),
    ("gnmt", -3.0),
]


@pytest.mark.parametrize(("normalisation", "alpha"), RANKINGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_texts(normalisation, alpha, seed):
    model = TableModel(seed)
    source = torch.tensor([[4], [5], [6]])
    found = beam_search(model, source, 200, normalisation=normalisation, alpha=alpha, max_tokens=4)
    for row, kind in enumerate((4, 5, 6)):
        texts = every_text(model, kind, 4)
        best = max(texts, key=lambda text: normalised(texts[text], len(text), normalisation, alpha))
        assert found[row][0].ids == tuple(identifier for identifier in best if identifier != END)
        assert found[row][0].log_probability == pytest.approx(texts[best], abs=1e-4)
        assert found[row][0].finished == (best[-1] == END)


def allowed(text, rules):
    """Whether a text of `every_text` keeps the rules, by their words."""
    ids = [identifier for identifier in text if identifier != END]
    size = rules.no_repeat
    runs = [] if size is None else [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
    prefix = rules.prefixes[0] if rules.prefixes else ()
    fresh = len(set(runs)) == len(runs)
    return (
        fresh
        and (END not in text or len(ids) >= rules.min_length)
        and tuple(ids[: len(prefix)]) == prefix
    )


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
        found = beam_search(model, torch.tensor([[4]]), 300, **search)[0]
        texts = {
            text: total for text, total in every_text(model, 4, 4).items() if allowed(text, rules)
        }
        scores = {
            text: log_probability(model, 4, text, rules.repetition_penalty) / len(text)
            for text in texts
        }
        best = sorted(scores, key=lambda text: -scores[text])[:30]
        for one, text in zip(found, best, strict=True):
            assert (one.ids, one.finished) == (tuple(i for i in text if i != END), END in text)
            assert one.score == pytest.approx(scores[text], abs=1e-9)
            assert one.log_probability == pytest.approx(texts[text], abs=1e-9)
            assert sum(one.gains) == pytest.approx(texts[text], abs=1e-9)
            assert len(one.gains) == len(text)


@pytest.mark.parametrize("rules", RULES)
def test_greedy_search_keeps_constraints_as_a_beam_of_one(rules):
    model = TableModel(5, end_bonus=1.0)
    rows = torch.tensor([[4], [5]])
    rules = Constraints(**{**vars(rules), "prefixes": rules.prefixes * 2})
    greedy = greedy_search(model, rows, 4, constraints=rules)
    for one, [best] in zip(
        greedy, beam_search(model, rows, 1, max_tokens=4, constraints=rules), strict=True
    ):
        assert (one.ids, one.finished, len(one.gains)) == (best.ids, best.finished, len(best.gains))
        assert allowed((*one.ids, END) if one.finished else one.ids, rules)


def test_constraints_end_where_nothing_is_left_and_lengthen_no_limit_that_was_given():
    model = TableModel(0)
    source = torch.tensor([[4]])
    [one] = greedy_search(model, source, constraints=Constraints(no_repeat=1, min_length=9))
    assert len(one.ids) == len(set(one.ids)) == 4
    assert one.finished
    [one] = greedy_search(model, source, constraints=Constraints(min_length=40))
    assert len(one.ids) == 40
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
    going = [((), 0.0)]
    ended = {}
    while going:
        candidates = []
        for ids, total in going:
            scores = model.scores[kind, *((BEGIN, BEGIN, *ids)[-2:])].clone()
            scores[[PAD, 1, BEGIN]] = -math.inf
            likely = scores.log_softmax(-1).tolist()
            candidates += [((*ids, i), total + likely[i]) for i in (END, *range(4, VOCAB))]
        candidates.sort(key=lambda one: -one[1])
        going = []
        for place, (ids, total) in enumerate(candidates[: 2 * beam]):
            stopped = ids[-1] != END and over(0, ids)
            if len(going) == beam:
                break
            if ids[-1] == END or stopped:
                if place < beam:
                    text = ids if stopped else ids[:-1]
                    ended[text, True] = total, rank(total, len(ids))
            elif len(ids) == longest:
                ended[ids, False] = total, rank(total, len(ids))
            else:
                going.append((ids, total))
    return sorted(ended.items(), key=lambda one: -one[1][1])[:beam]


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
            found = beam_search(model, torch.tensor([[4]]), beam, **settings)[0]
            expected = by_definition(model, 4, beam, 6, rank, over)
            assert [(one.ids, one.finished) for one in found] == [text for text, _ in expected]
            for one, (_, (total, score)) in zip(found, expected, strict=True):
                assert one.log_probability == pytest.approx(total, abs=1e-9)
                assert one.score == pytest.approx(score, abs=1e-9)


def test_a_beam_of_one_is_greedy_search_and_several_hypotheses_come_the_best_first_and_distinct():
    for seed in range(10):
        model = TableModel(seed, end_bonus=1.0)
        source = torch.tensor([[4], [5], [6], [3]])
        greedy = greedy_search(model, source, 9)
        for one, [best] in zip(greedy, beam_search(model, source, 1, max_tokens=9), strict=True):
            assert (best.ids, best.log_probability) == (
                one.ids,
                pytest.approx(one.log_probability, abs=1e-4),
            )
    found = beam_search(
        TableModel(2, end_bonus=1.0), torch.tensor([[4]]), 5, count=5, max_tokens=8
    )[0]
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert len({(one.ids, one.finished) for one in found}) == len(found) == 5


def test_the_limit_is_twice_a_rows_own_source_and_16_more():
    model = TableModel(0, end_bonus=-1000.0)  # never ends by itself
    found = greedy_search(model, torch.tensor([[4, PAD], [5, 6]]))
    assert [len(one.ids) for one in found] == [18, 20]
    assert not any(one.finished for one in found)


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
