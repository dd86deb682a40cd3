"""What the state of a language model promises: rows move freely, texts are cropped, and a refusal changes nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import KINDS, SIZES, language_model, lossless_caches

import regard as rg
from regard.core.tensors import Stored
from regard.layers import attending, multi_head
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.models.language_program import LanguageProgram
from regard_lab.text.batches import pad

EXACT = {"rtol": 0, "atol": 1e-12}
EVERY = pytest.mark.parametrize("kind", KINDS)
ROWS = [[5, 6, 7], [8], [9, 3, 4, 2], [11, 12, 13], [14]]


def whole(model: LanguageModel, rows: list[list[int]]) -> torch.Tensor:
    """Scores (rows, vocab_size) of what follows each text, alone."""
    return torch.stack([model(torch.tensor([row]))[0, -1] for row in rows])


@EVERY
@settings(max_examples=3)
@given(
    data=st.data(), index=st.lists(st.integers(0, 4), min_size=1, max_size=7), before=st.booleans()
)
@torch.no_grad()
def test_a_reordered_state_goes_on_from_the_chosen_rows(kind, data, index, before):
    model = language_model(kind)
    state = model.start(pad(ROWS), **data.draw(st.sampled_from(lossless_caches(kind, 9))))
    rows = ROWS
    if not before:
        model.step(torch.arange(1, 6), state)
        rows = [[*row, 1 + index] for index, row in enumerate(ROWS)]
    state.reorder(torch.tensor(index))
    rows = [rows[row] for row in index]
    if before:
        torch.testing.assert_close(state.next_scores, whole(model, rows), **EXACT)
    for added in (20, 21):
        rows = [[*row, added] for row in rows]
        logits = model.step(torch.full((len(index),), added), state)
        torch.testing.assert_close(logits, whole(model, rows), **EXACT)


@EVERY
@torch.no_grad()
def test_a_cropped_state_goes_on_from_where_it_was(kind):
    model = language_model(kind)
    if kind == "gated":
        state = model.start(torch.tensor([[5, 6]]), cache="state")
        with pytest.raises(rg.UnsupportedError, match="cannot be separated"):
            state.crop(1)
        return
    state = model.start(pad(ROWS), cache="dynamic")
    longer = [[*row, 17] for row in ROWS]
    model.step(torch.full((5,), 17), state)
    model.extend(torch.tensor([[1, 2, 3]] * 5), state)
    with pytest.raises(
        rg.ArgumentError, match=r"longest text has 8 ids and the shortest 5.* 3 to 8"
    ):
        state.crop(2)
    state.crop(5)
    assert state.length == 5
    torch.testing.assert_close(
        model.step(torch.full((5,), 19), state), whole(model, [[*r, 19] for r in longer]), **EXACT
    )
    state.crop(0)
    assert state.length == 0
    anew = [[row, 7 - row] for row in range(1, 6)]
    torch.testing.assert_close(
        model.extend(torch.tensor(anew), state)[:, -1], whole(model, anew), **EXACT
    )


@torch.no_grad()
def test_a_refused_call_changes_nothing():
    model = language_model("rotated features")  # unequal prompts go on in groups
    state = model.start(pad(ROWS), cache="static", capacity=5)
    model.step(torch.ones(5, dtype=torch.int64), state)
    for call in (
        # the longest text is full, the others are not
        lambda: model.step(torch.full((5,), 2), state),
        lambda: state.reorder(torch.tensor([0, 5])),
        lambda: state.crop(6),
    ):
        with pytest.raises(rg.RegardError):
            call()
        assert [texts.caches.length for texts in state.groups] == [5, 4, 2]
    state.crop(4)
    expected = whole(model, [[*row, 2] for row in ROWS])
    torch.testing.assert_close(model.step(torch.full((5,), 2), state), expected, **EXACT)


@torch.no_grad()
def test_a_layer_that_refuses_takes_back_what_the_layers_before_it_kept():
    model = LanguageModel(LanguageConfig(**SIZES, mechanism=("softmax", "linear"))).eval()
    state = model.start(torch.tensor([[5, 6]]))
    with (
        rg.record_attention(model),
        pytest.raises(rg.UnsupportedError, match="neither bias nor statistics"),
    ):
        model.step(torch.tensor([7]), state)
    assert [cache.length for cache in state.groups[0].caches.each] == [2, 2]
    assert state.next_scores is not None
    torch.testing.assert_close(
        model.step(torch.tensor([8]), state), whole(model, [[5, 6, 8]]), rtol=0, atol=1e-5
    )


@torch.no_grad()
def test_each_layer_keeps_what_is_exact_in_the_least_memory_and_bytes_are_counted():
    prompt = torch.tensor([[5, 6, 7, 8, 9]])
    kinds = {
        "llama": ["GrowingCache"] * 2,
        "windows alternating with full": ["RingCache", "GrowingCache", "RingCache"],
        "linear beside softmax": ["RecurrentState", "GrowingCache"],
    }
    for kind, names in kinds.items():
        caches = language_model(kind).start(prompt).groups[0].caches.each
        assert [type(cache).__name__ for cache in caches] == names
    narrow = (
        language_model("linear beside softmax").start(prompt, dtype="int8").groups[0].caches.each
    )
    assert [cache.dtype for cache in narrow] == [torch.float64, torch.int8]
    model = language_model("llama")  # 2 layers of 1 key/value head of 10 numbers in float64
    state = model.start(torch.ones(3, 7, dtype=torch.int64), cache="static", capacity=11)
    assert state.nbytes == 2 * 2 * 3 * 11 * 10 * 8
    apart = language_model("fixed").start(pad(ROWS), cache="static", capacity=11)  # 2 heads
    assert apart.nbytes == 2 * 2 * 5 * 11 * 2 * 10 * 8


LONG = {
    "window": {"pattern": "causal_window(64)"},
    "linear": {"mechanism": "linear"},
    "both": {
        "pattern": "full",
        "mechanism": "performer(features=16)",
        "positions": "learned",
        "max_length": 20_100,
    },
}


@pytest.mark.parametrize("kind", LONG)
@torch.no_grad()
def test_memory_and_what_a_step_reads_do_not_grow_with_the_text(kind, monkeypatch):
    # Programs hand no keys to attention.
    monkeypatch.setattr(LanguageProgram, "of", lambda *_: None)
    monkeypatch.setattr(multi_head, "step_by_program", lambda *_: None)
    model = LanguageModel(LanguageConfig(**{**SIZES, **LONG[kind]})).eval()
    # keys that are handed to attention, layer by layer
    read, plain = (
        list[int](),
        attending.attention,
    )

    def counting(q, k, v, **rest):
        read.append(k.numbers.shape[2] if isinstance(k, Stored) else k.shape[2])
        return plain(q, k, v, **rest)

    monkeypatch.setattr(attending, "attention", counting)
    reads = []
    for length in (100, 20_000):
        state = model.start(torch.randint(1, 23, (1, length)))
        sizes = set()
        read.clear()
        for _ in range(40):
            assert model.step(torch.tensor([5]), state).isfinite().all()
            sizes.add(state.nbytes)
        reads.append((sizes, list(read)))
        assert state.length == length + 40
    assert reads[0] == reads[1]
    assert len(reads[0][0]) == 1
    assert set(reads[0][1]) == ({64} if kind == "window" else set())
