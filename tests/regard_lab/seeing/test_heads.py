"""Which heads matter: effects against loops by hand, heads whose answers are known, and the parts of a score."""

import json
import math
from itertools import product

import pytest
import torch
from planted import HEADS, induction_model
from small_models import (
    CONTRASTS,
    SENTENCES,
    TOKENISER,
    language_model,
    odds_by_hand,
    recurrent,
    small_model,
)

from regard.errors import ArgumentError, UnsupportedError
from regard.layers.recording import record_attention
from regard_lab.models import TextEncoder
from regard_lab.seeing import look_text
from regard_lab.seeing.heads import Head, ablate, head_scores, patch, score_parts
from regard_lab.seeing.heads.replacing import recording, replacing
from regard_lab.seeing.lenses import Contrast
from regard_lab.text import BEGIN, END, UNKNOWN, Pair, score

PAIRS = [(sentence.source, sentence.target) for sentence in SENTENCES[:3]]
TEXTS = [sentence.source for sentence in SENTENCES[:3]]
PROJECTIONS = {
    "encoder": "encoder.{}.attention",
    "decoder": "decoder.{}.self_attention",
    "cross": "decoder.{}.cross_attention",
    "self": "blocks.{}.attention",
}


def encoder(**choices):
    torch.manual_seed(0)
    chosen = {"dim": 16, "heads": 2, "layers": 2, "dropout": 0.0, **choices}
    return TextEncoder(TextEncoder.Config(vocab_size=TOKENISER.vocab_size, **chosen)).eval()


def with_projection(model, head, change, run):
    """A run in which the slice of a head, in what its output projection reads, is changed; by hand."""
    projection = model.get_submodule(PROJECTIONS[head.attention].format(head.layer) + ".to_output")
    forward_of_projection = projection.forward
    size = projection.in_features // 2

    def forward(x):
        x = x.clone()
        part = slice(head.head * size, (head.head + 1) * size)
        x[..., part] = change(x[..., part])
        return forward_of_projection(x)

    projection.forward = forward
    try:
        with torch.no_grad():
            return run()
    finally:
        del projection.forward


def mean_by_hand(model, head, runs):
    seen = []
    for run in runs:
        with_projection(model, head, lambda x: seen.append(x.flatten(0, -2)) or x, run)
    return torch.cat(seen).mean(0)


def outputs_of_head(model, head, contrast):
    """What a head returns on a text, (1, length, v_dim), and its last row again and again for longer texts."""
    outputs = []
    with_projection(
        model, head, lambda x: outputs.append(x) or x, lambda: odds_by_hand(model, contrast)
    )
    return torch.cat([outputs[0], outputs[0][:, -1:].expand(-1, 64, -1)], 1)


def losses_by_hand(model, text):
    """The summed loss of a text, and the number of its ids."""
    if isinstance(text, tuple):
        target = TOKENISER.encode_target(text[1])
        logits = model(
            torch.tensor([[*TOKENISER.encode(text[0]), END]]), torch.tensor([[BEGIN, *target]])
        )[0]
        right = [*target, END]
    elif isinstance(model, TextEncoder):
        ids = [BEGIN, *TOKENISER.encode(text), END]
        right = ids[1:-1]
        places = range(1, len(ids) - 1)
        masked = torch.tensor([ids] * len(right))
        masked[range(len(right)), places] = UNKNOWN
        logits = model(masked)[range(len(right)), places]
    else:
        ids = torch.tensor([[BEGIN, *TOKENISER.encode(text)]])
        logits = model(ids[:, :-1])[0]
        right = ids[0, 1:].tolist()
    return -float(logits.log_softmax(-1)[range(len(right)), right].sum()), len(right)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("model", "texts"),
    [(small_model(), PAIRS), (language_model(), TEXTS), (encoder(), TEXTS[:2])],
    ids=["translator", "language", "encoder"],
)
@pytest.mark.parametrize("by", ["mean", "zero"])
def test_effects_on_the_loss_equal_a_loop_by_hand(model, texts, by):
    ablation = ablate(model, TOKENISER, texts, by=by)
    runs = [lambda text=text: losses_by_hand(model, text) for text in texts]
    losses = []
    counts = []
    for run in runs:
        with torch.no_grad():
            loss, count = run()
        losses.append(loss)
        counts.append(count)
    ids = sum(counts)
    assert ablation.value == pytest.approx(sum(losses) / ids, abs=1e-5)
    for head, effect in ablation.effects.items():
        instead = mean_by_hand(model, head, runs) if by == "mean" else torch.zeros(())
        falls = []
        squares = 0.0  # of the differences from the mean fall
        for run, loss, count in zip(runs, losses, counts, strict=True):
            without, _ = with_projection(model, head, lambda x, new=instead: new.expand_as(x), run)
            falls.append(without - loss)
            squares += (falls[-1] - effect.effect * count) ** 2
        assert effect.effect == pytest.approx(sum(falls) / ids, abs=1e-5)
        error = math.sqrt(len(texts) / (len(texts) - 1) * squares) / ids
        assert effect.error == pytest.approx(error, abs=1e-5)


