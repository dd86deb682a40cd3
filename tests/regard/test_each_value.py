"""The fast suite meets each value of each parameter, and each pair of values that a test names."""

from itertools import product

import pytest
from each_value import chosen, mark_repetitions

LETTERS = "abcdefg"
NUMBERS = range(3)
COLOURS = ("red", "green")
PRODUCT = [frozenset(case) for case in product(LETTERS, NUMBERS, COLOURS)]


def test_every_value_is_in_a_chosen_case_and_there_are_as_few_as_the_longest_list():
    cases = [PRODUCT[number] for number in chosen(PRODUCT)]
    assert frozenset().union(*cases) == {*LETTERS, *NUMBERS, *COLOURS}
    assert len(cases) == len(LETTERS)


def test_values_of_short_lists_take_turns():
    cases = [PRODUCT[number] for number in chosen(PRODUCT)]
    for number in NUMBERS:
        assert sum(number in case for case in cases) >= 2
    for colour in COLOURS:
        assert sum(colour in case for case in cases) >= 3


def test_named_pairs_are_all_chosen():
    cases = [case | {(number, colour)} for case in PRODUCT for number, colour in [pair_of(case)]]
    pairs = {pair_of(cases[number]) for number in chosen(cases)}
    assert pairs == {*product(NUMBERS, COLOURS)}


def pair_of(case):
    """The number and the colour of a case."""
    number = next(value for value in NUMBERS if value in case)
    colour = next(value for value in COLOURS if value in case)
    return number, colour


def test_a_case_whose_values_no_other_has_is_chosen():
    assert chosen([frozenset("a"), frozenset("a"), frozenset("b")]) == [0, 2]
    assert chosen([frozenset()]) == [0]


@pytest.mark.each_value(pairs=[("number", "colour")])
@pytest.mark.parametrize("letter", [*LETTERS, pytest.param("z", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("number", "unlisted"), [(number, [number]) for number in NUMBERS])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_combination(letter, number, unlisted, colour):
    """That the next test looks at."""
    assert unlisted == [number]


@pytest.mark.each_value(apart=True)
@pytest.mark.parametrize(("number", "colour"), [*product([1, 2], COLOURS)])
def test_a_listed_combination(number, colour):
    """That the test below looks at."""
    assert number
    assert colour


def fast_combinations(request, name):
    """The parameters that a test of this file has in the fast suite, and how many combinations there are."""
    combined = [item for item in request.node.parent.collect() if item.originalname == name]
    mark_repetitions(combined)
    fast = [item.callspec.params for item in combined if not item.get_closest_marker("slow")]
    return fast, len(combined)


def test_the_marker_leaves_each_value_and_each_named_pair_in_the_fast_suite(request):
    fast, count = fast_combinations(request, "test_a_combination")
    assert {params["letter"] for params in fast} == {*LETTERS}
    assert {(params["number"], params["colour"]) for params in fast} == {*product(NUMBERS, COLOURS)}
    assert (len(fast), count) == (len(LETTERS), 8 * 3 * 2)


def test_values_listed_together_may_count_apart(request):
    fast, count = fast_combinations(request, "test_a_listed_combination")
    assert (fast, count) == ([{"number": 1, "colour": "red"}, {"number": 2, "colour": "green"}], 4)
