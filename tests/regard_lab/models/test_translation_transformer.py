"""The translation Transformer: its layers, its configs, and sources held once for all rows that read them."""

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from translators import shared_translator, texts, translator

from regard.errors import ShapeError
from regard_lab.models import TranslationTransformer
from regard_lab.text import BEGIN, PAD
from regard_lab.text.batches import pad


def test_the_future_of_the_target_changes_nothing_before_it():
    model = translator(decoder_pattern="full")
    source = torch.tensor([[5, 6, 3]])
    first = torch.tensor([[BEGIN, 7, 8, 9]])
    second = torch.tensor([[BEGIN, 7, 8, 30]])
    assert torch.equal(model(source, first)[:, :3], model(source, second)[:, :3])


def test_post_norm_is_the_papers_order():
    model = translator(norm="post", encoder_layers=1)
    layer = model.encoder[0]
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    after_attention = layer.around_attention.norm(x + layer.attention(x))
    expected = layer.around_feed_forward.norm(after_attention + layer.feed_forward(after_attention))
    torch.testing.assert_close(layer(x, None), expected)


def test_a_config_of_an_older_version_lacks_later_settings():
    older = translator().config.to_dict()
    del older["encoder_mechanism"], older["gradient_checkpointing"]
    assert TranslationTransformer.Config.from_dict(older) == translator().config
    with pytest.raises(ShapeError, match="0 to 3"):
        translator(positions="learned", max_length=4)(
            torch.tensor([[5, 6]]), torch.tensor([[5, 6, 7, 8, 9]])
        )


# Steps: sources are held once for all that read them, and a step equals the whole, however the rows were moved

KINDS = [
    {},
    {"norm": "post", "tied": False, "vocab_size": 131},
    {"positions": "rotary", "decoder_kv_heads": 2, "cross_kv_heads": 1},
    {"decoder_pattern": "causal_window(3)", "cross_pattern": "key_span(1) | prefix(1)"},
    {"cross_pattern": "sliding_window(4)", "cross_kv_heads": 2},
    {"cross_pattern": "global_tokens(0) | causal", "positions": "learned", "max_length": 32},
]


def close(actual, expected):
    assert (actual - expected).abs().max() <= 1e-12 * expected.abs().max().clamp(min=1)


def beams(rows, readers):
    """Every group of neighbours goes on from some of its own, as in a beam search."""
    groups = [rows[start : start + readers] for start in range(0, len(rows), readers)]
    return st.tuples(
        *(st.lists(st.sampled_from(group), min_size=3, max_size=3) for group in groups)
    ).map(lambda groups: [*chain(*groups)])


@pytest.mark.parametrize("changes", KINDS, ids=str)
@settings(max_examples=4, deadline=None)
@given(
    data=st.data(),
    sources=st.lists(texts, min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
)
def test_a_step_equals_the_whole_after_any_reordering(changes, data, sources, side):
    model = shared_translator(**changes)
    source = pad([[*text, 3] for text in sources], side)
    state = model.start(source)
    readers = 1
    # what each row reads and has written
    reads, written = (
        list(range(len(sources))),
        [[BEGIN] for _ in sources],
    )
    for _ in range(4):
        with torch.no_grad():
            logits = model.step(torch.tensor([ids[-1] for ids in written]), state)
            close(logits, model(source[reads], torch.tensor(written))[:, -1])
        places = list(range(len(reads)))
        how = data.draw(st.sampled_from(["beam", "beam", "leave", "any"]))
        if how == "beam":
            index = data.draw(beams(places, readers))
            readers = 3
        elif how == "leave" and len(places) > readers:
            leaving = data.draw(st.sampled_from([row // readers for row in places]))
            index = [row for row in places if row // readers != leaving]
        else:
            index = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=6))
            readers = 1
        state.reorder(torch.tensor(index))
        reads = [reads[row] for row in index]
        written = [[*written[row], data.draw(st.integers(4, 40))] for row in index]


def test_a_beam_holds_its_source_once():
    model = translator()
    source = pad([[5, 6, 3], [7, 3]])
    with torch.inference_mode():
        state = model.start(source)
        held = state.sources.nbytes
        state.reorder(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
        before = state.contexts[0].keys
        state.reorder(torch.tensor([3, 1, 0, 0, 4, 7, 5, 5]))
    assert state.sources.readers == 4
    assert state.sources.nbytes == held
    assert state.contexts[0].keys is before  # nothing was copied
    with torch.inference_mode():  # rows that are no equal groups of neighbours get a source each
        state = model.start(source)
        state.reorder(torch.tensor([0, 0, 1]))
    assert state.sources.readers == 1
    assert [len(context.keys) for context in state.contexts] == [3, 3, 3]


def test_padding_shows_nowhere_whatever_its_vector_is():
    model = translator(tied=False)
    with torch.no_grad():
        model.embedding.weight[PAD] = torch.nan
        alone = model.start(torch.tensor([[7, 3]]))
        beside = model.start(pad([[7, 3], [5, 6, 8, 3]]))
        logits = model.step(torch.tensor([BEGIN, BEGIN]), beside)
        close(logits[:1], model.step(torch.tensor([BEGIN]), alone))
    assert bool(logits.isfinite().all())


def test_rows_that_cannot_be_leave_the_state_as_it_was():
    model = translator()
    with torch.no_grad():
        state, again = (model.start(pad([[5, 6, 3], [7, 3]])) for _ in range(2))
        with pytest.raises(ValueError, match="rows 0 to 1"):
            state.reorder(torch.tensor([0, 2]))
        ids = torch.tensor([BEGIN, BEGIN])
        assert torch.equal(model.step(ids, state), model.step(ids, again))


def test_weights_that_learned_on_are_used_by_the_next_step():
    model = translator()
    ids = torch.tensor([BEGIN])
    with torch.no_grad():
        state = model.start(torch.tensor([[5, 6, 3]]))
        for weight in (
            model.decoder[0].self_attention.to_q.weight,
            model.decoder[0].cross_attention.to_q.weight,
        ):
            weight.mul_(1.5)
        fresh = model(torch.tensor([[5, 6, 3]]), ids[:, None])[:, 0]
        close(model.step(ids, state), fresh)


@pytest.mark.parametrize("changes", KINDS[:3], ids=str)
def test_gradient_checkpointing_changes_no_gradient(changes):
    source = pad([[5, 6, 3], [7, 3]])
    target = pad([[BEGIN, 8, 9], [BEGIN, 10]])
    grads = []
    for checkpointing in (False, True):
        model = translator(**changes, gradient_checkpointing=checkpointing).train()
        torch.manual_seed(7)  # dropout
        model(source, target).logsumexp(-1).sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(plain, again) for plain, again in zip(*grads, strict=True))
