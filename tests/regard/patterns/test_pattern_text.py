"""Patterns as text, joined with texts by & | ~, and as text with tensors for a compiled graph."""

import operator

import pytest
import torch
from hypothesis import given
from pattern_strategies import joined, readable

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError
from regard.functional.compiled import UnknownFloats
from regard.patterns import parse
from regard.patterns.bands import Diagonals
from regard.patterns.fixed import Summary
from regard.patterns.position_sets import KeySet, QuerySet
from regard.patterns.strided import Lattice
from regard.patterns.text import as_pattern, read_together, written_apart

SPELLINGS = {
    "strided(64)": p.Strided(64),
    "strided(64, local=false)": p.Strided(64, local=False),
    "fixed(8)": p.Fixed(8),
    "fixed(8, summary=2)": p.Fixed(8, 2),
    "fixed(8, summary=2, local=false)": p.Fixed(8, 2, False),
    "dilated_window(8, 2)": p.DilatedWindow(8, 2),
    "global_tokens(7)": p.GlobalTokens(7),
    "global_tokens(0..127)": p.GlobalTokens(range(128)),
    "global_tokens(0, 1, 5..9)": p.GlobalTokens([0, 1, *range(5, 10)]),
    "random_blocks(3, block=64, seed=0)": p.RandomBlocks(3),
    "random_blocks(3, block=1, seed=-4, past=true)": p.RandomBlocks(3, 1, -4, past=True),
    "key_span(0, 9)": p.KeySpan(0, 9),
    "per_head(causal, full & ~causal, prefix(1) | causal)": p.PerHead(
        [p.Causal(), ~p.Causal(), p.Prefix(1) | p.Causal()]
    ),
    "diagonals(all, 0)": Diagonals(None, 0),
    "same_block(4)": p.SameBlock(4),
    "summary(4, 2)": Summary(4, 2),
    "key_set(1, 3..5)": KeySet((range(1, 2), range(3, 6))),
    "query_set(1)": QuerySet((range(1, 2),)),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_text_is_its_pattern_and_back(text):
    assert parse(text) == SPELLINGS[text]
    if "full &" not in text:
        assert str(SPELLINGS[text]) == text


@pytest.mark.parametrize("text", ["causal 9", "strided(2, local9=1)", "causal9", "prefix(9"])
def test_a_refusal_quotes_no_word_at_length(text):
    with pytest.raises(ArgumentError) as refusal:
        parse(text.replace("9", "9" * 5000))
    assert len(str(refusal.value)) < 800


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("strided(stride=64, local=true)", "strided(64)"),
        ("fixed(8, 2, false)", "fixed(8, local=false, summary=2)"),
        ("random_blocks(3, seed=5)", "random_blocks(3, 64, 5)"),
        ("random_blocks(count=3)", "random_blocks(3)"),
        ("global_tokens(5..7, 0, 6)", "global_tokens(0, 5, 6, 7)"),
        ("key_span(0, all)", "key_span()"),
        ("causal&strided( 64 )", "strided(64) & causal"),
    ],
)
def test_a_pattern_has_several_spellings(text, same):
    assert parse(text) == parse(same)


