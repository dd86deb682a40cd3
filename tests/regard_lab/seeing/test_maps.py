"""What models looked at: all weights between ids and between words, and the words that one word looked at most."""

import pytest
import torch
from small_models import TOKENISER, random_maps, recurrent, small_model

from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers import record_attention
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.seeing import AttentionMaps, look
from regard_lab.seeing.maps import KINDS, look_batch, look_text
from regard_lab.seeing.referents import it_weights
from regard_lab.seeing.watching import merge
from regard_lab.text import BEGIN, END, PAD, Tokeniser
from regard_lab.text.batches import make_batch
from regard_lab.text.pronouns import make_split

SOURCE = "The rhinoceros didn't cross the street."
TARGET = "Das Nashorn überquerte die Straße nicht."
HOSTILE = [
    "$x^2$",
    "<script>alert('x')</script>",
    "猫 😀",
    "שלום عالم",
    "",
    "one\ntwo\x07\u202e",
    "__init__ " * 9,
]


def weights_of(maps):
    return {kind: getattr(maps, kind) for kind in KINDS}


def test_rows_sum_to_one_between_ids_and_between_words():
    maps = look(small_model(), TOKENISER, SOURCE, TOKENISER.encode(TARGET))
    for some_maps in (maps, maps.merged()):
        for kind, weights in weights_of(some_maps).items():
            assert weights.dtype == torch.float32
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), msg=kind)


def sum_of_pairs(weights, rows, columns):
    total = 0.0
    for row in rows:
        for column in columns:
            total += weights[..., row, column]
    return total


def test_merging_sums_over_what_is_read_and_averages_over_what_reads():
    source = TOKENISER.encode(SOURCE) + [END]
    target = TOKENISER.encode(TARGET) + [END]
    maps = look(small_model(), TOKENISER, SOURCE, target[:-1])
    merged = maps.merged()
    source_words = TOKENISER.words(source)
    target_words = TOKENISER.words(target)
    read_words = TOKENISER.words([BEGIN, *target[:-1]])
    assert max(len(places) for _, places in target_words) > 1, (
        "the case needs a word of several ids"
    )
    assert merged.source_words == tuple(word for word, _ in source_words)
    assert merged.target_words == tuple(word for word, _ in target_words)
    assert merged.read_words == tuple(word for word, _ in read_words)
    sides = {
        "encoder": (source_words, source_words),
        "decoder": (target_words, read_words),
        "cross": (target_words, source_words),
    }
    for kind, (rows, columns) in sides.items():
        by_words = getattr(merged, kind)
        by_ids = getattr(maps, kind)
        for row, (_, reading) in enumerate(rows):
            for column, (_, read) in enumerate(columns):
                by_hand = sum_of_pairs(by_ids, reading, read) / len(reading)
                torch.testing.assert_close(by_words[..., row, column], by_hand)


@pytest.mark.parametrize("budget", [4096, 40, 1])
def test_a_batch_gives_what_each_sentence_gives_alone(budget):
    """Computed in float64 and given in float32, so that the order of sums shows in the last bit at most."""
    model = small_model(positions="rotary").double()
    sentences = [
        (SOURCE, TOKENISER.encode("Ja.")),
        ("No.", TOKENISER.encode(TARGET)),
        ("", []),
        (SOURCE, []),
    ]
    together = look_batch(model, TOKENISER, sentences, batch_tokens=budget)
    for (source, ids), in_batch in zip(sentences, together, strict=True):
        alone = look(model, TOKENISER, source, ids)
        assert (in_batch.source_words, in_batch.target_words) == (
            alone.source_words,
            alone.target_words,
        )
        for kind in KINDS:
            torch.testing.assert_close(
                getattr(in_batch, kind), getattr(alone, kind), rtol=2**-23, atol=1e-12
            )
    assert look_batch(model, TOKENISER, []) == []


def test_encoder_and_decoder_may_be_of_unequal_depth():
    maps = look(
        small_model(encoder_layers=1, decoder_layers=3), TOKENISER, SOURCE, TOKENISER.encode(TARGET)
    )
    assert [len(getattr(maps, kind)) for kind in KINDS] == [1, 3, 3]


