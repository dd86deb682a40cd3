"""Where words look: what two presses show, one meaning for each colour, and nothing that is covered or moves."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from regard_lab.seeing import look
from regard_lab.seeing import palette as colours
from regard_lab.seeing.explorer import show
from regard_lab.seeing.palette import DEPENDS, SCALE

from .browsing import Opened
from .making import SOURCE, TOKENISER, translator
from .test_explorer_first import PHONE, certain_translator, headline, numbers, open_model, replaced

LEAST = 0.03  # of attention, the smallest share that has a link
PLACES = """() => [".answer", ".stage", ".line.given", ".line.written", ".told", "nav"]
    .map((one) => document.querySelector(one).getBoundingClientRect().top + scrollY)"""


@torch.no_grad()
def test_two_presses_show_where_a_word_of_the_sentence_looks_in_the_encoder(browser, page_of):
    model = translator()
    with open_model(browser, page_of, model) as opened:
        page = opened.page
        text = page.locator(".written .t").all_inner_texts()
        page.get_by_role("radio", name="Looks at").click()
        assert "where it looks in the encoder" in page.locator(".room").inner_text()
        assert "press any word to see where it looks" in page.locator(".cap.below").inner_text()
        page.locator(".given .w", has_text="it").last.click()
        page.locator(".given .chosen", has_text="it").wait_for()
        opened.settle()

        ids = page.evaluate(
            "(source) => regard.engine.ask('run', {source}).then(({ids}) => ids.target)", SOURCE
        )
        maps = look(model, TOKENISER, SOURCE, ids).merged()
        words = list(maps.source_words)
        place = words.index("it")
        shares = maps.encoder[:, :, place].double().mean((0, 1))
        others = {at: float(share) for at, share in enumerate(shares) if at != place}
        assert numbers(page) == {
            str(at): f"{share:.2f}" for at, share in others.items() if share >= LEAST
        }
        first, second = sorted(others, key=others.get, reverse=True)[:2]
        named = ["the end" if word == "<end>" else word for word in words]
        assert headline(page).startswith(
            f"In the encoder, it looks most at {named[first]} ({others[first]:.2f}), "
            f"then at {named[second]} ({others[second]:.2f})"
        )
        assert page.locator(".given .gone, .field").count() == 0  # nothing is erased
        assert page.locator(".written .t").all_inner_texts() == text
        links = page.evaluate("document.querySelectorAll('.stage path').length")
        assert links == len(numbers(page)) > 1
        opened.view("Heat map")  # which shows the same word of the same attention
        assert page.locator("[data-readout]").inner_text().startswith(f"“it” ({place}) looks at ")

        page.locator(".written [data-at='0']").click()
        page.locator(".written .chosen[data-at='0']").wait_for()
        assert headline(page).startswith(f"While it writes {text[0]}, the model looks ")
        page.get_by_role("radio", name="Depends on").click()
        page.locator(".given .w", has_text="it").last.click()
        page.locator(".given .gone").wait_for()
        assert not opened.complaints


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_moves_when_links_show_attention(browser, page_of, width):
    with open_model(browser, page_of, translator(), screen={"width": width}) as opened:
        page = opened.page
        before = page.evaluate(PLACES)
        page.get_by_role("radio", name="Looks at").click()
        opened.settle()
        assert page.evaluate(PLACES) == pytest.approx(before, abs=1)
        page.locator(".given [data-at='3']").click()
        page.locator(".given .chosen[data-at='3']").wait_for()
        opened.settle()
        assert page.evaluate(PLACES) == pytest.approx(before, abs=1)


COVERED = """() => {
    const field = document.querySelector(".field").getBoundingClientRect();
    return [...document.querySelectorAll(".line .t")].filter((one) => {
        const word = one.getBoundingClientRect();
        return word.left < field.right && word.right > field.left && word.top < field.bottom && word.bottom > field.top;
    }).map((one) => one.innerText);
}"""


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_field_of_a_word_covers_no_word(browser, page_of, width):
    with open_model(browser, page_of, translator(), screen={"width": width}) as opened:
        page = opened.page
        for word in ("The", "cross", "tired"):
            replaced(page, word, "st", "pointer")
            opened.settle()
            assert page.evaluate(COVERED) == []
            box = page.locator(".field").bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            page.keyboard.press("Escape")
            page.locator(".pills").wait_for(state="detached")


def test_links_of_one_word_pass_through_gaps_of_their_own(browser, page_of):
    """Two neighbours are looked at over a row of words, whose nearest gap is the same for both."""
    keys = ("The", "quick", "a", "I", "foxes", *["incomprehensible"] * 3, "lazy", "dogs")
    weights = torch.zeros(1, 1, 2, len(keys))
    weights[..., 2:4] = 0.5
    shown = show(weights, ["Der", "Fuchs"], keys)
    with Opened(browser, page_of(shown), **PHONE) as opened:
        opened.settle()
        paths = opened.page.locator(".stage path").evaluate_all(
            "(all) => all.map((one) => one.getAttribute('d'))"
        )
        assert len(paths) == 2
        # "V" is a link's way between two words of a row; "x y" stand before it
        ways = [tuple(way.split()[-2:]) for path in paths for way in path.split("V")[:-1]]
        assert len(ways) >= 4
        assert len(set(ways)) >= len(ways) - 1  # beside a long word no other gap is near


def rgb(colour):
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


def test_orange_is_what_a_word_depends_on_and_blue_is_where_it_looks(browser, page_of):
    palette = json.loads(Path(colours.__file__).with_name("palette.json").read_text("utf-8"))
    assert rgb(DEPENDS[3]) == rgb(palette["page"]["light"]["depends"])
    with open_model(
        browser, page_of, certain_translator(), screen={"color_scheme": "light"}
    ) as opened:
        page = opened.page
        colour = "(one) => getComputedStyle(one).backgroundColor"
        strongest = {}
        for lens in ("erase", "attention"):
            words = page.locator(f"[data-lens={lens}] .scored")
            scores = [
                float(text.replace("−", "-")) for text in words.locator("small").all_inner_texts()
            ]
            strongest[lens] = (
                words.nth(int(np.argmax(np.abs(scores)))).locator(".word").evaluate(colour)
            )
            least = words.nth(int(np.argmin(scores))).locator(".word").evaluate(colour)
            if lens == "erase" and min(scores) < -0.1 * max(np.abs(scores)):
                red, green, blue = map(int, least[4:-1].split(", "))
                assert (
                    max(red, green, blue) - min(red, green, blue) < 30
                )  # grey: it speaks against the word
        assert strongest["erase"] in (rgb(DEPENDS[-1]), rgb(palette["page"]["light"]["ink"]))
        assert strongest["attention"] == rgb(SCALE[-1])
        stroke = "getComputedStyle(document.querySelector('.stage svg')).stroke"
        assert page.evaluate(stroke) == rgb(palette["page"]["light"]["depends"])
        page.get_by_role("radio", name="Looks at").click()
        opened.settle()
        assert page.evaluate(stroke) == rgb(palette["page"]["light"]["accent"])


def test_a_window_of_the_encoder_is_said_where_a_word_looks(browser, page_of):
    window = "a layer sees only the nearest 2 before and after"
    model = translator(encoder_pattern="sliding_window(4)")
    with open_model(browser, page_of, model) as opened:
        page = opened.page
        page.get_by_role("radio", name="Looks at").click()
        assert window not in headline(page)  # of the cross-attention, which sees all
        page.locator(".given .w", has_text="it").last.click()
        page.locator(".answer", has_text=window).wait_for()
        page.get_by_text("Change the model", exact=True).click()
        page.get_by_role("textbox", name="Pattern, encoder").fill("full")
        page.keyboard.press("Enter")
        page.locator(".answer", has_text=window).wait_for(state="detached")
        assert not opened.complaints


def test_the_reader_explains_the_word_that_is_chosen_or_says_that_it_is_none(browser, page_of):
    with open_model(browser, page_of, certain_translator()) as opened:
        page = opened.page
        page.locator(".written [data-at='1']").click()
        word = page.locator(".written [data-at='1'] .t").inner_text()
        page.locator(".question", has_text=f"Why {word} rather than").wait_for()
        page.get_by_role("radio", name="Looks at").click()
        page.locator(
            ".given .w", has_text="it"
        ).last.click()  # the Reader still speaks of the other
        page.locator(".given .chosen", has_text="it").wait_for()
        assert page.locator("#view h2").inner_text() == f"What does “{word}” depend on?"
        page.get_by_role("radio", name="Depends on").click()
        page.locator(".written .w").last.click()
        page.locator(".answer", has_text="the end").wait_for()
        opened.settle()
        assert page.locator(".question").count() == 0
        assert "What the end depends on is shown above" in page.locator("#view").inner_text()


def test_escape_closes_what_is_open_and_saved_files_have_names(browser, page_of):
    with open_model(browser, page_of, translator()) as opened:
        page = opened.page
        sheet = page.locator("details.tweaks", has_text="Change the model")
        page.get_by_text("Change the model", exact=True).click()
        assert sheet.evaluate("one => one.open")
        page.keyboard.press("Escape")
        assert not sheet.evaluate("one => one.open")
        opened.view("Heat map")
        page.get_by_role("combobox", name="Attention").select_option("1")
        page.get_by_role("combobox", name="Head", exact=True).select_option("1")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save this map").click()
        name = "heatmap, Encoder self-attention, head 1 of layer 2.png"
        assert download.value.suggested_filename == name
        page.locator("#view .hint", has_text=f"Saved as {name}").wait_for()
