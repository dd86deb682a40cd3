import math

import pytest
import torch
from teaching import changed_figures, failing, starting

from regard.errors import ArgumentError, CheckpointError
from regard.patterns import KeySpan
from regard_lab.lessons import caption, captions
from regard_lab.lessons.captions import (
    PARTS,
    THINGS,
    Denoiser,
    changed,
    drawn,
    every_scene,
    held_out_scenes,
    load_denoiser,
    noisy,
    read_caption,
    sample,
    shown,
    trained_scenes,
    word_numbers,
)
from regard_lab.lessons.report import read_report
from regard_lab.lessons.words import normal

OTHER = "a yellow triangle below a green circle"


def test_every_picture_shows_its_scene_in_spite_of_noise():
    moves = [tuple((number >> bit) & 1 for bit in range(4)) for number in range(16)]
    pictures = [drawn(scene, moves[number % 16]) for number, scene in enumerate(every_scene())]
    worn = torch.stack(pictures) + 0.3 * normal(0, len(pictures), 3, 12, 12)
    assert [scene for scene, _ in shown(worn)] == list(every_scene())
    assert shown(pictures[5][None])[0][1] < 1e-6


def test_two_captions_of_a_picture_are_one_scene():
    one = read_caption("a red circle right of a blue square")
    assert str(one.scene) == "a blue square left of a red circle"
    assert one.reversed.reversed == one


def test_held_out_scenes_hold_each_thing_equally_often_and_are_not_trained_on():
    held_out, trained = held_out_scenes(), trained_scenes()
    assert set(held_out) | set(trained) == set(every_scene())
    assert not set(held_out) & set(trained)
    for side in ("first", "second"):
        assert [sum(getattr(scene, side) == thing for scene in held_out) for thing in THINGS] == [4] * len(THINGS)
    assert read_caption(caption.TEXT) in held_out


@pytest.mark.parametrize("part", PARTS)
def test_exactly_one_word_is_changed(part):
    for scene in (one for pair in every_scene() for one in (pair, pair.reversed)):
        edited, old, new = changed(scene, part)
        places = [(a, b) for a, b in zip(scene.words, edited.words, strict=True) if a != b]
        assert places == [(old, new)]


def test_a_caption_of_another_form_is_refused_with_the_words_there_are():
    with pytest.raises(ArgumentError, match=r"left of, above, right of, below$"):
        read_caption("a red circle near a blue square")


def test_a_denoiser_that_knows_the_picture_samples_it():
    picture = drawn(read_caption(OTHER).scene)[None].double()
    stages = sample(lambda x, *others: picture, normal(0, 1, 3, 12, 12), *word_numbers([read_caption(OTHER)]))
    assert torch.allclose(stages[-1], picture, atol=1e-12, rtol=0)
    middle = torch.tensor([math.pi / 4], dtype=torch.float64)
    assert torch.allclose(stages[8], noisy(picture, stages[0], middle), atol=1e-12, rtol=0)


def test_only_cross_attention_carries_the_caption():
    two = word_numbers([read_caption(caption.TEXT), read_caption("a red triangle left of a blue square")])
    picture, angle = normal(0, 1, 3, 12, 12).expand(2, -1, -1, -1), torch.ones(2).double()
    for reads in (True, False):
        one, other = Denoiser(reads=reads).double()(picture, angle, *two)
        assert torch.equal(one, other) is not reads


def test_the_weights_are_those_of_the_report(monkeypatch):
    report = read_report("caption")
    model = load_denoiser()
    assert sum(weight.numel() for weight in model.parameters()) == report.figures["parameters"]
    report.figures["weights"] = "0" * 64
    monkeypatch.setattr(captions, "read_report", lambda name: report)
    with pytest.raises(CheckpointError, match="the seals differ"):
        load_denoiser()


def test_words_in_another_order_are_seen(monkeypatch):
    def mixed(captions):
        words, counts = word_numbers(captions)
        return words.flip(1), counts

    monkeypatch.setattr(caption, "word_numbers", mixed)
    assert starting(failing("caption"), "The pictures drawn here", "Patches read the words")


def test_cross_attention_that_adds_nothing_is_seen(monkeypatch):
    model = load_denoiser()
    for name, weight in model.named_parameters():
        if "to_words.to_output" in name:
            weight.data.zero_()
    monkeypatch.setattr(caption, "load_denoiser", lambda: model)
    assert starting(failing("caption"), "The pictures drawn here")


def test_words_after_the_end_that_are_read_are_seen(monkeypatch):
    monkeypatch.setattr(Denoiser, "spoken", lambda self, counts: KeySpan(0, 8))
    assert starting(failing("caption", text=OTHER), "The weights of each patch", "Without words, cross-attention")


def test_patches_that_read_the_other_thing_are_seen(monkeypatch):
    real = caption._halves
    monkeypatch.setattr(caption, "_halves", lambda one: real(one)[::-1])
    assert starting(failing("caption"), "Patches read the words")


@pytest.mark.parametrize(
    ("name", "share", "beginning"),
    [
        ("held out", 0.9, "Pictures show what"),
        ("shape changed", 0.9, "If one word changes"),
        ("no cross-attention", 0.2, "With another caption"),
    ],
)
def test_a_report_of_a_worse_model_is_seen(monkeypatch, name, share, beginning):
    changed_figures(monkeypatch, "caption")["shares"][name]["all"] = share
    assert starting(failing("caption"), beginning)


def test_the_words_are_those_of_the_trained_model():
    assert captions.WORDS == (
        "a", "red", "blue", "green", "yellow", "circle", "square", "triangle", "left", "right", "of", "above", "below"
    )  # fmt: skip
