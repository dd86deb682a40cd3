"""The first screen: its sentence, numbers and experiments are those of the model, by pointer, key and touch."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.seeing.explorer import explore_model, explore_text, explore_translation, show
from regard_lab.seeing.lenses.erasing import text_without_each, without_each
from regard_lab.text import BEGIN, END
from regard_lab.text.seen_words import SeenWords

from .browsing import OF_COLOURS, Opened, assert_accessible, head_name, needs_axe, said, written
from .making import SOURCE, TARGET, TOKENISER, language_model, translator, weights
from .test_explorer_engine import seeded, without_heads

LEAST = 0.02  # the smallest fall that has a link
READY = "() => !document.querySelector('.try button:disabled')"


def numbers(page):
    """The numbers above the words that are read, by the index of the word; words without a link have none."""
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".given .w")]
            .map((one) => [one.dataset.at, one.querySelector(".n").textContent]).filter(([, number]) => number))"""
    )


def in_number(text):
    return 0.0 if text in ("<0.001", "under 0.001") else float(text)


def assert_moves(says, stated):
    """Experiments say truly how the probability of a word moves, and at least one says it."""
    before = in_number(stated)
    moved = False
    for sentence in says:
        movement = re.search(r"(falls to|rises to|stays at) (.+)$", sentence)
        if movement is None:
            continue
        moved = True
        verb, number = movement.groups()
        after = in_number(number)
        if after == before:
            assert verb == "stays at"
        else:
            assert verb == ("falls to" if after < before else "rises to")
    assert moved


def headline(page):
    return " ".join(page.locator(".answer").inner_text().split())


def open_model(browser, page_of, model, text=SOURCE, address="", screen=None, **options):
    exploration = explore_model(model, TOKENISER, text, SeenWords.of([SOURCE]), **options)
    opened = Opened(browser, page_of(exploration) + address, **(screen or {}))
    opened.page.wait_for_function(READY)
    return opened


def certain_translator():
    """A model whose probabilities are far from uniform, so that words matter."""
    model = seeded(TranslationTransformer, {"heads": 2, "encoder_layers": 1, "decoder_layers": 1})
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(1.5)
    return model


def without_words(model, ids):
    """The probabilities of the words as they are, and without each word, of Python."""
    changes = without_each(model, TOKENISER, SOURCE, ids, 40)
    return changes[None], {place: change for place, change in changes.items() if place is not None}


def expected_answer(words, plain, erased, place, word):
    """The sentence of the first screen for a written word, from the probabilities of Python."""
    before = plain.probabilities[place]
    order = sorted(erased, key=lambda candidate: erased[candidate].probabilities[place])
    first = erased[order[0]]
    after = first.probabilities[place]
    assert before - after > LEAST
    instead = first.likeliest[place][0][0]
    assert instead != word
    return (
        f"Without {words[order[0]]}, the model would write {instead}: "
        f"the probability of {word} falls from {said(before)} to {said(after)}."
    )


@pytest.fixture(scope="module")
def translating(browser, page_of):
    """An open page of a translator, and what it read and wrote; a test of it leaves the text unchanged."""
    with open_model(browser, page_of, certain_translator()) as opened:
        yield (
            opened,
            opened.page.evaluate(
                "(source) => regard.engine.ask('run', {source}).then(({ids, texts}) => ({ids, texts}))",
                SOURCE,
            ),
        )
        assert not opened.complaints


def test_the_sentence_and_the_numbers_of_a_translator_are_those_of_python(translating):
    opened, run = translating
    page = opened.page
    plain, erased = without_words(certain_translator(), run["ids"]["target"])
    target = run["texts"]["target"]
    words = run["texts"]["source"]
    # the word of which the model is least sure is shown first
    shown = int(np.argmin(plain.probabilities[:-1]))
    assert page.locator(".written .chosen .t").inner_text() == target[shown]
    compared = 0
    for place in [*range(len(target) - 1), shown]:
        page.locator(f".written [data-at='{place}']").click()
        page.locator(f".written .chosen[data-at='{place}']").wait_for()
        falls = {
            str(erased_word): written(change.probabilities[place])
            for erased_word, change in erased.items()
            if plain.probabilities[place] - change.probabilities[place] >= LEAST
        }
        assert numbers(page) == falls
        best = min(erased, key=lambda erased_word: erased[erased_word].probabilities[place])
        if falls and erased[best].likeliest[place][0][0] != target[place]:
            wanted = expected_answer(words, plain, erased, place, target[place])
            assert headline(page).startswith(" ".join(wanted.split()))
            compared += 1
    assert compared >= 1


def experiments_on(page, place, word):
    """What the experiments on a written word say of themselves."""
    page.locator(f".written [data-at='{place}']").click()
    page.locator(".outcome", has_text=f"Experiments on {word}, found by").wait_for()
    return page.locator(".try span").all_inner_texts()


