"""Text of the user is shown as text: in a file and live, nothing in it runs, and it adds no element."""

import random
from dataclasses import replace

import pytest

from regard.patterns import Causal
from regard_lab.seeing import Relevance
from regard_lab.seeing.explorer import to_page
from regard_lab.seeing.explorer.patterns import map_pattern
from regard_lab.seeing.explorer.records import ShownStep, ShownWalk, StepAxis
from regard_lab.seeing.explorer.server import ExplorerServer
from regard_lab.seeing.explorer.sources import Attention, Exploration, compared, explore_weights
from regard_lab.seeing.lenses.erasing import Changed

from .browsing import Opened
from .making import SOURCE, VIEWS, plain_translation, weights

PAYLOADS = (
    "</script><script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    '"onmouseover="window.ran=1',
    "'><b>",
    "<svg onload=window.ran=1>",
    "javascript:window.ran=1",
    "<!--<script>",
    "-->",
    "]]>",
    "&lt;b&gt;",
    "%3Cscript%3E",
    "\u202eevil\u202c",
    "\u2066\u2069",
    "\u200b",
    "\0",
    "\ud800",
    "\udfff\ud800",
    "\x1b[2J",
    "\u2028\u2029",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "שלום",
    "مرحبا",
    "猫",
    "",
    " ",
    "\t\n",
    "${window.ran=1}",
    "`${1}`",
    "{{constructor}}",
    "\\u003cscript>",
    "__proto__",
    "constructor",
    "</style></title><script>",
    "<iframe srcdoc='<script>parent.ran=1</script>'>",
    "<style>*{display:none}</style>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content=0>",
    "a" * 1_000_000,
)


def hostile_words(count):
    generator = random.Random(0)
    words = list(PAYLOADS)
    while len(words) < count:
        first = generator.choice(PAYLOADS[:-1])
        second = generator.choice(PAYLOADS[:-1])
        words.append(
            generator.choice(
                [
                    first + second,
                    first * 3,
                    first[::-1],
                    f"{first}{chr(generator.randrange(0x11000))}",
                ]
            )
        )
    return words[:count]


def hostile_exploration(words):
    """Hostile text in every place: title, notes, words, the explained words and what they are compared with."""
    count = len(words)
    attention_weights = weights(1, 2, count)
    relevances = {
        place: (
            Relevance(
                lens="erase",
                word=words[place],
                others=tuple(words[place : place + 3]),
                place=place,
                log_odds=1.0,
                source_words=tuple(words),
                source_scores=(0.5,) * count,
                written_words=tuple(words[:place]),
                written_scores=(-0.5,) * place,
                passes=1,
                note=words[place],
            ),
        )
        for place in range(1, 6)
    }
    texts = {"source": tuple(words), "target": tuple(words)}
    attention = Attention(
        words[0], "target", "source", attention_weights, words[1], words[2], says=words[5]
    )
    title = "".join(words[:30])
    changed = Changed(
        (0.5,) * count, tuple(((word, 0.5), (word[::-1], 0.2)) for word in words), tuple(words)
    )
    step = ShownStep(
        words[0],
        words[1],
        words[2],
        ["math", ["script", "<b>"]],
        words[4],
        (StepAxis(words[5], tuple(words), 1), StepAxis("words", tuple(words), 0)),
        attention_weights[0, 0],
    )
    told = ShownStep(
        words[0], words[3], "", None, "", (StepAxis("words", tuple(words)),), tuple(words)
    )
    exploration = Exploration(
        title,
        texts,
        (attention,),
        relevances,
        "target",
        1,
        notes=tuple(words[:20]),
        patterns=(map_pattern(Causal(), words, name=words[0]),),
        walk=ShownWalk((step, told), tuple(words), 1, words[0]),
        changes=dict.fromkeys((None, *range(6)), changed),
    )
    return compared(
        exploration, replace(exploration, title=words[0] + words[1], notes=(words[4],)), words[0]
    )


