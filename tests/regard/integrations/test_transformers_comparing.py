"""The report of a replaced attention: its figures are those computed by hand."""

import json
import math

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'regard[transformers]'")

import torch
import torch.nn.functional as F
import transformers as tf
from hugging_face_families import BY_NAME, SIZES, VOCAB

import regard as rg
from regard.integrations.transformers import attach, compare_attention, replace_attention

IDS = torch.randint(3, VOCAB, (2, 30), generator=torch.Generator().manual_seed(6))
LIVE = torch.ones(2, 30, dtype=torch.long)
LIVE[0, -9:] = 0


def own_and_replaced(model, given, **options):
    """The logits before and after."""
    with torch.no_grad():
        before = attach(model)(**given).logits
        replacement = replace_attention(model, **options)
        return before, model(**given).logits, replacement


def test_figures_of_a_decoder_are_those_of_live_positions():
    model = BY_NAME["Llama"].model()
    given = {"input_ids": IDS, "attention_mask": LIVE}
    before, after, _ = own_and_replaced(model, given, pattern="causal_window(3)")
    compared = compare_attention(model, [given], rounds=1)
    live = LIVE.bool()
    assert compared.positions == 51
    nexts = live[:, 1:]
    for found, logits in zip(compared.perplexity, (before, after), strict=True):
        loss = F.cross_entropy(logits[:, :-1][nexts], IDS[:, 1:][nexts])
        assert found == pytest.approx(math.exp(loss), rel=1e-5)
    own, new = (logits[live].softmax(-1) for logits in (before, after))
    assert compared.divergence == pytest.approx(float((own * (own / new).log()).sum(-1).mean()), rel=1e-4)
    assert compared.agreement == pytest.approx(float((own.argmax(-1) == new.argmax(-1)).float().mean()), abs=1e-6)
    assert compared.difference == pytest.approx(float((after - before)[live].norm() / before[live].norm()), rel=1e-4)
    assert compared.divergence > 1e-3
    # batch, kv_heads, ids, head_dim, k and v, bytes, layers
    assert compared.cache_bytes == (2 * 2 * 30 * 8 * 2 * 4 * 3,) * 2


def test_several_texts_are_weighted_by_their_positions_and_take_a_tokenizer():
    model = BY_NAME["Llama"].model()
    replace_attention(model, pattern="causal_window(3)")
    parts = [compare_attention(model, IDS[row : row + 1, :stop], rounds=1) for row, stop in ((0, 30), (1, 10))]
    whole = compare_attention(model, [IDS[:1], IDS[1:, :10]], rounds=1)
    assert whole.positions == 40
    assert whole.divergence == pytest.approx((30 * parts[0].divergence + 10 * parts[1].divergence) / 40, rel=1e-5)

    def tokenizer(texts, return_tensors):
        assert return_tensors == "pt"
        return {"input_ids": torch.tensor([[3 + ord(letter) % 90 for letter in texts[0]]])}

    assert compare_attention(model, ["a text", "another text"], tokenizer=tokenizer, rounds=1).positions == 18


def test_equal_attention_has_no_divergence_and_long_inputs_compute_fewer_pairs():
    model = BY_NAME["Llama"].model()
    with replace_attention(model, pattern="causal_window(30)"):
        same = compare_attention(model, IDS, rounds=1)
    assert (same.agreement, same.divergence < 1e-9, same.perplexity[0]) == (1.0, True, same.perplexity[1])
    with replace_attention(model, pattern="causal_window(16)"):
        fewer = compare_attention(model, length=2048, rounds=1)
        assert fewer.pairs[1] < 0.1 < fewer.pairs[0]
        assert fewer.inputs == "1 row of at most 2048 ids"
        assert min(*fewer.seconds, *fewer.attention_bytes) > 0


def test_without_text_only_time_and_memory_are_given_and_training_is_advised():
    model = BY_NAME["Llama"].model()
    replace_attention(model, pattern="causal_window(4)")
    compared = compare_attention(model, length=64, rounds=1)
    assert (compared.positions, compared.perplexity, compared.divergence, compared.agreement) == (0, None, None, None)
    page = compared.to_markdown()
    assert "No text was given" in page
    assert "train on with the new one" in page
    assert "perplexity" not in page
    assert "| seconds of a forward pass |" in page


def test_masked_words_have_the_perplexity_of_their_labels():
    torch.manual_seed(0)
    model = tf.BertForMaskedLM(tf.BertConfig(**SIZES, max_position_embeddings=64)).eval()
    labels = torch.full_like(IDS, -100)
    labels[:, ::4] = IDS[:, ::4]
    given = {"input_ids": IDS, "attention_mask": LIVE, "labels": labels}
    before, after, _ = own_and_replaced(model, given, pattern="sliding_window(4)")
    compared = compare_attention(model, given, rounds=1)
    for found, logits in zip(compared.perplexity, (before, after), strict=True):
        assert found == pytest.approx(math.exp(F.cross_entropy(logits.flatten(0, 1), labels.flatten())), rel=1e-5)
    without = compare_attention(model, {"input_ids": IDS}, rounds=1)
    assert (without.perplexity, without.agreement is None, without.cache_bytes) == (None, False, None)


def test_the_report_is_json_and_the_model_is_as_it_was():
    model = BY_NAME["Llama"].model().train()
    replacement = replace_attention(model, pattern="causal_window(4)")
    record = json.loads(compare_attention(model, IDS, rounds=1).to_json())
    assert record["changed"] == ["causal_window(4) in 3 attention modules"]
    assert record["positions"] == 60
    assert len(record["seconds"]) == 2
    assert model.training
    assert [module.__dict__["_regard_change"].pattern for module in replacement._modules()] == [replacement.pattern] * 3


@pytest.mark.parametrize(
    ("inputs", "words"),
    [(["text"], "give tokenizer"), (torch.arange(4), r"\(batch, length\)"), ([], "are empty"), ([3.5], "inputs hold")],
)
def test_other_inputs_and_models_without_a_replacement_are_refused(inputs, words):
    model = BY_NAME["Llama"].model()
    with pytest.raises(rg.ArgumentError, match="nothing is replaced"):
        compare_attention(model, IDS)
    replace_attention(model, pattern="causal_window(4)")
    with pytest.raises(rg.ArgumentError, match=words):
        compare_attention(model, inputs)
