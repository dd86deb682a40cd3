"""Prompts in, texts out: stops, streams, batches and saved models."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError, CheckpointError
from regard_lab.decoding import Constraints, Generator, Sampling, SearchOptions, TextStream
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageConfig, LanguageModel, RecurrentTranslator
from regard_lab.text import BEGIN, END, PAD, Tokeniser

LINES = [
    "the animal sleeps",
    "a café in the street",
    "the old animal did not cross the street",
    "🦊 $x$",
]
PROMPTS = ["the animal", "", "a street in the old café", "🦊"]
DRAWN = Sampling(temperature=1.5, seed=2)


def new_generator(**settings):
    tokeniser = Tokeniser.train(LINES, 300, verbatim=settings.pop("verbatim", False))
    torch.manual_seed(0)
    config = LanguageConfig(
        vocab_size=tokeniser.vocab_size, **{"dim": 16, "heads": 2, "layers": 2, **settings}
    )
    return Generator(LanguageModel(config).double(), tokeniser)


@pytest.fixture(scope="module")
def generator():
    return new_generator()


def writing(generator, ids):
    """The generator with a model that writes these ids, whatever is asked, and then ends."""

    def start(prompts):
        state = SimpleNamespace(place=0, reorder=lambda index: None, next_scores=None)
        state.next_scores = step(prompts[:, 0], state)
        return state

    def step(ids_before, state):
        scores = torch.zeros(len(ids_before), generator.tokeniser.vocab_size)
        scores[:, [*ids, END][state.place]] = 9.0
        state.place += 1
        return scores

    model = SimpleNamespace(
        config=generator.model.config,
        eval=lambda: model,
        parameters=generator.model.parameters,
        start=start,
        step=step,
    )
    return Generator(model, generator.tokeniser)


@pytest.mark.parametrize(
    "options", [{}, {"sampling": DRAWN}, {"sampling": DRAWN, "count": 3}, {"beam": 3, "count": 2}]
)
def test_each_prompt_is_continued_in_its_place_whatever_stands_beside_it(generator, options):
    together = generator.generate(PROMPTS, max_tokens=12, **options)
    alone = generator.generate(PROMPTS, max_tokens=12, batch_size=1, **options)
    rows = zip(PROMPTS, together, alone, strict=True)
    for prompt, row, row_alone in rows:
        assert len(row) == options.get("count", 1)
        for text, text_alone in zip(row, row_alone, strict=True):
            assert text.prompt == prompt
            assert text.ids == text_alone.ids


@pytest.mark.parametrize("options", [{}, {"sampling": DRAWN, "count": 2}, {"beam": 2}])
@pytest.mark.parametrize("stop", [[], ["e"]])
def test_what_was_passed_on_piece_by_piece_is_the_text(generator, options, stop):
    parts = {}

    def keep(prompt, number, more):
        parts[prompt, number] = parts.get((prompt, number), "") + more

    rows = generator.generate(PROMPTS, max_tokens=15, stop=stop, on_text=keep, **options)
    expected = {}
    for prompt, row in enumerate(rows):
        for number, written in enumerate(row):
            if written.text:
                expected[prompt, number] = written.text
    assert parts == expected


def test_drawn_texts_keep_constraints_and_proposals_refuse_them(generator):
    rules = SearchOptions(max_tokens=30, constraints=Constraints(no_repeat=1))
    ruled = generator.generate(PROMPTS, rules, sampling=DRAWN, count=2)
    free = generator.generate(PROMPTS, rules, sampling=DRAWN, count=2, no_repeat=None)
    assert not any(map(repeats_an_id, itertools.chain.from_iterable(ruled)))
    assert any(map(repeats_an_id, itertools.chain.from_iterable(free)))
    with pytest.raises(ArgumentError, match=r"no_repeat=1.* and speculate= exclude each other"):
        generator.generate(PROMPTS, rules, normalisation="none", speculate="lookup")


def repeats_an_id(text):
    return len(set(text.ids)) < len(text.ids)


def test_a_stop_that_begins_and_ends_inside_sub_words_ends_the_text(generator):
    ids = generator.tokeniser.encode("the old street sleeps")
    pieces = [generator.tokeniser.decode([i]) for i in ids]
    assert "ld str" not in pieces  # it crosses pieces
    ((stopped,),) = writing(generator, ids).generate(["a"], stop=["ld str", "zzz"])
    assert stopped.text == " the o"
    assert stopped.ended == "stop"
    assert generator.tokeniser.decode(stopped.ids).startswith("the old str")
    ((whole,),) = writing(generator, ids).generate(["a"], stop=["zzz"])
    assert (whole.text, whole.ended) == (" the old street sleeps", "end")
    ((beam,),) = writing(generator, ids).generate(["a"], stop=["ld str"], beam=2)
    assert (beam.text, beam.ended) == (" the o", "stop")


def test_a_stream_never_holds_half_a_character_and_nothing_that_is_taken_back(generator):
    raw_pieces = generator.tokeniser.vocabulary.raw_pieces
    ids = [raw_pieces.index(bytes([byte])) for byte in "é🦊!".encode()]
    parts = []
    writing(generator, ids).generate(["a"], stop=["!?"], on_text=lambda *more: parts.append(more))
    assert parts == [(0, 0, "é"), (0, 0, "🦊"), (0, 0, "!")]


def test_an_empty_prompt_begins_a_text_without_the_tokenisers_space(generator):
    ids = generator.tokeniser.encode("the street")
    assert writing(generator, ids).generate([""])[0][0].text == "the street"
    assert writing(generator, ids).generate(["a"])[0][0].text == " the street"
    verbatim = new_generator(verbatim=True)
    ids = verbatim.tokeniser.encode("  the street\n")
    assert writing(verbatim, ids).generate([""])[0][0].text == "  the street\n"


def test_prompts_are_read_as_blocks_of_training_are_with_begin_before_them(generator, monkeypatch):
    read = []
    start = generator.model.start

    def note_and_start(prompts):
        read.append(prompts.tolist())
        return start(prompts)

    monkeypatch.setattr(generator.model, "start", note_and_start)
    generator.generate(["the animal", ""], max_tokens=1)
    ids = generator.tokeniser.encode("the animal")
    assert read == [[[BEGIN] + [PAD] * len(ids), [BEGIN, *ids]]]


def test_a_saved_generator_writes_the_same_and_what_is_none_or_has_another_tokeniser_is_refused(
    generator, tmp_path
):
    tokeniser = generator.tokeniser
    generator.model.save(tmp_path / "writer", {TOKENISER_FILE: tokeniser.to_json()})
    loaded = Generator.load(tmp_path / "writer")
    assert loaded.generate(PROMPTS, max_tokens=9) == generator.generate(PROMPTS, max_tokens=9)
    translator = RecurrentTranslator(
        RecurrentTranslator.Config(vocab_size=tokeniser.vocab_size, dim=8, hidden=8)
    )
    translator.save(tmp_path / "run", {TOKENISER_FILE: tokeniser.to_json()})
    with pytest.raises(CheckpointError, match="language-model"):
        Generator.load(tmp_path / "run")
    with pytest.raises(ArgumentError, match="were not trained together"):
        Generator(generator.model, Tokeniser.train(["other words entirely"], 290))


def test_more_than_the_model_has_places_for_is_refused_before_any_work():
    generator = new_generator(positions="learned", max_length=10)
    prompt = "the animal"
    read = 1 + len(generator.tokeniser.encode(prompt))
    for prompts in ([prompt], ["the", prompt]):  # the longest prompt counts
        with pytest.raises(ArgumentError, match=f"at most {11 - read}"):
            generator.generate(prompts, max_tokens=12 - read)
    # the last id needs no place: nothing follows it
    assert generator.generate([prompt], max_tokens=11 - read)


LETTERS = st.text(st.sampled_from("abé🦊 "), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("abé🦊"), min_size=1, max_size=4), max_size=3)


def pieces(raw, cuts):
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


def up_to_the_first_stop(text, stops):
    """Letter by letter: the text before the stop that is complete first."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


@given(LETTERS, STOPS, st.lists(st.integers(0, 99), max_size=6))
def test_a_text_ends_before_the_stop_that_is_complete_first_however_it_is_cut(text, stops, cuts):
    stream = TextStream(stops)
    shown = "".join(stream.feed(piece) for piece in pieces(text.encode(), cuts)) + stream.close()
    assert (shown, stream.stopped) == up_to_the_first_stop(text, stops)


@given(LETTERS, STOPS)
def test_nothing_is_shown_that_must_be_taken_back_and_nothing_held_without_need(text, stops):
    stream = TextStream(stops)
    shown = ""
    whole, _ = up_to_the_first_stop(text, stops)
    for end, letter in enumerate(text, start=1):
        shown += stream.feed(letter.encode())
        assert whole.startswith(shown)
        if not stream.stopped:
            held = text[len(shown) : end]
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_half_a_character_waits_for_its_other_half_and_is_marked_if_it_never_comes():
    stream = TextStream()
    assert [stream.feed(bytes([byte])) for byte in "🦊".encode()] == ["", "", "", "🦊"]
    assert stream.feed(b"\xf0\x9f") == ""
    assert stream.close() == "\ufffd"
