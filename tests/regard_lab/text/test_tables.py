"""Tables with a header: columns are read by their names, and a column that nobody named is never guessed."""

from __future__ import annotations

import json

import pytest

from regard.errors import DataError, NotFoundError
from regard_lab.text import Pair, read_pairs
from regard_lab.text.documents import read_labelled

PAIRS = [Pair("A bird sang.", "Ein Vogel sang."), Pair("Yes, it did", 'Ja, "wirklich"')]
CSV = 'A bird sang.,Ein Vogel sang.\n"Yes, it did","Ja, ""wirklich"""\n'


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return written


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", f"source,target\n{CSV}"),
        ("a.csv", f"\ufeffSource , Target\r\n{CSV}".replace("\n", "\r\n").replace("\r\r", "\r")),
        ("a.CSV", f"src,translation\n{CSV}"),
        ("a.csv", f"source;target\n{CSV}".replace(",E", ";E").replace('","', '";"')),
        ("a.csv", "source\ttarget\nA bird sang.\tEin Vogel sang.\nYes, it did\t\"Ja, \"\"wirklich\"\"\"\n"),
        ("a.tsv", 'source\ttarget\nA bird sang.\tEin Vogel sang.\nYes, it did\tJa, "wirklich"\n'),
        ("a.tsv", 'A bird sang.\tEin Vogel sang.\nYes, it did\tJa, "wirklich"\n'),
        ("a.tsv", 'target\tid\tsource\nEin Vogel sang.\t1\tA bird sang.\nJa, "wirklich"\t2\tYes, it did\n'),
    ],
)  # fmt: skip
def test_a_header_names_the_columns_in_any_order(write, name, content):
    read = read_pairs(write(name, content))
    assert (read.pairs, read.dropped) == (PAIRS, {})


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_path_names_the_columns(write, suffix):
    lines = ["n,German,English", "1,Ein Vogel sang.,A bird sang."]
    path = write(f"a.{suffix}", "\n".join(lines).replace(",", "," if suffix == "csv" else "\t"))
    assert read_pairs(f"{path}:english,german").pairs == PAIRS[:1]
    assert read_pairs(f"{path}:german,english").pairs == [Pair("Ein Vogel sang.", "A bird sang.")]


