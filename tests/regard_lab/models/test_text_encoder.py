"""The encoder: a text alone is a text in a padded batch, and what was learned is carried over."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import ArgumentError, CheckpointError, ShapeError
from regard_lab.models import LanguageConfig, LanguageModel, SavedModel, load_model
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import PAD

VOCABULARY = 31
PATTERNS = (
    "full",
    "causal",
    "sliding_window(4)",
    "sliding_window(2) | global_tokens(0)",
    "sliding_window(2) | global_tokens(0) | random_blocks(1, block=2, seed=0)",
    ("sliding_window(2)", "full"),
)
ALONE = (
    "linear",
    "performer(features=8)",
    "linformer(length=17, rank=5)",
    "lsh(chunk=4, buckets=2)",
)


def encoder(seed=0, **changes):
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY,
        "dim": 12,
        "heads": 3,
        "layers": 2,
        "max_length": 17,
        "dropout": 0.0,
    }
    model = TextEncoder(EncoderConfig(**{**config, "head_dim": 4, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so large that what is seen makes a difference
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def padded(texts, sides, width):
    rows = []
    for text, left in zip(texts, sides, strict=True):
        before = min(left, width - len(text))
        rows.append([PAD] * before + text + [PAD] * (width - len(text) - before))
    return torch.tensor(rows)


@st.composite
def batches(draw):
    ids = st.integers(1, VOCABULARY - 1)
    texts = draw(st.lists(st.lists(ids, min_size=1, max_size=11), min_size=1, max_size=4))
    sides = draw(st.lists(st.integers(0, 6), min_size=len(texts), max_size=len(texts)))
    return texts, sides, max(map(len, texts)) + draw(st.integers(0, 5))


def configs():
    softmax = st.fixed_dictionaries(
        {
            "pattern": st.sampled_from(PATTERNS),
            "positions": st.sampled_from(["rotary", "alibi", "learned", "sinusoidal", "none"]),
            "kv_heads": st.sampled_from([1, 3]),
            "norm": st.sampled_from(["layer", "rms"]),
        }
    )
    mechanism = st.fixed_dictionaries(
        {
            "mechanism": st.sampled_from(ALONE),
            "positions": st.sampled_from(["learned", "sinusoidal", "none"]),
        }
    )
    classes = {"head": "classes", "classes": 5}
    heads = st.sampled_from(
        [{"head": "words"}, {"head": "none"}, classes, {**classes, "pooling": "first"}]
    )
    return st.tuples(st.one_of(softmax, mechanism), heads).map(
        lambda parts: {**parts[0], **parts[1]}
    )


@settings(deadline=None, max_examples=40)
@given(config=configs(), batch=batches())
@torch.no_grad()
def test_a_text_alone_is_a_text_in_a_batch_padded_on_either_side(config, batch):
    texts, sides, width = batch
    model = encoder(**config)
    together = model(padded(texts, sides, width))
    for row, text in enumerate(texts):
        alone = model(torch.tensor([text]))[0]
        outputs = together[row]
        if model.config.head != "classes":
            begin = min(sides[row], width - len(text))
            outputs = outputs[begin : begin + len(text)]
        torch.testing.assert_close(outputs, alone, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_causal_encoder_of_words_is_a_language_model_up_to_its_head():
    shared = {
        "vocab_size": VOCABULARY,
        "dim": 12,
        "heads": 3,
        "layers": 2,
        "norm": "layer",
        "biases": True,
    }
    writer = LanguageModel(LanguageConfig(**shared, activation="gelu")).double().eval()
    reader = TextEncoder(EncoderConfig(**shared, pattern="causal", head="none")).double().eval()
    reader.load_state_dict(writer.state_dict())
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    scores = reader(ids) @ writer.embedding.weight.T
    torch.testing.assert_close(scores, writer(ids), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_head_of_words_is_its_formula():
    model = encoder()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    dense = model.head.dense
    norm = model.head.norm

    hidden = model.vectors(ids) @ dense.weight.T + dense.bias
    activated = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    centred = activated - activated.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    normed = centred / deviation * norm.weight + norm.bias
    expected = normed @ model.embedding.weight.T + model.head.bias
    torch.testing.assert_close(model(ids), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_words_of_chosen_places_are_those_of_all_places():
    ids = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])
    places = torch.tensor([[True, False, False, True], [False, False, True, False]])
    for tied in (True, False):
        model = encoder(tied=tied)
        torch.testing.assert_close(model(ids, places), model(ids)[places])
    with pytest.raises(ShapeError, match=r"needs bool \(2, 4\)"):
        model(ids, places.long())
    with pytest.raises(ArgumentError, match="they are for head='words'"):
        encoder(head="none")(ids, places)


@torch.no_grad()
def test_pooling_takes_the_mean_or_the_first_place_of_the_text():
    ids = torch.tensor([[0, 5, 6, 7, 0]])
    for pooling in ("mean", "first"):
        model = encoder(head="classes", classes=4, pooling=pooling)
        x = model.vectors(ids)[0, 1:4]  # (3, dim)
        pooled = x.mean(0) if pooling == "mean" else x[0]
        head = model.head
        expected = head.to_classes(torch.tanh(head.dense(pooled)))
        torch.testing.assert_close(model(ids)[0], expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_new_head_keeps_what_the_layers_learned():
    reader = encoder(positions="learned")
    sorter = reader.changed(head="classes", classes=3)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    torch.testing.assert_close(sorter.vectors(ids), reader.vectors(ids), rtol=0, atol=0)
    assert sorter(ids).shape == (1, 3)
    assert not any(
        a.data_ptr() == b.data_ptr()
        for a, b in zip(sorter.parameters(), reader.parameters(), strict=False)
    )
    back = sorter.changed(head="words")
    torch.testing.assert_close(back.vectors(ids), reader.vectors(ids), rtol=0, atol=0)
    again = sorter.changed(dropout=0.5)
    torch.testing.assert_close(again(ids), sorter(ids), rtol=0, atol=0)


@torch.no_grad()
def test_longer_texts_begin_with_the_positions_of_short_ones():
    short = encoder(positions="learned")
    long = short.changed(max_length=40)
    table = long.state_dict()["positions.weight"]
    assert table.shape == (40, 12)
    for place in (0, 16, 17, 33, 34, 39):
        assert torch.equal(table[place], short.state_dict()["positions.weight"][place % 17])
    ids = torch.tensor([[5] * 17])
    torch.testing.assert_close(long(ids), short(ids), rtol=0, atol=0)
    assert long(torch.tensor([[5] * 40])).shape == (1, 40, VOCABULARY)
    with pytest.raises(ShapeError, match="this table has 0 to 16"):
        short(torch.tensor([[5] * 18]))


@torch.no_grad()
def test_a_window_as_wide_as_a_text_gives_what_full_attention_learned():
    """So that full attention may be exchanged for a window before longer texts are learned from."""
    full = encoder()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    torch.testing.assert_close(
        full.changed(pattern="sliding_window(14)")(ids), full(ids), rtol=1e-12, atol=1e-12
    )
    assert not torch.allclose(full.changed(pattern="sliding_window(2)")(ids), full(ids))


def test_gradients_reach_every_weight_through_texts_of_unequal_lengths():
    model = encoder(pattern=PATTERNS[4], head="classes", classes=3)
    model(
        torch.tensor([[5, 6, 7, 8, 9], [6, 7, 8, 0, 0], [9, 9, 1, 2, 3]])
    ).square().sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_a_folder_gives_the_encoder_back(tmp_path):
    model = encoder(pattern=PATTERNS[-1], head="classes", classes=3).float()
    model.save(tmp_path / "model")
    again = TextEncoder.load(tmp_path / "model")
    ids = torch.tensor([[5, 6, 7, 0]])
    assert again.config == model.config
    assert torch.equal(again(ids), model(ids))
    saved = load_model(tmp_path / "model")
    wrong = SavedModel({**saved.config, "classes": 4}, saved.state, saved.kind, {})
    with pytest.raises(CheckpointError, match="do not fit its config"):
        TextEncoder.from_saved(wrong, "elsewhere")
    with pytest.raises(CheckpointError):
        LanguageModel.load(tmp_path / "model")


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(ArgumentError, match="dim cannot be changed in a trained encoder"):
        encoder().changed(dim=24)
    with pytest.raises(ArgumentError, match="ids go from 5 to 31"):
        encoder()(torch.tensor([[5, 31]]))
