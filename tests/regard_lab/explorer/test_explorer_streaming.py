"""A head of a long text: the numbers of its whole matrix of weights, in linear memory, and what its page shows."""

import pytest
import torch

from regard.errors import ArgumentError, ShapeError
from regard.patterns import Causal, CausalWindow, PerHead, parse
from regard_lab.seeing import show
from regard_lab.seeing.explorer import LongHead, stream_head
from regard_lab.seeing.explorer.streaming import SIDE

from .browsing import Opened, assert_accessible, needs_axe

PATTERNS = ("full", "causal & causal_window(100)", "causal & (strided(64) | global_tokens(0))", "~full")


def tensors(n, dim=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, dim, generator=generator), torch.randn(n, dim, generator=generator)


def dense(q, k, pattern):
    """The weights in float64, by the formula."""
    n = len(q)
    allowed = pattern.dense(n, n)
    scores = (q.double() @ k.double().T) / q.shape[1] ** 0.5
    return scores.masked_fill(~allowed, -torch.inf).softmax(1).nan_to_num(0.0)


@pytest.mark.parametrize("text", PATTERNS)
def test_statistics_equal_those_of_the_whole_matrix(text):
    n, pattern = 1024, parse(text)
    q, k = tensors(n)
    found, w = stream_head(q, k, pattern=pattern), dense(q, k, pattern)
    assert not found.is_sampled
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    close = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(found.entropy, -torch.xlogy(w, w).sum(1), **close)
    torch.testing.assert_close(found.distance, (w * apart).sum(1), **close)
    torch.testing.assert_close(found.received, w.sum(0), **close)
    torch.testing.assert_close(found.first, w[:, 0], **close)
    torch.testing.assert_close(found.largest, w.amax(1), **close)
    torch.testing.assert_close(found.weights, w.topk(16).values, **close)
    kept = w.gather(1, found.keys.clamp(min=0)).masked_fill(found.keys < 0, 0)
    torch.testing.assert_close(found.weights, kept, **close)
    parts = w.view(SIDE, n // SIDE, SIDE, n // SIDE).sum(3).mean(1)
    torch.testing.assert_close(found.map, parts, **close)


@pytest.mark.parametrize("n", [1, 7, 257, 1000])
def test_lengths_that_no_number_divides(n):
    q, k = tensors(n)
    found, w = stream_head(q, k, pattern=Causal(), links=5), dense(q, k, Causal())
    torch.testing.assert_close(found.received, w.sum(0).float(), rtol=1e-5, atol=1e-5)
    side = min(n, SIDE)
    part = torch.arange(n) * side // n
    counts = part.bincount(minlength=side)
    sums = torch.zeros(side, n, dtype=torch.float64).index_add_(0, part, w) / counts[:, None]
    expected = torch.zeros(side, side, dtype=torch.float64).index_add_(1, part, sums)
    torch.testing.assert_close(found.map, expected.float(), rtol=1e-5, atol=1e-5)


def test_sampled_rows_are_exact_and_labelled():
    q, k = tensors(1000)
    whole, some = stream_head(q, k, pattern=Causal()), stream_head(q, k, pattern=Causal(), rows=50, seed=3)
    assert some.is_sampled
    assert len(some.rows) == 50
    assert torch.equal(some.rows, some.rows.unique())
    torch.testing.assert_close(some.entropy, whole.entropy[some.rows])
    assert torch.equal(some.keys, whole.keys[some.rows])
    other = stream_head(q, k, pattern=Causal(), rows=50, seed=4)
    assert not torch.equal(some.rows, other.rows)


def test_memory_grows_with_the_length_and_not_with_its_square(monkeypatch):
    """The largest tensor that one block makes, at two lengths."""
    largest = {}
    for n in (2_000, 20_000):
        sizes = []
        softmax = torch.Tensor.softmax
        monkeypatch.setattr(
            torch.Tensor, "softmax", lambda self, dim, s=softmax, z=sizes: (z.append(self.numel()), s(self, dim))[1]
        )
        q, k = tensors(n, dim=4)
        stream_head(q, k, pattern=CausalWindow(64), rows=500)
        monkeypatch.undo()
        largest[n] = max(sizes)
    assert largest[20_000] <= 2**23


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"q": torch.ones(3)}, ShapeError, r"q is \(3,\)"),
        ({"k": torch.ones(4, 2)}, ShapeError, "both must be"),
        ({"words": ["a"]}, ShapeError, "words has 1 word, and q has 3"),
        ({"links": 0}, ArgumentError, "links is 0"),
        ({"rows": 0}, ArgumentError, "rows is 0"),
        ({"pattern": "causal"}, ArgumentError, "a Pattern"),
        ({"pattern": PerHead([Causal(), CausalWindow(2)])}, ArgumentError, "for_head"),
    ],
)
def test_mistakes_are_explained(change, error, says):
    with pytest.raises(error, match=says):
        stream_head(**{"q": torch.ones(3, 2), "k": torch.ones(3, 2), **change})


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


def test_what_is_chosen_is_shown_with_its_streamed_numbers(browser, streamed, page_of):
    q, k, words = streamed
    head = stream_head(q, k, words, pattern=Causal())
    with Opened(browser, page_of(show(head))) as opened:
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


@needs_axe
def test_axe_has_no_complaint_about_a_long_text(browser, streamed, page_of):
    scheme = "dark"
    q, k, words = streamed
    with Opened(
        browser, page_of(show(stream_head(q, k, words, rows=50))), color_scheme=scheme, bypass_csp=True
    ) as opened:
        assert_accessible(opened, scheme)
