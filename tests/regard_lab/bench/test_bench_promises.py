"""The arithmetic of ratios, and what is said when a number is missing."""

import pytest

from regard.errors import ArgumentError
from regard_lab.bench.work import Promise

ANSWERS = {
    "regard": {"cpu": {"median": 0.002}},
    "peer": {"cpu": {"median": 0.005}},
    "absent": {"status": "missing"},
}


@pytest.mark.parametrize(
    ("kind", "bound", "measured", "holds"),
    [
        ("faster", 2.5, 2.5, True),
        ("faster", 2.6, 2.5, False),
        ("slower", 0.4, 0.4, True),
        ("slower", 0.39, 0.4, False),
        ("slower by", -3000, -3000, True),
        ("slower by", -3001, -3000, False),
    ],
)
def test_each_kind_divides_the_right_way(kind, bound, measured, holds):
    promise = Promise(kind, "regard", "peer", bound)
    assert promise.measured(ANSWERS) == pytest.approx(measured)
    assert promise.kept(measured) is holds
    assert promise.sentence(measured).endswith(": kept" if holds else ": missed")


@pytest.mark.parametrize(
    ("kind", "ours", "peer"), [("faster", "regard", "absent"), ("slower", "absent", "peer")]
)
def test_what_was_not_measured_is_neither_kept_nor_missed(kind, ours, peer):
    promise = Promise(kind, ours, peer, 2.0)
    assert promise.measured(ANSWERS) is None
    assert promise.sentence(None).endswith("was not measured")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ArgumentError, match="of kind 'cheaper' does not exist"):
        Promise("cheaper", "a", "b", 1.0)
