"""The same weights, the same tokens: Hugging Face's `generate` and ours."""

import itertools

import hugging_face_models
import pytest
import torch

from regard_lab.decoding import beam_search, greedy_search
from regard_lab.decoding.sampling import filtered_probabilities
from regard_lab.text import BEGIN, END, PAD, UNKNOWN

MAKERS = ("llama", "gpt2", "marian")
# no search of ours chooses them; suppressed and renormalised, theirs are the same
NEVER = [
    PAD,
    UNKNOWN,
    BEGIN,
]


@pytest.fixture(scope="module", params=MAKERS)
def models(request):
    return getattr(hugging_face_models, request.param)(pytest.importorskip("transformers"))


@pytest.fixture(scope="module")
def texts(models):
    """Ids of unequal lengths. Their prompts are padded on the left; on the right their sources, for their encoder
    counts what stands on the left as places."""
    ids = torch.randint(
        4, hugging_face_models.VOCAB, (5, 9), generator=torch.Generator().manual_seed(2)
    )
    for row, padding in enumerate((0, 3, 1, 5, 0)):
        ids[row, :padding] = PAD
    return ids.flip(1) if models[0].config.is_encoder_decoder else ids


def theirs_of(model, texts, **options):
    """What they generate: new ids of each row up to END, and scores if asked."""
    outputs = model.generate(
        texts,
        attention_mask=(texts != PAD).long(),
        max_new_tokens=20,
        suppress_tokens=NEVER,
        renormalize_logits=True,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    begin = 1 if model.config.is_encoder_decoder else texts.shape[1]
    rows = [row[begin:].tolist() for row in outputs.sequences]
    return [
        tuple(row[: row.index(END)] if END in row else [i for i in row if i != PAD]) for row in rows
    ], outputs


def test_scores_are_the_same(models, texts):
    theirs, ours = models
    whole = texts[:1]  # without padding, whose own scores mean nothing
    if theirs.config.is_encoder_decoder:
        target = torch.cat([torch.tensor([[BEGIN]]), whole], 1)
        expected = theirs(input_ids=whole, decoder_input_ids=target).logits
        scores = ours(whole, target)
    else:
        expected = theirs(whole).logits
        scores = ours(whole)
    assert expected.std() > 0.3
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_greedy_search_gives_their_tokens(models, texts):
    theirs, ours = models
    expected, _ = theirs_of(theirs, texts, do_sample=False)
    assert [hypothesis.ids for hypothesis in greedy_search(ours, texts, 20)] == expected
    assert len(set(expected)) >= 3


@pytest.mark.each_value
@pytest.mark.parametrize(("normalisation", "penalty"), [("none", 0.0), ("average", 1.0)])
@pytest.mark.parametrize("count", [1, 4])
def test_beam_search_gives_their_tokens_and_scores(models, texts, normalisation, penalty, count):
    theirs, ours = models
    expected, outputs = theirs_of(
        theirs,
        texts,
        do_sample=False,
        num_beams=4,
        length_penalty=penalty,
        early_stopping="never",
        num_return_sequences=count,
    )
    rows = beam_search(ours, texts, 4, count=count, normalisation=normalisation, max_tokens=20)
    hypotheses = list(itertools.chain.from_iterable(rows))
    assert [hypothesis.ids for hypothesis in hypotheses] == expected
    scores = torch.tensor([hypothesis.score for hypothesis in hypotheses])
    torch.testing.assert_close(scores, outputs.sequences_scores, rtol=1e-4, atol=1e-4)


def test_draws_are_made_from_their_filtered_probabilities(models, texts):
    """Their drawn ids are fed to our model: at each step both would draw the next from the same probabilities."""
    theirs, ours = models
    torch.manual_seed(3)
    filters = {"temperature": 0.7, "top_k": 17, "top_p": 0.8, "min_p": 0.05}
    _, outputs = theirs_of(theirs, texts, do_sample=True, **filters)
    first = 1 if theirs.config.is_encoder_decoder else texts.shape[1]
    new = outputs.sequences[:, first:]
    state = ours.start(texts)
    scores = getattr(state, "next_scores", None)
    scores = ours.step(torch.full((len(texts),), BEGIN), state) if scores is None else scores
    for place, expected in enumerate(outputs.scores):
        going = ~(new[:, :place] == END).any(1)
        scores = scores.detach().clone()
        scores[:, NEVER] = -torch.inf
        likely = filtered_probabilities(scores, **filters)
        torch.testing.assert_close(likely[going], expected.softmax(-1)[going], rtol=1e-4, atol=1e-5)
        scores = ours.step(new[:, place], state)
