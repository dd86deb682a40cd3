"""What a translation Transformer promises: padding, batches and caches change nothing; a saved one is the same."""

import copy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import ArgumentError, CheckpointError, ShapeError, UnsupportedError
from regard_lab.models import TranslationTransformer
from regard_lab.text import BEGIN, PAD
from regard_lab.text.batches import pad

TINY = {"vocab_size": 41, "dim": 24, "heads": 4, "hidden_dim": 36, "encoder_layers": 2, "decoder_layers": 3}
KINDS = [
    {},
    {"norm": "post"},
    {"tied": False},
    {"positions": "learned", "max_length": 64},
    {"positions": "rotary"},
    {"encoder_kv_heads": 2, "decoder_kv_heads": 1, "cross_kv_heads": 2},
    {"encoder_pattern": "sliding_window(4)", "decoder_pattern": "causal_window(3)"},
    {"positions": "rotary", "cross_pattern": "sliding_window(6)"},
    {"decoder_pattern": "full | key_span(0, 2)", "cross_pattern": "causal | key_span(0, 3)"},
    {"encoder_mechanism": "performer(8)", "positions": "rotary"},
    {"encoder_mechanism": "lsh(4, 4)"},
    {"encoder_mechanism": "linformer(16, 4)"},
]


def make(**changes):
    return copy.deepcopy(_made(tuple(changes.items())))


