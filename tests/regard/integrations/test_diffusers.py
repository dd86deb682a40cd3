"""Models of diffusers give what they gave before they were attached, and what each place looks at can be seen."""

from typing import Any

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.patterns.position_sets import KeySet, QuerySet

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of diffusers
diffusers = pytest.importorskip("diffusers", reason="needs pip install 'regard[diffusers]'")
from regard.integrations.diffusers import attach, detach, observe  # noqa: E402

SIDE = 8
WORDS = 5


def unet() -> tuple[Any, dict[str, Any]]:
    model = diffusers.UNet2DConditionModel(
        sample_size=SIDE,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=6,
        attention_head_dim=2,
        norm_num_groups=2,
    )
    return model, {
        "sample": torch.randn(2, 2, SIDE, SIDE),
        "timestep": torch.tensor([3, 7]),
        "encoder_hidden_states": torch.randn(2, WORDS, 6),
        "encoder_attention_mask": torch.arange(WORDS) < torch.tensor([[5], [3]]),
    }


def dit() -> tuple[Any, dict[str, Any]]:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=4,
        in_channels=2,
        num_layers=2,
        sample_size=SIDE,
        norm_num_groups=1,
    )
    return model, {
        "hidden_states": torch.randn(2, 2, SIDE, SIDE),
        "timestep": torch.tensor([3, 7]),
        "class_labels": torch.tensor([1, 2]),
    }


def flux() -> tuple[Any, dict[str, Any]]:
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=6,
        pooled_projection_dim=6,
        axes_dims_rope=(2, 2, 4),
    )
    places = torch.stack([torch.zeros(16), torch.arange(16.0) // 4, torch.arange(16.0) % 4], -1)
    return model, {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, WORDS, 6),
        "pooled_projections": torch.randn(2, 6),
        "timestep": torch.tensor([0.3, 0.7]),
        "img_ids": places,
        "txt_ids": torch.zeros(WORDS, 3),
    }


MODELS = {"U-Net": unet, "DiT": dit, "Flux": flux}


def output(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).sample


@pytest.mark.parametrize("kind", MODELS)
def test_an_attached_model_gives_what_it_gave_before(kind):
    model, inputs = MODELS[kind]()
    model.eval()
    before = output(model, inputs)
    with observe(attach(model), "entropy") as seen:
        torch.testing.assert_close(output(model, inputs), before, rtol=0, atol=1e-5)
    layers = [module for module in model.modules() if hasattr(module, "set_processor")]
    assert len(seen.calls) == len(layers)
    with pytest.raises(rg.ArgumentError, match="attached already"):
        attach(model)
    assert torch.equal(output(detach(model), inputs), before)


def test_every_model_of_an_attached_pipeline_gives_what_it_gave_before():
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        latent_channels=2, block_out_channels=(4,), norm_num_groups=2, sample_size=SIDE
    )
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=4,
        in_channels=2,
        out_channels=4,
        num_layers=1,
        sample_size=SIDE,
        norm_num_groups=1,
    )
    pipeline = diffusers.DiTPipeline(transformer, vae, diffusers.DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)

    def image() -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        drawn = pipeline([1, 2], generator=generator, num_inference_steps=2, output_type="np")
        return torch.from_numpy(drawn.images)

    before = image()
    with observe(attach(pipeline), "entropy") as seen:
        torch.testing.assert_close(image(), before, rtol=0, atol=1e-5)
    assert {name.split(".")[0] for name, _ in seen.calls} == {"transformer", "vae"}
    assert before.std() > 0.01
    detach(pipeline)
    assert torch.equal(image(), before)


def test_the_backend_of_the_dispatcher_is_regard():
    model, inputs = flux()
    before = output(model.eval(), inputs)
    model.set_attention_backend("regard")
    torch.testing.assert_close(output(model, inputs), before, rtol=0, atol=1e-5)
    attach(model, lambda call: "full")
    torch.testing.assert_close(output(model, inputs), before, rtol=0, atol=1e-5)


def neighbours(i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return ((i // 4 - j // 4).abs() <= 1) & ((i % 4 - j % 4).abs() <= 1)


def test_image_tokens_of_flux_look_at_their_neighbours_and_at_every_word():
    model, inputs = flux()
    text = KeySet((range(WORDS),)) | QuerySet((range(WORDS),))
    image = p.Where(lambda i, j: neighbours(i - WORDS, j - WORDS))
    attach(model.eval(), lambda call: text | image)
    with observe(model) as seen:
        output(model, inputs)
    places = torch.arange(16)
    allowed = torch.ones(WORDS + 16, WORDS + 16, dtype=torch.bool)
    allowed[WORDS:, WORDS:] = neighbours(places[:, None], places)
    for _, detail in seen.calls:
        assert ((detail.weights > 0) == allowed).all()


def test_a_unet_shows_which_words_each_place_looks_at_and_takes_a_window_for_the_image_alone():
    model, inputs = unet()
    attach(model.eval(), lambda call: None if call.cross else "sliding_window(8)")
    with observe(model) as seen:
        output(model, inputs)
    # of (batch, heads, places, words)
    places = {detail.weights.shape[2] for detail in seen.of("attn2")}
    assert places == {SIDE * SIDE, SIDE * SIDE // 4}
    for detail in seen.of("attn2"):
        assert detail.weights.shape[3] == WORDS
        assert not detail.weights[1, ..., 3:].any()  # words that are padding
    for detail in seen.of("attn1"):
        assert ((detail.weights > 0) == p.SlidingWindow(8).dense(*detail.weights.shape[2:])).all()
    with pytest.raises(rg.ArgumentError, match="attn3"):
        seen.of("attn3")


def test_a_processor_that_computes_attention_by_itself_is_refused_by_name():
    model, inputs = unet()
    model.set_attn_processor(diffusers.models.attention_processor.AttnProcessor())
    with pytest.raises(rg.UnsupportedError, match="in AttnProcessor itself"):
        output(attach(model), inputs)
    with pytest.raises(rg.ArgumentError, match="no attention layer of diffusers"):
        attach(torch.nn.Linear(2, 2))
    with (
        pytest.raises(rg.ArgumentError, match="needs an attached model"),
        observe(torch.nn.Linear(2, 2)),
    ):
        pass
