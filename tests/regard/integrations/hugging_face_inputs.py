"""Inputs of architectures that no generic input fits, for the small models of `hugging_face_small`.

Each function gets the model and `draw`, which draws numbers of a shape; it returns the keywords of a call.
"""

from collections.abc import Callable
from typing import Any

import torch

ROWS = 2
WORDS = 9  # of a text
Draw = Callable[..., torch.Tensor]


def inputs_of(kind: str, model: Any) -> dict[str, Any] | None:
    """The inputs of a type of model; None if it has none here."""
    make = INPUTS.get(kind)
    if make is None:
        return None
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return make(model, draw)


def words(draw: Draw, length: int = WORDS) -> torch.Tensor:
    """Ids (rows, length) between 20 and 60."""
    return 20 + (draw(ROWS, length).abs() * 1000).long() % 40


def spectrogram(model: Any, draw: Draw) -> dict[str, Any]:
    config = model.config
    return {"input_values": draw(ROWS, config.max_length, config.num_mel_bins)}


def words_and_sound(model: Any, draw: Draw) -> dict[str, Any]:
    """A spectrogram that fills the image into which it is folded."""
    config = model.config.audio_config
    frames = config.spec_size**2 // config.num_mel_bins
    return {
        "input_ids": words(draw),
        "input_features": draw(ROWS, 1, frames, config.num_mel_bins),
        "is_longer": torch.zeros(ROWS, 1, dtype=torch.bool),
    }


def image_before_text(model: Any, draw: Draw) -> dict[str, Any]:
    """As many placeholders of the image as there are queries, and then words."""
    config = model.config
    placeholders = torch.full((ROWS, config.num_query_tokens), config.image_token_index)
    size = config.vision_config.image_size
    return {
        "input_ids": torch.cat((placeholders, words(draw)), 1),
        "pixel_values": draw(ROWS, 3, size, size),
    }


def image_before_instruction(model: Any, draw: Draw) -> dict[str, Any]:
    return image_before_text(model, draw) | {"qformer_input_ids": words(draw)}


def video_before_instruction(model: Any, draw: Draw) -> dict[str, Any]:
    """Two frames, each with its queries."""
    config = model.config
    size = config.vision_config.image_size
    placeholders = torch.full((ROWS, 2 * config.num_query_tokens), config.video_token_index)
    return {
        "input_ids": torch.cat((placeholders, words(draw)), 1),
        "pixel_values": draw(ROWS, 2, 3, size, size),
        "qformer_input_ids": words(draw),
    }


def queries_of_an_image(model: Any, draw: Draw) -> dict[str, Any]:
    config = model.config
    return {
        "query_embeds": draw(ROWS, 5, config.hidden_size),
        "encoder_hidden_states": draw(ROWS, 7, config.encoder_hidden_size),
    }


def words_that_look_at_images(model: Any, draw: Draw) -> dict[str, Any]:
    size = model.config.vision_config.image_size
    return {
        "input_ids": words(draw),
        "pixel_values": draw(ROWS, 1, 3, size, size),
        "image_attention_mask": torch.ones(ROWS, WORDS, 1, dtype=torch.long),
    }


def image_at_marked_places(model: Any, draw: Draw) -> dict[str, Any]:
    config = model.config
    size = config.vision_config.image_size
    marked = torch.zeros(ROWS, config.latent_query_num + WORDS, dtype=torch.long)
    marked[:, 1 : 1 + config.latent_query_num] = 1
    return {
        "input_ids": words(draw, marked.shape[1]),
        "pixel_values": draw(ROWS, 3, size, size),
        "image_embeds_position_mask": marked,
    }


def returns_and_actions(model: Any, draw: Draw) -> dict[str, Any]:
    config = model.config
    steps = torch.arange(WORDS).expand(ROWS, WORDS)
    return {
        "states": draw(ROWS, WORDS, config.state_dim),
        "actions": draw(ROWS, WORDS, config.act_dim),
        "rewards": draw(ROWS, WORDS, 1),
        "returns_to_go": draw(ROWS, WORDS, 1),
        "timesteps": steps,
        "attention_mask": torch.ones(ROWS, WORDS),
    }


def series(model: Any, draw: Draw) -> dict[str, Any]:
    config = model.config
    past = config.context_length + max(config.lags_sequence)
    future = config.prediction_length
    return {
        "past_values": draw(ROWS, past),
        "past_time_features": draw(ROWS, past, config.num_time_features),
        "past_observed_mask": torch.ones(ROWS, past),
        "future_values": draw(ROWS, future),
        "future_time_features": draw(ROWS, future, config.num_time_features),
    }


