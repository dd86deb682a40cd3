"""Models of transformers in the explorer: weights equal those of eager attention, words are whole."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers_versions import needs_t5

from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.integrations.transformers import attach, detach, observe
from regard_lab.seeing import show
from regard_lab.seeing.transformers import explore_observed, explore_pretrained
from regard_lab.seeing.watching import merge

SENTENCE = "The animal didn't cross the überfüllte street, because it was 猫犬 too tired."
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}


def byte_level():
    """Pieces of bytes, as GPT-2 and Llama 3 have: a letter beyond ASCII is two pieces or three."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=["<pad>", "</s>"], show_progress=False
    )
    inner.train_from_iterator([SENTENCE], trainer)
    return wrapped(inner)


def word_pieces():
    """Pieces of words, as BERT has."""
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=70, special_tokens=["<pad>", "</s>", "[UNK]", "[CLS]"], show_progress=False
    )
    inner.train_from_iterator([SENTENCE], trainer)
    return wrapped(inner)


def characters():
    """Characters after a mark for each space, as sentence pieces have where no longer piece fits."""
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=50, special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False)
    inner.train_from_iterator([SENTENCE], trainer)
    return wrapped(inner)


def wrapped(inner):
    end = inner.token_to_id("</s>")
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", model_input_names=["input_ids", "attention_mask"]
    )


TOKENIZER = byte_level()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(TOKENIZER), n_embd=16, n_layer=3, n_head=2, n_positions=128)
    return transformers.GPT2LMHeadModel(config)


def t5(decoder_layers=3):
    needs_t5()
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(TOKENIZER), d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2,
        num_decoder_layers=decoder_layers, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def albert():
    torch.manual_seed(0)
    return transformers.AlbertModel(transformers.AlbertConfig(vocab_size=len(TOKENIZER), embedding_size=8, **SIZES))


def eager(model, **inputs):
    model = model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


@pytest.mark.parametrize("tokenizer", [byte_level(), word_pieces(), characters()])
def test_words_are_whole(tokenizer):
    model = transformers.GPT2Model(
        transformers.GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=128)
    )
    words = explore_pretrained(model, tokenizer, SENTENCE).texts["text"]
    assert [word for word in words if word.isalpha() and word.isascii()][:6] == [
        "The", "animal", *(() if "didn't" in words else ("didn", "t")), "cross", "the", "street", "because",
    ][:6]  # fmt: skip
    assert words[0] == "The"  # a space that is a piece of its own belongs to it
    cats = {"猫犬"} if "猫犬" in tokenizer.get_vocab() else {"猫", "犬"}
    assert {"überfüllte", *cats} <= set(words)
    assert words[-1] == "</s>"
    assert len(words) < len(tokenizer(SENTENCE)["input_ids"])


def test_bytes_of_one_character_are_one_word_and_a_short_form_is_one():
    words = explore_pretrained(gpt2(), TOKENIZER, SENTENCE).texts["text"]
    assert words == (
        "The", "animal", "didn't", "cross", "the", "überfüllte", "street", ",", "because", "it", "was", "猫", "犬",
        "too", "tired", ".", "</s>",
    )  # fmt: skip


@pytest.mark.parametrize("make", [gpt2, albert])
def test_weights_are_those_of_eager_attention_between_words(make):
    model = make()
    (found,) = explore_pretrained(model, TOKENIZER, SENTENCE).attentions
    inputs = TOKENIZER(SENTENCE, return_tensors="pt")
    spans, start = [], 0
    for word in explore_pretrained(model, TOKENIZER, SENTENCE).texts["text"]:
        stop = start + 1
        while TOKENIZER.decode(inputs["input_ids"][0, start:stop]).strip() != word:
            stop += 1
        spans.append((word, range(start, stop)))
        start = stop
    expected = merge(torch.cat(eager(model, **inputs).attentions), spans, spans)
    assert torch.allclose(found.weights, expected, atol=1e-6)
    assert found.unwritten == (make is gpt2)


def test_an_encoder_decoder_has_three_kinds_of_unequal_depth():
    model = t5()
    found = explore_pretrained(model, TOKENIZER, SENTENCE, "the street was tired")
    shapes = {one.name: tuple(one.weights.shape) for one in found.attentions}
    source, target, read = (len(found.texts[name]) for name in ("source", "target", "read"))
    assert list(shapes.items()) == [
        ("Cross-attention", (3, 2, target, source)),
        ("Encoder self-attention", (2, 2, source, source)),
        ("Decoder self-attention", (3, 2, target, read)),
    ]
    assert found.texts["target"] == ("the", "street", "was", "tired", "</s>")
    assert found.texts["read"] == ("<begin>", "the", "street", "was", "tired")
    inputs = TOKENIZER(SENTENCE, return_tensors="pt")
    outputs = eager(model, **inputs, labels=TOKENIZER("the street was tired", return_tensors="pt")["input_ids"])
    for one, expected in zip(
        found.attentions,
        (outputs.cross_attentions, outputs.encoder_attentions, outputs.decoder_attentions),
        strict=True,
    ):
        whole = torch.cat(expected)[..., -1, :].sum(-1)  # the row of the end, a word of one id
        assert torch.allclose(one.weights[..., -1, :].sum(-1), whole, atol=1e-5)
    first = torch.cat(outputs.cross_attentions)[..., -1, -1]
    assert torch.allclose(found.attentions[0].weights[..., -1, -1], first, atol=1e-6)


