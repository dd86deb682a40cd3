"""Models of transformers in the explorer: eager attention's weights between whole words, and what a change does."""

import json

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import transformers

from regard.errors import ArgumentError, RegardError
from regard.integrations.transformers import attach, detach, observe
from regard_lab.seeing.explorer import show
from regard_lab.seeing.transformers import (
    explore_observed,
    explore_pretrained,
    serve_pretrained,
    texts,
)
from regard_lab.seeing.watching import merge

from .making import log_probs_of_next, probabilities_of_words
from .pretrained import (
    BYTES,
    MASKED,
    PAIRS,
    PIECES,
    SENTENCE,
    albert,
    bert,
    characters,
    mistral,
    t5,
)
from .test_explorer_server import post

WRITTEN = "the street was tired"


def spans(exploration, tokenizer, ids, name="text"):
    """The indices of the ids of each word, found by decoding."""
    result = []
    start = 0
    for word in exploration.texts[name]:
        stop = start + 1
        while tokenizer.decode(ids[start:stop]).strip() != word:
            stop += 1
        result.append(range(start, stop))
        start = stop
    return result


def embedded(model, ids, words, erased):
    """Embeddings (1, n, dim) in which some ids have the mean of those of all words."""
    vectors = model.get_input_embeddings()(torch.tensor([ids])).detach().clone()
    vectors[0, list(erased)] = vectors[0, words].mean(0)
    return vectors


@torch.no_grad()
def chances(logits, ids, words, first):
    """The probability of each word from `first` on, of ids that are predicted from those before them."""
    log_probs = log_probs_of_next(logits[0].log_softmax(-1), ids)
    return probabilities_of_words(log_probs, words[first:])


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES, characters()])
def test_words_are_whole(tokenizer):
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 128}
    model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=len(tokenizer), **sizes))
    words = explore_pretrained(model, tokenizer, SENTENCE).texts["text"]
    whole = "The animal cross the street because it was too"
    assert (
        " ".join([word for word in words if word.isalpha() and word not in ("didn", "t")][:9])
        == whole
    )
    assert "didn't" in words or tokenizer is not BYTES  # a short form is one word
    assert len(words) < len(tokenizer(SENTENCE)["input_ids"])


def test_letters_of_several_ids_do_not_divide_a_word():
    assert BYTES.convert_ids_to_tokens(BYTES("überfüllte")["input_ids"])[1:3] == ["Ã", "¼"]
    words = explore_pretrained(mistral(), BYTES, "The überfüllte ñandú 猫犬 €uro").texts["text"]
    assert words == ("<s>", "The", "überfüllte", "ñandú", "猫", "犬", "€", "uro")


def eager(model, **inputs):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


@pytest.mark.parametrize("make", [mistral, albert])
def test_weights_are_those_of_eager_attention_between_words(make):
    model = make()
    exploration = explore_pretrained(model, BYTES, SENTENCE)
    inputs, (attention,) = BYTES(SENTENCE, return_tensors="pt"), exploration.attentions
    words = [
        *zip(
            exploration.texts["text"],
            spans(exploration, BYTES, inputs["input_ids"][0].tolist()),
            strict=True,
        )
    ]
    expected = merge(torch.cat(eager(model, **inputs).attentions), words, words)
    assert torch.allclose(attention.weights, expected, atol=1e-6)
    assert attention.unwritten == (make is mistral)


def test_an_encoder_decoder_has_three_kinds_of_unequal_depth():
    model = t5(decoder_layers=3)
    exploration = explore_pretrained(model, PAIRS, SENTENCE, WRITTEN)
    source, target, read = (len(exploration.texts[name]) for name in ("source", "target", "read"))
    assert [
        (attention.name, tuple(attention.weights.shape)) for attention in exploration.attentions
    ] == [
        ("Cross-attention", (3, 4, target, source)),
        ("Encoder self-attention", (2, 4, source, source)),
        ("Decoder self-attention", (3, 4, target, read)),
    ]
    assert exploration.texts["target"] == ("the", "street", "was", "tired", "</s>")
    assert exploration.texts["read"] == ("<begin>", "the", "street", "was", "tired")
    outputs = eager(
        model,
        **PAIRS(SENTENCE, return_tensors="pt"),
        labels=torch.tensor([PAIRS(WRITTEN)["input_ids"]]),
    )
    kinds = outputs.cross_attentions, outputs.encoder_attentions, outputs.decoder_attentions
    for attention, expected in zip(exploration.attentions, kinds, strict=True):
        whole = torch.cat(expected)[..., -1, :].sum(-1)  # the row of the end, a word of one id
        assert torch.allclose(attention.weights[..., -1, :].sum(-1), whole, atol=1e-5)
    first = torch.cat(outputs.cross_attentions)[..., -1, -1]
    assert torch.allclose(exploration.attentions[0].weights[..., -1, -1], first, atol=1e-6)