def test_what_is_no_pattern_is_named_with_the_class_that_takes_it():
    with pytest.raises(
        ArgumentError, match=r"pattern is a function; .* goes into Where\(function\)"
    ):
        as_pattern(lambda q_pos, k_pos: k_pos <= q_pos)
    with pytest.raises(ArgumentError, match=r"pattern is a Tensor; .* goes into Explicit\(mask\)"):
        as_pattern(torch.ones(3, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("strided()", r"strided takes \(stride, local\)"),
        ("full & causel", "at character 8: there is no pattern 'causel'; did you mean 'causal'"),
        ("", "."),
        ("(" * 5000, "."),
        ("~" * 5000 + "causal", "."),
        ("sliding_window(-1)", "."),
        ("causal_window(" + "9" * 30 + ")", "."),
        (None, "."),
        (7, "."),
        (
            "strided(4, nearby=true)",
            "at character 12: strided has no argument 'nearby'; it takes stride, local",
        ),
        ("strided(4, stride=4)", r"strided takes \(stride, local\)"),
        ("fixed(4, summary=1, summary=2)", "each name once"),
        ("strided(4, true=1)", "strided has no argument 'true'"),
        ("strided(true)", "stride is True"),
        ("strided(causal)", "at character 9: a whole number, all, true or false is missing"),
        ("global_tokens(7..3)", r"7\.\.3 is no span of positions"),
        ("global_tokens(0..999999999999)", "more than 1000000 positions"),
        ("global_tokens(indices=0)", "a whole number is missing"),
        ("per_head(causal", r"'\)' is missing"),
        ("strided(4 true)", r"',' or '\)' is missing"),
        ("per_head(4)", "there is no pattern '4'; 'regard show --list' prints all"),
        ("same_document(4)", "'same_document' is no pattern"),
        (
            "causal and full",
            "at character 8: 'and' follows a pattern that is already complete; write '&' in place of",
        ),
        ("not causal", "at character 1: 'not' is no pattern; write '~' in place of 'not'"),
        (
            "random_blocks(3, past=maybe)",
            "at character 23: a whole number, all, true or false is missing",
        ),
        ("per_head(" * 100 + "full" + ")" * 100, "more than 64 levels"),
        (
            "&".join(f"key_set({n})" for n in range(700)),
            "700 patterns are named, and 128 are the most",
        ),
        ("full |" * 1700, "a pattern's text of 10200 characters; 10000 are read at most"),
        (
            "|".join(f"global_tokens({n}..600000)" for n in range(2)),
            "name more than 1000000 positions",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(text, words):
    with pytest.raises(ArgumentError, match=words):
        parse(text)


@pytest.mark.parametrize("sign", ["&", "|"])
def test_many_parts_are_compared_with_few_others(sign, monkeypatch):
    """Each join compared all parts with all others, so that n of them cost n³."""
    compared = 0
    is_equal = KeySet.__eq__

    def count_and_compare(pattern: KeySet, other: object) -> bool:
        nonlocal compared
        compared += 1
        return is_equal(pattern, other)

    monkeypatch.setattr(KeySet, "__eq__", count_and_compare)
    pattern = parse(sign.join(f"key_set(0, {2 * n}, {2 * n + 3})" for n in range(128)))
    for _ in range(2):
        assert pattern.canonical() == parse(str(pattern)).canonical()
    # fewer than every pair once, in three parsings and two canonical forms
    assert compared < 128 * 127 / 2


def nested(levels: int) -> p.Pattern:
    """A pattern of so many levels of patterns inside each other."""
    pattern: p.Pattern = p.Causal()
    for level in range(levels - 1):
        pattern = pattern & p.Prefix(level) if level % 2 else pattern | Lattice(level + 2)
    return pattern


def test_a_pattern_of_64_levels_is_read_compared_and_planned():
    deepest = nested(64)
    assert parse(str(deepest)) == deepest
    assert hash(deepest) == hash(parse(str(deepest)))
    assert torch.equal(deepest.canonical().dense(9, 9), deepest.dense(9, 9))
    x = torch.zeros(1, 1, 9, 4)
    assert rg.plan_attention(x, x, x, pattern=deepest).backend


@pytest.mark.parametrize(
    "make",
    [
        lambda: nested(65),
        lambda: ~nested(64),
        lambda: p.PerHead([nested(64)]),
        lambda: nested(5000),
    ],
)
def test_a_pattern_of_more_levels_is_refused_where_it_is_made(make):
    words = "a pattern of 65 levels of patterns inside each other; 64 are the most"
    with pytest.raises(ArgumentError, match=words):
        make()


USES_AS_TRUTH = {
    "and": lambda pattern: pattern and pattern,
    "or": lambda pattern: pattern or pattern,
    "not": lambda pattern: not pattern,
    "if": lambda pattern: 1 if pattern else 0,
}
PATTERNS = [
    p.Full(),
    ~p.Full(),
    p.Causal() & p.KeySpan(0, 3),
    p.PerHead([p.Causal()]),
    p.KeySpan(0, torch.tensor([3])),
    p.Explicit(torch.ones(2, 2, dtype=torch.bool)),
]


@pytest.mark.parametrize("use", USES_AS_TRUTH.values(), ids=USES_AS_TRUTH)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_pattern_has_no_truth_value_and_names_the_signs(pattern, use):
    with pytest.raises(ArgumentError, match=r"is neither true nor false.*& \| ~.*is None"):
        use(pattern)


def test_a_text_is_read_on_either_side_of_a_sign():
    causal = p.Causal()
    window = p.SlidingWindow(4)
    assert causal & "sliding_window(4)" == "sliding_window(4)" & causal == causal & window
    assert causal | "sliding_window(4)" == "sliding_window(4)" | causal == causal | window
    pattern = p.Full()
    pattern &= "causal | prefix(2)"
    assert pattern == causal | p.Prefix(2)
    assert str("prefix(2)" & causal) == "prefix(2) & causal"


@pytest.mark.parametrize("join", [operator.and_, operator.or_])
@pytest.mark.parametrize("other", [None, 3, torch.ones(2, 2, dtype=torch.bool), ["causal"]])
def test_what_is_neither_pattern_nor_text_joins_no_pattern(other, join):
    with pytest.raises(TypeError):
        join(p.Causal(), other)


LENGTH = 9
DOCUMENTS = p.SameDocument(torch.arange(LENGTH) // 4)
UNPADDED = p.KeyMask(torch.arange(LENGTH) % 3 > 0)


@given(joined(readable), joined(readable))
def test_every_expression_with_tensors_reads_back(a, b):
    for pattern in (
        a & DOCUMENTS & b,
        (a | UNPADDED) & b,
        ~(a & DOCUMENTS) | b,
        a & ~(b | DOCUMENTS),
    ):
        text, tensors = written_apart(pattern, UnknownFloats().steady)
        again = read_together(text, tensors)
        assert torch.equal(again.dense(LENGTH, LENGTH), pattern.dense(LENGTH, LENGTH)), str(pattern)
