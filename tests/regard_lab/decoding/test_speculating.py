"""Speculative decoding writes the texts that are written without it, in fewer calls of the model."""

from itertools import chain

import pytest
import torch
from test_generator import DRAWN, LINES, new_generator

from regard.errors import ArgumentError, UnsupportedError
from regard.mechanisms import Mechanism
from regard.mechanisms.recurrent import Recurrent
from regard_lab.decoding import Generator, Sampling, SearchOptions, generate
from regard_lab.decoding.speculating import Draft, Proposals, lookup, speculate_texts
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import BEGIN, PAD, Tokeniser

PROMPTS = ["the animal", "", "a street in the old café in the"]


@pytest.fixture(scope="module")
def generator():
    return new_generator(pattern="causal & causal_window(9)")


def smaller(generator, seed=1):
    torch.manual_seed(seed)
    config = LanguageConfig(vocab_size=generator.tokeniser.vocab_size, dim=8, heads=1, layers=1)
    return Generator(LanguageModel(config).double(), generator.tokeniser)


def texts(written):
    return [
        [(generated.ids, generated.text, generated.ended) for generated in row] for row in written
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampling": DRAWN, "count": 2, "first_row": 5},
        {"sampling": Sampling(temperature=0.7, top_p=0.8), "cache": "paged"},
        {"cache": "static", "stop": ["t"], "branches": 3},
    ],
)
def test_the_texts_are_those_without_it(generator, options):
    if "branches" in options:
        generator = new_generator(pattern="causal")
    options = {"max_tokens": 17, **options}
    plain = generator.generate(PROMPTS, **{**options, "branches": 1})
    heard = []
    for speculate in ("lookup", smaller(generator), generator):
        how = {"speculate": speculate, "proposals": 3, "on_text": lambda *part: heard.append(part)}
        speculated = generator.generate(PROMPTS, **how, **options)
        assert texts(speculated) == texts(plain)
        for fast, slow in zip(chain(*speculated), chain(*plain), strict=True):
            assert fast.log_probability == pytest.approx(slow.log_probability, abs=1e-9)
            assert slow.tokens_per_step is None
            assert 1 <= fast.tokens_per_step <= 4
        spoken = "".join(more for prompt, text, more in heard if (prompt, text) == (2, 0))
        assert spoken == speculated[2][0].text
        heard.clear()


RECURRENT = sorted(
    name
    for name in Mechanism.registry.names()
    if issubclass(Mechanism.registry.kinds[name], Recurrent)
)
MEMORIES = {
    "softmax": {},
    "grouped heads": {"kv_heads": 1},
    "windows": {"pattern": ["causal_window(3)", "full"], "layers": 3},
    "latents": {"latent_dim": 7},
    "features": {"mechanism": "linear", "positions": "none"},
    "gated features": {"mechanism": "rfa(features=5, gated=true)", "positions": "none"},
    "states between windows": {
        "mechanism": ["gated_delta", "softmax", "ssd"],
        "pattern": ["full", "causal_window(5)", "full"],
        "positions": "none",
        "layers": 5,
    },
    **{name: {"mechanism": name, "positions": "none"} for name in RECURRENT},
}


LIKELIEST = {"max_tokens": 13}
OTHERS = {"max_tokens": 13, "sampling": DRAWN, "count": 2, "first_row": 5}
SOME = ((LIKELIEST, ("itself",)), (OTHERS, ("smaller",)))
ALL = tuple((options, ("lookup", "itself", "smaller")) for options in (LIKELIEST, OTHERS))


