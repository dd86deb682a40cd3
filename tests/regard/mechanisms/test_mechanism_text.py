"""Mechanisms as text: names of enrolled classes, numbers and words, and nothing else."""

import numpy as np
import pytest

from regard import mechanisms as m
from regard.errors import ArgumentError
from regard.mechanisms.linear import Products, Relu, SignedSoftmax


@pytest.mark.parametrize(
    ("text", "mechanism"),
    [
        ("softmax", m.Softmax()),
        ("linear", m.LinearTransformer()),
        ("linear(signed-softmax)", m.LinearTransformer(SignedSoftmax())),
        ("performer(features=256)", m.Performer(256)),
        ("performer( 8 , seed = 3, orthogonal=false)", m.Performer(8, 3, False)),
        ("random-feature(5, gated=true, sigma=0.75)", m.RandomFeature(5, gated=True, sigma=0.75)),
        (
            "linformer(length=9, rank=3, shared=keys_and_values)",
            m.Linformer(9, 3, "keys_and_values"),
        ),
        ("lsh(chunk=3, buckets=4 x 6, rounds=1)", m.LSH(3, (4, 6), 1)),
        ("random_feature(64, gated, sigma=1e-0)", m.RandomFeature(64, gated=True)),
        (
            "softmax(local-predictive(dot, 4, query_dim=5))",
            m.Softmax(m.LocalPredictive(m.Dot(), 4, 5)),
        ),
    ],
)
def test_a_text_is_its_mechanism(text, mechanism):
    assert m.parse(text) == mechanism


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "perfomer(64)",
            "at character 1: there is no mechanism 'perfomer'; did you mean 'performer'\\?",
        ),
        ("performer(features=256", r"at character 23: '\)' is missing"),
        ("os.system", "'.system' is not understood"),
        (3, "a mechanism's text is a string; this is 3"),
        (
            "performer(feature=3)",
            r"performer has no argument 'feature'; it takes features, seed, orthogonal",
        ),
        ("linformer", r"takes \(length, rank"),
        ("performer(seed=1, seed=2)", "each name once"),
        ("performer(features=true)", "features"),
        ("performer(0)", "1 or more|least 1|from 1|below"),
        ("linear(tanh)", "feature_map is 'tanh'"),
        ("softmax(tanh_sum)", "Softmax's score is 'tanh_sum'"),
        ("linear(relu(1, 2))", r"relu takes \(epsilon\)"),
        ("performer(8) & performer(8)", "'&' follows a mechanism that is already complete"),
        (
            "additive",
            r"'additive' is a score function, which is an argument of softmax; write softmax\(additive\(query_dim",
        ),
        ("concat(8, 8, 4)", r"in Python Softmax\(Concat\(\.\.\.\)\)"),
        ("nothing", "there are .*linear, linformer"),
        ("x" * 500, r"there is no mechanism 'x*\.\.\.'; there are "),
    ],
)
def test_a_text_that_is_none_is_refused_in_its_words(text, words):
    with pytest.raises(ArgumentError, match=words):
        m.parse(text)


@pytest.mark.parametrize(
    "mechanism",
    [
        m.RandomFeature(5, gated=True, seed=-3, sigma=0.7123456789),
        m.RandomFeature(5, sigma=1e20),
        m.LinearTransformer(Relu(1e-9)),
        m.LinearTransformer(Products(2)),
        m.LSH(3, (4, 6), 1, seed=5),
        m.LSH(3, (4,)),
        m.Performer(8, orthogonal=False),
        m.Linformer(9, 3, "heads"),
        m.Softmax(m.Additive(5, 6, 7, projected_keys=True)),
        m.Softmax(m.LocalPredictive(m.Concat(5, 3, 7), 4)),
        m.Softmax(m.LocalPredictive(m.ScaledDot(), 4, query_dim=8)),
    ],
    ids=str,
)
def test_the_text_of_a_mechanism_reads_back(mechanism):
    assert m.parse(str(mechanism)) == mechanism


@pytest.mark.parametrize(
    "score",
    [
        lambda n: m.General(n, n),
        lambda n: m.Additive(n, n, n),
        lambda n: m.LocalPredictive(m.Dot(), 4, n),
    ],
)
def test_sizes_of_numpy_are_kept_as_whole_numbers_of_python(score):
    """So that equal scores have one text and one hash, and can be written to JSON."""
    found, plain = (m.Softmax(score(number)) for number in (np.int64(5), 5))
    assert (str(found), repr(found)) == (str(plain), repr(plain))
    assert "int64" not in repr(found)
    assert m.parse(str(found)) == plain


def test_sizes_that_are_not_given_are_those_of_the_documentation():
    assert m.Performer() == m.Performer(features=256, seed=0, orthogonal=True)
    assert m.RandomFeature() == m.RandomFeature(features=128, gated=False, seed=0, sigma=1.0)
    assert m.LSH(4, 6) == m.LSH(chunk=4, buckets=6, rounds=4, seed=0)