KINDS = (
    ("animal", "street", "cross", "because", "it", "was", "too", "tired", "the", "The"),
    ("wide", "steep"),
    ("road",),
)
# The model answers as it does, but no head matters, and "road" changes the word that is asked about.
ROAD = """(place) => {
    const {engine} = regard;
    const ask = engine.ask.bind(engine);
    window.tried = [];
    engine.ask = async (what, given) => {
        if (what !== "run" || !given.against) return ask(what, given);
        if (!given.off?.length) tried.push(given.source);
        const changes = !given.off?.length && given.source.includes("road");
        const answer = await ask(what, {...given, off: [], source: changes ? given.plain : given.source});
        if (!changes) return answer;
        const target = answer.texts.target.map((word, at) => at === place ? "anders" : word);
        return {...answer, texts: {...answer.texts, target}, probabilities: target.map(() => 1)};
    };
}"""


def test_where_no_head_matters_two_words_are_replaced_by_words_of_their_kind(browser, page_of):
    with open_model(browser, page_of, certain_translator(), alike=KINDS) as opened:
        page = opened.page
        target = page.locator(".written .t").all_inner_texts()
        place = int(page.locator(".written .chosen").get_attribute("data-at")) - 1
        page.evaluate(ROAD.replace("given.plain", repr(SOURCE)), place)
        titles = experiments_on(page, place, target[place]) and page.locator(".try strong")
        replacing = [title for title in titles.all_inner_texts() if title.endswith("→ “road”")]
        assert len(replacing) == 2
        assert (
            page.locator(".try button", has_text=f"“{target[place]}” becomes “anders”").count() == 2
        )
        assert titles.all_inner_texts()[2].startswith("Erase “")
        tried = {word for text in page.evaluate("tried") for word in re.findall("[a-z]+", text)}
        assert "steep" not in tried  # of another kind only the first word is tried


READS_NUMBERS = """() => new Promise((done) => setTimeout(() =>
    done([...document.querySelectorAll(".given .n")].some((one) => one.textContent)), 500))"""


def test_on_a_phone_the_ring_around_a_word_and_the_legend_of_its_numbers_are_whole(
    browser, page_of
):
    with open_model(browser, page_of, certain_translator(), screen=PHONE) as opened:
        page = opened.page
        ring = """(word) => {
            word.focus({focusVisible: true});
            const {outlineOffset, outlineWidth} = getComputedStyle(word);
            return word.getBoundingClientRect().left - parseFloat(outlineOffset) - parseFloat(outlineWidth);
        }"""
        for line in (".given", ".written"):
            assert page.locator(f"{line} .w").first.evaluate(ring) >= 0
        note = page.locator(".cap .note").first
        for word in page.locator(".written .w").all():  # until one depends on a word
            word.tap()
            if page.evaluate(READS_NUMBERS):
                break
        assert "numbers: probability of" in note.inner_text()
        assert note.evaluate(
            "(one) => one.scrollHeight <= one.clientHeight + 1 && one.scrollWidth <= one.clientWidth"
        )


@torch.no_grad()
def test_the_experiments_are_the_word_and_the_head_whose_absence_moves_the_prediction_most(
    translating,
):
    opened, run = translating
    page = opened.page
    page.wait_for_function(READY)
    model = certain_translator()
    ids = run["ids"]["target"]
    plain, erased = without_words(model, ids)
    assert_moves(experiments_on(page, len(plain.probabilities) - 1, "the end"), "<0.001")
    place = int(np.argmin(plain.probabilities[:-1]))
    experiments_on(page, place, run["texts"]["target"][place])
    word = min(erased, key=lambda candidate: erased[candidate].probabilities[place])
    titles = page.locator(".try strong").all_inner_texts()
    assert f"Erase “{run['texts']['source'][word]}”" in titles
    left = {}
    for kind in ("cross", "encoder", "decoder"):
        for number in range(2):
            changed, _ = without_words(without_heads(model, [(kind, 0, number)]), ids)
            left[f"0.{number}", kind] = changed.probabilities[place]
    (head, _), least = min(left.items(), key=lambda item: item[1])
    assert least < plain.probabilities[place]
    assert f"Switch off {head_name(head)}" in titles

    before = page.locator(".written").inner_text()
    page.get_by_role("button", name="Erase “").first.click()
    page.locator(".given .gone").wait_for()
    gone = erased[word].translation
    assert page.locator(".written .t").all_inner_texts()[:-1] == list(gone)
    alone = f"Without {run['texts']['source'][word]}: "
    assert page.locator(".outcome").inner_text().startswith(alone)
    page.get_by_role("button", name="Switch off").click()
    # an experiment begins from the text and the model as they were
    page.locator(".outcome", has_text=f"With {head_name(head)} switched off: ").wait_for()
    assert page.locator(".given .gone").count() == 0
    pressed = page.locator(".try [aria-pressed=true] strong").all_inner_texts()
    assert pressed == [f"Switch off {head_name(head)}"]
    page.get_by_role("button", name="Undo").click()
    page.locator(".outcome", has_text=alone).wait_for()  # the experiment before
    page.get_by_role("button", name="Switch off").click()
    page.locator(".given .gone").wait_for(state="detached")
    for _ in range(2):
        page.get_by_role("button", name="Undo").click()
        opened.settle()
    page.locator(".given .gone").wait_for(state="detached")
    assert page.locator(".written").inner_text() == before
    assert page.locator(".undo").is_disabled()


