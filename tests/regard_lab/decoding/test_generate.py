"""One protocol for every model: caches of keys of any kind, cross-attention, recurrent and linear states."""

from itertools import chain

import pytest
import torch

import regard as rg
from regard.layers.caches import paged
from regard_lab.decoding import Sampling, SpecialIds, beam_search, generate, greedy_search
from regard_lab.models import LanguageModel, RecurrentTranslator, TranslationTransformer
from regard_lab.text import BEGIN, END, PAD

VOCAB = 23


def made(kind, **options):
    torch.manual_seed(0)
    sizes = {"hidden": 14} if kind is RecurrentTranslator else {"heads": 2, "hidden_dim": 17}
    return kind(kind.Config(vocab_size=VOCAB, dim=12, **sizes, **options)).eval()


def language(**options):
    return made(LanguageModel, layers=2, **options)


def translator(**options):
    return made(TranslationTransformer, **options)


MODELS = {
    "llama": lambda: language(kv_heads=1),
    "window": lambda: language(pattern="causal_window(3)", positions="learned"),
    "linear": lambda: language(mechanism="linear", positions="none"),
    "transformer": lambda: translator(decoder_kv_heads=1),
    "bahdanau": lambda: made(RecurrentTranslator, attention="bahdanau"),
    "luong": lambda: made(
        RecurrentTranslator, attention="luong-general", input_feeding=True, cell="lstm"
    ),
}
SEARCHES = {
    "greedy": {},
    "drawn": {"sampling": Sampling(temperature=0.9, top_p=0.95, seed=3)},
    "beam": {"beam": 3, "normalisation": "average"},
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    model = MODELS[request.param]().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def texts():
    """Unequal lengths, padded on the right."""
    ids = torch.randint(4, VOCAB, (5, 7), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate((7, 3, 5, 1, 7)):
        ids[row, length:] = PAD
    return ids


def scores_from_nothing(model, text, written):
    """What the uncached model says of the next id, (vocab_size,), with the ids that no text holds left out."""
    if isinstance(model, LanguageModel):
        scores = model(torch.cat([text, torch.tensor(written, dtype=torch.int64)])[None])
    else:
        scores = model(text[None], torch.tensor([[BEGIN, *written]]))
    scores = scores[0, -1].detach().clone()
    scores[:3] = -torch.inf
    return scores.log_softmax(-1)


def test_greedy_search_takes_what_the_uncached_model_finds_likeliest(model, texts):
    for row, hypothesis in enumerate(greedy_search(model, texts, 9)):
        text = texts[row][texts[row] != PAD]
        total = 0.0
        for place, next_id in enumerate(with_end(hypothesis)):
            scores = scores_from_nothing(model, text, hypothesis.ids[:place])
            assert next_id == int(scores.argmax())
            total += float(scores.max())
        assert hypothesis.log_probability == pytest.approx(total, abs=1e-9)


def with_end(hypothesis):
    return (*hypothesis.ids, END) if hypothesis.finished else hypothesis.ids


def ids_of(rows):
    """The ids of each text of each prompt."""
    ids = []
    for row in rows:
        ids.append([hypothesis.ids for hypothesis in row])
    return ids


@pytest.mark.parametrize("search", SEARCHES)
def test_what_stands_beside_a_prompt_and_where_it_is_padded_changes_nothing(model, texts, search):
    together = generate(model, texts, max_tokens=11, **SEARCHES[search])
    left = torch.zeros_like(texts)
    for row, text in enumerate(texts):
        living = text[text != PAD]
        left[row, len(text) - len(living) :] = living
        alone = generate(model, living[None], max_tokens=11, rows=[row], **SEARCHES[search])
        assert ids_of(alone) == ids_of([together[row]])
    moved = generate(model, left, max_tokens=11, **SEARCHES[search])
    assert ids_of(moved) == ids_of(together)


def test_hypotheses_of_a_beam_have_the_probability_that_the_uncached_model_gives_them(model, texts):
    rows = beam_search(model, texts, 4, count=4, normalisation="none", max_tokens=6)
    for row, hypotheses in enumerate(rows):
        text = texts[row][texts[row] != PAD]
        assert len({hypothesis.ids for hypothesis in hypotheses}) == 4
        for hypothesis in hypotheses:
            total = 0.0
            for place, next_id in enumerate(with_end(hypothesis)):
                scores = scores_from_nothing(model, text, hypothesis.ids[:place])
                total += float(scores[next_id])
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-9)


def test_no_two_texts_have_the_same_number_in_their_draws(model, texts):
    """Of rows as far apart as a file of lines may have them: copies of a row never take another row's number."""
    asked = []

    class Listening(Sampling):
        def choose(self, scores, rows, place):
            asked.append(rows)
            return super().choose(scores, rows, place)

    rows = [0, *(2**bits for bits in range(30))]
    prompts = texts[:1].expand(len(rows), -1)
    for count in (2, 5):
        generate(model, prompts, max_tokens=1, sampling=Listening(), count=count, rows=rows)
    assert [len(numbers.unique()) for numbers in asked] == [2 * len(rows), 5 * len(rows)]


def test_each_of_several_texts_has_the_limit_of_its_own_prompt():
    model = MODELS["transformer"]()
    sources = torch.tensor([[5, PAD, PAD], [6, 7, 8], [9, 9, PAD]])
    endless = SpecialIds(end=None)
    rows = generate(
        model, sources, max_tokens=None, sampling=Sampling(seed=1), count=3, special=endless
    )
    for limit, row in zip((18, 22, 20), ids_of(rows), strict=True):
        assert list(map(len, row)) == [limit] * 3


@pytest.mark.parametrize("search", SEARCHES)
def test_a_text_ends_when_the_caller_says_so(model, texts, search):
    heard = []

    def over(row, ids):
        heard.append((row, tuple(ids)))
        return len(ids) == 2

    rows = generate(model, texts, max_tokens=9, over=over, **SEARCHES[search])
    hypotheses = list(chain.from_iterable(rows))
    for hypothesis in hypotheses:
        assert len(hypothesis.ids) <= 2
        assert hypothesis.finished
    assert max(len(hypothesis.ids) for hypothesis in hypotheses) == 2
    assert {row for row, _ in heard} <= set(range(5))


def test_other_special_ids_are_heeded(model, texts):
    plain = greedy_search(model, texts, 9)
    last = plain[0].ids[2]
    ended = greedy_search(model, texts, 9, SpecialIds(end=last))
    assert ended[0].ids == plain[0].ids[: plain[0].ids.index(last)]
    assert ended[0].finished
    for hypothesis in greedy_search(
        model, texts, 9, SpecialIds(end=None, never=(PAD, BEGIN, last))
    ):
        assert not hypothesis.finished
        assert last not in hypothesis.ids


def test_rows_that_are_done_leave_the_batch():
    """With a limit of its own for each row, the model steps no row further than that row needs."""
    model = MODELS["transformer"]()
    stepped = []
    step = model.step

    def counted(ids, state):
        stepped.append(len(ids))
        return step(ids, state)

    model.step = counted
    sources = torch.tensor([[5, PAD, PAD], [6, 7, 8]])
    greedy_search(model, sources, special=SpecialIds(end=None))  # limits of 18 and 22
    assert stepped == [2] * 18 + [1] * 4


# `cache=` of the searches changes how keys and values are stored, and not what is written

PROMPTS = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])  # 0 is PAD


