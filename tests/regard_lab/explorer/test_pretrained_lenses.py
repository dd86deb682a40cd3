"""Lenses and replaced heads of models of transformers, against loops by hand."""

import pytest
import torch

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers import attach
from regard_lab.seeing.heads import ablate, head_scores, patch
from regard_lab.seeing.transformers import Pretrained, explore_pretrained, pretrained_relevance
from regard_lab.seeing.transformers.explaining import contrasts_of

from .pretrained import BYTES, MASKED, PAIRS, PIECES, SENTENCE, bert, mistral, t5


def classifier():
    return bert("BertForSequenceClassification")


def odds(logits, word, others):
    return float(logits[word] - logits[list(others)].logsumexp(0))


@torch.no_grad()
def erased_by_hand(model, tokenizer, ids, read, where, contrast, spans):
    """The fall of the log odds without each word, with vectors that the model gets in the place of ids."""
    vectors = model.get_input_embeddings()(torch.tensor([ids[:read]]))
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    words = [place for place in range(read) if ids[place] not in special]
    run = lambda x: odds(where(model(inputs_embeds=x).logits[0]), contrast.of, contrast.instead_of)  # noqa: E731
    falls = []
    for _, span in spans:
        erased = vectors.clone()
        erased[0, [place for place in span if place in words]] = vectors[0, words].mean(0)
        falls.append(run(vectors) - run(erased))
    return falls


@pytest.mark.parametrize("kind", ["causal", "masked", "classes"])
def test_erasure_of_a_model_of_transformers_equals_passes_by_hand(kind):
    make, tokenizer, text = {
        "causal": (mistral, BYTES, SENTENCE),
        "masked": (lambda: bert("BertForMaskedLM"), PIECES, MASKED),
        "classes": (classifier, PIECES, SENTENCE),
    }[kind]
    model = make()
    relevance = pretrained_relevance(model, tokenizer, text)
    assert model.config._attn_implementation != "regard"  # it is given back as it was
    contrast = (contrasts := contrasts_of(Pretrained(model, tokenizer), text))[max(contrasts)]
    ids = tokenizer(text)["input_ids"]
    read = len(contrast.written) or len(ids)
    where = {
        "causal": lambda logits: logits[-1],
        "masked": lambda logits: logits[contrast.at],
        "classes": lambda logits: logits,
    }[kind]
    spans = contrast.written_words or contrast.source_words
    by_hand = erased_by_hand(model, tokenizer, ids, read, where, contrast, spans)
    assert [*relevance.source_scores, *relevance.written_scores] == pytest.approx(by_hand, abs=1e-4)
    assert max(map(abs, by_hand)) > 0.01
    if kind == "masked":
        assert relevance.place == [word for word, _ in spans].index("[MASK]", relevance.place)
    if kind == "classes":
        assert (relevance.word, *relevance.others) in {
            ("LABEL_0", "LABEL_1"),
            ("LABEL_1", "LABEL_0"),
        }


@torch.no_grad()
def test_an_encoder_decoder_is_explained_on_both_sides():
    model = t5()
    relevance = pretrained_relevance(
        model, PAIRS, SENTENCE, written="the street was tired", of="street", lens="erase"
    )
    ids = PAIRS(SENTENCE)["input_ids"]
    target = PAIRS(text_target="the street was tired")["input_ids"]
    contrasts = contrasts_of(
        Pretrained(model, PAIRS), SENTENCE, "street", written="the street was tired"
    )
    (contrast,) = contrasts.values()
    row = len(contrast.written) - 1
    assert target[row] == contrast.of

    def run(vectors):
        logits = model(inputs_embeds=vectors, labels=torch.tensor([target])).logits[0, row]
        return odds(logits, contrast.of, contrast.instead_of)

    vectors = model.get_input_embeddings()(torch.tensor([ids]))
    words = [place for place, token in enumerate(ids) if token not in PAIRS.all_special_ids]
    for (_, span), score in zip(contrast.source_words, relevance.source_scores, strict=True):
        erased = vectors.clone()
        erased[0, [place for place in span if place in words]] = vectors[0, words].mean(0)
        assert score == pytest.approx(run(vectors) - run(erased), abs=1e-4)
    assert relevance.written_words[0] == "<begin>"
    assert len(relevance.written_scores) == len(relevance.written_words)
    gradients = pretrained_relevance(
        model, PAIRS, SENTENCE, "street", written="the street was tired", lens="gradients"
    )
    assert gradients.completeness < 0.1 * max(1, *map(abs, gradients.changes.values()))