@torch.no_grad()
def test_no_head_is_offered_where_none_changes_the_prediction(browser, page_of):
    model = certain_translator()
    for name, parameter in model.named_parameters():
        if name.endswith("to_output.weight"):
            parameter.zero_()  # what heads return is lost
    with open_model(browser, page_of, model) as opened:
        titles = opened.page.locator(".try strong").all_inner_texts()
        assert len(titles) == 3  # another erasure takes the place of the head
        assert not any(title.startswith("Switch off") for title in titles)


def test_what_follows_a_text_depends_on_the_words_that_python_erases(browser, page_of):
    model = seeded(LanguageModel, {"layers": 2}, 5)
    text = "The animal didn't cross the"
    with open_model(browser, page_of, model, text) as opened:
        page = opened.page
        changes = text_without_each(model, TOKENISER, text, 40)
        plain = changes[None]
        words = page.locator(".options .w").all_inner_texts()
        likeliest = plain.likeliest[-1]
        assert words == [word for word, _ in likeliest]
        assert page.locator(".options strong").all_inner_texts() == [
            written(p) for _, p in likeliest
        ]
        before = plain.probabilities[-1]
        falls = {
            str(place): written(change.probabilities[-1])
            for place, change in changes.items()
            if place is not None and 1 - change.probabilities[-1] / before >= LEAST
        }
        assert any(
            before - changes[int(place)].probabilities[-1] < LEAST for place in falls
        )  # relative
        assert len(falls) >= 2
        assert numbers(page) == falls
        least = min(falls, key=lambda place: changes[int(place)].probabilities[-1])
        after = changes[int(least)].probabilities[-1]
        assert f"falls from {said(before)} to {said(after)}." in headline(page)
        assert "continue with" in headline(page)
        page.locator(".options .w").nth(1).click()
        page.wait_for_function("() => location.hash.includes('pick=1')")
        assert words[1] in headline(page)
        about_each_chosen_word(page, words)


def about_each_chosen_word(page, words):
    """Experiments are about the next word that is chosen, before a change and after it was undone."""
    for pick, changes in ((1, False), (0, True), (2, False)):
        page.locator(".options .w").nth(pick).click()
        told = page.locator(".outcome", has_text=f"Experiments on {words[pick]}, found by trying")
        told.wait_for()
        page.wait_for_function(READY)
        says = page.locator(".try span").all_inner_texts()
        assert says
        assert all(sentence.startswith(f"“{words[pick]}” ") for sentence in says)
        assert_moves(says, page.locator(".options strong").nth(pick).inner_text())
        if changes:
            page.locator(".try button").first.click()
            page.locator(".undo.on").click()
            told.wait_for()


@pytest.mark.parametrize("head", ["classes", "words"])
def test_an_encoder_answers_with_classes_and_guesses_and_says_so(browser, page_of, head):
    settings = {"head": "classes", "classes": 3} if head == "classes" else {}
    model = seeded(TextEncoder, {**settings, "layers": 1})
    options = {"classes": ("good", "bad", "neither")} if head == "classes" else {}
    with open_model(browser, page_of, model, "The animal was too tired.", **options) as opened:
        page = opened.page
        if head == "words":
            assert "Press a word" in headline(page)
            page.get_by_role("button", name="Hide “").first.click()
            page.locator(".given .gone").wait_for()
            page.wait_for_function("() => document.querySelectorAll('.options .w').length === 3")
        erase = (
            [int(page.locator(".given .gone").get_attribute("data-at"))] if head == "words" else []
        )
        asked = {"source": "The animal was too tired.", "erase": erase}
        run = page.evaluate("(asked) => regard.run(asked)", asked)
        if head == "classes":
            order = np.argsort(run["probabilities"])[::-1]
            wanted = [written(run["probabilities"][place]) for place in order]
            assert page.locator(".options .w").all_inner_texts() == [
                run["target"][place] for place in order
            ]
        else:
            wanted = [written(run["probabilities"][0])]
        shown = page.locator(".options strong").all_inner_texts()
        assert shown[: len(wanted)] == wanted
        for place, number in numbers(page).items():
            without = {**asked, "erase": [*erase, int(place)]}
            changed_run = page.evaluate("(asked) => regard.run(asked)", without)
            if head == "classes":
                assert number == written(changed_run["probabilities"][int(order[0])])

        # vectors are compared by "What if", whatever the head
        if head == "classes":
            page.get_by_role("button", name="Erase “").first.click()
            page.locator(".given .gone").wait_for()
        opened.view("What if")
        page.locator("[data-change]", has_text=": each word").wait_for()
        moved = [float(cell) for cell in page.locator("tbody td").all_inner_texts()]
        assert min(moved) < 0.999
        assert not opened.complaints


OPACITIES = "() => [...document.querySelectorAll('.stage path')].map((one) => one.style.opacity)"


