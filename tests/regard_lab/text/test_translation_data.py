"""The parts of a file or of the embedded corpus: every pair once, no source on two sides, the same on every run."""

import random
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import ArgumentError, DataError
from regard_lab.text import Pair, split_by_hash, translation_data
from regard_lab.text.pronouns import make_split
from regard_lab.text.translation_data import load_translation_data

PAIRS = [Pair(f"source {i % 700}", f"target {i}") for i in range(1000)]
sources = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@settings(deadline=None)
@given(sources)
def test_every_pair_is_in_one_part_and_no_source_in_two(numbers):
    pairs = [Pair(f"s{n}", f"t{i}") for i, n in enumerate(numbers)]
    if len(set(numbers)) < 3:
        with pytest.raises(DataError, match=f"with {len(set(numbers))} distinct"):
            split_by_hash(pairs)
        return
    splits = split_by_hash(pairs)
    parts = [splits.train, splits.valid, splits.test]
    assert all(parts)
    assert sorted(chain.from_iterable(parts), key=pairs.index) == pairs
    for part in parts:
        assert part == sorted(part, key=pairs.index), "the order of the file is kept"
    for part, another in combinations(parts, 2):
        assert not sources_of(part) & sources_of(another)


def sources_of(pairs):
    return {pair.source for pair in pairs}


def test_parts_do_not_depend_on_the_order_of_the_file_and_new_pairs_do_not_move_old_ones():
    fewer = split_by_hash(PAIRS[:500])
    parts = split_by_hash(PAIRS)
    shuffled = split_by_hash(random.Random(0).sample(PAIRS, len(PAIRS)))
    for name in ("test", "valid"):
        of_file = set(getattr(parts, name))
        assert set(getattr(shuffled, name)) == of_file
        assert set(getattr(fewer, name)) <= of_file


def test_the_split_is_the_one_of_every_other_machine_and_its_shares_are_about_what_was_asked_for():
    splits = split_by_hash([Pair(f"sentence {i}", "") for i in range(100)])
    assert [pair.source for pair in splits.valid] == ["sentence 54", "sentence 69"]
    splits = split_by_hash([Pair(str(i), "") for i in range(4000)], valid=0.1, test=0.2)
    assert 340 < len(splits.valid) < 460
    assert 720 < len(splits.test) < 880


def test_typographic_variants_of_a_source_stay_together():
    pairs = []
    for number in range(200):
        pairs += [Pair(f"didn't {number}", "'"), Pair(f"didn’t {number}", "’")]
    for part in vars(split_by_hash(pairs)).values():
        assert len(part) % 2 == 0


def test_a_share_of_zero_leaves_a_part_empty_and_large_ones_leave_something_to_train_on():
    splits = split_by_hash(PAIRS, valid=0)
    assert splits.valid == []
    assert splits.test
    assert split_by_hash([Pair("only", "one")], valid=0, test=0).train == [Pair("only", "one")]
    splits = split_by_hash([Pair(str(i), "") for i in range(3)], valid=0.49, test=0.49)
    assert [len(part) for part in vars(splits).values()] == [1, 1, 1]


@pytest.mark.parametrize("shares", [(-0.1, 0.1), (0.1, -0.1), (0.5, 0.5), (float("nan"), 0.1)])
def test_shares_that_leave_nothing_are_refused_and_so_are_too_few_sources(shares):
    with pytest.raises(ArgumentError, match="shares are valid="):
        split_by_hash(PAIRS, *shares)
    with pytest.raises(
        DataError, match=r"^1 pair with 1 distinct source sentence cannot be split into 3 parts"
    ):
        split_by_hash([Pair("a", "b")])


def write(path, count, word="word"):
    path.write_text("".join(f"{word} {n}\tWort {n}\n" for n in range(count)))
    return str(path)


def test_the_embedded_corpus_has_its_three_parts(monkeypatch):
    monkeypatch.setitem(translation_data.PRONOUN_COUNTS, "train", 6_000)
    data = load_translation_data(["pronouns"], seed=0)
    assert not sources_of(data.train) & sources_of([*data.valid, *data.test])
    expected = [sentence.source for sentence in make_split("test", 600, 0)]
    assert [pair.source for pair in data.test] == expected


def test_a_users_file_is_split_by_its_sources_and_the_counts_are_said(tmp_path):
    data = load_translation_data([write(tmp_path / "pairs.tsv", 400)])
    assert len(data.train) + len(data.valid) + len(data.test) == 400
    assert len(data.valid) > 0
    assert len(data.test) > 0
    assert f"{len(data.train):,} for training" in data.notes[1]
    again = load_translation_data([str(tmp_path / "pairs.tsv")], seed=5)
    assert again.test == data.test


def test_given_validation_pairs_never_train_and_no_data_and_missing_files_are_refused(tmp_path):
    train = write(tmp_path / "train.tsv", 50)
    valid = write(tmp_path / "valid.tsv", 10)
    data = load_translation_data([train], [valid])
    assert (len(data.train), len(data.valid), data.test) == (40, 10, [])
    assert "10 training pairs left out, since their source is in the validation pairs" in data.notes
    with pytest.raises(DataError, match="none is left for training"):
        load_translation_data([valid], [train])
    with pytest.raises(ArgumentError, match="pronouns"):
        load_translation_data([])
    with pytest.raises(DataError, match=r"missing\.tsv"):
        load_translation_data([str(tmp_path / "missing.tsv")])
