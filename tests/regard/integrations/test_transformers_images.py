"""Image encoders with biases of their own, attached: the numbers, gradients and memory of what they compute alone."""

from collections.abc import Callable

import pytest
import torch
from measuring import Largest
from torch import nn
from transformers import (
    ClapAudioConfig,
    ClapAudioModel,
    Swin2SRConfig,
    Swin2SRModel,
    SwinConfig,
    SwinModel,
    Swinv2Config,
    Swinv2Model,
    VitDetConfig,
    VitDetModel,
)
from transformers.models.donut.modeling_donut_swin import DonutSwinConfig, DonutSwinModel
from transformers.models.got_ocr2.configuration_got_ocr2 import GotOcr2VisionConfig
from transformers.models.got_ocr2.modeling_got_ocr2 import GotOcr2VisionEncoder
from transformers.models.maskformer.modeling_maskformer_swin import (
    MaskFormerSwinConfig,
    MaskFormerSwinModel,
)
from transformers.models.sam.configuration_sam import SamVisionConfig
from transformers.models.sam.modeling_sam import SamVisionModel
from transformers.models.sam_hq.configuration_sam_hq import SamHQVisionConfig
from transformers.models.sam_hq.modeling_sam_hq import SamHQVisionModel

from regard.integrations.transformers import attach, detach

SIDE = 52  # of an image: 13 patches of 4, so that windows are padded
SWIN = {
    "image_size": SIDE,
    "patch_size": 4,
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 4,
}
SAM = {
    "hidden_size": 24,
    "output_channels": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 4,
    "window_size": 5,
    "global_attn_indexes": [1],
    "mlp_dim": 32,
    "num_pos_feats": 4,
    "use_rel_pos": True,
}
VITDET = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 4,
    "window_size": 5,
    "window_block_indices": [0],
    "use_relative_position_embeddings": True,
}
CLAP = {
    "window_size": 4,
    "num_mel_bins": 16,
    "spec_size": 64,
    "patch_size": 4,
    "patch_stride": [4, 4],
    "num_classes": 5,
    "hidden_size": 24,
    "patch_embeds_hidden_size": 12,
    "depths": [2, 2],
    "num_attention_heads": [2, 3],
    "enable_fusion": False,
}


def image_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, SIDE, SIDE)}


def small_image_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def spectrogram_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(2, 1, 256, 16)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], dict]]] = {
    "Swin": (lambda: SwinModel(SwinConfig(**SWIN)), image_of),
    "Swin v2": (lambda: Swinv2Model(Swinv2Config(**SWIN)), image_of),
    "Swin2SR": (
        lambda: Swin2SRModel(Swin2SRConfig(**SWIN | {"image_size": 16, "patch_size": 1})),
        small_image_of,
    ),
    "Donut": (lambda: DonutSwinModel(DonutSwinConfig(**SWIN)), image_of),
    "MaskFormer": (lambda: MaskFormerSwinModel(MaskFormerSwinConfig(**SWIN)), image_of),
    "CLAP": (lambda: ClapAudioModel(ClapAudioConfig(**CLAP)), spectrogram_of),
    "SAM": (lambda: SamVisionModel(SamVisionConfig(**SAM)), image_of),
    "SAM, eager": (
        lambda: SamVisionModel._from_config(SamVisionConfig(**SAM), attn_implementation="eager"),
        image_of,
    ),
    "SAM-HQ": (lambda: SamHQVisionModel(SamHQVisionConfig(**SAM)), image_of),
    "GOT-OCR 2": (lambda: GotOcr2VisionEncoder(GotOcr2VisionConfig(**SAM)), image_of),
    "ViTDet": (lambda: VitDetModel(VitDetConfig(**VITDET)), image_of),
}


def made(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model whose tables of offsets are drawn too, and inputs for it."""
    torch.manual_seed(3)
    make, inputs_of = MODELS[name]
    model = make().eval()
    for parameter_name, parameter in model.named_parameters():
        if "rel_pos" in parameter_name or "bias_table" in parameter_name:
            nn.init.normal_(parameter)
    return model, inputs_of(model)


def output_and_gradients(
    model: nn.Module, inputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    output = model(**inputs)[0]
    model.zero_grad()
    output.square().mean().backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
    return output.detach(), gradients


@pytest.mark.parametrize("name", MODELS)
def test_an_attached_encoder_gives_the_same_output_and_gradients(name):
    model, inputs = made(name)
    expected, expected_gradients = output_and_gradients(model, inputs)
    attach(model)
    output, gradients = output_and_gradients(model, inputs)
    torch.testing.assert_close(output, expected, atol=2e-5, rtol=2e-4)
    assert gradients.keys() == expected_gradients.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected_gradients[parameter], atol=2e-5, rtol=2e-3, msg=parameter
        )
    detach(model)
    again, _ = output_and_gradients(model, inputs)
    assert torch.equal(again, expected)


@pytest.mark.parametrize("name", ["SAM", "ViTDet"])
def test_no_score_of_each_pair_of_an_image_is_stored(name):
    """Rows and columns are further numbers of queries and keys in place of a bias."""
    model, inputs = made(name)
    pairs = 2 * 2 * (SIDE // 4) ** 4  # of two images and two heads
    with torch.no_grad():
        with Largest() as alone:
            model(**inputs)
        attach(model)
        with Largest() as attached:
            model(**inputs)
    assert alone.held >= pairs
    assert attached.held < 0.7 * pairs