def takes_other_texts(texts):
    """Whether no row takes the outputs of its own text."""
    return all(text != row for row, text in enumerate(texts))


def test_effects_on_log_odds_equal_a_loop_by_hand_for_other_texts_too():
    model = small_model()
    contrasts = CONTRASTS[:4]
    heads = ["encoder 0.1", "decoder 1.0", "cross 0.0"]
    unchanged = [odds_by_hand(model, contrast).item() for contrast in contrasts]
    effects = ablate(model, TOKENISER, contrasts, by="resample", seed=3, heads=heads).effects

    def odds_with(contrast, head, outputs):
        return with_projection(
            model,
            head,
            lambda x: outputs[:, : x.shape[1]],
            lambda: odds_by_hand(model, contrast).item(),
        )

    for head, effect in effects.items():
        outputs = [outputs_of_head(model, head, contrast) for contrast in contrasts]
        after = []  # by contrast, and by the text whose outputs it gets
        for contrast in contrasts:
            after.append([odds_with(contrast, head, of_text) for of_text in outputs])

        def fall(texts, after=after):
            return sum(unchanged[row] - after[row][text] for row, text in enumerate(texts)) / 4

        every_choice = filter(takes_other_texts, product(range(4), repeat=4))
        drawn = min(every_choice, key=lambda texts, effect=effect: abs(fall(texts) - effect.effect))
        assert effect.effect == pytest.approx(fall(drawn), abs=1e-5)
        odds = [after[row][text] for row, text in enumerate(drawn)]
        flipped = sum(before > 0 >= later for before, later in zip(unchanged, odds, strict=True))
        assert effect.flips == flipped / 4
    of_another_seed = ablate(model, TOKENISER, contrasts, by="resample", seed=4, heads=heads)
    assert effects != of_another_seed.effects


@torch.no_grad()
def test_a_head_is_replaced_at_the_same_positions_when_texts_are_written_step_by_step():
    model = small_model()
    heads = [Head("decoder", 0, 1), Head("cross", 1, 0), Head("encoder", 1, 1)]
    source = torch.tensor([CONTRASTS[0].source] * 3)
    target = torch.tensor([CONTRASTS[0].written] * 3)
    with recording(model) as outputs:
        model(torch.tensor([CONTRASTS[1].source]), target[:1].flip(1))
    with replacing(model, heads, outputs):
        whole = model(source, target)
    with replacing(model, heads, outputs):
        state = model.start(source)
        steps = torch.stack([model.step(ids, state) for ids in target.T], 1)
    assert torch.allclose(steps, whole, atol=1e-5)
    assert (model(source, target) - whole).abs().amax((1, 2)).min() > 1e-3


def test_a_patched_head_is_that_of_the_other_text():
    model = small_model()
    into = CONTRASTS[0]
    longer = next(
        contrast for contrast in CONTRASTS[1:] if len(contrast.source) >= len(into.source)
    )
    as_long = {"source": longer.source[: len(into.source)], "written": into.written}
    source = Contrast(**{**vars(longer), **as_long})
    patched = patch(model, TOKENISER, [(source, into)])
    for head, effect in patched.effects.items():
        outputs = []
        with_projection(
            model,
            head,
            lambda x, outputs=outputs: outputs.append(x) or x,
            lambda: odds_by_hand(model, source),
        )
        after = with_projection(
            model, head, lambda x, outputs=outputs: outputs[0], lambda: odds_by_hand(model, into)
        )
        assert effect.effect == pytest.approx(patched.value - after.item(), abs=1e-5)
    same = patch(model, TOKENISER, [(into, into)])
    assert all(abs(effect.effect) < 1e-5 for effect in same.effects.values())
    shorter = Contrast(**{**vars(into), "source": into.source[1:]})
    with pytest.raises(ArgumentError, match="equally many ids"):
        patch(model, TOKENISER, [(shorter, into)])


