"""One head over 100,000 positions in a browser: small, quick, and every number what was streamed."""

import pytest
import torch

from regard.patterns import Causal
from regard_lab.seeing import show
from regard_lab.seeing.explorer import LongHead, stream_head

from .browsing import Opened, assert_accessible


def made_up(n=100_000, links=16, side=256):
    """A head with numbers of the right kind; what is shown does not depend on where they come from."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.rand(*shape, generator=generator)

    weights = random(n, links).sort(1, descending=True).values / links
    keys = (random(n, links) * torch.arange(1, n + 1)[:, None]).long()
    words = tuple(f"word{at * 7919 % 30_000}" for at in range(n))
    return LongHead(
        torch.arange(n), 5 * random(n), n * random(n), weights[:, 0].clone(), random(n), keys, weights, random(n),
        random(side, side), words,
    )  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "long.html"
    show(made_up()).save(path)
    return path


@pytest.fixture(scope="module")
def streamed():
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(3000, 8, generator=generator) for _ in range(2))
    return q, k, [f"word{at}" for at in range(3000)]


def test_a_hundred_thousand_positions_are_small_and_quick(browser, large):
    assert large.stat().st_size <= 10e6
    with Opened(browser, large.as_uri()) as opened:
        assert opened.cpu_seconds() <= 2
        assert opened.nodes() <= 500
        before = opened.cpu_seconds()
        opened.page.evaluate("""async () => {
            const box = document.querySelector(".links");
            for (let at = 1; at <= 100; at += 1) {
                box.scrollTop = at * 17011;
                await new Promise(requestAnimationFrame);
            }
        }""")
        assert (opened.cpu_seconds() - before) / 100 <= 0.016  # seconds of a repaint
        assert len(opened.requests) == 1
        assert not opened.complaints


def test_what_is_chosen_is_shown_with_its_streamed_numbers(browser, streamed, tmp_path):
    q, k, words = streamed
    head = stream_head(q, k, words, pattern=Causal())
    path = tmp_path / "streamed.html"
    show(head).save(path)
    with Opened(browser, path.as_uri()) as opened:
        page = opened.page
        page.locator("#find").fill("2345")
        page.get_by_role("button", name="Next").click()
        page.wait_for_function("() => document.querySelectorAll('h3')[3].innerText.includes('2345')")
        text = page.locator("section").last.inner_text()
        assert f"Entropy {head.entropy[2345]:.3f} nats" in text
        assert f"received\n{head.received[2345]:.3f}" in text or f"received {head.received[2345]:.3f}" in text
        rows = page.locator("tbody").first.locator("tr").all_inner_texts()
        for at, row in enumerate(rows):
            word, weight = row.split("\t")
            assert word.endswith(f"({head.keys[2345, at]})")
            assert float(weight) == pytest.approx(float(head.weights[2345, at]), abs=0.004)
        hidden = 1 - float(head.weights[2345].sum())
        shown = float(page.locator("[data-hidden]").inner_text().split()[1])
        assert shown == pytest.approx(100 * hidden, abs=1.5)
        page.locator("#find").fill("word17")
        page.get_by_role("button", name="Next").click()
        page.wait_for_function("() => document.querySelector('[role=status]').innerText.startsWith('word17')")
        page.locator("#find").fill("nowhere")
        page.get_by_role("button", name="Next").click()
        page.wait_for_function("() => document.querySelector('[role=alert]').innerText === 'Not found.'")


def test_sampled_rows_are_labelled(browser, streamed, tmp_path):
    q, k, words = streamed
    path = tmp_path / "sampled.html"
    show(stream_head(q, k, words, pattern=Causal(), rows=100)).save(path)
    with Opened(browser, path.as_uri(), width=360) as opened:
        assert "sampled: 100 of 3,000 rows" in opened.page.locator(".badge").first.inner_text()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
        opened.page.locator(".rows canvas").focus()
        opened.page.keyboard.press("ArrowDown")
        opened.page.wait_for_timeout(200)
        head = stream_head(q, k, words, pattern=Causal(), rows=100)
        assert f"({head.rows[1]})" in opened.page.locator("[role=status]").inner_text()
        assert not opened.complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_complaint_about_a_long_text(browser, streamed, tmp_path, scheme):
    q, k, words = streamed
    path = tmp_path / "axe.html"
    show(stream_head(q, k, words, rows=50)).save(path)
    with Opened(browser, path.as_uri(), color_scheme=scheme, bypass_csp=True) as opened:
        assert_accessible(opened, path)
