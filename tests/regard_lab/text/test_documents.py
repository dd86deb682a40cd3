"""Running text and labelled texts from the files people have, and the tail that is held out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError
from regard_lab.text import Pair
from regard_lab.text.documents import read_documents, read_labelled, read_texts, split_tail


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "texts", "damaged"),
    [
        # spaces and lines are kept
        ("a.txt", "\ufeffone\r\n\r\n  two\u2028three", ("one\n\n  two\u2028three\n",), []),
        ("a.txt", b"one\ntwo\n\xff\xff\nfour\nfive\nsix\n", ("one\ntwo\nfour\nfive\nsix\n",), [3]),
        (
            "a.jsonl",
            '{"text": "a\\nb"}\n{"text": 3}\nno json\n{"text": " c"}\n',
            ("a\nb", " c"),
            [2, 3],
        ),
    ],
)
def test_documents_are_read_and_damaged_lines_dropped_counted_and_named(
    tmp_path, name, content, texts, damaged
):
    path = written(tmp_path, name, content)
    read = read_documents(path)
    assert read.texts == texts
    assert (read.dropped, read.first_dropped) == (
        len(damaged),
        (str(path), damaged[0]) if damaged else None,
    )
    size = f"{path}: {sum(map(len, texts))} characters in {len(texts)} text{'s' * (len(texts) > 1)}"
    dropped = f"dropped {len(damaged)} damaged line{'s' * (len(damaged) > 1)}, first at {path} line"
    assert read.report() == (f"{size}; {dropped} {damaged[0]}" if damaged else size)


def test_texts_are_lines_tidied_and_none_twice(tmp_path):
    lines = written(tmp_path, "a.txt", "one  two\n\none two \nthree\n")
    table = written(tmp_path, "b.jsonl", '{"text": "four\\nfive"}\n')
    assert read_texts(lines, table).texts == ("one two", "three", "four five")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", "", "has no text"),
        ("a.txt", " \n\n", "has no text"),
        ("a.jsonl", "plain\n", "has no text"),
        ("a.txt", b"\x00\x01", "binary file"),
        ("a.txt", b"\xe9\n\xe9\n\xe9\n", "another encoding"),
    ],
)
def test_what_is_no_text_is_refused_in_one_sentence(tmp_path, name, content, reason):
    with pytest.raises(DataError, match=reason) as refusal:
        read_documents(written(tmp_path, name, content))
    assert "\n" not in str(refusal.value)
    with pytest.raises(DataError, match="does not exist"):
        read_documents(tmp_path / "nothing.txt")


def test_labels_stand_before_their_texts(tmp_path):
    rows = "good\tA bird sang.\nbad\tIt rained.\nno tab\ngood\tA bird sang.\n"
    read = read_labelled(written(tmp_path, "a.tsv", rows))
    assert read.pairs == (Pair("A bird sang.", "good"), Pair("It rained.", "bad"))
    assert read.labels == ("bad", "good")
    assert "kept 2 of 4 lines" in read.report


def test_a_file_without_labels_is_refused(tmp_path):
    with pytest.raises(DataError, match="has 1 label, such as 'same'"):
        read_labelled(written(tmp_path, "a.tsv", "same\tone\nsame\ttwo\n"))
    with pytest.raises(DataError, match="has 1,001 labels"):
        read_labelled(
            written(tmp_path, "b.tsv", "".join(f"label {n}\ttext {n}\n" for n in range(1001)))
        )
    with pytest.raises(DataError, match=r"read from a \.tsv"):
        read_labelled(written(tmp_path, "a.txt", "good\tone\n"))


@given(st.lists(st.text("ab\n", min_size=1), min_size=1, max_size=25), st.floats(0.01, 0.5))
def test_heads_and_tails_are_the_documents(documents, share):
    heads, tails = split_tail(documents, share, 10_000)
    if len(documents) >= 20:
        assert heads + tails == documents
        assert len(tails) == max(1, round(share * len(documents)))
    else:
        assert sum(map(len, heads + tails)) == sum(map(len, documents))
        assert sum(map(len, tails)) <= sum(round(share * len(text)) for text in documents)


def test_a_tail_begins_with_a_line_and_is_no_longer_than_allowed():
    text = "".join(f"line {n}\n" for n in range(1000))
    heads, tails = split_tail([text], 0.5, 100)
    assert heads[0] + tails[0] == text
    assert tails[0].startswith("line ")
    assert 50 <= len(tails[0]) <= 100
