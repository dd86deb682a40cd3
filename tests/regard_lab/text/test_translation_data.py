"""Where a translator's sentences come from."""

import pytest

from regard.errors import ArgumentError, DataError
from regard_lab.text.pronouns import make_split
from regard_lab.text.translation_data import load_translation_data


def write(path, count, word="word"):
    path.write_text("".join(f"{word} {n}\tWort {n}\n" for n in range(count)))
    return str(path)


def test_the_embedded_corpus_has_its_three_parts():
    data = load_translation_data(["pronouns"], seed=0)
    sources = [{pair.source for pair in part} for part in (data.train, data.valid, data.test)]
    assert not sources[0] & (sources[1] | sources[2])
    assert [pair.source for pair in data.test] == [sentence.source for sentence in make_split("test", 600, 0)]


def test_a_users_file_is_split_by_its_sources_and_the_counts_are_said(tmp_path):
    data = load_translation_data([write(tmp_path / "pairs.tsv", 400)])
    assert len(data.train) + len(data.valid) + len(data.test) == 400
    assert len(data.valid) > 0
    assert len(data.test) > 0
    assert f"{len(data.train):,} for training" in data.notes[1]
    again = load_translation_data([str(tmp_path / "pairs.tsv")], seed=5)
    assert again.test == data.test


def test_given_validation_pairs_never_train(tmp_path):
    train, valid = write(tmp_path / "train.tsv", 50), write(tmp_path / "valid.tsv", 10)
    data = load_translation_data([train], [valid])
    assert (len(data.train), len(data.valid), data.test) == (40, 10, [])
    assert any(
        "10 training pairs left out, since their source is in the validation pairs" in note for note in data.notes
    )
    with pytest.raises(DataError, match="none is left for training"):
        load_translation_data([valid], [train])


def test_no_data_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="pronouns"):
        load_translation_data([])
    with pytest.raises(DataError, match=r"missing\.tsv"):
        load_translation_data([str(tmp_path / "missing.tsv")])
