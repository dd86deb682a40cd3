"""Captions, their pictures and the denoiser of the lesson on captions."""

import math

import pytest
import torch

from regard.errors import ArgumentError, CheckpointError
from regard_lab.lessons import find_lesson
from regard_lab.teaching import captions, normal, read_report
from regard_lab.teaching.captions import (
    MOVES,
    SCENES,
    THINGS,
    Denoiser,
    drawn,
    load_denoiser,
    read_caption,
    sample,
    shown,
    word_numbers,
)

OTHER = "a yellow triangle below a green circle"


def test_every_picture_shows_its_scene_in_spite_of_noise():
    pictures = [drawn(scene, MOVES[number % len(MOVES)]) for number, scene in enumerate(SCENES)]
    worn = torch.stack(pictures) + 0.3 * normal(0, len(pictures), 3, 12, 12)
    assert shown(worn) == list(SCENES)


def test_two_captions_of_a_picture_are_one_scene():
    one = read_caption("A red circle  right of a blue square")
    assert str(one.scene) == "a blue square left of a red circle"
    assert one.reversed.reversed == one


def test_held_out_scenes_hold_each_thing_equally_often():
    held_out = [scene for scene in SCENES if scene.held_out]
    assert len(held_out) * 6 == len(SCENES)
    assert all(scene.held_out is scene.reversed.held_out for scene in SCENES)
    for side in ("first", "second"):
        assert [sum(getattr(scene, side) == thing for scene in held_out) for thing in THINGS] == [4] * len(THINGS)
    assert read_caption(find_lesson("caption").parameters["TEXT"]).held_out


@pytest.mark.parametrize("part", ["colour", "shape", "relation"])
def test_exactly_one_word_is_changed(part):
    for scene in (one for pair in SCENES for one in (pair, pair.reversed)):
        edited, old, new = scene.changed(part)
        assert [(a, b) for a, b in zip(scene.words, edited.words, strict=True) if a != b] == [(old, new)]


def test_a_caption_of_another_form_is_refused_with_the_words_there_are():
    with pytest.raises(ArgumentError, match=r"left of, above, right of, below$"):
        read_caption("a red circle near a blue square")


def test_a_denoiser_that_knows_the_picture_samples_it():
    picture = drawn(read_caption(OTHER).scene)[None].double()
    stages = sample(lambda x, *others: picture, normal(0, 1, 3, 12, 12), *word_numbers([read_caption(OTHER)]))
    assert torch.allclose(stages[-1], picture, atol=1e-12, rtol=0)
    assert torch.allclose(stages[8], (picture + stages[0]) * math.sqrt(0.5), atol=1e-12, rtol=0)  # at 45 degrees


def test_only_cross_attention_carries_the_caption():
    two = word_numbers([read_caption("a red circle left of a blue square"), read_caption(OTHER)])
    picture, angle = normal(0, 1, 3, 12, 12).expand(2, -1, -1, -1), torch.ones(2).double()
    for reads in (True, False):
        one, other = Denoiser(reads=reads).double()(picture, angle, *two)
        assert torch.equal(one, other) is not reads


def test_the_weights_are_those_of_the_report(monkeypatch):
    report = read_report("caption")
    assert sum(weight.numel() for weight in load_denoiser().parameters()) == report.figures["parameters"]
    report.figures["weights"] = "0" * 64
    monkeypatch.setattr(captions, "read_report", lambda name: report)
    with pytest.raises(CheckpointError, match="the seals differ"):
        load_denoiser()