def test_effects_on_bleu_equal_a_greedy_search_by_hand():
    model = small_model()
    head = Head("cross", 1, 0)
    pairs = [("The cat.", "Die Katze schlief."), ("It slept.", "a")]
    ablation = ablate(model, TOKENISER, pairs, heads=["cross 1.0"], measure="bleu", by="zero")

    def greedily(pair):
        ids = []
        read = torch.tensor([[*TOKENISER.encode(pair[0]), END]])
        for _ in range(2 * read.shape[1] + 16):
            logits = model(read, torch.tensor([[BEGIN, *ids]]))[0, -1]
            logits[[0, BEGIN]] = -torch.inf
            ids.append(int(logits.argmax()))
            if ids[-1] == END:
                break
        if ids[-1] == END:
            ids.pop()
        return TOKENISER.decode(ids)

    unchanged = []
    without = []
    for pair in pairs:
        with torch.no_grad():
            unchanged.append(greedily(pair))
        without.append(
            with_projection(model, head, lambda x: 0 * x, lambda pair=pair: greedily(pair))
        )
    assert unchanged != without
    right = [target for _, target in pairs]
    assert ablation.value == pytest.approx(score(unchanged, right).bleu)
    assert ablation.effects[head].effect == pytest.approx(
        score(unchanged, right).bleu - score(without, right).bleu
    )


def continuing(seed):
    """Texts of ten ids and the first five again: the right next id against three that were read too."""
    generator = torch.Generator().manual_seed(seed)
    contrasts = []
    for _ in range(4):
        ids = (4 + torch.randperm(20, generator=generator)[:10]).tolist()
        words = []
        for place, written in enumerate([*ids, *ids[:5]]):
            words.append((str(written), range(place, place + 1)))
        contrasts.append(
            Contrast(
                word="a",
                others=("b",),
                of=ids[5],
                instead_of=tuple(ids[6:9]),
                source=(),
                written=(*ids, *ids[:5]),
                source_words=(),
                written_words=tuple(words),
                place=15,
            )
        )
    return contrasts


@pytest.mark.parametrize("seed", range(4))
def test_planted_heads_are_found_before_any_other(seed):
    previous, induction = divmod(5 * seed + 3, HEADS)
    previous %= HEADS
    planted = [Head("self", 0, previous), Head("self", 1, induction)]
    model = induction_model(previous, induction, seed)
    for by in ("mean", "zero", "resample"):
        ablation = ablate(model, TOKENISER, continuing(seed), by=by)
        assert set(ablation.ranked[:2]) == set(planted)
        assert ablation.effects[ablation.ranked[1]].effect > 20 * abs(
            ablation.effects[ablation.ranked[2]].effect
        )
    scores = head_scores(model, length=12, texts=3, seed=seed)
    for name, head in zip(("previous", "induction"), planted, strict=True):
        first, second = sorted(scores[name].values())[::-1][:2]
        assert scores[name][head] == first > 0.95
        assert second < 0.2


def test_the_parts_of_an_induction_score_are_the_words_before():
    model = induction_model(1, 2, vocab=TOKENISER.vocab_size)
    text = "the was the"  # words of one sub-word
    words = look_text(model, TOKENISER, text).words
    # "the" looks at what followed "the"
    parts = score_parts(model, TOKENISER, text, "1.2", query=3, key=2)
    (query, key, largest), (_, _, second) = parts.pairs(2)
    assert (words[3], words[2], query, key) == ("the", "was", "the", "the")
    # "the" at the query, the first "the" at the key
    assert parts.parts.abs().argmax() == 3 * (len(words) + 1) + 1
    assert largest > 10 * abs(second)
    assert parts.weight > 0.9


@pytest.mark.parametrize(
    "model",
    [
        language_model(),
        language_model(positions="alibi", norm="layer", biases=True),
        language_model(kv_heads=1),
        language_model(positions="sinusoidal"),
        encoder(),
        encoder(positions="learned", norm="rms", layers=3),
    ],
)
def test_the_parts_of_a_score_add_up_to_it(model):
    text = TEXTS[0]
    with torch.no_grad():  # fresh ones are 0
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.normal_().mul_(0.3)
    ids = [BEGIN, *TOKENISER.encode(text), *([END] if isinstance(model, TextEncoder) else [])]
    with torch.no_grad(), record_attention(model, ["weights", "log_sum_exp"]) as recording:
        model(torch.tensor([ids]))
    spans = TOKENISER.words(ids)
    for layer in range(model.config.layers):
        (detail,) = recording[f"blocks.{layer}.attention"]
        parts = score_parts(model, TOKENISER, text, Head("self", layer, 1), query=4, key=2)
        row = spans[4][1].stop - 1
        column = spans[2][1].stop - 1
        score = detail.weights[0, 1, row, column].log() + detail.log_sum_exp[0, 1, row]
        assert parts.score == pytest.approx(score.item(), abs=1e-4)
        assert float(parts.parts.sum()) + parts.bias == pytest.approx(parts.score, abs=1e-4)
        assert (parts.bias != 0) == (model.config.positions == "alibi")
        assert bool(parts.parts[-1].any()) == model.config.biases
        if layer == 0:
            elsewhere = parts.parts.clone()
            elsewhere[[4, -1]] = 0
            assert not elsewhere.any()  # before any layer a position holds its own word alone