def channels_of_a_series(model: Any, draw: Draw) -> dict[str, Any]:
    config = model.config
    return {"past_values": draw(ROWS, config.context_length, config.num_input_channels)}


def one_series(model: Any, draw: Draw) -> dict[str, Any]:
    """Four patches, none of which is padding: where a query has no key, regard and eager attention differ."""
    length = 4 * model.config.patch_length
    padding = torch.zeros(ROWS, length, dtype=torch.long)
    return {"past_values": draw(ROWS, length), "past_values_padding": padding}


def one_series_of_a_frequency(model: Any, draw: Draw) -> dict[str, Any]:
    return one_series(model, draw) | {"freq": torch.zeros(ROWS, 1, dtype=torch.long)}


def patches_with_their_places(model: Any, draw: Draw) -> dict[str, Any]:
    """Each patch begins with its row and its column."""
    config = model.config.vision_config
    patches = draw(ROWS, 6, 2 + config.patch_embed_hidden_size)
    patches[..., 0] = torch.tensor([1, 1, 1, 2, 2, 2])
    patches[..., 1] = torch.tensor([1, 2, 3, 1, 2, 3])
    return {"flattened_patches": patches, "decoder_input_ids": words(draw)}


def patches_of_any_shape(model: Any, draw: Draw) -> dict[str, Any]:
    """Two rows of three patches; the second image has one row."""
    config = getattr(model.config, "vision_config", model.config)
    seen = torch.ones(ROWS, 6, dtype=torch.long)
    seen[1, 3:] = 0
    return {
        "pixel_values": draw(ROWS, 6, config.num_channels * config.patch_size**2),
        "pixel_attention_mask": seen,
        "spatial_shapes": torch.tensor([[2, 3], [1, 3]]),
    }


def words_and_patches(model: Any, draw: Draw) -> dict[str, Any]:
    length = model.config.text_config.max_position_embeddings
    return patches_of_any_shape(model, draw) | {"input_ids": words(draw, min(WORDS, length))}


def video(model: Any, draw: Draw) -> dict[str, Any]:
    config = getattr(model.config, "vision_config", model.config)
    frames = getattr(config, "frames_per_clip", None) or config.num_frames
    size = getattr(config, "crop_size", None) or config.image_size
    return {"pixel_values_videos": draw(ROWS, frames, 3, size, size)}


def words_and_video(model: Any, draw: Draw) -> dict[str, Any]:
    return video(model, draw) | {"input_ids": words(draw)}


def words_and_frames(model: Any, draw: Draw) -> dict[str, Any]:
    config = model.config.vision_config
    size = config.image_size
    return {
        "input_ids": words(draw),
        "pixel_values": draw(ROWS, config.num_frames, 3, size, size),
        "attention_mask": torch.ones(ROWS, WORDS, dtype=torch.long),
    }


def codes_of_each_channel(model: Any, draw: Draw) -> dict[str, Any]:
    channels = model.config.decoder_config.num_channels
    codes = words(draw, 5 * channels).unflatten(1, (5, channels))
    return {"input_ids": words(draw), "decoder_input_ids": codes}


def words_on_a_page(model: Any, draw: Draw) -> dict[str, Any]:
    corners = torch.tensor([0.1, 0.2, 0.4, 0.5])
    places = torch.arange(WORDS)[:, None] / 40
    return {
        "input_ids": words(draw),
        "bbox": (corners + places).expand(ROWS, WORDS, 4),
        "decoder_input_ids": words(draw, 5),
    }


INPUTS: dict[str, Callable[[Any, Draw], dict[str, Any]]] = {
    "audio-spectrogram-transformer": spectrogram,
    "blip-2": image_before_text,
    "blip_2_qformer": queries_of_an_image,
    "clap": words_and_sound,
    "decision_transformer": returns_and_actions,
    "dia": codes_of_each_channel,
    "idefics": words_that_look_at_images,
    "instructblip": image_before_instruction,
    "instructblipvideo": video_before_instruction,
    "kosmos-2": image_at_marked_places,
    "patchtst": channels_of_a_series,
    "pix2struct": patches_with_their_places,
    "siglip2": words_and_patches,
    "siglip2_vision_model": patches_of_any_shape,
    "time_series_transformer": series,
    "timesfm": one_series_of_a_frequency,
    "timesfm2_5": one_series,
    "udop": words_on_a_page,
    "videoprism": words_and_video,
    "videoprism_vision_model": video,
    "vjepa2": video,
    "xclip": words_and_frames,
}
