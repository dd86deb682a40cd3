"""Distillation, agreement of predictions, and the report that is written."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from regard.errors import OccupiedError
from regard_lab.conversion import load_converted, uptraining
from regard_lab.conversion.heads import Change, Conversion, Likeness
from regard_lab.conversion.report import (
    ConversionReport,
    Uptrained,
    agreement,
    agreement_on_task,
)
from regard_lab.conversion.uptraining import Distillation, Uptraining, held_out_task
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.text import PAD, Tokeniser

TEXT = "".join(f"the bird number {n} sang in the street,\n  and rain fell.\n\n" for n in range(60))
PAIRS = "".join(f"the bird number {n} sang\tder Vogel Nummer {n} sang\n" for n in range(90))
KINDS = {"language": LanguageModel, "encoder": TextEncoder, "translator": TranslationTransformer}


@pytest.fixture(params=KINDS)
def prepared(request, tmp_path):
    """An untrained model, another, and their task."""
    text = tmp_path / "text.tsv"
    text.write_text(PAIRS if request.param == "translator" else TEXT)
    tokeniser = Tokeniser.train([TEXT, PAIRS], 300, verbatim=request.param == "language")
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        kind = KINDS[request.param]
        models.append(kind(kind.Config(vocab_size=tokeniser.vocab_size, dim=32, heads=4)).eval())
    config = Uptraining.Config(texts=(str(text),), block=32, batch_tokens=256)
    return *models, held_out_task(models[0], {TOKENISER_FILE: tokeniser.to_json()}, config)


def logits_and_targets(model, batch):
    if isinstance(model, TextEncoder):
        return model(batch.ids, batch.places), batch.words
    inputs = (batch.source, batch.target) if isinstance(model, TranslationTransformer) else (batch.ids,)
    kept = batch.next != PAD
    return model(*inputs)[kept], batch.next[kept]


def test_the_distilled_loss_is_half_cross_entropy_and_half_divergence(prepared):
    model, teacher, task = prepared
    batch = task.batch(0)
    loss, count = Distillation(task, teacher).loss(model, batch)
    (logits, targets), (expected, _) = (logits_and_targets(each, batch) for each in (model, teacher))
    divergence = F.kl_div(logits.log_softmax(-1), expected.log_softmax(-1), reduction="sum", log_target=True)
    plain, _ = task.loss(model, batch)  # a translator smooths its targets
    torch.testing.assert_close(loss, 0.5 * plain + 0.5 * divergence)
    assert int(count) == len(targets)
    same, _ = Distillation(task, model).loss(model, batch)
    torch.testing.assert_close(same, 0.5 * plain)


def test_only_the_student_gets_gradients(prepared):
    model, teacher, task = prepared
    loss, _ = Distillation(task, teacher).loss(model.requires_grad_(True), task.batch(0))
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_agreement_is_that_of_the_predictions(prepared):
    model, other, task = prepared
    with torch.no_grad():
        pairs = [(*logits_and_targets(model, batch), logits_and_targets(other, batch)[0])
                 for batch in task.validation_batches()]  # fmt: skip
    first, targets, second = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    found = agreement_on_task(model, other, task)
    assert found.ids == len(targets)
    assert found.loss == pytest.approx([float(F.cross_entropy(each, targets)) for each in (first, second)], rel=1e-5)
    expected = F.kl_div(second.log_softmax(-1), first.log_softmax(-1), reduction="batchmean", log_target=True)
    assert found.divergence == pytest.approx(float(expected), rel=1e-4)
    assert found.agreement == pytest.approx(float((first.argmax(-1) == second.argmax(-1)).float().mean()))
    assert found.to_dict()["perplexity"][1] == pytest.approx(math.exp(found.loss[1]))
    assert agreement([(first, first, targets)]).divergence == 0


def test_bytes_of_real_caches_fall_with_the_heads(tmp_path):
    LanguageModel(LanguageModel.Config(vocab_size=23, dim=32, heads=8, layers=2)).save(tmp_path / "eight")
    done = load_converted(tmp_path / "eight", 2)
    held = [model.start(torch.full((1, 16), 4)).nbytes / 16 for model in (done.before, done.after)]
    assert held == [*done.report.kv_bytes["token"]] == [2 * 2 * 32 * 4, 2 * 2 * 8 * 4]


def test_without_a_text_the_report_says_that_the_model_needs_training(tmp_path):
    done = Conversion("llama", "mean", 8, {"kv_heads": Change(8, 2)}, Change(900, 750), {"token": Change(256, 64)},
                      likeness=(Likeness("layers.0", (0.1, 0.2), (0.1, 0.2)),))  # fmt: skip
    ConversionReport(Uptrained(done)).write(tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Not measured: no text was given." in text
    assert "train the model before you rely on its outputs" in text
    assert "| layers.0 | 0.10 | 0.10 | 0.20 | 0.20 |" in text
    content = json.loads((tmp_path / "report" / "report.json").read_text())
    assert content["predictions"] is None
    assert content["conversion"]["likeness"][0]["pooled"] == [0.1, 0.2]
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.md", "report.json"}


@pytest.mark.parametrize("texts", [(), ("text.txt",)])
def test_a_folder_that_holds_something_else_is_refused_before_any_work(texts, tmp_path, monkeypatch):
    for name in ("load_original", "convert_kv_heads"):
        monkeypatch.setattr(uptraining, name, lambda *given, **options: pytest.fail("it worked before it refused"))
    out = tmp_path / "out"
    out.mkdir()
    (out / "diary.txt").write_text("today")
    with pytest.raises(OccupiedError, match="out is not an earlier conversion"):
        Uptraining(Uptraining.Config(texts=texts)).convert(tmp_path / "in", out, 2)
