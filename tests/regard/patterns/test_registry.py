"""Classes enrol themselves: a user's own pattern, score or feature map reads back, and no name is taken twice."""

from dataclasses import dataclass

import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.errors import ArgumentError
from regard.patterns.registry import Registry, word
from regard.patterns.visible import empty_rows


@dataclass(frozen=True)
class EveryThird(p.Pattern):
    """A pattern as a user writes one: nothing but its truth and its fields."""

    offset: int
    both_ways: bool = False
    share: float = 0.5

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = (q_pos - k_pos).abs() if self.both_ways else q_pos - k_pos
        return distance % 3 == self.offset


@dataclass(frozen=True, kw_only=True)
class ByName(p.Pattern):
    """A pattern whose arguments are given by name."""

    near: int
    far: int = 4

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = (q_pos - k_pos).abs()
        return (distance <= self.near) | (distance == self.far)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("every_third(1)", EveryThird(1)),
        ("by_name(near=2)", ByName(near=2)),
        ("by_name(near=2, far=3)", ByName(near=2, far=3)),
        ("every_third(0, both_ways=true, share=0.25)", EveryThird(0, both_ways=True, share=0.25)),
        ("causal & ~every_third(2, share=2)", p.Causal() & ~EveryThird(2, share=2.0)),
    ],
)
def test_a_users_own_pattern_reads_back(text, pattern):
    assert str(pattern) == text
    assert p.parse(text) == pattern
    assert torch.equal(p.parse(text).dense(7, 11), pattern.dense(7, 11))


def test_a_pattern_with_nothing_but_its_truth_answers_everything():
    pattern = EveryThird(1)
    dense = pattern.dense(7, 11)
    assert pattern.count(7, 11) == int(dense.sum())
    assert pattern.tiles(7, 11, 3).states().shape == (3, 4)
    assert empty_rows(pattern, 3, 1, q_start=0) == (range(1), range(2, 3))
    assert str(pattern.reach()) == "everything back, everything ahead"
    assert (pattern.band(), pattern.structure(), pattern.period) == (None, pattern, None)


def test_a_users_own_pattern_is_compiled_by_its_text():
    def attend(x: torch.Tensor) -> torch.Tensor:
        return rg.attention(x, x, x, pattern=EveryThird(1))

    x = torch.randn(1, 2, 9, 8)
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), attend(x))


def define(name: str, base: type = p.Pattern, **options) -> type:
    """A class as a module defines it, and no function."""
    return type(name, (base,), {"__module__": __name__}, **options)


def test_a_name_is_taken_once():
    words = r"'causal' in a text, which is the name of regard\.patterns\.bands\.Causal"
    with pytest.raises(ArgumentError, match=words):
        define("Causal")
    with pytest.raises(ArgumentError, match="'linear' in a text"):
        define("Another", m.Mechanism, also=("linear",))
    assert p.parse("causal") == p.Causal()


def test_a_class_that_is_defined_again_replaces_the_one_before():
    first = define("DefinedAgain")
    again = define("DefinedAgain")
    assert p.Pattern.registry.kinds.pop("defined_again") is again is not first


def test_a_class_inside_a_function_and_one_that_says_so_stay_out():
    class Local(p.Pattern):
        pass

    define("StaysOut", enrol=False)
    assert not {"local", "stays_out"} & set(p.Pattern.registry.kinds)


@pytest.mark.parametrize("number", [1e-9, 1e20, 0.1, -2.5, 3.0])
def test_numbers_are_written_so_that_they_read_back(number):
    assert p.parse(f"every_third(1, share={word(number)})") == EveryThird(1, share=number)


def test_a_registry_lists_what_is_importable_from_a_package():
    registry = Registry("thing")
    registry.enrol(p.Causal)
    registry.enrol(EveryThird)
    assert registry.of_package("regard") == {"causal": p.Causal}
    assert set(registry.names()) == {"causal", "every_third"}


class Distances(p.Pattern, enrol=False):
    """A pattern that returns numbers, which is wrong."""

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return q_pos - k_pos


class AddedNumbers(p.Pattern, enrol=False):
    """A pattern that returns what is added to scores, which is wrong."""

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return torch.where(k_pos <= q_pos, 0.0, -torch.inf)


@pytest.mark.parametrize("kind", [Distances, AddedNumbers])
@pytest.mark.parametrize(
    "join",
    [
        lambda pattern: pattern,
        lambda pattern: pattern & p.Causal(),
        lambda pattern: ~pattern,
        lambda pattern: p.PerHead([pattern] * 4),
    ],
)
def test_a_pattern_that_returns_numbers_is_refused(kind, join):
    x = torch.randn(1, 4, 7, 8)
    words = rf"{kind.__name__}.allows returned torch.*; it needs booleans"
    with pytest.raises(ArgumentError, match=words):
        rg.attention(x, x, x, pattern=join(kind()))
