"""Tiny inputs that a model of transformers may take, made from its signature and its config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

__all__ = ["LENGTH", "ROWS", "tiny_inputs"]

ROWS = 3
LENGTH = 7  # ids of a row
PADDED = 2  # padded ids of the second row
FRAMES = 64  # of features of sound
SAMPLES = 4000  # of sound without features
MEL_BINS = 80
MORE_MEL_BINS = 128  # of encoders that name no number, such as Gemma 4's
IMAGE_SIZE = (64, 64)  # height and width
SOUND_CONFIGS = (
    "encoder_config",
    "audio_config",
)  # where models that hold an encoder keep its settings
MOST_WORDS = 1000  # ids that are drawn from
MEDIA_ROWS = 2  # of images and sounds


def tiny_inputs(
    part: PreTrainedModel, rows: int = ROWS, length: int = LENGTH
) -> Iterator[dict[str, Any]]:
    """Inputs that a model may take, by the names of its keywords: the first ones that it runs on are used.

    Of ids, the second row is padded, and the third is the first with another last word.
    """
    if part.device.type == "meta":
        return
    config = part.config
    takes = tuple(inspect.signature(type(part).forward).parameters)
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(part.device, part.dtype)

    image_size = _image_size(config)
    channels = _setting(config, "num_channels", "in_channels", "in_chans") or 3
    words = _words(part, rows, length, generator)
    pixels = {"pixel_values": drawn(MEDIA_ROWS, channels, *image_size)}

    beside: dict[str, Any] = {}
    if "use_cache" in takes:
        beside["use_cache"] = False
    if config.is_encoder_decoder and "decoder_input_ids" in takes:
        decoder_rows = rows if part.main_input_name == "input_ids" else MEDIA_ROWS
        beside["decoder_input_ids"] = words["input_ids"].flip(0)[:decoder_rows]

    if "visual_feats" in takes:  # of regions, with their boxes
        size = _setting(config, "visual_feat_dim") or 1
        places = {"visual_pos": drawn(rows, 5, _setting(config, "visual_pos_dim") or 1)}
        yield words | {"visual_feats": drawn(rows, 5, size)} | places | beside
    if "input_ids" in takes:
        yield words | beside
        if "bbox" in takes:  # of words on a page: left, top, right and bottom
            yield words | {"bbox": drawn(rows, length, 4).sigmoid()} | beside
        if "pixel_values" in takes:
            yield {name: ids[:MEDIA_ROWS] for name, ids in words.items()} | pixels | beside
    if "prompt_masks" in takes:  # an image under another one whose mask is known
        size = (image_size[0] // 2, image_size[1])
        names = ("pixel_values", "prompt_pixel_values", "prompt_masks")
        yield {name: drawn(MEDIA_ROWS, channels, *size) for name in names} | beside
    if "pixel_values" in takes:
        yield pixels | beside
        video_frames = _setting(config, "num_frames") or 2
        yield {"pixel_values": drawn(MEDIA_ROWS, video_frames, channels, *image_size)} | beside
    if "grid_thw" in takes:
        patch_frames = _setting(config, "temporal_patch_size") or 1
        patch_size = _setting(config, "patch_size") or 1
        numbers = channels * patch_frames * patch_size**2
        grid = torch.tensor([[1, 4, 4]], device=part.device)  # time, height and width, in patches
        for name in ("hidden_states", "pixel_values"):
            if name in takes:
                yield {name: drawn(int(grid.prod()), numbers), "grid_thw": grid}
    if "input_values" in takes:
        yield {"input_values": drawn(MEDIA_ROWS, SAMPLES)} | beside
        yield {"input_values": drawn(MEDIA_ROWS, 1, SAMPLES)} | beside
    if "input_features" in takes:
        sounds = [config, *(getattr(config, name, None) for name in SOUND_CONFIGS)]
        names = ("num_mel_bins", "feature_size", "input_feat_per_channel", "hidden_size")
        bins = next(filter(None, (_setting(part, *names) for part in sounds)), MEL_BINS)
        frames = 2 * (_setting(config, "max_source_positions") or FRAMES // 2)
        yield {"input_features": drawn(MEDIA_ROWS, bins, frames)} | beside
        yield {"input_features": drawn(MEDIA_ROWS, frames, bins)} | beside
        yield {"input_features": drawn(MEDIA_ROWS, frames, MORE_MEL_BINS)} | beside
    if "audio_mel" in takes:
        bins = _setting(config, "input_feat_size") or MORE_MEL_BINS
        padded = torch.zeros(MEDIA_ROWS, FRAMES, dtype=torch.bool, device=part.device)
        yield {"audio_mel": drawn(MEDIA_ROWS, FRAMES, bins), "audio_mel_mask": padded}
    if "past_time_features" in takes:
        yield _series(config, drawn) | beside


def _series(config: Any, drawn: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    """Numbers of the past and of the future, with what is known of each time."""
    past = config.context_length + max(config.lags_sequence)
    future = config.prediction_length
    values = drawn(MEDIA_ROWS, past)
    return {
        "past_values": values,
        "past_time_features": drawn(MEDIA_ROWS, past, config.num_time_features),
        "past_observed_mask": torch.ones_like(values),
        "future_values": drawn(MEDIA_ROWS, future),
        "future_time_features": drawn(MEDIA_ROWS, future, config.num_time_features),
    }


def _words(
    part: PreTrainedModel, rows: int, length: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Ids that no config names as a sign, and the mask of their padding: left of causal models, right of others."""
    text_config = part.config.get_text_config()
    vocab_size = _setting(text_config, "vocab_size") or _setting(part.config, "vocab_size") or 2
    signs = {*_signs(part.config), *_signs(text_config)}
    words = [word for word in range(min(vocab_size, MOST_WORDS)) if word not in signs] or [0]
    ids = torch.tensor(words)[torch.randint(len(words), (rows, length), generator=generator)]

    unpadded = torch.ones(rows, length, dtype=torch.long)
    pads_left = part.can_generate() and not part.config.is_encoder_decoder
    padded = slice(0, PADDED) if pads_left else slice(length - PADDED, length)
    unpadded[1, padded] = 0
    pad = getattr(text_config, "pad_token_id", None)
    if not isinstance(pad, int) or not 0 <= pad < vocab_size:
        pad = words[0]
    ids[1, padded] = pad

    ids[2] = ids[0]
    next_word = words.index(int(ids[0, -1])) + 1
    ids[2, -1] = words[next_word % len(words)]
    return {"input_ids": ids.to(part.device), "attention_mask": unpadded.to(part.device)}


def _signs(config: Any) -> Iterator[int]:
    """The ids that a config names as signs, such as that of padding or of an image."""
    for name, value in config.to_dict().items():
        if not name.endswith(("token_id", "token_index", "token")):
            continue
        for sign in value if isinstance(value, list) else [value]:
            if isinstance(sign, int):
                yield sign


def _setting(config: Any, *names: str) -> int | None:
    """The first of these settings that is a whole number."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


def _image_size(config: Any) -> tuple[int, int]:
    """Height and width."""
    vision_config = getattr(config, "vision_config", None)
    size = getattr(config, "image_size", None) or getattr(vision_config, "image_size", None)
    if not size:
        return IMAGE_SIZE
    if isinstance(size, dict):
        return size["height"], size["width"]
    if isinstance(size, int):
        return size, size
    return tuple(size)[-2:]