@pytest.mark.parametrize(
    "ways", [pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", MEMORIES)
def test_every_memory_gives_the_texts_of_decoding_without_proposals(kind, ways):
    """A memory keeps what was accepted, whoever proposes: a draft that is always right, and one that seldom is."""
    model = new_generator(**MEMORIES[kind])
    prompts = ["the animal", "a street in the old café in the"]
    drafts = {"lookup": "lookup", "itself": model, "smaller": smaller(model)}
    for options, names in ways:
        plain = model.generate(prompts, **options)
        for name in names:
            speculated = model.generate(prompts, speculate=drafts[name], proposals=3, **options)
            assert texts(speculated) == texts(plain)
            for fast, slow in zip(chain(*speculated), chain(*plain), strict=True):
                assert fast.log_probability == pytest.approx(slow.log_probability, abs=1e-9)


@pytest.mark.parametrize(
    ("cache", "settings"),
    [
        ("ring", {"pattern": "causal_window(5)"}),
        ("state", {"mechanism": "gated_delta", "positions": "none"}),
        ("dynamic", {"mechanism": "linear", "positions": "none"}),
    ],
)
def test_a_cache_that_cannot_go_back_reads_accepted_ids_again(cache, settings):
    model = new_generator(**settings).model
    prompt = torch.tensor([[BEGIN, 9, 8, 7]])
    [[plain]] = generate(model, prompt, max_tokens=29, cache=cache)
    read = []
    extend = model.extend
    model.extend = lambda ids, *options: read.append(ids.shape[1]) or extend(ids, *options)

    def right_then_wrong(ids, count, branches):
        right = plain.ids[len(ids) - 4 :][:count]
        return [[*right[:1], PAD, PAD, PAD][:count]]

    options = SearchOptions(cache=cache, max_tokens=29)
    [[fast]] = speculate_texts(model, prompt, options, None, Proposals(right_then_wrong, 4))
    assert fast.ids == plain.ids
    assert fast.gains == pytest.approx(plain.gains, abs=1e-9)
    goes_back = cache == "dynamic"
    assert max(read) <= (5 if goes_back else 4 + 2 + 4 + 1)  # what is read again stays short
    assert fast.calls == 1 + len(read) < 29


def test_a_draft_that_is_the_model_itself_is_always_right(generator):
    ((fast,),) = generator.generate(["the animal"], max_tokens=21, speculate=generator, proposals=4)
    assert (len(fast.ids), fast.ended) == (21, "length")
    assert fast.tokens_per_step == 21 / 5  # the prompt gives 1, then four calls give 5
    bad = smaller(generator)
    with torch.no_grad():
        bad.model.norm.weight.neg_()
    ((misled,),) = generator.generate(["the animal"], max_tokens=21, speculate=bad, proposals=4)
    assert misled.ids == fast.ids
    assert misled.tokens_per_step < 2


@pytest.mark.parametrize(
    ("cache", "positions"),
    [("dynamic", "rotary"), ("static", "learned"), ("paged", "sinusoidal"), ("dynamic", "none")],
)
def test_a_tree_is_as_good_as_its_right_branch(cache, positions):
    model = new_generator(positions=positions).model
    prompt = torch.tensor([[BEGIN, 9, 8, 7]])
    [[plain]] = generate(model, prompt, max_tokens=21, sampling=DRAWN)

    def propose(ids, count, branches):
        right = [*plain.ids[len(ids) - 4 :][:count]]
        return [[PAD, *right][:count], [*right[:1], PAD], right][:branches]

    options = SearchOptions(cache=cache, max_tokens=21)
    # a prompt gives 1 id, each further call 5; its first branch is wrong
    for branches, calls in (
        (3, 5),
        (1, 21),
    ):
        proposals = Proposals(propose, 4, branches)
        [[fast]] = speculate_texts(model, prompt, options, DRAWN, proposals)
        assert (fast.ids, fast.calls) == (plain.ids, calls)
        assert fast.gains == pytest.approx(plain.gains, abs=1e-9)


def test_lookup_takes_the_longest_match_and_the_latest_place():
    assert lookup([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2) == [[9, 2]]
    assert lookup([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2, branches=3) == [[9, 2], [8, 1]]
    assert lookup([5, 3, 7, 3, 8, 3], 9) == [[8, 3]]
    assert lookup([1, 2, 3], 4) == lookup([1], 4) == lookup([], 4) == []


@pytest.mark.parametrize(
    ("settings", "goes_back"),
    [({}, True), ({"mechanism": "gated_delta", "positions": "none"}, False)],
)
def test_a_draft_reads_on_where_the_text_went_another_way(settings, goes_back, monkeypatch):
    generator = new_generator(**settings)
    model = generator.model
    draft = Draft(model)
    ids = [BEGIN, *generator.tokeniser.encode("the old animal sleeps")]
    extend = model.extend
    numbers_read_on = []

    def count_and_extend(new_ids, state):
        numbers_read_on.append(new_ids.shape[1])
        return extend(new_ids, state)

    monkeypatch.setattr(model, "extend", count_and_extend)
    with torch.inference_mode():
        draft(ids[:4], 5)
        for text in (ids[:5], [*ids[:3], 9, 8], ids, [7, 7]):
            assert draft(text, 5) == Draft(model)(text, 5)
    # a state that cannot go back reads another text from its beginning
    assert numbers_read_on == ([1, 2, len(ids) - 3] if goes_back else [1])


def test_what_cannot_be_speculated_is_refused(generator):
    other_tokeniser = Tokeniser.train([*LINES, "zebras zigzag zealously, zebras zigzag"], 310)
    torch.manual_seed(0)
    draft = Generator(
        LanguageModel(LanguageConfig(vocab_size=other_tokeniser.vocab_size, dim=8, heads=1)),
        other_tokeniser,
    )
    short = new_generator(positions="learned", max_length=8)
    for options, error, message in (
        ({"speculate": draft}, ArgumentError, "the draft model has another tokeniser"),
        ({"speculate": "look"}, ArgumentError, "speculate is 'look'"),
        (
            {"speculate": "lookup", "beam": 2},
            ArgumentError,
            "beam=2, normalisation=.none. and speculate= exclude",
        ),
        ({"speculate": "lookup", "proposals": 0}, ArgumentError, "proposals"),
        ({"speculate": "lookup", "count": 2}, ArgumentError, "the most likely ids give 1 text"),
        (
            {"speculate": "lookup", "cache": "ring", "branches": 2},
            UnsupportedError,
            "a recurrent state or a ring cannot drop them, so continue one branch",
        ),
        ({"speculate": short}, ArgumentError, "8 learned positions"),
        ({"branches": 3}, ArgumentError, "branches=3 is for proposals"),
        ({"speculate": generator, "branches": 2}, UnsupportedError, "this model has windows"),
        (
            {"speculate": "lookup", "normalisation": "gnmt"},
            ArgumentError,
            "normalisation='gnmt' and speculate=",
        ),
    ):
        with pytest.raises(error, match=message):
            generator.generate(["the animal"], max_tokens=12, **options)
