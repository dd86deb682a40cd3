"""A page that contains its model: what it computes is what the library computes, and it computes by itself."""

import copy
import json
import random
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.patterns import Causal, Pattern, parse
from regard_lab.decoding import Generator, Translator
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.seeing import look, look_text
from regard_lab.seeing.explorer import explore_model, to_page
from regard_lab.seeing.explorer.engine import ON_GRIDS, reason_against, restored
from regard_lab.seeing.explorer.server import ExplorerServer
from regard_lab.seeing.heads import Head, ablate
from regard_lab.seeing.heads.replacing import attention_layers
from regard_lab.seeing.lenses.contrast import alternatives
from regard_lab.seeing.lenses.erasing import text_without_each, without_each
from regard_lab.seeing.lenses.explaining import explain_contrasts
from regard_lab.text import BEGIN, END, UNKNOWN, Tokeniser
from regard_lab.text.pronouns import PRONOUNS
from regard_lab.text.seen_words import SeenWords
from regard_lab.walkthrough.writing import shown_walk

from .browsing import Opened, assert_accessible, head_name, needs_axe, said
from .making import SOURCE, TARGET, TOKENISER, translator, walked
from .test_explorer_hostile import PAYLOADS

# Asks the engine one question after the other; of each answer what is named, with typed arrays as lists.
ASK = """async ([what, names, all]) => {
    const plain = (one) => ArrayBuffer.isView(one) ? [...one] : Array.isArray(one) ? one.map(plain)
        : one && typeof one === "object" ? Object.fromEntries(Object.keys(one).map((at) => [at, plain(one[at])])) : one;
    const found = [];
    for (const one of all) {
        let answer = null; // of a lens that a question of the page itself has ended
        while (answer === null) answer = await regard.engine.ask(what, one);
        found.push(Object.fromEntries(names.map((name) => [name, plain(answer[name])])));
    }
    return found;
}"""
TRANSLATORS = {
    "plain": {},
    "post": {
        "norm": "post",
        "positions": "learned",
        "tied": False,
        "activation": "gelu",
        "max_length": 80,
    },
    "grouped": {
        "encoder_kv_heads": 1,
        "decoder_kv_heads": 2,
        "cross_kv_heads": 1,
        "heads": 4,
        "positions": "rotary",
    },
    "patterns": {
        "encoder_pattern": "sliding_window(4)",
        "decoder_pattern": "causal_window(3)",
        "cross_pattern": "causal | prefix(3)",
        "activation": "swiglu",
    },
}
RECURRENT = {
    "bahdanau": {},
    "general": {
        "attention": "luong-general",
        "cell": "lstm",
        "input_feeding": True,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "reach": "local-m",
        "window": 2,
    },
    "concat": {"attention": "luong-concat", "reach": "local-p", "window": 3, "tied": False},
    "dot": {"attention": "luong-dot", "cell": "lstm"},
}
LANGUAGE_MODELS = {
    "llama": {"kv_heads": 1, "pattern": ("causal_window(4)", "full"), "rotary_base": 500.0},
    "gpt": {
        "norm": "layer",
        "positions": "learned",
        "activation": "gelu-tanh",
        "biases": True,
        "max_length": 60,
    },
    "alibi": {
        "positions": "alibi",
        "heads": 3,
        "dim": 24,
        "activation": "geglu",
        "tied": False,
        "head_dim": 4,
    },
    "waves": {
        "positions": "sinusoidal",
        "activation": "silu",
        "pattern": "per_head(causal, strided(3))",
    },
}
ENCODERS = {
    "words": {"positions": "learned", "max_length": 60},
    "untied": {"tied": False, "pattern": "sliding_window(4) | prefix(1)", "norm": "rms"},
    "classes": {"head": "classes", "classes": 3},
    "first": {"head": "classes", "classes": 2, "pooling": "first", "positions": "none"},
    "none": {"head": "none", "positions": "alibi"},
}