@torch.no_grad()
def similarities_without(model, row):
    """The cosine of a word's vector with itself when each other word has the mean embedding, by a loop."""
    ids = torch.tensor([[BEGIN, *TOKENISER.encode(SOURCE), END]])
    spans = TOKENISER.words(ids[0].tolist())
    mean = model.embedding.weight[ids[0, 1:-1]].mean(0)

    def vector(gone):
        def erased(_module, _given, table):
            table[0, gone] = mean
            return table

        handle = model.embedding.register_forward_hook(erased)
        vector_of_word = model(ids)[0, list(spans[row][1])].mean(0)
        handle.remove()
        return vector_of_word

    unchanged = vector([])
    return {
        place: float(torch.cosine_similarity(unchanged, vector(list(spans[place][1])), 0))
        for place in range(1, len(spans) - 1)
    }


def test_an_encoder_without_a_head_tells_of_vectors_and_never_of_writing(browser, page_of):
    model = seeded(TextEncoder, {"head": "none", "layers": 2})
    with open_model(browser, page_of, model) as opened:
        page = opened.page
        row = int(page.locator(".given .chosen").get_attribute("data-at"))
        similarities = similarities_without(model, row)
        assert page.locator(".given .chosen .t").inner_text() == "tired"
        turned = {
            str(place): f"{cosine:.2f}"
            for place, cosine in similarities.items()
            if place != row and 1 - cosine >= LEAST
        }
        assert numbers(page) == turned
        assert "the vector of tired changes: its cosine with the vector before is" in headline(page)
        assert "write" not in headline(page)
        assert page.locator(".orientation").inner_text().startswith("An encoder of ")

        page.locator(".try button").first.click()
        page.locator(".undo.on").wait_for()
        gone = int(page.locator(".given .gone").get_attribute("data-at"))
        told = f"the vector of tired with the one before is {similarities[gone]:.2f}."
        assert told in page.locator(".outcome").inner_text()
        opened.view("What if")
        cells = page.locator("tr.chosen td").all_inner_texts()
        assert float(cells[0]) == pytest.approx(similarities[gone], abs=6e-4)
        page.locator(".undo.on").click()
        page.locator(".given .gone").wait_for(state="detached")

        letters = "() => document.querySelector('.stage').style.getPropertyValue('--s')"
        size = page.evaluate(letters)
        page.locator(".given [data-at='2']").click()
        page.locator(".given .chosen[data-at='2']").wait_for()
        assert page.evaluate(letters) == size
        pointed, strong = headline(page), page.evaluate(OPACITIES)
        page.mouse.move(0, 0)
        opened.settle()
        assert (headline(page), page.evaluate(OPACITIES)) == (pointed, strong)


def test_a_stored_translation_says_the_same_without_its_model(browser, page_of):
    model = certain_translator()
    ids = TOKENISER.encode(TARGET)
    page_url = page_of(explore_translation(model, TOKENISER, SOURCE, ids, of="es"))
    plain, erased = without_words(model, ids)
    with Opened(browser, page_url) as opened:
        place = int(opened.page.locator(".written .chosen").get_attribute("data-at"))
        falls = {
            str(erased_word): written(change.probabilities[place])
            for erased_word, change in erased.items()
            if plain.probabilities[place] - change.probabilities[place] >= LEAST
        }
        assert numbers(opened.page) == falls
        opened.page.get_by_role("radio", name="Looks at").click()
        assert headline(opened.page).startswith("While it writes es, the model looks most at")
        assert opened.page.locator(".undo").is_disabled()
        opened.page.get_by_role("radio", name="Depends on").click()
        opened.page.locator(".given [data-at='2']").click()
        opened.page.wait_for_function("() => location.hash.includes('changed=2')")
        told, link = opened.page.locator(".outcome").inner_text(), opened.page.url
        assert told.startswith("Without ")
    with Opened(browser, link) as reopened:
        assert reopened.page.locator(".outcome").inner_text() == told


def test_weights_without_a_model_say_where_a_word_looks(browser, page_of):
    attention_weights = weights(2, 3, 7, seed=5)
    attention_weights[0, 0] = torch.eye(7)  # to look at oneself is no answer
    names = ["The", "animal", "was", "not", "wide", "but", "tired"]
    with Opened(browser, page_of(show(attention_weights, names))) as opened:
        page = opened.page
        page.get_by_role("button", name="Show head").wait_for()
        row = names.index("tired")
        others = attention_weights[:, :, row].clone()
        others[..., row] = 0
        layer, head, key = np.unravel_index(int(others.argmax()), tuple(others.shape))
        assert (
            page.locator(".try strong").first.inner_text() == f"Show head {head} of layer {layer}"
        )
        page.locator(".try button").first.click()
        seen = f"tired looks most at {names[key]} ({others[layer, head, key]:.2f}"
        page.wait_for_function(
            "(text) => document.querySelector('.answer').innerText.includes(text)", arg=seen[:30]
        )
        assert headline(page).startswith(seen)
        assert f", in head {head} of layer {layer}." in headline(page)
        assert "not what it uses" in headline(page)
        opened.view("Heat map")  # until a cell is chosen it is the largest of the row
        key = int(attention_weights[layer, head, row].argmax())
        told = f"“tired” ({row}) looks at “{names[key]}” ({key}) with weight"
        assert page.locator("[data-readout]").inner_text().startswith(told)


