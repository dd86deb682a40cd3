"""Files as people have them: what is kept, what is dropped and counted, what is refused by name and line."""

import io
import json
import time

import pytest

from regard.errors import ArgumentError, DataError
from regard_lab.text import Pair, read_lines, read_pairs

HELLO = Pair("hello", "hallo")


@pytest.fixture
def write(tmp_path):
    """Write bytes (or text) under a name, and give the path."""

    def put(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return put


# --- what is cleaned and kept


@pytest.mark.parametrize(
    ("content", "pairs"),
    [
        (b"\xef\xbb\xbfhello\thallo\n", [HELLO]),  # byte order mark
        (b"hello\thallo\r\n", [HELLO]),  # Windows
        (b"hello\thallo", [HELLO]),  # no line end at the end
        ("a\u2028b\tc\u0085d\n", [Pair("a b", "c d")]),  # not line ends here
        ("a\x0cb\tc\x0bd\re\n", [Pair("a b", "c d e")]),  # form feed, vertical tab, lone CR
        ("  a \u00a0  b \t c\u3000d\n", [Pair("a b", "c\u3000d")]),  # special spaces of targets remain
        ("cafe\u0301\tKaffee\n", [Pair("caf\u00e9", "Kaffee")]),  # NFC
        ("I 😀 👩\u200d🚀\tשלום ❤️\n", [Pair("I 😀 👩\u200d🚀", "שלום ❤️")]),  # emoji, joiners, right to left
        ("don’t\tso “nicht”\n", [Pair("don’t", "so “nicht”")]),  # typography is the tokeniser's business
    ],
)
def test_dirt_that_can_be_cleaned_is_kept(write, content, pairs):
    read = read_pairs(write("x.tsv", content))
    assert read.pairs == pairs
    assert read.dropped == {}


# --- what is dropped, counted, and named by line: one good line, then the bad one on line 2

BAD_TSV = [
    ("\n", "empty line"),
    (" \t \n", "empty line"),
    ("no tab\n", "not exactly two columns"),
    ("one\ttwo\tthree\n", "not exactly two columns"),
    ("source\t\n", "empty side"),
    ("\ttarget\n", "empty side"),
    ("\u00a0\ttarget\n", "empty side"),
    ("word " * 251 + "\tx\n", "too long"),
    ("x\t" + "word " * 251 + "\n", "too long"),
    ("x" * 10_001 + "\tx\n", "too long"),
    ("hello\thallo\n", "duplicate"),
    ("hello \t hallo\r\n", "duplicate"),
    (b"caf\xe9\tKaffee\n", "not valid UTF-8"),
    (b"\xed\xa0\x80\tsurrogate\n", "not valid UTF-8"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_TSV)
def test_a_bad_line_is_dropped_counted_and_named(write, line, reason):
    raw = line if isinstance(line, bytes) else line.encode()
    path = write("x.tsv", b"hello\thallo\n" + raw + b"last\tletzte\n")
    read = read_pairs(path)
    assert read.pairs == [HELLO, Pair("last", "letzte")]
    assert read.dropped == {reason: 1}
    assert read.first_lines == {reason: (str(path), 2)}
    assert (read.kept, read.lines) == (2, 3)
    assert f"1 {reason}, first at {path} line 2" in read.report()


BAD_JSON = [
    ('{"source": "a", "target": \n', "broken JSON"),
    ("source: a\n", "broken JSON"),
    ("[" * 100_000 + "\n", "broken JSON"),
    ('{"source": "a", "target": 3}\n', "without source and target strings"),
    ('{"source": "a"}\n', "without source and target strings"),
    ('["a", "b"]\n', "without source and target strings"),
    ('"text"\n', "without source and target strings"),
    ('{"source": "a\\u0000b", "target": "c"}\n', "with a NUL character"),
    ('{"source": "a\\ud800", "target": "c"}\n', "not valid Unicode"),
    ('{"source": " ", "target": "c"}\n', "empty side"),
    ("\n", "empty line"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_JSON)
def test_a_bad_object_is_dropped_counted_and_named(write, line, reason):
    path = write("x.jsonl", '{"target": "hallo", "source": "hello", "id": 7}\n' + line)
    read = read_pairs(path)
    assert read.pairs == [HELLO]
    assert read.dropped == {reason: 1}
    assert read.first_lines == {reason: (str(path), 2)}


def test_json_strings_keep_their_own_line_ends_as_spaces(write):
    line = json.dumps({"source": "two\nlines\u2028here", "target": "zwei"}, ensure_ascii=False)
    assert read_pairs(write("x.JSONL", line)).pairs == [Pair("two lines here", "zwei")]


def test_a_nul_past_the_start_drops_one_line(write):
    good = "".join(f"source {i}\ttarget {i}\n" for i in range(1000))
    path = write("x.tsv", good + "a\0b\tc\n")
    assert read_pairs(path).first_lines == {"with a NUL character": (str(path), 1001)}


def test_longest_side_that_is_kept_has_exactly_max_words(write):
    path = write("x.tsv", "a b c\tx\na b c d\ty\n")
    assert read_pairs(path, max_words=3).pairs == [Pair("a b c", "x")]


def test_first_line_of_a_reason_is_its_first(write):
    path = write("x.tsv", "a\tb\n\nno\n\nno\n")
    read = read_pairs(path)
    assert read.dropped == {"empty line": 2, "not exactly two columns": 2}
    assert read.first_lines == {"empty line": (str(path), 2), "not exactly two columns": (str(path), 3)}


def test_same_source_with_another_target_is_no_duplicate(write):
    assert read_pairs(write("x.tsv", "a\tb\na\tc\n")).kept == 2


# --- two parallel files


def test_parallel_lines_become_pairs(write):
    read = read_pairs(write("x.en", "hello\n\n\nbad\nhello\n"), write("x.de", "hallo\r\n\nallein\n\nhallo"))
    assert read.pairs == [HELLO]
    assert read.dropped == {"empty line": 1, "empty side": 2, "duplicate": 1}


def test_a_fault_in_the_second_file_names_the_second_file(write):
    source, target = write("x.en", b"a\nb\nc\n"), write("x.de", b"A\n\xff\n \n")
    read = read_pairs(source, target)
    assert read.first_lines == {"not valid UTF-8": (str(target), 2), "empty side": (str(target), 3)}


@pytest.mark.parametrize(("left", "right", "counts"), [("a\nb\nc\n", "A\nB\n", (3, 2)), ("a\n", "A\nB\n\n", (1, 3))])
def test_parallel_files_of_different_length_are_refused_with_both_counts(write, left, right, counts):
    with pytest.raises(DataError, match=rf"x\.en has {counts[0]} lines? but \S*x\.de has {counts[1]}"):
        read_pairs(write("x.en", left), write("x.de", right))


# --- what is refused


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.tsv", b"", r"empty\.tsv is empty"),
        ("empty.jsonl", b"\xef\xbb\xbf", r"empty\.jsonl: none of 1 line"),
        (
            "lines.tsv",
            b"\n\n",
            r"lines\.tsv: none of 2 lines gives a pair \(2 empty line, first at \S*lines\.tsv line 1",
        ),
        ("plain.tsv", b"a b\nc d\n", r"none of 2 lines .*not exactly two columns, first at \S*plain\.tsv line 1"),
        ("array.jsonl", b'[{"source": "a", "target": "b"}]', r"array\.jsonl line 1"),
        ("mac.tsv", b"a\tb\rc\td\r", r"mac\.tsv line 1"),
        ("image.tsv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", r"image\.tsv, line 3 contains a NUL byte"),
        ("wide.tsv", "a\tb\n".encode("utf-16"), r"wide\.tsv, line 1 starts as UTF-16"),
        ("latin.tsv", "né\tja\nné\tja\nok\tja\n".encode("latin-1"), r"latin\.tsv: 2 of 3 lines.*the first is line 1"),
        ("notes.xlsx", b"a,b\n", r"notes\.xlsx has an unknown suffix"),
        ("alone.txt", b"a\n", r"two parallel plain files"),
    ],
)
def test_what_is_not_pairs_is_refused_by_name_and_line(write, name, content, message):
    with pytest.raises(DataError, match=message):
        read_pairs(write(name, content))


def test_one_damaged_line_never_refuses_a_file_and_a_fifth_does_not_either(write):
    assert read_pairs(write("one.tsv", b"a\tb\n\xff\tc\n")).dropped == {"not valid UTF-8": 1}
    lines = [b"%d\tx\n" % i for i in range(8)] + [b"\xff\n"] * 2
    assert read_pairs(write("fifth.tsv", b"".join(lines))).kept == 8
    with pytest.raises(DataError, match="3 of 11 lines"):
        read_pairs(write("more.tsv", b"".join([*lines, b"\xff\n"])))


@pytest.mark.parametrize("name", ["missing.tsv", "no\0name.tsv", "x" * 300 + ".tsv"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"does not exist|cannot be opened"):
        read_pairs(tmp_path / name)


def test_a_folder_is_refused(tmp_path):
    for name in ("folder.tsv", "folder"):
        (tmp_path / name).mkdir()
        with pytest.raises(DataError, match="is a folder"):
            read_pairs(tmp_path / name)


def test_wrong_arguments_are_refused(write):
    path = write("x.tsv", "a\tb\n")
    with pytest.raises(ArgumentError, match="0 paths"):
        read_pairs()
    with pytest.raises(ArgumentError, match="3 paths"):
        read_pairs(path, path, path)
    with pytest.raises(ArgumentError, match="max_words is 0"):
        read_pairs(path, max_words=0)
    with pytest.raises(DataError, match="is a table; give it alone"):
        read_pairs(path, path)


def test_report_says_everything_in_one_sentence(write):
    path = write("x.tsv", "a\tb\nno\n\nno\n")
    assert read_pairs(path).report() == (
        f"{path}: kept 1 of 4 lines; dropped 3 (2 not exactly two columns, first at {path} line 2; "
        f"1 empty line, first at {path} line 3)"
    )
    assert read_pairs(write("y.tsv", "a\tb\n")).report().endswith("y.tsv: kept 1 of 1 line")


def test_twenty_thousand_pairs_are_read_without_comparing_each_with_each(write):
    """In a tenth of a second; 2 · 10^8 comparisons take longer than the limit."""
    path = write("x.tsv", "".join(f"the source sentence {i}\tder Zielsatz {i} größer\n" for i in range(20_000)))
    start = time.process_time()
    assert read_pairs(path).kept == 20_000
    assert time.process_time() - start < 10


# --- plain sentences


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_i_comes_from_line_i(write, end):
    lines = ["first", "", "  third ", "four\u2028still four\x0cand\x85 four", "", "last"]
    content = end.join(lines)
    assert list(read_lines(write("x.txt", content))) == lines
    assert list(read_lines(io.BytesIO(content.encode()))) == lines
    assert list(read_lines(io.StringIO(content, newline="\n"))) == lines
    assert list(read_lines(io.TextIOWrapper(io.BytesIO(content.encode()), encoding="ascii"))) == lines


def test_an_empty_input_has_no_lines_and_a_bare_line_end_has_one():
    assert list(read_lines(io.BytesIO(b""))) == []
    assert list(read_lines(io.BytesIO(b"\n"))) == [""]


def test_lines_are_given_out_as_they_arrive():
    def typed():
        yield b"first\n"
        raise AssertionError("the second line was asked for before the first was given out")

    assert next(read_lines(typed())) == "first"


@pytest.mark.parametrize("bad", [b"caf\xe9", b"a\0b"])
def test_a_line_that_is_not_text_is_refused_by_name_and_number(write, bad):
    path = write("x.txt", b"good\n" + bad + b"\ngood\n")
    with pytest.raises(DataError, match=r"x\.txt, line 2 (is not valid UTF-8|contains a NUL)"):
        list(read_lines(path))
    with pytest.raises(DataError, match="the input, line 2"):
        list(read_lines(io.BytesIO(path.read_bytes())))


def test_missing_sentences_are_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        list(read_lines(tmp_path / "missing.txt"))