def collected(make=mistral, want="weights", **inputs):
    """What `observe` collects in one forward pass."""
    model = attach(make())
    with torch.no_grad(), observe(model, want) as observed:
        model(**(inputs or {"input_ids": torch.tensor([[1, 2, 3]])}))
    return observed


def test_what_observe_collected_is_shown_with_the_words_that_fit():
    ids = torch.arange(2, 9)[None]
    observed = collected(lambda: t5(decoder_layers=3), input_ids=ids, decoder_input_ids=ids[:, :4])
    exploration = explore_observed(observed, list("abcdefg"), list("abcdefg"))
    shapes = [tuple(attention.weights.shape) for attention in exploration.attentions]
    assert sorted(shapes) == [(2, 4, 7, 7), (3, 4, 4, 4), (3, 4, 4, 7)]
    crossing = next(
        attention for attention in exploration.attentions if attention.weights.shape[2:] == (4, 7)
    )
    assert exploration.texts[crossing.columns] == tuple("abcdefg")
    assert exploration.texts[crossing.rows] == ("0", "1", "2", "3")
    assert show(exploration).html.count("<script") == 3
    alike = collected(lambda: t5(decoder_layers=3), input_ids=ids, decoder_input_ids=ids)
    # not joined
    assert sorted(len(attention.weights) for attention in explore_observed(alike).attentions) == [
        2,
        3,
        3,
    ]


def falcon():
    sizes = {"vocab_size": 300, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.FalconModel(transformers.FalconConfig(alibi=True, **sizes))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: explore_pretrained(torch.nn.Linear(1, 1), BYTES, "a"), "a model of transformers"),
        (lambda: explore_pretrained(mistral(), None, "a"), "tokenizer is a NoneType"),
        (lambda: explore_pretrained(mistral(), BYTES, 3), "text"),
        (lambda: explore_pretrained(mistral(), BYTES, "a", "b"), "leave out written="),
        (lambda: explore_pretrained(mistral(), BYTES, "a", layers=9), "there is no layer 9"),
        (
            lambda: explore_pretrained(mistral(), BYTES, "a " * 80),
            "MistralForCausalLM reads at most 64",
        ),
        (lambda: explore_pretrained(t5(), PAIRS, "a " * 6000, "a"), "at most 268,435,456"),
        (lambda: explore_pretrained(falcon(), BYTES, "a"), "does not call registered attention"),
        (lambda: explore_observed("weights"), "observed is"),
        (lambda: explore_observed(collected(want="entropy")), "weights was not requested"),
        (lambda: explore_observed(collected(), ["a"]), "words has 1 words.*: 3 x 3"),
        (lambda: explore_observed(collected(), batch_row=1), "batch_row is 1"),
    ],
)
def test_a_mistake_is_one_sentence(call, says):
    with pytest.raises(RegardError, match=says):
        call()


def test_the_next_words_of_a_causal_model_are_those_without_each_word():
    model = mistral()
    exploration = explore_pretrained(model, BYTES, SENTENCE, changes=True)
    ids = BYTES(SENTENCE)["input_ids"]
    words = spans(exploration, BYTES, ids)
    # "<s>" is no word
    assert (exploration.follows, list(exploration.changes)) == (
        "words",
        [None, *range(1, len(words))],
    )
    with torch.no_grad():
        plain = model(torch.tensor([ids])).logits
    best = int(plain[0, -1].argmax())
    assert exploration.changes[None].probabilities[:-1] == pytest.approx(
        chances(plain, ids, words, 1), rel=1e-3
    )
    for place in (1, 3, 6):
        with torch.no_grad():
            logits = model(
                inputs_embeds=embedded(model, ids, range(1, len(ids)), words[place])
            ).logits
        changed = exploration.changes[place]
        assert changed.probabilities[place:-1] == pytest.approx(
            chances(logits, ids, words, place + 1), rel=1e-3
        )
        assert changed.probabilities[:place] == exploration.changes[None].probabilities[:place]
        assert changed.probabilities[-1] == pytest.approx(
            float(logits[0, -1].softmax(-1)[best]), rel=1e-3
        )
        name, chance = changed.likeliest[-1][0]
        assert chance == pytest.approx(float(logits[0, -1].softmax(-1).max()), rel=1e-3)
        assert name.strip("…") in BYTES.decode([int(logits[0, -1].argmax())])


def test_the_vectors_of_an_encoder_are_compared_by_word():
    model = bert()
    exploration = explore_pretrained(model, PIECES, SENTENCE, changes=True)
    ids = PIECES(SENTENCE)["input_ids"]
    words = spans(exploration, PIECES, ids)
    assert (exploration.follows, list(exploration.changes)) == (
        "vectors",
        [None, *range(1, len(words) - 1)],
    )
    assert exploration.changes[None].similarities == pytest.approx([1.0] * len(words), abs=1e-5)

    @torch.no_grad()
    def by_word(words, **inputs):
        vectors = model(**inputs).last_hidden_state[0]
        return torch.stack([vectors[list(span)].mean(0) for span in words])

    unchanged = by_word(words, input_ids=torch.tensor([ids]))
    for place in (1, 8):
        inputs = {"inputs_embeds": embedded(model, ids, range(1, len(ids) - 1), words[place])}
        expected = F.cosine_similarity(by_word(words, **inputs), unchanged, dim=-1)
        assert exploration.changes[place].similarities == pytest.approx(expected.tolist(), abs=1e-4)
        assert min(exploration.changes[place].similarities) < 0.99