def test_scores_of_a_translator_are_those_of_both_stacks():
    model = small_model()
    scores = head_scores(model, length=5, texts=2)
    assert {head.attention for head in scores["previous"]} == {"encoder", "decoder"}
    effects = ablate(model, TOKENISER, PAIRS, heads=["encoder 0.1", "cross 1.0"])
    tables = effects.by_layer()
    assert tables["cross"]["effect on loss"][1, 0] == pytest.approx(
        effects.effects[Head("cross", 1, 0)].effect
    )
    assert json.loads(json.dumps(effects.to_dict()))["heads"][0]["name"] == str(effects.ranked[0])


def test_effects_over_more_and_more_texts_end_with_those_of_all():
    model = language_model()
    texts = [*TEXTS, "the cat", "a street was wide"]
    reported = []
    ablate(model, TOKENISER, texts, progress=reported.append)
    assert [effects.texts for effects in reported] == sorted(
        {effects.texts for effects in reported}
    )
    assert reported[-1].texts == len(texts) == reported[0].asked
    assert reported[-1].effects == ablate(model, TOKENISER, texts).effects
    assert model.training is False


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: ablate(small_model(), TOKENISER, PAIRS, heads=["cross 7.0"]),
            ArgumentError,
            "no head 'cross 7.0'",
        ),
        (
            lambda: ablate(small_model(), TOKENISER, PAIRS, heads=["first"]),
            ArgumentError,
            "layer.head",
        ),
        (lambda: ablate(small_model(), TOKENISER, PAIRS, by="median"), ArgumentError, "mean"),
        (
            lambda: ablate(small_model(), TOKENISER, PAIRS, measure="log odds"),
            ArgumentError,
            "contrasts",
        ),
        (lambda: ablate(small_model(), TOKENISER, []), ArgumentError, "0 texts"),
        (
            lambda: ablate(small_model(), TOKENISER, PAIRS[:1], by="resample"),
            ArgumentError,
            "one was given",
        ),
        (lambda: ablate(language_model(), TOKENISER, ["a b", ""]), ArgumentError, "text 1 of 2"),
        (
            lambda: ablate(language_model(), TOKENISER, TEXTS, measure="bleu"),
            UnsupportedError,
            "BLEU",
        ),
        (
            lambda: ablate(recurrent(attention="bahdanau"), TOKENISER, PAIRS),
            UnsupportedError,
            "RecurrentTranslator",
        ),
        (lambda: ablate(encoder(head="none"), TOKENISER, TEXTS), ArgumentError, "head is 'none'"),
        (lambda: head_scores(language_model(), length=10**4), ArgumentError, "vocabulary"),
        (
            lambda: score_parts(small_model(), TOKENISER, "a", "0.0", 0, 0),
            ArgumentError,
            "LanguageModel",
        ),
        (
            lambda: score_parts(language_model(), TOKENISER, "the cat", "0.0", 1, 2),
            ArgumentError,
            "no weight",
        ),
        (
            lambda: score_parts(language_model(), TOKENISER, "the cat", "0.0", 1, 9),
            ArgumentError,
            "words 0 to",
        ),
        (
            lambda: score_parts(
                language_model(mechanism="performer(8, seed=0)"), TOKENISER, "the cat", "0.0", 1, 0
            ),
            UnsupportedError,
            "no scores",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("text", [("a", "b", "c"), ("a",), ()])
def test_a_tuple_that_is_no_pair_is_refused_with_a_sentence(text):
    with pytest.raises(ArgumentError, match="is no text for a TranslationTransformer"):
        ablate(small_model(), TOKENISER, [text])


def test_a_classifier_refuses_a_pair_of_texts():
    classifier = encoder(head="classes", classes=3)
    with pytest.raises(ArgumentError, match="is no text for a TextEncoder whose head is 'classes'"):
        ablate(classifier, TOKENISER, [Pair("a", "b")])


@pytest.mark.parametrize("pair", [("a", "b"), (CONTRASTS[0],), (*CONTRASTS[:2], CONTRASTS[0])])
def test_only_pairs_of_contrasts_are_patched(pair):
    with pytest.raises(ArgumentError, match="it needs pairs of contrasts"):
        patch(small_model(), TOKENISER, [pair])
