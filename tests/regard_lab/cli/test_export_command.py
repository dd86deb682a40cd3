"""`regard export` writes what onnxruntime computes as the model does, or says in a sentence why it cannot."""

from importlib import import_module

import pytest
import torch
from commanding import regard, succeeded

from regard_lab.models import (
    EncoderConfig,
    LanguageConfig,
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
    exporting,
)

SIZES = {"vocab_size": 20, "dim": 8, "heads": 2}
MODELS = {
    "language": lambda: LanguageModel(
        LanguageConfig(layers=1, positions="learned", max_length=12, **SIZES)
    ),
    "encoder": lambda: TextEncoder(EncoderConfig(layers=1, head="classes", classes=3, **SIZES)),
    "translator": lambda: TranslationTransformer(TranslationTransformer.Config(**SIZES)),
}


def test_what_cannot_be_exported_is_refused_in_a_sentence_and_nothing_is_written(
    tmp_path, monkeypatch
):
    language = tmp_path / "model"
    recurrent = tmp_path / "recurrent"
    MODELS["language"]().save(language)
    RecurrentTranslator(RecurrentTranslator.Config(vocab_size=20, dim=8, hidden=8)).save(recurrent)

    def without_onnx(name):
        if name == "onnx":
            raise ModuleNotFoundError("no onnx", name="onnx")
        return import_module(name)

    monkeypatch.setattr(exporting, "import_module", without_onnx)
    file = tmp_path / "model.onnx"
    for folder, name, words in (
        (language, tmp_path / "model.txt", "ends in .onnx"),
        (recurrent, file, "whose loop over the words is not exported"),
        (language, file, "an ONNX file needs the package 'onnx'"),
    ):
        answer = regard("export", folder, "--onnx", name)
        assert (answer.returncode in (1, 2), words in answer.last, name.exists()) == (
            True,
            True,
            False,
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_an_exported_model_is_computed_by_onnxruntime(kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="needs pip install 'regard[onnx]'")
    model = MODELS[kind]().eval()
    file = tmp_path / "model.onnx"
    model.save(tmp_path / "model")
    printed = succeeded("export", tmp_path / "model", "--onnx", file).out
    assert float(printed.split()[-1]) < 1e-5
    session = runtime.InferenceSession(file)
    ids = [torch.randint(1, 20, (3, 7)) for _ in session.get_inputs()]
    ids[0][0, :3] = 0
    inputs = {read.name: x.numpy() for read, x in zip(session.get_inputs(), ids, strict=True)}
    torch.testing.assert_close(
        torch.from_numpy(session.run(["scores"], inputs)[0]), model(*ids), rtol=0, atol=1e-5
    )