@pytest.mark.parametrize("lens", ["gradients", "attention", "rollout"])
@pytest.mark.parametrize(
    ("make", "tokenizer", "text"),
    [(mistral, BYTES, SENTENCE), (lambda: bert("BertForMaskedLM"), PIECES, MASKED)],
    ids=["causal", "masked"],
)
def test_other_lenses_have_a_number_for_each_word(make, tokenizer, text, lens):
    relevance = pretrained_relevance(make(), tokenizer, text, lens=lens)
    scores = [*relevance.source_scores, *relevance.written_scores]
    assert len(scores) == len(relevance.source_words) + len(relevance.written_words)
    if lens == "gradients":
        assert abs(sum(scores) - sum(relevance.changes.values())) <= relevance.completeness + 1e-3
    else:
        assert sum(scores) == pytest.approx(1, abs=1e-3)


def hooked(model, layer, head, change, run):
    """A run in which the slice of a head, before the output projection, is changed."""
    projection = model.get_submodule(layer)

    def hook(_, inputs):
        x = inputs[0].clone()
        part = slice(8 * head, 8 * head + 8)
        x[..., part] = change(x[..., part])
        return (x,)

    handle = projection.register_forward_pre_hook(hook)
    try:
        with torch.no_grad():
            return run()
    finally:
        handle.remove()


@pytest.mark.parametrize("kind", ["causal", "masked", "classes"])
def test_effects_of_heads_equal_a_loop_by_hand(kind):
    make, tokenizer, layer = {
        "causal": (mistral, BYTES, "model.layers.{}.self_attn.o_proj"),
        "masked": (
            lambda: bert("BertForMaskedLM"),
            PIECES,
            "bert.encoder.layer.{}.attention.output.dense",
        ),
        "classes": (classifier, PIECES, "bert.encoder.layer.{}.attention.output.dense"),
    }[kind]
    model = make()
    texts = ["The animal was too tired.", "the street", SENTENCE]
    examples = (
        [(text, index % 2) for index, text in enumerate(texts)] if kind == "classes" else texts
    )
    ablation = ablate(Pretrained(model, tokenizer), tokenizer, examples)

    def loss(text, label):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        if kind == "causal":
            rows = model(ids[:, :-1]).logits[0].log_softmax(-1)
            return -float(rows[range(len(rows)), ids[0, 1:]].sum()), len(rows)
        if kind == "classes":
            return -float(model(ids).logits[0].log_softmax(-1)[label]), 1
        total = 0.0
        count = 0
        for place, token in enumerate(ids[0].tolist()):
            if token not in (tokenizer.cls_token_id, tokenizer.sep_token_id):
                masked = ids.clone()
                masked[0, place] = tokenizer.mask_token_id
                total = total - float(model(masked).logits[0, place].log_softmax(-1)[token])
                count = count + 1
        return total, count

    runs = [
        lambda text=text, index=index: loss(text, index % 2) for index, text in enumerate(texts)
    ]
    with torch.no_grad():
        losses = [run() for run in runs]
    ids = sum(count for _, count in losses)
    assert ablation.value == pytest.approx(sum(loss for loss, _ in losses) / ids, abs=1e-4)
    assert len(ablation.effects) == 8
    for head, effect in ablation.effects.items():
        seen = []
        for run in runs:
            hooked(
                model,
                layer.format(head.layer),
                head.head,
                lambda x, s=seen: s.append(x.flatten(0, -2)) or x,
                run,
            )
        mean = torch.cat(seen).mean(0)
        place = layer.format(head.layer), head.head
        after = [hooked(model, *place, lambda x, m=mean: m.expand_as(x), run) for run in runs]
        rise = sum(
            changed - unchanged for (changed, _), (unchanged, _) in zip(after, losses, strict=True)
        )
        assert effect.effect == pytest.approx(rise / ids, abs=1e-4)


