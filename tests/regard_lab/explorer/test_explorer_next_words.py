"""What-if of a language model: the probability of each next word when a word of the text is erased or replaced."""

import json

import pytest
import torch

from regard.errors import ArgumentError
from regard_lab.seeing.explorer import compared, explore_text, to_page
from regard_lab.seeing.explorer.records import changed_to_json
from regard_lab.seeing.explorer.server import ExplorerServer
from regard_lab.seeing.explorer.sources import MOST_REREAD
from regard_lab.seeing.lenses.contrast import baseline
from regard_lab.seeing.lenses.erasing import text_with_word, text_without_each
from regard_lab.text import BEGIN

from .browsing import Opened
from .making import SOURCE, TOKENISER, instead, language_model

IDS = [BEGIN, *TOKENISER.encode(SOURCE)]
SPANS = TOKENISER.words(IDS)


@torch.no_grad()
def expected(vectors, ids, first):
    """The probability of each word from `first` on, and the scores after the last id, of one pass of the model."""
    logits = language_model()(torch.tensor([ids]), vectors=vectors)[0].log_softmax(-1)
    words = [span for _, span in TOKENISER.words(ids)[first:]]
    return [float(sum(logits[at - 1, ids[at]] for at in span).exp()) for span in words], logits[-1].exp()


def test_probabilities_without_each_word_are_those_of_the_model():
    found = text_without_each(language_model(), TOKENISER, SOURCE, 40)
    assert list(found) == [None, *range(1, len(SPANS))]
    table = language_model().embedding.weight.detach()
    plain, after = expected(None, IDS, 1)
    top = int(after.argmax())
    assert found[None].probabilities == pytest.approx([*plain, float(after[top])], rel=1e-4)
    for place in range(1, len(SPANS)):
        vectors = table[torch.tensor([IDS])].clone()
        vectors[0, list(SPANS[place][1])] = baseline(torch.tensor([IDS]), table)[0, 0]
        moved, after = expected(vectors, IDS, 1)
        assert found[place].probabilities == pytest.approx([*moved, float(after[top])], rel=1e-4)
        assert found[place].probabilities[:place] == found[None].probabilities[:place]  # predicted before it was read


def test_probabilities_with_another_word_are_those_of_the_changed_text():
    """The other word may have more sub-words or fewer; what is read after it is the same."""
    plain = text_without_each(language_model(), TOKENISER, SOURCE, 0)[None]
    for place, word in ((2, "street"), (2, "unusually"), (7, "es")):
        found = text_with_word(language_model(), TOKENISER, SOURCE, place, word)
        changed = [BEGIN, *TOKENISER.encode(SOURCE.replace(SPANS[place][0], word))]
        moved, _ = expected(None, changed, place + 1)
        assert found.probabilities[:place] == plain.probabilities[:place]
        assert found.probabilities[place:-1] == pytest.approx(moved, rel=1e-4)
        assert found.word == word


@pytest.mark.parametrize(
    ("place", "word", "says"),
    [(0, "", "word 0 does not exist; the text has the words 1 to"), (99, "", "does not exist"), ("1", "", "place"),
     (1, "two words", "not one word"), (1, 3, "word")],
)  # fmt: skip
def test_a_change_that_is_impossible_is_refused_with_a_sentence(place, word, says):
    with pytest.raises(ArgumentError, match=says):
        text_with_word(language_model(), TOKENISER, SOURCE, place, word)


def test_a_longer_text_says_that_it_is_not_read_again():
    found = explore_text(language_model(), TOKENISER, "tired " * MOST_REREAD)
    assert found.changes is None
    assert f"more than {MOST_REREAD} words" in found.notes[0]


def test_the_page_shows_how_each_next_word_moves(browser, tmp_path):
    found, path = explore_text(language_model(), TOKENISER, SOURCE), tmp_path / "text.html"
    to_page(compared(found, found, "the same")).save(path)
    words, changes = found.texts["text"], found.changes
    with Opened(browser, f"{path.as_uri()}#view=change") as opened:
        page = opened.page
        page.get_by_role("group", name="Words of the text").get_by_text("animal", exact=True).click()
        page.get_by_role("combobox", name="Next word").select_option(str(words.index("street") - 1))
        place, row = words.index("animal"), words.index("street") - 1
        now, before = (changes[at].probabilities[row] for at in (place, None))
        told = f"Without “animal”, the probability of “street” is {instead(now, before)}"
        assert page.locator("[data-change]").inner_text().startswith(told)
        shown = page.locator("[data-moves] small").all_inner_texts()
        apart = [b - a for a, b in zip(changes[None].probabilities, changes[place].probabilities, strict=True)]
        assert [float(text.replace("−", "-")) for text in shown] == pytest.approx(apart, abs=5.1e-4)
        assert "(what follows)" in page.locator("[data-moves]").inner_text()
        opened.view("Compare")
        assert page.locator("[data-written]").count() == 0
        assert not opened.complaints


def test_a_live_page_replaces_a_word_of_a_text(browser):
    model = language_model()

    def change(body):
        return changed_to_json(text_with_word(model, TOKENISER, body["text"], body["place"], body["word"]))

    found = explore_text(model, TOKENISER, SOURCE)
    with (
        ExplorerServer(found, lambda text: None, text=SOURCE, label="Text", asks={"change": change}).start() as server,
        Opened(browser, f"{server.url}#view=change") as opened,
    ):
        page = opened.page
        page.get_by_role("group", name="Words of the text").get_by_text("animal", exact=True).click()
        page.locator("#swap").fill("street")
        page.keyboard.press("Enter")
        page.locator("[data-change]").filter(has_text="With “street”").wait_for()
        found = text_with_word(model, TOKENISER, SOURCE, 2, "street")
        cells = page.get_by_role("region", name="Next words").locator("tbody td:nth-child(3)").all_inner_texts()
        assert [float(cell) for cell in cells] == pytest.approx(found.probabilities, abs=5.1e-4)
        assert json.loads(json.dumps(changed_to_json(found)))["translation"] == []
        assert not opened.complaints
