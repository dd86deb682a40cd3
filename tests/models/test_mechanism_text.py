"""Mechanisms as text: names from a table, numbers and words, and nothing else."""

from __future__ import annotations

import pytest

from regard import mechanisms as m
from regard.errors import ArgumentError
from regard.models.mechanism_text import parse_mechanism


@pytest.mark.parametrize(
    ("text", "mechanism"),
    [
        ("softmax", m.Softmax()),
        (" softmax() ", m.Softmax()),
        ("linear", m.LinearTransformer()),
        ("linear(signed-softmax)", m.LinearTransformer(m.SignedSoftmax())),
        ("linear(feature_map=relu)", m.LinearTransformer(m.Relu())),
        ("performer(features=256)", m.Performer(256)),
        ("performer( 8 , seed = 3, orthogonal=false)", m.Performer(8, 3, False)),
        ("random-feature(5, gated=true, sigma=0.75)", m.RandomFeature(5, gated=True, sigma=0.75)),
        ("random_feature(5)", m.RandomFeature(5)),
        ("linformer(length=9, rank=3, shared=keys_and_values)", m.Linformer(9, 3, "keys_and_values")),
        ("lsh(chunk=3, buckets=4)", m.LSH(3, 4)),
    ],
)
def test_a_text_is_its_mechanism(text, mechanism):
    assert parse_mechanism(text) == mechanism


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("perfomer", "'perfomer' is no mechanism; there are softmax, linear"),
        ("performer(features=256", "is no mechanism"),
        ("os.system", "is no mechanism"),
        (3, "3 is no mechanism"),
        ("performer(feature=3)", r"performer takes \(features, seed, orthogonal\)"),
        ("performer(1, 2, true, 4)", "performer takes"),
        ("random-feature", r"takes \(features, gated"),
        ("performer(seed=1, 8)", "'8' is not understood"),
        ("performer(seed=1, seed=2)", "each name once"),
        ("performer(8,)", "'' is not understood"),
        ("performer(__import__)", "features"),
        ("performer(features=true)", "features"),
        ("performer(0)", "1 or more|least 1|from 1|below"),
        ("linear(tanh)", "feature_map is 'tanh'"),
        ("softmax(scaled_dot)", "softmax takes no argument"),
        ("x" * 500, r"\.\.\. is no mechanism"),
    ],
)
def test_a_text_that_is_none_is_refused_in_its_words(text, words):
    with pytest.raises(ArgumentError, match=words):
        parse_mechanism(text)
