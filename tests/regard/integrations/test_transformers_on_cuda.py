"""On a GPU: models of transformers give the numbers of eager attention there, and train and generate as it does."""

import pytest
import torch

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
from hugging_face_families import BY_NAME

from regard.integrations.torch import replaced_attention
from regard.integrations.transformers import observe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's compiler
]
NAMES = (
    "Llama",
    "Mistral",
    "Gemma 2",
    "gpt-oss",
    "BERT",
    "ModernBERT",
    "BART",
    "Longformer",
    "BigBird",
)
WAYS = ("greedy", "beams", "static")
ROUNDING = 1e-4  # of logits; the kernels add in another order than eager attention


@pytest.fixture(autouse=True)
def _fresh_memory_is_poisoned() -> None:
    """Not here: it asks for deterministic operations, and on cuda not every operation is."""


@pytest.fixture(autouse=True)
def _inputs_on_the_gpu(monkeypatch):
    made = checks.inputs_of

    def inputs_of(*args):
        inputs, unpadded = made(*args)
        inputs = {name: x.to("cuda") for name, x in inputs.items()}
        return inputs, None if unpadded is None else unpadded.to("cuda")

    monkeypatch.setattr(checks, "inputs_of", inputs_of)


@pytest.mark.parametrize("padding", checks.PADDINGS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_eager_attention(name, padding):
    family = BY_NAME[name]
    assert checks.logits(family, family.model().to("cuda"), padding) <= ROUNDING


@pytest.mark.parametrize("name", ["Mistral", "gpt-oss", "BART"])
def test_gradients_are_those_of_eager_attention(name):
    family = BY_NAME[name]
    assert checks.gradients(family, family.model().to("cuda")) <= 10 * checks.GRADIENTS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["Llama", "Mistral", "gpt-oss"])
def test_generate_writes_the_same_tokens(name, way):
    family = BY_NAME[name]
    assert checks.same_tokens(family, family.model().to("cuda"), way)


def test_observed_statistics_are_those_of_the_cpu():
    family = BY_NAME["Mistral"]
    statistics = []
    for device in ("cuda", "cpu"):
        model = family.model().to(device)
        checks.use(family, model, "regard")
        ids = torch.arange(3, 17).repeat(2, 1).to(device)
        with torch.no_grad(), observe(model, ("entropy", "received")) as observed:
            model(ids)
        entropies = [call.entropy.cpu() for call in observed.calls]
        received = [call.received.cpu() for call in observed.calls]
        assert len(entropies) == 3
        statistics.append(entropies + received)
    torch.testing.assert_close(*statistics, rtol=1e-4, atol=1e-4)


def test_replaced_attention_computes_pytorchs_encoder():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).to("cuda")
    x = torch.randn(3, 19, 32, device="cuda")
    padding = torch.arange(19, device="cuda") >= torch.tensor([19, 11, 5], device="cuda")[:, None]
    model.train(mode=False)
    expected = model(x, src_key_padding_mask=padding)
    with replaced_attention():
        output = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(output[~padding], expected[~padding], rtol=1e-4, atol=1e-4)