def seeded(kind, settings, seed=0):
    """A model whose weights are large enough that its weights of attention differ."""
    torch.manual_seed(seed)
    size = {"hidden": 12} if kind is RecurrentTranslator else {"heads": 2}
    model = kind(
        kind.Config(
            vocab_size=TOKENISER.vocab_size, **{"dim": 16, "dropout": 0.0, **size, **settings}
        )
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(2)
        else:
            parameter.data.add_(torch.randn_like(parameter) / 4)
    return model.eval()


@pytest.fixture
def page_with(browser, page_of):
    """Opens a page that contains a model."""
    with ExitStack() as pages:
        shown = []

        def open_it(model, tokeniser=TOKENISER, text=SOURCE, words=None, address="", **options):
            url = page_of(explore_model(model, tokeniser, text, words, **options)) + address
            shown.append(pages.enter_context(Opened(browser, url)))
            return shown[-1]

        yield open_it
        for opened in shown:
            assert not opened.complaints
            assert all(url.startswith(("file:", "blob:")) for url in opened.requests)


NAMES = {
    "run": ("texts", "ids", "probabilities", "attention"),
    "lens": ("lenses", "changes"),
    "written": ("ids",),
    "words": ("texts", "ids", "pieces", "unknown"),
    "text": ("text",),
    "said": ("probabilities", "likeliest"),
    "effects": ("kinds",),
}


def asked(opened, what, questions):
    """The engine's answers; "words", "text" and "said" are other parts of what "run" gives."""
    called = what if what in ("lens", "written", "effects") else "run"
    return opened.page.evaluate(ASK, [called, NAMES[what], questions])


def array(attention):
    return np.array(attention["weights"], dtype=np.float32).reshape(attention["shape"])


def assert_same_lens(lens, record):
    """A lens of the page is that of the library: words, relevances, and the most important word."""
    assert [word for word, _ in lens["source"]] == list(record.source_words)
    # attention of a recurrent translator has none
    written = record.written_words if record.written_scores else ()
    assert [word for word, _ in lens["written"]] == list(written)
    scores = [score for _, score in [*lens["source"], *lens["written"]]]
    expected = [*record.source_scores, *record.written_scores]
    assert scores == pytest.approx(expected, abs=5e-4)
    assert lens["others"] == list(record.others)
    assert lens["log_odds"] == pytest.approx(record.log_odds, abs=1e-4)
    assert expected[int(np.argmax(scores))] == pytest.approx(max(expected), abs=1e-6)


@torch.no_grad()
def assert_translates(opened, model, tokeniser, sources, lenses):
    runs = asked(opened, "run", [{"source": source} for source in sources])
    for source, run in zip(sources, runs, strict=True):
        ids = run["ids"]["target"]
        changes = without_each(model, tokeniser, source, ids, 40)
        assert tuple(run["texts"]["target"][:-1]) == changes[None].translation, source
        maps = look(model, tokeniser, source, ids).merged()
        for kind in run["attention"]:
            assert np.abs(array(run["attention"][kind]) - getattr(maps, kind).numpy()).max() <= 1e-5
        assert run["probabilities"] == pytest.approx(changes[None].probabilities, abs=1e-5)
    for source in sources[:lenses]:
        (run,) = asked(opened, "run", [{"source": source}])
        ids = run["ids"]["target"]
        last = len(run["texts"]["target"]) - 2
        contrasts = alternatives(model, tokeniser, source, ids, {0, last // 2, last})
        changes = without_each(model, tokeniser, source, ids, 40)
        answers = assert_explains(opened, model, tokeniser, {"source": source}, contrasts)
        for place, change in enumerate(answers[-1]["changes"]):
            assert change["probabilities"] == pytest.approx(changes[place].probabilities, abs=1e-4)
            word, chance = changes[place].likeliest[0][0]
            assert change["likeliest"][0][0] == [word, pytest.approx(chance, abs=1e-4)]


def assert_explains(opened, model, tokeniser, question, contrasts, shift=0):
    """The lenses of the page for some words are those of the library; returns the page's answers."""
    answers = asked(opened, "lens", [{**question, "place": place + shift} for place in contrasts])
    names = [
        "erase",
        "attention",
        *(["rollout"] if not isinstance(model, RecurrentTranslator) else []),
    ]
    for name in names:
        for answer, record in zip(
            answers,
            explain_contrasts(model, tokeniser, list(contrasts.values()), name),
            strict=True,
        ):
            (shown,) = [lens for lens in answer["lenses"] if lens["lens"] == name]
            assert_same_lens(shown, record)
    assert all(len(answer["lenses"]) == len(names) for answer in answers)
    return answers


@pytest.mark.parametrize("name", [*TRANSLATORS, *RECURRENT])
def test_a_translator_writes_and_explains_what_the_library_does(page_with, name):
    kind = TranslationTransformer if name in TRANSLATORS else RecurrentTranslator
    model = seeded(kind, {**TRANSLATORS, **RECURRENT}[name])
    short = ["It was.", "a"] if name == "plain" else []
    assert_translates(page_with(model), model, TOKENISER, ["The animal slept.", SOURCE, *short], 1)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_reads_and_continues_as_the_library_does(page_with, name):
    model = seeded(LanguageModel, LANGUAGE_MODELS[name])
    opened = page_with(model)
    text = "The animal didn't cross"
    (run,), (said,) = (asked(opened, what, [{"source": text}]) for what in ("run", "said"))
    assert (
        np.abs(
            array(run["attention"]["text"]) - look_text(model, TOKENISER, text).weights.numpy()
        ).max()
        <= 1e-5
    )
    changes = text_without_each(model, TOKENISER, text, 40)
    assert run["probabilities"] == pytest.approx(changes[None].probabilities, rel=1e-3)
    assert [candidates[0][0] for candidates in said["likeliest"]] == [
        candidates[0][0] for candidates in changes[None].likeliest
    ]
    contrasts = alternatives(model, TOKENISER, None, TOKENISER.encode(text), {1, 3})
    # after "<begin>"
    answers = assert_explains(opened, model, TOKENISER, {"source": text}, contrasts, 1)
    for place, change in enumerate(answers[-1]["changes"]):
        assert change["probabilities"] == pytest.approx(
            changes[place + 1].probabilities, rel=2e-3, abs=1e-6
        )
    (written,) = asked(opened, "written", [{"source": text, "most": 12}])
    ((expected,),) = Generator(model, TOKENISER).generate([text], max_tokens=12)
    assert written["ids"] == list(expected.ids)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder_masks_sorts_and_looks_as_the_library_does(page_with, name):
    model = seeded(TextEncoder, ENCODERS[name])
    text = "The animal was tired."
    opened = page_with(model)
    (run,) = asked(opened, "run", [{"source": text}])
    assert (
        np.abs(
            array(run["attention"]["text"]) - look_text(model, TOKENISER, text).weights.numpy()
        ).max()
        <= 1e-5
    )
    ids = torch.tensor([[BEGIN, *TOKENISER.encode(text), END]])
    if model.config.head == "classes":
        assert run["probabilities"] == pytest.approx(model(ids)[0].softmax(-1).tolist(), abs=1e-5)
    elif model.config.head == "words":
        (span,) = [span for word, span in TOKENISER.words(ids[0].tolist()) if word == "tired"]
        (run,) = asked(opened, "run", [{"source": text, "erase": [4]}])
        ids[0, list(span)] = UNKNOWN
        best = model(ids)[0, span.start].softmax(-1).max()
        assert run["probabilities"][0] == pytest.approx(float(best), abs=1e-5)
    (answer,) = asked(opened, "lens", [{"source": text, "place": 0}])
    for change in answer["changes"]:
        assert -1 <= min(change["similarities"]) <= max(change["similarities"]) <= 1.000001


def without_heads(model, off, scale=1.0):
    """A copy in which heads give nothing and every score is multiplied, by a loop over its layers."""
    changed = copy.deepcopy(model)
    layers = attention_layers(changed)
    for kind, layer, head in off:
        size = layers[kind, layer].head_dim
        layers[kind, layer].to_output.weight.data[:, head * size : (head + 1) * size] = 0
    for layer in layers.values() if scale != 1 else ():
        layer.options["scale"] = scale / layer.head_dim**0.5
    return changed


@torch.no_grad()
def test_heads_that_are_off_and_another_scale_are_those_of_a_changed_model(page_with):
    model = seeded(TranslationTransformer, {"heads": 4})
    opened = page_with(model)
    for off, scale in (
        ([["cross", 1, 2]], 1.0),
        ([["encoder", 0, 0], ["decoder", 1, 3]], 0.5),
        ([], 2.0),
    ):
        changed = without_heads(model, off, scale)
        run = opened.page.evaluate(
            "(asked) => regard.run(asked)", {"source": SOURCE, "off": off, "scale": scale}
        )
        ids = TOKENISER.encode(run["text"])
        expected = without_each(changed, TOKENISER, SOURCE, ids, 0)[None]
        assert tuple(run["target"][:-1]) == expected.translation
        if len(run["target"]) == len(expected.probabilities):
            maps = look(changed, TOKENISER, SOURCE, ids).merged()
            assert np.abs(np.array(run["attention"]["cross"]) - maps.cross.numpy()).max() <= 1e-5
    (run,) = asked(opened, "run", [{"source": SOURCE, "temperature": 2.5}])
    read = [*TOKENISER.encode(SOURCE), END]
    target = [BEGIN, *run["ids"]["target"]]
    shares = (model(torch.tensor([read]), torch.tensor([target]))[0] / 2.5).softmax(-1)
    first = TOKENISER.words([*target[1:], END])[0][1]
    expected = float(shares[list(first), target[1 : len(first) + 1]].prod())
    assert run["probabilities"][0] == pytest.approx(expected, rel=1e-4)
    for wrong, says in (
        ({"off": [["cross", 9, 0]]}, "There is no head cross.9.0"),
        ({"scale": 0}, "above 0"),
        ({"temperature": -1}, "temperature"),
        ({"patterns": {"encoder": "causal &"}}, "a pattern is missing"),
        ({"patterns": {"other": "full"}}, "no attention"),
    ):
        failed = "(asked) => regard.run(asked).catch((error) => error.message)"
        assert says in opened.page.evaluate(failed, {"source": "a", **wrong})


@torch.no_grad()
def assert_effects(opened, model, question, place, contrast):
    """The page's effects on a word, or on a class, are those of a loop by hand, and those of `ablate`."""

    def odds(off):
        changed = without_heads(model, off)
        if not isinstance(contrast, tuple):
            return ablate(changed, TOKENISER, [contrast], heads=[Head(*first)], by="zero").value
        shares = changed(torch.tensor([[BEGIN, *TOKENISER.encode(contrast[0]), END]]))[0].softmax(
            -1
        )
        return float(torch.logit(shares[contrast[1]]))

    layers = {layer: attention.heads for layer, attention in attention_layers(model).items()}
    first = (*next(iter(layers)), 0)
    (answer,) = asked(opened, "effects", [{**question, "place": place}])
    ablated = (
        {}
        if isinstance(contrast, tuple)
        else ablate(model, TOKENISER, [contrast], by="zero").by_layer()
    )
    whole = odds([])
    for (name, layer), heads in layers.items():
        effects = answer["kinds"]["text" if name == "self" else name]
        every = [(name, layer, head) for head in range(heads)]
        assert effects["layers"][layer] == pytest.approx(whole - odds(every), abs=1e-4)
        assert effects["heads"][layer] == pytest.approx(
            [whole - odds([head]) for head in every], abs=1e-4
        )
        if ablated:
            assert effects["heads"][layer] == pytest.approx(
                ablated[name]["effect on log odds"][layer].tolist(), abs=1e-4
            )


def test_effects_of_heads_are_those_of_ablation_by_zeros(page_with):
    model = seeded(TranslationTransformer, TRANSLATORS["grouped"])
    off = [["encoder", 0, 1], ["cross", 1, 0]]
    opened = page_with(model)
    for heads, changed in (([], model), (off, without_heads(model, off))):
        question = {"source": SOURCE, "off": heads}
        (run,) = asked(opened, "run", [question])
        place, contrast = alternatives(changed, TOKENISER, SOURCE, run["ids"]["target"]).popitem()
        assert_effects(opened, changed, question, place, contrast)
    model = seeded(LanguageModel, LANGUAGE_MODELS["llama"])
    text = "The animal didn't cross"
    contrast = alternatives(model, TOKENISER, None, TOKENISER.encode(text), {3})[3]
    # "<begin>" is a word of the page
    assert_effects(page_with(model), model, {"source": text}, 4, contrast)
    model = seeded(TextEncoder, ENCODERS["classes"])
    opened = page_with(model)
    (run,) = asked(opened, "run", [{"source": text}])
    assert_effects(opened, model, {"source": text}, 0, (text, int(np.argmax(run["probabilities"]))))


def test_heads_show_their_effects_on_the_word_that_is_chosen(page_with):
    opened = page_with(seeded(TranslationTransformer, {}), address="#view=heads")
    page, note = opened.page, opened.page.locator("[data-most]")
    words = page.get_by_role("toolbar", name="Words that are written").get_by_role("button")
    for place in (1, 0):
        words.nth(place).click()
        word = words.nth(place).inner_text().replace("end", "<end>")
        note.filter(has_text=f"the log odds of “{word}” rather than").wait_for()
        (effects,) = asked(opened, "effects", [{"source": SOURCE, "place": place}])
        page.get_by_role("combobox", name="Sort by").select_option("effect")
        largest = np.unravel_index(np.argmax(effects["kinds"]["cross"]["heads"]), (2, 2))
        row = page.locator(".twin tbody tr").first.locator("td, th").all_text_contents()
        assert [cell.strip() for cell in row[:2]] == [str(cell) for cell in largest]
        assert float(row[-1].replace("−", "-")) == pytest.approx(
            np.max(effects["kinds"]["cross"]["heads"]), abs=6e-4
        )


def test_the_heads_that_matter_most_are_found_among_those_of_every_attention(page_with):
    opened = page_with(seeded(TranslationTransformer, {}), address="#view=heads")
    page = opened.page
    kinds = {"cross": "Cross-attention", "encoder": "Encoder", "decoder": "Decoder"}
    words = page.get_by_role("toolbar", name="Words that are written").get_by_role("button")
    shown = set()
    for place in (0, 1):
        words.nth(place).click()
        word = words.nth(place).inner_text().replace("end", "<end>")
        page.locator("[data-most]", has_text=f"“{word}”").wait_for()
        (found,) = asked(opened, "effects", [{"source": SOURCE, "place": place}])
        order = []
        for kind, effects in found["kinds"].items():
            for layer, heads in enumerate(effects["heads"]):
                order += [(effect, kind, f"{layer}.{head}") for head, effect in enumerate(heads)]
        order.sort(reverse=True)
        text = " ".join(page.locator("[data-most]").inner_text().split())
        assert f"Of all {len(order)} heads of this model" in text
        named = page.locator("[data-most] button").all_inner_texts()
        for name, (_, kind, head) in zip(named, order[:3], strict=True):
            assert name.startswith(kinds[kind])
            assert name.endswith(head_name(head))
        effect = order[0][0]
        assert f"{head_name(order[0][2])} (by {effect:.2f})" in text
        own = re.search(r"fall from (\S+):", page.locator("[data-effects]").inner_text())[1]
        left = 1 / (1 + np.exp(effect - float(own.replace("−", "-"))))
        assert ("No head decides it alone." in text) == (left > 0.5)
        assert f"probability among these words is {said(left)}" in text
        shown |= {kind for _, kind, _ in order[:3]}
        page.locator("[data-most] button").first.click()
        page.locator("canvas.heatmap").wait_for()  # the head is shown large
        for name, wanted in zip(("Layer", "Head"), order[0][2].split("."), strict=True):
            box = page.get_by_role("combobox", name=name, exact=True)
            assert box.input_value() == wanted
        chosen = page.get_by_role("combobox", name="Attention").locator("option:checked")
        assert chosen.inner_text().strip().startswith(kinds[order[0][1]])
        opened.view("Heads")
    assert len(shown) > 1  # else nothing is compared between kinds


WRITTEN = {
    "causal": "causal",
    "full": "full",
    "sliding_window": "sliding_window(5)",
    "causal_window": "causal_window(3)",
    "diagonals": "diagonals(2, all) & diagonals(back=all, ahead=-1)",
    "prefix": "prefix(3) & ~causal",
    "key_span": "key_span(2, stop=9) | key_span(11)",
    "lattice": "lattice(3)",
    "strided": "strided(4, local=false)",
    "dilated_window": "dilated_window(5, 2)",
    "same_block": "same_block(5, offset=2) | strided(6)",
    "summary": "summary(4, 2)",
    "fixed": "fixed(5, summary=2) & ~fixed(3, local=false)",
    "key_set": "key_set(1, 4..6)",
    "query_set": "query_set(0..2, 9)",
    "global_tokens": "global_tokens(3, 7..8)",
    "random_blocks": "random_blocks(2, block=3, seed=5) | random_blocks(1, block=2, seed=-9, past=true)",
    "per_head": "per_head(causal & strided(3), ~(prefix(2) | causal_window(2)))",
}


def test_every_pattern_that_a_text_can_hold_is_that_of_the_library(page_with):
    kinds = Pattern.registry.of_package("regard.patterns")
    assert {*WRITTEN, *ON_GRIDS, "compressed"} == {
        name for name, kind in kinds.items() if kind.no_text is None
    }
    opened = page_with(seeded(TextEncoder, {"layers": 1, "head": "none"}))
    count = 14
    text = " ".join(["animal"] * (count - 2))
    for written in WRITTEN.values():
        (run,) = asked(opened, "run", [{"source": text, "patterns": {"text": written}}])
        seen = array(run["attention"]["text"])[0] > 0
        dense = parse(written).dense(count, count).numpy()
        assert (seen == np.broadcast_to(dense.reshape(-1, count, count), seen.shape)).all(), written


def texts_of_any_letters(count):
    draw = random.Random(1)
    parts = [*"aT'’é -…ß中1\u00a0\u202f\u200d\ufeff\x85\x1c\n", "e\u0301", "😀", "ก็"]
    texts = []
    for _ in range(count):
        letters = [draw.choice([*parts, chr(draw.randrange(1, 0x2FF))]) for _ in range(16)]
        texts.append("".join(letters))
    return texts


@pytest.mark.parametrize("kind", ["bpe", "character", "byte", "verbatim", "typographic", "trimmed"])
def test_texts_become_the_ids_and_words_of_the_tokeniser(page_with, kind):
    lines = [SOURCE, TARGET, "L’été est là\u202f?", "我有2只 cats"]
    options = {
        "byte": {"vocab_size": 260, "kind": "byte"},
        "character": {"kind": "character"},
        "verbatim": {"verbatim": True},
        "typographic": {"targets": lines},
        "trimmed": {"trim": True},
    }.get(kind, {})
    tokeniser = Tokeniser.train(lines * 3, **{"vocab_size": 330, **options})
    torch.manual_seed(0)
    model = LanguageModel(
        LanguageModel.Config(vocab_size=tokeniser.vocab_size, dim=8, heads=1, layers=1)
    )
    seen = SeenWords.of([*lines, "👍 🇩🇪 ≠"])
    if kind == "byte":  # as lists of earlier versions are
        seen = replace(seen, symbols=None)
    opened = page_with(model, tokeniser, "a", seen)
    hard = [SOURCE, "Animal crossings: the street didn't cross the Zebra. «the»", "我有3只cats"]
    hard += ["≠$👍🏽🏽👎🏽 🇩🇪🇩🇫🇷 👩\u200d🚀\ufe0f≠\u0301 5€"]
    texts = [*texts_of_any_letters(120), *hard]
    for text, run in zip(
        texts, asked(opened, "words", [{"source": text} for text in texts]), strict=True
    ):
        ids = tokeniser.encode(text)
        assert run["ids"]["source"] == [BEGIN, *ids], ascii(text)
        assert run["texts"]["text"] == [word for word, _ in tokeniser.words([BEGIN, *ids])], ascii(
            text
        )
        assert run["pieces"]["text"] == tokeniser.pieces([BEGIN, *ids]), ascii(text)
        assert run["unknown"] == list(seen.unknown(tokeniser.reads(text))), ascii(text)


@torch.no_grad()
def test_a_page_in_int8_computes_the_rounded_model_and_states_its_difference(page_with):
    model = seeded(TranslationTransformer, {"dim": 32})
    rounded = copy.deepcopy(model)
    rounded.load_state_dict(restored(model))
    (translation,) = Translator(model, TOKENISER).translate([SOURCE], max_tokens=40)
    opened = page_with(model, target_ids=translation.ids, precision="int8")
    assert_translates(opened, rounded, TOKENISER, [SOURCE], 0)
    said = re.search(
        r"differ from those in float32 by at most (\d\.\d+)",
        opened.page.locator("footer").inner_text(),
    )
    before, after = (look(read, TOKENISER, SOURCE, translation.ids) for read in (model, rounded))
    apart = (
        getattr(before, kind) - getattr(after, kind) for kind in ("cross", "encoder", "decoder")
    )
    farthest = max(float(difference.abs().max()) for difference in apart)
    assert 0 < farthest <= float(said[1]) < farthest + 1e-3


@pytest.mark.parametrize("part", ["model", "tensors"])
def test_a_changed_byte_of_the_model_is_refused_with_a_sentence(browser, tmp_path, part):
    html = to_page(explore_model(translator(), TOKENISER, SOURCE)).html
    byte = html.index(f'id="regard-{part}">') + 400
    path = tmp_path / "page.html"
    path.write_text(html[:byte] + ("a" if html[byte] != "a" else "b") + html[byte + 1 :])
    with Opened(browser, path.as_uri()) as opened:
        said = opened.page.locator("[role=alert]").inner_text()
        assert said.startswith("The model in this page was changed or damaged")


def test_hostile_texts_stay_text(page_with):
    model = seeded(TranslationTransformer, {})
    words = SeenWords(frozenset(word for word in PAYLOADS[:-1] if word and word.isprintable()), 99)
    opened = page_with(
        model, words=words, text="</script><script>window.ran=1</script> <b>&lt;", asked=None
    )
    for text in [payload for payload in PAYLOADS[:-1] if payload.strip()][:16]:
        opened.write(text)
        opened.page.wait_for_timeout(30)
    opened.view("What if")
    assert opened.page.evaluate("window.ran") is None
    assert opened.page.locator("main script, main b, main img").count() == 0


def drawn_pairs(page, text):
    """The number of pairs that stands beside a pattern; until they are listed, those of the last one stay."""
    page.locator("main .summary code").get_by_text(text, exact=True).wait_for()
    return int(re.search(r"(\d+) of \d+ pairs", page.locator("main .summary").inner_text())[1])


def drag(page, begin, end):
    """Draw with the mouse from one pair of the pattern's map to another."""
    canvas = page.locator("canvas.pattern")
    canvas.scroll_into_view_if_needed()
    place = canvas.evaluate("(map) => map.place")
    box = canvas.bounding_box()
    left = box["x"] + place["left"]
    top = box["y"] + place["top"]

    def middle(pair):
        row, column = pair
        return left + (column + 0.5) * place["cell"], top + (row + 0.5) * place["cell"]

    page.mouse.move(*middle(begin))
    page.mouse.down()
    page.mouse.move(*middle(end), steps=5)
    page.mouse.up()


def test_a_reader_types_erases_switches_off_and_sends_a_link(browser, page_with):
    model = seeded(TranslationTransformer, {})
    seen = SeenWords.of([SOURCE])
    opened = page_with(model, words=seen, pronouns=PRONOUNS)
    page = opened.page
    opened.write("The zebra cr")
    page.locator(".unknown").filter(has_text="zebra").wait_for()
    assert page.locator("#known option").evaluate_all("all => all.map((one) => one.value)") == [
        "The zebra cross"
    ]
    opened.write("The animal slept.")
    read = page.get_by_role("toolbar", name="Words that are read")
    read.get_by_role("button", name="animal").click()
    read.locator("[aria-pressed=true]", has_text="animal").wait_for()
    opened.view("Heads")
    picture = "document.querySelector('canvas.heads').toDataURL()"
    plain = page.evaluate(picture)
    read.get_by_role("button", name="slept").hover()
    # the word is marked in every head
    page.wait_for_function(f"(plain) => {picture} !== plain", arg=plain)
    opened.view("Heat map")
    page.get_by_role("combobox", name="Head", exact=True).select_option("1")
    page.get_by_role("button", name="Switch off head 1 of layer 1").click()
    page.get_by_role("button", name="Close", exact=True).click()  # changes stand where the form was
    page.get_by_role("button", name="head 1 of layer 1 off").wait_for()
    page.get_by_text("Change the model", exact=True).click()
    page.get_by_role("textbox", name="Pattern, encoder").fill("causal")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('masks=encoder')")
    link = page.url
    opened.view("Pattern")
    sides = [TOKENISER.pieces([*TOKENISER.encode("The animal slept."), END])] * 2
    assert drawn_pairs(page, "causal") == int(Causal().dense(len(sides[0]), len(sides[0])).sum())
    drag(page, (1, 3), (1, 5))
    page.wait_for_function("() => location.hash.includes('query_set')")
    text = "causal | (query_set(1) & key_set(3..5))"
    drawn_pairs(page, text)
    assert page.get_by_role("textbox", name="Pattern, encoder").last.input_value() == text
    drag(page, (4, 2), (4, 2))
    page.wait_for_function("() => location.hash.includes('%7E')")
    text = "(causal | (query_set(1) & key_set(3..5))) & ~(query_set(4) & key_set(2))"
    assert drawn_pairs(page, text) == int(parse(text).dense(len(sides[0]), len(sides[0])).sum())
    assert page.get_by_role("textbox", name="Pattern, encoder").last.input_value() == text
    # the sentence that the pointer wrote over is written again
    page.locator("canvas.pattern").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    page.wait_for_function("() => location.hash.includes('query_set%284..5%29')")
    page.get_by_role("slider", name="Window, encoder").last.fill("1")
    page.wait_for_function("() => location.hash.includes('sliding_window%282%29')")
    page.get_by_role("slider", name="divided").fill("1")
    page.wait_for_function("() => location.hash.includes('warmth=2&')")
    page.get_by_role("textbox", name="Pattern, decoder").first.fill("causal_window(3)")
    page.keyboard.press("Enter")
    page.locator("label", has_text="Window 2 back").wait_for()
    run = page.evaluate(
        "(asked) => regard.run(asked)",
        {
            "source": "The animal slept.",
            "erase": [1],
            "off": [["cross", 1, 1]],
            "patterns": {"encoder": "causal"},
        },
    )
    with Opened(browser, link) as reopened:
        shown = reopened.page.locator(".written .t").all_inner_texts()
        assert shown == [word.replace("<end>", "end") for word in run["target"]]
        reopened.page.get_by_text("Change the model", exact=True).click()
        reopened.page.get_by_role("button", name="Undo all changes").click()
        reopened.page.wait_for_function("() => location.hash.includes('off=&')")
        assert not reopened.complaints
    with Opened(browser, re.sub("masks=[^&]*", "masks=encoder:nothing", link)) as broken:
        assert "there is no pattern" in broken.page.get_by_role("alert").inner_text()


@pytest.mark.slow
def test_a_trained_translator_is_the_same_in_a_page_on_its_test_split(page_with, tmp_path):
    command = [sys.executable, "-m", "regard_lab", "demo", "--steps", "900", "--out", "run"]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    translator = Translator.load(tmp_path / "run")
    lines = (tmp_path / "run" / "test.jsonl").read_text("utf-8").splitlines()[:500]
    sources = [json.loads(line)["source"] for line in lines]
    model = translator.model
    tokeniser = translator.tokeniser
    opened = page_with(model, tokeniser, words=translator.words)
    answers = asked(opened, "text", [{"source": source} for source in sources])
    for answer, translation in zip(answers, translator.translate(sources), strict=True):
        assert answer["text"] == translation.text
    assert_translates(opened, model, tokeniser, sources, 100)


def test_a_served_page_asks_for_the_steps_of_its_own_text_and_for_nothing_else(browser):
    steps = []

    def walk(text):
        steps.append(text)
        return shown_walk(walked())

    page = explore_model(seeded(TranslationTransformer, {}), TOKENISER, SOURCE)
    with ExplorerServer(page, walk=walk).start() as server, Opened(browser, server.url) as opened:
        opened.write("The animal slept.")
        opened.page.wait_for_function("() => location.hash.includes('slept')")
        opened.view("Walk-through")
        opened.page.locator(".step").press("End")
        opened.page.locator(".step", has_text="The likeliest words").wait_for()
        assert steps == ["The animal slept."]
        assert [url for url in opened.requests if not url.startswith("blob:")] == [
            server.url,
            f"{server.url}walk",
        ]
        assert not opened.complaints


@needs_axe
def test_a_page_that_computes_is_accessible(browser, page_of):
    model = seeded(TranslationTransformer, {})
    seen = SeenWords.of([SOURCE])
    address = page_of(explore_model(model, TOKENISER, "The zebra slept.", seen))
    with Opened(browser, f"{address}#factor=2", bypass_csp=True) as opened:
        for view in ("Reader", "Heads", "What if"):
            opened.view(view)
            assert_accessible(opened, view)


def test_models_that_a_page_cannot_compute_are_named_with_the_reason():
    for kind, settings, says in (
        (RecurrentTranslator, {"attention": "none"}, "has none"),
        (LanguageModel, {"latent_dim": 4}, "has latents"),
        (LanguageModel, {"mechanism": "linear_transformer"}, "linear_transformer"),
        (TranslationTransformer, {"encoder_mechanism": "linformer(length=8, rank=4)"}, "linformer"),
        (LanguageModel, {"vocab_size": 80_000, "dim": 256}, "at most 20,000,000"),
    ):
        assert says in reason_against(
            kind(kind.Config(**{"vocab_size": 300, "dim": 16, **settings}))
        )
    assert reason_against(seeded(TextEncoder, {})) is None