def stops_before(page, wanted):
    """How often Tab is pressed until an element of this role has the focus, and what had it before."""
    names = []
    for _ in range(20):
        page.keyboard.press("Tab")
        role, name = page.evaluate(
            "[document.activeElement.getAttribute('role') || '', document.activeElement.innerText || '']"
        )
        if role == wanted:
            return names
        names.append(name)
    raise AssertionError(f"no {wanted} in {names}")


def test_by_keyboard_six_stops_lead_to_the_views_and_arrows_move_within_a_line(browser, page_of):
    with open_model(browser, page_of, certain_translator()) as opened:
        page = opened.page
        assert len(stops_before(page, "tab")) <= 6
        page.locator(".written .chosen").focus()
        page.keyboard.press("Home")
        assert page.evaluate("document.activeElement.dataset.at") == "0"
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.locator(".written .chosen[data-at='1']").wait_for()
        page.keyboard.press("ArrowUp")
        assert (
            page.evaluate("document.activeElement.closest('[data-line]').dataset.line") == "given"
        )
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        page.locator(".given .gone").wait_for()
        page.keyboard.press("Escape")
        page.locator(".given .gone").wait_for(state="detached")
        page.locator("[role=tab][aria-selected=true]").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("canvas.heads")


PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}


def test_on_a_phone_every_control_is_large_enough_for_a_finger(browser, page_of):
    with open_model(browser, page_of, certain_translator(), screen=PHONE) as opened:
        page = opened.page
        page.locator(".try button").first.tap()
        page.locator(".undo.on").wait_for()
        small = page.evaluate(
            """() => [...document.querySelectorAll(".screen button, .screen summary, nav button")]
                .filter((one) => one.checkVisibility() && !one.closest(".sheet"))
                .map((one) => [one.innerText, one.offsetWidth, one.offsetHeight])
                .filter(([, width, height]) => height < 44 || width < 24)"""
        )
        assert not small
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_on_a_phone_a_line_of_short_words_is_wrapped_and_the_form_is_in_sight(browser, page_of):
    """Words have a least width, of a finger, so that smaller letters are no help."""
    model = seeded(TextEncoder, {"head": "classes", "classes": 3, "layers": 1})
    text = "The animal was too tired."
    options = {"screen": PHONE, "classes": ("good", "bad", "neither")}
    with open_model(browser, page_of, model, text, **options) as opened:
        page = opened.page
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        right = "() => [...document.querySelectorAll('.given .t')].map((one) => one.getBoundingClientRect().right)"
        assert max(page.evaluate(right)) <= PHONE["width"]
        page.evaluate("scrollTo(0, 400)")
        assert page.evaluate("scrollY") > 100
        page.locator(".plain").tap()
        page.wait_for_function("() => document.activeElement.id === 'sentence'")
        page.wait_for_function(
            "() => document.querySelector('#sentence').getBoundingClientRect().top >= 0"
        )


def test_the_frame_of_a_word_ends_before_the_mark_that_follows(browser, page_of):
    frame = 1.5
    with open_model(browser, page_of, translator(), "The animal was tired.") as opened:
        word, mark = opened.page.evaluate(
            "() => ['tired', '.'].map((text) => [...document.querySelectorAll('.given .t')]"
            ".find((one) => one.innerText === text).getBoundingClientRect().toJSON())"
        )
        assert frame <= mark["left"] - word["right"] <= 4


# What the browser calls a shift of the layout, of more than a pixel; words of a sentence that changes are its content.
OBSERVE_SHIFTS = """() => {
    const CONTENT = ".line.written *, .options *, .answer *, .outcome *";
    window.shifts = [];
    const observe = ({node, previousRect: from, currentRect: to}) => {
        const moved = node instanceof Element ? node : node.parentElement;
        if (!moved?.closest(".first, nav") || moved.matches(CONTENT)) return;
        const by = [to.x - from.x, to.y - from.y];
        if (by.some((one) => Math.abs(one) > 1)) window.shifts.push([moved.className, ...by]);
    };
    new PerformanceObserver((list) => {
        for (const {sources} of list.getEntries()) sources.forEach(observe);
    }).observe({type: "layout-shift"});
}"""


