"""Agreement of predictions, bytes of caches, and folders that are refused."""

import math

import pytest
import torch
import torch.nn.functional as F

from regard.errors import OccupiedError
from regard_lab.conversion import load_converted, uptraining
from regard_lab.conversion.uptraining import Uptraining, agreement, agreement_on_task, held_out_task
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.text import PAD, Tokeniser

TEXT = "".join(f"the bird number {n} sang in the street,\n  and rain fell.\n\n" for n in range(60))
PAIRS = "".join(f"the bird number {n} sang\tder Vogel Nummer {n} sang\n" for n in range(90))


def logits_and_targets(model, batch):
    if isinstance(model, TextEncoder):
        return model(batch.ids, batch.places), batch.words
    inputs = (
        (batch.source, batch.target) if isinstance(model, TranslationTransformer) else (batch.ids,)
    )
    scored = batch.next != PAD
    return model(*inputs)[scored], batch.next[scored]


@pytest.mark.parametrize("kind", [LanguageModel, TextEncoder, TranslationTransformer])
def test_agreement_is_that_of_the_predictions(kind, tmp_path):
    text = tmp_path / "text.tsv"
    text.write_text(PAIRS if kind is TranslationTransformer else TEXT)
    tokeniser = Tokeniser.train([TEXT, PAIRS], 300, verbatim=kind is LanguageModel)
    model, changed = (
        kind(kind.Config(vocab_size=tokeniser.vocab_size, dim=32, heads=4)).eval() for _ in range(2)
    )
    config = Uptraining.Config(texts=(str(text),), block=32, batch_tokens=256)
    task = held_out_task(model, {TOKENISER_FILE: tokeniser.to_json()}, config)
    with torch.no_grad():
        pairs = [
            (*logits_and_targets(model, batch), logits_and_targets(changed, batch)[0])
            for batch in task.validation_batches()
        ]
    first, targets, second = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    measured = agreement_on_task(model, changed, task)
    assert measured.ids == len(targets)
    assert measured.loss == pytest.approx(
        [float(F.cross_entropy(logits, targets)) for logits in (first, second)], rel=1e-5
    )
    expected = F.kl_div(
        second.log_softmax(-1), first.log_softmax(-1), reduction="batchmean", log_target=True
    )
    assert measured.divergence == pytest.approx(float(expected), rel=1e-4)
    assert measured.agreement == pytest.approx(
        float((first.argmax(-1) == second.argmax(-1)).float().mean())
    )
    assert measured.to_dict()["perplexity"][1] == pytest.approx(math.exp(measured.loss[1]))
    assert agreement([(first, first, targets)]).divergence == 0


def test_bytes_of_real_caches_fall_with_the_heads(tmp_path):
    LanguageModel(LanguageModel.Config(vocab_size=23, dim=32, heads=8, layers=2)).save(
        tmp_path / "eight"
    )
    done = load_converted(tmp_path / "eight", 2)
    held = [model.start(torch.full((1, 16), 4)).nbytes / 16 for model in (done.before, done.after)]
    assert held == [*done.report.kv_bytes["token"]] == [2 * 2 * 32 * 4, 2 * 2 * 8 * 4]


@pytest.mark.parametrize("texts", [(), ("text.txt",)])
def test_a_folder_that_holds_something_else_is_refused_before_any_work(
    texts, tmp_path, monkeypatch
):
    for name in ("load_original", "convert_kv_heads"):
        monkeypatch.setattr(
            uptraining,
            name,
            lambda *arguments, **options: pytest.fail("it worked before it refused"),
        )
    out = tmp_path / "out"
    out.mkdir()
    (out / "diary.txt").write_text("today")
    with pytest.raises(OccupiedError, match="out is not an earlier conversion"):
        Uptraining(Uptraining.Config(texts=texts)).convert(tmp_path / "in", out, 2)