def test_heads_of_an_encoder_decoder_are_named_by_their_stack():
    subject = Pretrained(t5(), PAIRS)
    ablation = ablate(
        subject, PAIRS, [(SENTENCE, "the street was tired"), ("The animal", "tired")], by="resample"
    )
    assert {head.attention for head in ablation.effects} == {"encoder", "decoder", "cross"}
    assert {head.attention for head in head_scores(subject, length=6, texts=2)["previous"]} == {
        "encoder",
        "decoder",
    }
    (first,) = contrasts_of(subject, SENTENCE, "street", written="the street was tired").values()
    swapped = SENTENCE.replace("was too", "too was")  # as many ids
    (second,) = contrasts_of(subject, swapped, "street", ["was"], written="the street was").values()
    assert patch(subject, PAIRS, [(second, first)]).value == pytest.approx(
        ablate(subject, PAIRS, [first]).value
    )


def test_a_page_opens_on_the_last_word_and_explains_it():
    causal = explore_pretrained(mistral(), BYTES, SENTENCE, changes=True)
    last = len(causal.texts["text"]) - 1
    assert (causal.chosen, causal.written) == (last, "text")
    assert {lens.lens for lens in causal.explained[last]} == {
        "erase",
        "gradients",
        "attention",
        "rollout",
    }
    encoder = explore_pretrained(bert(), PIECES, SENTENCE, changes=True)
    assert encoder.texts["text"][encoder.chosen] == "."  # not "[SEP]"
    masked = explore_pretrained(bert("BertForMaskedLM"), PIECES, MASKED, changes=True)
    assert [masked.texts["text"][place] for place in masked.explained] == ["[MASK]", "[MASK]"]
    assert masked.chosen in masked.explained
    written = explore_pretrained(t5(), PAIRS, SENTENCE, "the street was tired", changes=True)
    assert written.written == "target"
    assert set(written.explained) == set(range(len(written.texts["target"])))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: pretrained_relevance(bert(), PIECES, SENTENCE), UnsupportedError, "no head"),
        (
            lambda: pretrained_relevance(bert("BertForMaskedLM"), PIECES, SENTENCE),
            ArgumentError,
            r"write \[MASK\]",
        ),
        (
            lambda: pretrained_relevance(classifier(), PIECES, SENTENCE, "LABEL_7"),
            ArgumentError,
            "label_0",
        ),
        (
            lambda: pretrained_relevance(classifier(), PIECES, SENTENCE, lens="rollout"),
            UnsupportedError,
            "no position",
        ),
        (
            lambda: pretrained_relevance(mistral(), BYTES, SENTENCE, "cat"),
            ArgumentError,
            "'cat' was not",
        ),
        (
            lambda: pretrained_relevance(mistral(), BYTES, SENTENCE, "tired", ["tired"]),
            ArgumentError,
            "same sub-word",
        ),
        (
            lambda: ablate(attach(mistral()), BYTES, [SENTENCE]),
            UnsupportedError,
            "MistralForCausalLM",
        ),
        (
            lambda: ablate(Pretrained(mistral(), BYTES), BYTES, [SENTENCE], measure="bleu"),
            UnsupportedError,
            "BLEU",
        ),
    ],
)
def test_what_cannot_be_explained_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_a_masked_word_may_be_named():
    relevance = pretrained_relevance(bert("BertForMaskedLM"), PIECES, SENTENCE, ",", ["."])
    assert (relevance.word, relevance.others) == (",", (".",))
    assert "[MASK]" in relevance.source_words
    assert "," not in relevance.source_words
    with pytest.raises(ArgumentError, match="sub-words, and a mask stands for one"):
        pretrained_relevance(bert("BertForMaskedLM"), PIECES, SENTENCE, "street")


def test_a_model_without_a_head_has_scores_of_attention():
    assert len(head_scores(Pretrained(bert(), PIECES), length=6, texts=2)["previous"]) == 8