def test_maps_are_the_ones_each_layer_computed():
    """The last row of cross-attention, recomputed from the layer's own projections and its real input."""
    model = small_model(decoder_layers=2)
    seen = {}
    layer = model.decoder[1].cross_attention
    layer.register_forward_pre_hook(
        lambda module, inputs: seen.update(x=inputs[0], context=inputs[1])
    )
    maps = look(model, TOKENISER, SOURCE, TOKENISER.encode(TARGET))
    with torch.no_grad():
        q = layer.to_q(seen["x"])[0, -1].view(2, 8)
        k = layer.to_k(seen["context"])[0].view(-1, 2, 8)
        by_hand = (torch.einsum("hd,khd->hk", q, k) / 8**0.5).softmax(-1)
    torch.testing.assert_close(maps.cross[1, :, -1], by_hand)


def test_row_t_is_the_step_that_writes_id_t_and_has_not_read_it():
    model = small_model()
    ids = TOKENISER.encode(TARGET)
    changed = [*ids[:3], ids[3] + 1, *ids[4:]]
    before = look(model, TOKENISER, SOURCE, ids)
    after = look(model, TOKENISER, SOURCE, changed)
    assert torch.equal(before.cross[:, :, :4], after.cross[:, :, :4])
    assert not torch.allclose(before.cross[:, :, 4:], after.cross[:, :, 4:])
    assert before.target_words[3] != after.target_words[3]
    assert before.target_words[-1] == "<end>"
    assert before.read_words == ("<begin>", *before.target_words[:-1])
    assert not before.decoder.triu(1).any()


