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
    draw_scene,
    load_denoiser,
    nearest_scenes,
    read_caption,
    sample,
    word_numbers,
)


def test_an_error_and_weights_are_those_of_the_written_formula():
    call = words_in_topics(4.0, 1, topics=4, count=16)
    mechanism, parameters = means_of_neighbours(4, 16)

    q = call.q[0, 0]  # the keys too, (16, DIM)
    v = call.v[0, 0]
    exact = (q @ q.mT).softmax(-1) @ v
    mean_keys = torch.stack([rows.mean(0) for rows in q.split(4)])
    mean_values = torch.stack([rows.mean(0) for rows in v.split(4)])
    weights = (q @ mean_keys.mT).softmax(-1)  # (16, 4)
    error = float((weights @ mean_values - exact).norm() / exact.norm())

    assert math.isclose(output_error(call, mechanism, parameters, seed=0), error, rel_tol=1e-9)
    of_words = weights.repeat_interleave(4, 1) / 4
    torch.testing.assert_close(estimated_weights(call, mechanism, parameters), of_words)


def test_an_exponential_of_features_is_their_dot_product():
    call = words_in_topics(0.5, 0, topics=4, count=8)
    features = torch.nn.functional.elu(call.q[0, 0]) + 1  # of queries and keys, which are equal
    estimate = torch.zeros(8, 8, dtype=torch.float64)
    for query in range(8):
        for key in range(8):
            estimate[query, key] = features[query] @ features[key]

    true = (call.q[0, 0] @ call.k[0, 0].mT).exp()
    fitted = estimate * (estimate * true).sum() / (estimate**2).sum()
    error = float((fitted - true).norm() / true.norm())
    errors = exponential_errors(call, LinearTransformer(), seed=0, draws=2)
    assert errors == pytest.approx((error, error))


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
    (gradient,) = torch.autograd.grad(output.sum(), x)
    (unmarked_gradient,) = torch.autograd.grad(layer(x).sum(), x)
    assert torch.equal(gradient, unmarked_gradient)


@pytest.mark.parametrize("length", [2, 5, 9, 10, 28])
@pytest.mark.parametrize("name", ["convolution", "dilated"])
def test_one_layer_less_does_not_connect_the_words(name, length):
    def connects(layers):
        words = list(normal(0, length, 1, stepping.DIM).requires_grad_().unbind(0))
        outputs = stepping.Convolutions(0, layers, name == "dilated")(words)
        (gradient,) = torch.autograd.grad(outputs[-1].sum(), words[0], materialize_grads=True)
        return bool((gradient != 0).any())

    layers = stepping.count_steps(name, length, seed=0)["steps"]
    assert connects(layers)
    assert not connects(layers - 1)


OTHER = "a yellow triangle below a green circle"


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
    caption = read_caption(OTHER)
    picture = draw_scene(caption.scene)[None].double()
    words, counts = word_numbers([caption])
    stages = sample(lambda *_: picture, normal(0, 1, 3, 12, 12), words, counts)
    assert torch.allclose(stages[-1], picture, atol=1e-12, rtol=0)
    # at 45 degrees
    assert torch.allclose(stages[8], (picture + stages[0]) * math.sqrt(0.5), atol=1e-12, rtol=0)


def test_only_cross_attention_carries_the_caption():
    captions = [read_caption("a red circle left of a blue square"), read_caption(OTHER)]
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
    monkeypatch.setattr(captions, "read_report", lambda name: report)
    with pytest.raises(CheckpointError, match="the seals differ"):
        load_denoiser()