def test_masked_places_have_the_probability_of_what_was_most_probable_there():
    model = bert("BertForMaskedLM")
    exploration = explore_pretrained(model, PIECES, MASKED, changes=True)
    ids = PIECES(MASKED)["input_ids"]
    places = [place for place, token in enumerate(ids) if token == PIECES.mask_token_id]
    words = spans(exploration, PIECES, ids)
    masks = [words.index(range(place, place + 1)) for place in places]
    assert exploration.follows == "masked"
    assert set(exploration.changes) == {None, *range(1, len(words) - 1)} - set(masks)
    with torch.no_grad():
        plain = model(torch.tensor([ids])).logits[0, places].softmax(-1)
        read = []
        for word, span in enumerate(words[1:-1], 1):
            if word not in masks:
                read += span
        erased = (
            model(inputs_embeds=embedded(model, ids, read, words[2])).logits[0, places].softmax(-1)
        )
    best = plain.argmax(-1)
    for change, expected in ((exploration.changes[None], plain), (exploration.changes[2], erased)):
        assert change.probabilities == pytest.approx(expected[range(2), best].tolist(), rel=1e-3)
        assert [place[0][1] for place in change.likeliest] == pytest.approx(
            expected.max(-1).values.tolist(), rel=1e-3
        )
    named = [place[0][0].strip("…") for place in exploration.changes[None].likeliest]
    assert named == [PIECES.decode([token]).removeprefix("##") for token in best.tolist()]


def test_what_an_encoder_decoder_wrote_has_its_probability_without_each_word_of_the_source():
    model = t5()
    exploration = explore_pretrained(model, PAIRS, SENTENCE, WRITTEN, changes=True)
    ids = PAIRS(SENTENCE)["input_ids"]
    target = PAIRS(WRITTEN)["input_ids"]
    source = spans(exploration, PAIRS, ids, "source")
    words = spans(exploration, PAIRS, target, "target")
    assert list(exploration.changes) == [None, *range(len(source) - 1)]
    for place in (1, 5):
        with torch.no_grad():
            vectors = embedded(model, ids, range(len(ids) - 1), source[place])
            rows = (
                model(inputs_embeds=vectors, labels=torch.tensor([target]))
                .logits[0]
                .log_softmax(-1)
            )
        expected = probabilities_of_words(rows[range(len(target)), target], words)
        assert exploration.changes[place].probabilities == pytest.approx(expected, rel=1e-3)
        assert exploration.changes[place].translation == ()  # it was given, and not written


def test_an_encoder_decoder_writes_again(monkeypatch):
    monkeypatch.setattr(texts, "MOST_WRITTEN", 6)
    model = t5()
    exploration = explore_pretrained(model, PAIRS, SENTENCE, changes=True)
    assert exploration.changes[None].translation == tuple(
        word for word in exploration.texts["target"] if word != "</s>"
    )
    assert exploration.changes[1].translation != ()
    assert len(exploration.changes[1].probabilities) == len(exploration.texts["target"])


def test_the_model_is_left_unchanged():
    model = mistral().train()
    before = model.config._attn_implementation
    explore_pretrained(model, BYTES, SENTENCE, changes=True)
    assert (model.config._attn_implementation, model.training) == (before, True)
    assert not model.get_input_embeddings()._forward_hooks
    attach(model)
    explore_pretrained(model, BYTES, SENTENCE)
    assert model.config._attn_implementation == "regard"
    assert detach(model).config._attn_implementation == before


def test_what_is_no_word_is_refused_with_a_sentence():
    before = BYTES("The")["input_ids"]
    old = BYTES(" animal")["input_ids"][1:]
    for word, says in (
        ("two words", "'two words' is not one word; give one word in the place of 'animal'"),
        (" ", "is not one word"),
        ("a" * 61, "61 characters; give one of at most 60"),
        ("</s>", "is read as </s>, a sign of the tokenizer"),
    ):
        with pytest.raises(ArgumentError, match=says):
            texts.ids_of_word(BYTES, before, old, word)


def test_a_model_is_served_until_the_page_is_closed():
    model = t5()
    server = serve_pretrained(model, PAIRS, SENTENCE, WRITTEN, title="the title").start()
    assert server.start() is server
    answer = json.loads(post(server, {"text": SENTENCE})[2])
    assert answer["header"]["texts"]["target"] == ["the", "street", "was", "tired", "</s>"]
    assert answer["header"]["live"] == {"text": SENTENCE, "label": "Text"}
    assert b"<title>the title</title>" in server.page
    server.close()
    assert server.thread is None
    with pytest.raises(ConnectionRefusedError):
        post(server, {"text": SENTENCE})