def kinds_made(monkeypatch):
    """The kinds of the caches that layers make."""
    made = []
    new_cache = rg.MultiHeadAttention.new_cache

    def counted(self, *args, **options):
        made.append(new_cache(self, *args, **options))
        return made[-1]

    monkeypatch.setattr(rg.MultiHeadAttention, "new_cache", counted)
    return made


DRAWS = {"max_tokens": 12, "sampling": Sampling(top_k=9, seed=1), "count": 2}
WRITTEN = {
    "greedy": lambda model, **cache: greedy_search(model, PROMPTS, 12, **cache),
    "sampling": lambda model, **cache: generate(model, PROMPTS, **DRAWS, **cache),
    "beam": lambda model, **cache: beam_search(model, PROMPTS, 3, count=2, max_tokens=12, **cache),
}


@pytest.mark.parametrize(
    ("cache", "search"),
    [
        ("dynamic", "beam"),
        ("static", "greedy"),
        ("paged", "sampling"),
        ("paged", "beam"),
        ("ring", "sampling"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [lambda: language(pattern="causal_window(5)"), translator],
    ids=["language", "translator"],
)
def test_every_kind_writes_what_the_models_own_choice_writes(make, search, cache, monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)
    model = make()
    if cache == "ring" and isinstance(model, TranslationTransformer):
        with pytest.raises(rg.ArgumentError, match="causal has no limit"):
            WRITTEN[search](model, cache=cache)
        return
    expected = WRITTEN[search](model)
    made = kinds_made(monkeypatch)
    assert_same_texts(WRITTEN[search](model, cache=cache), expected)
    assert {new_cache.kind for new_cache in made} == {cache}


def assert_same_texts(actual, expected):
    """The same ids; log-probabilities within rounding, since a program adds up in another order than modules do."""
    assert len(actual) == len(expected)
    for found_text, expected_text in zip(actual, expected, strict=True):
        if isinstance(found_text, list):
            assert_same_texts(found_text, expected_text)
            continue
        assert found_text.ids == expected_text.ids
        assert found_text.finished == expected_text.finished
        assert found_text.score == pytest.approx(expected_text.score, abs=2e-5)
        assert found_text.gains == pytest.approx(expected_text.gains, abs=2e-5)


@pytest.mark.parametrize("dtype", ["int8", torch.bfloat16])
@pytest.mark.parametrize("make", [language, translator])
def test_narrow_storage_rounds_scores_a_little(make, dtype, monkeypatch):
    model = make()
    expected = greedy_search(model, PROMPTS, 6)
    made = kinds_made(monkeypatch)
    rounded = greedy_search(model, PROMPTS, 6, cache="static", cache_dtype=dtype)
    stored = "torch.int8" if dtype == "int8" else "torch.bfloat16"
    assert {str(new_cache.dtype) for new_cache in made} == {stored}
    assert rounded != expected
    for hypothesis, unrounded in zip(rounded, expected, strict=True):
        assert hypothesis.log_probability == pytest.approx(unrounded.log_probability, abs=0.2)


def test_state_continues_a_mechanism_that_has_one_and_what_cannot_be_kept_says_so():
    model = language(mechanism="linear_transformer")
    assert WRITTEN["greedy"](model, cache="state") == WRITTEN["greedy"](model)
    with pytest.raises(rg.UnsupportedError, match="no recurrent state"):
        WRITTEN["greedy"](language(), cache="state")
    with pytest.raises(rg.ArgumentError, match="kind is 'pagd'; did you mean 'paged'"):
        greedy_search(language(), PROMPTS, cache="pagd")
    with pytest.raises(rg.ArgumentError, match=r"dtype.*'int4'"):
        greedy_search(language(), PROMPTS, cache_dtype="int4")
    with pytest.raises(rg.UnsupportedError, match="RecurrentTranslator stores no keys and values"):
        beam_search(made(RecurrentTranslator), PROMPTS, 2, cache="paged")