def opened_everywhere(opened, view):
    """Show a view with all that can be unfolded, and the next step of a walkthrough."""
    opened.view(view)
    opened.page.evaluate(
        "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    )
    if view == "Walk-through":
        opened.page.get_by_role("button", name="Next step").click()
        opened.settle()


def structure(opened):
    """Every element of the page by its name, except those whose number depends on the number of words."""
    return opened.page.evaluate(
        "[...new Set([...document.querySelectorAll('*')].map((one) => one.tagName))].sort()"
    )


def assert_harmless(opened, allowed):
    for view in VIEWS:
        if view not in opened.page.locator("nav button").all_inner_texts():
            continue
        opened_everywhere(opened, view)
        assert set(structure(opened)) <= allowed, view
        for script in (
            "window.ran",
            "document.querySelector('img, svg:not(.stage > svg), iframe, b, base')",
        ):
            assert opened.page.evaluate(script) is None
        assert opened.page.evaluate("document.querySelectorAll('script').length") == 3
    assert not opened.complaints


@pytest.fixture(scope="module")
def allowed(browser, tmp_path_factory):
    """The kinds of elements of the same page with harmless words."""
    path = tmp_path_factory.mktemp("plain") / "plain.html"
    live = {"read": True, "text": "a", "label": "b"}
    to_page(hostile_exploration([f"word{index}" for index in range(40)]), live=live).save(path)
    with Opened(browser, path.as_uri()) as opened:
        names = set()
        for view in VIEWS:
            opened_everywhere(opened, view)
            names |= set(structure(opened))
        return names | {"path"}  # the links between words, which are not written


def test_hundreds_of_hostile_words_are_shown_as_text_in_a_file(browser, tmp_path, allowed):
    path = tmp_path / "hostile.html"
    words = hostile_words(400)
    to_page(explore_weights(weights(1, 2, 400), words, title=words[0])).save(path)
    with Opened(browser, path.as_uri()) as opened:
        assert_harmless(opened, allowed)
        assert opened.requests == [path.as_uri()]


def test_hostile_text_is_harmless_in_every_place(browser, page_of, allowed):
    words = hostile_words(60)
    with Opened(browser, page_of(hostile_exploration(words))) as opened:
        assert_harmless(opened, allowed)
        opened.view("Reader")
        shown = opened.page.locator(".panel bdi").all_inner_texts()
        assert "<svg onload=window.ran=1>" in shown
        assert r"\u202eevil\u202c" in shown
        assert r"\ud800" in shown


def test_hostile_text_is_harmless_in_a_live_page(browser, allowed):
    typed = []

    def read(text):
        typed.append(text)
        return replace(plain_translation(), title=text)

    first = hostile_exploration(hostile_words(60))
    with (
        ExplorerServer(first, read, text=PAYLOADS[0], label=PAYLOADS[1]).start() as server,
        Opened(browser, server.url) as opened,
    ):
        box = opened.page.locator("#sentence")
        assert box.input_value() == PAYLOADS[0]
        texts = ["<img src=x onerror=window.ran=1> </script>", SOURCE]
        for text in texts:
            box.fill(text)
            opened.page.get_by_role("button", name="Read this text").click()
            opened.page.locator(".said").filter(has_text=text).wait_for(state="attached")
        assert typed == texts
        assert_harmless(opened, allowed)
        assert {url.split("/")[2] for url in opened.requests} == {f"127.0.0.1:{server.server_port}"}


def test_hostile_words_do_not_leave_their_element_in_the_file():
    html = to_page(hostile_exploration(hostile_words(300))).html
    plain = to_page(hostile_exploration([f"word{index}" for index in range(300)])).html
    for end in ("</script", "<script", "</style", "<!--", "<img", "<svg", "<base", "<meta"):
        assert html.lower().count(end) == plain.lower().count(end), end
    assert len(html) < 4_000_000  # a word of a megabyte is cut, and there are two explorations