@pytest.mark.parametrize("kind", ["translator", "language model"])
def test_nothing_moves_when_a_word_is_erased(browser, page_of, kind):
    places = """() => [".stage", ".line.given", ".line.written, .options", ".told", ".try", "nav"]
        .map((one) => document.querySelector(one).getBoundingClientRect().top + scrollY)"""
    model = translator() if kind == "translator" else seeded(LanguageModel, {"layers": 2}, 5)
    moving = {"reduced_motion": "no-preference"}
    with open_model(browser, page_of, model, "The animal was tired.", screen=moving) as opened:
        page = opened.page
        page.evaluate(OBSERVE_SHIFTS)
        answers = set()
        for width in (390, 1280) if kind == "translator" else (390,):
            page.set_viewport_size({"width": width, "height": 844})
            opened.settle()
            page.evaluate("window.shifts = []")  # those of another width
            before = page.evaluate(places)
            for place in ("1", "3"):
                page.locator(f".given [data-at='{place}']").click()
                page.locator(".given .gone").wait_for()
                opened.settle()
                told = page.locator(".outcome").inner_text()
                assert not re.search(r"probability (.+) instead of \1\.", told)
                answers.add(headline(page))
                assert page.evaluate(places) == pytest.approx(before, abs=1)
                page.locator(".undo.on").click()
                page.locator(".given .gone").wait_for(state="detached")
            opened.settle()
            assert page.evaluate("window.shifts") == []

            # a much longer word has smaller letters instead of another row
            page.locator(".given .w", has_text="animal").click()
            page.locator(".field").fill("incomprehensibilities")
            page.locator(".pills button", has_text="incomprehensibilities").wait_for()
            opened.settle()
            assert page.evaluate(places) == pytest.approx(before, abs=1)
            page.locator(".undo.on").click()
            page.locator(".pills").wait_for(state="detached")
        assert kind == "translator" or len(answers) > 1


def test_a_link_shows_the_same_word_and_the_same_change(browser, page_of):
    with open_model(browser, page_of, certain_translator()) as opened:
        page = opened.page
        page.locator(".written [data-at='1']").click()
        page.locator(".given [data-at='2']").click()
        page.locator(".given .gone").wait_for()
        page.keyboard.press("Enter")  # which closes the field
        page.get_by_role("radio", name="Looks at").click()
        page.wait_for_function("() => location.hash.includes('by=looks')")
        opened.settle()
        strong = page.evaluate(OPACITIES)
        assert len(strong) > 1
        page.mouse.move(0, 0)
        opened.settle()
        assert page.evaluate(OPACITIES) == strong  # a word that is erased is not pointed at
        told, link = headline(page), page.url
        assert_shared(page, told)
    with Opened(browser, link) as reopened:
        reopened.page.locator(".given .gone[data-at='2']").wait_for()
        assert headline(reopened.page) == told
        assert reopened.page.locator(".undo").is_enabled()
        gone = reopened.page.locator(".given .gone .t").inner_text()
        pill = reopened.page.locator(".pills button")
        assert pill.all_inner_texts() == [f"without “{gone}”"]
        pill.click()
        reopened.page.locator(".given .gone").wait_for(state="detached")
        assert reopened.page.locator(".undo").is_disabled()


def assert_shared(page, told):
    """What is shown can be taken away: its address, and its picture in both forms."""
    page.get_by_text("Share", exact=True).click()
    page.get_by_role("button", name="Copy the link").click()
    page.get_by_text("The link is copied.").wait_for()

    def saved(kind):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save the sentence picture as {kind}").click()
        return Path(download.value.path()).read_bytes()

    drawn = ElementTree.fromstring(saved("SVG"))
    texts = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "".join(texts).startswith(told.replace(" ", ""))
    shown = page.locator(".line .t").all_inner_texts()
    assert [
        word for word in " ".join(shown).split() if word.isprintable() and word not in texts
    ] == []
    links = page.evaluate("document.querySelectorAll('.stage path').length")
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) == links > 1
    picture = saved("PNG")
    width, height = (int.from_bytes(picture[offset : offset + 4], "big") for offset in (16, 20))
    assert picture.startswith(b"\x89PNG")
    sides = [2 * float(drawn.get(side)) for side in ("width", "height")]
    assert [width, height] == pytest.approx(sides, abs=1)


def test_the_sheet_of_share_is_closed_by_escape_and_by_a_click_beside_it(browser, page_of):
    with open_model(browser, page_of, certain_translator()) as opened:
        page = opened.page
        opened.settle()
        sheet = page.locator("details.share")
        told = page.locator(".outcome").inner_text()
        for close in (
            lambda: page.keyboard.press("Escape"),
            lambda: page.locator(".line .t").first.click(),
        ):
            page.get_by_text("Share", exact=True).click()
            assert sheet.evaluate("sheet => sheet.open")
            close()
            assert not sheet.evaluate("sheet => sheet.open")
            opened.settle()
            assert page.locator(".outcome").inner_text() == told


def test_an_empty_sentence_is_asked_for(browser, page_of):
    with open_model(browser, page_of, certain_translator()) as opened:
        opened.page.get_by_text("Another sentence").click()
        opened.page.fill("#sentence", "")
        told = opened.page.locator(".outcome")
        told.get_by_text("There is nothing to read: write a sentence.").wait_for()


def probabilities_in(model, text, ids):
    """The probabilities of written words when another text is read, of Python."""
    return without_each(model, TOKENISER, text, ids, 40)[None].probabilities


