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

from regard.integrations.transformers import attach, detach, explain
from regard.integrations.transformers.windowed import WINDOWED

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


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, SIDE, SIDE)}


def small_images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def spectrograms() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(2, 1, 256, 16)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, torch.Tensor]]]] = {
    "Swin": (lambda: SwinModel(SwinConfig(**SWIN)), images),
    "Swin v2": (lambda: Swinv2Model(Swinv2Config(**SWIN)), images),
    "Swin2SR": (
        lambda: Swin2SRModel(Swin2SRConfig(**SWIN | {"image_size": 16, "patch_size": 1})),
        small_images,
    ),
    "Donut": (lambda: DonutSwinModel(DonutSwinConfig(**SWIN)), images),
    "MaskFormer": (lambda: MaskFormerSwinModel(MaskFormerSwinConfig(**SWIN)), images),
    "CLAP": (lambda: ClapAudioModel(ClapAudioConfig(**CLAP)), spectrograms),
    "SAM": (lambda: SamVisionModel(SamVisionConfig(**SAM)), images),
    "SAM, eager": (
        lambda: SamVisionModel._from_config(SamVisionConfig(**SAM), attn_implementation="eager"),
        images,
    ),
    "SAM-HQ": (lambda: SamHQVisionModel(SamHQVisionConfig(**SAM)), images),
    "GOT-OCR 2": (lambda: GotOcr2VisionEncoder(GotOcr2VisionConfig(**SAM)), images),
    "ViTDet": (lambda: VitDetModel(VitDetConfig(**VITDET)), images),
}


def made(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model whose tables of offsets are drawn too, and inputs for it."""
    torch.manual_seed(3)
    make, draw_inputs = MODELS[name]
    model = make().eval()
    for parameter_name, parameter in model.named_parameters():
        if "rel_pos" in parameter_name or "bias_table" in parameter_name:
            nn.init.normal_(parameter)
    return model, draw_inputs()


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


@torch.no_grad()
@pytest.mark.parametrize("name", ["Swin v2", "Swin2SR"])
def test_large_scales_of_cosines_give_the_same_output(name):
    """Up to 181, of which 100 is the most; scores then reach beyond what the mask of windows adds once."""
    model, inputs = made(name)
    model.double()
    for parameter_name, parameter in model.named_parameters():
        if "logit_scale" in parameter_name:
            nn.init.uniform_(parameter, 3.0, 5.2)
    inputs = {name: x.double() for name, x in inputs.items()}
    expected = model(**inputs)[0]
    torch.testing.assert_close(attach(model)(**inputs)[0], expected, atol=1e-9, rtol=1e-9)


# Swin calls registered attention, and ViTDet drops no weights.
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("Swin", "ViTDet")])
def test_weights_are_dropped_at_the_models_rate_while_it_trains(name):
    model, inputs = made(name)
    attach(model)
    for module in model.modules():
        if not isinstance(module, tuple(WINDOWED.values())):
            continue
        if isinstance(module.dropout, nn.Dropout):
            module.dropout.p = 0.31
        else:
            module.dropout = 0.31
    calls = explain(model.train(), inputs).calls
    assert calls
    assert all("dropout 0.31" in call.options for call in calls)
    assert not any("dropout 0.31" in call.options for call in explain(model.eval(), inputs).calls)


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