def test_looking_leaves_the_model_as_it_was_and_drops_nothing():
    model = small_model(dropout=0.5, attention_dropout=0.5).train()
    model.encoder[0].eval()
    modes = [module.training for module in model.modules()]
    first, second = (look(model, TOKENISER, SOURCE, TOKENISER.encode(TARGET)) for _ in range(2))
    assert torch.equal(first.cross, second.cross)
    assert [module.training for module in model.modules()] == modes
    assert not first.cross.requires_grad
    with pytest.raises(ArgumentError):
        look(model, TOKENISER, SOURCE, [TOKENISER.vocab_size])
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_any_precision_gives_float32_rows(dtype):
    maps = look(small_model().to(dtype), TOKENISER, SOURCE, TOKENISER.encode(TARGET)).merged()
    assert maps.cross.dtype == torch.float32
    torch.testing.assert_close(
        maps.cross.sum(-1), torch.ones(maps.cross.shape[:-1]), rtol=0, atol=0.02
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_has_maps(text):
    maps = look(small_model(), TOKENISER, text, TOKENISER.encode(text)).merged()
    assert maps.source_words == maps.target_words
    assert "".join(maps.source_words) == "".join(TOKENISER.reads(text).split()) + "<end>"
    torch.testing.assert_close(maps.encoder.sum(-1), torch.ones(maps.encoder.shape[:-1]))


STRANGER = Tokeniser.train(["another"], 261)


def test_a_matrix_is_one_head_or_the_mean_of_a_layer():
    maps = random_maps(["a", "b", "<end>"], ["x", "<end>"], layers=2, heads=3)
    assert torch.equal(maps.matrix("cross", layer=0, head=2), maps.cross[0, 2])
    torch.testing.assert_close(maps.matrix("encoder"), maps.encoder[1].mean(0))
    for wrong, message in [
        ({"kind": "sideways"}, "'sideways'; there are encoder, decoder, cross"),
        (
            {"kind": "cross", "layer": 2},
            "layer 2 does not exist; the cross weights have layers 0 to 1",
        ),
        ({"kind": "cross", "layer": -3}, "layer -3"),
        (
            {"kind": "cross", "head": 3},
            "head 3 does not exist; the cross weights have heads 0 to 2",
        ),
        ({"kind": "cross", "head": -1}, "head -1"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            maps.matrix(**wrong)


PAIRS = [
    (sentence.source, TOKENISER.encode(sentence.target)) for sentence in make_split("valid", 5)
]
CHOICES = [
    {"attention": "bahdanau"},
    {"attention": "luong-general"},
    {"attention": "luong-dot", "input_feeding": True},
    {"attention": "luong-concat", "reach": "local-m", "window": 2},
]


@pytest.mark.parametrize(
    "choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values()))
)
def test_a_row_is_what_the_step_that_writes_the_word_looked_at(choices):
    model, (source, ids) = recurrent(**choices), PAIRS[0]
    maps = look(model, TOKENISER, source, ids)
    batch = make_batch([(TOKENISER.encode(source), ids)])
    state = model.start(batch.source)
    rows = []
    for identifier in batch.target[0]:
        with torch.no_grad(), record_attention(model) as recording:
            model.step(identifier[None], state)
        rows.append(recording["cell.attention"][0].weights[0, :, 0])
    torch.testing.assert_close(maps.cross[0], torch.stack(rows, 1), rtol=1e-4, atol=1e-6)
    assert len(maps.encoder) == len(maps.decoder) == 0
    with pytest.raises(ArgumentError, match="no encoder weights"):
        maps.matrix("encoder")


CAT = "The cat sat on the mat because it was tired."
FEW_PIECES = Tokeniser.train([CAT], vocab_size=280)  # few pieces, so that words have several
SIZES = {"vocab_size": FEW_PIECES.vocab_size, "dim": 16, "layers": 2, "heads": 2}


def model_of(kind):
    torch.manual_seed(0)
    return (
        LanguageModel(LanguageConfig(**SIZES))
        if kind == "causal"
        else TextEncoder(EncoderConfig(**SIZES))
    )


@pytest.mark.parametrize("kind", ["causal", "encoder"])
def test_the_maps_are_the_weights_of_the_model(kind):
    model = model_of(kind)
    maps = look_text(model, FEW_PIECES, CAT)
    ids = [BEGIN, *FEW_PIECES.encode(CAT), *([END] if kind == "encoder" else [])]
    with torch.no_grad(), record_attention(model.eval()) as recording:
        model(torch.tensor([ids]))
    second = recording["blocks.1.attention"][0].weights[0]
    torch.testing.assert_close(maps.piece_weights[1], second)
    torch.testing.assert_close(maps.weights[1], merge(second, maps.spans, maps.spans))
    assert maps.words[:3] == ("<begin>", "The", "cat")
    assert (maps.words[-1], maps.causal) == (("<end>", False) if kind == "encoder" else (".", True))
    assert len(ids) > len(maps.words)
    torch.testing.assert_close(maps.weights.sum(-1), torch.ones(2, 2, len(maps.words)))
    ahead = maps.weights.triu(1).any()
    assert bool(ahead) == (kind == "encoder")


def merged(*spans):
    return merge(torch.full((len(spans), 1), 0.5), spans, [("c", range(1))])


WORDS = [("a", range(1)), ("b", range(1, 2))]
UNFIT = (
    ("a", "b", "c"),
    ("x", "y"),
    torch.ones(1, 1, 3, 3),
    torch.ones(1, 1, 2, 2),
    torch.ones(1, 1, 2, 2),
)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: look(small_model(), TOKENISER, SOURCE, "Das Tier"),
            ArgumentError,
            r"'Das Tier'.*tokeniser\.encode",
        ),
        (
            lambda: look(small_model(), TOKENISER, SOURCE, [BEGIN, 7, END, PAD]),
            ArgumentError,
            r"ids \[0, 2, 3\]",
        ),
        (
            lambda: look(small_model(), STRANGER, SOURCE, []),
            ArgumentError,
            rf"{TOKENISER.vocab_size} ids and the tokeniser {STRANGER.vocab_size}",
        ),
        (
            lambda: look(recurrent(attention="none"), TOKENISER, *PAIRS[0]),
            UnsupportedError,
            "attention='none'",
        ),
        (
            lambda: it_weights(recurrent(attention="bahdanau"), TOKENISER, make_split("valid", 2)),
            UnsupportedError,
            "measured in self-attention",
        ),
        (
            lambda: AttentionMaps(*UNFIT),
            ShapeError,
            r"cross weights are \(1, 1, 2, 2\).*\(layers, heads, 2, 3\)",
        ),
        (lambda: merged(("a", range(1)), ("b", range(1))), ArgumentError, "rows"),
        (lambda: merged(("a", range(1, 2))), ArgumentError, "rows"),
        (lambda: merged(("a", range(0))), ArgumentError, "rows"),
        (lambda: merge(torch.ones(3, 2), WORDS, WORDS), ShapeError, r"\(3, 2\).*\(\.\.\., 2, 2\)"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_words(call, error, says):
    with pytest.raises(error, match=says):
        call()
