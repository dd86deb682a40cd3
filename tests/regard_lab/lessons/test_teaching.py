"""Modules that lessons are taught with: errors of cheaper attentions, steps that wait for each other, and captions."""

import math

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError, CheckpointError
from regard.mechanisms import LinearTransformer
from regard_lab.lessons import find_lesson
from regard_lab.teaching import captions, normal, read_report, stepping
from regard_lab.teaching.approximating import (
    estimated_weights,
    exponential_errors,
    means_of_neighbours,
    output_error,
    words_in_topics,
)
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


def test_an_error_and_weights_are_those_of_the_written_formula():
    call = words_in_topics(4.0, 1, topics=4, count=16)
    mixed = means_of_neighbours(4, 16)
    x = call.q[0, 0]
    v = call.v[0, 0]
    exact = (x @ x.mT).softmax(-1) @ v
    groups = [torch.stack([rows.mean(0) for rows in one.split(4)]) for one in (x, v)]
    weights = (x @ groups[0].mT).softmax(-1)
    estimate = weights @ groups[1]
    expected = float((estimate - exact).norm() / exact.norm())
    assert math.isclose(output_error(call, *mixed, seed=0), expected, rel_tol=1e-9)
    torch.testing.assert_close(estimated_weights(call, *mixed), weights.repeat_interleave(4, 1) / 4)


def test_an_exponential_of_features_is_their_dot_product():
    call = words_in_topics(0.5, 0, topics=4, count=8)
    x = torch.nn.functional.elu(call.q[0, 0]) + 1
    estimate = torch.tensor([[float(a @ b) for b in x] for a in x], dtype=torch.float64)
    true = (call.q[0, 0] @ call.k[0, 0].mT).exp()
    fitted = estimate * (estimate * true).sum() / (estimate**2).sum()
    expected = float((fitted - true).norm() / true.norm())
    assert exponential_errors(call, LinearTransformer(), seed=0, draws=2) == pytest.approx(
        (expected, expected)
    )


def test_chains_of_a_drawn_graph():
    """a -> b -> d and a -> d; c stands beside them; after the block nothing is counted."""
    a, b, c = (nn.Linear(2, 2) for _ in range(3))
    x = torch.ones(2, requires_grad=True)
    other = torch.ones(2, requires_grad=True)
    with stepping.marked_steps([a, b, c]):
        first = a(x)
        joined = b(first) + first
        beside = c(x) + c(other)
    assert (stepping.longest_chain(joined), stepping.shortest_chain(joined, x)) == (2, 1)
    assert stepping.shortest_chain(joined, other) is None
    assert stepping.longest_chain(joined + beside) == 2
    assert stepping.longest_chain(a(x)) == 0


def test_marked_steps_change_no_value_and_no_gradient():
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    with stepping.marked_steps([layer]):
        output = layer(x)
    assert torch.equal(output, layer(x))
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (output, layer(x))))


def test_one_layer_less_does_not_connect_the_words():
    for name in ("convolution", "dilated"):
        for length in (2, 5, 9, 10, 28):
            layers = stepping.count_steps(name, length, seed=0)["steps"]
            words = stepping._random_words(length, 0)
            for count in (layers, layers - 1):
                outputs = stepping.Convolutions(0, count, name == "dilated")(words)
                assert (float(stepping._gradient_norm(outputs, words[0])) > 0) == (count == layers)


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
        assert [sum(getattr(scene, side) == thing for scene in held_out) for thing in THINGS] == [
            4
        ] * len(THINGS)
    assert read_caption(find_lesson("caption").parameters["TEXT"]).held_out


@pytest.mark.parametrize("part", ["colour", "shape", "relation"])
def test_exactly_one_word_is_changed(part):
    for scene in (one for pair in SCENES for one in (pair, pair.reversed)):
        edited, old, new = scene.changed(part)
        assert [(a, b) for a, b in zip(scene.words, edited.words, strict=True) if a != b] == [
            (old, new)
        ]


def test_a_caption_of_another_form_is_refused_with_the_words_there_are():
    with pytest.raises(ArgumentError, match=r"left of, above, right of, below$"):
        read_caption("a red circle near a blue square")


def test_a_denoiser_that_knows_the_picture_samples_it():
    picture = drawn(read_caption(OTHER).scene)[None].double()
    stages = sample(
        lambda x, *others: picture, normal(0, 1, 3, 12, 12), *word_numbers([read_caption(OTHER)])
    )
    assert torch.allclose(stages[-1], picture, atol=1e-12, rtol=0)
    # at 45 degrees
    assert torch.allclose(stages[8], (picture + stages[0]) * math.sqrt(0.5), atol=1e-12, rtol=0)


def test_only_cross_attention_carries_the_caption():
    two = word_numbers([read_caption("a red circle left of a blue square"), read_caption(OTHER)])
    picture = normal(0, 1, 3, 12, 12).expand(2, -1, -1, -1)
    angle = torch.ones(2).double()
    for reads in (True, False):
        one, other = Denoiser(reads=reads).double()(picture, angle, *two)
        assert torch.equal(one, other) is not reads


def test_the_weights_are_those_of_the_report(monkeypatch):
    report = read_report("caption")
    assert (
        sum(weight.numel() for weight in load_denoiser().parameters())
        == report.figures["parameters"]
    )
    report.figures["weights"] = "0" * 64
    monkeypatch.setattr(captions, "read_report", lambda name: report)
    with pytest.raises(CheckpointError, match="the seals differ"):
        load_denoiser()