def replaced(page, word, other, how):
    """Write another word in the place of one, as a reader does it."""
    button = page.locator(".given .w", has_text=word).first
    field = page.locator(".field")
    if how == "touch":
        button.tap()
        field.wait_for()
        assert page.evaluate("document.activeElement.className") != "field"  # no keyboard yet
        field.tap()
    elif how == "keyboard":
        button.focus()
        page.keyboard.press("Enter")
    else:
        button.click()
    page.wait_for_function("() => document.activeElement.className === 'field'")
    # Between these letters the model writes other texts, in which a followed word could drift.
    parts = [other[:1], other[1:3], other[3:]] if how == "slowly" else [other]
    written = ""
    for more in parts:
        if how == "slowly":
            page.keyboard.insert_text(more)
        else:
            page.keyboard.type(more)
        written += more
        page.locator(".pills button", has_text=f"“{word}” → “{written}”").wait_for()


@pytest.mark.parametrize("how", ["pointer", "slowly", "keyboard", "touch"])
def test_a_word_is_replaced_in_its_place_and_the_answer_says_what_that_does(browser, page_of, how):
    model = certain_translator()
    screen = PHONE if how == "touch" else None
    with open_model(browser, page_of, model, screen=screen) as opened:
        page = opened.page
        question = "(source) => regard.engine.ask('run', {source}).then(({ids}) => ids.target)"
        ids = page.evaluate(question, SOURCE)
        text = SOURCE.replace("tired", "street")
        before = probabilities_in(model, SOURCE, ids)
        after = probabilities_in(model, text, ids)
        place = int(np.argmax(np.abs(np.subtract(before, after))[:-1]))
        page.locator(f".written [data-at='{place}']").click()
        page.locator(f".written .chosen[data-at='{place}']").wait_for()
        page.locator(".answer", has_text="Without").wait_for()
        word = page.locator(".written .chosen .t").inner_text()
        plain = page.locator(".written").inner_text(), headline(page)
        replaced(page, "tired", "street", how)

        told = "With street instead of tired, the model "
        own, now = before[place], after[place]
        assert said(own) != said(now)
        moves = f"{'falls' if now < own else 'rises'} from {said(own)} to {said(now)}."
        # Each letter has an answer of its own, and may change the word: the last one's is waited for.
        page.locator(".answer", has_text=told).filter(has_text=moves).wait_for()
        other = page.locator(".written .chosen .t").inner_text()
        if other != word:
            told += f"writes {other}: the probability of {word} {moves}"
        else:
            told += f"is {'less' if now < own else 'more'} sure of {word}: its probability {moves}"
        assert headline(page) == told
        assert page.locator(".given .was").count() == 0  # it is below the field
        page.keyboard.press("Enter")
        page.locator(".field").wait_for(state="detached")
        assert page.locator(".given .was").all_inner_texts() == ["tired"]
        assert page.evaluate("document.activeElement.innerText").startswith("street")
        assert headline(page) == told
        assert not opened.complaints
        if how != "pointer":
            return  # what is done with it afterwards is the same

        opened.view("What if")
        assert "With street instead of tired: each written word" in (
            page.locator("[data-change]").inner_text()
        )
        link = page.url
        page.locator(".undo.on").click()
        page.locator(".pills").wait_for(state="detached")
        page.mouse.move(0, 0)
        assert (page.locator(".written").inner_text(), headline(page)) == plain
        assert not opened.complaints
    with Opened(browser, link) as other_page:
        assert headline(other_page.page).startswith("With street instead of tired, the model ")
        assert other_page.page.locator(".undo").is_enabled()


def test_known_words_are_offered_in_the_place_of_a_word_and_an_unknown_one_is_named(
    browser, page_of
):
    with open_model(browser, page_of, certain_translator()) as opened:
        page = opened.page
        offered = "() => [...document.querySelectorAll('#near option')].map((one) => one.value)"
        page.locator(".given .w", has_text="tired").click()
        page.wait_for_function("() => document.querySelector('#near option')")
        known = set(SeenWords.of([SOURCE]).words)
        near = page.evaluate(offered)
        assert len(near) > 2
        assert set(near) <= known - {"tired"}
        page.keyboard.type("str")
        page.locator(".answer .unknown", has_text="str").wait_for()  # above the words
        assert page.locator(".given .strange").all_inner_texts() == ["str"]
        assert page.evaluate(offered) == ["street"]
        page.keyboard.type("eet.")  # one word stays one word
        page.locator(".pills button", has_text="“tired” → “street”").wait_for()
        assert not page.locator(".unknown").count()
        page.keyboard.press("Escape")
        page.locator(".pills").wait_for(state="detached")
        assert page.locator(".given .gone, .field").count() == 0