@cache
def _made(changes):
    torch.manual_seed(0)
    changes = dict(changes)
    model = TranslationTransformer(TranslationTransformer.Config(**{**TINY, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from flat, so that a wrong path shows
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


texts = st.lists(st.integers(4, 40), min_size=1, max_size=9)


@pytest.mark.parametrize("changes", KINDS, ids=str)
@settings(max_examples=8, deadline=None)
@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), side=st.sampled_from(["left", "right"]))
def test_a_padded_batch_equals_each_sentence_alone(changes, rows, side):
    model = make(**changes)
    source = pad([[*source, 3] for source, _ in rows], side)
    target = pad([[BEGIN, *target] for _, target in rows], side)
    together = model(source, target)
    for row, (alone_source, alone_target) in enumerate(rows):
        alone = model(torch.tensor([[*alone_source, 3]]), torch.tensor([[BEGIN, *alone_target]]))
        living = together[row][target[row] != PAD]
        torch.testing.assert_close(living, alone[0], atol=1e-11, rtol=0)


@pytest.mark.parametrize("changes", KINDS, ids=str)
@settings(max_examples=5, deadline=None)
@given(rows=st.lists(texts, min_size=1, max_size=3), target=texts, side=st.sampled_from(["left", "right"]))
def test_step_by_step_equals_all_at_once(changes, rows, target, side):
    model = make(**changes)
    source = pad([[*row, 3] for row in rows], side)
    ids = torch.tensor([[BEGIN, *target]] * len(rows))
    whole = model(source, ids)
    state = model.start(source)
    for place in range(ids.shape[1]):
        assert state.length == place
        torch.testing.assert_close(model.step(ids[:, place], state), whole[:, place], atol=1e-11, rtol=0)


def test_a_reordered_state_goes_on_from_the_chosen_rows():
    model = make()
    source = pad([[5, 6, 3], [7, 3], [8, 9, 10, 3]])
    ids = torch.tensor([[BEGIN, 11, 12], [BEGIN, 13, 14], [BEGIN, 15, 16]])
    index = torch.tensor([2, 0, 2, 1])
    state = model.start(source)
    model.step(ids[:, 0], state)
    model.step(ids[:, 1], state)
    state.reorder(index)
    found = model.step(ids[index, 2], state)
    torch.testing.assert_close(found, model(source[index], ids[index])[:, 2], atol=1e-11, rtol=0)


def test_the_future_of_the_target_changes_nothing_before_it():
    model = make(decoder_pattern="full")
    source = torch.tensor([[5, 6, 3]])
    one, other = torch.tensor([[BEGIN, 7, 8, 9]]), torch.tensor([[BEGIN, 7, 8, 30]])
    assert torch.equal(model(source, one)[:, :3], model(source, other)[:, :3])


def test_every_parameter_learns():
    for changes in KINDS:
        model = make(**changes)
        model(torch.tensor([[5, 6, 7, 3]]), torch.tensor([[BEGIN, 8, 9]])).logsumexp(-1).sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            # A key's bias adds the same number to all scores of a query, which softmax does not see.
            if not name.endswith("to_k.bias"):
                assert parameter.grad.abs().max() > 0, f"{name} in {changes}"


def test_post_norm_is_the_papers_order():
    model = make(norm="post", encoder_layers=1)
    layer = model.encoder[0]
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    after_attention = layer.around_attention.norm(x + layer.attention(x))
    expected = layer.around_feed_forward.norm(after_attention + layer.feed_forward(after_attention))
    torch.testing.assert_close(layer(x, None), expected)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_a_saved_model_is_the_same(tmp_path, changes):
    model = make(**changes).float()
    model.save(tmp_path / "model")
    loaded = TranslationTransformer.load(tmp_path / "model")
    source, target = torch.tensor([[5, 6, 3]]), torch.tensor([[BEGIN, 7]])
    assert loaded.config == model.config
    assert torch.equal(loaded(source, target), model(source, target))
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_weights_of_another_config_are_refused(tmp_path):
    from regard_lab.models.storage import save_model
    from regard_lab.models.translation_transformer import KIND

    model = make()
    for config in ({**model.config.to_dict(), "dim": 48}, {**model.config.to_dict(), "colour": 1}, {"dim": 24}):
        save_model(tmp_path / "model", config, model.state_dict(), KIND)
        with pytest.raises(CheckpointError, match="config"):
            TranslationTransformer.load(tmp_path / "model")


def test_a_giant_config_takes_no_memory_before_it_is_refused(tmp_path):
    from regard_lab.models.storage import save_model
    from regard_lab.models.translation_transformer import KIND

    model = make()
    save_model(tmp_path / "model", {**model.config.to_dict(), "vocab_size": 10**12}, model.state_dict(), KIND)
    with pytest.raises(CheckpointError):
        TranslationTransformer.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 25}, "dim is 25"),
        ({"heads": 5}, "multiple of heads, 5"),
        ({"decoder_kv_heads": 3}, "decoder_kv_heads is 3"),
        ({"norm": "middle"}, "pre, post"),
        ({"positions": "none"}, "sinusoidal, learned, rotary"),
        ({"encoder_pattern": "cuasal"}, "there is no pattern 'cuasal'"),
        (
            {"encoder_pattern": "random_blocks(1, block=2)"},
            "encoder_pattern .* depends on the number of keys, .* past=true",
        ),
        (
            {"decoder_pattern": "full & ~random_blocks(1)"},
            "decoder_pattern .* depends on the number of keys, .* past=true",
        ),
        (
            {"cross_pattern": "random_blocks(1, block=2)"},
            "cross_pattern .* depends on the number of keys, .* past=true",
        ),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"dim": 12, "positions": "rotary"}, "must be even"),
        ({"tied": "yes"}, "tied is 'yes'"),
    ],
)
def test_a_config_that_cannot_be_is_refused_with_its_numbers(changes, words):
    with pytest.raises(ArgumentError, match=words):
        TranslationTransformer.Config(**{**TINY, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder_mechanism": "linear", "encoder_pattern": "sliding_window(4)"}, "not sliding_window"),
        ({"encoder_mechanism": "random_feature(8, gated)"}, "its gates forget what came before"),
        ({"encoder_mechanism": "lsh(4, 4)", "encoder_kv_heads": 2}, "encoder_kv_heads, 2, must be heads, 4"),
        ({"encoder_mechanism": "performer(8)", "attention_dropout": 0.1}, "has no dropout"),
        ({"encoder_mechanism": "performance(8)"}, "is no mechanism"),
        ({"encoder_mechanism": None}, "encoder_mechanism is None"),
    ],
)
def test_a_mechanism_that_the_encoder_cannot_have_is_refused_by_the_config(changes, words):
    with pytest.raises((ArgumentError, UnsupportedError), match=words):
        TranslationTransformer.Config(**{**TINY, **changes})


def test_a_config_of_an_older_version_has_softmax():
    older = make().config.to_dict()
    del older["encoder_mechanism"]
    assert TranslationTransformer.Config.from_dict(older) == make().config


def test_wrong_ids_are_refused_with_their_numbers():
    model = make(positions="learned", max_length=4)
    good = torch.tensor([[5, 6]])
    with pytest.raises(ArgumentError, match="5 to 41"):
        model(torch.tensor([[5, 41]]), good)
    with pytest.raises(ShapeError, match="int64"):
        model(good.float(), good)
    with pytest.raises(ShapeError, match="0 to 3"):
        model(good, torch.tensor([[5, 6, 7, 8, 9]]))


def test_a_source_of_nothing_but_padding_is_finite():
    model = make()
    scores = model(torch.tensor([[PAD, PAD], [5, 3]]), torch.tensor([[BEGIN, 6], [BEGIN, 6]]))
    assert bool(scores.isfinite().all())