def test_an_encoder_decoder_writes_by_itself():
    model = t5(decoder_layers=2)  # generate of transformers makes its cache for the depth of the encoder
    model.generation_config.max_new_tokens = 5
    found = explore_pretrained(model, TOKENIZER, "the street")
    assert found.attentions[0].weights.shape[3] == len(found.texts["source"])
    assert 1 <= len(found.texts["target"])


def test_the_model_is_left_unchanged():
    model = gpt2().train()
    before = model.config._attn_implementation
    explore_pretrained(model, TOKENIZER, SENTENCE)
    assert model.config._attn_implementation == before
    assert model.training
    attach(model)
    explore_pretrained(model, TOKENIZER, SENTENCE)
    assert model.config._attn_implementation == "regard"
    detach(model)


def test_what_observe_collected_is_shown_with_the_words_that_fit():
    model = attach(t5().eval())
    ids = torch.arange(2, 9)[None]
    with torch.no_grad(), observe(model, "weights") as observed:
        model(input_ids=ids, decoder_input_ids=ids[:, :4])
    found = explore_observed(observed, list("abcdefg"), list("abcdefg"))
    shapes = [tuple(one.weights.shape) for one in found.attentions]
    assert sorted(shapes) == [(2, 2, 7, 7), (3, 2, 4, 4), (3, 2, 4, 7)]
    crossing = next(one for one in found.attentions if one.weights.shape[2:] == (4, 7))
    assert found.texts[crossing.columns] == tuple("abcdefg")
    assert found.texts[crossing.rows] == ("0", "1", "2", "3")
    assert show(found).html.count("<script") == 3


def test_kinds_of_attention_with_weights_of_one_shape_are_not_joined():
    model = attach(t5().eval())
    ids = torch.arange(2, 9)[None]
    with torch.no_grad(), observe(model, "weights") as observed:
        model(input_ids=ids, decoder_input_ids=ids)
    assert sorted(len(one.weights) for one in explore_observed(observed).attentions) == [2, 3, 3]


def test_chosen_layers_and_a_batch_row_are_shown():
    model = attach(gpt2().eval())
    ids = torch.arange(2, 12).view(2, 5)
    with torch.no_grad(), observe(model, "weights", layers=[0, 2]) as observed:
        model(ids)
    found = explore_observed(observed, batch_row=1)
    weights = torch.stack([observed.calls[at].weights[1] for at in range(2)])
    assert torch.equal(found.attentions[0].weights, weights)
    (chosen,) = explore_pretrained(model, TOKENIZER, SENTENCE, layers=1).attentions
    assert chosen.weights.shape[0] == 1


def test_bfloat16_and_float64_are_shown_as_float32():
    (found,) = explore_pretrained(gpt2().bfloat16(), TOKENIZER, SENTENCE).attentions
    (wide,) = explore_observed(collected("weights", torch.float64)).attentions
    for one in (found, wide):
        assert one.weights.dtype == torch.float32
        assert torch.allclose(one.weights.sum(-1), torch.ones(()), atol=0.02)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: explore_pretrained(torch.nn.Linear(1, 1), TOKENIZER, "a"), ArgumentError, "a model of transformers"),
        (lambda: explore_pretrained(gpt2(), None, "a"), ArgumentError, "tokenizer is a NoneType"),
        (lambda: explore_pretrained(gpt2(), TOKENIZER, 3), ArgumentError, "text"),
        (lambda: explore_pretrained(gpt2(), TOKENIZER, "a", "b"), ArgumentError, "leave out written="),
        (lambda: explore_pretrained(gpt2(), TOKENIZER, "a", layers=9), ArgumentError, "there is no layer 9"),
        (lambda: explore_pretrained(gpt2(), TOKENIZER, "a " * 80), ArgumentError, "GPT2LMHeadModel reads at most 128"),
        (lambda: explore_pretrained(t5(), TOKENIZER, "a " * 8000, "a"), ArgumentError, "at most 268,435,456"),
        (
            lambda: explore_pretrained(
                transformers.BloomModel(transformers.BloomConfig(vocab_size=300, hidden_size=8, n_layer=1, n_head=2)),
                TOKENIZER, "a",
            ),
            UnsupportedError, "does not call registered attention",
        ),
        (lambda: explore_observed("weights"), ArgumentError, "observed is"),
        (lambda: explore_observed(collected("entropy")), RegardError, "weights was not requested"),
        (lambda: explore_observed(collected("weights"), ["a"]), ArgumentError, "words has 1 words.*: 3 x 3"),
        (lambda: explore_observed(collected("weights"), batch_row=1), ArgumentError, "batch_row is 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(call, error, says):
    with pytest.raises(error, match=says):
        call()


def collected(want, dtype=torch.float32):
    model = attach(gpt2().to(dtype))
    with torch.no_grad(), observe(model, want) as observed:
        model(torch.tensor([[1, 2, 3]]))
    return observed