@torch.no_grad()
def test_a_replaced_word_is_measured_by_what_each_kind_of_model_predicts(browser, page_of):
    text, other = "The animal didn't cross the", "The street didn't cross the"
    model = seeded(LanguageModel, {"layers": 2}, 5)
    shares = [
        model(torch.tensor([[BEGIN, *TOKENISER.encode(one)]]))[0, -1].softmax(-1)
        for one in (text, other)
    ]
    follows = int(shares[0].argmax())
    with open_model(browser, page_of, model, text) as opened:
        page = opened.page
        replaced(page, "animal", "street", "pointer")
        told = f"from {said(float(shares[0][follows]))} to {said(float(shares[1][follows]))}."
        page.locator(".answer", has_text=told).wait_for()
        assert "the model continues with" in headline(page)

    encoder = seeded(TextEncoder, {"head": "none", "layers": 2})

    def vector(sentence, place):
        ids = [BEGIN, *TOKENISER.encode(sentence), END]
        rows = list(TOKENISER.words(ids)[place][1])
        return encoder(torch.tensor([ids]))[0, rows].mean(0)

    with open_model(browser, page_of, encoder, text) as opened:
        page = opened.page
        page.locator(".given .w", has_text="animal").click()  # it is chosen first
        page.locator(".given .chosen", has_text="animal").wait_for()
        replaced(page, "animal", "street", "pointer")
        cosine = torch.cosine_similarity(vector(text, 2), vector(other, 2), 0)
        told = f"the vector of street with the one before is {float(cosine):.2f}."
        page.locator(".outcome", has_text=told).wait_for()


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_sentence_denies_what_a_change_has_decided(browser, page_of, every):
    """Of the words that are left none may decide, which is said of them and not of all."""
    with open_model(browser, page_of, certain_translator()) as opened:
        page = opened.page
        answers = []
        for at in range(0, page.locator(".given .w").count() - 1, every):
            page.locator(f".given [data-at='{at}']").click()
            page.locator(".given .gone").wait_for()
            page.mouse.move(0, 0)
            for chosen in range(0, page.locator(".written .w").count(), 3):
                page.locator(f".written [data-at='{chosen}']").click()
                page.locator(f".written .chosen[data-at='{chosen}']").wait_for()
                opened.settle()
                answers.append(headline(page))
            page.locator(".undo.on").click()
            page.locator(".given .gone").wait_for(state="detached")
        assert any("the model writes" in one for one in answers)
        for answer in answers:
            assert "No single word" not in answer
            assert not re.match(r"Without \S+, the model would", answer)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_links_pass_between_the_words_of_a_narrow_screen(browser, page_of, every):
    crossed = """() => {
        const boxes = [...document.querySelectorAll(".line .t")].map((one) => one.getBoundingClientRect());
        const frame = document.querySelector(".stage").getBoundingClientRect();
        const found = [];
        for (const path of document.querySelectorAll(".stage path")) {
            const length = path.getTotalLength();
            for (let at = 6; at < length - 6; at += 2) {
                const {x, y} = path.getPointAtLength(at);
                const [left, top] = [x + frame.left, y + frame.top];
                if (boxes.some((box) => left > box.left + 2 && left < box.right - 2
                    && top > box.top + 3 && top < box.bottom - 3)) found.push([left, top]);
            }
        }
        return [document.querySelectorAll(".stage path").length, found];
    }"""
    with open_model(browser, page_of, certain_translator(), screen=PHONE) as opened:
        page = opened.page
        links = 0
        for at in range(0, page.locator(".written .w").count() - 1, every):
            page.locator(f".written [data-at='{at}']").tap()
            page.locator(f".written .chosen[data-at='{at}']").wait_for()
            opened.settle()
            count, found = page.evaluate(crossed)
            links += count
            assert found == []
        assert links > 5


@needs_axe
def test_the_first_screen_is_accessible_before_and_after_an_experiment(browser, page_of):
    with open_model(browser, page_of, certain_translator(), screen={"bypass_csp": True}) as opened:
        # over the links, which are hidden from it, axe measures no contrast
        opened.page.add_style_tag(content=".stage > svg { display: none }")

        def assert_both(name):
            papers = set()
            for scheme, rules in (("light", ()), ("dark", OF_COLOURS)):
                opened.page.emulate_media(color_scheme=scheme)
                opened.settle()
                papers.add(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
                assert_accessible(opened, (scheme, name), "'.screen'", rules)
            assert len(papers) == 2

        assert_both("first")
        opened.page.locator(".try button").first.click()
        opened.page.locator(".undo.on").wait_for()
        opened.page.get_by_text("Change the model", exact=True).click()
        assert_both("after")
        opened.page.get_by_text("Change the model", exact=True).click()
        opened.page.locator(".given .w", has_text="street").click()
        opened.page.locator(".field").wait_for()
        assert_both("a field in the place of a word")


def test_a_language_model_without_its_model_tells_what_it_expects(browser, page_of):
    text = "The animal didn't cross"
    model = language_model()
    changes = text_without_each(model, TOKENISER, text, 40)
    with Opened(browser, page_of(explore_text(model, TOKENISER, text))) as opened:
        page = opened.page
        before = changes[None].probabilities[-1]
        falls = {
            str(place): written(change.probabilities[-1])
            for place, change in changes.items()
            if place is not None and 1 - change.probabilities[-1] / before >= LEAST
        }
        assert numbers(page) == falls
        assert "holds what a language model expects" in page.locator(".orientation").inner_text()
        assert not page.locator(".told, .try").count()  # there is nothing to try
        plain = page.locator(".word.plain").first  # a word that is not explained is no link
        assert plain.evaluate("(one) => getComputedStyle(one).textDecorationLine") == "none"
