"""Captions and the pictures that they describe are the same scenes, and a denoiser draws what its captions say."""

import math

import pytest
import torch

from regard.errors import ArgumentError, CheckpointError
from regard_lab.lessons import find_lesson
from regard_lab.teaching import denoiser, normal, read_report
from regard_lab.teaching.captions import (
    MOVES,
    SCENES,
    THINGS,
    draw_scene,
    nearest_scenes,
    read_caption,
    word_numbers,
)
from regard_lab.teaching.denoiser import Denoiser, load_denoiser, sample

YELLOW_BELOW_GREEN = "a yellow triangle below a green circle"


def test_every_picture_shows_its_scene_in_spite_of_noise():
    pictures = [
        draw_scene(scene, MOVES[number % len(MOVES)]) for number, scene in enumerate(SCENES)
    ]
    worn = torch.stack(pictures) + 0.3 * normal(0, len(pictures), 3, 12, 12)
    assert nearest_scenes(worn) == list(SCENES)


def test_two_captions_of_a_picture_are_one_scene():
    caption = read_caption("A red circle  right of a blue square")
    assert str(caption.scene) == "a blue square left of a red circle"
    assert caption.reversed.reversed == caption


def test_held_out_scenes_hold_each_thing_equally_often():
    held_out = [scene for scene in SCENES if scene.held_out]
    assert len(held_out) * 6 == len(SCENES)
    assert all(scene.held_out is scene.reversed.held_out for scene in SCENES)
    for thing in THINGS:
        assert sum(scene.first == thing for scene in held_out) == 4
        assert sum(scene.second == thing for scene in held_out) == 4
    assert read_caption(find_lesson("caption").parameters["TEXT"]).held_out


@pytest.mark.parametrize("part", ["colour", "shape", "relation"])
def test_exactly_one_word_is_changed(part):
    for caption in [*SCENES, *(scene.reversed for scene in SCENES)]:
        edited, old, new = caption.change_word(part)
        pairs = zip(caption.words, edited.words, strict=True)
        assert [pair for pair in pairs if pair[0] != pair[1]] == [(old, new)]


def test_a_caption_of_another_form_is_refused_with_the_words_there_are():
    with pytest.raises(ArgumentError, match=r"left of, above, right of, below$"):
        read_caption("a red circle near a blue square")


def test_a_denoiser_that_knows_the_picture_samples_it():
    caption = read_caption(YELLOW_BELOW_GREEN)
    picture = draw_scene(caption.scene)[None].double()
    words, counts = word_numbers([caption])
    stages = sample(lambda *_: picture, normal(0, 1, 3, 12, 12), words, counts)
    assert torch.allclose(stages[-1], picture, atol=1e-12, rtol=0)
    # at 45 degrees
    assert torch.allclose(stages[8], (picture + stages[0]) * math.sqrt(0.5), atol=1e-12, rtol=0)


def test_only_cross_attention_carries_the_caption():
    captions = [
        read_caption("a red circle left of a blue square"),
        read_caption(YELLOW_BELOW_GREEN),
    ]
    words, counts = word_numbers(captions)
    noise = normal(0, 1, 3, 12, 12).expand(2, -1, -1, -1)  # the same for both captions
    angle = torch.ones(2).double()
    for reads in (True, False):
        first, second = Denoiser(reads=reads).double()(noise, angle, words, counts)
        assert torch.equal(first, second) is not reads


def test_the_weights_are_those_of_the_report(monkeypatch):
    report = read_report("caption")
    parameters = sum(weight.numel() for weight in load_denoiser().parameters())
    assert parameters == report.figures["parameters"]
    report.figures["weights"] = "0" * 64
    monkeypatch.setattr(denoiser, "read_report", lambda name: report)
    with pytest.raises(CheckpointError, match="the seals differ"):
        load_denoiser()
