"""Walk-through, changed words, alignments, comparisons and relations: numbers equal those of Python."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError
from regard_lab.decoding import Translator
from regard_lab.models import RecurrentTranslator
from regard_lab.seeing import look_text
from regard_lab.seeing.explorer import explore_text, explore_translation
from regard_lab.seeing.explorer import sources as sources_module
from regard_lab.seeing.explorer.page import unpacked, walk_to_answer
from regard_lab.seeing.explorer.sources import compared, explore_maps, heads_apart
from regard_lab.seeing.heads import ablate
from regard_lab.seeing.lenses.contrast import baseline
from regard_lab.seeing.lenses.erasing import text_without_each, without_each
from regard_lab.seeing.relations import relations_in
from regard_lab.text import BEGIN, END
from regard_lab.walkthrough.writing import shown_walk

from .browsing import Opened
from .making import (
    OTHER,
    SOURCE,
    TARGET,
    TOKENISER,
    language_model,
    log_probs_of_next,
    probabilities_of_words,
    translation,
    translator,
    walked,
)

IDS = TOKENISER.encode(TARGET)


# the walk-through


def test_the_numbers_of_every_step_are_those_of_torch():
    walk = walked()
    answer = walk_to_answer(shown_walk(walk))
    assert len(answer["walk"]["steps"]) == len(walk.steps) > 50
    for record, step in zip(answer["walk"]["steps"], walk.steps, strict=True):
        assert record["line"] == step.line
        sums_to_1 = step.title.endswith(
            ("attention weights", "Distribution", "Their probabilities")
        )
        assert (record["scale"] == "weights") == sums_to_1
        assert [axis["size"] for axis in record["axes"]] == [len(axis) for axis in step.axes]
        if isinstance(step.value, torch.Tensor):
            stored = torch.frombuffer(
                bytearray(unpacked(answer["arrays"], record["place"])), dtype=torch.float32
            )
            torch.testing.assert_close(
                stored.double(), step.value.double().flatten(), rtol=1e-6, atol=1e-6
            )
        else:
            assert record["words"] == list(step.value)
    added = []
    record = shown_walk(walk).to_json(lambda tensor: added.append(tensor) or len(added) - 1, 20)
    shortened = 0
    for stored, step in zip(record["steps"], walk.steps, strict=True):
        if "only" not in stored:
            continue
        # of a step with more than 20 numbers those of the followed word are stored
        shortened += 1
        value = step.value.select(stored["only"], step.axes[stored["only"]].chosen)
        torch.testing.assert_close(added[stored["place"]], value.float())
    assert shortened > 30


def test_the_steps_are_walked_by_keyboard_and_show_the_numbers(browser, translated):
    walk = walked()
    with Opened(browser, f"{translated}#view=walk") as opened:
        page = opened.page
        badge = page.locator("#view .badge").first
        assert badge.inner_text() == "step 1 of 30"
        follows = page.get_by_role("combobox", name="Word followed")
        assert follows.count() == 0  # this step has the numbers of all words
        page.locator(".step").focus()
        page.keyboard.press("End")
        page.wait_for_function(
            "() => document.querySelector('#view .badge').innerText === 'step 30 of 30'"
        )
        assert page.locator(".step h3").inner_text() == "The likeliest words"
        page.get_by_role("button", name=f"Walk all {len(walk.steps)} steps").click()
        page.locator(".step").focus()
        page.keyboard.press("End")
        last = f"step {len(walk.steps)} of {len(walk.steps)}"
        page.wait_for_function(f"() => document.querySelector('.badge').innerText === '{last}'")
        page.keyboard.press("Home")
        index = [step.title for step in walk.steps].index("Self-attention: attention weights")
        for _ in range(index):
            page.keyboard.press("ArrowRight")
        page.wait_for_function(
            f"() => document.querySelector('.badge').innerText.startsWith('step {index + 1} ')"
        )
        page.wait_for_selector(".numbers")
        step = walk.steps[index]
        assert page.locator(".step pre").inner_text() == step.line
        assert page.locator(".step math").count() == 1
        assert page.locator("[data-shape]").inner_text().startswith(step.shape)
        for followed in (step.axes[1].chosen, 0):
            page.get_by_role("combobox", name="Source word").select_option(str(followed))
            opened.settle()
            shown = [
                float(text.replace("−", "-"))
                for text in page.locator(".numbers tbody td").all_inner_texts()
            ]
            assert shown == pytest.approx(step.value[:, followed].flatten().tolist(), abs=5.1e-4)
        page.locator(".step").focus()
        page.keyboard.press("PageDown")
        opened.settle()
        assert walk.steps[index].section not in page.locator("[role=status]").first.inner_text()
        assert not opened.complaints


# changed words


def recurrent(attention):
    torch.manual_seed(0)
    settings = {"vocab_size": TOKENISER.vocab_size, "dim": 16, "hidden": 16, "attention": attention}
    return RecurrentTranslator(RecurrentTranslator.Config(**settings)).eval()


@pytest.mark.parametrize("name", ["transformer", "bahdanau", "luong-general"])
@torch.no_grad()
def test_probabilities_without_a_word_are_those_of_the_model(name):
    model = translator() if name == "transformer" else recurrent(name)
    written = TOKENISER.encode("Das Wildtier war überaus müde.")
    changes = without_each(model, TOKENISER, SOURCE, written, 40)
    ids = torch.tensor([[*TOKENISER.encode(SOURCE), END]])
    target = torch.tensor([[BEGIN, *written]])
    words = TOKENISER.words([*written, END])
    assert max(len(span) for _, span in words) > 1  # sub-words of one word are multiplied
    table = model.embedding.weight
    for place, (_, span) in enumerate(TOKENISER.words(ids[0].tolist())[:-1]):
        vectors = table[ids].clone()
        vectors[0, list(span)] = baseline(ids, table)[0, 0]
        chances = model(ids, target, source_vectors=vectors).log_softmax(-1)[0]
        chances = chances.gather(1, torch.tensor([*written, END])[:, None])[:, 0]
        expected = [float(chances[list(ids_of)].sum().exp()) for _, ids_of in words]
        assert changes[place].probabilities == pytest.approx(expected, rel=1e-4)
    plain = (
        model(ids, target)
        .log_softmax(-1)[0]
        .gather(1, torch.tensor([*written, END])[:, None])[:, 0]
    )
    assert changes[None].probabilities[0] == pytest.approx(
        float(plain[list(words[0][1])].sum().exp()), rel=1e-4
    )


@torch.no_grad()
def test_the_translation_of_a_source_is_that_of_the_translator():
    (greedy,) = Translator(translator(), TOKENISER).translate([SOURCE])
    words = tuple(word for word, _ in TOKENISER.words(list(greedy.ids)))
    assert without_each(translator(), TOKENISER, SOURCE, IDS, 0)[None].translation == words


# alignments


@pytest.mark.parametrize("name", ["bahdanau", "luong-general"])
def test_the_weights_of_a_written_word_are_listed_and_say_how_they_are_computed(
    browser, page_of, name
):
    exploration = explore_translation(recurrent(name), TOKENISER, SOURCE, IDS)
    cross = exploration.attentions[0].weights[-1].mean(0)
    with Opened(browser, f"{page_of(exploration)}#view=map&row=3") as opened:
        page = opened.page
        words = exploration.texts["target"]
        assert page.locator(".readout").inner_text().startswith(f"“{words[3]}” (3) looks at ")
        page.locator("canvas.heatmap").focus()
        page.keyboard.press("ArrowDown")
        page.locator(".readout", has_text=f"“{words[4]}” (4) looks at ").wait_for()
        page.evaluate("document.querySelector('.twin').open = true")
        cells = page.locator(".twin tbody tr").evaluate_all(
            "(rows) => rows.map((one) => [...one.querySelectorAll('td')].map((cell) => cell.innerText))"
        )
        shown = {int(place): float(weight) for _, place, weight in cells}
        assert shown == pytest.approx(dict(enumerate(cross[4].tolist())), abs=5.1e-4)
        said = page.locator("main").inner_text()
        assert ("Bahdanau et al. 2015" in said) == (name == "bahdanau")
        assert ("W h" in said and "Luong" in said) == (name == "luong-general")


# comparisons


def test_two_runs_are_compared_on_the_words_that_both_have(browser, translated):
    first = translation()
    second = translation().second.exploration
    matched = translation().second.matched["source"]
    pairs = [
        (first.texts["source"][place], second.texts["source"][matched_place])
        for place, matched_place in zip(*matched, strict=True)
    ]
    assert [pair for pair in pairs if len(set(pair)) > 1] == [("street", "road")]
    assert len(pairs) == len(first.texts["source"]) - 2  # "too tired" is one word there
    encoder = next(
        index
        for index, attention in enumerate(first.attentions)
        if attention.name.startswith("Encoder")
    )
    weights = [exploration.attentions[encoder].weights for exploration in (first, second)]
    expected = heads_apart(*weights, matched, matched)
    with Opened(
        browser, f"{translated}#view=compare&kind={encoder}&layer=2&head=1&row=3"
    ) as opened:
        page = opened.page
        page.wait_for_selector("[data-distance]")
        assert (
            f"Mean distance of the rows: {expected[2, 1]:.3f}"
            in page.locator("[data-distance]").inner_text()
        )
        hidden = [
            float(
                (
                    head_weights[2, 1][list(rows)].sum(-1)
                    - head_weights[2, 1][list(rows)][:, list(rows)].sum(-1)
                ).mean()
            )
            for head_weights, rows in zip(weights, matched, strict=True)
        ]
        said = f"Hidden: {100 * hidden[0]:.0f} % of the first and {100 * hidden[1]:.0f} % of"
        assert said in page.locator("[data-hidden]").inner_text()
        assert page.locator(".badge").all_inner_texts() == ["weights are exact"] * 2
        row = first.texts["source"][3]
        assert page.locator(".readout").inner_text().startswith(f"“{row}” looks at ")
        shown = page.locator("[data-written] td").all_inner_texts()
        assert float(shown[0]) == pytest.approx(first.changes[None].probabilities[0], abs=5.1e-4)
        assert float(shown[1]) == pytest.approx(second.changes[None].probabilities[0], abs=5.1e-4)
        page.get_by_role("combobox", name="With").select_option("own")
        page.wait_for_function("() => !document.querySelector('[data-hidden]')")
        assert not opened.complaints


def test_texts_without_a_common_word_are_compared_without_an_error(browser, page_of):
    first = explore_text(language_model(), TOKENISER, SOURCE)
    second = replace(first, texts={"text": tuple(f"{word}!" for word in first.texts["text"])})
    with Opened(browser, f"{page_of(compared(first, second, 'other'))}#view=compare") as opened:
        opened.page.wait_for_function(
            "() => document.querySelector('main').innerText.includes('no words in common')"
        )
        assert not opened.complaints


# relations


def test_relations_are_the_mean_weight_on_the_right_words(browser, page_of):
    maps = look_text(language_model(), TOKENISER, SOURCE)
    (attention,) = explore_maps(maps).attentions
    for name in ("previous word", "noun to article"):
        links = relations_in(maps.words)[name]
        expected = torch.stack(
            [maps.weights[:, :, query, list(keys)].sum(-1) for query, keys in links]
        ).mean(0)
        torch.testing.assert_close(attention.measured[name], expected)
        assert attention.links[name][0] == len(links)
    assert len(relations_in(maps.words)["previous word"]) > 5
    assert "article to noun" not in attention.links  # a causal model cannot look ahead
    with Opened(browser, f"{page_of(explore_maps(maps))}#view=heads") as opened:
        opened.page.get_by_role("combobox", name="Sort by").select_option("noun to article")
        opened.settle()
        opened.page.evaluate("document.querySelector('.twin').open = true")
        rows = opened.page.locator("tbody tr").all_inner_texts()
        order = sorted(np.ndindex(2, 2), key=lambda head: float(expected[head]), reverse=True)
        assert [tuple(map(int, row.split("\t")[:2])) for row in rows] == order
        assert "link" in opened.page.locator("main").inner_text()


def test_measured_effects_sort_the_heads_and_a_head_left_out_comes_last(browser, page_of):
    model = language_model()
    effects = ablate(model, TOKENISER, [SOURCE], heads=["0.0", "1.0", "1.1"])
    page = explore_maps(look_text(model, TOKENISER, SOURCE))
    page = replace(
        page, attentions=(replace(page.attentions[0], measured=effects.by_layer()["self"]),)
    )
    with Opened(browser, f"{page_of(page)}#view=heads&sort=effect%20on%20loss") as opened:
        texts = "(all) => [...all.rows].map(({cells}) => [...cells].map((one) => one.textContent.trim()))"
        rows = opened.page.locator(".twin tbody").evaluate(texts)
        assert [row[:2] for row in rows] == [
            [str(effect.layer), str(effect.head)] for effect in effects.ranked
        ] + [["0", "1"]]
        assert rows[3][-1] == "–"
        assert not opened.complaints


def test_a_text_with_too_many_weights_for_a_page_is_refused(monkeypatch):
    monkeypatch.setattr(sources_module, "MOST_WEIGHTS", 2_000)
    with pytest.raises(
        ArgumentError, match=r"4 heads over \d+ ids have .* at most 2,000; give a shorter text"
    ):
        explore_text(language_model(), TOKENISER, f"{SOURCE} {OTHER}")


READ = [BEGIN, *TOKENISER.encode(SOURCE)]
SPANS = TOKENISER.words(READ)


@torch.no_grad()
def expected_of(vectors, ids, first):
    """The probability of each word from `first` on, and the scores after the last id, of one pass of the model."""
    rows = language_model()(torch.tensor([ids]), vectors=vectors)[0].log_softmax(-1)
    words = [span for _, span in TOKENISER.words(ids)[first:]]
    return probabilities_of_words(log_probs_of_next(rows, ids), words), rows[-1].exp()


def test_probabilities_without_each_word_are_those_of_the_model():
    changes = text_without_each(language_model(), TOKENISER, SOURCE, 40)
    assert list(changes) == [None, *range(1, len(SPANS))]
    table = language_model().embedding.weight.detach()
    plain, after = expected_of(None, READ, 1)
    top = int(after.argmax())
    assert changes[None].probabilities == pytest.approx([*plain, float(after[top])], rel=1e-4)
    for place in range(1, len(SPANS)):
        vectors = table[torch.tensor([READ])].clone()
        vectors[0, list(SPANS[place][1])] = baseline(torch.tensor([READ]), table)[0, 0]
        moved, after = expected_of(vectors, READ, 1)
        assert changes[place].probabilities == pytest.approx([*moved, float(after[top])], rel=1e-4)
        # predicted before it was read
        before = changes[None].probabilities[:place]
        assert changes[place].probabilities[:place] == pytest.approx(before, rel=1e-5)