@pytest.mark.parametrize("nested", [False, True])
def test_a_path_names_the_keys_of_json_objects(write, nested):
    pair = {"German": "Ein Vogel sang.", "English": "A bird sang."}
    lines = [{"id": 1, **({"translation": pair} if nested else pair)}, {"English": 7, "German": "x"}]
    path = write("a.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    read = read_pairs(f"{path}:english,german")
    assert (read.pairs, read.dropped) == (PAIRS[:1], {"without strings 'english' and 'german'": 1})
    assert read_pairs(f"{path}:german,english").pairs == [Pair("Ein Vogel sang.", "A bird sang.")]
    with pytest.raises(NotFoundError, match="none of 2 lines gives a pair: the strings of its first object are") as no:
        read_pairs(path)
    assert str(no.value).endswith(f"'German', 'English'; name the keys after the file, as in {path}:German,English")
    with pytest.raises(NotFoundError, match=r"name the keys after the file, as in .*a\.jsonl:English,German"):
        read_pairs(f"{path}:english,germn")
    assert read_pairs(write("b.jsonl", '{"src": "a", "tgt": "b"}\n')).pairs == [Pair("a", "b")]


def test_a_file_with_such_a_name_is_that_file(write):
    path = write("a.tsv:x,y.tsv", "a\tb\n")
    assert read_pairs(path).pairs == [Pair("a", "b")]


@pytest.mark.parametrize(
    ("name", "content", "asked", "words"),
    [
        (
            "a.csv",
            "en,de\nHello,Hallo\n",
            "",
            "a.csv begins with 'en', 'de'; a .csv begins with a header. Put the line",
        ),
        ("a.csv", "en,de\nHello,Hallo\n", "", "as in {path}:en,de"),
        ("a.csv", "Hello,Hallo\nYes,Ja\n", "", "Put the line source,target before it"),
        ("a.csv", "", "", "begins with an empty line"),
        ("a.tsv", "en\tde\nHello\tHallo\n", "", "the first line 'en', 'de' may be a header or a row"),
        ("a.csv", "source,target,source\na,b,c\n", "", "names a column twice"),
        ("a.csv", "english,german\na,b\n", ":english,french", "has no column 'french': its first line is"),
        ("a.tsv", "a\tb\n", ":english,german", "its first line is 'a', 'b'"),
        ("a.csv", 'source,target\na,b\n"open,c\nd,e\n', "", "line 3: the quotes do not close"),
    ],
)
def test_what_is_not_certain_is_refused_with_a_way_out(write, name, content, asked, words):
    path = write(name, content)
    with pytest.raises(DataError) as refused:
        read_pairs(f"{path}{asked}")
    assert words.format(path=path) in str(refused.value)


def test_lines_that_give_no_pair_are_counted_with_their_numbers(write):
    content = b'source,target\na,b\nonly one\n\n"two\nlines",c\n\xff,d\na,b\n,e\n'
    path = write("a.csv", content)
    read = read_pairs(path)
    assert read.pairs == [Pair("a", "b"), Pair("two lines", "c")]
    assert {reason: line for reason, (_, line) in read.first_lines.items()} == {
        "not as many columns as the header": 3, "empty line": 4, "not valid UTF-8": 7, "duplicate": 8, "empty side": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "asked"),
    [
        ("a.csv", "text,label\nA bird sang.,good\nIt rained.,bad\n", ""),
        ("a.csv", "id,stars,review\n1,good,A bird sang.\n2,bad,It rained.\n", ":stars,review"),
        ("a.tsv", "label\ttext\ngood\tA bird sang.\nbad\tIt rained.\n", ""),
    ],
)
def test_labels_are_read_by_their_names_too(write, name, content, asked):
    read = read_labelled(f"{write(name, content)}{asked}")
    assert read.labels == ("bad", "good")
    assert read.pairs[0] == Pair("A bird sang.", "good")


@pytest.mark.parametrize(
    ("name", "first", "hint"),
    [
        ("a.csv", "id,english,german", "as in {path}:english,german"),
        ("a.csv:englisch,german", "id,english,german", "as in {path}:english,german"),
        ("a.csv:text,german", "id,english,german", "as in {path}:english,german"),
        ("a.csv:text,reply", "id,date,question,answer", "as in {path}:SOURCE,TARGET"),
        ("a.csv", "question,answer", "as in {path}:question,answer"),
        ("a.csv", "id,date,question,answer", "as in {path}:SOURCE,TARGET"),
    ],
)
def test_the_way_out_names_columns_that_can_be_meant(tmp_path, name, first, hint):
    path = tmp_path / "a.csv"
    path.write_text(f"{first}\n{','.join('x' * len(first.split(',')))}\n")
    with pytest.raises(NotFoundError) as refused:
        read_pairs(tmp_path / name)
    assert str(refused.value).endswith(hint.format(path=path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.tsv",
            "source\ttarget\nA bird.\tEin Vogel.\n",
            "kept 1 of 1 line; the first line, 'source', 'target', is a header",
        ),
        ("a.csv", "src;tgt\nA bird.;Ein Vogel.\n", "kept 1 of 1 line; the first line, 'src', 'tgt', is a header"),
        (
            "a.tsv",
            "english\tsovari\nA bird.\tEin Vogel.\n",
            "kept 2 of 2 lines; the first line, 'english', 'sovari', was read as a row like the others; if it is a "
            "header, name the columns after the file, as in {path}:english,sovari",
        ),
        ("a.tsv", "A bird.\tEin Vogel.\n", "kept 1 of 1 line"),
    ],
)
def test_the_report_says_what_was_done_with_a_first_line_that_may_be_a_header(write, name, content, words):
    path = write(name, content)
    assert read_pairs(path).report() == f"{path}: {words.format(path=path)}"


def test_the_columns_can_be_named_as_the_report_says(write):
    path = write("a.tsv", "english\tsovari\nA bird.\tEin Vogel.\n")
    assert read_pairs(f"{path}:english,sovari").pairs == [Pair("A bird.", "Ein Vogel.")]
